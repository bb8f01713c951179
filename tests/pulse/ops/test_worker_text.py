"""The words for workers: places, what runs, what was sent ahead."""

from __future__ import annotations

import pytest

from pulse.ops.worker_text import cpu_shares, load_of, places_of, state_of
from pulse.protocol.answers import Worker

IDS = [bytes([number]) * 16 for number in range(30)]
FULL = Worker(capacity=160, concurrency=10, running=IDS, started=12)
LEAVING = Worker(capacity=0, concurrency=10, running=IDS[:2], started=2, draining=True)


def test_places_are_what_runs_at_once() -> None:
    """2 processes × 10 and 1 × 10 are 30, whatever was sent ahead; an older worker counts by what it holds."""
    idle, older = Worker(capacity=10, concurrency=10), Worker(capacity=10)
    assert places_of([FULL, idle, older]).text == "10 of 30 places taken, 18 jobs sent ahead"
    assert places_of([idle, LEAVING]).text == "0 of 10 places taken, 2 jobs on workers that drain"
    assert [load_of(one) for one in (FULL, idle, LEAVING)] == ["10/10 +18", "0/10", "2"]


def test_the_jobs_of_a_batch_take_one_place() -> None:
    batch = Worker(capacity=118, concurrency=10, running=IDS, started=28, taken=3)
    assert load_of(batch) == "3/10 +2"


@pytest.mark.parametrize(("worker", "state"), [
    (Worker(condition="stopped", draining=True), "stopped (SIGSTOP)"),
    (Worker(condition="blocked"), "hangs"),
    (Worker(condition="silent", silent=True), "silent"),
    (LEAVING, "draining"),
    (FULL, ""),
])  # fmt: skip
def test_what_is_the_matter(worker: Worker, state: str) -> None:
    assert state_of(worker) == state


def test_what_each_uses_of_a_core() -> None:
    """Since the round before; of one that was not there since its start. Where the server does not see it, nothing."""
    old = [Worker("a", cpu_s=10.0, uptime_s=50.0)]
    new = [Worker("a", cpu_s=11.0, uptime_s=52.0), Worker("b", cpu_s=1.0, uptime_s=4.0), Worker("c")]
    assert cpu_shares(new, old, 2.0) == {"a": 0.5, "b": 0.25}
