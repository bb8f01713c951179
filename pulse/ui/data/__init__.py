"""
The dashboard's requests to the server.

- bulk_orders: the changes of many jobs that a form can ask for
- bulk_tasks: changes many jobs in the background, page by page
- filters: the form fields that select jobs
- poller: asks for the state of the system every two seconds, while a page is open
- queries: sends questions to the server, each with a time limit
"""
