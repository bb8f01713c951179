"""awa: a core in Rust with Python handlers, append-only storage in rings."""

from __future__ import annotations

from bench.peers.foreign import PythonPeer
from bench.peers.peer import Facts


class Awa(PythonPeer):
    """With queue storage, COPY for bulk, and many workers."""

    facts = Facts(
        name="awa-pg",
        version="0.6.9",
        settings="queue storage, 1024 workers on one queue, enqueue_many_copy, uvloop",
        source="github.com/hardbyte/awa, docs/configuration.md, and the package's README",
        fence="yes",
        keeps="the job, for seconds",
    )
    requirements = ("awa-pg==0.6.9", "uvloop==0.23.0")
    program = "awa_program"
    # Its view of all jobs takes minutes for 50 000 of them. Pruned ones are counted in the rollups in the same moment.
    ended_sql = (
        "SELECT coalesce((SELECT sum(pruned_completed_count) FROM awa.queue_terminal_rollups), 0)::bigint"
        " + coalesce((SELECT sum(cardinality(job_ids)) FROM awa.receipt_completion_batches), 0)::bigint"
        " + (SELECT count(*) FROM awa.done_entries)"
    )
