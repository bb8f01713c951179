"""Wakes the tasks that wait at this moment; costs nothing while none does, unlike an event that is made anew."""

from __future__ import annotations

import anyio


class Condition:
    """What it is about is the caller's: a task waits again until it is true."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def notify_all(self) -> None:
        """Wake all that wait now."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        """Return when all are woken the next time."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()
