"""
The connection of a handler process to the dispatcher, and the jobs that it holds.

- batch_queue: jobs that wait for others, to be called together
- checkpoints: saved checkpoints that the server does not have yet
- connection: one connection, from welcome to loss
- declarations: what it tells the server about the app: topics, schedules, limits
- heartbeat: builds heartbeats
- ledger: all attempts that the process holds, and what is still to be reported; no IO
- prefetch: how many jobs to hold beyond those that run
- reconnect: connects again after a loss, with back-off
"""
