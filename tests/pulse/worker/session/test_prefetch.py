"""How many jobs a handler process holds ahead of its handlers."""

from __future__ import annotations

import pytest

from pulse.worker.session.prefetch import AHEAD_S, MOST, PERIOD_S, Prefetch


def finished(per_second: float) -> int:
    return round(per_second * PERIOD_S)


@pytest.mark.parametrize(
    ("concurrency", "per_second", "capacity"),
    [(10, 10.0, 10), (10, 200.0, 22), (10, 4000.0, 250), (1000, 20_000.0, 2200), (10, 1e6, 10 + MOST)],
)
def test_as_many_as_are_finished_in_a_moment(concurrency: int, per_second: float, capacity: int) -> None:
    ahead = Prefetch(concurrency)
    ahead.look(finished(per_second))
    assert ahead.capacity == capacity
    assert ahead.is_settled == (capacity == concurrency)
    assert capacity - concurrency in {int(per_second * AHEAD_S), MOST, 0}


def test_it_changes_by_steps() -> None:
    """A frame is sent for a large step, and for none ahead at all."""
    ahead = Prefetch(100)
    assert not ahead.look(finished(400.0))
    assert ahead.capacity == 100
    assert ahead.look(finished(2000.0))
    assert ahead.capacity == 220
    assert not ahead.look(finished(2800.0))
    assert not ahead.look(finished(1300.0))
    assert ahead.capacity == 220
    assert ahead.look(finished(1000.0))
    assert ahead.capacity == 160
    assert ahead.look(0)
    assert ahead.is_settled
    assert not ahead.look(0)
