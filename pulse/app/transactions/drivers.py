"""
Recognises connections, and tells what their errors mean, without importing any driver.

A driver is recognised by the module of the connection's class, or of one that it derives from: so connections that a
pool or Django has wrapped are recognised, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from pulse.errors import PulseError, SchemaError, TransactionError

__all__ = ["ASYNC", "SYNC", "USUAL", "Meanings", "errors_told_apart", "homes_of", "is_async", "name_of"]

SYNC: Final = "a psycopg connection, a SQLAlchemy Connection or Session, or Django's connection"
ASYNC: Final = (
    "a connection of asyncpg, an AsyncConnection of psycopg, or an AsyncConnection or AsyncSession of SQLAlchemy"
)

# What an error of the database means, by SQLSTATE or its class.
Meanings: TypeAlias = Mapping[str, Callable[[str], PulseError]]
USUAL: Final[Meanings] = {
    "3F000": lambda said: SchemaError(f"{said}: this database is not pulse's, or `pulse migrate` has not run"),
    "42883": lambda said: SchemaError(
        f"{said}: this database is not pulse's, or its schema is old; run `pulse migrate`"
    ),
    "25006": lambda said: TransactionError(f"{said}: the transaction, or the server, is read-only"),
}
_BROKEN: Final = "TransactionManagementError"  # what Django raises instead of asking the database


def homes_of(connection: object) -> set[str]:
    """The packages that the class of *connection*, and those that it derives from, come from."""
    return {one.__module__.partition(".")[0] for one in type(connection).__mro__}


def is_async(connection: object, homes: set[str]) -> bool:
    """Of a known driver, and to be awaited. A connection of asyncpg has no ``commit``, all others have one."""
    is_awaited = inspect.iscoroutinefunction(getattr(connection, "commit", None))
    return "asyncpg" in homes or (is_awaited and bool(homes & {"sqlalchemy", "psycopg"}))


def name_of(connection: object) -> str:
    """The class of *connection*, for messages."""
    kind = type(connection)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


@contextmanager
def errors_told_apart(connection: object, meanings: Meanings) -> Generator[None]:
    """Raise what an error of the database means, by *meanings*; every other as the driver has it."""
    try:
        yield
    except PulseError:
        raise
    except Exception as error:
        state, said = _state_of(error)
        meaning = meanings.get(state) or meanings.get(state[:2])
        if meaning is not None:
            raise meaning(said) from error
        if not state and type(error).__name__ == _BROKEN and (broken := meanings.get("25P02")):
            raise broken(said) from error
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
