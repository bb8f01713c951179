"""
The pool parent: starts handler processes, restarts them, sends heartbeats for them.

- child: one handler process, as its parent sees it
- fork_check: whether a process that has loaded the app may be forked
- forks: handler processes that are forked from the template
- parent: the life of the pool: start, restart, stop
- proxy_heartbeat: heartbeats and stacks on behalf of silent children
- reload: a pool that is started again when a file of the app changes, for development
- restart: whether a handler process that ended is started again
- spares: processes that have loaded the app and wait to replace one that dies
- template: the process that handler processes are forked from
"""
