"""Merges requests of many peers into few statements: while one statement runs, the next batch gathers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from pulse.common.waiting import ConditionVariable

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
        self._taken = ConditionVariable()
        self._arrived = ConditionVariable()
        self._is_idle = True
        self._rests = 0  # how many times it became idle
        self._rested = ConditionVariable()

    def put(self, item: T) -> None:
        """Add an item to the next batch."""
        weight = self._weigh(item)
        self._items.append(item)
        self._weights.append(weight)
        self._weight += weight
        self._is_idle = False
        self._arrived.notify_all()

    def __len__(self) -> int:
        return len(self._items)

    async def run(self) -> None:
        """Handle batches until cancelled."""
        while True:
            while not self._items:
                await self._arrived.wait()
            await self._handle(self._take())
            if not self._items:
                self._is_idle = True
                self._rests += 1
                self._rested.notify_all()

    async def wait_idle(self) -> None:
        """Return when all items are handled; what comes after that in the same turn is not waited for."""
        rests = self._rests
        while not self._is_idle and self._rests == rests:
            await self._rested.wait()

    @property
    def is_accepting(self) -> bool:
        """Whether no more than MAX_WAITING_BATCHES wait; for callers who may add items faster than it handles them."""
        return self._weight <= MAX_WAITING_BATCHES * self._limit

    async def wait_accepting(self) -> None:
        """Return when it accepts items."""
        while not self.is_accepting:
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
        self._taken.notify_all()
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
