"""
A whole pulse on a database: a real supervisor with its actors, and raw peers that speak the wire to it.

``System`` starts ``pulse-supervisor`` as a user would, waits until it is ready, and leaves nothing behind. ``Peer`` is
a blocking socket that sends what a test tells it to, right or wrong, and keeps the frames that come until they are
asked for; nothing is slept for, every wait has a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import asyncpg
import psutil

from pulse.ids import uuid7
from pulse.protocol import Frame, FrameReader, decode_any, encode

if TYPE_CHECKING:
    from asyncpg import Connection, Record

DEADLINE_S: Final = 20.0  # for what takes milliseconds on a quiet machine
LARGE_FRAME_BYTES: Final = 64 * 1024 * 1024  # a test reads whatever comes
PROGRAM: Final = Path(sys.executable).with_name("pulse-supervisor")
Body = dict[str, Any]
Pair = tuple[bytes, int]
T = TypeVar("T")


def until(look: Callable[[], T], what: str, within_s: float = DEADLINE_S) -> T:
    """What *look* returns as soon as that is true; fails when it is not in time."""
    deadline_s = time.monotonic() + within_s
    while not (seen := look()):
        assert time.monotonic() < deadline_s, f"not within {within_s} s: {what}"
        select.select([], [], [], 0.002)  # leaves the processor to those who are waited for
    return seen


class Refused(Exception):
    """The server answered a request with an error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Got:
    """A frame from the server."""

    kind: str
    request: int | None
    body: Body


