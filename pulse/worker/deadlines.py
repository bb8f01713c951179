"""Timeouts of running handlers: one heap and one timer for all; jobs without a timeout cost nothing."""

from __future__ import annotations

import heapq
from typing import Final

from pulse.worker.attempt import Attempt, Phase

__all__ = ["Deadlines"]

_MIN_SWEEP: Final = 1024  # entries; from then on whenever it has doubled, so an entry is moved about once


class Deadlines:
    """When the next handler has run too long. Pure: times come in."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Attempt]] = []
        self._count = 0  # breaks ties: attempts have no order
        self._sweep_at = _MIN_SWEEP

    def add(self, attempt: Attempt, at_s: float) -> bool:
        """Watch *attempt*; whether it is now the first that is due."""
        self._count += 1
        if len(self._heap) >= self._sweep_at:
            self._sweep()
        heapq.heappush(self._heap, (at_s, self._count, attempt))
        return self._heap[0][2] is attempt

    def _sweep(self) -> None:
        """Let go of what has ended long before its time: its args would be kept until then."""
        self._heap = [entry for entry in self._heap if entry[2].phase is not Phase.ENDED]
        heapq.heapify(self._heap)
        self._sweep_at = max(_MIN_SWEEP, 2 * len(self._heap))

    def next_s(self) -> float | None:
        """When the next one is due; None: nothing is watched."""
        while self._heap and self._heap[0][2].phase is Phase.ENDED:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now_s: float) -> list[Attempt]:
        """Those that are due and still run; they are no longer watched."""
        found: list[Attempt] = []
        while self._heap and self._heap[0][0] <= now_s:
            attempt = heapq.heappop(self._heap)[2]
            if attempt.phase is not Phase.ENDED:
                found.append(attempt)
        return found
