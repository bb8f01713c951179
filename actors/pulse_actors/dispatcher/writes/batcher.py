"""Merges requests of many peers into few statements: while one statement runs, the next batch gathers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

import anyio

ROW_BYTES: Final = 4096  # of text: longer texts count as several rows, so that a statement ends in time
MAX_WAITING_BATCHES: Final = 2.0  # batches that may wait; then callers have to wait

T = TypeVar("T")


class Batcher(Generic[T]):
    """
    Gathers items and handles them in batches, one batch at a time.

    Args:
        handle: Called with each batch; must not raise, since that ends ``run``.
        weigh: The weight of an item.
        limit: Largest weight of a batch; a single item may be heavier.
    """

    def __init__(self, handle: Callable[[Sequence[T]], Awaitable[None]], weigh: Callable[[T], int], limit: int) -> None:
        self._handle = handle
        self._weigh = weigh
        self._limit = limit
        self._items: list[T] = []
        self._weights: list[int] = []
        self._weight = 0
        self._taken = anyio.Event()
        self._arrived = anyio.Event()
        self._idle = anyio.Event()
        self._idle.set()

    def put(self, item: T) -> None:
        """Add an item to the next batch."""
        weight = self._weigh(item)
        self._items.append(item)
        self._weights.append(weight)
        self._weight += weight
        self._arrived.set()
        self._idle = anyio.Event() if self._idle.is_set() else self._idle

    def __len__(self) -> int:
        return len(self._items)

    async def run(self) -> None:
        """Handle batches until cancelled."""
        while True:
            if not self._items:  # else at once: waiting lets others go first even if the event is set
                await self._arrived.wait()
            await self._handle(self._take())
            if not self._items:
                self._arrived = anyio.Event()
                self._idle.set()

    async def wait_idle(self) -> None:
        """Return when all items are handled."""
        await self._idle.wait()

    async def wait_accepting(self) -> None:
        """Return when no more than ROOM batches wait; for callers that could add items faster than they are handled."""
        while self._weight > MAX_WAITING_BATCHES * self._limit:
            await self._taken.wait()

    def _take(self) -> Sequence[T]:
        count, taken = 0, 0
        for weight in self._weights:
            if taken + weight > self._limit and count:
                break
            count += 1
            taken += weight
        batch, self._items, self._weights = self._items[:count], self._items[count:], self._weights[count:]
        self._weight -= taken
        self._taken.set()
        self._taken = anyio.Event()
        return batch


async def halve(items: Sequence[T], write: Callable[[Sequence[T]], Awaitable[bool]]) -> None:
    """
    Write *items* together; if that fails for one of them, in halves, until the bad one is alone.

    Args:
        write: Writes items in one statement; returns False if one of several is bad. It must handle a single bad one
            itself and return True.
    """
    if not items or await write(items):
        return
    middle = len(items) // 2
    await halve(items[:middle], write)
    await halve(items[middle:], write)
