"""
Changes by operators and clients, each with its entry in the audit.

- audit: reads the audit, and how far retention has got
- gate: pauses and resumes dispatch
- jobs: cancels, retries, deletes and changes jobs
- policies: sets and reads the policy of a topic
- schedules: creates, changes and fires schedules
- testing: empties the database of a test, and lets its time pass
- transaction: runs a change and its audit entry in one transaction
- unique: submits again, and submits jobs with unique keys
"""
