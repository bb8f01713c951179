"""
Where claims go on: for each level, a topic and a priority, the due time of what was claimed last. Pure: times come in.

A claim from the start of the index walks over every dead entry at the queue's head, and while some session holds a
snapshot (a long report, pg_dump, an idle transaction) none of them can be removed: claims get slower and slower. A
claim that starts where the last one ended does not meet them. What appears behind a cursor (a transaction that took
long to commit, a row that was locked) and levels that nobody has told of are found by a full claim, from the start,
made at every poll; where it finds more than it may take, the cursor goes back until all of that is claimed. Once it has
become dear it is made rarely, the more so the longer that lasts, and claims of *windows* take its place: the last
seconds behind every cursor, at all priorities, often; longer windows less often.

A claim of few topics names all their known levels. One of many names those that may have work: that were told of, or
were not empty when last claimed, the least recently served first; so it costs the same whether a worker serves fifty
topics or ten thousand, and no topic starves another. No full claim looks for their levels: a *survey* walks over those
that have rows, part by part.

Topics in which nothing is known to wait are not claimed at all until the next poll, else each wake would cost one claim
for every set of topics that some worker serves.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from pulse.store.rows import Claim, Level
from pulse_actors.shared.duty_cycle import rest_s

BACK_S: Final = 0.001  # cursors are floats: go on a little before
MAX_LEVELS: Final = 50_000  # levels; behind them are full claims
LEVELS_MAX: Final = 100  # in one claim of many topics; what is left comes next
SURVEY: Final = 500  # levels of one part: some milliseconds
CHEAP_S: Final = 0.05  # a full claim that costs no more may be repeated soon
CHEAP_SHARE: Final = 0.2  # of the time
DEAR_SHARE: Final = 0.01
UNWANTED_SHARE: Final = 0.001  # a dear one that nobody has asked for: everybody waits meanwhile
FULL_PAUSE_MAX_S: Final = 10.0  # what it cost may have been the database's absence, or a pause of this process
UNWANTED_PAUSE_MAX_S: Final = 1000.0
WINDOWS_S: Final = (2.0, 20.0, 200.0)  # how far back
WINDOW_PAUSES: Final = 2.0  # so many of each in its own length
WINDOW_SHARE: Final = 0.02  # of the time, for each of them
WANTED_SHARE: Final = 0.2  # for the shortest, when there is news
FEW_TOPICS: Final = 20  # for each of which every priority is looked at; of more, levels are surveyed
FIRST: Final = Level("", -101)  # before all levels
PRIORITIES: Final = range(100, -101, -1)
_PRIORITY: Final = attrgetter("priority")
RECENT_S: Final = 5.0  # what a claim looks at where it is told no time


class LevelStart(NamedTuple):
    """From where to claim a level: Unix seconds, None: what became due in the last seconds."""

    topic: str
    priority: int
    from_s: float | None


class Cursors:
    """
    The cursors of one dispatcher.

    Args:
        poll_s: Longest pause between two full claims while somebody has room, if they are cheap.
    """

    def __init__(self, poll_s: float) -> None:
        self._poll_s = poll_s
        self._positions: dict[Level, float | None] = {}
        self._reached: dict[Level, float] = {}  # where cursors were that have gone back, until all there is claimed
        self._first_due: dict[Level, float] = {}  # the first due times that were told of since the claim began
        self._priorities: dict[str, set[int]] = {}  # of the topics that are known
        self._busy: dict[int, dict[str, int]] = {}  # priority -> topics that may have work, the next one first -> news
        self._version = 0
        self._began_s = 0.0  # when the last claim did
        self._empty_s: dict[frozenset[str], float] = {}  # topics whose last claim has found all there was -> when
        self._survey: Level | None = None  # behind which the next part begins
        self._survey_again = False
        self._wanted = True  # nothing is known yet
        self._recent = False
        self._full_s = float("-inf")  # when the last full claim ended
        self._full_took_s = 0.0
        self._dear_since_s = float("inf")  # since when all full claims were
        self._next_s = [float("-inf")] * len(WINDOWS_S)  # when a claim of each window may be made
        self._next_recent_s = float("-inf")  # when the shortest may be, if there is news

    @property
    def _dear(self) -> bool:
        return self._full_took_s > CHEAP_S

    @property
    def _next_full_s(self) -> float:
        """When a full claim may be made."""
        share, most_s = CHEAP_SHARE, FULL_PAUSE_MAX_S
        if self._dear:
            share = DEAR_SHARE
            if not self._wanted:
                share = UNWANTED_SHARE  # not for longer than it has been so: it may have waited for a lock
                most_s = max(most_s, min(self._full_s - self._dear_since_s, UNWANTED_PAUSE_MAX_S))
        return self._full_s + rest_s(self._full_took_s, share, most_s)

    def want_full(self) -> None:
        """There may be work anywhere: at a level that is not known, and long due."""
        self._wanted = True
        self._version += 1
        for level in self._positions:
            self._note(level)

    def want_recent(self) -> None:
        """There is work that is due since a moment, nobody knows at which level."""
        self._recent = True

    def learn(self, level: Level, due_s: float | None = None) -> None:
        """There is new work at *level*: due then (Unix seconds), None: about now. It may lie behind the cursor."""
        self._version += 1
        if level not in self._positions:
            self._add_level(level, None if due_s is None else due_s - BACK_S)
        position = self._positions[level]
        if due_s is not None:
            self._first_due[level] = min(self._first_due.get(level, due_s), due_s)
            if position is not None:
                self._positions[level] = min(position, due_s - BACK_S)
        self._note(level)

    def found(self, level: Level, due_s: float) -> None:
        """The first job of *level* is due then: what is known of it is no reason to look behind that only."""
        self.learn(level, due_s)
        if self._positions[level] is None:
            self._positions[level] = due_s - BACK_S

    def _note(self, level: Level) -> None:
        self._busy.setdefault(level.priority, {})[level.topic] = self._version

    def begin(self, now_s: float = 0.0) -> int:
        """A claim begins: what is told from now on it may miss. How much was told before, for ``exhausted``."""
        self._first_due.clear()
        self._began_s = now_s
        return self._version

    def exhausted(self, looked_at: Sequence[LevelStart] | Sequence[str], version: int) -> None:
        """
        A claim has found all there was; what was told since it began it may have missed.

        Args:
            looked_at: Its levels, or the topics of a full one.
            news_count: What ``begin`` has returned.
        """
        for one in looked_at:
            priorities = (one.priority,) if isinstance(one, LevelStart) else self._busy
            topic = one.topic if isinstance(one, LevelStart) else one
            for priority in priorities:
                topics = self._busy.get(priority, {})
                if topics.get(topic, version + 1) <= version:
                    del topics[topic]
                    self._go_on(Level(topic, priority))

    def emptied(self, topics: Sequence[str]) -> None:
        """The claim that ``begin`` was told of has found all there was in *topics*."""
        self._empty_s[frozenset(topics)] = self._began_s

    def is_empty(self, topics: Sequence[str], now_s: float) -> bool:
        """Whether the last claim of *topics* has just found all there was, and nobody has told of any work since."""
        if self._wanted or self._recent or now_s - self._empty_s.get(frozenset(topics), float("-inf")) >= self._poll_s:
            return False
        return not any(topic in busy for busy in self._busy.values() for topic in topics)

    def _go_on(self, level: Level) -> None:
        """What lay behind the cursor is claimed: on from where it was, else dead entries are walked over again."""
        reached = self._reached.pop(level, None)
        if reached is not None:
            self._positions[level] = max(reached, self._positions[level] or reached)

    def is_full_due(self, now_s: float) -> bool:
        """Whether the next claim is to be a full one."""
        return now_s >= self._next_full_s and (self._is_asked_for or self._is_polling(now_s))

    @property
    def _is_asked_for(self) -> bool:
        return self._wanted or self._recent or self._survey is not None

    def _is_polling(self, now_s: float) -> bool:
        return now_s - self._full_s >= self._poll_s

    def window_due(self, now_s: float) -> int | None:
        """Which window the next claim is to look at; None: none. Where full claims are cheap, they do it all."""
        if not self._dear:
            return None
        due = [index for index, next_s in enumerate(self._next_s) if now_s >= next_s]
        if self._recent and now_s >= self._next_recent_s:
            due.append(0)
        return max(due, default=None)

    def pause_s(self, now_s: float) -> float:
        """How long until a claim of another kind than that of the cursors is due by itself."""
        next_s = self._next_full_s
        if self._dear:
            next_s = min(next_s, *self._next_s, self._next_recent_s if self._recent else next_s)
        elif not self._is_asked_for:
            next_s = max(next_s, self._full_s + self._poll_s)
        return max(next_s - now_s, 0.0)

    def full_begins(self) -> None:
        """A full claim begins: what is wanted from now on it may miss."""
        if self._survey is not None:  # it has passed some levels already
            self._survey_again |= self._wanted or self._recent
        self._wanted = self._recent = False
        self._empty_s.clear()  # who has no room now has not looked

    def full_done(self, began_s: float, ended_s: float) -> None:
        """A full claim was made."""
        self._full_s, self._full_took_s = ended_s, ended_s - began_s
        self._dear_since_s = min(self._dear_since_s, began_s) if self._dear else float("inf")

    def survey_from(self) -> Level:
        """Behind which level the next part of a survey begins."""
        return self._survey or FIRST

    def surveyed(self, found: Sequence[Level]) -> None:
        """A part of a survey has found these, which may have work or not."""
        if len(found) == SURVEY:
            self._survey = found[-1]
        elif self._survey_again:
            self._survey, self._survey_again = FIRST, False
        else:
            self._survey = None

    def window_begins(self) -> None:
        """A claim of a window begins: news from now on it may miss."""
        self._recent = False
        self._empty_s.clear()

    def window_done(self, index: int, began_s: float, ended_s: float) -> None:
        """A claim of a window was made; it has looked at the shorter ones, too."""
        took_s = ended_s - began_s
        for one in range(index):
            self._next_s[one] = ended_s + WINDOWS_S[one] / WINDOW_PAUSES
        share, most_s = WINDOW_SHARE, WINDOWS_S[index] + FULL_PAUSE_MAX_S
        if took_s > CHEAP_S:  # everybody waits meanwhile
            share, most_s = UNWANTED_SHARE, UNWANTED_PAUSE_MAX_S
        self._next_s[index] = ended_s + max(WINDOWS_S[index] / WINDOW_PAUSES, rest_s(took_s, share, most_s))
        self._next_recent_s = ended_s + rest_s(took_s, WANTED_SHARE, FULL_PAUSE_MAX_S)

    def window(self, topics: Sequence[str], index: int, wall_s: float) -> list[LevelStart]:
        """
        The same as ``starts``, some way back, with levels that are not known.

        Args:
            topics: As for ``starts``.
            place: Which window.
            wall_s: This host's clock, Unix seconds: roughly the database's.
        """
        back_s = WINDOWS_S[index]
        recent_s = None if back_s <= RECENT_S else wall_s - back_s
        priorities: Collection[int] = PRIORITIES
        if len(topics) > FEW_TOPICS:
            priorities = sorted({0, *(level.priority for level in self._positions)}, reverse=True)
        found: list[LevelStart] = []
        for priority in priorities:
            for topic in topics:
                position = self._positions.get(Level(topic, priority))
                found.append(LevelStart(topic, priority, recent_s if position is None else position - back_s))
        return found

    def starts(
        self, topics: Sequence[str], ageing_s: Mapping[str, float] | None = None, wall_s: float = 0.0
    ) -> list[LevelStart]:
        """
        Where to claim, highest priority first.

        Of few topics all known levels, in the order of *topics*; of many those that may have work, LEVELS_MAX at most,
        the least recently served first.

        Args:
            topics: Of the claim.
            ageing_s: Of those of them that age: how many seconds of waiting are worth one priority.
            wall_s: This host's clock, Unix seconds: roughly the database's.
        """
        found: list[LevelStart] = []
        if len(topics) <= FEW_TOPICS:
            for topic in topics:
                levels = (Level(topic, priority) for priority in self._priorities.get(topic, ()))
                found += [LevelStart(*level, self._positions[level]) for level in levels]
            found.sort(key=_PRIORITY, reverse=True)  # the order within a priority stays
            return found
        served = set(topics)
        busy = (
            LevelStart(topic, priority, self._positions[Level(topic, priority)])
            for priority in sorted(self._busy, reverse=True)
            for topic in self._busy[priority]
            if topic in served
        )
        if not ageing_s:
            return list(itertools.islice(busy, LEVELS_MAX))

        def rank(start: LevelStart) -> float:
            """At most: nothing waits there for longer than since the job that was claimed last was due."""
            age_s = ageing_s.get(start.topic)
            if age_s is None or start.from_s is None:
                return start.priority
            return start.priority + (wall_s - start.from_s) / age_s

        return heapq.nlargest(LEVELS_MAX, busy, key=rank)

    def claimed(self, claims: Iterable[Claim], *, more: bool = False) -> None:
        """
        These were claimed: the next claim goes on behind them, and may find more there.

        Args:
            claims: Which.
            more: It took all it may. What lay behind a cursor may be the first of many, so that goes back to there.
        """
        newest: dict[tuple[str, int], float] = {}
        for claim in claims:
            key = (claim.topic, claim.priority)
            newest[key] = max(newest.get(key, claim.due_at), claim.due_at)
        for key, due_at in newest.items():
            level = Level(*key)
            position = min(due_at, self._first_due.get(level, due_at)) - BACK_S
            if level not in self._positions:
                self._add_level(level, None)
            before = self._positions[level]
            if before is None or before < position:
                self._positions[level] = position
            elif more:
                self._reached.setdefault(level, before)
                self._positions[level] = position
            busy = self._busy.setdefault(level.priority, {})
            busy[level.topic] = busy.pop(level.topic, 0)  # behind the others

    def _add_level(self, level: Level, position: float | None) -> None:
        if len(self._positions) >= MAX_LEVELS:
            oldest = next(iter(self._positions))  # the one that has been known for longest
            del self._positions[oldest]
            self._reached.pop(oldest, None)
            self._busy.get(oldest.priority, {}).pop(oldest.topic, None)
            self._priorities[oldest.topic].remove(oldest.priority)
            if not self._priorities[oldest.topic]:
                del self._priorities[oldest.topic]
        self._positions[level] = position
        self._priorities.setdefault(level.topic, set()).add(level.priority)
