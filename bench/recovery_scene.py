"""Where `bench.recovery` measures: a system of its own with real workers, and a PostgreSQL that can be stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

import asyncpg

import pulse
from bench.recovery_app import LISTENER, RUNS
from pulse.client.client import Client
from pulse.ops.demo.server import running_server, worker_rows
from pulse_supervisor.postgres import embedded

if TYPE_CHECKING:
    from asyncpg import Connection, Record

APP: Final = "bench.recovery_app:app"
DEADLINE_S: Final = 60.0
SUBMIT_BATCH: Final = 10_000
# A bench that polls takes time from two cores that the recovery needs, and sees its end milliseconds late.
NOTIFY_CHANGES: Final = """
CREATE FUNCTION public.bench_changed() RETURNS trigger LANGUAGE plpgsql
    AS $$BEGIN NOTIFY bench_changed; RETURN NULL; END$$;
CREATE TRIGGER bench_changed AFTER UPDATE ON pulse.jobs EXECUTE FUNCTION public.bench_changed();
"""


class BenchError(Exception):
    """The bench did not make what it wanted to measure; there is no figure."""


@dataclass(frozen=True, slots=True)
class Start:
    """
    A handler that began.

    Attributes:
        child: Pid of the process that it had forked before; 0: none.
        before_lives: Whether the process of the attempt before was there; None: nobody told which it was.
    """

    job: UUID
    attempt: int
    pid: int
    at_s: float
    child: int
    before_lives: bool | None


class Scene:
    """
    One system, seen from outside.

    Args:
        client: Its client.
        starts: The socket on which handlers tell that they begin.
        settings: Environment of the handlers.
        directory: Where it logs, and where innocents write down that they begin.
        runner: For the bench's own connection to the database.
    """

    def __init__(
        self,
        client: Client,
        starts: socket.socket,
        settings: Mapping[str, str],
        directory: Path,
        runner: asyncio.Runner,
    ) -> None:
        status = client.status()["database"]
        self.client = client
        self.settings = settings
        self.dsn = str(status["dsn"]) if isinstance(status, Mapping) else ""
        self._starts = starts
        self._directory = directory
        self._runner = runner
        self._database: Connection[Record] = runner.run(asyncpg.connect(self.dsn))
        self._changed_s: asyncio.Queue[float] = asyncio.Queue()

    def close(self) -> None:
        """Let go of the database."""
        self._runner.run(self._database.close())

    def next_start(self, within_s: float = DEADLINE_S) -> Start:
        """The next handler that begins."""
        self._starts.settimeout(within_s)
        told = json.loads(self._starts.recv(4096))
        return Start(**{**told, "job": UUID(told["job"])})

    def starts_of(self, jobs: Collection[UUID], attempt: int) -> list[Start]:
        """
        The starts of this attempt of all *jobs*, in the order of their reports.

        Raises:
            BenchError: A second attempt was not told who made the first one.
        """
        found: dict[UUID, Start] = {}
        while len(found) < len(jobs):
            start = self.next_start()
            if start.job in jobs and start.attempt == attempt:
                if attempt > 1 and start.before_lives is None:
                    raise BenchError(f"attempt {attempt} of {start.job} has no previous, or that has no worker")
                found.setdefault(start.job, start)
        return list(found.values())

    def value(self, sql: str, *args: object) -> float:
        """One number from the database."""
        found: float = self._runner.run(self._database.fetchval(sql, *args))
        return found

    def hear_changes(self) -> None:
        """Have the database say when rows have changed; needed by `kill`."""
        self._runner.run(self._database.execute(NOTIFY_CHANGES))
        self._runner.run(
            self._database.add_listener("bench_changed", lambda *_: self._changed_s.put_nowait(time.monotonic()))
        )

    def kill(self, pid: int, are_free: Callable[[], bool]) -> tuple[float, float]:
        """
        Kill the worker, and ask *are_free* after each commit that changes rows, until it is true.

        Returns:
            When it was killed, and when that commit was heard of (monotonic).
        """
        self.value("SELECT 1")  # reads what was said until now
        while not self._changed_s.empty():
            self._changed_s.get_nowait()
        killed_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        while True:
            heard_s = self._runner.run(asyncio.wait_for(self._changed_s.get(), DEADLINE_S))
            if are_free():
                return killed_s, heard_s

    def log_lines(self) -> int:
        """How many all processes together have written so far."""
        return (self._directory / "log").read_bytes().count(b"\n")

    def runs(self) -> Counter[str]:
        """How often each innocent began, as they wrote down themselves."""
        return Counter((self._directory / "runs").read_text("ascii").split())

    def reconnect(self) -> None:
        """The database was away."""
        self._database.terminate()
        self._database = self._runner.run(asyncpg.connect(self.dsn))

    def wait_workers(self, count: int) -> None:
        """Wait until so many workers are connected."""
        until(lambda: len(worker_rows(self.client)) >= count, f"{count} workers")

    def submit(self, name: str, count: int, **args: object) -> list[UUID]:
        """So many jobs."""
        found: list[UUID] = []
        while len(found) < count:
            some: pulse.NewJob = {"name": name, "args": args}
            found += self.client.submit_many([some] * min(SUBMIT_BATCH, count - len(found)))
        return found

    def cancel(self, jobs: Sequence[UUID]) -> None:
        """End them, and wait until nobody holds any."""
        self.client.cancel(*jobs)
        until(lambda: not any(row["running"] for row in worker_rows(self.client)), "idle workers")


def socket_of(client: Client) -> Path:
    """Where a client of ``running_server`` is connected; nobody else tells."""
    return Path(str(client._transport._socket))  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]


def until(look: Callable[[], object], what: str, within_s: float = DEADLINE_S, look_s: float = 0.002) -> None:
    """
    Wait until *look* is true; look every *look_s*.

    Raises:
        BenchError: It takes too long.
    """
    deadline_s = time.monotonic() + within_s
    while not look():
        if time.monotonic() > deadline_s:
            raise BenchError(f"not within {within_s:g} s: {what}")
        time.sleep(look_s)


@contextmanager
def scene(processes: int, concurrency: int, settings: Mapping[str, str]) -> Iterator[Scene]:
    """A system with a pool of *processes*."""
    with (
        tempfile.TemporaryDirectory(prefix="pulse-bench-") as name,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as starts,
    ):
        directory = Path(name)
        path = directory / "starts"
        starts.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        starts.bind(str(path))
        words, log = {**settings, LISTENER: str(path), RUNS: str(directory / "runs")}, directory / "log"
        with (
            running_server(APP, words, processes=processes, concurrency=concurrency, log=log) as client,
            asyncio.Runner() as runner,
            contextlib.closing(Scene(client, starts, words, directory, runner)) as made,
        ):
            yield made


class Database:
    """
    A PostgreSQL beside the system, to be stopped.

    Args:
        directory: For all that it keeps.
    """

    def __init__(self, directory: Path) -> None:
        self._server = embedded.prepare(directory, embedded_user=os.environ.get("PULSE_EMBEDDED_USER"), log=_ignore)
        self.dsn = self._server.dsn
        self._process = embedded.run(self._server, _ignore)

    def stop(self) -> None:
        """Shut it down at once, as a host that loses its power would."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()

    def start(self) -> None:
        """Start it again; it answers from now on."""
        self._process = embedded.run(self._server, _ignore)

    def close(self) -> None:
        """Stop it for good."""
        embedded.stop(self._process)
        embedded.release(self._server)


def _ignore(*_: object, **__: object) -> None:
    pass


@contextmanager
def database() -> Iterator[Database]:
    """One in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="pulse-bench-") as directory:
        Path(directory).chmod(0o711)  # as root PostgreSQL runs as another user, who has to get through
        with contextlib.closing(Database(Path(directory) / "postgres")) as made:
            yield made
