"""What the tasks of one event loop wait for, and what wakes them."""

from __future__ import annotations

import anyio

__all__ = ["Condition", "WakeupEvent"]


class WakeupEvent:
    """An event for one waiter; several ``wake`` before a ``wait`` count once."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._is_set = False

    def wake(self) -> None:
        """Wake the waiter in the next turn of the loop."""
        if not self._is_set:
            self._is_set = True
            self._event.set()

    async def wait(self) -> None:
        """Wait until it is set."""
        await self._event.wait()
        self._event = anyio.Event()
        self._is_set = False


class Condition:
    """
    Something that tasks wait for, each with a loop that looks whether it is true.

    Unlike an event it keeps nothing, so that telling it costs nothing while nobody waits.
    """

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
