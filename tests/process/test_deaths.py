"""Proof of death: what the kernel says of a worker's end is acted on at once, and of nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from uuid import UUID

import pytest

from pulse.job import Job
from tests.process.system_kit import ROOT, Pool, Whole, is_alive, measured, since
from tests.support.system import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

LEASE_S = 30.0  # no test here waits for one: what comes back soon was not given back by the watchdog
SETTINGS = {"PULSE_LEASE_S": str(LEASE_S)}
SOON_S = 3.0  # a tenth of the lease; on a quiet machine it is milliseconds


@pytest.fixture
def pools(whole: Whole) -> Iterator[list[Pool]]:
    """Pools that a test starts; none of them is there for the next test."""
    started: list[Pool] = []
    yield started
    jobs = whole.jobs().client
    for status in ("PENDING", "RETRYING", "RUNNING"):
        for job in jobs.jobs(status=status).jobs:
            jobs.cancel(job.id)
    for pool in started:
        pool.bury()
    until(lambda: not any("default" in row["topics"] for row in whole.connected()), "the dispatcher has noticed")


def gated(whole: Whole) -> tuple[UUID, str]:
    """A job that runs until its gate is open, and the gate."""
    gate = str(whole.gate(f"{time.monotonic_ns()}"))
    return whole.jobs().submit("hold", {"gate": gate}), gate


def wait_history(whole: Whole, job: UUID, outcome: str) -> Job:
    """The job as soon as its history ends with *outcome*."""
    jobs = whole.jobs()
    until(lambda: [entry.outcome for entry in jobs.get(job).history][-1:] == [outcome], f"{outcome} of {job}", SOON_S)
    return jobs.get(job)


def test_sigkill_gives_back_at_once(whole: Whole, pools: list[Pool]) -> None:
    """A started attempt of a killed worker is over within moments, charged to the crash budget, and runs elsewhere."""
    pools.append(whole.pool("--concurrency", "1"))
    job, gate = gated(whole)
    killed = whole.wait_entry(job).pid
    pools.append(whole.pool("--concurrency", "1"))
    killed_s = time.monotonic()
    os.kill(killed, signal.SIGKILL)
    again = whole.wait_entry(job, attempt=2, within_s=SOON_S)
    measured("SIGKILL of a worker to its job's second start", since(killed_s))
    assert again.pid != killed
    found = whole.jobs().get(job)
    assert (found.attempts, found.uncharged, found.crashes) == (2, 1, 1)
    assert found.last_error == "worker process died: SIGKILL"
    (entry,) = found.history
    assert (entry.outcome, entry.error, entry.exit_code) == ("crashed", "worker process died: SIGKILL", -signal.SIGKILL)
    with open(gate, "w", encoding="ascii"):  # noqa: PTH123
        pass
    assert whole.jobs().wait(job).result == "through at attempt 2"


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (0, "exit code 7"),
        (signal.SIGSEGV, "SIGSEGV"),
        pytest.param(signal.SIGABRT, "SIGABRT", marks=pytest.mark.rest),
    ],
)
def test_a_poison_job_ends_in_the_dead_letters(whole: Whole, pools: list[Pool], how: int, reason: str) -> None:
    """A job that kills its worker each time is dead after three crashes; the pool lives on, and serves the others."""
    pools.append(whole.pool("--concurrency", "1"))
    jobs = whole.jobs()
    poison = jobs.submit("die", {"how": how})
    dead = jobs.wait(poison, "DEAD_LETTERED")
    assert (dead.attempts, dead.uncharged, dead.crashes) == (3, 3, 3)
    assert dead.last_error == f"worker process died: {reason}"
    assert [entry.outcome for entry in dead.history] == ["crashed"] * 3
    innocent = jobs.wait(jobs.submit("mark", {"a": 1}))
    assert (innocent.attempts, innocent.uncharged) == (1, 0)
    assert pools[0].process.poll() is None


# A worker that takes two jobs, names the first as started, says so, and waits to be killed.
HALF_STARTED = """
import sys, pathlib
from tests.support.system import Worker
with Worker(pathlib.Path(sys.argv[1]), "half", names=["never"], topics=["half"], capacity=2) as peer:
    first, second = peer.jobs(2)
    peer.send("started", jobs=[first[:2]])
    peer.call("ping")
    print(first[0].hex(), second[0].hex(), flush=True)
    sys.stdin.read()
