"""
Runs ``pulse.submit_many`` and ``pulse.signal`` on a connection of somebody else's, whatever its driver is.

The statements cast their parameter from text, so that codecs which a program has set for JSON are not asked.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

from pulse.app.transactions.drivers import USUAL, Meanings, async_driver, blocking_driver, errors_told_apart
from pulse.errors import BadRequestError, ConflictError, ForbiddenError, NotFoundError, TransactionError

_PARAMETERS: Final = {"psycopg": "%s", "django": "%s", "asyncpg": "$1", "sqlalchemy": ":document"}


def _meanings(verb: str) -> Meanings:
    """What the errors of the function *verb* mean; those without a text of their own begin with it."""
    return {
        **USUAL,
        "22023": BadRequestError,  # raised by the function: a value is not allowed
        "22": lambda said: BadRequestError(f"{verb}: {said}"),
        "23502": lambda said: BadRequestError(f"{verb}: {said}"),
        "23514": lambda said: BadRequestError(f"{verb}: {said}"),
        "23503": NotFoundError,  # the job, or one to wait for
        "23505": ConflictError,
        "23000": ConflictError,
        "42501": lambda said: ForbiddenError(
            f"{said}; roles that {verb} are members of pulse_submit (pulse migrate --roles)"
        ),
        "25P02": lambda _: TransactionError(f"the transaction has failed before: roll it back, then {verb}"),
    }


@dataclass(frozen=True, slots=True)
class _FunctionCall:
    """A call of a function of the database; ``verb``: as pulse.sql calls it, ``asks``: whether its answer is read."""

    verb: str
    statement: str
    meanings: Meanings
    asks: bool = True

    def text(self, driver: str) -> str:
        return self.statement.format(_PARAMETERS[driver])


# The ids are the caller's own; only where jobs have unique keys they may be others.
_MANY: Final = "SELECT pulse.submit_many(CAST(CAST({} AS text) AS jsonb))"
_SUBMIT: Final = _FunctionCall("submit", _MANY, _meanings("submit"), asks=False)
_SUBMIT_ASKING: Final = _FunctionCall("submit", f"SELECT array_to_string(ARRAY({_MANY}), ',')", _SUBMIT.meanings)
_SIGNAL: Final = _FunctionCall(
    "signal",
    "SELECT pulse.signal(CAST(s.one ->> 'id' AS uuid), s.one ->> 'name', s.one -> 'payload', s.one ->> 'key') "
    "FROM (SELECT CAST(CAST({} AS text) AS jsonb) AS one) AS s",
    _meanings("signal"),
)


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
    answered: str | None = _perform(connection, _SUBMIT_ASKING if asks else _SUBMIT, document)
    return answered


async def run_async(connection: object, document: str, *, asks: bool = False) -> str | None:
    """``run`` for async connections."""
    answered: str | None = await _perform_async(connection, _SUBMIT_ASKING if asks else _SUBMIT, document)
    return answered


def signal(connection: object, document: str) -> bool:
    """
    Send the signal of *document* on a connection that blocks; returns whether it is new.

    Raises:
        PulseError: As ``pulse.sql.signal`` says.
    """
    is_new: bool = _perform(connection, _SIGNAL, document)
    return is_new


async def signal_async(connection: object, document: str) -> bool:
    """``signal`` for async connections."""
    is_new: bool = await _perform_async(connection, _SIGNAL, document)
    return is_new


def _perform(connection: object, call: _FunctionCall, document: str) -> Any:  # noqa: ANN401 - what the function returns
    value: Any = connection
    with errors_told_apart(connection, call.meanings):
        driver = blocking_driver(connection, call.verb, f"await pulse.sql.{call.verb}_async(…)")
        if driver == "sqlalchemy":
            found = value.execute(_of_sqlalchemy(call.text(driver)), {"document": document})
            return found.scalar_one() if call.asks else None
        with value.cursor(**_rows(driver)) as cursor:
            cursor.execute(call.text(driver), (document,))
            return cursor.fetchone()[0] if call.asks else None


async def _perform_async(connection: object, call: _FunctionCall, document: str) -> Any:  # noqa: ANN401 - as above
    value: Any = connection
    with errors_told_apart(connection, call.meanings):
        driver = async_driver(connection, f"{call.verb}_async", f"pulse.sql.{call.verb}(…)")
        if driver == "asyncpg":
            said = await value.fetchval(call.text(driver), document)
            return said if call.asks else None
        if driver == "sqlalchemy":
            found = await value.execute(_of_sqlalchemy(call.text(driver)), {"document": document})
            return found.scalar_one() if call.asks else None
        async with value.cursor(**_rows(driver)) as cursor:
            await cursor.execute(call.text(driver), (document,))
            return (await cursor.fetchone())[0] if call.asks else None


def _rows(driver: str) -> dict[str, Any]:
    """Options of a cursor whose rows are tuples, whatever those of its connection are."""
    if driver != "psycopg":
        return {}
    from psycopg.rows import tuple_row

    return {"row_factory": tuple_row}


@functools.cache
def _of_sqlalchemy(statement: str) -> object:
    import sqlalchemy

    return sqlalchemy.text(statement)
