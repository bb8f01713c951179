"""Two kinds of database: the supervisor's own, and one beside it that faults can stop; and SQL for both."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import asyncpg

from pulse_supervisor.postgres import embedded
from tests.support.waiting import until

if TYPE_CHECKING:
    from asyncpg import Connection, Record

T = TypeVar("T")
PATIENCE_S: Final = 30.0  # for a database that a fault has taken away
AWAY: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,  # too many connections, a full disk
    asyncpg.CannotConnectNowError,
    asyncpg.LockNotAvailableError,
)
STOP: Final = ((signal.SIGINT, 20.0), (signal.SIGKILL, 5.0))


class Database(Protocol):
    @property
    def dsn(self) -> str: ...

    @property
    def given(self) -> str | None:
        """The supervisor's --dsn; None: it has none."""

    @property
    def data_dir(self) -> Path: ...

    def down(self) -> None:
        """Stop it, and keep it stopped."""

    def up(self) -> None:
        """Start it again, if it does not run."""


class Embedded:
    """The supervisor's own; it starts and restarts it."""

    given = None

    def __init__(self, state_dir: Path) -> None:
        home = state_dir / "postgres"
        self.dsn = embedded.dsn(home)
        self.data_dir = home / "data"

    def down(self) -> None:
        raise NotImplementedError

    def up(self) -> None:
        """The supervisor does that."""


class Own:
    """A server beside the supervisor, which knows it by its DSN. It dies with this process."""

    def __init__(self, server: embedded.EmbeddedServer) -> None:
        self._server = server
        self._process: subprocess.Popen[bytes] | None = None
        self.dsn = server.dsn
        self.given: str | None = server.dsn
        self.data_dir = server.data_dir

    def down(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            embedded.stop(process, STOP)

    def kill(self) -> None:
        """The machine is gone: nothing more is written."""
        process, self._process = self._process, None
        if process is not None:
            embedded.stop(process, ((signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)))

    def up(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            self._process = None
        if self._process is None:
            self._process = embedded.run(self._server, _ignore)


@contextlib.contextmanager
def own_database(directory: Path, settings: Mapping[str, str], programs: Path | None = None) -> Iterator[Own]:
    """*programs*: the directory of the PostgreSQL that it is to be."""
    server = embedded.prepare(
        directory,
        embedded_user=None,
        log=_ignore,
        settings=settings,
        candidates=None if programs is None else [programs],
    )
    made = Own(server)
    try:
        made.up()
        yield made
    finally:
        made.down()
        embedded.release(server)


class Sql:
    """Asks a database that comes and goes; blocks, and tries again while it is away."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._runner = asyncio.Runner()
        self._connection: Connection[Record] | None = None

    def rows(self, sql: str, *values: object, within_s: float = PATIENCE_S) -> list[Record]:
        return self._patiently(lambda: self._ask(sql, values), within_s)

    def _patiently(self, ask: Callable[[], Coroutine[None, None, T]], within_s: float) -> T:
        deadline_s = time.monotonic() + within_s
        while True:
            try:
                return self._runner.run(ask())
            except AWAY:
                self._drop()
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.05)

    def value(self, sql: str, *values: object) -> object:
        return self.rows(sql, *values)[0][0]

    def hold(self, count: int = 1) -> list[Connection[Record]]:
        """As many of *count* more connections as there are; for `let_go`."""
        return self._patiently(lambda: self._connect_many(count), PATIENCE_S)

    def on(self, connection: Connection[Record], sql: str) -> None:
        """Run SQL on one of them, which another fault may have ended."""
        with contextlib.suppress(*AWAY):
            self._runner.run(connection.execute(sql))

    def let_go(self, connections: list[Connection[Record]]) -> None:
        for connection in connections:
            connection.terminate()
        self._runner.run(asyncio.sleep(0))
        connections.clear()

    def close(self) -> None:
        self._drop()
        self._runner.close()

    async def _connect_many(self, count: int) -> list[Connection[Record]]:
        found = [await self._connect()]
        with contextlib.suppress(asyncpg.TooManyConnectionsError):
            while len(found) < count:
                found.append(await self._connect())
        return found

    async def _connect(self) -> Connection[Record]:
        return await asyncpg.connect(self._dsn, timeout=5, server_settings={"application_name": "chaos"})

    async def _ask(self, sql: str, values: tuple[object, ...]) -> list[Record]:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._connect()
        return await self._connection.fetch(sql, *values, timeout=PATIENCE_S)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
            self._runner.run(asyncio.sleep(0))


def postmaster(database: Database) -> int:
    """The pid of its postmaster, which accepts connections."""

    def ready() -> int:
        try:
            lines = (database.data_dir / "postmaster.pid").read_text("utf-8").splitlines()
        except OSError:
            return 0
        return int(lines[0]) if len(lines) > 7 and lines[7].strip() == "ready" else 0

    return until(ready, "the postmaster is ready", PATIENCE_S)


def _ignore(event: str, **fields: object) -> None:
    """What `embedded` has to tell interests nobody here."""
