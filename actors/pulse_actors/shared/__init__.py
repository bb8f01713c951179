"""
What several actors use.

- audit: writes audit entries for requests that the supervisor received
- cron: cron expressions in a time zone, with a rule for clock changes
- duty_cycle: how long to rest so that work takes only a share of the time
- epoch_memory: the file in which a host remembers its database's epoch
- epochs: decides whether the database went back
- failures: which ends of attempts are failures to log; pure
- identity: composes the identity of a worker from what the kernel says
- json_size: computes how large JSON becomes as jsonb
- recurrence: computes the times of a schedule
- row_writes: writes many rows in one statement, and finds the rows that prevent it
"""
