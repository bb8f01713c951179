"""
What the tasks of one event loop wait for: a wake-up, a condition, or their turn.

A turn is the next free slot, and goes to the caller with the fewest requests under way. A peer may have many of them,
on many connections; in order of arrival a thousand would delay another peer's single request for seconds. So each
request is ranked by how many its caller (ASKER) had under way when it came. The server's own requests come first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Hashable
from contextvars import ContextVar
from heapq import heapify, heappop, heappush
from typing import Final

import anyio

__all__ = ["ASKER", "FIRST", "ConditionVariable", "Turns", "WakeupEvent"]

ASKER: Final[ContextVar[Hashable]] = ContextVar("ASKER", default=None)  # the client of a task; None: the server itself
FIRST: Final = -1  # the rank of the server's own


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


class ConditionVariable:
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


class Turns:
    """
    Lets so many callers in at once.

    Args:
        places: Number of slots.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._line: list[tuple[int, int, asyncio.Future[None]]] = []
        self._left = 0  # of the line, those that do not wait any more
        self._number = 0
        self._under_way: Counter[Hashable] = Counter()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(not future.done() for _, _, future in self._line)

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """A place for the block, as soon as it is this task's turn."""
        asker = ASKER.get()
        rank = FIRST if asker is None else self._under_way[asker]
        self._under_way[asker] += 1
        try:
            await self._take(rank)
            try:
                yield
            finally:
                self._give()
        finally:
            self._under_way[asker] -= 1
            if not self._under_way[asker]:
                del self._under_way[asker]

    async def _take(self, rank: int) -> None:
        if self._free:
            self._free -= 1
            return
        future = asyncio.get_running_loop().create_future()
        self._number += 1
        heappush(self._line, (rank, self._number, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._left += 1
                if 2 * self._left > len(self._line):  # those of a high rank might never be met
                    self._line = [one for one in self._line if not one[2].done()]
                    heapify(self._line)
                    self._left = 0
            else:  # it was given the place at this very moment
                self._give()
            raise

    def _give(self) -> None:
        while self._line:
            *_, future = heappop(self._line)
            if not future.done():
                future.set_result(None)
                return
            self._left -= 1
        self._free += 1
