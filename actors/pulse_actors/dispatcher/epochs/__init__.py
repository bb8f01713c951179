"""
Notices that the database went back, and begins a new epoch.

- witness: counts in the database, compares, and repairs
"""
