"""
Gives the next free slot to the caller with the fewest requests under way.

A peer may have many requests under way, on many connections. In order of arrival a thousand of them would delay another
peer's single request for seconds. So each request is ranked by how many its caller (ASKER) had under way when it came.
The server's own requests come first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Hashable
from contextvars import ContextVar
from heapq import heapify, heappop, heappush
from typing import Final

ASKER: Final[ContextVar[Hashable]] = ContextVar("ASKER", default=None)  # the client of a task; None: the server itself
FIRST: Final = -1  # the rank of the server's own


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
