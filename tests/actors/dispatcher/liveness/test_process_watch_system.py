"""Proof of death: what the kernel says of a worker's end is acted on at once, and of nothing else."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from uuid import UUID

import pytest

from pulse.job import Job
from tests.support.systems.system_kit import Pool, Whole, measured, since
from tests.support.waiting import is_alive, until

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


def test_a_poison_job_ends_in_the_dead_letters(whole: Whole, pools: list[Pool]) -> None:
    """A job that kills its worker each time is dead after three crashes; the pool lives on, and serves the others."""
    pools.append(whole.pool("--concurrency", "1"))
    jobs = whole.jobs()
    poison = jobs.submit("die", {"how": 0})
    dead = jobs.wait(poison, "DEAD_LETTERED")
    assert (dead.attempts, dead.uncharged, dead.crashes) == (3, 3, 3)
    assert dead.last_error == "worker process died: exit code 7"
    assert [entry.outcome for entry in dead.history] == ["crashed"] * 3
    innocent = jobs.wait(jobs.submit("mark", {"a": 1}))
    assert (innocent.attempts, innocent.uncharged) == (1, 0)
    assert pools[0].process.poll() is None


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
