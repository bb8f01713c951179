"""
Counters, findings, statistics.

- answer: the answer to `stats`, and its history
- counters: counts jobs and durations by topic
- findings: what is wrong beyond counts and workers: dead rows, dead hosts
- memory_trim: returns freed memory to the kernel
- observe: which events of a batch are counted, and when
- refused_statements: statements that the database refuses now
- unhandled_log: logs jobs that no worker has a handler for
"""
