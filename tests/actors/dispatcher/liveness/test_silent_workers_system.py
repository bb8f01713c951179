"""Kill, then requeue: what a silent process of this host holds is handed out again only when that process is dead."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import psutil
import pytest

from tests.support.systems.lone_worker import Manner, lone_worker
from tests.support.systems.peers import Body, Pair, new_job
from tests.support.systems.system import System
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

LEASE_S: Final = 2.5
_HELD: Final = """
    SELECT *, coalesce(status = 'RUNNING' AND lease_until > clock_timestamp(), false) AS is_held
    FROM pulse.jobs WHERE id = $1"""
SETTINGS: Final[Mapping[str, str]] = {
    "PULSE_LEASE_S": str(LEASE_S),
    "PULSE_HEARTBEAT_S": "0.5",
    "PULSE_SWEEP_S": "0.2",
}


def submit(system: System, *jobs: Body) -> None:
    """Submit them over a connection of its own: dispatchers are killed here."""
    with system.client() as client:
        client.submit(*jobs)


def is_over(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended; a zombie has."""
    return psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE


def watch_until_over(system: System, process: subprocess.Popen[bytes], pair: Pair) -> None:
    """Wait until *process* has ended; as long as it lives, its job is its own and the lease lasts."""

    def look() -> bool:
        (row,) = system.rows(_HELD, pair[0].hex())
        over = is_over(process)  # after the row: one that is handed out again was of a process that had ended by then
        assert over or row["is_held"], row
        return over

    until(look, "the silent process is killed")


def test_a_stopped_worker(system: System, topic: str) -> None:
    """It is killed once it has been silent for a lease; only then its attempts are over, as lapsed leases."""
    submit(system, new_job(topic=topic), new_job(topic=topic, priority=-1))
    with lone_worker(system.path, "stopped", Manner(topic, take=2)) as (process, (started, queued)):
        began_s = time.monotonic()
        os.kill(process.pid, signal.SIGSTOP)
        watch_until_over(system, process, started)
        assert time.monotonic() - began_s > LEASE_S - 0.5  # the last word came a little before
    row = system.wait_row(started[0], status="RETRYING")
    assert (row["last_error"], row["attempts"], row["uncharged"], row["crashes"]) == ("worker lease expired", 1, 0, 0)
    row = system.wait_row(queued[0], status="PENDING")
    assert (row["attempts"], row["uncharged"]) == (1, 1)
    history = "SELECT outcome, error, exit_code FROM pulse.attempts WHERE job_id = $1"
    assert [tuple(one) for one in system.rows(history, started[0].hex())] == [
        ("lease_expired", "worker lease expired", -signal.SIGKILL)
    ]


def test_a_worker_that_is_asked_to_end(system: System, topic: str) -> None:
    """One that runs, but says nothing, is asked by SIGTERM before it is killed."""
    submit(system, new_job(topic=topic))
    with lone_worker(system.path, "mute", Manner(topic, deaf=False)) as (process, (pair,)):
        watch_until_over(system, process, pair)
        assert process.wait() == -signal.SIGTERM
    row = system.wait_row(pair[0], status="RETRYING")
    assert (row["crashes"], row["last_error"]) == (0, "worker lease expired")


def test_a_worker_that_goes_on_in_time(system: System, topic: str) -> None:
    """Who speaks again before its lease is over loses nothing, however often it falls silent."""
    submit(system, new_job(topic=topic))
    with lone_worker(system.path, "slow", Manner(topic, beat_s=0.1)) as (process, (pair,)):
        for _ in range(3):
            os.kill(process.pid, signal.SIGSTOP)
            until(lambda: system.lease_s(pair[0]) < LEASE_S - 0.8, "its lease runs down")
            os.kill(process.pid, signal.SIGCONT)
            until(lambda: system.lease_s(pair[0]) > LEASE_S - 0.3, "it beats again")
        assert not is_over(process)
    assert system.row(pair[0])["attempts"] == 1


@pytest.mark.rest
def test_a_stopped_worker_and_a_new_dispatcher(system: System, topic: str) -> None:
    """A dispatcher that never heard of it kills it first, too, and not before it has had a lease to say hello."""
    submit(system, new_job(topic=topic))
    with lone_worker(system.path, "stranger", Manner(topic)) as (process, (pair,)):
        os.kill(process.pid, signal.SIGSTOP)
        system.set_lease(pair[0], 60.0)  # it is not to lapse before the next dispatcher runs
        pid = system.kill_actor("dispatcher")
        system.wait_actor("dispatcher", not_pid=pid)
        watch_until_over(system, process, pair)
    (watched,), (killed,) = (
        [datetime.fromisoformat(one["timestamp"]) for one in system.log(event) if one["worker"].endswith("/stranger")]
        for event in ("stranger_watched", "worker_killed")
    )
    assert (killed - watched).total_seconds() > LEASE_S * 0.9
    row = system.wait_row(pair[0], status="RETRYING")
    assert (row["last_error"], row["uncharged"]) == ("worker lease expired", 0)


def test_workers_tell_how_they_are_recovered(system: System, topic: str) -> None:
    """Whether the kernel will tell of a worker's end, or only its lease."""
    with lone_worker(system.path, "told", Manner(topic, take=0)), system.client() as client:
        (found,) = [one for one in client.call("workers.list")["workers"] if one["name"] == "told"]
        assert (found["recovery"], found["silent"]) == ("kernel", False)
