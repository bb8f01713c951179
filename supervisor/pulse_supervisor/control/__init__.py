"""
supervisor.sock: status, logs, restart, drain.

- log_ring: the newest log lines of all children, bounded in bytes
- server: answers requests on the socket
- status: combines `status` from the supervisor and the actors
"""
