"""
The database side of pulse: every statement, the connections they run on, and the schema. Needs the extra `server`.

- admin: installs and examines the database: schema, roles, checks, doctor
- arguments: turns rows into the array arguments of a statement
- connections: connections to PostgreSQL: pool, sessions, poolers
- failures: decides what an error of the database means
- limit_claims: claims under limits, and of groups
- operators: changes by operators and clients: jobs, schedules, policies, the gate
- reading: lists, counts and single jobs
- recovery: sweeps, jobs that are set aside, epochs and timelines
- rows: typed rows that go into statements and come out of them
- sql: the statements
- statements: loads the statements from the .sql files
- store: `Store`: one method per statement
"""
