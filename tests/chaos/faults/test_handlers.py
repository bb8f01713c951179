"""Handlers that misbehave and clients that do not read, under load: nobody else pays for them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.faults.handler_faults import FORKS, ForkAndDie, GripInterpreter, Poison, Wicked
from tests.chaos.faults.peer_faults import ExhaustDescriptors, Malice, StopClient
from tests.chaos.faults.trial import Trial, standing
from tests.chaos.load.load import DEATHS
from tests.chaos.site import LEASE_S, site
from tests.support.systems.system_kit import measured, since
from tests.support.waiting import is_alive, until

pytestmark = [pytest.mark.chaos, pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]

POOL = ("--processes", "2", "--concurrency", "6")
REASONS = {how: "exit code 7" if how == "exit" else how for how in DEATHS}
BUSY_S = 3.0  # for what takes milliseconds on a quiet machine
GREEDY_BYTES = 128 * 1024 * 1024


@pytest.fixture(scope="module")
def trial() -> Iterator[Trial]:
    with site(pool=POOL) as made:
        made.start()
        made.pool("--processes", "1", "--concurrency", "6")
        with standing(made) as trial:
            yield trial


def test_row_28_no_descriptor_is_left(trial: Trial) -> None:
    """Connected peers go on; new ones wait until there is room; the dispatcher lives on."""
    with trial.under_load() as site:
        dispatcher = site.whole.pids()["dispatcher"]
        with trial.suffering(ExhaustDescriptors):
            until(lambda: site.whole.log("accept_failed"), "it has noticed", BUSY_S)
            acked = trial.load.acked
            until(lambda: trial.load.acked > acked + 10, "those who are connected go on", BUSY_S * 2)
        site.probe()
        assert site.whole.pids()["dispatcher"] == dispatcher


def test_row_30_a_client_that_does_not_read(trial: Trial) -> None:
    """Its answers pile up within bounds; the others' requests are answered as if it were not there."""
    with trial.under_load() as site:
        dispatcher = site.whole.pids()["dispatcher"]
        before = resident_bytes(dispatcher)
        with trial.suffering(StopClient):
            assert measured("slowest of 20 jobs beside it", max(site.probe() for _ in range(20))) < BUSY_S
            assert resident_bytes(dispatcher) - before < GREEDY_BYTES
            assert site.whole.pids()["dispatcher"] == dispatcher


def test_row_40_a_handler_that_holds_the_interpreter(trial: Trial) -> None:
    """It may run on, though its process cannot beat; others go on."""
    with trial.under_load() as site, trial.suffering(GripInterpreter) as fault:
        site.wait_started(fault.job)
        started_s = time.monotonic()
        assert max(site.probe() for _ in range(5)) < BUSY_S + LEASE_S
        found = site.wait(fault.job, "COMPLETED")
        assert measured("interpreter held", since(started_s)) > LEASE_S / 2
        assert (found.attempts, found.history) == (1, ())


def test_row_41_handlers_that_fork(trial: Trial) -> None:
    """Children that hold the connection hide no death; they die with it, in any group or session."""
    with trial.under_load() as site:
        with trial.suffering(ForkAndDie) as fault:
            for job in fault.jobs:
                site.wait_started(job, 2)
            first = [line for line in site.lines("child") if line.job in fault.jobs and line.attempt == 1]
            children = {line.facts["how"]: line.pid for line in first}
            assert set(children) == set(FORKS)
            until(lambda: not any(map(is_alive, children.values())), f"they die: {children}", BUSY_S)
        for job in fault.jobs:
            found = site.wait(job, "COMPLETED")
            assert found.attempts > 1
            assert found.attempts - found.uncharged == 1


def test_row_42_handlers_that_end_their_process(trial: Trial) -> None:
    """Each has its reason, and runs again; no other job is charged."""
    with trial.under_load() as site:
        for how in DEATHS:  # one after the other: two in one process would die of the first
            found = site.wait(site.submit("deadly", {"how": how, "times": 1}), "COMPLETED")
            assert found.attempts - found.uncharged == 1
            assert f"worker process died: {REASONS[how]}" in {entry.error for entry in found.history}


def test_row_43_a_job_that_kills_its_worker_each_time(trial: Trial) -> None:
    """After three crashes it is a dead letter with its reason; other jobs go on uncharged."""
    with trial.under_load() as site, trial.suffering(Poison) as fault:
        dead = site.wait(fault.job, "DEAD_LETTERED")
        assert dead.crashes == 3
        assert dead.attempts - dead.uncharged == 0
        assert dead.last_error is not None
        assert "died" in dead.last_error
        assert [entry.outcome for entry in dead.history if entry.outcome != "released"] == ["crashed"] * 3


@pytest.mark.spare
def test_a_handler_that_hangs(trial: Trial) -> None:
    """It is ended with its process, and its stack is kept; its neighbours are not charged."""
    with trial.under_load() as site:
        held = trial.hold(9)
        job = site.submit("hung", max_attempts=1)
        site.wait_started(job)
        started_s = time.monotonic()
        dead = site.wait(job, "DEAD_LETTERED")
        measured("start of a hung handler to its end", since(started_s))
        assert [entry.outcome for entry in dead.history] == ["timeout"], dead.history
        assert "in hung" in str(site.sql.value("SELECT stack FROM pulse.attempts WHERE job_id = $1", job))
        assert all(found.attempts - found.uncharged == 1 for found in held.let_go().values())


def test_row_45_what_the_database_cannot_hold(trial: Trial) -> None:
    """A result or an error that cannot be stored ends its own attempt alone, with a reason; such args are refused."""
    with trial.under_load() as site:
        with trial.suffering(Malice) as malice:
            assert {code for code, _ in malice.refusals} == {"bad_request"}
            assert all(message for _, message in malice.refusals)
        with trial.suffering(Wicked) as fault:
            for how, job in fault.jobs.items():
                found = site.wait(job)
                assert found.attempts == 1
                if how == "deep":
                    continue  # deep, but it can be stored
                assert found.status == "DEAD_LETTERED", how
                assert found.last_error
                assert "\0" not in found.last_error


def test_nothing_is_left_of_a_pool(trial: Trial) -> None:
    """When the supervisor stops, what its pool's handlers left behind ends too, in whatever session it hides."""
    site = trial.site
    gate = site.gate()
    before = set(site.children())
    own = set(site.workers()) - {pid for pool in site.pools for pid in pool.workers()}
    jobs = [site.submit("forks", {"how": how, "gate": str(gate)}) for how in ("plain", "setsid", "daemon") * 4]
    starts = [site.wait_started(job) for job in jobs]
    children = {line.job: line.pid for line in site.lines("child") if line.pid not in before}
    hidden = [children[line.job] for line in starts if line.pid in own]
    assert hidden
    gate.touch()
    site.drain()
    assert site.whole.stop() == 0
    until(lambda: not any(map(is_alive, hidden)), "they end", BUSY_S)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
