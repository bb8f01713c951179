"""
Runs ``pulse.submit_many`` on a connection of somebody else's, whatever its driver is.

The statement casts its parameter from text, so that codecs which a program has set for JSON are not asked.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from pulse.app.transactions.drivers import USUAL, Meanings, async_driver, blocking_driver, errors_told_apart
from pulse.errors import BadRequestError, ConflictError, ForbiddenError, NotFoundError, PulseError, TransactionError

# The ids are the caller's own; only where jobs have unique keys they may be others.
_STATEMENT: Final = "SELECT pulse.submit_many(CAST(CAST({} AS text) AS jsonb))"
_ASKING: Final = f"SELECT array_to_string(ARRAY({_STATEMENT}), ',')"
_PARAMETERS: Final = {"psycopg": "%s", "django": "%s", "asyncpg": "$1", "sqlalchemy": ":jobs"}


def _bad(said: str) -> PulseError:
    return BadRequestError(f"submit: {said}")


_MEANINGS: Final[Meanings] = {
    **USUAL,
    "22023": BadRequestError,  # raised by the function: a value is not allowed
    "23502": _bad,
    "23514": _bad,
    "22": _bad,
    "23503": NotFoundError,  # a job to wait for
    "23505": ConflictError,
    "42501": lambda said: ForbiddenError(
        f"{said}; roles that submit are members of pulse_submit (pulse migrate --roles)"
    ),
    "25P02": lambda _: TransactionError("the transaction has failed before: roll it back, then submit"),
}


def run(connection: object, document: str, *, asks: bool = False) -> str | None:
    """
    Submit the jobs of *document* on a connection that blocks.

    Args:
        asks: Whether their ids may become others than those in the document.

    Returns:
        The ids, with commas between them; None: nobody has asked.

    Raises:
        PulseError: As ``pulse.sql.submit`` says.
    """
    value: Any = connection
    with errors_told_apart(connection, _MEANINGS):
        driver = blocking_driver(connection, "submit", "await pulse.sql.submit_async(…)")
        if driver == "sqlalchemy":
            found = value.execute(_of_sqlalchemy(asks=asks), {"jobs": document})
            return found.scalar_one() if asks else None
        with value.cursor(**_rows(driver)) as cursor:
            cursor.execute(_statement(driver, asks=asks), (document,))
            return cursor.fetchone()[0] if asks else None


async def run_async(connection: object, document: str, *, asks: bool = False) -> str | None:
    """``run`` for async connections."""
    value: Any = connection
    with errors_told_apart(connection, _MEANINGS):
        driver = async_driver(connection, "submit_async", "pulse.sql.submit(…)")
        if driver == "asyncpg":
            said = await value.fetchval(_statement(driver, asks=asks), document)
            return said if asks else None
        if driver == "sqlalchemy":
            found = await value.execute(_of_sqlalchemy(asks=asks), {"jobs": document})
            return found.scalar_one() if asks else None
        async with value.cursor(**_rows(driver)) as cursor:
            await cursor.execute(_statement(driver, asks=asks), (document,))
            return (await cursor.fetchone())[0] if asks else None


def _statement(driver: str, *, asks: bool) -> str:
    return (_ASKING if asks else _STATEMENT).format(_PARAMETERS[driver])


def _rows(driver: str) -> dict[str, Any]:
    """Options of a cursor whose rows are tuples, whatever those of its connection are."""
    if driver != "psycopg":
        return {}
    from psycopg.rows import tuple_row

    return {"row_factory": tuple_row}


@functools.cache
def _of_sqlalchemy(*, asks: bool) -> object:
    import sqlalchemy

    return sqlalchemy.text(_statement("sqlalchemy", asks=asks))
