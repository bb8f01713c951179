"""
The requests of clients.

- jobs: requests about jobs
- limits: requests about limits of jobs
- schedules: requests about schedules
- table: every kind of request, and its function
"""
