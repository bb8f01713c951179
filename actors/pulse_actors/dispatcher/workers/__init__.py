"""
The connected workers and the jobs that they hold.

- deadlines: when each running handler must have ended or reported progress
- health: why a worker that holds jobs is silent
- policies: the policies of topics, in memory
- records: what is known about one worker: its facts, its jobs, its last signs of life
- registry: the workers, what each holds, and what each may get; no IO
"""
