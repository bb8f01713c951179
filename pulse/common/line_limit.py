"""Limits how many log lines of a kind are written. Pure: the clock is the caller's."""

from __future__ import annotations


class LineLimit:
    """
    So many lines in a period, and a count of those that were left out.

    A period begins with the first line after the one before. Lines in it are not spread: the first ones say most.

    Args:
        most: Lines of one period.
        period_s: Length of a period, seconds.
    """

    def __init__(self, most: int, period_s: float) -> None:
        self._most = most
        self._period_s = period_s
        self._ends_s = float("-inf")
        self._written = 0
        self._left_out = 0

    def take(self, count: int, now_s: float) -> int:
        """How many of *count* more lines may be written now; the others are left out."""
        if now_s >= self._ends_s:
            self._ends_s, self._written = now_s + self._period_s, 0
        taken = min(count, self._most - self._written)
        self._written += taken
        self._left_out += count - taken
        return taken

    def settle(self) -> int:
        """How many lines were left out since this was asked last."""
        left_out, self._left_out = self._left_out, 0
        return left_out
