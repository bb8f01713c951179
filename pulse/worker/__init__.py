"""
The worker: a pool parent, and the processes that call handlers.

Theory of operation
-------------------
``pulse worker module:app`` is the pool parent (``pool``). It starts one process per slot (``host``), restarts those
that die, and runs no user code. A handler process loads the app, connects to the server by itself, so that the process
that the kernel shows behind the socket is the one that runs the handlers, and works:

- ``desk`` knows what is held and what is to be told of it: pure bookkeeping, no IO, no clock;
- ``runner`` calls handlers: async ones as tasks, plain ones in threads;
- ``cells`` has those called that are to have a process of their own: a ``zygote`` loads the app once more, and forks a
  ``cell`` for each job, which ``cellrun`` sees through to its end;
- ``deadlines`` and ``stacks`` see to handlers that hang: when, and where;
- ``connection`` is one connection: it reads, writes once per turn of the loop, and beats;
- ``service`` is the life of the process: connect, lose the connection, connect again, drain, end.

A handler that holds the interpreter stops all of that. So the parent watches how long ago each child's own heartbeat
was answered (``beats``), and beats for the silent ones over a connection of its own while the kernel says that they
live. It can also show where such a child is, by a signal that faulthandler answers without the interpreter.
"""
