"""Limits hold across hosts, and a slot that is freed is taken without waiting for a poll."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.systems.peers import Worker, new_job
from tests.support.systems.system import System, two_hosts
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]


@pytest.fixture
def hosts(own_database: str) -> Iterator[tuple[System, System]]:
    with two_hosts(own_database) as both:
        yield both


def test_a_slot_is_taken_by_whichever_host_has_room(hosts: tuple[System, System], topic: str) -> None:
    """Each job waits until the one before has ended, wherever that ran."""
    home, away = hosts
    home.rows("SELECT pulse.set_limit($1, NULL, '{\"concurrency\": 1}')", topic)
    with (
        home.worker("w", topics=[topic], names=["n"], capacity=1) as here,
        away.worker("w", topics=[topic], names=["n"], capacity=1) as there,
        home.client() as client,
        away.client() as other,
    ):
        left = [one.submit(new_job(topic=topic, name="n"))[0] for one in (client, other, other, client)]

        def begun() -> list[Worker]:
            return [worker for worker in (here, there) if not worker.idle()]

        while left:
            (worker,) = until(begun, "one of them begins")
            identity, attempt = worker.job()
            left.remove(identity)
            assert not begun()
            worker.done((identity, attempt))


def test_a_slot_that_this_host_cannot_use_is_told_to_others(hosts: tuple[System, System], topic: str) -> None:
    """The job that had it is canceled, and its host has no other worker."""
    home, away = hosts
    home.rows("SELECT pulse.set_limit($1, NULL, '{\"concurrency\": 1}')", topic)
    with (
        home.worker("w", topics=[topic], names=["n"], capacity=1) as here,
        home.client() as client,
        away.client() as other,
    ):
        (first,) = other.submit(new_job(topic=topic, name="n"))
        held = here.job()
        assert held[0] == first
        with away.worker("w", topics=[topic], names=["n"]) as there:
            (second,) = other.submit(new_job(topic=topic, name="n"))
            assert there.idle()
            assert client.call("jobs.cancel", ids=[first])["done"] == [first]
            assert there.job()[0] == second


def test_a_group_has_a_turn_of_its_own(hosts: tuple[System, System], topic: str) -> None:
    """A job of a full group waits; those of other groups, and jobs without one, do not."""
    home, _ = hosts
    home.rows("SELECT pulse.set_limit($1, NULL, '{\"group_concurrency\": 1}')", topic)
    with home.worker("w", topics=[topic], names=["n"], capacity=10) as worker, home.client() as client:
        sent = [
            client.submit(new_job(topic=topic, name="n", group_key=group))[0] for group in ("a", "a", "b", None, None)
        ]
        started = {job[0]: job[1] for job in worker.jobs(4)}
        assert set(started) == {*sent[:1], *sent[2:]}
        worker.done((sent[0], started[sent[0]]))
        (next_one,) = worker.jobs(1)
        assert next_one[0] == sent[1]


def test_a_rate_is_kept(hosts: tuple[System, System], topic: str) -> None:
    """The second token is waited for; the rate is of both hosts together."""
    home, away = hosts
    home.rows('SELECT pulse.set_limit($1, NULL, \'{"rate": 5, "burst": 1}\')', topic)
    with (
        home.worker("w", topics=[topic], names=["n"], capacity=5),
        away.worker("w", topics=[topic], names=["n"], capacity=5),
        home.client() as client,
    ):
        for _ in range(5):
            client.submit(new_job(topic=topic, name="n"))
        started = "SELECT started_at AS at FROM pulse.jobs WHERE topic = $1 AND status = 'RUNNING' ORDER BY started_at"
        until(lambda: len(home.rows(started, topic)) == 5, "all have begun")
        first, *_, last = (row["at"] for row in home.rows(started, topic))
        assert (last - first).total_seconds() >= 4 / 5
