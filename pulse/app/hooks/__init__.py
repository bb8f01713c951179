"""
What an app calls around its handlers.

- failed_job: jobs that tell of dead letters and crashes
- functions: what kind of function something is, and whether it can be called as pulse would call it
- lifespan: values that live as long as a process, and what is called when it starts and ends
- middleware: the functions around each attempt, and the order in which they are called
- registry: all hooks of an app
"""
