"""A peer that sends nonsense is read more slowly, and behind all others."""

from __future__ import annotations

import time
from types import SimpleNamespace

import anyio
import pytest
from anyio.lowlevel import checkpoint

from pulse_actors.dispatcher.admission import request_limits
from pulse_actors.dispatcher.admission.request_limits import (
    FORGIVEN_A_SECOND,
    LONGEST_PENALTY_S,
    LONGEST_REST_S,
    MISTAKES,
    MISTAKES_A_SECOND,
    REST_S,
    PenaltyLane,
    PenaltySlot,
    RequestLimits,
    TokenBucket,
    request_limits_of,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timed]


def _after(mistakes: int, ago_s: float = 0.0) -> RequestLimits:
    now_s = time.monotonic()
    limits = RequestLimits(now_s - ago_s - 1)
    for _ in range(mistakes):
        limits.mistake(now_s - ago_s)
    return limits


def test_some_at_once_and_then_so_many_a_second() -> None:
    bucket = TokenBucket(20, 100.0, 50.0, 100.0)
    for _ in range(20):
        bucket.take(100.0)
    assert bucket.wait_s(100.0) == 0.0
    for _ in range(10):
        bucket.take(100.0)
    assert bucket.wait_s(100.0) == pytest.approx(0.1)
    assert bucket.wait_s(100.05) == pytest.approx(0.05)
    assert bucket.wait_s(200.0) == 0.0
    for _ in range(21):
        bucket.take(200.0)
    assert bucket.wait_s(200.0) == pytest.approx(0.01)
    for _ in range(1000):
        bucket.take(200.0)
    assert bucket.wait_s(200.0) == pytest.approx(0.5)


async def test_the_lane_is_for_those_who_make_many_mistakes() -> None:
    """A few do not count; with more a peer is in the lane, until some seconds after the last."""
    few, many = _after(MISTAKES), _after(MISTAKES + 1)
    assert (few.is_throttled, many.is_throttled) == (False, True)
    await many.wait()
    assert many.is_throttled
    long_ago, lately = _after(10_000, LONGEST_PENALTY_S + 1), _after(10_000, LONGEST_PENALTY_S - 1)
    with anyio.move_on_after(0.01):  # it has a long time to wait
        await lately.wait()
    await _after(10_000, 10_000 / MISTAKES_A_SECOND + LONGEST_PENALTY_S).wait()
    assert lately.is_throttled
    with anyio.move_on_after(0.01):
        await long_ago.wait()
    assert not long_ago.is_throttled
    assert pytest.approx(MISTAKES / LONGEST_PENALTY_S) == FORGIVEN_A_SECOND


def test_all_in_the_lane_have_one_request_under_way() -> None:
    """Not peers outside the lane, nor requests that wait for something else than the database."""
    good, other, bad, worse = _after(0), _after(0), _after(MISTAKES + 1), _after(MISTAKES * 9)
    assert good.slot_for("jobs.list") is good.requests is not other.slot_for("jobs.list")
    assert bad.slot_for("jobs.list") is worse.slot_for("jobs.list") is not bad.requests
    assert bad.slot_for("jobs.stack") is bad.requests


async def test_behind_a_request_the_back_door_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as the request took; a waiter that gives up keeps nobody out."""
    now_s, rests, resting = 100.0, list[float](), anyio.CancelScope()

    async def rest(for_s: float) -> None:
        rests.append(for_s)
        if len(rests) == 2:
            resting.cancel()
        await checkpoint()

    monkeypatch.setattr(request_limits, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(request_limits, "anyio", SimpleNamespace(sleep=rest, Semaphore=anyio.Semaphore))
    door = PenaltySlot()
    await door.acquire()
    with anyio.move_on_after(0) as waiting:
        await door.acquire()
    now_s += 0.25
    door.release()
    with resting:
        await door.acquire()
    with anyio.fail_after(5):
        await door.acquire()
    assert waiting.cancelled_caught
    assert resting.cancelled_caught
    assert rests == [0.0, pytest.approx(LONGEST_REST_S), pytest.approx(LONGEST_REST_S)]


async def test_most_of_the_time_nobody_is_in_the_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a stretch of frames there is a rest that is longer."""
    now_s, rests = 100.0, 0

    async def rest(for_s: float) -> None:
        nonlocal now_s, rests
        now_s, rests = now_s + for_s, rests + 1

    monkeypatch.setattr(request_limits, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(request_limits, "anyio", SimpleNamespace(sleep=rest, Lock=anyio.Lock))
    lane = PenaltyLane()
    for _ in range(40):
        await lane.turn()
        now_s += 0.0003  # the work that a frame is
        lane.done()
    assert rests == 40 // 4 - 1  # four frames are more than a stretch
    assert rests * REST_S > 40 * 0.0003


def test_who_asks_is_known_on_all_its_connections() -> None:
    first = request_limits_of("somebody")
    assert request_limits_of("somebody") is first is not request_limits_of("somebody else")
