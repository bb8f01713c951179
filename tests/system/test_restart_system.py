"""A supervisor that restarts under load, while workers of others are connected, charges no attempt."""

from __future__ import annotations

import pytest

from pulse.client.requests import NewJob
from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import Whole, place
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]

JOBS = 400
RESTARTS = 3


def test_a_rolling_restart(newest_server: Postgres) -> None:
    """Every job completes in one charged try, and ran once."""
    with newest_server.database() as dsn, place(dsn, PULSE_DRAIN_S="5") as whole:
        whole.start()
        pools = [whole.pool("--concurrency", "5") for _ in range(2)]
        workers = {pid for pool in pools for pid in pool.workers()}
        # At once, so that jobs are left for each restart on a busy machine, too.
        jobs = whole.jobs().client.submit_many([NewJob(name="nap", args={"seconds": 0.1})] * JOBS)
        for _ in range(RESTARTS):
            done = _completed(whole)
            until(lambda done=done: _completed(whole) > done + 10, "the load goes on")  # type: ignore[misc]
            assert whole.stop() == 0
            whole.start()
        until(lambda: _completed(whole) == JOBS, "all are completed", 60.0)
        assert {pid for pool in pools for pid in pool.workers()} == workers
        tries = "SELECT DISTINCT attempts - uncharged AS tries, crashes FROM pulse.jobs"
        assert [tuple(row) for row in whole.rows(tries)] == [(1, 0)]
        starts = [entry.job for entry in whole.entries(event="start")]
        assert sorted(starts) == sorted(jobs)


def _completed(whole: Whole) -> int:
    (row,) = whole.rows("SELECT count(*) AS count FROM pulse.jobs WHERE status = 'COMPLETED'")
    count: int = row["count"]
    return count
