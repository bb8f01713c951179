"""pgqueuer: Python, jobs are deleted when done, and logged."""

from __future__ import annotations

from bench.peers.foreign import PythonPeer
from bench.peers.peer import Facts


class PgQueuer(PythonPeer):
    """Five consumers in one process, as its own benchmark has them, with larger batches."""

    facts = Facts(
        name="pgqueuer",
        version="1.6.0",
        settings="5 consumers on a connection each, batch_size 100, its autovacuum settings, asyncpg, uvloop",
        source="janbjorge.github.io/pgqueuer: comparisons/benchmarks, guides/performance-tuning",
        fence="no",
        keeps="a line of its log",
    )
    requirements = ("pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0")
    program = "pgqueuer_program"
    left_sql = "SELECT count(*) FROM pgqueuer"
