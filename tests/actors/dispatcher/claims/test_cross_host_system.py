"""Work that comes in at one host is begun at another without waiting for its poll."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from pulse.store.rows import to_us
from tests.support.systems.peers import Worker, new_job
from tests.support.systems.system import Pair, System, running
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]

# With such a poll, and nobody listening, no test would end.
SETTINGS: Final[Mapping[str, str]] = {"PULSE_POLL_S": "60"}
EVERY_S: Final = 0.2
KILLS: Final = 5  # of each: one more within a minute, and its supervisor gives up


@pytest.fixture
def hosts(own_database: str) -> Iterator[tuple[System, System]]:
    """Two supervisors on one database."""
    with (
        running(own_database, {**SETTINGS, "PULSE_HOST_ID": "a"}) as one,
        running(own_database, {**SETTINGS, "PULSE_HOST_ID": "b"}) as two,
    ):
        yield one, two


def begins_and_ends(worker: Worker, identity: bytes) -> None:
    """That job is the one which *worker* is given; it is done."""
    (job,) = worker.jobs(1)
    assert job[0] == identity
    worker.done((job[0], job[1]))


def test_a_submit_here_is_begun_there(hosts: tuple[System, System], topic: str) -> None:
    """Where nobody at home has room, who has it elsewhere hears of it, time and again."""
    home, away = hosts
    with away.worker("w", topics=[topic], names=["n"], capacity=1) as worker, home.client() as client:
        for _ in range(3):
            (identity,) = client.submit(new_job(topic=topic, name="n"))
            begins_and_ends(worker, identity)


def test_a_submit_by_sql_is_begun_at_once(hosts: tuple[System, System], topic: str) -> None:
    """On every host, and whoever was there before."""
    home, _ = hosts
    with home.worker("w", topics=[topic], names=["n"], capacity=1) as worker:
        for _ in range(3):
            (row,) = home.rows("SELECT pulse.submit(name => 'n', topic => $1) AS id", topic)
            begins_and_ends(worker, row["id"].bytes)


def test_a_submit_while_nobody_listens_is_begun(hosts: tuple[System, System], topic: str) -> None:
    """PostgreSQL keeps no word for who does not listen: whoever begins to (again) looks for what was told before."""
    home, away = hosts
    with away.worker("w", topics=[topic], names=["n"], capacity=1) as worker, home.client() as client:
        for _ in range(3):
            home.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%pulse_work%'")
            (identity,) = client.submit(new_job(topic=topic, name="n"))
            begins_and_ends(worker, identity)


@pytest.fixture
def plain_hosts(own_database: str) -> Iterator[tuple[System, System]]:
    """Two supervisors that poll as users have it; the tests, their workers, never beat, and are not to be killed."""
    lease = {"PULSE_LEASE_S": "600"}
    with (
        running(own_database, {"PULSE_HOST_ID": "a", **lease}) as one,
        running(own_database, {"PULSE_HOST_ID": "b", **lease}) as two,
    ):
        yield one, two


def test_schedulers_that_are_killed(plain_hosts: tuple[System, System]) -> None:
    """Whichever of two schedulers is killed, and when: where all is caught up, each occurrence is one job."""
    one, two = plain_hosts
    with (
        one.client() as client,
        one.worker("v", topics=["t"], capacity=1000) as here,
        two.worker("w", topics=["t"], capacity=1000) as there,
    ):
        made = client.call("schedules.create", name="n", topic="t", every=EVERY_S, catch_up="all")["schedule"]
        kill_in_turn(plain_hosts)
        now_us = round(time.time() * 1e6)
        until(lambda: fired(one)[-1:] > [now_us], "what was missed fires, and more")
        client.call("schedules.delete", id=made["id"])
        occurrences = fired(one)
        first_us, step_us = round(made["next_run_at"] * 1e6), round(EVERY_S * 1e6)
        assert occurrences == [first_us + number * step_us for number in range(len(occurrences))]
        assigned: list[Pair] = []

        def all_are_assigned() -> bool:
            frames = [*here.arrived("assign"), *there.arrived("assign")]
            assigned.extend((job[0], job[1]) for frame in frames for job in frame["jobs"])
            return len(assigned) >= len(occurrences)

        until(all_are_assigned, "all jobs are begun")
        assert len(set(assigned)) == len(occurrences)
        assert {attempt for _, attempt in assigned} == {1}


def fired(host: System) -> list[int]:
    """The occurrences of which there is a job, microseconds, the oldest first; twice what is there twice."""
    rows = host.rows("SELECT occurrence FROM pulse.jobs WHERE occurrence IS NOT NULL ORDER BY occurrence")
    return [to_us(row["occurrence"]) for row in rows]


def kill_in_turn(hosts: tuple[System, System]) -> None:
    """Kill the scheduler of each, one after the other, just as one has fired or as soon as it runs."""
    killed = [0, 0]
    for number in range(2 * KILLS):
        which = number % 2
        if number % 4 < 2:
            before = len(fired(hosts[0]))
            until(lambda before=before: len(fired(hosts[0])) > before, "an occurrence fires")  # type: ignore[misc]
        killed[which] = hosts[which].wait_actor("scheduler", not_pid=killed[which])
        assert hosts[which].kill_actor("scheduler") == killed[which]
