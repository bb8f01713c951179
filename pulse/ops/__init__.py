"""
What the command line and the dashboard share.

- bulk: changes of many jobs: finds them, changes them batch by batch, takes a change back
- demo: the demonstration: a worker is killed, and its job is recovered
- doctor: the checks of `pulse doctor`
- job_text: formats the JSON and the attempts of a job
- json_input: checks a job's args and a signal's payload as a person or a program sends them
- metrics: the Prometheus endpoint
- status: asks the supervisor and the dispatcher for their state, and joins the answers
- worker_text: tells of workers: their places, and what is the matter with them
"""
