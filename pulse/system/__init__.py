"""
Linux: processes, directories, listening sockets, peer credentials, log output.

- directories: chooses the directories of sockets and state, and checks that they are safe
- failure_log: logs failed attempts and dead letters, as many as a log bears
- fork: what a forked child must not go on using
- log_forward: sends each log line to the supervisor, too
- log_sink: makes standard output and standard error never block and never fail
- pid1: what pulse does when it is the first process of a container
- process_tree: finds the processes that a handler process has started
- processes: asks the kernel about processes: start time, state, memory, death of the parent
- restart_policy: how often and how soon a dead process is restarted
- sockets: addresses, listeners, the processes behind them, and their bytes
"""
