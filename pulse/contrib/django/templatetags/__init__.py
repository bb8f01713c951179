"""
Where Django looks for tags.

- pulse_admin: the address of the dashboard
"""
