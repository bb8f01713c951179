"""
For suites with a PostgreSQL of their own: finds the jobs that a test has submitted in its transaction, and runs them.

Nothing is committed: the test's connection reads the jobs and writes how they ended. So nobody else sees them, and they
are gone with the rollback after the test.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from pulse.app.app import App
from pulse.app.call import HandlerRef
from pulse.client import records
from pulse.errors import BadRequestError, InlineError
from pulse.job import Job
from pulse.protocol.answers import JobInfo
from pulse.testing.inline import Inline
from pulse.testing.matching import SubmittedJobs, find_submitted
from pulse.testing.memory import InlineJob

__all__ = ["run_submitted", "run_submitted_async", "submitted", "submitted_async"]

MAX_ROUNDS: Final = 100  # of jobs that submit jobs
# One text in, one text out, so that neither row factories nor codecs of the test's connection are asked.
_JOBS: Final = """
SELECT CAST(coalesce(jsonb_agg(to_jsonb(j) || jsonb_build_object(
    'args', CAST(j.args AS text), 'result', CAST(j.result AS text), 'progress', CAST(j.progress AS text),
    'submitted_at', extract(epoch FROM j.submitted_at), 'next_run_at', extract(epoch FROM j.next_run_at),
    'started_at', extract(epoch FROM j.started_at), 'completed_at', extract(epoch FROM j.completed_at),
    'expires_at', extract(epoch FROM j.expires_at), 'occurrence', extract(epoch FROM j.occurrence),
    'lease_until', extract(epoch FROM j.lease_until),
    'is_due', j.status IN ('PENDING', 'RETRYING') AND j.next_run_at <= clock_timestamp()
) ORDER BY j.submitted_at, j.id), '[]') AS text)
FROM pulse.jobs j WHERE {} <> ''
"""
_WRITE: Final = """
UPDATE pulse.jobs j
SET status = CAST(d.status AS pulse.job_status), attempts = d.attempts, uncharged = d.uncharged, result = d.result,
    progress = d.progress, last_error = d.last_error, ran_by = d.ran_by, started_at = clock_timestamp(),
    completed_at = clock_timestamp()
FROM jsonb_to_recordset(CAST(CAST({} AS text) AS jsonb)) AS d(
    id uuid, status text, attempts int, uncharged int, result jsonb, progress jsonb, last_error text, ran_by text)
