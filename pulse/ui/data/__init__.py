"""
What the dashboard asks of the server and changes there.

- bulk_actions: the actions on many jobs, and the form that asks for one
- bulk_tasks: changes many jobs in the background, page by page
- filters: the form fields that select jobs
- poller: asks for the state of the system every two seconds, while a page is open
- problems: lists what is wrong, with what to do
- queries: sends questions to the server, each with a time limit
"""
