"""
The database side of pulse: every statement, the connections they run on, and the schema. Needs the extra `server`.

- admin: installs and examines the database: schema, roles, checks, doctor
- arguments: turns rows into the array arguments of a statement
- connections: connections to PostgreSQL: pool, sessions, poolers
- defaults: writes the server's and the handlers' defaults for submits by SQL
- error_text: explains in one line why PostgreSQL cannot store a value
- failures: decides what an error of the database means
- operators: changes by operators and clients: jobs, schedules, policies, the gate
- reading: lists, counts and single jobs
- recovery: sweeps, jobs that are set aside, epochs and timelines
- rows: typed rows that go into statements and come out of them
- sql: the statements
- standing: the facts about a job that `jobs why` needs
- statements: loads the statements from the .sql files
- store: `Store`: one method per statement
- times: converts between timestamps of PostgreSQL and numbers
- upgrades: the steps from one version of the schema to the next
"""
