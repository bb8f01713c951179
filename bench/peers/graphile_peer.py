"""graphile-worker: Node, jobs are deleted when done."""

from __future__ import annotations

from bench.peers.foreign import NodePeer
from bench.peers.peer import Facts


class Graphile(NodePeer):
    """With a local queue and batched completion."""

    facts = Facts(
        name="graphile-worker",
        version="0.18.0",
        settings="concurrentJobs 24, maxPoolSize 25, localQueue size 500, completeJobBatchDelay 0, failJobBatchDelay 0",
        source="worker.graphile.org/docs/performance",
        fence="no",
        keeps="nothing",
    )
    requirement = "graphile-worker@0.18.0"
    program = "graphile.mjs"
    left_sql = "SELECT count(*) FROM graphile_worker._private_jobs"
