"""
TLS handshakes: each takes the loop a millisecond, and whoever reaches the port may ask for one, before any login.

So only so many begin in a second, one behind the other, and the next is that of whichever address has the fewest that
wait: who opens one connection behind the other slows down itself.
"""

from __future__ import annotations

import time
from typing import Final

import anyio

from pulse.store.turns import ASKER, Turns

A_SECOND: Final = 200.0  # of all addresses together: a fifth of the loop


class Handshakes:
    """The turns of all who come over TLS."""

    def __init__(self) -> None:
        self._turns = Turns(1)
        self._opens_s = 0.0

    async def wait(self, source: str) -> None:
        """Return when one of *source* may begin."""
        before = ASKER.set(source)
        try:
            async with self._turns.turn():
                await anyio.sleep(max(0.0, self._opens_s - time.monotonic()))
                self._opens_s = time.monotonic() + 1 / A_SECOND
        finally:
            ASKER.reset(before)
