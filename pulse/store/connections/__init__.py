"""
Connections to PostgreSQL.

- citus: goes to the node that has the rows of a queue, where Citus keeps them
- citus_installation: makes a queue whose tables Citus keeps
- citus_schema: divides schema.sql among the nodes of Citus; pure
- hosts: takes the first of several hosts that will do
- pool: a pool of connections whose statements never hang
- pooler: detects poolers that give pulse no session of its own
- rendering: renders SQL for a schema of another name than `pulse`
- session: a connection to one schema, whose errors name their statement
- usage: counts how many statements run, how long they take, and since when they fail
"""
