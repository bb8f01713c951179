"""
Limits the bytes that one peer makes this process keep, over all of its connections.

Long frames of clients are counted per source, from their first bytes until they are handed on; those of workers per
process, until they are whole. The next frame waits for room. Reports that are not written yet are counted per process:
while the database is slow, they would pile up. They cannot wait, since a worker that is not read would seem dead: a
report beyond the limit is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from pulse.common.waiting import ConditionVariable
from pulse_actors.dispatcher.admission.per_peer import PerPeer

MOST_BYTES: Final = 32 * 1024 * 1024  # four of the longest frames
KEPT_BYTES: Final = 512  # counted for the shortest report
OVER_BUDGET: Final = f"{MOST_BYTES >> 20} MiB that this process has reported wait for the database: send it again later"


class MemoryBudget:
    """
    The bytes kept for one peer.

    Args:
        most_bytes: Limit of all together; a single frame may be longer.
    """

    __slots__ = ("__weakref__", "_bytes", "_most_bytes", "_released")

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._released = ConditionVariable()

    async def reserve(self, size_bytes: int) -> None:
        """Wait until there is room for so many more bytes, and take it."""
        while not self.try_reserve(size_bytes):
            await self._released.wait()

    def try_reserve(self, size_bytes: int) -> bool:
        """Take room for so many more bytes; False: there is none."""
        if self._bytes and self._bytes + size_bytes > self._most_bytes:
            return False
        self._bytes += size_bytes
        return True

    def reserve_frame(self, size_bytes: int) -> Callable[[], None] | None:
        """Take room for a frame of that length; returns the function that frees it, None: there is no room."""
        kept_bytes = KEPT_BYTES + size_bytes
        return partial(self.release, kept_bytes) if self.try_reserve(kept_bytes) else None

    def release(self, size_bytes: int) -> None:
        """Free so many bytes."""
        self._bytes -= size_bytes
        self._released.notify_all()


incoming_budget_of: Final = PerPeer(MemoryBudget).of  # long frames
unwritten_budget_of: Final = PerPeer(MemoryBudget).of  # reports of a process that are not written yet


def nothing_reserved() -> None:
    """Free nothing, for a frame that took no room."""
