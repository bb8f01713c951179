"""Connections of every driver that pulse.sql knows, with one way to open a transaction, or a savepoint inside one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, NamedTuple

import asyncpg
import django  # type: ignore[import-untyped]
import django.db  # type: ignore[import-untyped]
import psycopg
import psycopg.conninfo
import sqlalchemy
import sqlalchemy.orm
import sqlalchemy.pool
from django.conf import settings  # type: ignore[import-untyped]
from django.db import transaction
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

from pulse import sql
from pulse.sql import drivers
from tests.support.store.helpers import Sql

settings.configure(DATABASES={})
django.setup()
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # the tests are coroutines, and wait for it as for the other drivers


class Peer(NamedTuple):
    """A connection, and how to open a transaction on it; nested: a savepoint."""

    connection: Any
    begin: Callable[[], AbstractAsyncContextManager[Any]]
    is_async: bool
    close: Callable[[], Any]

    async def submit(self, *words: Any, **options: Any) -> Any:
        if self.is_async:
            return await sql.submit_async(self.connection, *words, **options)
        return sql.submit(self.connection, *words, **options)

    async def submit_many(self, jobs: Any, **options: Any) -> Any:
        if self.is_async:
            return await sql.submit_many_async(self.connection, jobs, **options)
        return sql.submit_many(self.connection, jobs, **options)

    async def signal(self, *words: Any, **options: Any) -> bool:
        if self.is_async:
            return await sql.signal_async(self.connection, *words, **options)
        return sql.signal(self.connection, *words, **options)

    async def run(self, document: str) -> None:
        """The jobs of *document*, which nobody has checked."""
        if self.is_async:
            await drivers.run_async(self.connection, document)
        else:
            drivers.run(self.connection, document)

    async def execute(self, statement: str) -> None:
        if "django" in type(self.connection).__module__:
            with self.connection.cursor() as cursor:
                cursor.execute(statement)
        elif "sqlalchemy" in type(self.connection).__module__:
            done = self.connection.execute(sqlalchemy.text(statement))
            await done if self.is_async else done
        else:
            done = self.connection.execute(statement)
            await done if self.is_async else done


@asynccontextmanager
async def waiting(inner: contextlib.AbstractContextManager[Any]) -> AsyncIterator[None]:
    with inner:
        yield


def _psycopg(dsn: str, **options: Any) -> Peer:
    connection = psycopg.connect(dsn, autocommit=True, **options)
    return Peer(connection, lambda: waiting(connection.transaction()), is_async=False, close=connection.close)


async def _psycopg_async(dsn: str, **options: Any) -> Peer:
    connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True, **options)
    return Peer(connection, connection.transaction, is_async=True, close=connection.close)


async def _asyncpg(dsn: str, **options: Any) -> Peer:
    connection: Any = await asyncpg.connect(dsn, **options)
    return Peer(connection, connection.transaction, is_async=True, close=connection.close)


def _begin(connection: Any) -> Any:
    return connection.begin_nested() if connection.in_transaction() else connection.begin()


def _engine(dsn: str) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(dsn), poolclass=sqlalchemy.pool.NullPool
    )


def _core(dsn: str) -> Peer:
    connection = _engine(dsn).connect()
    return Peer(connection, lambda: waiting(_begin(connection)), is_async=False, close=connection.close)


def _session(dsn: str) -> Peer:
    session = sqlalchemy.orm.Session(_engine(dsn))
    return Peer(session, lambda: waiting(_begin(session)), is_async=False, close=session.close)


def _async_engine(dsn: str) -> sqlalchemy_asyncio.AsyncEngine:
    return sqlalchemy_asyncio.create_async_engine(
        "postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(dsn), poolclass=sqlalchemy.pool.NullPool
    )


async def _core_async(dsn: str) -> Peer:
    connection = await _async_engine(dsn).connect()
    return Peer(connection, lambda: _begin(connection), is_async=True, close=connection.close)


def _session_async(dsn: str) -> Peer:
    session = sqlalchemy_asyncio.AsyncSession(_async_engine(dsn))
    return Peer(session, lambda: _begin(session), is_async=True, close=session.close)


def _django(dsn: str) -> Peer:
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    with contextlib.suppress(AttributeError):
        del django.db.connections["default"]
    known: Any = django.db.connections.databases
    known["default"] |= {
        "ENGINE": "django.db.backends.postgresql", "NAME": parts["dbname"], "HOST": parts["host"],
        "PORT": parts["port"], "USER": parts["user"],
    }  # fmt: skip
    connection = django.db.connections["default"]
    atomic: Any = transaction.atomic
    return Peer(connection, lambda: waiting(atomic()), is_async=False, close=connection.close)


KINDS: Final[dict[str, Callable[[str], Any]]] = {
    "psycopg": _psycopg, "psycopg async": _psycopg_async, "asyncpg": _asyncpg, "SQLAlchemy": _core, "Session": _session,
    "SQLAlchemy async": _core_async, "AsyncSession": _session_async, "Django": _django,
}  # fmt: skip


@asynccontextmanager
async def role_without_rights(connection: Sql, name: str) -> AsyncIterator[None]:
    """A role that may see the schema, and do nothing in it."""
    await connection.execute(f"CREATE ROLE {name}; GRANT USAGE ON SCHEMA pulse TO {name}")
    try:
        yield
    finally:
        await connection.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@asynccontextmanager
async def peer(kind: str, dsn: str, **options: Any) -> AsyncIterator[Peer]:
    made = KINDS[kind](dsn, **options)
    opened: Peer = made if isinstance(made, Peer) else await made
    try:
        yield opened
    finally:
        closing = opened.close()
        if hasattr(closing, "__await__"):
            await closing
