"""
The signals of ``pulse.sql``: they tell a job what its handler waits for, in the caller's transaction.

A signal arrives with the commit, whose notification wakes the server that hands the job out.
"""

from __future__ import annotations

from typing import TypedDict, Unpack

from pulse.client import requests
from pulse.client.sealing import seal_request
from pulse.common.wire_values import IdLike
from pulse.security.codec import Codec, checked
from pulse.security.schema_name import schema_of
from pulse.sql import drivers
from pulse.sql.document import signal_document

__all__ = ["SignalOptions", "signal", "signal_async"]


class SignalOptions(TypedDict, total=False):
    """Options of a signal, as ``signal`` has them."""

    key: str | None
    codec: Codec | None
    schema: str | None


def signal(
    connection: object,
    job_id: IdLike,
    name: str,
    payload: object = None,
    *,
    key: str | None = None,
    codec: Codec | None = None,
    schema: str | None = None,
) -> bool:
    """
    Send a signal to a job in the transaction of *connection*: it arrives if and only if that commits.

    Args:
        connection: As of ``pulse.sql.submit``.
        job_id: The job's id.
        name: What its handler waits for (``ctx.wait_for``), 1 to 200 characters.
        payload: Anything that JSON can hold.
        key: The same name and key are the same signal, sent again; None: it is new.
        codec: Encrypts the payload, see ``pulse.Codec``.
        schema: As of ``pulse.sql.submit``.

    Returns:
        Whether it is new.

    Raises:
        BadRequestError: A value is not allowed, or this is no connection that is known; or the database refused it,
            since it is too large or the job has had too many, and the transaction has to be rolled back.
        ConfigError: The name of the schema is not allowed.
        ConflictError: The job has completed or was canceled.
        ForbiddenError: The role of the connection may not send signals.
        NotFoundError: There is no such job.
        SchemaError: The database has no schema of pulse, or an old one.
        TransactionError: The transaction has failed before, or is read-only; or the connection is closed.
    """
    document = _document(job_id, name, payload, {"key": key, "codec": codec})
    return drivers.signal(connection, document, schema_of(schema))


async def signal_async(
    connection: object, job_id: IdLike, name: str, payload: object = None, **options: Unpack[SignalOptions]
) -> bool:
    """``signal`` for async connections: of asyncpg, of psycopg, and SQLAlchemy's AsyncConnection and AsyncSession."""
    document = _document(job_id, name, payload, options)
    return await drivers.signal_async(connection, document, schema_of(options.get("schema")))


def _document(job_id: IdLike, name: str, payload: object, options: SignalOptions) -> str:
    """The signal as a client would send it."""
    request = requests.signal(job_id, name, payload, options.get("key"))
    codec = checked(options.get("codec"))
    if codec is not None:
        request = seal_request(codec, request)
    return signal_document(request.body)
