"""Counts how many statements of a pool run, how long they take, and since when they fail."""

from __future__ import annotations

from collections.abc import Iterable

from pulse.common.histogram import Histogram

_NEVER = float("-inf")


class Usage:
    """
    Of one pool.

    Args:
        size: Most connections.

    Attributes:
        in_use: Connections in use now.
        failures: Uses that ended because the database was away.
        took: How long the other uses took, with the wait for a connection.
        answered_s: When the last use succeeded; monotonic clock.
        failed_s: When the last use failed.
        failing_s: When the first use failed since the last success; None: none has.
    """

    __slots__ = ("answered_s", "failed_s", "failing_s", "failures", "in_use", "size", "took")

    def __init__(self, size: int) -> None:
        self.size = size
        self.in_use = 0
        self.failures = 0
        self.took = Histogram()
        self.answered_s = _NEVER
        self.failed_s = _NEVER
        self.failing_s: float | None = None

    def taken(self) -> None:
        """A connection was taken."""
        self.in_use += 1

    def given_back(self) -> None:
        """A connection came back."""
        self.in_use -= 1

    def answered(self, began_s: float, now_s: float) -> None:
        """A use succeeded."""
        self.took.add(now_s - began_s)
        self.answered_s, self.failing_s = now_s, None

    def failed(self, now_s: float) -> None:
        """A use failed, because the database was away."""
        self.failures += 1
        self.failed_s = now_s
        if self.failing_s is None:
            self.failing_s = now_s

    def told(self) -> dict[str, object]:
        """The numbers for the answer to `stats`."""
        return {"size": self.size, "in_use": self.in_use, "failures": self.failures, "took_s": self.took.told()}


def away_s(usages: Iterable[Usage], now_s: float) -> float:
    """For how long the database has not answered; 0: it answered last."""
    known = list(usages)
    answered_s = max((one.answered_s for one in known), default=_NEVER)
    failing = [one.failing_s for one in known if one.failing_s is not None and one.failed_s > answered_s]
    return now_s - max(min(failing), answered_s) if failing else 0.0
