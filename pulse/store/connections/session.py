"""
A connection to one schema, whose errors name their statement, and that knows which statements succeed again.

And a commit that is held.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import anyio
import asyncpg

from pulse.security.schema_name import DEFAULT, quoted
from pulse.store.connections.rendering import rendered
from pulse.store.failures import UnreadableAnswerError
from pulse.store.statements import STATEMENTS, name_of

if TYPE_CHECKING:
    from asyncpg import Record

    from pulse.store.failures import Failing

    _Connection = asyncpg.Connection[Record]
else:
    _Connection = asyncpg.Connection


# What asyncpg raises for a value that Python cannot hold: text that is not UTF-8, a date beyond the year 9999.
UNREADABLE: Final = (ValueError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class HeldCommit:
    """A statement that runs while a dead worker's processes are ended, and commits afterwards."""

    sent: anyio.Event = field(default_factory=anyio.Event)  # the statement has run, or never will
    may_commit: anyio.Event = field(default_factory=anyio.Event)  # the processes are gone


class Session(_Connection):
    """
    As asyncpg's; statements are written for the schema ``pulse``, and sent for its own.

    Attributes:
        failing: The statements that the database refuses; a success removes one.
        schema: Name of the schema.
        home_since_s: When Citus was asked, and had the rows on this node; monotonic clock; None: it does not keep them.
    """

    failing: Failing | None = None
    schema: str = DEFAULT
    home_since_s: float | None = None

    def found_home(self, since_s: float) -> None:
        """Citus was asked at *since_s*, and said that this node has the rows."""
        self.home_since_s = since_s

    async def execute(self, query: str, *args: Any, **options: Any) -> str:
        """As asyncpg's; an error knows its statement."""
        with self._named(query):
            return await super().execute(self._sent(query), *args, **options)

    async def fetch(self, query: str, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - as asyncpg has it
        """As asyncpg's; likewise."""
        with self._named(query):
            return await super().fetch(self._sent(query), *args, **options)

    async def fetchrow(self, query: str, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - as asyncpg has it
        """As asyncpg's; likewise."""
        with self._named(query):
            return await super().fetchrow(self._sent(query), *args, **options)

    async def fetchval(self, query: str, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - as asyncpg has it
        """As asyncpg's; likewise."""
        with self._named(query):
            return await super().fetchval(self._sent(query), *args, **options)

    def _sent(self, query: str) -> str:
        return query if self.schema == DEFAULT else rendered(query, self.schema)

    @contextlib.contextmanager
    def _named(self, query: str) -> Generator[None]:
        try:
            yield
        except asyncpg.PostgresError as error:
            vars(error)["statement"] = name_of(query)
            raise
        except UNREADABLE as error:
            unreadable = UnreadableAnswerError(str(error))
            vars(unreadable)["statement"] = name_of(query)
            raise unreadable from error
        if self.failing is not None:
            self.failing.succeeded(query)


def schema_in(connection: _Connection) -> str:
    """The schema of *connection*, as SQL has it; any other than a ``Session`` has the default one."""
    return quoted(getattr(connection, "schema", DEFAULT))  # isinstance says yes to any connection of asyncpg


def in_schema(connection: _Connection, name: str) -> str:
    """A qualified name of the schema ``pulse``, in the schema of *connection*; for names that are arguments."""
    return rendered(name, getattr(connection, "schema", DEFAULT))


async def begin_migration(connection: _Connection, lock_timeout: str) -> None:
    """
    Set the limits of the transaction, and wait until no other one changes this schema.

    Args:
        lock_timeout: How long to wait, as PostgreSQL writes it.
    """
    await connection.execute(STATEMENTS["schema_limits"].sql, lock_timeout)
    await connection.execute(STATEMENTS["schema_lock"].sql)
