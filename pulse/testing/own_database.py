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
from pulse.app.transactions.drivers import (
    USUAL,
    Meanings,
    async_driver,
    blocking_driver,
    errors_told_apart,
    escaped,
)
from pulse.client import records
from pulse.errors import ForbiddenError, InlineError, SchemaError, TransactionError
from pulse.job import Job
from pulse.protocol.answers import JobInfo
from pulse.security.schema_name import schema_of
from pulse.store.connections.rendering import rendered
from pulse.store.operators.testing import END_IN_TEST, SEE_JOBS
from pulse.testing.inline import Inline
from pulse.testing.matching import SubmittedJobs, find_submitted
from pulse.testing.recording import InlineJob

__all__ = ["run_submitted", "run_submitted_async", "submitted", "submitted_async"]

MAX_ROUNDS: Final = 100  # of jobs that submit jobs
_ALL: Final = "all"
_MEANINGS: Final[Meanings] = {
    **USUAL,
    "42P01": lambda said: SchemaError(f"{said}: this database is not pulse's, or `pulse migrate` has not run"),
    "42501": lambda said: ForbiddenError(
        f"{said}; a test reads and writes jobs by itself, as the owner of the schema may"
    ),
    "25P02": lambda _: TransactionError(
        "the transaction of the test has failed before: roll it back, or use savepoints"
    ),
}
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
    return find_submitted(_jobs(_ask(connection, SEE_JOBS, _ALL)), handler, args)


async def submitted_async(
    connection: object, handler: HandlerRef | None = None, /, **args: object
) -> SubmittedJobs[Job]:
    """``submitted`` for async connections."""
    return find_submitted(_jobs(await _ask_async(connection, SEE_JOBS, _ALL)), handler, args)


def run_submitted(
    connection: object, app: App, *, values: Mapping[Any, Any] | None = None, backend: str = "asyncio"
) -> list[InlineJob]:
    """
    Run the jobs of *app* that *connection* sees and that are due, each to its end, and write how they ended.

    Also what they submit on *connection*, until nothing is due. Handlers run in the test itself, as ``Inline.run``
    runs them; next tries follow at once. All is undone when the test's transaction is rolled back.

    Args:
        connection: The test's own, in its transaction.
        app: Whose handlers.
        values: What handlers get by type, in place of the values of the app's lifespans; see ``Inline``.
        backend: ``asyncio`` or ``trio``, for async handlers.

    Returns:
        The jobs that ran, in order.

    Raises:
        InlineError: An async handler is run where an event loop runs; or jobs submit jobs without an end.
    """
    ran: list[InlineJob] = []
    for _ in range(MAX_ROUNDS):
        inline = Inline(app, values=values, backend=backend)
        ids = inline.adopt(_due(_ask(connection, SEE_JOBS, _ALL), app))
        if not ids:
            return ran
        ended = [inline.run_job(one) for one in ids]
        _ask(connection, END_IN_TEST, _written(ended))
        ran += [*ended, *inline.run_until_idle()]  # what tells of dead letters
    raise InlineError(f"jobs still submit jobs after {MAX_ROUNDS} rounds")


async def run_submitted_async(
    connection: object, app: App, *, values: Mapping[Any, Any] | None = None
) -> list[InlineJob]:
    """``run_submitted`` for async connections, in the event loop of the test."""
    ran: list[InlineJob] = []
    for _ in range(MAX_ROUNDS):
        inline = Inline(app, values=values)
        ids = inline.adopt(_due(await _ask_async(connection, SEE_JOBS, _ALL), app))
        if not ids:
            return ran
        ended = [await inline.run_job_async(one) for one in ids]
        await _ask_async(connection, END_IN_TEST, _written(ended))
        ran += [*ended, *await inline.run_until_idle_async()]
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
    with errors_told_apart(connection, _MEANINGS):
        match blocking_driver(connection, "pulse.testing", "…_async"):
            case "sqlalchemy":
                row = connection.execute(*_of_sqlalchemy(statement, text)).first()
            case "django":
                with connection.cursor() as cursor:
                    cursor.execute(_marked(statement, "%s", "django"), (text,))
                    row = cursor.fetchone()
            case _:
                from psycopg.rows import tuple_row

                with connection.cursor(row_factory=tuple_row) as cursor:
                    row = cursor.execute(_marked(statement, "%s", "psycopg"), (text,)).fetchone()
    return None if row is None else row[0]


async def _ask_async(connection: Any, statement: str, text: str) -> str | None:  # noqa: ANN401 - of any driver
    with errors_told_apart(connection, _MEANINGS):
        match async_driver(connection, "pulse.testing", "the function without _async"):
            case "asyncpg":
                row = await connection.fetchrow(_marked(statement, "$1", "asyncpg"), text)
            case "sqlalchemy":
                row = (await connection.execute(*_of_sqlalchemy(statement, text))).first()
            case _:
                from psycopg.rows import tuple_row

                async with connection.cursor(row_factory=tuple_row) as cursor:
                    await cursor.execute(_marked(statement, "%s", "psycopg"), (text,))
                    row = await cursor.fetchone()
    return None if row is None else row[0]


def _of_sqlalchemy(statement: str, text: str) -> tuple[object, dict[str, str]]:
    import sqlalchemy

    return sqlalchemy.text(_marked(statement, ":given", "sqlalchemy")), {"given": text}


def _marked(statement: str, mark: str, driver: str) -> str:
    """*statement* for the schema that the tests use, with the mark that *driver* has for a parameter."""
    schema = schema_of(None)
    return mark.join(escaped(rendered(part, schema), driver) for part in statement.split("$1"))