class Peer:
    """
    One connection to a server.

    Args:
        path: The socket.
    """

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(DEADLINE_S)
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise
        self._reader = FrameReader(LARGE_FRAME_BYTES)
        self._got: list[Got] = []
        self._number = 0
        self.welcome: Body = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def stop_sending(self) -> None:
        """Say nothing more, and go on listening."""
        self._socket.shutdown(socket.SHUT_WR)

    def send_bytes(self, data: bytes) -> None:
        """Send anything; it is no error if the server hangs up meanwhile, what it said can still be read."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def send(self, kind: str, request: int | None = None, **body: object) -> None:
        """Send a frame."""
        self.send_bytes(encode(kind, request, body))

    def ask(self, kind: str, **body: object) -> int:
        """Send a request; its number."""
        self._number += 1
        self.send(kind, self._number, **body)
        return self._number

    def answer(self, number: int) -> Body:
        """
        The answer to the request of that number.

        Raises:
            Refused: It was an error.
        """
        got = self.take(lambda one: one.request == number, f"the answer to {number}")
        if got.kind == "error":
            raise Refused(got.body["code"], got.body["message"])
        return got.body

    def call(self, kind: str, **body: object) -> Body:
        """The answer to a request."""
        return self.answer(self.ask(kind, **body))

    def submit(self, *jobs: Body) -> list[bytes]:
        """Submit jobs in one request; their ids."""
        ids: list[bytes] = self.call("submit", jobs=jobs)["ids"]
        assert ids == [job["id"] for job in jobs]
        return ids

    def expect(self, kind: str, within_s: float = DEADLINE_S) -> Body:
        """The oldest frame of that kind that was not taken yet."""
        return self.take(lambda one: one.kind == kind, kind, within_s).body

    def take(self, wanted: Callable[[Got], bool], what: str, within_s: float = DEADLINE_S) -> Got:
        """The oldest frame that is wanted; frames that are not wait for their turn."""
        deadline_s = time.monotonic() + within_s
        while (found := next((one for one in self._got if wanted(one)), None)) is None:
            assert self._receive(deadline_s - time.monotonic()), f"hung up before {what}; there was {self._got}"
        self._got.remove(found)
        return found

    def expect_end(self) -> list[Got]:
        """Everything that comes until the server hangs up."""
        deadline_s = time.monotonic() + DEADLINE_S
        while self._receive(deadline_s - time.monotonic()):
            pass
        return self._got

    def pending(self) -> list[Got]:
        """Everything that the server had to say before it answered this ping."""
        self.call("ping")
        return self._got

    def _receive(self, within_s: float) -> bool:
        """Read once; False at the end of the stream."""
        assert within_s > 0, f"in vain; there was {self._got}"
        self._socket.settimeout(within_s)
        try:
            data = self._socket.recv(1024 * 1024)
        except TimeoutError:
            raise AssertionError(f"nothing came; there was {self._got}") from None
        except ConnectionResetError:
            return False
        self._got += [_got(frame) for frame in self._reader.feed(data)]
        return bool(data)


def _got(frame: Frame) -> Got:
    return Got(frame.kind, frame.request, decode_any(frame))


class Worker(Peer):
    """
    A worker by hand: it has said hello, and does nothing by itself.

    Args:
        path: The socket.
        name: Its own name; another name is another worker.
        hello: More of its hello: names, topics, capacity, running …
    """

    def __init__(self, path: Path, name: str, **hello: object) -> None:
        super().__init__(path)
        self.name = name
        words = {"names": ["n"], "topics": ["default"], "capacity": 10, **hello}
        self.send("hello", 0, protocol=1, role="worker", worker=name, **words)
        self.welcome = self.answer(0)
        self._jobs: list[list[Any]] = []

    @property
    def session(self) -> bytes:
        """What its pool parent beats with."""
        session: bytes = self.welcome["session"]
        return session

    def jobs(self, count: int, within_s: float = DEADLINE_S) -> list[list[Any]]:
        """The next *count* assigned jobs, in order, of as many frames as it takes."""
        deadline_s = time.monotonic() + within_s
        while len(self._jobs) < count:
            self._jobs += self.expect("assign", deadline_s - time.monotonic())["jobs"]
        taken, self._jobs = self._jobs[:count], self._jobs[count:]
        return taken

    def job(self) -> Pair:
        """The next assigned job: id and attempt."""
        ((identity, attempt, *_),) = self.jobs(1)
        return identity, attempt

    def idle(self) -> bool:
        """Whether nothing has been assigned that was not taken, as of now."""
        return not self._jobs and not any(got.kind == "assign" for got in self.pending())

    def report(self, *results: Sequence[object]) -> list[list[Any]]:
        """Report results; the stale ones."""
        stale: list[list[Any]] = self.call("report", results=results)["stale"]
        return stale

    def done(self, *pairs: Sequence[Any]) -> list[list[Any]]:
        """Report success without a result; the stale ones."""
        return self.report(*([pair[0], pair[1], "ok", None] for pair in pairs))

    def beat(self, *jobs: Sequence[object]) -> list[list[Any]]:
        """Send a heartbeat that lists *jobs*; the lost ones."""
        lost: list[list[Any]] = self.call("heartbeat", jobs=[[*job, None][:3] for job in jobs])["lost"]
        return lost


class System:
    """
    A supervisor and what it runs.

    Args:
        dsn: Its database.
        directory: A place of its own, with a short name.
        env: More of its environment.
        options: More of its command line.

    Attributes:
        path: The socket of workers and clients.
        process: The supervisor, once started.
    """

    def __init__(
        self, dsn: str, directory: Path, env: Mapping[str, str] | None = None, options: Sequence[str] = ()
    ) -> None:
        self.dsn = dsn
        self.runtime_dir = directory / "run"
        self.path = self.runtime_dir / "pulse.sock"
        self._errors = directory / "errors"
        self._errors.touch()
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("PULSE_", "NOTIFY_"))}
        self._env = {**inherited, "PULSE_LOG_FORMAT": "json", "PULSE_LOG_LEVEL": "debug", **(env or {})}
        self._command = [str(PROGRAM), "--dsn", dsn, "--runtime-dir", str(self.runtime_dir), *options]
        self._runner = asyncio.Runner()
        self._connection: Connection[Record] | None = None
        self._left: list[psutil.Process] = []
        self.process: subprocess.Popen[bytes] | None = None

    # Its life.

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        assert self.process is None
        already = len(self.log("supervisor_ready"))
        with self._errors.open("ab") as sink:
            self.process = subprocess.Popen(
                self._command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                cwd=self._errors.parent,
            )

        def is_ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self._errors.read_text("utf-8")
            return len(self.log("supervisor_ready")) > already

        until(is_ready, "supervisor_ready")

    def stop(self) -> int:
        """Ask it to stop; its exit code."""
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
        until(lambda: not any(map(_is_alive, self._left)), "its children end")
        return code

    def close(self) -> None:
        """Leave nothing behind, whatever happened."""
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
        """Wait until an actor runs as another process; its pid."""

        def new_pid() -> int:
            pid = self.pids().get(name, 0)
            return 0 if pid == not_pid else pid

        return until(new_pid, f"{name} runs again")

    def ask_supervisor(self, kind: str, **body: object) -> Body:
        """The answer to a request on the supervisor's own socket."""
        with self._supervisor() as peer:
            return peer.call(kind, **body)

    def _supervisor(self) -> Peer:
        return _greeted(Peer(self.runtime_dir / "supervisor.sock"))

    # Who speaks to it.

    def peer(self) -> Peer:
        """A connection that has said nothing yet."""
        return Peer(self.path)

    def client(self) -> Peer:
        """A client that is welcome."""
        return _greeted(self.peer())

    def worker(self, name: str, **hello: object) -> Worker:
        """A worker that is welcome."""
        return Worker(self.path, name, **hello)

    # What it leaves behind.

    def log(self, event: str, **fields: object) -> list[Body]:
        """The log's entries of one event, with these fields."""
        wanted = {"event": event, **fields}
        entries: list[Body] = []
        for line in self._errors.read_text("utf-8").splitlines():
            if event in line:
                with contextlib.suppress(json.JSONDecodeError):  # half a line, being written
                    entries.append(json.loads(line))
        return [entry for entry in entries if all(entry.get(key) == value for key, value in wanted.items())]

    def rows(self, sql: str, *values: object) -> list[Record]:
        """What the database says."""
        if self._connection is None:
            self._connection = self._runner.run(asyncpg.connect(self.dsn))
        return self._runner.run(self._connection.fetch(sql, *values))

    def row(self, identity: bytes) -> Body:
        """A job's columns."""
        (row,) = self.rows("SELECT *, status::text AS status FROM pulse.jobs WHERE id = $1", identity.hex())
        return dict(row)

    def set_lease(self, identity: bytes, seconds: float) -> None:
        """Let a lease end in so many seconds, or have ended."""
        sql = "UPDATE pulse.jobs SET lease_until = clock_timestamp() + $2::float8 * interval '1 s' WHERE id = $1"
        self.rows(sql, identity.hex(), seconds)

    def lease_s(self, identity: bytes) -> float:
        """How long a lease still lasts, seconds."""
        sql = "SELECT extract(epoch FROM lease_until - clock_timestamp())::float8 AS s FROM pulse.jobs WHERE id = $1"
        left_s: float = self.rows(sql, identity.hex())[0]["s"]
        return left_s

    def wait_row(self, identity: bytes, **columns: object) -> Body:
        """A job's columns as soon as these are as given."""
        last: list[Body] = []

        def is_there() -> bool:
            last[:] = [self.row(identity)]
            return all(last[0][name] == value for name, value in columns.items())

        try:
            until(is_there, f"{columns}")
        except AssertionError:
            raise AssertionError(f"{columns} in vain; last seen {last}") from None
        return last[0]


def _greeted(peer: Peer) -> Peer:
    peer.send("hello", 0, protocol=1, role="client")
    peer.welcome = peer.answer(0)
    return peer


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """A new private directory with a short name: a socket's path has 107 bytes."""
    place = Path(tempfile.mkdtemp(prefix="pulse-y-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def running(dsn: str, env: Mapping[str, str] | None = None, options: Sequence[str] = ()) -> Iterator[System]:
    """A system that is ready; nothing of it is left afterwards."""
    with short_directory() as directory, contextlib.closing(System(dsn, directory, env, options)) as system:
        system.start()
        yield system


def new_job(**fields: object) -> Body:
    """A job to be submitted, with an id."""
    return {"name": "n", "id": uuid7().bytes, **fields}
