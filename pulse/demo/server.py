"""A complete pulse of one's own, in a temporary directory, for as long as the demonstration lasts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pulse.blocking import Client
from pulse.errors import PulseError

READY_DEADLINE_S: Final = 60.0  # making a database takes seconds, on a slow disk many
STOP_DEADLINE_S: Final = 20.0
_POLL_S: Final = 0.05
_LOG_LINES: Final = 15


@contextmanager
def running_server(
    app: str, settings: Mapping[str, str], *, processes: int, concurrency: int = 10
) -> Generator[Client]:
    """
    PostgreSQL, the supervisor and a pool of *processes* workers; everything is stopped and removed afterwards.

    Args:
        app: The pool's handlers, ``MODULE:APP``.
        processes: Handler processes.
        concurrency: Jobs that each of them runs at once.
        settings: ``PULSE_*`` variables over the defaults; the user's own are left out.

    Yields:
        A client, once all is ready.

    Raises:
        PulseError: It did not get ready; the message ends with the last lines of its log.
    """
    home = Path(tempfile.mkdtemp(prefix="pulse-demo-"))
    home.chmod(0o711)  # as root, PostgreSQL runs as another user and must be able to pass
    runtime = home / "run"
    log = home / "log"
    env = {key: value for key, value in os.environ.items() if not key.startswith("PULSE_")} | dict(settings)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path.cwd()), env.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "pulse_supervisor.main", "--runtime-dir", str(runtime), "--state-dir"]
    command += [str(home / "state"), "--app", app, "--processes", str(processes)]
    command += ["--concurrency", str(concurrency), "--log-format", "json"]
    with log.open("wb") as output:
        server = subprocess.Popen(command, cwd=home, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        client = _connected(server, runtime / "pulse.sock", log, processes)
        try:
            yield client
        finally:
            client.close()
    finally:
        _stop(server)
        shutil.rmtree(home, ignore_errors=True)


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
    if server.poll() is not None:
        return
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
