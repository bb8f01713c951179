"""
The submits of ``pulse.sql``: the jobs are checked and named as a client does it, then inserted by one statement.

No server is asked, and no driver is needed but the connection's own. The ids are made here, so that a submit can be
repeated; the answer is read only where a job has a unique key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Unpack, cast
from uuid import UUID

from pulse.app.call import Call, HandlerRef
from pulse.client import requests
from pulse.client.requests import JobOptions, NewJob
from pulse.client.sealing import seal_request
from pulse.common.ids import JobId
from pulse.security.codec import Codec, checked
from pulse.security.schema_name import schema_of
from pulse.sql import drivers
from pulse.sql.document import document_of, has_keys, ids_of

__all__ = ["SqlOptions", "submit", "submit_async", "submit_many", "submit_many_async"]


class SqlOptions(JobOptions, total=False):
    """Options of a submit, as ``submit`` has them."""

    codec: Codec | None
    schema: str | None


def submit(
    connection: object,
    handler: HandlerRef,
    args: Mapping[str, object] | None = None,
    *,
    codec: Codec | None = None,
    schema: str | None = None,
    **options: Unpack[JobOptions],
) -> JobId:
    """
    Submit one job in the transaction of *connection*.

    Args:
        connection: A connection of psycopg, a Connection or Session of SQLAlchemy, or Django's ``connection``, to
            the database that pulse uses. With autocommit the job is there at once.
        handler: ``pulse.call(resize, "a.png", width=64)``; or the function that was registered, whose parameters judge
            *args*; or the handler's name.
        args: Its keyword arguments; anything that JSON can hold.
        codec: Encrypts the args, see ``pulse.Codec``.
        schema: The schema that has the queue; None: ``PULSE_SCHEMA`` of the environment, else ``pulse``.
        options: As of ``client.submit``.

    Returns:
        The job's id; with ``unique`` perhaps the id of the job that has the key, as for ``client.submit``.

    Raises:
        BadRequestError: A value is not allowed, or this is no connection that is known; nothing was sent, or the
            database refused it and the transaction has to be rolled back.
        ConfigError: The name of the schema is not allowed.
        ConflictError: A job with this id exists, with another name, topic or args; or one with this unique key.
        ForbiddenError: The role of the connection may not submit jobs.
        NotFoundError: A job of ``after`` is not there.
        SchemaError: The database has no schema of pulse, or an old one.
        TransactionError: The transaction has failed before, or is read-only; or the connection is closed.
    """
    jobs: list[NewJob] = [{"name": handler, "args": args, **options}]
    return cast("JobId", submit_many(connection, jobs, codec=codec, schema=schema)[0])


def submit_many(
    connection: object,
    jobs: Iterable[NewJob | Call[Any]],
    *,
    codec: Codec | None = None,
    schema: str | None = None,
) -> list[UUID]:
    """Submit many jobs in the transaction of *connection*, all or none; see ``submit``. Returns their ids in order."""
    body = _body(jobs, codec)
    return ids_of(body, drivers.run(connection, document_of(body), asks=has_keys(body), schema=schema_of(schema)))


async def submit_async(
    connection: object,
    handler: HandlerRef,
    args: Mapping[str, object] | None = None,
    **options: Unpack[SqlOptions],
) -> JobId:
    """``submit`` for async connections: of asyncpg, of psycopg, and SQLAlchemy's AsyncConnection and AsyncSession."""
    codec, schema = options.pop("codec", None), options.pop("schema", None)
    job = cast("NewJob", {"name": handler, "args": args, **options})
    return cast("JobId", (await submit_many_async(connection, [job], codec=codec, schema=schema))[0])


async def submit_many_async(
    connection: object,
    jobs: Iterable[NewJob | Call[Any]],
    *,
    codec: Codec | None = None,
    schema: str | None = None,
) -> list[UUID]:
    """``submit_many`` for async connections."""
    body, name = _body(jobs, codec), schema_of(schema)
    return ids_of(body, await drivers.run_async(connection, document_of(body), asks=has_keys(body), schema=name))


def _body(jobs: Iterable[NewJob | Call[Any]], codec: Codec | None) -> Mapping[str, object]:
    """The jobs as a client would send them."""
    request = requests.submit(jobs)
    codec = checked(codec)
    if codec is not None:
        request = seal_request(codec, request)
    return request.body
