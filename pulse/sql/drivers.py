"""
Runs ``pulse.submit_many`` and ``pulse.signal`` on a connection of somebody else's, whatever its driver is.

The statements cast their parameter from text, so that codecs which a program has set for JSON are not asked.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

from pulse.app.transactions.drivers import (
    USUAL,
    Meanings,
    async_driver,
    blocking_driver,
    errors_told_apart,
    escaped,
)
from pulse.errors import BadRequestError, ConflictError, ForbiddenError, NotFoundError, TransactionError
from pulse.security.schema_name import DEFAULT, quoted

_PARAMETERS: Final = {"psycopg": "%s", "django": "%s", "asyncpg": "$1", "sqlalchemy": ":document"}
_STATEMENTS: Final = 64  # of those that go to SQLAlchemy: a few for each schema


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
    """
    A call of a function of the database.

    ``statement`` has ``{mark}`` for its parameter, and ``{schema}``; ``verb``: as pulse.sql calls it; ``asks``: whether
    its answer is read.
    """

    verb: str
    statement: str
    meanings: Meanings
    asks: bool = True

    def text(self, driver: str, schema: str) -> str:
        return self.statement.format(mark=_PARAMETERS[driver], schema=escaped(quoted(schema), driver))


# The ids are the caller's own; only where jobs have unique keys they may be others.
_MANY: Final = "SELECT {schema}.submit_many(CAST(CAST({mark} AS text) AS jsonb))"
_SUBMIT: Final = _FunctionCall("submit", _MANY, _meanings("submit"), asks=False)
_SUBMIT_ASKING: Final = _FunctionCall("submit", f"SELECT array_to_string(ARRAY({_MANY}), ',')", _SUBMIT.meanings)
_SIGNAL: Final = _FunctionCall(
    "signal",
    "SELECT {schema}.signal(CAST(s.one ->> 'id' AS uuid), s.one ->> 'name', s.one -> 'payload', s.one ->> 'key') "
    "FROM (SELECT CAST(CAST({mark} AS text) AS jsonb) AS one) AS s",
    _meanings("signal"),
)


def run(connection: object, document: str, *, asks: bool = False, schema: str = DEFAULT) -> str | None:
    """
    Submit the jobs of *document* on a connection that blocks.

    Args:
        asks: Whether their ids may become others than those in the document.
        schema: The schema of the queue.

    Returns:
        The ids, with commas between them; None: nobody has asked.

    Raises:
        PulseError: As ``pulse.sql.submit`` says.
    """
    answered: str | None = _perform(connection, _SUBMIT_ASKING if asks else _SUBMIT, document, schema)
    return answered


async def run_async(connection: object, document: str, *, asks: bool = False, schema: str = DEFAULT) -> str | None:
    """``run`` for async connections."""
    answered: str | None = await _perform_async(connection, _SUBMIT_ASKING if asks else _SUBMIT, document, schema)
    return answered


def signal(connection: object, document: str, schema: str = DEFAULT) -> bool:
    """
    Send the signal of *document* on a connection that blocks; returns whether it is new.

    Raises:
        PulseError: As ``pulse.sql.signal`` says.
    """
    is_new: bool = _perform(connection, _SIGNAL, document, schema)
    return is_new


async def signal_async(connection: object, document: str, schema: str = DEFAULT) -> bool:
    """``signal`` for async connections."""
    is_new: bool = await _perform_async(connection, _SIGNAL, document, schema)
    return is_new


def _perform(connection: object, call: _FunctionCall, document: str, schema: str) -> Any:  # noqa: ANN401 - what the function returns
    value: Any = connection
    with errors_told_apart(connection, call.meanings):
        driver = blocking_driver(connection, call.verb, f"await pulse.sql.{call.verb}_async(…)")
        if driver == "sqlalchemy":
            found = value.execute(_of_sqlalchemy(call.text(driver, schema)), {"document": document})
            return found.scalar_one() if call.asks else None
        with value.cursor(**_rows(driver)) as cursor:
            cursor.execute(call.text(driver, schema), (document,))
            return cursor.fetchone()[0] if call.asks else None


async def _perform_async(connection: object, call: _FunctionCall, document: str, schema: str) -> Any:  # noqa: ANN401 - as above
    value: Any = connection
    with errors_told_apart(connection, call.meanings):
        driver = async_driver(connection, f"{call.verb}_async", f"pulse.sql.{call.verb}(…)")
        if driver == "asyncpg":
            said = await value.fetchval(call.text(driver, schema), document)
            return said if call.asks else None
        if driver == "sqlalchemy":
            found = await value.execute(_of_sqlalchemy(call.text(driver, schema)), {"document": document})
            return found.scalar_one() if call.asks else None
        async with value.cursor(**_rows(driver)) as cursor:
            await cursor.execute(call.text(driver, schema), (document,))
            return (await cursor.fetchone())[0] if call.asks else None


def _rows(driver: str) -> dict[str, Any]:
    """Options of a cursor whose rows are tuples, whatever those of its connection are."""
    if driver != "psycopg":
        return {}
    from psycopg.rows import tuple_row

    return {"row_factory": tuple_row}


@functools.lru_cache(_STATEMENTS)
def _of_sqlalchemy(statement: str) -> object:
    import sqlalchemy

    return sqlalchemy.text(statement)
