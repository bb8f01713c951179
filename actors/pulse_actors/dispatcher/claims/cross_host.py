"""
Notifies the dispatchers of other hosts of work that no worker here has room for, and receives such notifications.

NOTIFY makes all commits of a cluster wait for each other, so it is sent rarely, in a transaction of its own, and only
for work that no worker of this host has room for. It is a hint: polling finds the same a little later.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import Final

import anyio

from pulse.common.waiting import WakeupEvent
from pulse.errors import UnavailableError
from pulse.store.store import Store

RELEASED: Final = "released"  # says pulse.settle, when jobs that waited for others are due
PAUSE_S: Final = 0.1  # between two notifications, and between two claims for received ones; submits by SQL: 0.05


class CrossHostHints:
    """Sends and receives notifications of work."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._name = secrets.token_hex(8)  # to recognise its own notifications
        self._arrived = WakeupEvent()
        self._last_look_s = float("-inf")  # the last one that was asked for

    def work(self) -> None:
        """There is work that no worker here has room for."""
        self._arrived.wake()

    async def run(self) -> None:
        """Send notifications until cancelled."""
        while True:
            await self._arrived.wait()
            with contextlib.suppress(UnavailableError):  # then the others cannot claim either; they poll
                await self._store.notify_work(self._name)
            await anyio.sleep(PAUSE_S)

    def heard(self, sender: object, now_s: float) -> list[float]:
        """
        A notification of work arrived.

        Args:
            sender: The dispatcher; '' for a submit by SQL; RELEASED: no more often than commits end jobs.
            now_s: Monotonic clock.

        Returns:
            In how many seconds to look for it. One look is at least PAUSE_S, and less than two of them, from now: other
            submits had to wait before they notify.
        """
        if sender == RELEASED:
            return [0.0]
        if sender == self._name or now_s < self._last_look_s - PAUSE_S:
            return []
        if now_s >= self._last_look_s:
            self._last_look_s = now_s + PAUSE_S
            return [0.0, PAUSE_S]
        self._last_look_s += PAUSE_S
        return [self._last_look_s - now_s]
