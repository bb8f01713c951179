"""Starting, idling, stopping and being killed as a whole: what it costs, what ends, what is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from uuid import UUID

import psutil
import pytest

from pulse.job import Status
from tests.support.confidential import confidential
from tests.support.servers.embedded_kit import needs_postgres
from tests.support.servers.postgres import Postgres
from tests.support.systems.system import short_directory
from tests.support.systems.system_kit import APP, Whole, clean_environment, cpu_s, measured, place, since
from tests.support.waiting import is_alive, until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]

READY_NEW_S = 8.0  # the promise, on a quiet machine
READY_AGAIN_S = 2.0
IDLE_S = 10.0
BARE = """
import anyio
async def main() -> None:
    print("ready", flush=True)
    while True:
        await anyio.sleep(0.0125)
anyio.run(main, backend_options={"use_uvloop": True})
"""  # 2 % of a core where drains go at 0.4 of their speed on the machine of the promise, so 1 % there
ACTORS_RSS_BYTES = 200 * 1024 * 1024
DRAIN_S = 2.0
SECRET = confidential("geh31m-at-start", "password of a DSN")


@pytest.fixture(scope="module")
def embedded() -> Iterator[Whole]:
    cold = {"PYTHON_COLD_START": "1"}  # no interpreter knows it, and no warm process has it: a start is measured
    with place(None, PULSE_LOG_LEVEL="info", PULSE_LEASE_S="15", **cold) as whole:
        yield whole


def busy() -> float:
    """How many times as long a step may take here, where others may use the processors."""
    return 2.0 + os.getloadavg()[0] / (os.cpu_count() or 1)


def start(whole: Whole, what: str) -> float:
    started_s = time.monotonic()
    whole.start()
    ready_s = measured(f"start to ready, {what}", since(started_s))
    measured(f"the same by its own log, {what}", int(whole.log("supervisor_ready")[-1]["start_ms"]) / 1000)
    return ready_s


@needs_postgres
class TestWithItsOwnPostgres:
    """Everything on one machine; the tests go on with what the one before has left."""

    def test_a_new_directory(self, embedded: Whole) -> None:
        assert start(embedded, "new directory") <= READY_NEW_S * busy()
        assert embedded.stop() == 0

    def test_an_existing_directory(self, embedded: Whole) -> None:
        assert start(embedded, "existing directory") <= READY_AGAIN_S * busy()

    @pytest.mark.usefixtures("unreachable")
    def test_idle(self, embedded: Whole) -> None:
        """
        With nothing to do, supervisor and actors use 1 % of a core, and the actors hold 200 MB.

        That is: no more than a program that does nothing but wake up 80 times a second, however fast the machine is.
        """
        if embedded.process is None:  # the tests before it belong to another run
            embedded.start()
        assert embedded.process is not None
        actors = list(embedded.pids().values())
        rss_bytes = sum(psutil.Process(pid).memory_info().rss for pid in actors)
        measured("memory of the actors", rss_bytes / 2**20, "MB")
        assert rss_bytes <= ACTORS_RSS_BYTES
        pids = [embedded.process.pid, *actors]
        with subprocess.Popen([sys.executable, "-c", BARE], stdout=subprocess.PIPE) as bare:
            try:
                assert bare.stdout is not None
                assert bare.stdout.readline() == b"ready\n"
                assert any(idle_times(pids, bare.pid) <= 1.0 for _ in range(3))
            finally:
                bare.kill()

    def test_sigkill_of_the_supervisor(self, embedded: Whole) -> None:
        """Actors and PostgreSQL end within 2 s; after the next start, jobs that ran on elsewhere end on attempt 1."""
        jobs, gate = embedded.jobs(), embedded.gate("kill")
        pool = embedded.pool()
        held = [jobs.submit(name, {"gate": str(gate)}) for name in ("hold", "hold-plain")]
        workers = {embedded.wait_entry(job).pid for job in held}
        assert embedded.process is not None
        below = [child.pid for child in psutil.Process(embedded.process.pid).children(recursive=True)]
        assert len(below) > len(embedded.pids())
        killed_s = time.monotonic()
        embedded.process.kill()
        until(lambda: not any(map(is_alive, below)), "the end of actors and PostgreSQL", 2.0 * busy())
        assert measured("SIGKILL of the supervisor to the end of its last process", since(killed_s)) <= 2.0 * busy()
        embedded.kill()
        gate.touch()
        assert start(embedded, "after SIGKILL") <= READY_AGAIN_S * busy()
        for job in held:
            ended = jobs.wait(job)
            assert (ended.attempts, ended.uncharged, ended.result) == (1, 0, "through at attempt 1")
        assert set(pool.workers()) == workers
        assert pool.stop() == 0
        below = [child.pid for child in psutil.Process(embedded.process.pid).children(recursive=True)]
        stopped_s = time.monotonic()
        assert embedded.stop() == 0
        measured("SIGTERM to exit with its own PostgreSQL", since(stopped_s))
        assert not any(map(is_alive, below))


def idle_times(pids: list[int], bare: int) -> float:
    """How many times as much of the processors they take as a program that does nothing but wake up."""
    before_s, bare_before_s, began_s = cpu_s(pids), cpu_s([bare]), time.monotonic()
    until(lambda: since(began_s) >= IDLE_S, "the time", IDLE_S + 5)
    used_s, bare_used_s = cpu_s(pids) - before_s, cpu_s([bare]) - bare_before_s
    measured("idle, share of a core", used_s / since(began_s) * 100, "%")
    return measured("idle, beside a program that only wakes up", used_s / bare_used_s, "times")


@pytest.fixture(scope="module")
def stopping(server: Postgres) -> Iterator[Whole]:
    with server.database() as dsn, place(dsn, ("--app", APP), PULSE_DRAIN_S=str(DRAIN_S), PULSE_LEASE_S="15") as whole:
        yield whole


@pytest.fixture
def whole(stopping: Whole) -> Whole:
    if stopping.process is None:
        stopping.start()
    until(lambda: any("default" in row["topics"] for row in stopping.connected()), "its pool connects")
    return stopping


def own_processes(whole: Whole) -> set[int]:
    assert whole.process is not None
    return {child.pid for child in psutil.Process(whole.process.pid).children(recursive=True)}


def running_pids(whole: Whole) -> set[int]:
    rows = whole.rows("SELECT locked_by FROM pulse.jobs WHERE status = 'RUNNING'")
    return {int(row["locked_by"].split("/")[3].partition(".")[0]) for row in rows}


class TestStop:
    def test_it_drains_its_own_and_leaves_the_others(self, whole: Whole) -> None:
        """Jobs of its own pool end; foreign workers stay, meet the next supervisor, and lose no attempt."""
        jobs, gate = whole.jobs(), whole.gate("foreign")
        own = jobs.submit("nap", {"seconds": DRAIN_S * 0.8})
        assert whole.wait_entry(own).pid in own_processes(whole)
        foreign = whole.pool("--topic", "foreign")
        held = [jobs.submit(name, {"gate": str(gate)}, topic="foreign") for name in ("hold", "hold-plain")]
        workers = {whole.wait_entry(job).pid for job in held}
        processes = own_processes(whole)
        stopped_s = time.monotonic()
        assert whole.stop() == 0
        measured("SIGTERM to exit, draining a nap", since(stopped_s))
        assert not any(map(is_alive, processes))
        assert statuses(whole, own) == [("COMPLETED", 1, 0)]
        assert running_pids(whole) == workers == set(foreign.workers())
        whole.start()
        until(lambda: workers <= {row["pid"] for row in whole.connected()}, "the foreign workers are back")
        gate.touch()
        for job in held:
            assert jobs.wait(job).history == ()
        assert statuses(whole, *held) == [("COMPLETED", 1, 0)] * 2
        assert set(foreign.workers()) == workers

    def test_what_takes_longer_is_given_back(self, whole: Whole) -> None:
        """After PULSE_DRAIN_S handlers are cancelled, then killed; their jobs wait uncharged for the next start."""
        jobs, gate = whole.jobs(), whole.gate("longer")
        held = [jobs.submit(name, {"gate": str(gate)}) for name in ("hold", "deaf", "hold-plain")]
        for job in held:
            whole.wait_entry(job)
        processes = own_processes(whole)
        stopped_s = time.monotonic()
        assert whole.stop() == 0
        assert DRAIN_S <= measured("SIGTERM to exit, giving back after 2 s", since(stopped_s)) <= DRAIN_S + 5
        assert running_pids(whole) & processes == set()
        # A plain handler that ends when it is asked to has a result, and that counts.
        assert statuses(whole, *held) == [("PENDING", 1, 1), ("PENDING", 1, 1), ("COMPLETED", 1, 0)]
        gate.touch()
        whole.start()
        for job in held[:2]:
            ended = jobs.wait(job)
            assert (ended.attempts, ended.uncharged) == (2, 1)
            assert [entry.outcome for entry in ended.history] == ["released"]


@pytest.mark.rest
class TestNoDatabase:
    def test_it_gives_up_in_one_line(self, unreachable: subprocess.Popen[str]) -> None:
        """It waits a while for a database that may be starting, then names the one that does not answer, and exits."""
        _, said = unreachable.communicate(timeout=60)
        assert unreachable.returncode == 1
        assert SECRET not in said
        (line,) = [line for line in said.splitlines() if not line.startswith("{")]
        assert line.startswith("pulse-supervisor: the database postgresql://user:***@127.0.0.1:1/db does not answer: ")
        assert "Connection refused" in line


@pytest.fixture(scope="module")
def unreachable() -> Iterator[subprocess.Popen[str]]:
    """Such a supervisor, started early: it takes 20 s to give up."""
    with short_directory() as directory:
        env = clean_environment(
            PULSE_RUNTIME_DIR=str(directory / "run"),
            PULSE_DSN=f"postgresql://user:{SECRET}@127.0.0.1:1/db",
            PULSE_LOG_FORMAT="json",
        )
        command = [sys.executable, "-m", "pulse_supervisor.main"]
        with subprocess.Popen(
            command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            yield process
            process.kill()


def statuses(whole: Whole, *jobs: UUID) -> list[tuple[Status, int, int]]:
    """Status, attempts and uncharged of jobs, by the database."""
    found = {
        row["id"]: (Status(row["status"]), row["attempts"], row["uncharged"])
        for row in whole.rows("SELECT id, status::text, attempts, uncharged FROM pulse.jobs WHERE id = ANY ($1)", jobs)
    }
    return [found[job] for job in jobs]
