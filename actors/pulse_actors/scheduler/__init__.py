"""
The scheduler: fires due schedules, each occurrence once.

- actor: the loop: fires what is due, sleeps until the next occurrence
- catchup: decides what happens to occurrences that were missed
- unique: fires schedules with a unique key, which may wait for a transaction of others
"""
