"""
All that pulse can find wrong. Facts are read first; each verdict is a pure function of them.

`checks` is the one list, and says which tools tell of each: `pulse doctor`, `pulse ctl status`, the dashboard, metrics.

- blockers: transactions, locks and dead rows that slow the queue down
- checks: the list: titles, severity, where each is shown, what to do
- database: the server: its settings, rights, schema and indexes
- directories: directories and sockets: owners, permissions, space
- epochs: a database that went back in time
- finding: the result of a check, and words that checks share
- installation: Python, libraries, settings, limits and the kernel
- limits: verdicts on limits and groups
- queue: leases, topics, waits, the gate, schedules, crashes, dead letters, the outbox, hosts
- refusals: statements and jobs that the database refuses
- running: processes and workers of a running system; all that is wrong in it
- verdicts: which check judges which fact, in the order of the report
"""
