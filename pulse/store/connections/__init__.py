"""
Connections to PostgreSQL.

- hosts: takes the first of several hosts that will do
- pool: a pool of connections whose statements never hang
- pooler: detects poolers that give pulse no session of its own
- session: a connection whose errors name their statement
- usage: counts how many statements run, how long they take, and since when they fail
"""
