"""Workers, actors and the supervisor are killed and stopped, under load, with the supervisor's own database."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.chaos.faults.process_faults import CrashLoop, FullStderr, KillSupervisor, KillWorkerWithChild
from tests.chaos.faults.trial import Trial, standing
from tests.chaos.site import LEASE_S, site
from tests.support.systems.system_kit import ACTORS, measured, since
from tests.support.waiting import is_alive, until

pytestmark = [pytest.mark.chaos, pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]

POOL = ("--processes", "1", "--concurrency", "8")


@pytest.fixture(scope="module")
def trial() -> Iterator[Trial]:
    with site(pool=POOL) as made:
        made.start()
        made.pool(*POOL)
        made.pool(*POOL, "--backend", "trio")
        with standing(made) as trial:
            yield trial


def test_row_1_sigkill_of_a_worker(trial: Trial) -> None:
    """What it ran runs elsewhere long before its lease ends, uncharged; all others go on."""
    with trial.under_load() as site:
        held = trial.hold(6)
        victim = held.starts[0].pid
        killed_s = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        again = [site.wait_started(job, 2) for job in held.of(victim)]
        assert measured("SIGKILL to the second start", max(line.at_s for line in again) - killed_s) < LEASE_S
        for job, found in held.let_go().items():
            was_hit = job in held.of(victim)
            assert (found.attempts, found.uncharged, found.crashes) == ((2, 1, 1) if was_hit else (1, 0, 0))
            assert [entry.error for entry in found.history] == ["worker process died: SIGKILL"] * was_hit


def test_row_2_sigkill_of_a_worker_whose_child_holds_the_socket(trial: Trial) -> None:
    """The same, although the connection stays open; the child does not outlive it."""
    with trial.under_load() as site, trial.suffering(KillWorkerWithChild) as fault:
        killed_s = time.monotonic()
        again = site.wait_started(fault.job, 2)
        assert measured("SIGKILL to the second start", again.at_s - killed_s) < LEASE_S
        [first] = [line.pid for line in site.lines("child") if (line.job, line.attempt) == (fault.job, 1)]
        until(lambda: not is_alive(first), "the child ends")


def test_row_4_sigstop_of_a_worker(trial: Trial) -> None:
    """A worker that is silent for a lease is killed, and only then its jobs start again; they are charged for it."""
    with trial.under_load() as site:
        held = trial.hold(6)
        victim = held.starts[0].pid
        stopped_s = time.monotonic()
        os.kill(victim, signal.SIGSTOP)
        again = [site.wait_started(job, 2) for job in held.of(victim)]
        took_s = [measured("SIGSTOP to the second start", line.at_s - stopped_s) for line in again]
        assert min(took_s) >= LEASE_S
        assert not is_alive(victim)
        for job, found in held.let_go().items():
            outcomes = [entry.outcome for entry in found.history]
            assert outcomes == ["lease_expired"] * (job in held.of(victim))
            for entry in found.history:
                trial.blame(str(entry.worker))


def test_row_6_sigkill_of_each_actor(trial: Trial) -> None:
    """Each is replaced; the workers come back with all that they hold, and no attempt is burned."""
    with trial.under_load() as site:
        held = trial.hold(6)
        workers = {line.pid for line in held.starts}
        for name in ACTORS:
            pid, killed_s = site.whole.pids()[name], time.monotonic()
            os.kill(pid, signal.SIGKILL)
            site.whole.wait_actor(name, not_pid=pid)
            until(lambda: workers <= set(site.workers()), "the workers are back")
            measured(f"SIGKILL of the {name} to all whole again", since(killed_s))
        assert held.interrupted() == []


def test_row_7_sigstop_of_every_actor(trial: Trial) -> None:
    """Actors that do not answer are killed and replaced, all four at once; handlers go on."""
    with trial.under_load() as site:
        held = trial.hold(6)
        pids, stopped_s = site.whole.pids(), time.monotonic()
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)
        for name in ACTORS:
            site.whole.wait_actor(name, not_pid=pids[name])
        measured("SIGSTOP of all actors to their successors", since(stopped_s))
        assert not any(map(is_alive, pids.values()))
        site.settle()
        assert held.interrupted() == []


def test_row_8_sigkill_of_the_supervisor(trial: Trial) -> None:
    """Its actors follow it; the next one takes over, and what other workers run goes on."""
    with trial.under_load() as site:
        held = trial.hold(9)
        foreign = {pid for pool in site.pools for pid in pool.workers()}
        started_s = time.monotonic()
        with trial.suffering(KillSupervisor):
            measured("SIGKILL of the supervisor to the end of its actors", since(started_s))
        site.settle()
        measured("SIGKILL of the supervisor to all whole again", since(started_s))
        spared = [job for pid in foreign for job in held.of(pid)]
        assert spared
        assert {job.id for job in held.interrupted()}.isdisjoint(spared)
        assert all(found.attempts - found.uncharged == 1 for found in held.let_go().values())


@pytest.mark.spare
def test_row_9_an_actor_that_crashes_again_and_again(trial: Trial) -> None:
    """The supervisor gives up with its exit code, and does not spin; a new one goes on."""
    with trial.under_load():
        started_s = time.monotonic()
        with trial.suffering(CrashLoop) as fault:
            measured(f"{fault.shots} kills to the end of the supervisor", since(started_s))
        assert (fault.code, fault.shots) == (70, 6)


def test_row_56_the_log_is_full(trial: Trial) -> None:
    """No process ends because it cannot log, and dead workers are recovered; then the lines are counted."""
    with trial.under_load() as site:
        held, before = trial.hold(4), site.whole.pids()
        with trial.suffering(FullStderr):
            victim = held.starts[0].pid
            os.kill(victim, signal.SIGKILL)
            for job in held.of(victim):
                site.wait_started(job, 2)  # the dispatcher has told it to its log
        os.kill(site.wait_started(held.of(victim)[0], 2).pid, signal.SIGKILL)
        until(lambda: site.whole.log("log_lines_dropped", actor="dispatcher"), "the count")
        assert site.whole.pids() == before
        held.let_go()