WHERE j.id = d.id AND j.status IN ('PENDING', 'RETRYING')
RETURNING CAST(j.id AS text)
"""
_ALL: Final = "all"
_FIELDS: Final = tuple(
    name for name in JobInfo.__struct_fields__ if name not in {"concealed", "history", "id", "omitted", "schedule_id"}
)


def submitted(connection: object, handler: HandlerRef | None = None, /, **args: object) -> SubmittedJobs[Job]:
    """
    The jobs that *connection* sees: of *handler*, with at least these *args*, whatever their status.

    Args:
        connection: The test's own, in its transaction: as for ``pulse.sql.submit``.
        handler: A function, its name, or a ``pulse.call(…)``; None: all jobs.
        args: Arguments by name, as the caller of the handler has them.

    Returns:
        The jobs, the oldest first; without any it prints what there is.
    """
    return find_submitted(_jobs(_ask(connection, _JOBS, _ALL)), handler, args)


async def submitted_async(
    connection: object, handler: HandlerRef | None = None, /, **args: object
) -> SubmittedJobs[Job]:
    """``submitted`` for async connections."""
    return find_submitted(_jobs(await _ask_async(connection, _JOBS, _ALL)), handler, args)


def run_submitted(connection: object, app: App, *, backend: str = "asyncio") -> list[InlineJob]:
    """
    Run the jobs of *app* that *connection* sees and that are due, each to its end, and write how they ended.

    Also what they submit on *connection*, until nothing is due. Handlers run in the test itself, as ``Inline.run``
    runs them; next tries follow at once. All is undone when the test's transaction is rolled back.

    Args:
        connection: The test's own, in its transaction.
        app: Whose handlers.
        backend: ``asyncio`` or ``trio``, for async handlers.

    Returns:
        The jobs that ran, in order.

    Raises:
        InlineError: An async handler is run where an event loop runs; or jobs submit jobs without an end.
    """
    ran: list[InlineJob] = []
    for _ in range(MAX_ROUNDS):
        inline = Inline(app, backend=backend)
        ids = inline.adopt(_due(_ask(connection, _JOBS, _ALL), app))
        if not ids:
            return ran
        ended = [inline.run_job(one) for one in ids]
        _ask(connection, _WRITE, _written(ended))
        ran += ended
    raise InlineError(f"jobs still submit jobs after {MAX_ROUNDS} rounds")


async def run_submitted_async(connection: object, app: App) -> list[InlineJob]:
    """``run_submitted`` for async connections, in the event loop of the test."""
    ran: list[InlineJob] = []
    for _ in range(MAX_ROUNDS):
        inline = Inline(app)
        ids = inline.adopt(_due(await _ask_async(connection, _JOBS, _ALL), app))
        if not ids:
            return ran
        ended = [await inline.run_job_async(one) for one in ids]
        await _ask_async(connection, _WRITE, _written(ended))
        ran += ended
    raise InlineError(f"jobs still submit jobs after {MAX_ROUNDS} rounds")


def _jobs(found: str | None) -> list[Job]:
    return [records.job({"job": _row(row)}) for row in json.loads(found or "[]")]


def _due(found: str | None, app: App) -> list[JobInfo]:
    rows = [row for row in json.loads(found or "[]") if row["is_due"] and row["name"] in app.handlers]
    rows.sort(key=lambda row: (-row["priority"], row["next_run_at"]))
    return [JobInfo(**_row(row)) for row in rows]


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": UUID(row["id"]).bytes, **{name: row[name] for name in _FIELDS if row.get(name) is not None}}


def _written(jobs: Iterable[InlineJob]) -> str:
    return json.dumps(
        [
            {
                "id": str(job.id),
                "status": job.status,
                "attempts": job.attempts,
                "uncharged": job.uncharged,
                "result": job.result,
                "progress": job.progress,
                "last_error": job.last_error,
                "ran_by": job.ran_by,
            }
            for job in jobs
        ]
    )


def _ask(connection: Any, statement: str, text: str) -> str | None:  # noqa: ANN401 - of any driver
    """The first value that *statement* returns."""
    homes = _homes(connection)
    if "sqlalchemy" in homes:
        import sqlalchemy

        row = connection.execute(sqlalchemy.text(statement.format(":given")), {"given": text}).first()
    elif "django" in homes:
        with connection.cursor() as cursor:
            cursor.execute(statement.format("%s"), (text,))
            row = cursor.fetchone()
    elif "psycopg" in homes:
        from psycopg.rows import tuple_row

        with connection.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(statement.format("%s"), (text,)).fetchone()
    else:
        raise _no_connection(connection)
    return None if row is None else row[0]


async def _ask_async(connection: Any, statement: str, text: str) -> str | None:  # noqa: ANN401 - of any driver
    homes = _homes(connection)
    if "asyncpg" in homes:
        row = await connection.fetchrow(statement.format("$1"), text)
    elif "sqlalchemy" in homes:
        import sqlalchemy

        row = (await connection.execute(sqlalchemy.text(statement.format(":given")), {"given": text})).first()
    elif "psycopg" in homes:
        from psycopg.rows import tuple_row

        async with connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(statement.format("%s"), (text,))
            row = await cursor.fetchone()
    else:
        raise _no_connection(connection)
    return None if row is None else row[0]


def _homes(connection: object) -> set[str]:
    return {one.__module__.partition(".")[0] for one in type(connection).__mro__}


def _no_connection(connection: object) -> BadRequestError:
    return BadRequestError(f"a {type(connection).__qualname__} is no connection that pulse.sql knows")
