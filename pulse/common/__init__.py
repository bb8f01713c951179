"""
Small pure helpers.

- backoff: the wait before a retry, written like `fixed:5`
- dsn: reads connection strings of PostgreSQL, and hides their passwords
- duration: reads lengths of time as people type them, 5m or 2h30m
- extras: says which extra of the distribution has a library that is missing
- histogram: counts durations in buckets, and estimates percentiles
- ids: job ids: UUID version 7 as bytes and as text
- invalid_field: which field of a value is wrong, and what is allowed
- json_text: turns values into JSON text that jsonb can store
- text: writes counts, durations and lists for people
- version: the version of pulse
- waiting: what the tasks of one loop wait for: a wake-up, a condition, their turn
- wire_values: converts ids, times and args of callers for the wire
"""
