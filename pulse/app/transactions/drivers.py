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

from pulse.errors import BadRequestError, PulseError, SchemaError, TransactionError

__all__ = ["USUAL", "Meanings", "async_driver", "blocking_driver", "errors_told_apart", "escaped", "state_of"]

_SYNC: Final = "a psycopg connection, a SQLAlchemy Connection or Session, or Django's connection"
_ASYNC: Final = (
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
# What each driver would take for the mark of a parameter, and how it has the character itself.
_MARKS: Final = {"psycopg": ("%", "%%"), "django": ("%", "%%"), "sqlalchemy": (":", "\\:")}
# What Django and SQLAlchemy raise without asking the database: of a transaction that has failed, or that is over.
_BROKEN: Final = {"TransactionManagementError", "PendingRollbackError"}
_ENDED: Final = {"InvalidRequestError", "ResourceClosedError"}
# What a connection has, and neither a pool, an engine nor a cursor. Asyncpg's has no commit, all others have one.
_OF_CONNECTIONS: Final = {
    "sqlalchemy": ("execute", "commit"), "psycopg": ("cursor", "commit"), "django": ("cursor", "commit"),
    "asyncpg": ("execute", "is_in_transaction"),
}  # fmt: skip


def escaped(sql: str, driver: str) -> str:
    """*sql* that has no parameters, as a part of a statement that has some."""
    return sql.replace(*_MARKS[driver]) if driver in _MARKS else sql


def blocking_driver(connection: object, label: str, awaited: str) -> str:
    """
    The driver of a connection that blocks: ``sqlalchemy``, ``psycopg`` or ``django``.

    Args:
        label: How the error begins.
        awaited: What async connections are used with.

    Raises:
        BadRequestError: It is async, or no connection.
    """
    driver, is_awaited = _driver_of(connection)
    if is_awaited:
        raise BadRequestError(f"{label}: a {_name_of(connection)} is async: use `{awaited}`")
    if not driver:
        raise BadRequestError(f"{label}: a {_name_of(connection)} is no connection; {_SYNC} is allowed")
    return driver


def async_driver(connection: object, label: str, blocking: str) -> str:
    """
    The driver of an async connection: ``sqlalchemy``, ``psycopg`` or ``asyncpg``.

    Args:
        label: How the error begins.
        blocking: What connections are used with that block.

    Raises:
        BadRequestError: It blocks, or is no connection.
    """
    driver, is_awaited = _driver_of(connection)
    if driver and not is_awaited:
        raise BadRequestError(f"{label}: a {_name_of(connection)} blocks: use `{blocking}`")
    if not driver:
        raise BadRequestError(f"{label}: a {_name_of(connection)} is no connection; {_ASYNC} is allowed")
    return driver


def _driver_of(connection: object) -> tuple[str, bool]:
    """The driver, '' if this is no connection of one that is known; and whether it is async."""
    homes = {one.__module__.partition(".")[0] for one in type(connection).__mro__}
    driver = next((one for one in _OF_CONNECTIONS if one in homes), "")
    if not driver or not all(hasattr(connection, one) for one in _OF_CONNECTIONS[driver]):
        return "", False
    return driver, driver == "asyncpg" or inspect.iscoroutinefunction(getattr(connection, "commit", None))


def _name_of(connection: object) -> str:
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
        state, said = state_of(error)
        meaning = meanings.get(state) or meanings.get(state[:2])
        if meaning is not None:
            raise meaning(said) from error
        if not state:
            _tell_of_connection(connection, meanings, error, said)
        raise


def _tell_of_connection(connection: object, meanings: Meanings, error: Exception, said: str) -> None:
    """Raise what an error means that the database has not sent; return if that is not known."""
    kind = type(error).__name__
    if kind in _BROKEN and (broken := meanings.get("25P02")):
        raise broken(said) from error
    if _is_closed(connection):
        raise TransactionError(f"the connection is closed ({said})") from error
    if kind in _ENDED:
        raise TransactionError(said) from error
    if (other := _other_database(connection)) is not None:
        raise SchemaError(f"the connection is one to {other}: jobs are in PostgreSQL") from error


def state_of(error: BaseException) -> tuple[str, str]:
    """The SQLSTATE in an error of a driver, or in what it wraps, and its first line; '' without one."""
    inner: Any = error
    while inner is not None:
        state = getattr(inner, "sqlstate", None) or getattr(inner, "pgcode", None)  # of psycopg2
        said = getattr(getattr(inner, "diag", None), "message_primary", None) or str(inner)
        if state is None and inner.args and isinstance(inner.args[0], dict):  # of pg8000
            state, said = inner.args[0].get("C"), str(inner.args[0].get("M"))
        if isinstance(state, str):
            return state, said.partition("\n")[0]
        inner = getattr(inner, "orig", None) or inner.__cause__
    return "", str(error).partition("\n")[0]


def _is_closed(connection: Any) -> bool:  # noqa: ANN401 - of any driver
    try:
        connection = getattr(connection, "closed_in_transaction", connection)  # of Django
        if isinstance(connection, bool):
            return connection
        closed = getattr(connection, "closed", None)
        if closed is None:
            closed = getattr(connection, "is_closed", lambda: False)()
    except Exception:  # noqa: BLE001 - a connection of a pool that was given back says so to every question
        return True
    return bool(closed)


def _other_database(connection: Any) -> str | None:  # noqa: ANN401 - of any driver
    """The name of a database that is not PostgreSQL, as Django and SQLAlchemy know it."""
    name = getattr(connection, "vendor", None)
    if name is None:
        try:
            bound = connection.get_bind() if hasattr(connection, "get_bind") else connection
            name = bound.dialect.name
        except Exception:  # noqa: BLE001 - it has no such thing
            return None
    return None if name == "postgresql" else str(name)
