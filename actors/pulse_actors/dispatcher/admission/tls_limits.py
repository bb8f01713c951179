"""
TLS handshakes: each takes the loop a millisecond or, with a long key, several, and whoever reaches the port may ask for
one, before any login.

So only so many begin in a second, one behind the other, and the next is that of whichever network has the fewest that
wait; of one address only one waits in that line. Who opens one connection behind the other slows down itself.
"""

from __future__ import annotations

import time
from typing import Final

import anyio

from pulse.common.fair_queue import ASKER, Turns
from pulse_actors.dispatcher.admission.per_peer import PerPeer

A_SECOND: Final = 200.0  # of all together, at most
SHARE: Final = 0.2  # of the loop, at most


class _Address:
    """Of whose handshakes only one waits in the line of all."""

    def __init__(self) -> None:
        self.lock = anyio.Lock()


class TlsHandshakes:
    """
    The turns of all who come over TLS.

    Attributes:
        each_s: How long one takes the loop.
    """

    def __init__(self) -> None:
        self.each_s = 0.0
        self._addresses = PerPeer(_Address)
        self._turns = Turns(1)
        self._opens_s = 0.0

    async def wait(self, source: str, network: str) -> None:
        """Return when one of *source*, which is part of *network*, may begin."""
        address = self._addresses.of(source)
        async with address.lock:
            before = ASKER.set(network)
            try:
                async with self._turns.turn():
                    await anyio.sleep(max(0.0, self._opens_s - time.monotonic()))
                    self._opens_s = time.monotonic() + max(1 / A_SECOND, self.each_s / SHARE)
            finally:
                ASKER.reset(before)
