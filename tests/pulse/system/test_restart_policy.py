"""When a dead child comes back, how soon, and how often before that is no recovery any more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse.system.restart_policy import Delay, Intensity, Restart, RestartLog


@pytest.mark.parametrize(("restart", "normal", "applies"), [
    (Restart.PERMANENT, True, True), (Restart.PERMANENT, False, True), (Restart.TRANSIENT, True, False),
    (Restart.TRANSIENT, False, True), (Restart.TEMPORARY, True, False), (Restart.TEMPORARY, False, False),
])  # fmt: skip
def test_restart_kinds_are_those_of_otp(restart: Restart, normal: bool, applies: bool) -> None:
    assert restart.applies(normal=normal) is applies


@given(st.lists(st.floats(min_value=0, max_value=30), max_size=60), st.integers(0, 5))
def test_a_log_counts_what_a_window_holds(pauses_s: list[float], max_restarts: int) -> None:
    intensity, log, now_s, all_s = Intensity(max_restarts, window_s=60.0), RestartLog(), 0.0, list[float]()
    for pause_s in pauses_s:
        now_s += pause_s
        all_s.append(now_s)
        log = log.record(now_s, intensity)
        assert log.exceeds(intensity) == (sum(now_s - at_s < 60.0 for at_s in all_s) > max_restarts)


def test_the_first_restart_is_immediate_and_later_ones_wait_longer_up_to_a_bound() -> None:
    delay = Delay(first_s=0.1, longest_s=0.5)
    assert [delay.after(earlier) for earlier in range(6)] == [0.0, 0.1, 0.2, 0.4, 0.5, 0.5]


def test_a_delay_stays_bounded_however_many_came_before() -> None:
    assert Delay().after(10_000_000) == Delay().longest_s
