"""
How much of a peer is heard: whoever sends nonsense is read more slowly, and behind everybody else.

What is counted, is counted of who asks (a process, or an address), not of a connection: with a hundred connections
nobody has a hundred times as much. Whoever makes a mistake now and then notices nothing of all this. Whoever makes many
stands in the lane: of all who do, frames are taken for a millisecond at most, and one request is under way at once, so
that others wait for no more than that, however many there are. And most of the time none of them is served, for what
they ask takes from others not the loop and the database alone, but the processors, too.
"""

from __future__ import annotations

import time
from typing import Final

import anyio

from pulse_actors.dispatcher.admission.per_peer import PerPeer
from pulse_actors.shared.duty_cycle import rest_s

MAX_REQUESTS: Final = 32  # of one process, or address, at once; then its next frame waits
MISTAKES: Final = 20  # that it may make one behind the other
MISTAKES_A_SECOND: Final = 500.0  # and later: the work of refusing more would be at the cost of others
FORGIVEN_A_SECOND: Final = 2.0  # whoever makes more than this for long stands in the lane
LONGEST_PENALTY_S: Final = 10.0  # after its last mistake
STRETCH_S: Final = 0.001  # of frames in the lane; then it rests
REST_S: Final = 0.002
WORK_SHARE: Final = 0.5  # of the time, for what is worked out one at once: behind each, a rest for as long as it took
LONGEST_REST_S: Final = 0.1
UNHURRIED: Final = frozenset({"jobs.stack"})  # what waits for somebody else than the database holds nobody up in it


class PenaltyLane:
    """One behind the other, for a stretch; then all of them rest."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._since_s = self._last_s = float("-inf")

    async def turn(self) -> None:
        """Return when it is the caller's turn."""
        if self._is_over():
            async with self._lock:  # one in a turn of the loop, however long its frame takes
                if self._is_over():
                    if time.monotonic() - self._last_s <= REST_S:
                        await anyio.sleep(REST_S)
                    self._since_s = time.monotonic()

    def done(self) -> None:
        """What one came with is done."""
        self._last_s = time.monotonic()

    def _is_over(self) -> bool:
        return time.monotonic() - self._since_s > STRETCH_S


class PenaltySlot:
    """One at once, and a rest behind each."""

    def __init__(self) -> None:
        self._lock = anyio.Semaphore(1)
        self._began_s = self._opens_s = 0.0

    async def acquire(self) -> None:
        """Return when it may be under way."""
        await self._lock.acquire()
        try:
            await anyio.sleep(max(0.0, self._opens_s - time.monotonic()))
        except BaseException:
            self._lock.release()
            raise
        self._began_s = time.monotonic()

    def release(self) -> None:
        """It is no more."""
        now_s = time.monotonic()
        self._opens_s = now_s + rest_s(now_s - self._began_s, WORK_SHARE, LONGEST_REST_S)
        self._lock.release()


class TokenBucket:
    """
    What may be done so often at once, and later so often a second.

    Args:
        most: At once.
        a_second: Later.
        deepest: How far it may go below nothing.
        now_s: Monotonic.
    """

    __slots__ = ("_a_second", "_at_s", "_deepest", "_left", "_most")

    def __init__(self, most: float, a_second: float, deepest: float, now_s: float) -> None:
        self._most = self._left = most
        self._a_second = a_second
        self._deepest = deepest
        self._at_s = now_s

    def take(self, now_s: float) -> None:
        """Once more."""
        self._left = max(-self._deepest, self.left(now_s) - 1.0)

    def left(self, now_s: float) -> float:
        """How often it may be done yet; below nothing: how often it was too much."""
        if self._left < self._most:
            self._left = min(self._most, self._left + (now_s - self._at_s) * self._a_second)
        self._at_s = now_s
        return self._left

    def wait_s(self, now_s: float) -> float:
        """Until nothing of it was too much."""
        return max(0.0, -self.left(now_s) / self._a_second)


class RequestLimits:
    """
    What is known of one who asks.

    Args:
        now_s: Monotonic.

    Attributes:
        requests: Bounds those that are under way.
        is_throttled: Whether it stands there, as of the last look.
    """

    __slots__ = ("__weakref__", "_mistakes", "_trust", "is_throttled", "requests")

    def __init__(self, now_s: float) -> None:
        self._mistakes = TokenBucket(MISTAKES, MISTAKES_A_SECOND, float("inf"), now_s=now_s)
        self._trust = TokenBucket(MISTAKES, FORGIVEN_A_SECOND, LONGEST_PENALTY_S * FORGIVEN_A_SECOND, now_s=now_s)
        self.requests = anyio.Semaphore(MAX_REQUESTS)
        self.is_throttled = False

    def mistake(self, now_s: float) -> None:
        """It has made one."""
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
        """Where a request of *kind* has to find a place before it is under way."""
        return _penalty_slot if self.is_throttled and kind not in UNHURRIED else self.requests


_penalty_lane: Final = PenaltyLane()
_penalty_slot: Final = PenaltySlot()
request_limits_of: Final = PerPeer(lambda: RequestLimits(time.monotonic())).of  # of who asks, on all of its connections
