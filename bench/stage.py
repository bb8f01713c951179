"""Where scenes are measured: one PostgreSQL for all, a database and a system of its own for each run, the yardstick."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import asyncpg

from bench import app as handlers
from bench.count import VARIABLE, Count
from bench.load import ARG_BYTES
from bench.recovery_scene import BenchError, database, socket_of, until
from bench.sizes import Size
from bench.usage import cpu_s, family_cpu_s
from pulse.client.client import Client
from pulse.ops.demo.server import running_server, worker_rows
from pulse.system import processes

if TYPE_CHECKING:
    from asyncpg import Connection, Record

APP: Final = "bench.app:app"
CONCURRENCY: Final = 1000
DEADLINE_S: Final = 300.0  # for any number of jobs that a scene waits for
ANSWER_S: Final = 60.0
LOOK_S: Final = 0.01
LOOK_INTO_TABLE_S: Final = 0.05
END_S: Final = 15.0  # for a process that ends by itself
LEFT: Final = """
    SELECT EXISTS (SELECT FROM pulse.jobs WHERE group_key IS NULL AND status IN ('PENDING', 'RETRYING'))
        OR EXISTS (SELECT FROM pulse.jobs WHERE status = 'RUNNING')"""


class Sql:
    """A connection of the bench's own to a database."""

    def __init__(self, dsn: str) -> None:
        self._runner = asyncio.Runner()
        self._connection: Connection[Record] = self._runner.run(asyncpg.connect(dsn))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.terminate()
        self._runner.close()

    def run(self, sql: str, *args: object) -> None:
        """Carry out one statement; or several, where there are no *args*."""
        self._runner.run(self._connection.execute(sql, *args, timeout=DEADLINE_S))

    def value(self, sql: str, *args: object) -> Any:  # noqa: ANN401 - whatever the column holds
        """The first column of the first row."""
        return self._runner.run(self._connection.fetchval(sql, *args, timeout=DEADLINE_S))

    def times(self, sql: str, values: Sequence[object]) -> float:
        """Seconds that the statement takes for all of *values*, one after the other in one transaction."""

        async def carry_out() -> float:
            statement = await self._connection.prepare(sql)
            async with self._connection.transaction():
                began_s = time.perf_counter()
                for value in values:
                    await statement.fetchval(value)
                return time.perf_counter() - began_s

        return self._runner.run(carry_out())

    def rows(self, sql: str, *args: object) -> list[Record]:
        """All rows."""
        return self._runner.run(self._connection.fetch(sql, *args, timeout=DEADLINE_S))


