"""When levels get work, as far as it is known: a bounded memory, with the poll behind it. Pure: times come in."""

from __future__ import annotations

import heapq
import itertools
from typing import Final

from pulse.store.rows import Level

FAR_S: Final = 3600.0  # what is due later than that is left to the poll
MAX_TIMES: Final = 10_000  # likewise what there is no room for


class DueTimes:
    """Moments, monotonic, each with its level; None: at a level that nobody knows."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Level | None]] = []
        self._numbers = itertools.count()  # levels and None have no order

    def add(self, level: Level | None, delay_s: float, now_s: float) -> bool:
        """Something is due there in *delay_s*; whether that is remembered."""
        if delay_s >= FAR_S or len(self._heap) >= MAX_TIMES:
            return False
        heapq.heappush(self._heap, (now_s + delay_s, next(self._numbers), level))
        return True

    def passed(self, now_s: float) -> list[Level | None]:
        """What is due by now, in order; it is forgotten."""
        due: list[Level | None] = []
        while self._heap and self._heap[0][0] <= now_s:
            due.append(heapq.heappop(self._heap)[2])
        return due

    def cut(self, pause_s: float, now_s: float) -> float:
        """The pause, no longer than until the next one is due."""
        return min(pause_s, self._heap[0][0] - now_s) if self._heap else pause_s
