"""
The demonstration: a worker is killed in the middle of a job, and the job is recovered, on a real system.

- app: the app of the demonstration: it computes checksums
- follow: runs a program that gets SIGTERM when its parent dies
- server: a complete pulse in a temporary directory
- story: what happens in the demonstration, step by step
"""
