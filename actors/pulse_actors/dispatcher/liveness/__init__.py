"""
Detects dead, hung and silent workers, and recovers their jobs.

- host_workers: the worker processes of this host, watched by all of the following
- hung_handlers: kills the process of a handler that outlasts its time
- process_watch: learns from the kernel that a worker process has ended
- silent_workers: kills a silent worker, then gives its jobs out again
- stack_requests: asks a worker where a handler is
- startup: ends attempts that cannot be running any more, before the first claim
"""
