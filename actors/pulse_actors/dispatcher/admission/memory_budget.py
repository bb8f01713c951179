"""
Bytes that one peer makes this process keep, on however many connections: only so many, as they were sent.

Long frames of clients are counted by their source, from their first bytes until they are handed on, those of workers by
their process, until they are whole: the next one waits for room. What a worker has reported and no statement has taken
yet is counted by its process: while the database is slow, it would pile up. Nothing of that waits, for who is not
heard would be taken for dead: it is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import anyio

from pulse_actors.dispatcher.admission.per_peer import PerPeer

MOST_BYTES: Final = 32 * 1024 * 1024  # four of the longest frames
KEPT_BYTES: Final = 512  # of what is kept of the shortest one
OVER_BUDGET: Final = f"{MOST_BYTES >> 20} MiB that this process has reported wait for the database: send it again later"


class MemoryBudget:
    """
    What one peer has.

    Args:
        most_bytes: Of all together; one alone may have more.
    """

    __slots__ = ("__weakref__", "_bytes", "_changed", "_most_bytes")

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._changed = anyio.Event()

    async def reserve(self, size_bytes: int) -> None:
        """Return when so many bytes more have room."""
        while not self.try_reserve(size_bytes):
            await self._changed.wait()

    def try_reserve(self, size_bytes: int) -> bool:
        """Whether so many bytes more had room; then they have it now."""
        if self._bytes and self._bytes + size_bytes > self._most_bytes:
            return False
        self._bytes += size_bytes
        return True

    def reserve_frame(self, size_bytes: int) -> Callable[[], None] | None:
        """How to leave the place of a frame of that length, which it has now; None: it has none."""
        kept_bytes = KEPT_BYTES + size_bytes
        return partial(self.release, kept_bytes) if self.try_reserve(kept_bytes) else None

    def release(self, size_bytes: int) -> None:
        """They are kept no more."""
        self._bytes -= size_bytes
        self._changed.set()
        self._changed = anyio.Event()


incoming_budget_of: Final = PerPeer(MemoryBudget).of  # long frames
unwritten_budget_of: Final = PerPeer(MemoryBudget).of  # what a process has reported and nobody has written


def nothing_reserved() -> None:
    """What takes no room leaves none."""
