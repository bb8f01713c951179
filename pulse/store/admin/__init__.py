"""
Installs and examines the database.

- checks: tests the invariants of the database
- doctor: reads what `pulse doctor` wants to know, within a time limit
- incidents: the doctor's questions that the running server asks, too
- roles: creates the database roles, and grants their rights
- schema: installs and upgrades the schema
"""
