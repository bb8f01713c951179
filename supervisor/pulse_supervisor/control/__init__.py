"""supervisor.sock: status, logs, restart, drain."""
