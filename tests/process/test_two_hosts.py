"""Work that comes in at one host is begun at another without waiting for its poll."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import pytest

from tests.support.peers import new_job
from tests.support.system import System, running

pytestmark = [pytest.mark.process, pytest.mark.postgres]

# With such a poll, and nobody listening, no test would end.
SETTINGS: Final[Mapping[str, str]] = {"PULSE_POLL_S": "60"}


@pytest.fixture
def hosts(dsn: str) -> Iterator[tuple[System, System]]:
    """Two supervisors on one database."""
    with (
        running(dsn, {**SETTINGS, "PULSE_HOST_ID": "a"}) as one,
        running(dsn, {**SETTINGS, "PULSE_HOST_ID": "b"}) as two,
    ):
        yield one, two


def test_a_submit_here_is_begun_there(hosts: tuple[System, System]) -> None:
    """Where nobody at home has room, who has it elsewhere hears of it, time and again."""
    home, away = hosts
    with away.worker("w", topics=["t"], names=["n"], capacity=1) as worker, home.client() as client:
        for _ in range(3):
            (identity,) = client.submit(new_job(topic="t", name="n"))
            (job,) = worker.jobs(1)
            assert job[0] == identity
            worker.done((job[0], job[1]))


def test_a_submit_by_sql_is_begun_at_once(hosts: tuple[System, System]) -> None:
    """On every host, and whoever was there before."""
    home, _ = hosts
    with home.worker("w", topics=["t"], names=["n"], capacity=1) as worker:
        for _ in range(3):
            (row,) = home.rows("SELECT pulse.submit(name => 'n', topic => 't') AS id")
            (job,) = worker.jobs(1)
            assert job[0] == row["id"].bytes
            worker.done((job[0], job[1]))
