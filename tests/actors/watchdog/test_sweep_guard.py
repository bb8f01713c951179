"""The guard of the sweeps: when a lapsed lease counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_actors.watchdog.sweep_guard import Reading, SweepGuard

LEASE_S, HEARTBEAT_S, SWEEP_S = 30.0, 10.0, 10.0


def guard() -> SweepGuard:
    return SweepGuard(lease_s=LEASE_S, heartbeat_s=HEARTBEAT_S, sweep_s=SWEEP_S)


def reading(at_s: float, *, took_s: float = 0.0, ahead_s: float = 0.0) -> Reading:
    """The database's clock, 1000 s ahead of this host's, read at *at_s* by a question that took so long."""
    return Reading(1000.0 + at_s + ahead_s, at_s, at_s + took_s)


def test_sweeps_in_step_are_believed() -> None:
    one = guard()
    assert one.doubt(0.0, reading(5.0)) is None
    assert not one.may_reap(5.0)
    for at_s in (15.0, 25.0, 40.0):
        assert one.doubt(10.0, reading(at_s)) is None
        assert one.may_reap(at_s)


@pytest.mark.parametrize(("gap_s", "doubted"), [(15.0, False), (15.1, True), (float("inf"), True), (-8.0, True)])
def test_a_gap(gap_s: float, doubted: bool) -> None:
    """Longer than a worker's lease surely lasts without a beat: one lease of waiting, and then it goes on."""
    one = guard()
    one.doubt(1.0, reading(0.0))
    assert (one.doubt(gap_s, reading(100.0)) is not None) is doubted
    assert one.may_reap(100.0) is not doubted
    if doubted:
        assert one.doubt(10.0, reading(110.0)) is None
        assert not one.may_reap(100.0 + LEASE_S)
        assert one.may_reap(100.0 + LEASE_S + 0.1)


@pytest.mark.parametrize(
    ("step_s", "doubted"), [(7.0, False), (8.0, True), (3600.0, True), (-7.0, False), (-8.0, True)]
)
def test_a_clock_that_was_set(step_s: float, doubted: bool) -> None:
    """The database's clock must have moved with one's own, or leases mean nothing for one lease."""
    one = guard()
    one.doubt(1.0, reading(0.0))
    assert (one.doubt(10.0, reading(10.0, ahead_s=step_s)) is not None) is doubted
    assert one.may_reap(10.0) is not doubted


@given(st.lists(st.tuples(st.floats(0.1, 15.0), st.floats(0.0, 20.0), st.floats(0.0, 1.0)), max_size=20))
def test_a_slow_answer_is_no_step(sweeps: list[tuple[float, float, float]]) -> None:
    """Whenever during a slow query the clock was read: a running clock is never doubted."""
    one, now_s = guard(), 0.0
    for pause_s, took_s, share in sweeps:
        now_s += pause_s
        assert one.doubt(1.0, Reading(1000.0 + now_s + share * took_s, now_s, now_s + took_s)) is None
        now_s += took_s


def test_short_leases() -> None:
    one = SweepGuard(lease_s=3.0, heartbeat_s=1.0, sweep_s=10.0)
    assert (one.gap_s, one.sweep_s) == (1.5, 1.0)
    assert guard().sweep_s == SWEEP_S
    one.doubt(1.0, reading(0.0))
    assert one.doubt(1.4, reading(10.0)) is None
    assert one.doubt(1.6, reading(20.0)) is not None


def test_long_leases() -> None:
    one = SweepGuard(lease_s=60.0, heartbeat_s=10.0, sweep_s=10.0)
    assert one.sweep_s == 10.0
    one.doubt(1.0, reading(0.0))
    assert one.doubt(45.0, reading(45.0)) is None
    assert one.doubt(45.1, reading(91.0)) is not None


def test_each_step_is_seen_once() -> None:
    """A clock is compared with the last look at it, not with the first."""
    one = guard()
    one.doubt(1.0, reading(0.0))
    assert one.doubt(10.0, reading(10.0, ahead_s=60.0)) is not None
    assert one.doubt(10.0, reading(20.0, ahead_s=60.0)) is None


def test_a_wait_that_somebody_else_began() -> None:
    """A watchdog that starts during another's wait, or comes second to a gap, waits with it; the longer wait counts."""
    one = guard()
    one.doubt(1.0, reading(0.0))
    assert one.doubt(10.0, reading(10.0), 7.0) is None
    assert one.doubt(10.0, reading(12.0), 1.0) is None
    assert not one.may_reap(17.0)
    assert one.may_reap(17.1)


def test_a_wait_is_no_longer_than_a_lease() -> None:
    """A clock that was set back makes a noted wait long: it is cut."""
    one = guard()
    one.doubt(1.0, reading(0.0))
    assert one.doubt(10.0, reading(10.0), 86_400.0) is None
    assert one.may_reap(10.0 + one.lease_s + 0.1)


def test_no_wait_is_no_moment_of_waiting() -> None:
    one = guard()
    one.doubt(1.0, reading(0.0))
    assert one.doubt(10.0, reading(10.0), 0.0) is None
    assert one.may_reap(10.0)
