"""
Finds running handlers that have passed a limit (time, or silence): one heap and one timer for all.

Jobs without a limit cost nothing. Progress only stores the time: when the silence seems too long, the attempt is looked
at again, and watched on from its last progress.
"""

from __future__ import annotations

import heapq
from typing import Final, Literal, TypeAlias

from pulse.worker.execution.attempt import Attempt, Phase

__all__ = ["Deadlines", "Limit"]

_MIN_SWEEP: Final = 1024  # entries; cleaned up whenever the heap has doubled since, so an entry is moved about once

Limit: TypeAlias = Literal["timeout", "stalled"]


class Deadlines:
    """When the next handler passes a limit. Pure: times come in."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Attempt, Limit]] = []
        self._count = 0  # breaks ties between attempts, which have no order
        self._sweep_at = _MIN_SWEEP

    def watch(self, attempt: Attempt, now_s: float) -> bool:
        """Watch *attempt*, whose handler is called now; returns whether it is due first."""
        next_s = self._heap[0][0] if self._heap else float("inf")
        timeout_s = attempt.job.timeout_s
        stall_s = attempt.stall_s
        if timeout_s is not None:
            self._add(now_s + timeout_s, attempt, "timeout")
        if stall_s is not None:
            attempt.told_s = now_s
            self._add(now_s + stall_s, attempt, "stalled")
        return bool(self._heap) and self._heap[0][0] < next_s

    def next_s(self) -> float | None:
        """When to look again; None: nothing is watched."""
        while self._heap and self._heap[0][2].phase == Phase.ENDED:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now_s: float) -> list[tuple[Attempt, Limit]]:
        """Running attempts that have passed a limit, and which limit; that one is no longer watched."""
        found: list[tuple[Attempt, Limit]] = []
        while self._heap and self._heap[0][0] <= now_s:
            _, _, attempt, limit = heapq.heappop(self._heap)
            if attempt.phase == Phase.ENDED:
                continue
            if limit == "stalled" and (again_s := _silent_until_s(attempt)) > now_s:
                self._add(again_s, attempt, limit)
            else:
                found.append((attempt, limit))
        return found

    def _add(self, at_s: float, attempt: Attempt, limit: Limit) -> None:
        self._count += 1
        if len(self._heap) >= self._sweep_at:
            self._sweep()
        heapq.heappush(self._heap, (at_s, self._count, attempt, limit))

    def _sweep(self) -> None:
        """Drop attempts that have ended long before their limits: their args would stay in memory until then."""
        self._heap = [entry for entry in self._heap if entry[2].phase != Phase.ENDED]
        heapq.heapify(self._heap)
        self._sweep_at = max(_MIN_SWEEP, 2 * len(self._heap))


def _silent_until_s(attempt: Attempt) -> float:
    """When the silence since its last progress will be too long."""
    return attempt.told_s + (attempt.stall_s or 0.0)
