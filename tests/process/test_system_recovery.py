"""What happens to running jobs when something dies: a worker, an actor, the supervisor."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Self
from uuid import UUID

import pytest

import pulse
from pulse.job import Job, Status
from tests.process.system_kit import ACTORS, SHORT_LEASE, Pool, Whole, is_alive, measured, place, since
from tests.support.postgres import Postgres
from tests.support.system import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

SETTINGS = {**SHORT_LEASE, "PULSE_PROOF_OF_DEATH": "0"}  # a system that lives by leases
LEASE_S = float(SHORT_LEASE["PULSE_LEASE_S"])
SWEEP_S = float(SHORT_LEASE["PULSE_SWEEP_S"])
BACK_OFF_S = 1.0  # after the first charged attempt
# Of a handler that lets no other thread run; PULSE_TEST_LONG=1 makes it what was promised.
HELD_S = 20.0 if "PULSE_TEST_LONG" in os.environ else 8.0
BUSY_S = 1.0  # what a step may take longer because others use the processors


@pytest.fixture
def pools(whole: Whole) -> Iterator[list[Pool]]:
    """Pools that a test starts; none of them is there for the next test."""
    started: list[Pool] = []
    yield started
    for pool in started:
        pool.bury()
    until(lambda: not any("default" in row["topics"] for row in whole.connected()), "the dispatcher has noticed")


def holding(whole: Whole, name: str = "hold") -> tuple[UUID, str]:
    """A job that runs until its gate is open, and the gate."""
    jobs = whole.jobs()
    gate = str(whole.gate(f"{time.monotonic_ns()}"))
    return jobs.submit(name, {"gate": gate}), gate


def open_gate(gate: str, attempt: int | None = None) -> None:
    """Let a job come to its end."""
    with open(gate if attempt is None else f"{gate}.{attempt}", "w", encoding="ascii"):  # noqa: PTH123 - a name, not a path
        pass


def assert_expired(whole: Whole, job: Job) -> None:
    """The first attempt was ended by the watchdog, and the second one waited for the back-off."""
    assert job.last_error == "worker lease expired"
    (entry,) = job.history
    assert (entry.attempt, entry.outcome, entry.error) == (1, "lease_expired", "worker lease expired")
    (waited,) = whole.rows(
        "SELECT job.started_at - attempt.ended_at AS waited FROM pulse.jobs job "
        "JOIN pulse.attempts attempt ON attempt.job_id = job.id WHERE job.id = $1",
        job.id,
    )
    assert timedelta(seconds=BACK_OFF_S) <= waited["waited"] <= timedelta(seconds=BACK_OFF_S + BUSY_S)


class TestWorkerDies:
    """SIGKILL and SIGSTOP of workers, where deaths are not proven: recovery is by the lease alone."""

    def test_sigkill_of_a_worker_and_of_a_whole_pool(self, whole: Whole, pools: list[Pool]) -> None:
        """A killed worker's job is given back when its lease has lapsed, and completed by another one at attempt 2."""
        jobs = whole.jobs()
        pools += [whole.pool("--concurrency", "1"), whole.pool("--concurrency", "1")]
        held = [holding(whole), holding(whole)]
        killed = {job: whole.wait_entry(job).pid for job, _ in held}
        pools.append(whole.pool())
        worker = next(pid for pid in killed.values() if pid in pools[0].workers())
        leases = {job: jobs.get(job).lease_until for job in killed}
        killed_s = time.monotonic()
        os.kill(worker, signal.SIGKILL)
        pools[1].process.kill()
        until(lambda: all(jobs.get(job).history for job in killed), "both lapse", LEASE_S + SWEEP_S + BUSY_S)
        measured("SIGKILL of workers to RETRYING, lease 3 s", since(killed_s))
        for job, gate in held:
            assert whole.wait_entry(job, attempt=2).pid not in killed.values()
            open_gate(gate)
            ended = jobs.wait(job)
            assert (ended.attempts, ended.result) == (2, "through at attempt 2")
            assert_expired(whole, ended)
            lease, reaped = leases[job], ended.history[0].ended_at
            assert lease is not None
            assert reaped is not None
            assert timedelta(0) <= reaped - lease <= timedelta(seconds=1 + SWEEP_S + BUSY_S)  # 1: one more heartbeat
        measured("SIGKILL of workers to completed by others", since(killed_s))

    def test_a_zombie_changes_nothing(self, whole: Whole, pools: list[Pool]) -> None:
        """A worker that was stopped beyond its lease comes back: its results are stale, its handlers asked to end."""
        jobs = whole.jobs()
        pools.append(whole.pool("--concurrency", "30"))  # it has more room than the other one, and must get no more
        (reports, to_cancel, to_ask) = held = [holding(whole), holding(whole), holding(whole, "hold-plain")]
        zombie = {whole.wait_entry(job).pid for job, _ in held}.pop()
        os.kill(zombie, signal.SIGSTOP)
        stopped_s = time.monotonic()
        pools.append(whole.pool())
        for job, _ in held:
            assert whole.wait_entry(job, attempt=2).pid != zombie
        measured("SIGSTOP of a worker to its jobs' second attempts", since(stopped_s))
        # One job is completed meanwhile, the others still run when the zombie comes back.
        open_gate(reports[1], 1)
        open_gate(to_cancel[1], 2)
        jobs.wait(to_cancel[0])
        running = [job for job, _ in (reports, to_ask)]
        before = {job: fence_of(whole, job) for job, _ in held}
        completed = whole.row_text(to_cancel[0])
        os.kill(zombie, signal.SIGCONT)
        assert whole.wait_entry(to_cancel[0], "broken", 1).more == {
            "error": "CancelledError",
            "cancelled": True,
            "lease_lost": True,
        }
        assert whole.wait_entry(to_ask[0], "asked", 1).more == {"lease_lost": True}
        whole.wait_entry(reports[0], "end", 1)
        stale = until(lambda: stale_results(whole) >= len(held), "the zombie's results are stale")
        assert stale
        assert {job: fence_of(whole, job) for job, _ in held} == before
        assert whole.row_text(to_cancel[0]) == completed
        assert all(jobs.get(job).status is Status.RUNNING for job in running)
        for job, gate in (reports, to_ask):
            open_gate(gate)
            ended = jobs.wait(job)
            assert (ended.attempts, ended.result) == (2, "through at attempt 2")
            assert_expired(whole, ended)


