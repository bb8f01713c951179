"""
Sweeps, jobs that are set aside, epochs and timelines.

- epochs: begins a new epoch when the database went back
- set_aside: keeps jobs that the database refuses away from claims, and tries them again later
- sweeps: reads which hosts exist and when the last sweep was
- timelines: remembers the newest timeline of each cluster
"""
