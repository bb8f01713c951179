"""A complete pulse in a temporary directory, for the time of the demonstration or of tests."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from pulse.client.client import Client
from pulse.errors import PulseError
from pulse.system.directories import CLIENT_SOCKET

READY_DEADLINE_S: Final = 60.0  # making a database takes seconds, on a slow disk many
STOP_DEADLINE_S: Final = 20.0
_POLL_S: Final = 0.05
_LOG_LINES: Final = 15
_LOG: Final = "log"
_SIGNALED: Final = 128  # plus the number, as a shell does


@dataclass(frozen=True, slots=True)
class TemporaryServer:
    """
    A server whose starter stops and removes it.

    Attributes:
        client: Connected to it.
        runtime_dir: Where other clients find it.
        log: What it logs.
    """

    client: Client
    runtime_dir: Path
    log: Path


@contextmanager
def running_server(
    app: str, settings: Mapping[str, str], *, processes: int, concurrency: int = 10, log: Path | None = None
) -> Generator[Client]:
    """
    PostgreSQL, the supervisor and a pool of *processes* workers; everything is stopped and removed afterwards.

    Args:
        app: The pool's handlers, ``MODULE:APP``.
        processes: Handler processes.
        concurrency: Jobs that each of them runs at once.
        settings: ``PULSE_*`` variables over the defaults; the user's own are left out.
        log: File for what it logs; by default it is removed with the rest.

    Yields:
        A client, once all is ready.

    Raises:
        PulseError: It did not get ready; the message ends with the last lines of its log.
    """
    with (
        _ended_by_signals(),
        temporary_server(app, settings, processes=processes, concurrency=concurrency, log=log) as server,
    ):
        yield server.client


@contextmanager
def temporary_server(
    app: str, settings: Mapping[str, str], *, processes: int, concurrency: int = 10, log: Path | None = None
) -> Generator[TemporaryServer]:
    """``running_server`` for a process that handles its own signals."""
    home = Path(tempfile.mkdtemp(prefix="pulse-demo-", dir=_temporary_dir()))
    try:
        home.chmod(0o711)  # as root, PostgreSQL runs as another user and must be able to pass
        words = ("--app", app, "--processes", str(processes), "--concurrency", str(concurrency))
        log = log or home / _LOG
        with _supervisor(home, log, words, settings) as server:
            client = _connected(server, home / "run" / CLIENT_SOCKET, log, processes)
            try:
                yield TemporaryServer(client, home / "run", log)
            finally:
                client.close()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _supervisor(
    home: Path, log: Path, words: Sequence[str], settings: Mapping[str, str]
) -> Generator[subprocess.Popen[bytes]]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("PULSE_")} | dict(settings)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path.cwd()), env.get("PYTHONPATH"))))
    # If this process is killed, the kernel sends the supervisor a signal. It does so as well when the thread ends that
    # has started it, so that is one that lasts.
    command = [
        sys.executable,
        "-m",
        "pulse.ops.demo.follow",
        str(os.getpid()),
        sys.executable,
        "-m",
        "pulse_supervisor.main",
    ]
    command += ["--runtime-dir", str(home / "run"), "--state-dir", str(home / "state"), "--log-format", "json", *words]
    with ThreadPoolExecutor(1) as lasting:
        with log.open("wb") as output:
            server = lasting.submit(_start, command, home, env, output).result()
        try:
            yield server
        finally:
            _stop(server)


def _start(command: Sequence[str], cwd: Path, env: Mapping[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


@contextmanager
def _ended_by_signals() -> Generator[None]:
    """Signals end this process like Ctrl-C: everything is stopped and removed first."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(_SIGNALED + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _temporary_dir() -> Path:
    """Where temporary files go; as root, PostgreSQL's own user has to get there."""
    chosen = Path(tempfile.gettempdir())
    if os.geteuid() != 0 or all(place.stat().st_mode & stat.S_IXOTH for place in (chosen, *chosen.parents)):
        return chosen
    return Path("/tmp")  # noqa: S108 - the directory that is made there has a name of its own


def _connected(server: subprocess.Popen[bytes], socket: Path, log: Path, processes: int) -> Client:
    client = Client(socket, timeout_s=2.0)
    deadline_s = time.monotonic() + READY_DEADLINE_S
    while time.monotonic() < deadline_s and server.poll() is None:
        try:
            if len(worker_rows(client)) >= processes:
                return client
        except (PulseError, OSError):
            pass
        time.sleep(_POLL_S)
    tail = log.read_text("utf-8", errors="replace").splitlines()[-_LOG_LINES:]
    raise PulseError("\n".join(["the server did not get ready:", *tail]))


def worker_rows(client: Client) -> list[Mapping[str, object]]:
    """The workers that are connected."""
    rows = client.workers()
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
