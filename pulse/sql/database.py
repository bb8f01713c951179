"""
A client's own way to the database, for submits while no server answers: psycopg or asyncpg, whichever is installed.

It blocks: the async client uses it in a thread, so that its loop goes on, whatever loop that is. Threads take turns, so
that a client has one connection however many threads submit.
"""

from __future__ import annotations

import asyncio
import importlib.util
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Protocol

from pulse.common.dsn import as_url
from pulse.common.extras import MissingExtraError
from pulse.errors import NobodyAnswersError, TransactionError
from pulse.security.schema_name import DEFAULT
from pulse.sql import drivers
from pulse.system.fork import renew_in_children

if TYPE_CHECKING:
    import psycopg

__all__ = ["FallbackDatabase"]

CONNECT_S: Final = 5  # as long as the server waits for a connection
_SILENCE_MS: Final = 5000  # a network that has swallowed a statement is noticed after so long, not after minutes


class FallbackDatabase:
    """
    Where submits go by SQL. Threads may share one, and a fork may inherit it.

    Args:
        dsn: The database, as ``is_dsn`` accepts it.
        limit_s: Longest wait for a submit, connecting not included, seconds.
        schema: Name of the schema in it.

    Raises:
        MissingExtraError: No driver is installed.

    """

    def __init__(self, dsn: str, limit_s: float, schema: str = DEFAULT) -> None:
        self._limit_s = limit_s
        self._connections = _connections_of(dsn, limit_s, schema)
        self._turn = threading.Lock()
        renew_in_children(self)

    def submit(self, document: str, *, asks: bool = False) -> str | None:
        """
        Submit the jobs of *document*, in a transaction of their own; see ``drivers.run``.

        Raises:
            NobodyAnswersError: The database cannot be reached, or did not answer in time: it may or may not have been
                done.
            PulseError: As ``pulse.sql.submit`` says.

        """
        began_s = time.monotonic()
        if not self._turn.acquire(timeout=self._limit_s):
            raise NobodyAnswersError(f"other threads wait for it, too ({time.monotonic() - began_s:.1f} s)")
        try:
            return self._connections.submit(document, asks=asks)
        except Exception as error:
            if not isinstance(error, (TransactionError, *self._connections.errors())):
                raise
            raise NobodyAnswersError(str(error).partition("\n")[0] or type(error).__name__) from error
        finally:
            self._turn.release()

    def close(self) -> None:
        """Close the connection, unless a thread uses it; the next submit opens one."""
        if self._turn.acquire(blocking=False):
            try:
                self._connections.close()
            finally:
                self._turn.release()

    def renew(self) -> None:
        """Leave the connection to the parent, in a forked child."""
        self._turn = threading.Lock()
        self._connections.leave()


class _DatabaseConnection(Protocol):
    """What a driver has to do."""

    def submit(self, document: str, *, asks: bool) -> str | None: ...

    def errors(self) -> tuple[type[Exception], ...]:
        """Those that mean: it did not work, for a reason that is not in the jobs."""
        ...

    def close(self) -> None: ...

    def leave(self) -> None:
        """Forget the connection, and do not touch it: it is the parent's."""


def _connections_of(dsn: str, limit_s: float, schema: str) -> _DatabaseConnection:
    if importlib.util.find_spec("psycopg") is not None:
        return _OneConnection(dsn, limit_s, schema)
    if importlib.util.find_spec("asyncpg") is not None:
        return _NewConnections(dsn, limit_s, schema)
    raise MissingExtraError("a client that goes by SQL needs a driver: pip install 'psycopg[binary]'")


class _OneConnection:
    """Psycopg: one connection, kept while submits go this way."""

    def __init__(self, dsn: str, limit_s: float, schema: str) -> None:
        self._dsn = dsn
        self._schema = schema
        self._limit_ms = str(max(1, int(limit_s * 1000)))
        self._connection: psycopg.Connection[Any] | None = None
        self._inherited: list[object] = []  # kept: what is collected would say goodbye on the parent's connection

    def submit(self, document: str, *, asks: bool) -> str | None:
        kept = self._connection
        if kept is not None:
            try:
                return self._run(kept, document, asks=asks)
            except Exception:
                if not kept.closed:
                    raise
        self._connection = self._connect()  # again, if it was lost meanwhile: the ids make the second time harmless
        return self._run(self._connection, document, asks=asks)

    def _run(self, connection: psycopg.Connection[Any], document: str, *, asks: bool) -> str | None:
        with connection.transaction():
            connection.execute("SELECT set_config('statement_timeout', %s, true)", (self._limit_ms,))
            return drivers.run(connection, document, asks=asks, schema=self._schema)

    def _connect(self) -> psycopg.Connection[Any]:
        import psycopg
        import psycopg.conninfo

        usual = {
            "connect_timeout": CONNECT_S, "tcp_user_timeout": _SILENCE_MS, "keepalives_idle": 5,
            "keepalives_interval": 2, "keepalives_count": 3, "application_name": "pulse client",
        }  # fmt: skip
        named = psycopg.conninfo.conninfo_to_dict(self._dsn)
        options: dict[str, Any] = {name: value for name, value in usual.items() if name not in named}
        # A pooler may give each transaction another session: nothing is prepared.
        return psycopg.connect(self._dsn, autocommit=True, prepare_threshold=None, **options)

    def errors(self) -> tuple[type[Exception], ...]:
        import psycopg

        return (psycopg.Error, OSError)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def leave(self) -> None:
        if self._connection is not None:
            self._inherited.append(self._connection)
            self._connection = None


class _NewConnections:
    """Asyncpg: a connection for each submit, in a loop of its own, since a connection belongs to one loop."""

    def __init__(self, dsn: str, limit_s: float, schema: str) -> None:
        self._url = as_url(dsn)
        self._schema = schema
        self._limit_s = limit_s

    def submit(self, document: str, *, asks: bool) -> str | None:
        with ThreadPoolExecutor(1) as thread:  # a loop may run in this one
            return thread.submit(asyncio.run, self._run(document, asks=asks)).result()

    async def _run(self, document: str, *, asks: bool) -> str | None:
        import asyncpg

        connection = await asyncpg.connect(
            self._url, timeout=CONNECT_S, command_timeout=self._limit_s, statement_cache_size=0
        )
        try:
            answered = await drivers.run_async(connection, document, asks=asks, schema=self._schema)
            await connection.close(timeout=CONNECT_S)
        finally:
            connection.terminate()
        return answered

    def errors(self) -> tuple[type[Exception], ...]:
        import asyncpg

        return (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)

    def close(self) -> None:
        pass

    def leave(self) -> None:
        pass
