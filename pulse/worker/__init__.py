"""
The worker: a pool parent, and the handler processes that it starts.

Theory of operation
-------------------
``pulse worker module:app`` starts the pool parent (``pool``). The parent has one handler process per slot, replaces
those that die, and runs no user code. A template loads the app, and handler processes are forked from it; where that is
not safe, each loads the app. A handler process (``handler_process``) connects to the server by itself, and calls
handlers: the kernel must show the server the process that runs the job, not its parent.

``service`` is the life of a handler process. It uses ``session`` (the connection, and the ledger of attempts that the
process holds), ``execution`` (calls handlers, and stops those that take too long) and ``isolation`` (runs jobs in a
process of their own: the zygote loads the app once more, and forks a cell for each job).

A handler that blocks the event loop or holds the GIL stops all of that. So the parent watches how old each process's
last heartbeat is (``pool.proxy_heartbeat``), and sends heartbeats for a silent one over a connection of its own while
the kernel says that it lives. It can also show where such a process is, by a signal that faulthandler answers.

- app_name: what can be said of `module:app` without importing it
- command: the command line of a pool: `pulse worker`
- execution: one attempt: the handler, its deadlines, its stack
- handler_process: the main program of a handler process
- isolation: isolated jobs: each in a process of its own
- load_app: imports the app `module:app`
- options: the options that parent, handler process and zygote pass on
- pool: the pool parent
- service: the life of a handler process: connect, work, reconnect, drain, end
- session: the connection to the dispatcher, and the jobs that the process holds
- status_pipe: what a handler process reports to its parent over a pipe
"""
