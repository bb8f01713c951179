"""
Transactions on a connection of somebody else's, whatever its driver is.

- connections: begins, runs statements on, and ends a transaction, for each driver
- drivers: recognises connections of psycopg, asyncpg, SQLAlchemy and Django, and tells their errors apart
- fence: what the transactions of one attempt have come to
- transaction: `ctx.transaction`: a transaction that commits only while the attempt holds its job
"""
