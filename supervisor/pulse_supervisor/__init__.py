"""
The supervisor: starts the actors and pools, watches them, restarts them, stops them.

- bus: the message bus between the actors
- children: child processes: how they are described, started, watched and restarted
- control: supervisor.sock: status, logs, restart, drain
- main: the command `pulse-supervisor`
- postgres: the embedded PostgreSQL
- preflight: checks users and certificates before anything starts
- runner: feeds events to the lifecycle of each child, and carries out its effects
- slots: a child, and the process that runs as it now
- sockets: the runtime directory: one supervisor at a time, and its sockets
- supervisor: the life of a supervisor: start, serve, stop
- systemd: notification, socket activation, units
"""
