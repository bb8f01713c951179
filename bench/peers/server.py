"""The PostgreSQL that all peers share, and the bench's own connection to it."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, quote, urlsplit

import asyncpg

from bench.peers.peer import Place
from bench.recovery_scene import database
from pulse.common.dsn import as_url

if TYPE_CHECKING:
    from asyncpg import Connection, Record

ADMIN: Final = "postgres"
COUNT_S: Final = 20  # for any count of the bench's own


class Session:
    """
    One connection, for code that does not run in a loop.

    Args:
        runner: Its loop.
    """

    def __init__(self, runner: asyncio.Runner, dsn: str) -> None:
        self._runner = runner
        self._connection: Connection[Record] = runner.run(asyncpg.connect(dsn))

    def close(self) -> None:
        """Let go of it."""
        self._runner.run(self._connection.close())

    def execute(self, sql: str) -> None:
        """A statement without an answer."""
        self._runner.run(self._connection.execute(sql))

    def value(self, sql: str, *args: object) -> int:
        """One number."""
        found: int = self._runner.run(self._connection.fetchval(sql, *args))
        return found

    def text(self, sql: str) -> str:
        """One text."""
        return str(self._runner.run(self._connection.fetchval(sql)))


class Server:
    """PostgreSQL with its default configuration."""

    def __init__(self, runner: asyncio.Runner, dsn: str) -> None:
        self._runner = runner
        self._query = parse_qs(urlsplit(as_url(dsn)).query)
        self._admin = Session(runner, self.dsn(ADMIN))

    def close(self) -> None:
        """Let go of it."""
        self._admin.close()

    def version(self) -> str:
        """What it says it is."""
        return self._admin.text("SHOW server_version")

    def dsn(self, name: str) -> str:
        """A URL that libpq, asyncpg and node-postgres all read in the same way."""
        host, port, user = (self._query[key][0] for key in ("host", "port", "user"))
        return f"postgresql://{user}@/{name}?host={quote(host, safe='')}&port={port}"

    @contextmanager
    def place(self, name: str) -> Iterator[Place]:
        """A new database and a new directory; both are removed afterwards."""
        self._admin.execute(f'CREATE DATABASE "{name}"')
        try:
            self._admin.execute("CHECKPOINT")
            with (
                tempfile.TemporaryDirectory(prefix="pulse-peers-") as directory,
                contextlib.closing(self.session(name)) as observer,
            ):
                observer.execute("SET max_parallel_workers_per_gather = 0")  # a count must not take a second core
                observer.execute(f"SET statement_timeout = '{COUNT_S} s'")
                yield Place(self.dsn(name), Path(directory), observer)
        finally:
            self._admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def session(self, name: str) -> Session:
        """One more connection."""
        return Session(self._runner, self.dsn(name))

    def analyze(self, place: Place) -> None:
        """Statistics of this moment, so that no plan depends on when autovacuum looked, and at what."""
        with contextlib.closing(Session(self._runner, place.dsn)) as session:
            session.execute("ANALYZE")

    @contextmanager
    def pinned(self, place: Place) -> Iterator[None]:
        """Another session holds a snapshot: no row that dies meanwhile can be cleaned away."""
        with contextlib.closing(Session(self._runner, place.dsn)) as holder:
            holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class")
            yield


@contextmanager
def shared_server() -> Iterator[Server]:
    """One in a directory of its own."""
    with database() as postgres, asyncio.Runner() as runner, contextlib.closing(Server(runner, postgres.dsn)) as server:
        yield server
