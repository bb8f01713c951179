"""
TLS handshakes: each takes the loop a millisecond, or several with a long key, and anybody who reaches the port can
start one before any login.

So they run one at a time, only so many a second, and the next is for the network with the fewest that wait. Each
address has only one in that queue: a client that opens many connections slows down only itself.
"""

from __future__ import annotations

import time
from typing import Final

import anyio

from pulse.common.waiting import ASKER, Turns
from pulse_actors.dispatcher.admission.per_peer import PerPeer

A_SECOND: Final = 200.0  # of all peers together, at most
SHARE: Final = 0.2  # of the loop, at most


class _Address:
    """An address: only one of its handshakes is in the common queue."""

    def __init__(self) -> None:
        self.lock = anyio.Lock()


class TlsHandshakes:
    """
    The queue of TLS handshakes.

    Attributes:
        each_s: How long a handshake takes the loop.
    """

    def __init__(self) -> None:
        self.each_s = 0.0
        self._addresses = PerPeer(_Address)
        self._turns = Turns(1)
        self._opens_s = 0.0

    async def wait(self, source: str, network: str) -> None:
        """Return when a handshake of *source*, which is part of *network*, may begin."""
        address = self._addresses.of(source)
        async with address.lock:
            before = ASKER.set(network)
            try:
                async with self._turns.turn():
                    await anyio.sleep(max(0.0, self._opens_s - time.monotonic()))
                    self._opens_s = time.monotonic() + max(1 / A_SECOND, self.each_s / SHARE)
            finally:
                ASKER.reset(before)
