"""
Submit jobs on a connection of your own, inside your transaction: they exist if and only if it commits.

- database: a client's own way to the database
- document: the jobs of a submit as one JSON document
- drivers: runs the statement on connections of psycopg, asyncpg, SQLAlchemy and Django, and tells their errors apart
- fallback: submits of a client that go by SQL while no server answers
- submitting: `pulse.sql.submit` and its async and bulk forms
"""

from __future__ import annotations

from pulse.sql.submitting import submit, submit_async, submit_many, submit_many_async

__all__ = ["submit", "submit_async", "submit_many", "submit_many_async"]
