"""
What clients ask, and how each request is answered.

- jobs: requests about jobs
- schedules: requests about schedules
- table: every kind of request, and its function
"""
