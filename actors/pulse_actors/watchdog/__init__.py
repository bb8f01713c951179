"""
The watchdog: ends attempts with a lapsed lease, expires jobs, deletes old ones.

- actor: the loop of sweeps
- expiry: turns jobs that did not start by `expires_at` into dead letters
- retention: deletes finished jobs in small batches
- sweep_guard: decides whether a lapsed lease proves that a worker is silent
"""
