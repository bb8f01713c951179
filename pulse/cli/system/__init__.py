"""
Commands that watch the running system.

- audit: `pulse ctl audit`: lists what operators did
- logs: `pulse ctl logs`: shows and follows the log of the supervisor and its children
- processes: `pulse ctl actors` and `drain`: restart an actor, drain the pools
- queues: `pulse ctl queues`: lists the queues of the config file
- status: `pulse ctl status`: asks the supervisor and the dispatcher at the same time
- status_page: formats the status, with a line for each problem
- top: `pulse ctl top`: topics, workers and jobs, live
- top_page: formats the screen of `top`
- workers: `pulse ctl workers`: lists the connected handler processes
"""
