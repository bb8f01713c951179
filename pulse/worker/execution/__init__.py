"""
One attempt: the handler, its deadlines, its stack.

- attempt: an attempt that this process holds, until the server has its result
- batch: several attempts whose handler is called once
- deadlines: finds handlers that have run, or been silent, for too long
- failure_hooks: calls the hooks of an app for an attempt that failed
- late_endings: logs how handlers end that have completed their jobs themselves
- link: connects the context of a handler to the worker that runs it
- previous: how the attempt before this one ended, as the server tells it
- runner: calls handlers: async ones as tasks, plain ones in threads
- server_reader: asks the server what handlers want to know of their jobs
- stacks: shows where a handler is: its coroutines, its threads
- wakeup: wakes a waiting task, from the loop, a thread or a signal handler
"""
