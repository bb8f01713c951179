"""
Frames that have begun and are not whole: of one account, or address, only so many bytes are kept, on however many
connections. Whoever begins one more is read on when there is room for all of it; so what has room always ends.
"""

from __future__ import annotations

from typing import Final

import anyio

from pulse_actors.dispatcher.shared import Shared

MOST_BYTES: Final = 32 * 1024 * 1024  # four of the longest


class Begun:
    """
    The frames of one source.

    Args:
        most_bytes: Of those that are longer than nothing; one frame alone may have more.
    """

    __slots__ = ("__weakref__", "_bytes", "_changed", "_most_bytes")

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._changed = anyio.Event()

    async def enter(self, size_bytes: int) -> None:
        """Return when a frame of that length has room."""
        while self._bytes and self._bytes + size_bytes > self._most_bytes:
            await self._changed.wait()
        self._bytes += size_bytes

    def leave(self, size_bytes: int) -> None:
        """It is whole, or nobody waits for it any more."""
        self._bytes -= size_bytes
        self._changed.set()
        self._changed = anyio.Event()


begun_of: Final = Shared(Begun).of  # those of a source
