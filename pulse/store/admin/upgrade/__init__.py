"""
Upgrades the schema from one release to the next, while servers of both run.

- citus_forms: which commands of a step a queue on Citus can take
- citus_steps: takes the steps where Citus keeps the queue
- plan: what an upgrade will do, and what it has done
- runner: takes the steps of an upgrade, one after the other
- steps: reads the steps of a version
"""
