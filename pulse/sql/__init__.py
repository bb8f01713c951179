"""
Submit jobs, and signal them, on a connection of your own, inside your transaction: done if and only if it commits.

- database: a client's own way to the database
- document: the jobs of a submit, or a signal, as one JSON document
- drivers: runs a statement on connections of psycopg, asyncpg, SQLAlchemy and Django, and tells their errors apart
- fallback: submits of a client that go by SQL while no server answers
- signals: `pulse.sql.signal` and its async form
- submitting: `pulse.sql.submit` and its async and bulk forms
"""

from __future__ import annotations

from pulse.sql.signals import signal, signal_async
from pulse.sql.submitting import submit, submit_async, submit_many, submit_many_async

__all__ = ["signal", "signal_async", "submit", "submit_async", "submit_many", "submit_many_async"]
