"""
Child processes.

- child_exec: becomes the child's program, which dies with its parent
- events: what can happen to a child, and what can be done about it
- lifecycle: the life of a child, as a pure table of transitions
- process: one process: started, signalled and awaited by its pidfd
- reaper: ends and reaps orphans that were left to the supervisor
- spec: the children as data: command line, order, stop, restart
- template: forks the actors from a process that has imported what they need
"""