def fence_of(whole: Whole, job: UUID) -> tuple[object, ...]:
    """What a report could change of a running job; its lease is extended by its present worker."""
    (row,) = whole.rows(
        "SELECT status, attempts, uncharged, locked_by, started_at, completed_at, result, last_error, next_run_at, "
        "(SELECT count(*) FROM pulse.attempts WHERE job_id = id) FROM pulse.jobs WHERE id = $1",
        job,
    )
    return tuple(row)


def stale_results(whole: Whole) -> int:
    """How many results the dispatcher has called stale."""
    return sum(int(entry["count"]) for entry in whole.log("results_stale"))


class TestInterpreterHeld:
    """A handler that lets no other thread run is at work, not dead; an idle pool would take its job at once."""

    def test_longer_than_the_lease(self, whole: Whole, gripping: UUID) -> None:
        """It completes on attempt 1, though its process cannot beat for several leases."""
        self.assert_held(whole, gripping)

    def test_while_the_dispatcher_dies(self, whole: Whole, pools: list[Pool]) -> None:
        """The same when the dispatcher is killed meanwhile, and the process cannot say hello to the next one."""
        pools.append(whole.pool())
        job = whole.jobs().submit("grip", {"seconds": HELD_S})
        whole.wait_entry(job)
        pools.append(whole.pool())
        whole.kill_actor("dispatcher")
        self.assert_held(whole, job)

    def assert_held(self, whole: Whole, job: UUID) -> None:
        """It held the interpreter for all that time, and nobody else ran it."""
        ended = whole.jobs().wait(job, within_s=HELD_S + 10)
        assert (ended.attempts, ended.result, ended.history) == (1, "let go", ())
        held_s = whole.wait_entry(job, "end").at_s - whole.wait_entry(job).at_s
        assert measured("interpreter held, lease 3 s", held_s) >= HELD_S


