"""
Tells the dispatchers of other hosts that there is work which nobody here has room for, and hears it from them.

NOTIFY has the commits of a whole cluster wait for each other, so it is sent rarely, in a transaction of its own, and
only when it helps: work that a worker of this host has room for is claimed here. It is a hint; behind it is the poll.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import Final

import anyio

from pulse.errors import UnavailableError
from pulse.store.store import Store

PAUSE_S: Final = 0.1  # between two that are sent, and between two claims because of what is heard


class CrossHostHints:
    """What is told and heard."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._name = secrets.token_hex(8)  # what it tells, it hears too
        self._arrived = anyio.Event()
        self._next_s = float("-inf")

    def work(self) -> None:
        """There is work that nobody here has room for, as far as is known."""
        self._arrived.set()

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived = anyio.Event()
            with contextlib.suppress(UnavailableError):  # then the others cannot claim either; they poll
                await self._store.notify_work(self._name)
            await anyio.sleep(PAUSE_S)

    def heard(self, sender: object, now_s: float) -> list[float]:
        """
        Somebody tells of work.

        Args:
            sender: Who; '' for who submits by SQL.
            now_s: Monotonic clock.

        Returns:
            In how many seconds to look for it: at once, and again for who was not to tell so soon after another.
        """
        if sender == self._name or now_s < self._next_s:
            return []
        self._next_s = now_s + PAUSE_S
        return [0.0, PAUSE_S]
