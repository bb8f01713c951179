"""
Runs ``pulse.submit_many`` on a connection of somebody else's, whatever its driver is.

The statement casts its parameter from text, so that codecs which a program has set for JSON are not asked.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from pulse.app.transactions.drivers import (
    ASYNC,
    SYNC,
    USUAL,
    Meanings,
    errors_told_apart,
    homes_of,
    is_async,
    name_of,
)
from pulse.errors import BadRequestError, ConflictError, ForbiddenError, PulseError, TransactionError

_STATEMENT: Final = "SELECT pulse.submit_many(CAST(CAST({} AS text) AS jsonb))"
_OF_PSYCOPG: Final = _STATEMENT.format("%s")
_OF_ASYNCPG: Final = _STATEMENT.format("$1")
_OF_SQLALCHEMY: Final = _STATEMENT.format(":jobs")


def _bad(said: str) -> PulseError:
    return BadRequestError(f"submit: {said}")


_MEANINGS: Final[Meanings] = {
    **USUAL,
    "22023": BadRequestError,  # raised by the function: a value is not allowed
    "23502": _bad,
    "23514": _bad,
    "22": _bad,
    "23505": ConflictError,
    "42501": lambda said: ForbiddenError(
        f"{said}; roles that submit are members of pulse_submit (pulse migrate --roles)"
    ),
    "25P02": lambda _: TransactionError("the transaction has failed before: roll it back, then submit"),
}


def run(connection: object, document: str) -> None:
    """
    Submit the jobs of *document* on a connection that blocks.

    Raises:
        PulseError: As ``pulse.sql.submit`` says.
    """
    value: Any = connection
    homes = homes_of(connection)
    with errors_told_apart(connection, _MEANINGS):
        if is_async(connection, homes):
            raise BadRequestError(f"submit: a {name_of(connection)} is async: use `await pulse.sql.submit_async(…)`")
        if "sqlalchemy" in homes:
            value.execute(_of_sqlalchemy(), {"jobs": document})
        elif homes & {"psycopg", "django"}:
            with value.cursor() as cursor:
                cursor.execute(_OF_PSYCOPG, (document,))
        else:
            raise BadRequestError(f"submit: a {name_of(connection)} is no connection; {SYNC} is allowed")


async def run_async(connection: object, document: str) -> None:
    """``run`` for async connections."""
    value: Any = connection
    homes = homes_of(connection)
    with errors_told_apart(connection, _MEANINGS):
        if not is_async(connection, homes):
            if homes & {"sqlalchemy", "psycopg", "django"}:
                raise BadRequestError(f"submit_async: a {name_of(connection)} blocks: use `pulse.sql.submit(…)`")
            raise BadRequestError(f"submit_async: a {name_of(connection)} is no connection; {ASYNC} is allowed")
        if "asyncpg" in homes:
            await value.execute(_OF_ASYNCPG, document)
        elif "sqlalchemy" in homes:
            await value.execute(_of_sqlalchemy(), {"jobs": document})
        else:
            async with value.cursor() as cursor:
                await cursor.execute(_OF_PSYCOPG, (document,))


@functools.cache
def _of_sqlalchemy() -> object:
    import sqlalchemy

    return sqlalchemy.text(_OF_SQLALCHEMY)
