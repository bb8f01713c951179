"""
Topics whose claims cannot be made for a while, since the database cannot read one of their jobs, or not in time. Pure.

SQL may write args of a few KiB that print as gigabytes: 1e131071 is a number of jsonb. All other topics go on. That a
claim took too long may have passed by the next time, so its topics are left alone for longer each time only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

SHORTEST_S: Final = 0.5
LONGEST_S: Final = 10.0


class Barred:
    """The topics of claims that failed."""

    def __init__(self) -> None:
        self._pauses: dict[frozenset[str], tuple[float, float]] = {}  # until when; how long that was
        self._full: set[frozenset[str]] = set()  # of claims that were to look at everything

    def failed(self, topics: Sequence[str], now_s: float, *, lasts: bool, full: bool = False) -> float:
        """
        A claim of *topics* failed; until the next, seconds.

        Args:
            topics: Which were claimed together.
            now_s: Monotonic.
            lasts: The reason is not one that may have passed soon.
            full: It was to look at everything there is.
        """
        key = frozenset(topics)
        _, before_s = self._pauses.get(key, (0.0, SHORTEST_S / 2))
        pause_s = LONGEST_S if lasts else min(LONGEST_S, 2 * before_s)
        self._pauses[key] = (now_s + pause_s, pause_s)
        if full:
            self._full.add(key)
        return pause_s

    def succeeded(self, topics: Sequence[str]) -> None:
        """A claim of *topics* was made."""
        if self._pauses:
            self._pauses.pop(frozenset(topics), None)

    def has_missed(self, now_s: float) -> bool:
        """Whether some may be claimed again of which there is everything to be looked at; said once."""
        over = {key for key in self._full if now_s >= self._pauses.get(key, (now_s, 0.0))[0]}
        self._full -= over
        return bool(over)

    def are_barred(self, topics: Sequence[str], now_s: float) -> bool:
        """Whether no claim of *topics* is to be made now."""
        return bool(self._pauses) and now_s < self._pauses.get(frozenset(topics), (now_s, 0.0))[0]

    def is_barred(self, topic: str, now_s: float) -> bool:
        """Whether a job of *topic* waits for that, and not only for a moment."""
        return any(
            topic in topics and now_s < until_s and pause_s >= LONGEST_S
            for topics, (until_s, pause_s) in self._pauses.items()
        )
