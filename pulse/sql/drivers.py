"""
Runs ``pulse.submit_many`` on a connection of somebody else's, whatever its driver is.

The statement casts its parameter from text, so that codecs which a program has set for JSON are not asked.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from pulse.app.transactions.drivers import USUAL, Meanings, async_driver, blocking_driver, errors_told_apart
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
    with errors_told_apart(connection, _MEANINGS):
        if blocking_driver(connection, "submit", "await pulse.sql.submit_async(…)") == "sqlalchemy":
            value.execute(_of_sqlalchemy(), {"jobs": document})
        else:
            with value.cursor() as cursor:
                cursor.execute(_OF_PSYCOPG, (document,))


async def run_async(connection: object, document: str) -> None:
    """``run`` for async connections."""
    value: Any = connection
    with errors_told_apart(connection, _MEANINGS):
        match async_driver(connection, "submit_async", "pulse.sql.submit(…)"):
            case "asyncpg":
                await value.execute(_OF_ASYNCPG, document)
            case "sqlalchemy":
                await value.execute(_of_sqlalchemy(), {"jobs": document})
            case _:
                async with value.cursor() as cursor:
                    await cursor.execute(_OF_PSYCOPG, (document,))


@functools.cache
def _of_sqlalchemy() -> object:
    import sqlalchemy

    return sqlalchemy.text(_OF_SQLALCHEMY)
