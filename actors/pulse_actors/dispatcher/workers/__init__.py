"""
The connected workers and the jobs that they hold.

- health: why a worker that holds jobs is silent
- policies: the policies of topics, in memory
- registry: the workers, what each holds, and what each may get; no IO
"""
