"""
Notices that the database went back, and begins a new epoch.

- finished_jobs: the ids of the jobs that were completed last
- witness: counts in the database, compares, and repairs
"""
