"""
Group commit: submits, reports and heartbeats, many in one statement.

- batcher: collects requests while the previous statement runs
- heartbeat: extends the leases of all workers that sent heartbeats
- report: writes the results that workers report
- report_rows: turns results into rows; pure
- submit: writes submits
- unwritten: keeps reports that cannot be written yet, and tries again
"""