@dataclass(frozen=True, slots=True)
class System:
    """
    A running pulse.

    Attributes:
        socket: Where its clients connect.
        counted: File with the number of handlers that have begun.
        pids: Of its processes and of PostgreSQL, by name.
    """

    client: Client
    sql: Sql
    socket: Path
    counted: Path
    count: Count
    pids: Mapping[str, int]

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds of each process so far."""
        return {name: family_cpu_s(pid) if name == "postgres" else cpu_s(pid) for name, pid in self.pids.items()}

    def wait_begun(self, jobs: int) -> None:
        """Wait until so many handlers have begun; the database does not notice."""
        until(lambda: self.count.value >= jobs, f"{jobs} jobs have begun", DEADLINE_S, LOOK_S)

    def wait_done(self) -> None:
        """Wait until no job is left."""
        until(lambda: not self.sql.value(LEFT), "no job is left", DEADLINE_S, LOOK_INTO_TABLE_S)


@dataclass(frozen=True, slots=True)
class Bare:
    """What the yardstick found."""

    rate: float = 0.0
    bins: list[float] = field(default_factory=list[float])
    cpu_us: dict[str, float] = field(default_factory=dict[str, float])
    values_ms: list[float] = field(default_factory=list[float])


class Stage:
    """
    Everything that a scene needs.

    Args:
        dsn: Of the PostgreSQL that all share.
        size: How much of everything.
        directory: For files.

    Attributes:
        round: The first is 0.
        kept: What scenes of this round have found, for other scenes.
    """

    def __init__(self, dsn: str, size: Size, directory: Path) -> None:
        self.dsn = dsn
        self.size = size
        self.directory = directory
        self.round = 0
        self.kept: dict[str, Any] = {}
        self._numbers = itertools.count()

    def next_round(self) -> None:
        """Forget what was found in this round."""
        self.round += 1
        self.kept.clear()

    @contextmanager
    def fresh(self) -> Generator[str]:
        """A new database; it is dropped afterwards."""
        name = f"bench_{next(self._numbers)}"
        with Sql(self.dsn) as admin:
            admin.run(f"CREATE DATABASE {name}")
        try:
            yield self.dsn.replace(":///postgres?", f":///{name}?", 1)
        finally:
            with Sql(self.dsn) as admin:
                admin.run(f"DROP DATABASE {name} WITH (FORCE)")

    @contextmanager
    def system(
        self,
        dsn: str,
        *,
        app: str = APP,
        processes: int = 1,
        concurrency: int = CONCURRENCY,
        ids: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Generator[System]:
        """A pulse on the database *dsn*, with *env* over its environment; it is stopped afterwards."""
        counted = self.directory / f"count-{next(self._numbers)}"
        settings = {"PULSE_DSN": dsn, handlers.DSN: dsn, VARIABLE: str(counted)} | (
            {handlers.IDS: str(ids)} if ids else {}
        )
        settings |= env or {}
        with running_server(app, settings, processes=processes, concurrency=concurrency) as first, Sql(dsn) as sql:
            socket = socket_of(first)
            with Client(socket, timeout_s=ANSWER_S) as client:  # it waits longer than the demonstration's
                yield System(client, sql, socket, counted, Count(counted), _pids(client, sql))

    @contextmanager
    def producer(self, system: System, seconds: float, rate: float = 0.0) -> Generator[None]:
        """A process that submits for *seconds*; it is ended afterwards."""
        words = [str(system.socket), str(system.counted), "--seconds", str(seconds)]
        words += ["--depth", str(self.size.depth), "--rate", str(rate)]
        process = subprocess.Popen([sys.executable, "-m", "bench.producer", *words])
        try:
            yield
            if process.poll():
                raise BenchError(f"the producer ended with exit code {process.returncode}")
        finally:
            process.kill()
            process.wait()

    def bare(self, mode: str, *, jobs: int = 1, seconds: float = 1.0, arg_bytes: int = ARG_BYTES) -> Bare:
        """
        Run the yardstick on a database of its own.

        Raises:
            BenchError: It failed, or took too long.
        """
        words = ["--jobs", str(jobs), "--seconds", str(seconds), "--arg-bytes", str(arg_bytes)]
        with self.fresh() as dsn:
            command = [sys.executable, "-m", "bench.bare", mode, dsn, *words]
            try:
                done = subprocess.run(command, stdout=subprocess.PIPE, timeout=seconds + DEADLINE_S, check=True)
            except subprocess.SubprocessError as error:
                raise BenchError(f"the bare SQL loop: {error}") from error
        return Bare(**json.loads(done.stdout))


def _pids(client: Client, sql: Sql) -> dict[str, int]:
    status: Any = client.status()
    found = {
        "postgres": processes.parent(sql.value("SELECT pg_backend_pid()")),
        "supervisor": status["supervisor"]["pid"],
    }
    found |= {one["name"]: one["pid"] for one in (*status["actors"], *status["pools"])}
    return found | {"worker": int(str(worker_rows(client)[0]["pid"]))}


@contextmanager
def stage(size: Size) -> Generator[Stage]:
    """A PostgreSQL of one's own, and a directory; both are gone afterwards."""
    with database() as postgres, tempfile.TemporaryDirectory(prefix="pulse-bench-") as directory:
        yield Stage(postgres.dsn, size, Path(directory))
