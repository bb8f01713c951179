"""Real worker pools for tests: started as a user starts them, seen through their socket, their files and their exit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from tests.support.servers.fake_server import FakeServer

ROOT: Final = Path(__file__).parents[3]
APP: Final = "tests.support.apps.worker_app:app"
DEADLINE_S: Final = 20.0


class WorkerProcess:
    def __init__(self, process: subprocess.Popen[bytes], stderr: Path) -> None:
        self.process = process
        self._stderr = stderr

    @property
    def stderr(self) -> str:
        return self._stderr.read_text()

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        return self.process.wait(DEADLINE_S)


@contextlib.contextmanager
def worker(
    server: FakeServer, *options: str, app: str = APP, cwd: Path = ROOT, env: dict[str, str] | None = None
) -> Iterator[WorkerProcess]:
    """A pool that serves the app of the tests, without spares; whatever happens, nothing of it is left."""
    stderr = server.directory / f"stderr-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "pulse.worker", app, "--socket", str(server.path), *options]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PULSE_")}
    clean |= {"PULSE_SPARES": "0", **(env or {})}
    with stderr.open("wb") as file:
        process = subprocess.Popen(command, cwd=cwd, env=clean, stderr=file, start_new_session=True)
    pool = WorkerProcess(process, stderr)
    family: list[psutil.Process] = []
    try:
        yield pool
    except BaseException:
        sys.stderr.write(pool.stderr)
        raise
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(process.pid).children(recursive=True)
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        process.kill()
        process.wait()
