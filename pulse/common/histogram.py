"""Counts of durations by size. Pure: no IO, no clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

# Upper bounds in seconds, 0.1 ms to 28 h: a percentile is exact to a quarter.
_STEPS: Final = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
BOUNDS: Final = (*(round(step * 10.0**power, 6) for power in range(-4, 5) for step in _STEPS), 1e5)
SAMPLE: Final = 8  # durations of one batch that are looked at; each stands for as many of the others


class Histogram:
    """
    How many durations there were up to each bound.

    Attributes:
        counts: Of each of BOUNDS, and of what is longer; not exact as single numbers, since samples are weighted.
        sum_s: Of all durations.
    """

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0.0] * (len(BOUNDS) + 1)
        self.sum_s = 0.0

    def add(self, value_s: float, weight: float = 1.0) -> None:
        """Count a duration; a negative one, of two clocks that differ, is none."""
        value_s = max(0.0, value_s)
        self.counts[bisect_left(BOUNDS, value_s)] += weight
        self.sum_s += value_s * weight

    def merge(self, other: Histogram) -> None:
        """Count what *other* has counted."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum_s += other.sum_s

    @property
    def total(self) -> float:
        """How many there were."""
        return sum(self.counts)

    def percentile(self, share: float) -> float | None:
        """
        The duration that *share* of them do not exceed, at most a bucket too long; None: there were none.

        Args:
            share: Above 0, at most 1.
        """
        wanted = self.total * share
        if wanted <= 0:
            return None
        below = 0.0
        for place, count in enumerate(self.counts):
            if count and below + count >= wanted * (1 - 1e-9):
                low = BOUNDS[place - 1] if place else 0.0
                high = BOUNDS[place] if place < len(BOUNDS) else low
                return low + (high - low) * (wanted - below) / count
            below += count
        return BOUNDS[-1]

    def told(self) -> dict[str, object]:
        """As the answer to `stats` has it: counts up to each bound."""
        return {"bounds": BOUNDS, "counts": list(accumulate(self.counts)), "sum": self.sum_s}


def sample(count: int) -> Sequence[int]:
    """Which of *count* things are looked at: all, or SAMPLE of them, spread evenly."""
    if count <= SAMPLE:
        return range(count)
    return [place * count // SAMPLE for place in range(SAMPLE)]
