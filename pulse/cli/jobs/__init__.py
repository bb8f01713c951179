"""
Commands about jobs.

- bulk: changes many jobs: counts them, asks for confirmation, then changes them batch by batch
- change: `pulse ctl jobs cancel`, `retry`, `delete` and `change`
- commands: the group `pulse ctl jobs`, with list, get, why and stack
- filters: the options that select jobs, and the requests that find them page by page
- jsonlines: cuts JSON Lines into batches of checked args
- page: formats one job for people
- signals: `pulse ctl jobs signal`: tells a job what its handler waits for
- story: puts a job's submit, attempts and end in the order of time
- submit: `pulse ctl submit`: submits one job, or many from JSON Lines
"""
