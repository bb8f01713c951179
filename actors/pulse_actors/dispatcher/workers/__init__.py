"""
The connected workers and the jobs that they hold.

- deadlines: a heap of the times by which handlers must end or report progress; pure
- health: why a worker that holds jobs is silent
- policies: the policies of topics, in memory
- records: what the dispatcher keeps of one worker, each record with one owner
- registry: the workers, what each holds, and what each may get; no IO
"""
