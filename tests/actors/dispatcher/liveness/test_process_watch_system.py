"""Proof of death: the dispatcher acts at once on a worker's end that the kernel reports, and on nothing else."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.systems.system_kit import Pool, Whole, measured, since
from tests.support.waiting import is_alive, until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

LEASE_S = 30.0  # no test here waits for one: what comes back soon was not given back by the watchdog
SETTINGS = {"PULSE_LEASE_S": str(LEASE_S)}
SOON_S = 3.0  # a tenth of the lease; on a quiet machine it is milliseconds


@pytest.fixture
def pools(whole: Whole) -> Iterator[list[Pool]]:
    started: list[Pool] = []
    yield started
    jobs = whole.jobs().client
    for status in ("PENDING", "RETRYING", "RUNNING"):
        for job in jobs.jobs(status=status).jobs:
            jobs.cancel(job.id)
    for pool in started:
        pool.bury()
    until(lambda: not any("default" in row["topics"] for row in whole.connected()), "the dispatcher has noticed")


def gated(whole: Whole) -> tuple[UUID, Path]:
    gate = whole.gate(f"{time.monotonic_ns()}")
    return whole.jobs().submit("hold", {"gate": str(gate)}), gate


def test_sigkill_gives_back_at_once(whole: Whole, pools: list[Pool]) -> None:
    """A started attempt of a killed worker ends within moments, costs crash budget, and runs elsewhere."""
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
    gate.touch()
    assert whole.jobs().wait(job).result == "through at attempt 2"
    stats = whole.jobs().client.stats()
    counters, recovery = stats.counters, stats.histograms["recovery_s"]
    assert (counters.worker_deaths, counters.reaped, counters.retried) == ({"signal": 1}, {"crashed": 1}, 1)
    assert counters.outcomes["crashed"] == 1
    assert recovery.counts[-1] == 1
    assert 0 < recovery.sum < since(killed_s)


def test_a_death_that_no_dispatcher_saw(whole: Whole, pools: list[Pool]) -> None:
    pools.append(whole.pool("--concurrency", "1"))
    job, _ = gated(whole)
    worker, dispatcher = whole.wait_entry(job).pid, whole.pids()["dispatcher"]
    os.kill(dispatcher, signal.SIGSTOP)
    pools[0].process.kill()
    until(lambda: not is_alive(worker), "the worker dies")
    os.kill(dispatcher, signal.SIGKILL)
    whole.wait_actor("dispatcher", not_pid=dispatcher)
    jobs = whole.jobs()
    until(lambda: [entry.outcome for entry in jobs.get(job).history] == ["crashed"], f"the crash of {job}", SOON_S)
    found = jobs.get(job)
    assert found.last_error == "worker process died: nobody saw how"
    assert (found.attempts, found.uncharged, found.crashes) == (1, 1, 1)
