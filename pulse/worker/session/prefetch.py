"""
How many jobs a handler process holds beyond those that run, so that a slot that becomes free need not wait for a claim.

As many as are finished in a moment, about the time from a result to the next assignment: none while handlers take
seconds, hundreds while they take next to nothing. Pure: no clock.
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
        capacity: Jobs that it is to hold at once.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency: Final = concurrency
        self.capacity = concurrency

    @property
    def is_settled(self) -> bool:
        """Whether nothing is held ahead."""
        return self.capacity == self._concurrency

    def look(self, finished: int) -> bool:
        """
        Take note of how many handlers have ended in the last PERIOD_S; whether the capacity has changed.

        It rises by steps and falls at once to nothing, in between only by steps.
        """
        wanted = self._concurrency + min(int(finished * AHEAD_S / PERIOD_S), MOST)
        if abs(wanted - self.capacity) < STEP * self.capacity and wanted != self._concurrency:
            return False
        changed, self.capacity = wanted != self.capacity, wanted
        return changed
