"""
The pages of the dashboard.

- audit: what operators did
- bulk: a change of many jobs: the preview, then the progress
- common: what pages share: forms, buttons, messages
- dead: dead letters, grouped by error
- gate: what is paused; pause and resume
- job: one job: its attempts, and why it does not run
- jobs: the list of jobs with its filters
- limits: limits of concurrency and rate, and what differs for single groups
- live: the event stream that refreshes open pages
- login: login and logout
- overview: the first page: problems, counts, the last hour
- schedule_form: the form of a schedule
- schedules: the list of schedules, and one schedule
- signals: the form of a signal to a job, and the answer to programs that send one
- system: workers and actors; restart of an actor
- topics: topics, their queues and policies
"""
