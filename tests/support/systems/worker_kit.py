"""Real worker pools for tests: started as a user starts them, seen through their socket, their files and their exit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from pulse.worker.pool.template import NAME
from tests.support.commandline.warm import program
from tests.support.servers.fake_server import FakeServer, Peer, job
from tests.support.waiting import children, until

ROOT: Final = Path(__file__).parents[3]
APP: Final = "tests.support.apps.worker_app:app"
DEADLINE_S: Final = 20.0
# How the handlers of `serve_ends` end: the outcome, and the detail; of an error its beginning.
ENDINGS: Final[Mapping[str, tuple[str, object]]] = {
    "exit": ("error", "SystemExit: the handler called sys.exit(3)"),
    "exit-plain": ("error", "SystemExit: the handler called sys.exit(3)"),
    "interrupt": ("error", "KeyboardInterrupt: raised by the handler"),
    "interrupt-plain": ("error", "KeyboardInterrupt: raised by the handler"),
    "cancel-itself": ("error", "CancelledError"),
    "unprintable": ("error", "UnprintableError: <unprintable: its str() raises RuntimeError>"),
    "unprintable-plain": ("error", "UnprintableError: <unprintable: its str() raises RuntimeError>"),
    "not-json": ("error", "result is not JSON: Object of type object is not JSON serializable"),
    "snooze": ("snooze", 7.0),
    "discard": ("discard", "no such customer"),
    "retry-after": ("retry", [9.5, "rate limited"]),
}


class WorkerProcess:
    def __init__(self, process: subprocess.Popen[bytes], stderr: Path) -> None:
        self.process = process
        self._stderr = stderr

    @property
    def stderr(self) -> str:
        return self._stderr.read_text()

    def children(self) -> list[psutil.Process]:
        """Its handler processes."""
        return handler_processes(self.process.pid)

    def template(self) -> psutil.Process:
        """As soon as it forks."""
        until(lambda: _template_of(self.process.pid), "the template")
        found = _template_of(self.process.pid)
        assert found is not None
        return found

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        return self.process.wait(DEADLINE_S)


def handler_processes(pool: int) -> list[psutil.Process]:
    """Its children but the template, and those of handlers that it has adopted: these are in the handlers' sessions."""
    template = _template_of(pool)
    found = [child for child in _children_of(pool) if child != template]
    return [child for child in found if _session_of(child.pid) in {child.pid, _session_of(pool)}]


def _children_of(pid: int) -> Iterator[psutil.Process]:
    for child in children(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(child)


def _session_of(pid: int) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid)
    return None


def _template_of(pool: int) -> psutil.Process | None:
    for child in _children_of(pool):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.name() == NAME:
                return child
    return None


@contextlib.contextmanager
def worker(
    server: FakeServer, *options: str, app: str = APP, cwd: Path = ROOT, env: dict[str, str] | None = None
) -> Iterator[WorkerProcess]:
    """A pool that serves the app of the tests, without spares; whatever happens, nothing of it is left."""
    stderr = server.directory / f"stderr-{time.monotonic_ns()}"
    words, cold = [app, "--socket", str(server.path), *options], [sys.executable, "-m", "pulse.worker"]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PULSE_")}
    clean |= {"PULSE_SPARES": "0", **(env or {})}
    with stderr.open("wb") as file:
        process = program("pulse.worker.__main__", words, cold, env=clean, cwd=cwd, stderr=file, start_new_session=True)
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


@contextlib.contextmanager
def at_work(*options: str, **more: Any) -> Iterator[tuple[Peer, WorkerProcess]]:
    with FakeServer() as server, worker(server, *options, **more) as pool:
        yield server.wait_child(), pool


def args(**given: object) -> str:
    return json.dumps({key: str(value) if isinstance(value, Path) else value for key, value in given.items()})


def hold(
    child: Peer, directory: Path, *behind: list[Any], name: str = "wait", **options: Any
) -> tuple[list[Any], Path]:
    """Have a handler run until its gate opens, with jobs *behind* it; the job and the gate."""
    number = uuid.uuid4()
    gate, started = directory / f"gate-{number}", directory / f"started-{number}"
    one = job(name, args(gate=gate, started=started), **options)
    child.assign([one, *behind])
    until(started.exists, "the handler")
    return one, gate


def check_endings(child: Peer, more: Mapping[str, tuple[str, object]]) -> None:
    expected = {**ENDINGS, **more}
    jobs = {name: job(name) for name in expected}
    child.assign(jobs.values())
    results = {one[0]: one[2:] for one in child.take_results(len(jobs))}
    for name, (outcome, detail) in expected.items():
        found = results[jobs[name][0]]
        assert found[0] == outcome, (name, found)
        if outcome == "error":
            assert found[1].startswith(detail), (name, found)
            assert "pulse/worker/" not in found[1], name
        else:
            assert found[1] == detail, (name, found)
