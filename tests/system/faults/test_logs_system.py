"""No process waits for the log, or ends because of it: a full disk, a pipe that nobody reads, for every process."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest

from pulse.client.requests import NewJob
from tests.support.servers.bouncer import answers
from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import APP, END_S, ROOT, SHORT_LEASE, Pool, Whole, measured, place
from tests.support.waiting import is_alive, until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.patient, pytest.mark.rest]

LOUD: Final = ("shout", "shout-plain", "shout-apart")
LINES: Final = 300  # four of each, two of them long: more than fits into a pipe and the memory of a process
QUIET: Final = 100
LEASE: Final = {**SHORT_LEASE, "PULSE_LEASE_S": "6"}  # six heartbeats, on a machine that writes all this meanwhile
SILENCE_S: Final = 1.5 * float(LEASE["PULSE_LEASE_S"])
PIPE_BYTES: Final = 4096


class Unread:
    """A pipe that is full from the beginning, and that nobody reads until asked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._reads = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._writes = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        fcntl.fcntl(self._reads, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.write(self._writes, b"-" * (PIPE_BYTES - 1) + b"\n")
        self.text = b""

    def read(self, event: str) -> list[dict[str, object]]:
        def look() -> list[dict[str, object]]:
            with contextlib.suppress(BlockingIOError):
                while True:
                    self.text += os.read(self._reads, 1 << 20)
            return [json.loads(line) for line in self.text.splitlines() if event.encode() in line]

        return until(look, event, END_S)

    def close(self) -> None:
        os.close(self._reads)
        os.close(self._writes)


@pytest.fixture(params=["full", "unread"])
def bad_log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Unread | Path]:
    if request.param == "full":
        yield Path("/dev/full")
    else:
        with contextlib.closing(Unread(tmp_path / "pipe")) as pipe:
            yield pipe


@pytest.fixture
def where(newest_server: Postgres) -> Iterator[Whole]:
    """A place for a system with everything that logs, at the most verbose level; nothing runs in it yet."""
    with newest_server.database() as dsn, place(dsn, ("--app", APP), PULSE_LOG_LEVEL="debug", **LEASE) as whole:
        whole.env["PULSE_METRICS"] = str(whole.directory / "metrics.sock")
        yield whole


def path_of(log: Unread | Path) -> Path:
    return log if isinstance(log, Path) else log.path


def assert_works(whole: Whole) -> None:
    """Loud jobs and quiet ones, and one that outlasts its lease, complete at their first try."""
    jobs = whole.jobs()
    long = jobs.submit("nap", {"seconds": SILENCE_S})
    loud = [NewJob(name=name, args={"lines": LINES}) for name in LOUD]
    quiet = [NewJob(name=name) for name in ("mark", "mark-plain") for _ in range(QUIET // 2)]
    for job in (*jobs.client.submit_many(loud + quiet), long):
        jobs.wait(job)
    assert whole.rows("SELECT job_id, attempt, outcome, error FROM pulse.attempts WHERE outcome <> 'completed'") == []
    tries = "SELECT DISTINCT status::text, attempts - uncharged AS tries FROM pulse.jobs"  # a full worker is no try
    assert [tuple(row) for row in whole.rows(tries)] == [("COMPLETED", 1)]


def assert_all_told(log: Unread | Path) -> None:
    """When a pipe is read again, it says how many lines are missing; none is in pieces."""
    if isinstance(log, Unread):
        for line in log.read("log_lines_dropped"):
            assert (line["level"], line["stream"]) == ("warning", "stderr")
            assert isinstance(line["count"], int)
            measured("lines dropped", line["count"], "lines")
        for said in log.text.splitlines():
            assert set(said) <= {ord("x")} or set(said) <= {ord("y")} or set(said) <= {ord("-")} or json.loads(said)


def test_everything_goes_on(where: Whole, bad_log: Unread | Path) -> None:
    """Supervisor, actors, pool, isolated jobs and metrics start, work and stop as ever; no process restarts."""
    where.errors = path_of(bad_log)
    process = where.spawn()
    until(lambda: process.poll() is not None or where.connected(), "the pool connects", END_S)
    kept = [json.loads(line) for line in where.ask_supervisor("logs", lines=2000)["lines"]]
    assert "supervisor_ready" in {line["event"] for line in kept}
    pids = where.pids(), {row["pid"] for row in where.connected()}
    assert_works(where)
    assert scraped(where.env["PULSE_METRICS"]) == 200
    assert (where.pids(), {row["pid"] for row in where.connected()}) == pids
    assert_all_told(bad_log)
    assert where.stop() == 0


def scraped(path: str) -> int:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    with contextlib.closing(connection), connection.sock as sock:
        sock.settimeout(END_S)
        sock.connect(path)
        connection.request("GET", "/metrics" if "metrics" in path else "/")
        return connection.getresponse().status


@contextlib.contextmanager
def started(whole: Whole, log: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "pulse.cli.main", *words],
            env=whole.env, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, cwd=ROOT,
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
        process.wait(END_S)


def test_a_pool_alone_goes_on(where: Whole, bad_log: Unread | Path) -> None:
    """Only the workers' log is bad: they beat, work, and end at SIGTERM."""
    where._command = where._command[:-2]  # without an app
    where.start()
    with started(where, path_of(bad_log), "worker", APP) as process:
        pool = Pool(process, path_of(bad_log))
        until(lambda: process.poll() is not None or where.is_connected(pool), "the pool connects", END_S)
        workers = pool.workers()
        assert_works(where)
        assert pool.workers() == workers
        assert all(map(is_alive, workers))
        assert_all_told(bad_log)
        assert pool.stop() == 0


def test_the_dashboard_goes_on(where: Whole, bad_log: Unread | Path) -> None:
    """It cannot log its address or its errors; its pages work."""
    path = where.directory / "ui.sock"
    with started(where, path_of(bad_log), "ui", "--listen", f"unix:{path}") as process:
        until(lambda: process.poll() is not None or answers(path), "it listens", END_S)
        for _ in range(20):
            assert scraped(str(path)) in {200, 303, 502, 503}
        process.terminate()
        assert process.wait(END_S) == 0
