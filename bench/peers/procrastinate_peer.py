"""procrastinate: Python, finished jobs stay in its table."""

from __future__ import annotations

from bench.peers.foreign import PythonPeer
from bench.peers.peer import Facts


class Procrastinate(PythonPeer):
    """With thirty jobs at once."""

    facts = Facts(
        name="procrastinate",
        version="3.10.0",
        settings="concurrency 30, batch_defer, psycopg in C, uvloop",
        source="procrastinate.readthedocs.io: howto/production/concurrency, howto/advanced/batch",
        fence="no",
        keeps="the row, its events",
        most_jobs=5000,
    )
    requirements = ("procrastinate==3.10.0", "psycopg-binary==3.3.9", "uvloop==0.23.0")
    program = "procrastinate_program"
    finished_sql = "SELECT count(*) FROM procrastinate_events WHERE type = 'succeeded' AND at <= to_timestamp($1)"
    left_sql = "SELECT count(*) FROM procrastinate_jobs WHERE task_name = 'noop' AND status IN ('todo', 'doing')"
