"""Work that comes in at one host is begun at another without waiting for its poll."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.systems.peers import Worker, new_job
from tests.support.systems.system import System, two_hosts

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]


@pytest.fixture
def hosts(own_database: str) -> Iterator[tuple[System, System]]:
    with two_hosts(own_database) as both:
        yield both


def begins_and_ends(worker: Worker, identity: bytes) -> None:
    """*worker* gets that job; it is done."""
    (job,) = worker.jobs(1)
    assert job[0] == identity
    worker.done((job[0], job[1]))


def test_a_submit_here_is_begun_there(hosts: tuple[System, System], topic: str) -> None:
    """A host without room notifies one that has it, time and again."""
    home, away = hosts
    with away.worker("w", topics=[topic], names=["n"], capacity=1) as worker, home.client() as client:
        for _ in range(3):
            (identity,) = client.submit(new_job(topic=topic, name="n"))
            begins_and_ends(worker, identity)


def test_a_submit_by_sql_is_begun_at_once(hosts: tuple[System, System], topic: str) -> None:
    """On every host, in any order."""
    home, _ = hosts
    with home.worker("w", topics=[topic], names=["n"], capacity=1) as worker:
        for _ in range(3):
            (row,) = home.rows("SELECT pulse.submit(name => 'n', topic => $1) AS id", topic)
            begins_and_ends(worker, row["id"].bytes)


def test_a_submit_while_nobody_listens_is_begun(hosts: tuple[System, System], topic: str) -> None:
    """PostgreSQL keeps no NOTIFY without a listener: a host that begins to listen (again) looks for earlier work."""
    home, away = hosts
    with away.worker("w", topics=[topic], names=["n"], capacity=1) as worker, home.client() as client:
        for _ in range(3):
            home.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%pulse_work%'")
            (identity,) = client.submit(new_job(topic=topic, name="n"))
            begins_and_ends(worker, identity)
