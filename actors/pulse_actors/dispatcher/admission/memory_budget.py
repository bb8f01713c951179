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

from pulse_actors.dispatcher.admission.per_peer import Shared

MOST_BYTES: Final = 32 * 1024 * 1024  # four of the longest frames
KEPT_BYTES: Final = 512  # of what is kept of the shortest one
NO_ROOM: Final = f"{MOST_BYTES >> 20} MiB that this process has reported wait for the database: send it again later"


class Room:
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

    async def enter(self, size_bytes: int) -> None:
        """Return when so many bytes more have room."""
        while not self.has_taken(size_bytes):
            await self._changed.wait()

    def has_taken(self, size_bytes: int) -> bool:
        """Whether so many bytes more had room; then they have it now."""
        if self._bytes and self._bytes + size_bytes > self._most_bytes:
            return False
        self._bytes += size_bytes
        return True

    def place(self, size_bytes: int) -> Callable[[], None] | None:
        """How to leave the place of a frame of that length, which it has now; None: it has none."""
        kept_bytes = KEPT_BYTES + size_bytes
        return partial(self.leave, kept_bytes) if self.has_taken(kept_bytes) else None

    def leave(self, size_bytes: int) -> None:
        """They are kept no more."""
        self._bytes -= size_bytes
        self._changed.set()
        self._changed = anyio.Event()


begun_of: Final = Shared(Room).of  # long frames
unwritten_of: Final = Shared(Room).of  # what a process has reported and nobody has written


def kept_by_nobody() -> None:
    """What takes no room leaves none."""
