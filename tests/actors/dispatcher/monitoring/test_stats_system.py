"""``stats`` of a real system: what went through it, what waits, how long it took, and what a death cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pytest

import pulse
from pulse.client.requests import NewJob
from pulse.protocol.stats import OutboxStats, Rates, Series
from tests.support.servers.postgres import Postgres
from tests.support.systems.system_kit import SHORT_LEASE, Whole, place
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

STEP_S: Final = 5.0


@pytest.fixture(scope="module")
def whole(server: Postgres) -> Iterator[Whole]:
    with server.database() as dsn, place(dsn, **SHORT_LEASE) as whole:
        whole.start()
        whole.pool("--processes", "2", "--concurrency", "2")
        yield whole


def _topic(stats: pulse.Stats, name: str) -> pulse.TopicStats:
    found = [one for one in stats.topics if one.topic == name]
    assert found, stats.topics
    return found[0]


@pytest.mark.rest
def test_what_went_through_and_what_waits(whole: Whole) -> None:
    jobs = whole.jobs()
    before, began_s = jobs.client.stats().counters, time.monotonic()
    jobs.client.submit_many([*[NewJob(name="mark", topic="lonely")] * 3, NewJob(name="mark", delay_s=600)])
    jobs.client.pause("lonely")
    done = jobs.client.submit_many([NewJob(name="mark")] * 20)
    for job in done:
        jobs.wait(job)
    stats = until(lambda: _seen(jobs.client, len(done)), "all is counted")[0]
    lonely, default = _topic(stats, "lonely"), _topic(stats, "default")
    assert (lonely.ready, lonely.workers, lonely.paused) == (3, 0, True)
    assert lonely.oldest_s is not None
    assert 0 < lonely.oldest_s < time.monotonic() - began_s
    assert (default.scheduled, default.workers, default.paused) == (1, 2, False)
    assert lonely.counts == Rates(submitted=3)
    assert (stats.exact, stats.outbox) == (True, OutboxStats(0, None))
    passed = stats.counters
    assert passed.submitted - before.submitted == 24
    assert passed.completed - before.completed == 20
    assert passed.outcomes["completed"] == passed.completed
    assert stats.histograms["wait_s"].counts[-1] == pytest.approx(passed.started)
    assert stats.histograms["run_s"].counts[-1] == pytest.approx(passed.completed)
    assert 15 <= stats.histograms["start_s"].counts[-1] <= passed.started
    assert stats.database.away_s == 0
    assert stats.database.pools["hot"].took_s.counts[-1] > 0
    assert (stats.dispatcher.pid, stats.dispatcher.rss_bytes > 1e7) == (whole.pids()["dispatcher"], True)


def _seen(client: pulse.Client, done: int) -> list[pulse.Stats]:
    stats = client.stats()
    return [stats] if stats.counters.completed >= done and _topic(stats, "default").scheduled else []


@pytest.mark.rest
def test_the_history_grows_step_by_step(whole: Whole) -> None:
    jobs = whole.jobs()
    series = until(lambda: _history(jobs.client), "a step", 4 * STEP_S)[0]
    assert series.step_s == STEP_S
    columns = (series.submitted, series.completed, series.depth, series.wait_p50_s, series.run_p99_s)
    assert {len(column) for column in columns} == {len(series.times)}
    assert series.depth[-1] is not None
    assert time.time() - series.times[-1] < 2 * STEP_S
    assert series.times == sorted(series.times)
    assert jobs.client.stats(history_s=0).series.times == []
    assert len(jobs.client.stats(topics=1).topics) == 1


def _history(client: pulse.Client) -> list[Series]:
    series = client.stats().series
    return [series] if series.times else []
