"""
Topics that cannot be claimed for a while, since the database cannot read one of their jobs, or takes too long. Pure.

SQL may write args of a few KiB that print as gigabytes: 1e131071 is a number of jsonb. All other topics go on: topics
that were claimed together are claimed in halves, and halves of these, until the bad one is alone. A claim that took too
long may be fast the next time, so its topics first wait, longer each time, and only then are divided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from pulse.store.failures import STUBBORN
from pulse_actors.dispatcher.workers.registry import TopicWorkers

SHORTEST_S: Final = 0.5
LONGEST_S: Final = 10.0
REFUSED_S: Final = (
    2.0  # where the database refuses the claim for another reason than its length: that may heal at any time
)
APART_S: Final = 60.0  # then all of them are claimed together again, unless one is still quarantined


class Quarantine:
    """
    The topics whose claims failed.

    Attributes:
        is_active: A claim has failed recently, and its topics are in quarantine or divided.
    """

    def __init__(self) -> None:
        self.is_active = False
        self._pauses: dict[
            frozenset[str], tuple[float, float, bool]
        ] = {}  # until when; how long that was; whether it lasts
        self._full: set[frozenset[str]] = set()  # topics of failed claims that were to be full
        self._apart: dict[frozenset[str], float] = {}  # sets of topics that are claimed in halves, until when
        # How often in a row a claim of these topics (full or not) got an error that may be a refusal.
        self._unbelieved: Counter[tuple[frozenset[str], bool]] = Counter()

    def is_refused(self, topics: Sequence[str], *, full: bool) -> bool:
        """A claim of *topics* got "away" or "locked" at once; returns whether so often that a row must cause it."""
        self.is_active = True
        self._unbelieved[frozenset(topics), full] += 1
        return self._unbelieved[frozenset(topics), full] >= STUBBORN

    def failed(self, topics: Sequence[str], now_s: float, *, lasts: bool, full: bool = False) -> float:
        """
        A claim of *topics* failed; returns the seconds until the next.

        Args:
            topics: The topics that were claimed together.
            now_s: Monotonic.
            lasts: The cause will not go away soon.
            full: It was a full claim.
        """
        key, self.is_active = frozenset(topics), True
        if full:
            self._full.add(key)
        _, before_s, _ = self._pauses.get(key, (0.0, SHORTEST_S / 2, False))
        pause_s = REFUSED_S if lasts else min(LONGEST_S, 2 * before_s)
        wholes = [one for one in self._apart if key < one]
        if len(key) > 1 and (wholes or lasts or pause_s >= LONGEST_S):  # a half of divided topics never waits first
            self._pauses.pop(key, None)
            self._apart.update(dict.fromkeys([*wholes, key], now_s + APART_S))
            return 0.0
        self._pauses[key] = (now_s + pause_s, pause_s, lasts)
        return pause_s

    def succeeded(self, topics: Sequence[str], *, full: bool) -> None:
        """A claim of *topics* succeeded."""
        key = frozenset(topics)
        self._pauses.pop(key, None)
        for kind in (full, False):
            self._unbelieved.pop((key, kind), None)
        self.is_active = bool(self._pauses or self._full or self._apart or self._unbelieved)

    def has_missed(self, now_s: float) -> bool:
        """Whether topics are free again that missed a full claim; returns True once."""
        over = {key for key in self._full if now_s >= self._pauses.get(key, (now_s, 0.0, False))[0]}
        self._full -= over
        return bool(over)

    def holds(self, topics: tuple[str, ...], now_s: float) -> bool:
        """Whether none of *topics* may be claimed now."""
        return bool(self._pauses) and not self.parts(topics, now_s)

    def is_quarantined(self, topic: str, now_s: float) -> bool:
        """Whether *topic* is in quarantine for more than a moment."""
        until_s, pause_s, lasts = self._pauses.get(frozenset((topic,)), (0.0, 0.0, False))
        return now_s < until_s and (lasts or pause_s >= LONGEST_S)

    def parts(self, topics: tuple[str, ...], now_s: float) -> list[tuple[str, ...]]:
        """The subsets of *topics* to claim together now, without those in quarantine."""
        key = frozenset(topics)
        if self._are_apart(key, now_s):
            ordered = tuple(sorted(key))  # sorted, to get the same halves each time
            middle = len(ordered) // 2
            return [*self.parts(ordered[:middle], now_s), *self.parts(ordered[middle:], now_s)]
        return [] if now_s < self._pauses.get(key, (now_s, 0.0, False))[0] else [topics]

    def divided(self, serving: Iterable[TopicWorkers], now_s: float) -> Iterator[TopicWorkers]:
        """What may be claimed together of the topics of *serving*, monotonic clock *now_s*."""
        for one in serving:
            parts = self.parts(one.topics, now_s)
            for part in sorted(parts, key=lambda part: one.topics[0] not in part):  # each part is first in its turn
                yield replace(one, topics=tuple(topic for topic in one.topics if topic in part))

    def _are_apart(self, key: frozenset[str], now_s: float) -> bool:
        until_s = self._apart.get(key)
        if until_s is None:
            return False
        if now_s < until_s or any(frozenset((topic,)) in self._pauses for topic in key):
            return True
        del self._apart[key]
        return False