@pytest.fixture(scope="module", autouse=True)
def gripping(whole: Whole) -> UUID:
    """A job that holds the interpreter, in pools of its own; it is started first, and runs beside the other tests."""
    whole.pool("--topic", "grip")
    job = whole.jobs().submit("grip", {"seconds": HELD_S}, topic="grip")
    whole.wait_entry(job)
    whole.pool("--topic", "grip")
    return job


class Submitter:
    """A client that submits without a pause, in a thread of its own."""

    def __init__(self, whole: Whole) -> None:
        self._client = pulse.Client(whole.path)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: list[UUID] = []
        self.failed: list[BaseException] = []

    def __enter__(self) -> Self:
        self._thread.start()
        until(lambda: self.acknowledged, "the client is connected")  # a first connection is tried only once
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        try:
            while not self._over.wait(0.005):
                self.acknowledged.append(self._client.submit("mark", {"number": len(self.acknowledged)}))
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.failed.append(error)


class TestActorDies:
    """SIGKILL of each actor in turn."""

    def test_running_jobs_do_not_notice(self, whole: Whole, pools: list[Pool]) -> None:
        """Each actor is back within 1.5 s, the workers too; what runs ends on attempt 1, no submit fails or is lost."""
        jobs = whole.jobs()
        pools += [whole.pool("--concurrency", "4"), whole.pool("--concurrency", "4")]
        held = [holding(whole) for _ in range(4)]
        workers = {whole.wait_entry(job).pid for job, _ in held}
        with Submitter(whole) as submitter:
            for name in ACTORS:
                count = len(submitter.acknowledged)
                pid, killed_s, killed_at = whole.pids()[name], time.monotonic(), datetime.now(UTC)
                os.kill(pid, signal.SIGKILL)
                until(lambda: workers <= {row["pid"] for row in whole.connected()}, "the workers are back")
                measured(f"SIGKILL of the {name} to the workers connected", since(killed_s))
                (running,) = whole.log("child_running", name=name, pid=whole.wait_actor(name, not_pid=pid))
                away_s = (datetime.fromisoformat(running["timestamp"]) - killed_at).total_seconds()
                assert measured(f"SIGKILL of the {name} to the next one running", away_s) < 1.5 + BUSY_S
                until(lambda count=count: submitter.failed or len(submitter.acknowledged) > count + 1, "submits go on")  # type: ignore[misc]
                assert submitter.failed == []
        assert submitter.failed == []
        for job, gate in held:
            open_gate(gate)
            ended = jobs.wait(job)
            assert (ended.attempts, ended.uncharged, ended.history) == (1, 0, ())
        for marked in submitter.acknowledged:
            ended = jobs.wait(marked)
            # A claim whose answer died with the dispatcher is given back, which counts against nobody.
            assert ended.attempts - ended.uncharged == 1
            assert len(whole.entries(marked, "start")) == 1


class TestSupervisorDies:
    """SIGKILL of the supervisor, with workers of its own and others."""

    def test_nobody_is_orphaned_and_the_next_one_goes_on(self, server: Postgres) -> None:
        """Its processes end within 2 s; a new one in the same places takes over, and running jobs end on attempt 1."""
        with server.database() as dsn, place(dsn, PULSE_LEASE_S="15") as whole:
            whole.start()
            jobs = whole.jobs()
            pool = whole.pool()
            held = [holding(whole), holding(whole, "hold-plain")]
            workers = {whole.wait_entry(job).pid for job, _ in held}
            actors = list(whole.pids().values())
            assert len(actors) == len(ACTORS)
            assert whole.process is not None
            killed_s = time.monotonic()
            whole.process.kill()
            until(lambda: not any(map(is_alive, actors)), "the actors end", 2.0)
            measured("SIGKILL of the supervisor to the end of the last actor", since(killed_s))
            whole.kill()
            whole.start()
            measured("SIGKILL of the supervisor to the next one ready", since(killed_s))
            until(lambda: whole.is_connected(pool), "the workers are back")
            measured("SIGKILL of the supervisor to the workers connected", since(killed_s))
            assert set(pool.workers()) == workers
            for job, gate in held:
                open_gate(gate)
                ended = jobs.wait(job)
                assert (ended.attempts, ended.uncharged, ended.result) == (1, 0, "through at attempt 1")
