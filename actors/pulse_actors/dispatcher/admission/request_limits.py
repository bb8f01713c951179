"""
Limits what a peer may ask: one that makes many mistakes is read more slowly, after all others.

Counts are kept per process or address, not per connection: a hundred connections do not give a hundred times as much.
Occasional mistakes have no effect. A peer that makes many gets into the penalty lane: of all peers in it, frames are
taken for a millisecond at most and one request runs at a time, so that others wait no longer than that. Most of the
time nothing in the lane is served, since their requests use not only the loop and the database, but the processors too.
"""

from __future__ import annotations

import time
from typing import Final

import anyio

from pulse_actors.dispatcher.admission.per_peer import PerPeer
from pulse_actors.shared.duty_cycle import rest_s

MAX_REQUESTS: Final = 32  # of one process, or address, at once; then its next frame waits
MISTAKES: Final = 20  # mistakes that are allowed in a row
MISTAKES_A_SECOND: Final = 500.0  # mistakes that are allowed later: refusing more would slow down others
FORGIVEN_A_SECOND: Final = 2.0  # a peer that makes more than this for long gets into the penalty lane
LONGEST_PENALTY_S: Final = 10.0  # after its last mistake
STRETCH_S: Final = 0.001  # for frames in the lane; then it rests
REST_S: Final = 0.002
WORK_SHARE: Final = 0.5  # share of the time for requests in the lane: each is followed by a rest as long as it took
LONGEST_REST_S: Final = 0.1
UNHURRIED: Final = frozenset({"jobs.stack"})  # these wait for a worker, not for the database: no need to queue


class PenaltyLane:
    """Peers in the lane are served one after the other for a stretch; then all of them rest."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._since_s = self._last_s = float("-inf")

    async def turn(self) -> None:
        """Return when it is the caller's turn."""
        if self._is_over():
            async with self._lock:  # one per turn of the loop, however long its frame takes
                if self._is_over():
                    if time.monotonic() - self._last_s <= REST_S:
                        await anyio.sleep(REST_S)
                    self._since_s = time.monotonic()

    def done(self) -> None:
        """The caller's turn is over."""
        self._last_s = time.monotonic()

    def _is_over(self) -> bool:
        return time.monotonic() - self._since_s > STRETCH_S


class PenaltySlot:
    """One request at a time, and a rest after each."""

    def __init__(self) -> None:
        self._lock = anyio.Semaphore(1)
        self._began_s = self._opens_s = 0.0

    async def acquire(self) -> None:
        """Return when the request may begin."""
        await self._lock.acquire()
        try:
            await anyio.sleep(max(0.0, self._opens_s - time.monotonic()))
        except BaseException:
            self._lock.release()
            raise
        self._began_s = time.monotonic()

    def release(self) -> None:
        """The request is done."""
        now_s = time.monotonic()
        self._opens_s = now_s + rest_s(now_s - self._began_s, WORK_SHARE, LONGEST_REST_S)
        self._lock.release()


class TokenBucket:
    """
    A token bucket: so often at once, and then so often a second.

    Args:
        most: Tokens at the start.
        a_second: Tokens added per second.
        deepest: How far it may go below zero.
        now_s: Monotonic.
    """

    __slots__ = ("_a_second", "_at_s", "_deepest", "_left", "_most")

    def __init__(self, most: float, a_second: float, deepest: float, now_s: float) -> None:
        self._most = self._left = most
        self._a_second = a_second
        self._deepest = deepest
        self._at_s = now_s

    def take(self, now_s: float) -> None:
        """Take a token."""
        self._left = max(-self._deepest, self.left(now_s) - 1.0)

    def left(self, now_s: float) -> float:
        """Tokens left; below zero: too many were taken."""
        if self._left < self._most:
            self._left = min(self._most, self._left + (now_s - self._at_s) * self._a_second)
        self._at_s = now_s
        return self._left

    def wait_s(self, now_s: float) -> float:
        """Seconds until it is no longer below zero."""
        return max(0.0, -self.left(now_s) / self._a_second)


class RequestLimits:
    """
    What is counted of one peer.

    Args:
        now_s: Monotonic.

    Attributes:
        requests: Bounds the requests under way.
        is_throttled: Whether it is in the penalty lane, as of the last look.
    """

    __slots__ = ("__weakref__", "_mistakes", "_trust", "is_throttled", "requests")

    def __init__(self, now_s: float) -> None:
        self._mistakes = TokenBucket(MISTAKES, MISTAKES_A_SECOND, float("inf"), now_s=now_s)
        self._trust = TokenBucket(MISTAKES, FORGIVEN_A_SECOND, LONGEST_PENALTY_S * FORGIVEN_A_SECOND, now_s=now_s)
        self.requests = anyio.Semaphore(MAX_REQUESTS)
        self.is_throttled = False

    def mistake(self, now_s: float) -> None:
        """The peer made a mistake."""
        self._mistakes.take(now_s)
        self._trust.take(now_s)
        self.is_throttled = self._trust.left(now_s) < 0

    async def wait(self) -> None:
        """Return when the next frame of a throttled peer may be taken."""
        now_s = time.monotonic()
        self.is_throttled = self._trust.left(now_s) < 0
        pause_s = self._mistakes.wait_s(now_s)
        if pause_s:
            await anyio.sleep(pause_s)
        await _penalty_lane.turn()

    def done(self) -> None:
        """The frame that was waited for is taken."""
        _penalty_lane.done()

    def slot_for(self, kind: str) -> anyio.Semaphore | PenaltySlot:
        """The slot that a request of *kind* needs before it begins."""
        return _penalty_slot if self.is_throttled and kind not in UNHURRIED else self.requests


_penalty_lane: Final = PenaltyLane()
_penalty_slot: Final = PenaltySlot()
request_limits_of: Final = PerPeer(lambda: RequestLimits(time.monotonic())).of  # per peer, over all of its connections
