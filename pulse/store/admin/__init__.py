"""
Installs and examines the database.

- checks: tests the invariants of the database
- doctor: reads what `pulse doctor` wants to know, within a time limit
- roles: creates the database roles, and grants their rights
- schema: installs the schema, and decides which versions of it pulse works with
- upgrade: upgrades the schema from one release to the next, while servers of both run
"""
