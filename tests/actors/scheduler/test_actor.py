"""How long the scheduler waits."""

from __future__ import annotations

import pytest

from pulse.store.rows import Work
from pulse_actors.scheduler.actor import LOOK_S, MIN_PAUSE_S, WAIT_S, _pause_s


@pytest.mark.parametrize(("work", "pause_s"), [
    (Work(None, reckon=False, waiting=False), LOOK_S), (Work(60.0, reckon=False, waiting=False), LOOK_S),
    (Work(0.5, reckon=False, waiting=False), 0.5), (Work(-5.0, reckon=False, waiting=False), MIN_PAUSE_S),
    (Work(None, reckon=False, waiting=True), WAIT_S), (Work(0.1, reckon=False, waiting=True), 0.1),
    (Work(0.5, reckon=True, waiting=True), MIN_PAUSE_S),
])  # fmt: skip
def test_it_waits_for_the_next_work(work: Work, pause_s: float) -> None:
    """At most until another look; not at all while there are times to compute."""
    assert _pause_s(work, WAIT_S) == pause_s


@pytest.mark.parametrize(("unique_s", "again_s", "pause_s"), [
    (0.5, None, 0.5), (None, 0.2, 0.2), (0.3, 0.2, 0.2), (-1.0, 0.2, MIN_PAUSE_S), (60.0, 60.0, LOOK_S),
])  # fmt: skip
def test_it_waits_for_the_next_one_with_a_key(unique_s: float | None, again_s: float | None, pause_s: float) -> None:
    """Also while what has no key is refused, and overdue."""
    assert _pause_s(Work(None, reckon=False, waiting=False, unique_s=unique_s), WAIT_S, again_s) == pause_s
    refused = Work(-5.0, reckon=True, waiting=True, unique_s=unique_s)
    assert _pause_s(refused, WAIT_S, again_s, in_vain=True) == pause_s
