"""Due times that a dispatcher remembers."""

from __future__ import annotations

import pytest

from pulse.store.rows import Level
from pulse_actors.dispatcher.claims import work_signal
from pulse_actors.dispatcher.claims.work_signal import DueTimes

HERE = Level("t", 3)


def test_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not too far away, while there is room; the poll finds the rest."""
    monkeypatch.setattr(work_signal, "MAX_TIMES", 2)
    times = DueTimes()
    assert not times.add(HERE, work_signal.FAR_S, 10.0)
    assert [times.add(None, 5.0, 10.0) for _ in range(3)] == [True, True, False]
    assert times.passed(15.0) == [None, None]
    assert times.add(HERE, work_signal.FAR_S - 1, 10.0)


def test_what_is_due() -> None:
    """In the order of their times, each once; until the next one nobody pauses longer."""
    times = DueTimes()
    assert (times.passed(0.0), times.cut(7.0, 0.0)) == ([], 7.0)
    for level, delay_s in ((None, 2.0), (HERE, 1.0), (None, 9.0), (HERE, 9.0)):
        assert times.add(level, delay_s, 10.0)
    assert (times.passed(10.5), times.cut(7.0, 10.5), times.cut(0.1, 10.5)) == ([], 0.5, 0.1)
    assert times.passed(12.0) == [HERE, None]
    assert times.passed(12.0) == []
    assert times.cut(60.0, 12.0) == 7.0
