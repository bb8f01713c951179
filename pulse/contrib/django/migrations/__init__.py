"""
What ``manage.py migrate`` does: it installs the schema of pulse where there is none, in databases of tests, too.

It installs the newest one, so there will be no second migration: the supervisor or ``pulse migrate`` upgrades a schema.

- 0001_schema: installs the schema
"""
