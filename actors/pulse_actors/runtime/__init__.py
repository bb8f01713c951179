"""
What every actor runs on.

- actor: hello, settings, the loop, pings, stop, exit codes
- bus: the actor's end of the bus to the supervisor
- gate_summary: a short form of the gate, for the bus and the log
- pg_listen: receives NOTIFY of PostgreSQL, and reconnects
- schema: what an actor does about the schema when it starts
- template: has imported what the actors need, and forks them
"""
