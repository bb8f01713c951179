"""
Who may use the dashboard.

- address: the address that the dashboard listens on
- rules: decides without IO what a request may do
- sessions: the sessions of logged-in users, in memory
"""
