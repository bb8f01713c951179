"""
The submits of ``pulse.sql``: the jobs are checked and named as a client does it, then inserted by one statement.

No server is asked, and no driver is needed but the connection's own. The ids are made here, so the answer need not be
read, and a submit can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Unpack
from uuid import UUID

from pulse.app.call import Call, HandlerRef
from pulse.client import requests
from pulse.client.requests import JobOptions, NewJob
from pulse.client.sealing import seal_request
from pulse.security.codec import Codec, checked
from pulse.sql import drivers
from pulse.sql.document import document_of, ids_of

__all__ = ["submit", "submit_async", "submit_many", "submit_many_async"]


def submit(
    connection: object,
    handler: HandlerRef,
    args: Mapping[str, object] | None = None,
    *,
    codec: Codec | None = None,
    **options: Unpack[JobOptions],
) -> UUID:
    """
    Submit one job in the transaction of *connection*.

    Args:
        connection: A connection of psycopg, a Connection or Session of SQLAlchemy, or Django's ``connection``, to
            the database that pulse uses. With autocommit the job is there at once.
        handler: ``pulse.call(resize, "a.png", width=64)``; or the function that was registered, whose parameters judge
            *args*; or the handler's name.
        args: Its keyword arguments; anything that JSON can hold.
        codec: Encrypts the args, see ``pulse.Codec``.
        options: As of ``client.submit``.

    Returns:
        The job's id.

    Raises:
        BadRequestError: A value is not allowed, or this is no connection that is known; nothing was sent, or the
            database refused it and the transaction has to be rolled back.
        ConflictError: A job with this id exists, with another name, topic or args.
        ForbiddenError: The role of the connection may not submit jobs.
        SchemaError: The database has no schema of pulse, or an old one.
        TransactionError: The transaction has failed before, or is read-only; or the connection is closed.
    """
    return submit_many(connection, [{"name": handler, "args": args, **options}], codec=codec)[0]


def submit_many(connection: object, jobs: Iterable[NewJob | Call[Any]], *, codec: Codec | None = None) -> list[UUID]:
    """Submit many jobs in the transaction of *connection*, all or none; see ``submit``. Returns their ids in order."""
    document, ids = _document(jobs, codec)
    drivers.run(connection, document)
    return ids


async def submit_async(
    connection: object,
    handler: HandlerRef,
    args: Mapping[str, object] | None = None,
    *,
    codec: Codec | None = None,
    **options: Unpack[JobOptions],
) -> UUID:
    """``submit`` for async connections: of asyncpg, of psycopg, and SQLAlchemy's AsyncConnection and AsyncSession."""
    return (await submit_many_async(connection, [{"name": handler, "args": args, **options}], codec=codec))[0]


async def submit_many_async(
    connection: object, jobs: Iterable[NewJob | Call[Any]], *, codec: Codec | None = None
) -> list[UUID]:
    """``submit_many`` for async connections."""
    document, ids = _document(jobs, codec)
    await drivers.run_async(connection, document)
    return ids


def _document(jobs: Iterable[NewJob | Call[Any]], codec: Codec | None) -> tuple[str, list[UUID]]:
    """The jobs as ``pulse.submit_many`` of the database takes them, and their ids."""
    request = requests.submit(jobs)
    codec = checked(codec)
    if codec is not None:
        request = seal_request(codec, request)
    return document_of(request.body), ids_of(request.body)
