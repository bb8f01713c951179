"""
Runs ``pulse.submit_many`` on a connection of somebody else's, whatever its driver is, without importing any driver.

A driver is recognised by the module of the connection's class, or of one that it derives from. The statement casts its
parameter from text, so that codecs which a program has set for JSON are not asked.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from pulse.errors import (
    BadRequestError,
    ConflictError,
    ForbiddenError,
    PulseError,
    SchemaError,
    TransactionError,
)

_STATEMENT: Final = "SELECT pulse.submit_many(CAST(CAST({} AS text) AS jsonb))"
_OF_PSYCOPG: Final = _STATEMENT.format("%s")
_OF_ASYNCPG: Final = _STATEMENT.format("$1")
_OF_SQLALCHEMY: Final = _STATEMENT.format(":jobs")
_SYNC: Final = "a psycopg connection, a SQLAlchemy Connection or Session, or Django's connection"
_ASYNC: Final = (
    "a connection of asyncpg, an AsyncConnection of psycopg, or an AsyncConnection or AsyncSession of SQLAlchemy"
)


def _bad(said: str) -> PulseError:
    return BadRequestError(f"submit: {said}")


# What an error of the database means here, by SQLSTATE or its class; every other is raised as the driver has it.
_MEANINGS: Final[Mapping[str, Callable[[str], PulseError]]] = {
    "22023": BadRequestError,  # raised by the function: a value is not allowed
    "23502": _bad,
    "23514": _bad,
    "22": _bad,
    "23505": ConflictError,
    "42501": lambda said: ForbiddenError(
        f"{said}; roles that submit are members of pulse_submit (pulse migrate --roles)"
    ),
    "3F000": lambda said: SchemaError(f"{said}: this database is not pulse's, or `pulse migrate` has not run"),
    "42883": lambda said: SchemaError(
        f"{said}: this database is not pulse's, or its schema is old; run `pulse migrate`"
    ),
    "25P02": lambda _: TransactionError("the transaction has failed before: roll it back, then submit"),
    "25006": lambda said: TransactionError(f"{said}: the transaction, or the server, is read-only"),
}


def run(connection: object, document: str) -> None:
    """
    Submit the jobs of *document* on a connection that blocks.

    Raises:
        PulseError: As ``pulse.sql.submit`` says.
    """
    value: Any = connection
    homes = _homes(connection)
    with _errors_told_apart(connection):
        if _is_async(connection, homes):
            raise BadRequestError(f"submit: a {_name(connection)} is async: use `await pulse.sql.submit_async(…)`")
        if "sqlalchemy" in homes:
            value.execute(_of_sqlalchemy(), {"jobs": document})
        elif homes & {"psycopg", "django"}:
            with value.cursor() as cursor:
                cursor.execute(_OF_PSYCOPG, (document,))
        else:
            raise BadRequestError(f"submit: a {_name(connection)} is no connection; {_SYNC} is allowed")


async def run_async(connection: object, document: str) -> None:
    """``run`` for async connections."""
    value: Any = connection
    homes = _homes(connection)
    with _errors_told_apart(connection):
        if not _is_async(connection, homes):
            if homes & {"sqlalchemy", "psycopg", "django"}:
                raise BadRequestError(f"submit_async: a {_name(connection)} blocks: use `pulse.sql.submit(…)`")
            raise BadRequestError(f"submit_async: a {_name(connection)} is no connection; {_ASYNC} is allowed")
        if "asyncpg" in homes:
            await value.execute(_OF_ASYNCPG, document)
        elif "sqlalchemy" in homes:
            await value.execute(_of_sqlalchemy(), {"jobs": document})
        else:
            async with value.cursor() as cursor:
                await cursor.execute(_OF_PSYCOPG, (document,))


def _homes(connection: object) -> set[str]:
    """The packages that the class of *connection*, and those that it derives from, come from."""
    return {one.__module__.partition(".")[0] for one in type(connection).__mro__}


def _is_async(connection: object, homes: set[str]) -> bool:
    """Of a known driver, and to be awaited. A connection of asyncpg has no ``commit``, all others have one."""
    is_awaited = inspect.iscoroutinefunction(getattr(connection, "commit", None))
    return "asyncpg" in homes or (is_awaited and bool(homes & {"sqlalchemy", "psycopg"}))


def _name(connection: object) -> str:
    kind = type(connection)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


@functools.cache
def _of_sqlalchemy() -> object:
    import sqlalchemy

    return sqlalchemy.text(_OF_SQLALCHEMY)


@contextmanager
def _errors_told_apart(connection: object) -> Generator[None]:
    try:
        yield
    except PulseError:
        raise
    except Exception as error:
        state, said = _state_of(error)
        meaning = _MEANINGS.get(state) or _MEANINGS.get(state[:2])
        if meaning is not None:
            raise meaning(said) from error
        if not state and _is_closed(connection):
            raise TransactionError(f"the connection is closed ({said})") from error
        raise


def _state_of(error: BaseException) -> tuple[str, str]:
    """The SQLSTATE in an error of a driver, or in what it wraps, and its first line; '' without one."""
    inner: Any = error
    while inner is not None:
        state = getattr(inner, "sqlstate", None)
        if isinstance(state, str):
            said = getattr(getattr(inner, "diag", None), "message_primary", None) or str(inner)
            return state, said.partition("\n")[0]
        inner = getattr(inner, "orig", None) or inner.__cause__
    return "", str(error).partition("\n")[0]


def _is_closed(connection: Any) -> bool:  # noqa: ANN401 - of any driver
    closed = getattr(connection, "closed", None)
    if closed is None:
        closed = getattr(connection, "is_closed", lambda: False)()
    return bool(closed)