"""


def test_what_had_not_started_costs_nothing(whole: Whole) -> None:
    """Of what a dead worker held, only what it had named as started is charged to anybody."""
    jobs = whole.jobs()
    ids = {jobs.submit("never", {}, topic="half").bytes for _ in range(2)}
    with subprocess.Popen(
        [sys.executable, "-c", HALF_STARTED, str(whole.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as peer:
        assert peer.stdout is not None
        started, queued = map(bytes.fromhex, peer.stdout.readline().decode().split())
        peer.kill()
    assert {started, queued} == ids
    crashed = wait_history(whole, UUID(bytes=started), "crashed")
    assert (crashed.status, crashed.attempts, crashed.uncharged, crashed.crashes) == ("RETRYING", 1, 1, 1)
    given_back = wait_history(whole, UUID(bytes=queued), "released")
    assert (given_back.status, given_back.attempts, given_back.uncharged, given_back.crashes) == ("PENDING", 1, 1, 0)


def test_a_child_that_holds_the_socket(whole: Whole, pools: list[Pool]) -> None:
    """The end of a worker is seen although its child keeps the connection open; the child dies with it."""
    pools.append(whole.pool("--concurrency", "1"))
    gate = str(whole.gate(f"{time.monotonic_ns()}"))
    job = whole.jobs().submit("leave-child", {"gate": gate})
    child = int(str(whole.wait_entry(job, "child").more["child"]))
    os.kill(whole.wait_entry(job).pid, signal.SIGKILL)
    found = wait_history(whole, job, "crashed")
    assert found.last_error == "worker process died: SIGKILL"
    until(lambda: not is_alive(child), "the child dies", SOON_S)


def test_a_child_that_holds_the_socket_and_lives_on(whole: Whole, pools: list[Pool]) -> None:
    """Nobody waits for the end of the connection, which such a child keeps open: what was written is in the socket."""
    pools.append(whole.pool("--concurrency", "1"))
    job = whole.jobs().submit("leave-holder")
    child = int(str(whole.wait_entry(job, "child").more["child"]))
    try:
        killed_s = time.monotonic()
        os.kill(whole.wait_entry(job).pid, signal.SIGKILL)
        found = wait_history(whole, job, "crashed")
        measured("SIGKILL of a worker whose child holds its socket to the end of the attempt", since(killed_s))
        assert found.last_error == "worker process died: SIGKILL"
        assert is_alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_stopped_worker_is_not_dead(whole: Whole, pools: list[Pool]) -> None:
    """SIGSTOP is silence, not death: the attempt goes on when the process does."""
    pools.append(whole.pool("--concurrency", "1"))
    job, gate = gated(whole)
    stopped = whole.wait_entry(job).pid
    os.kill(stopped, signal.SIGSTOP)
    with open(gate, "w", encoding="ascii"):  # noqa: PTH123
        pass
    jobs = whole.jobs()
    other = jobs.submit("mark", {})
    pools.append(whole.pool())
    jobs.wait(other)  # the dispatcher has had its time
    assert jobs.get(job).status == "RUNNING"
    os.kill(stopped, signal.SIGCONT)
    ended = jobs.wait(job)
    assert (ended.attempts, ended.history) == (1, ())


def test_a_death_that_no_dispatcher_saw(whole: Whole, pools: list[Pool]) -> None:
    """A worker that dies while the dispatcher is dead, too: its job is given back before the first claim."""
    pools.append(whole.pool("--concurrency", "1"))
    job, _ = gated(whole)
    worker, dispatcher = whole.wait_entry(job).pid, whole.pids()["dispatcher"]
    os.kill(dispatcher, signal.SIGSTOP)
    pools[0].process.kill()
    until(lambda: not is_alive(worker), "the worker dies")
    os.kill(dispatcher, signal.SIGKILL)
    whole.wait_actor("dispatcher", not_pid=dispatcher)
    found = wait_history(whole, job, "crashed")
    assert found.last_error == "worker process died: nobody saw how"
    assert (found.attempts, found.uncharged, found.crashes) == (1, 1, 1)


def test_a_claim_that_was_committed_late(whole: Whole) -> None:
    """A row that a dead dispatcher's claim made RUNNING after the hello is given back at a heartbeat, uncharged."""
    jobs = whole.jobs()
    with whole.worker("late", names=["never"], topics=["late"], capacity=1) as worker:
        job = jobs.submit("never", {}, topic="late", delay_s=600)
        (identity,) = [row["identity"] for row in whole.connected() if row["name"] == "late"]
        whole.rows(
            "UPDATE pulse.jobs SET status = 'RUNNING', attempts = 1, locked_by = $2, started_at = clock_timestamp(), "
            "lease_until = clock_timestamp() + interval '30 s' WHERE id = $1",
            job,
            identity,
        )
        worker.beat()
        ((claimed, attempt, *_),) = worker.jobs(1)
        assert (claimed, attempt) == (job.bytes, 2)
        found = wait_history(whole, job, "released")
        assert (found.uncharged, found.crashes) == (1, 0)


def test_what_outlasts_a_drain_is_charged_to_nobody(whole: Whole, pools: list[Pool]) -> None:
    """A handler that does not obey is killed with its process after the drain; only then its job is given back."""
    pools.append(whole.pool("--concurrency", "1", env={"PULSE_DRAIN_S": "0.2"}))
    job = whole.jobs().submit("deaf", {"gate": str(whole.gate(f"{time.monotonic_ns()}"))})
    worker = whole.wait_entry(job).pid
    pools[0].process.send_signal(signal.SIGTERM)
    until(lambda: whole.jobs().get(job).status == "PENDING", "the job waits again", 10.0)
    assert not is_alive(worker)
    found = whole.jobs().get(job)
    assert (found.attempts, found.uncharged, found.crashes) == (1, 1, 0)
    assert [entry.outcome for entry in found.history] == ["released"]
