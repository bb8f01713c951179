"""
Isolated jobs: each in a process of its own, forked from a zygote.

- child: the main program of a cell: it runs one handler once
- death: the result of an attempt whose cell died by itself
- manager: starts the zygote, and runs isolated attempts
- messages: the messages between handler process, zygote and cell
- rlimits: limits on the memory and CPU time of a cell
- run: one isolated attempt, as the handler process sees it
- zygote: loads the app once, and forks a cell for each job
"""
