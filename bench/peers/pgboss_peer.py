"""pg-boss: Node, finished jobs stay in its table."""

from __future__ import annotations

from bench.peers.foreign import NodePeer
from bench.peers.peer import Facts


class PgBoss(NodePeer):
    """With large batches, fetched one after the other while they come back full, and woken by NOTIFY."""

    facts = Facts(
        name="pg-boss",
        version="12.35.0",
        settings="batchSize 500, burstWhenBatchFull, notify",
        source="pgboss.io, workers and queues",
        fence="by state",
        keeps="the row",
    )
    requirement = "pg-boss@12.35.0"
    program = "pgboss.mjs"
    finished_sql = "SELECT count(*) FROM pgboss.job WHERE name = 'noop' AND completed_on <= to_timestamp($1)"
    left_sql = "SELECT count(*) FROM pgboss.job WHERE name = 'noop' AND state < 'completed'"
