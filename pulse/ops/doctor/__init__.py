"""
The checks of `pulse doctor`. Facts are read first; each verdict is a pure function of them.

- blockers: transactions, locks and dead rows that slow the queue down
- database: the server: its settings, rights, schema and indexes
- directories: directories and sockets: owners, permissions, space
- epochs: a database that went back in time
- finding: the result of a check, and words that checks share
- installation: Python, libraries, settings, limits and the kernel
- queue: leases, topics, the gate, schedules, crashes, dead letters, hosts
- refusals: statements and jobs that the database refuses
- verdicts: which check judges which fact, in the order of the report
"""
