"""
A transaction on a connection of somebody else's: how each driver begins it, runs a statement in it, and ends it.

All have async methods, so that what is done with them is written once. Those for connections that block never wait:
``carry_out`` calls them without an event loop. Async connections of SQLAlchemy have a blocking one inside.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from pulse.app.transactions.drivers import async_driver, blocking_driver, escaped
from pulse.errors import TransactionError

__all__ = ["DriverTransaction", "async_transaction", "blocking_transaction", "carry_out"]

# ruff: noqa: ANN401 - connections are of drivers that are not imported
_IDLE: Final = 0  # of libpq's states of a transaction
_UNKNOWN: Final = 4  # the connection is closed


class DriverTransaction(Protocol):
    """A transaction on a connection."""

    async def begin(self, *, may_nest: bool) -> None:
        """
        Begin it.

        Args:
            may_nest: If one is open already, begin a savepoint in it.

        Raises:
            TransactionError: One is open already, or each statement would be a transaction of its own.
        """

    def is_open(self) -> bool:
        """Whether it has not ended by other means."""
        ...

    async def run(self, statement: str, values: Sequence[object], schema: str) -> None:
        """Run *statement*, which has a ``{}`` for each of the *values*, and ``{schema}`` for the quoted *schema*."""

    async def commit(self) -> None:
        """Commit it."""

    async def roll_back(self, error: BaseException) -> None:
        """Roll it back, because of *error*."""


def carry_out(work: Coroutine[Any, Any, None]) -> None:
    """Carry out *work* that never waits: on connections that block."""
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()
    raise RuntimeError("a blocking connection has waited")


def blocking_transaction(connection: object) -> DriverTransaction:
    """
    A transaction on *connection*, which blocks.

    Raises:
        BadRequestError: It is async, or no connection.
    """
    driver = blocking_driver(connection, "ctx.transaction", "async with ctx.transaction(…)")
    made: dict[str, Callable[[object], DriverTransaction]] = {
        "sqlalchemy": _OfSqlalchemy, "psycopg": _OfPsycopg, "django": _OfDjango
    }  # fmt: skip
    return made[driver](connection)


def async_transaction(connection: object) -> DriverTransaction:
    """
    A transaction on *connection*, which is async.

    Raises:
        BadRequestError: It blocks, or is no connection.
    """
    driver = async_driver(connection, "ctx.transaction", "with ctx.transaction(…)")
    made: dict[str, Callable[[object], DriverTransaction]] = {
        "sqlalchemy": _OfAsyncSqlalchemy, "psycopg": _OfAsyncPsycopg, "asyncpg": _OfAsyncpg
    }  # fmt: skip
    return made[driver](connection)


def _refuse_open(is_open: object) -> None:
    if is_open:
        raise TransactionError(
            "the connection is in a transaction already, and ctx.transaction opens its own: end that one before "
            "(a statement outside of a block may have begun it)"
        )


def _is_psycopg_open(connection: Any) -> bool:
    return connection.info.transaction_status not in {_IDLE, _UNKNOWN}


class _InContext:
    """What has cursors, and a context manager for a transaction."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._inner: Any = None

    async def run(self, statement: str, values: Sequence[object], schema: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(_marked(statement, values, schema), values)

    async def commit(self) -> None:
        self._inner.__exit__(None, None, None)

    async def roll_back(self, error: BaseException) -> None:
        self._inner.__exit__(type(error), error, error.__traceback__)


class _OfPsycopg(_InContext):
    async def begin(self, *, may_nest: bool) -> None:
        _refuse_open(not may_nest and self.is_open())
        self._inner = self._connection.transaction()
        self._inner.__enter__()

    def is_open(self) -> bool:
        return _is_psycopg_open(self._connection)


class _OfDjango(_InContext):
    async def begin(self, *, may_nest: bool) -> None:
        is_open = self._connection.in_atomic_block or not self._connection.get_autocommit()
        _refuse_open(not may_nest and is_open)
        transaction: Any = importlib.import_module("django.db.transaction")
        self._inner = transaction.atomic(using=self._connection.alias)
        self._inner.__enter__()

    def is_open(self) -> bool:
        return bool(self._connection.in_atomic_block) and _is_psycopg_open(self._connection.connection)


class _OfSqlalchemy:
    """Of a Connection or a Session."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection() if hasattr(connection, "registry") else connection  # a scoped_session
        self._is_session = hasattr(self._connection, "flush")
        self._inner: Any = None

    async def begin(self, *, may_nest: bool) -> None:
        connection = self._connection
        is_outside = self._is_session and getattr(connection.get_bind(), "in_transaction", bool)()
        _refuse_open(not may_nest and (connection.in_transaction() or is_outside))
        self._inner = connection.begin_nested() if connection.in_transaction() else connection.begin()
        real = (connection.connection() if self._is_session else connection).connection.dbapi_connection
        if getattr(real, "autocommit", False) or getattr(real, "isolation_level", None) == "autocommit":
            self._inner.rollback()
            raise TransactionError("the isolation level of the connection is AUTOCOMMIT: it has no transactions")

    def is_open(self) -> bool:
        return bool(self._inner.is_active)

    async def run(self, statement: str, values: Sequence[object], schema: str) -> None:
        import sqlalchemy

        if self._is_session:
            self._connection.flush()  # what waits for the commit may still fail
        names = [f"value{number}" for number in range(len(values))]
        marked = statement.format(*(f":{name}" for name in names), schema=escaped(schema, "sqlalchemy"))
        self._connection.execute(sqlalchemy.text(marked), dict(zip(names, values, strict=True)))

    async def commit(self) -> None:
        try:
            self._inner.commit()
        except BaseException:
            with suppress(Exception):
                self._inner.rollback()  # a Session stays unusable otherwise
            raise

    async def roll_back(self, error: BaseException) -> None:  # noqa: ARG002 - SQLAlchemy does not ask
        self._inner.rollback()


class _OfAsyncSqlalchemy:
    def __init__(self, connection: Any) -> None:
        self._connection = connection() if hasattr(connection, "registry") else connection
        self._inner: Any = None

    async def begin(self, *, may_nest: bool) -> None:
        def begin(inside: object) -> None:
            self._inner = _OfSqlalchemy(inside)
            carry_out(self._inner.begin(may_nest=may_nest))

        await self._connection.run_sync(begin)

    def is_open(self) -> bool:
        return bool(self._inner.is_open())

    async def run(self, statement: str, values: Sequence[object], schema: str) -> None:
        await self._let(self._inner.run, statement, values, schema)

    async def commit(self) -> None:
        await self._let(self._inner.commit)

    async def roll_back(self, error: BaseException) -> None:
        await self._let(self._inner.roll_back, error)

    async def _let(self, work: Callable[..., Coroutine[Any, Any, None]], *words: object) -> None:
        def inside(_connection: object) -> None:
            carry_out(work(*words))

        await self._connection.run_sync(inside)


class _OfAsyncpg:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._inner: Any = None

    async def begin(self, *, may_nest: bool) -> None:
        _refuse_open(not may_nest and self.is_open())
        self._inner = self._connection.transaction()
        await self._inner.start()

    def is_open(self) -> bool:
        return bool(self._connection.is_in_transaction())

    async def run(self, statement: str, values: Sequence[object], schema: str) -> None:
        marks = (f"${number}" for number in range(1, len(values) + 1))
        await self._connection.execute(statement.format(*marks, schema=schema), *values)

    async def commit(self) -> None:
        await self._inner.commit()

    async def roll_back(self, error: BaseException) -> None:  # noqa: ARG002 - asyncpg does not ask
        await self._inner.rollback()


class _OfAsyncPsycopg:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._inner: Any = connection.transaction()

    async def begin(self, *, may_nest: bool) -> None:
        _refuse_open(not may_nest and self.is_open())
        await self._inner.__aenter__()

    def is_open(self) -> bool:
        return _is_psycopg_open(self._connection)

    async def run(self, statement: str, values: Sequence[object], schema: str) -> None:
        async with self._connection.cursor() as cursor:
            await cursor.execute(_marked(statement, values, schema), values)

    async def commit(self) -> None:
        await self._inner.__aexit__(None, None, None)

    async def roll_back(self, error: BaseException) -> None:
        await self._inner.__aexit__(type(error), error, error.__traceback__)


def _marked(statement: str, values: Sequence[object], schema: str) -> str:
    return statement.format(*["%s"] * len(values), schema=escaped(schema, "psycopg"))
