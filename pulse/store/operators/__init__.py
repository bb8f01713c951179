"""
Changes by operators and clients, each with its entry in the audit.

- audit: reads the audit, and how far retention has got
- dependencies: tells which jobs wait for which, and settles what was forgotten
- gate: pauses and resumes dispatch
- jobs: cancels, retries, deletes and changes jobs
- limits: sets and lists the policies of limits
- outbox: lets publishers take the ends of jobs, and forget them
- policies: sets and reads the policy of a topic
- schedules: creates, changes and fires schedules
- signals: sends signals to jobs, and finds what a handler has not had yet
- testing: empties the database of a test, and lets its time pass
- transaction: runs a change and its audit entry in one transaction
- unique: submits again, and submits jobs with unique keys
"""
