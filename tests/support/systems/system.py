"""
A whole pulse on a database: a real supervisor with its actors, and raw peers that speak the wire to it.

``System`` starts ``pulse-supervisor`` as a user would, waits until it is ready, and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncpg
import psutil

from pulse.common.dsn import redact_dsn
from tests.support.commandline.warm import program
from tests.support.confidential import search_logs
from tests.support.servers.streams import JsonLines
from tests.support.systems.peers import DEADLINE_S, Body, Pair, Peer, Refused, Worker, new_job
from tests.support.waiting import is_alive, until

if TYPE_CHECKING:
    from asyncpg import Connection, Record

__all__ = [
    "DEADLINE_S", "PROGRAM", "Body", "Pair", "Peer", "Refused", "System", "Worker", "new_job", "running",
    "short_directory",
]  # fmt: skip

PROGRAM: Final = Path(sys.executable).with_name("pulse-supervisor")


class System:
    """
    A supervisor and what it runs.

    Args:
        directory: A place of its own, with a short name.
        env: More of its environment.
        options: More of its command line.

    Attributes:
        path: The socket of workers and clients.
        errors: Its log.
    """

    def __init__(
        self, dsn: str, directory: Path, env: Mapping[str, str] | None = None, options: Sequence[str] = ()
    ) -> None:
        self.dsn = dsn
        self.runtime_dir = directory / "run"
        self.path = self.runtime_dir / "pulse.sock"
        self.directory = directory
        self.errors = directory / "errors"
        self.errors.touch()
        self._log = JsonLines[Body](self.errors, dict, lambda entry: entry.get("event"))
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PULSE_", "NOTIFY_"))}
        told = {"PULSE_LOG_FORMAT": "json", "PULSE_LOG_LEVEL": "debug", "PULSE_STATE_DIR": str(directory / "state")}
        self._env = {**inherited, **told, **(env or {})}
        self._command = [str(PROGRAM), "--dsn", dsn, "--runtime-dir", str(self.runtime_dir), *options]
        self._runner = asyncio.Runner()
        self._connection: Connection[Record] | None = None
        self._left: list[psutil.Process] = []
        self.process: subprocess.Popen[bytes] | None = None

    # Its life.

    def start(self) -> None:
        already = len(self.log("supervisor_ready"))
        process = self.spawn()

        def is_ready() -> bool:
            assert process.poll() is None, self.errors.read_text("utf-8")
            return len(self.log("supervisor_ready")) > already

        until(is_ready, "supervisor_ready")

    def spawn(self, *options: str) -> subprocess.Popen[bytes]:
        assert self.process is None
        with self.errors.open("ab") as sink:
            dsn = self.dsn or self._env.get("PULSE_DSN", "")
            self.process = program(
                "pulse_supervisor.main", [*self._command[1:], *options], self._command[:1],
                env=self._env, stdout=sink, stderr=sink, cwd=self.directory,
                may_be_warm=redact_dsn(dsn) == dsn,  # else it hides the password by another exec
            )  # fmt: skip
        return self.process

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """Kill it, and wait until its children have followed it; its exit code."""
        return self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        process, self.process = self.process, None
        assert process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            self._left = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        code = process.wait(DEADLINE_S)
        until(lambda: not any(is_alive(process.pid) for process in self._left), "its children end")
        return code

    def close(self) -> None:
        if self._connection is not None:
            self._runner.run(self._connection.close(timeout=5))
        self._runner.close()
        if self.process is not None:
            self.kill()

    # What it runs.

    def pids(self) -> dict[str, int]:
        """The actors that run, by name."""
        with self._supervisor() as peer:
            return {row["name"]: row["pid"] for row in peer.call("status")["actors"] if row["state"] == "running"}

    def kill_actor(self, name: str) -> int:
        """Kill an actor; the pid it had."""
        pid = self.pids()[name]
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_actor(self, name: str, *, not_pid: int) -> int:
        def new_pid() -> int:
            pid = self.pids().get(name, 0)
            return 0 if pid == not_pid else pid

        return until(new_pid, f"{name} runs again")

    def ask_supervisor(self, kind: str, **body: object) -> Body:
        """The answer to a request on the supervisor's own socket."""
        with self._supervisor() as peer:
            return peer.call(kind, **body)

    def _supervisor(self) -> Peer:
        return Peer(self.runtime_dir / "supervisor.sock").hello()

    # Who speaks to it.

    def peer(self) -> Peer:
        """A connection that has said nothing yet."""
        return Peer(self.path)

    @property
    def tcp_port(self) -> int:
        return int(self.log("supervisor_ready")[-1]["tcp"].rpartition(":")[2])

    def client(self) -> Peer:
        return self.peer().hello()

    def worker(self, name: str, **hello: object) -> Worker:
        return Worker(self.path, name, **hello)

    # What it leaves behind.

    def log(self, event: str, **fields: object) -> list[Body]:
        found = self._log.read(event)
        return [entry for entry in found if all(entry.get(key) == value for key, value in fields.items())]

    def rows(self, sql: str, *values: object) -> list[Record]:
        if self._connection is None:
            self._connection = self._runner.run(asyncpg.connect(self.dsn))
        return self._runner.run(self._connection.fetch(sql, *values))

    def row(self, identity: bytes) -> Body:
        (row,) = self.rows("SELECT *, status::text AS status FROM pulse.jobs WHERE id = $1", identity.hex())
        return dict(row)

    def set_lease(self, identity: bytes, seconds: float) -> None:
        sql = "UPDATE pulse.jobs SET lease_until = clock_timestamp() + $2::float8 * interval '1 s' WHERE id = $1"
        self.rows(sql, identity.hex(), seconds)

    def lease_s(self, identity: bytes) -> float:
        """How long a lease still lasts, seconds."""
        sql = "SELECT extract(epoch FROM lease_until - clock_timestamp())::float8 AS s FROM pulse.jobs WHERE id = $1"
        left_s: float = self.rows(sql, identity.hex())[0]["s"]
        return left_s

    def wait_row(self, identity: bytes, **columns: object) -> Body:
        last: list[Body] = []

        def is_there() -> bool:
            last[:] = [self.row(identity)]
            return all(last[0][name] == value for name, value in columns.items())

        try:
            until(is_there, f"{columns}")
        except AssertionError:
            raise AssertionError(f"{columns} in vain; last seen {last}") from None
        return last[0]


@contextlib.contextmanager
def short_directory(mode: int = 0o700) -> Iterator[Path]:
    """A new directory with a short name, since a socket's path has 107 bytes; private, unless *mode* says otherwise."""
    place = Path(tempfile.mkdtemp(prefix="pulse-y-"))
    place.chmod(mode)
    try:
        yield place
    finally:
        search_logs(place)
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def two_hosts(dsn: str) -> Iterator[tuple[System, System]]:
    """Two systems on one database, which look for work only when they are notified: no test outlasts such a poll."""
    settings = {"PULSE_POLL_S": "60"}
    with (
        running(dsn, {**settings, "PULSE_HOST_ID": "a"}) as one,
        running(dsn, {**settings, "PULSE_HOST_ID": "b"}) as two,
    ):
        yield one, two


@contextlib.contextmanager
def running(dsn: str, env: Mapping[str, str] | None = None, options: Sequence[str] = ()) -> Iterator[System]:
    """A system that is ready; nothing of it is left afterwards."""
    with short_directory() as directory, contextlib.closing(System(dsn, directory, env, options)) as system:
        system.start()
        yield system
