"""
How many jobs a handler process holds beyond those that run, so that a free slot need not wait for a claim.

As many as finish in the time from a result to the next assignment: none while handlers take seconds, hundreds while
they take next to nothing. Pure: no clock.
"""

from __future__ import annotations

from typing import Final

__all__ = ["PERIOD_S", "Prefetch"]

PERIOD_S: Final = 0.25  # between two looks
AHEAD_S: Final = 0.06  # a claim, an assignment and a report at full load
MOST: Final = 2000
STEP: Final = 0.25  # share of the capacity: smaller changes are not worth a frame


class Prefetch:
    """
    The capacity of one process.

    Args:
        concurrency: Handlers that run at once.

    Attributes:
        concurrency: The same.
        capacity: Jobs that it should hold at once.
    """

    def __init__(self, concurrency: int) -> None:
        self.concurrency: Final = concurrency
        self.capacity = concurrency

    @property
    def is_settled(self) -> bool:
        """Whether no jobs are held ahead."""
        return self.capacity == self.concurrency

    def look(self, finished: int) -> bool:
        """
        Add how many handlers have ended in the last PERIOD_S; returns whether the capacity has changed.

        It rises by steps; it falls to zero at once, and otherwise by steps, too.
        """
        wanted = self.concurrency + min(int(finished * AHEAD_S / PERIOD_S), MOST)
        if abs(wanted - self.capacity) < STEP * self.capacity and wanted != self.concurrency:
            return False
        changed, self.capacity = wanted != self.capacity, wanted
        return changed
