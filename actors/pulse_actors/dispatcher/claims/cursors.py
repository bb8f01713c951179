"""
Where the next claim of each level (topic and priority) begins: at the due time of the last claimed job. Pure.

A claim from the start of the index walks over every dead entry at the queue's head. While a session holds a snapshot (a
long report, pg_dump, an idle transaction) none of them can be removed: claims get slower and slower. A claim that
starts where the last one ended does not meet them. Two kinds of jobs are missed so: jobs that appear behind a cursor (a
transaction that took long to commit, a row that was locked), and jobs of unknown levels. A full claim, from the start,
finds them at every poll; if it finds more than it may take, the cursor goes back until all of that is claimed. When
full claims become slow they are made rarely, and claims of *windows* take their place: the last seconds behind every
cursor, at all priorities, often; longer windows less often.

A claim of few topics names all their known levels. A claim of many topics names those that may have work (they got
some, or were not empty when last claimed), the least recently served first: so it costs the same for fifty topics or
ten thousand, and no topic starves another. No full claim looks for their levels: a *survey* walks over the levels that
have rows, part by part.

Topics without known work are not claimed until the next poll: else each wake would cost one claim for every set of
topics that some worker serves.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from pulse.store.rows import Claim, Level
from pulse_actors.shared.duty_cycle import rest_s

BACK_S: Final = 0.001  # cursors are floats: begin a little before
MAX_LEVELS: Final = 50_000  # remembered levels; full claims find the others
LEVELS_MAX: Final = 100  # in one claim of many topics; the next claim takes the others
SURVEY: Final = 500  # levels in one part: some milliseconds
CHEAP_S: Final = 0.05  # a full claim that takes no longer may be repeated soon
CHEAP_SHARE: Final = 0.2  # of the time
DEAR_SHARE: Final = 0.01
UNWANTED_SHARE: Final = 0.001  # a slow full claim that nothing asks for: everybody waits meanwhile
FULL_PAUSE_MAX_S: Final = 10.0  # the last one may have been slow because the database was away
UNWANTED_PAUSE_MAX_S: Final = 1000.0
WINDOWS_S: Final = (2.0, 20.0, 200.0)  # how far back each window looks
WINDOW_PAUSES: Final = 2.0  # claims of each window within its own length
WINDOW_SHARE: Final = 0.02  # of the time, for each of them
WANTED_SHARE: Final = 0.2  # for the shortest one, when there is news
FEW_TOPICS: Final = 20  # up to so many topics, claims name every priority; beyond, levels are surveyed
FIRST: Final = Level("", -101)  # before all levels
PRIORITIES: Final = range(100, -101, -1)
_PRIORITY: Final = attrgetter("priority")
_NEVER: Final = float("-inf")
RECENT_S: Final = 5.0  # how far back a claim looks if it gets no time


class LevelStart(NamedTuple):
    """Where to begin claiming a level: Unix seconds, None: with what became due in the last seconds."""

    topic: str
    priority: int
    from_s: float | None


class Cursors:
    """
    The cursors of one dispatcher.

    Args:
        poll_s: Longest pause between two full claims while a worker has room, if they are fast.
    """

    def __init__(self, poll_s: float) -> None:
        self._poll_s = poll_s
        self._positions: dict[Level, float | None] = {}
        self._reached: dict[Level, float] = {}  # positions of cursors that have gone back, for ``_go_on``
        self._first_due: dict[Level, float] = {}  # the first due times that were learned since the claim began
        self._priorities: dict[str, set[int]] = {}  # priorities of the known topics
        self._busy: dict[int, dict[str, int]] = {}  # priority -> topics that may have work, the next one first -> news
        self._version = 0
        self._began_s = 0.0  # when the last claim did
        self._empty_s: dict[frozenset[str], float] = {}  # topics whose last claim was exhausted -> when
        self._survey: Level | None = None  # the level after which the next part begins
        self._survey_again = False
        self._wanted = True  # nothing is known yet
        self._recent = False
        self._full_s = float("-inf")  # when the last full claim ended
        self._full_took_s = 0.0
        self._dear_since_s = float("inf")  # since when all full claims were slow
        self._next_s = [float("-inf")] * len(WINDOWS_S)  # when the next claim of each window is allowed
        self._next_recent_s = float("-inf")  # when the next claim of the shortest is allowed, if there is news

    @property
    def _dear(self) -> bool:
        return self._full_took_s > CHEAP_S

    @property
    def _next_full_s(self) -> float:
        """When the next full claim is allowed."""
        share, most_s = CHEAP_SHARE, FULL_PAUSE_MAX_S
        if self._dear:
            slow_s = self._full_s - self._dear_since_s  # one that was slow alone may have waited for a lock
            share, most_s = DEAR_SHARE, min(most_s, slow_s)
            if not self._wanted:
                share, most_s = UNWANTED_SHARE, max(FULL_PAUSE_MAX_S, min(slow_s, UNWANTED_PAUSE_MAX_S))
        return self._full_s + rest_s(self._full_took_s, share, most_s)

    def want_full(self) -> None:
        """There may be work anywhere: at unknown levels, and long due."""
        self._wanted = True
        self._version += 1
        for level in self._positions:
            self._note(level)

    def want_recent(self) -> None:
        """There is work that became due just now, at an unknown level."""
        self._recent = True

    def learn(self, level: Level, due_s: float | None = None) -> None:
        """There is new work at *level*, due then (Unix seconds; None: about now). It may be behind the cursor."""
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
        """
        The first job of *level* is due then; unlike ``learn`` this does not restrict where the next claim begins.

        It may be one that no claim takes, so the cursor does not stay there.
        """
        before = self._positions.get(level)
        self.learn(level, due_s)
        if before is not None:
            self._reached.setdefault(level, before)
        elif self._positions[level] is None:
            self._positions[level] = due_s - BACK_S

    def _note(self, level: Level) -> None:
        self._busy.setdefault(level.priority, {})[level.topic] = self._version

    def begin(self, now_s: float = 0.0) -> int:
        """A claim begins and may miss later news; returns how many news there were before, for ``exhausted``."""
        self._first_due.clear()
        self._began_s = now_s
        return self._version

    def exhausted(self, looked_at: Sequence[LevelStart] | Sequence[str], version: int) -> None:
        """
        A claim has found everything at its levels, except news that came after it began.

        Args:
            looked_at: The levels, or for a full claim the topics.
            version: What ``begin`` returned.
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
        """The claim of the last ``begin`` has found everything in *topics*."""
        self._empty_s[frozenset(topics)] = self._began_s

    def is_empty(self, topics: Sequence[str], now_s: float) -> bool:
        """Whether the last claim of *topics* was exhausted just now, and no news has come since."""
        if self._wanted or self._recent or now_s - self._empty_s.get(frozenset(topics), float("-inf")) >= self._poll_s:
            return False
        return not any(topic in busy for busy in self._busy.values() for topic in topics)

    def _go_on(self, level: Level) -> None:
        """Everything behind the cursor is claimed: go on from where it was, to not walk over dead entries again."""
        reached = self._reached.pop(level, None)
        if reached is not None:
            self._positions[level] = max(reached, self._positions[level] or reached)

    def is_full_due(self, now_s: float) -> bool:
        """Whether the next claim must be a full one."""
        return now_s >= self._next_full_s and (self._is_asked_for or self._is_polling(now_s))

    @property
    def _is_asked_for(self) -> bool:
        return self._wanted or self._recent or self._survey is not None

    def _is_polling(self, now_s: float) -> bool:
        return now_s >= self._full_s + self._poll_s  # to the last bit as ``pause_s`` has it: else it waits for 0 s

    def window_due(self, now_s: float) -> int | None:
        """The window for the next claim; None: none. Where full claims are fast, they make windows unnecessary."""
        if not self._dear:
            return None
        due = [index for index, next_s in enumerate(self._next_s) if now_s >= next_s]
        if self._recent and now_s >= self._next_recent_s:
            due.append(0)
        return max(due, default=None)

    def pause_s(self, now_s: float) -> float:
        """Seconds until a full claim or one of a window is due by itself."""
        next_s = self._next_full_s
        if self._dear:
            next_s = min(next_s, *self._next_s, self._next_recent_s if self._recent else next_s)
        elif not self._is_asked_for:
            next_s = max(next_s, self._full_s + self._poll_s)
        return max(next_s - now_s, 0.0)

    def full_begins(self) -> None:
        """A full claim begins; it may miss what becomes wanted from now on."""
        if self._survey is not None:  # the survey has passed some levels already
            self._survey_again |= self._wanted or self._recent
        self._wanted = self._recent = False
        self._empty_s.clear()  # workers without room now were not in it

    def full_done(self, began_s: float, ended_s: float) -> None:
        """A full claim was made."""
        self._full_s, self._full_took_s = ended_s, ended_s - began_s
        self._dear_since_s = min(self._dear_since_s, began_s) if self._dear else float("inf")

    def survey_from(self) -> Level:
        """The level after which the next part of a survey begins."""
        return self._survey or FIRST

    def surveyed(self, found: Sequence[Level]) -> None:
        """A part of a survey has found these levels, which may have work."""
        if len(found) == SURVEY:
            self._survey = found[-1]
        elif self._survey_again:
            self._survey, self._survey_again = FIRST, False
        else:
            self._survey = None

    def window_begins(self) -> None:
        """A claim of a window begins; it may miss later news."""
        self._recent = False
        self._empty_s.clear()

    def window_done(self, index: int, began_s: float, ended_s: float) -> None:
        """A claim of a window was made, which covers the shorter ones, too."""
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
        As ``starts``, but some way back, and with unknown levels.

        Args:
            topics: As for ``starts``.
            place: Index of the window.
            wall_s: This host's clock, Unix seconds: about the database's.
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

        All known levels of few topics, in the order of *topics*; of many topics those that may have work, at most
        LEVELS_MAX, the least recently served first.

        Args:
            topics: Topics of the claim.
            ageing_s: For topics that age: how many seconds of waiting are worth one priority.
            wall_s: This host's clock, Unix seconds: about the database's.
        """
        found: list[LevelStart] = []
        if len(topics) <= FEW_TOPICS:
            for topic in topics:
                levels = (Level(topic, priority) for priority in self._priorities.get(topic, ()))
                found += [LevelStart(*level, self._positions[level]) for level in levels]
            found.sort(key=_PRIORITY, reverse=True)  # stable: the order within a priority stays
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
            """Upper bound: no job there has waited since before the last claimed job was due."""
            age_s = ageing_s.get(start.topic)
            if age_s is None or start.from_s is None:
                return start.priority
            return start.priority + (wall_s - start.from_s) / age_s

        return heapq.nlargest(LEVELS_MAX, busy, key=rank)

    def claimed(self, claims: Iterable[Claim], *, more: bool = False) -> None:
        """
        These jobs were claimed: the next claim begins after them, and may find more there.

        Args:
            claims: The claimed jobs.
            more: The claim was full. A job behind a cursor may be the first of many, so that cursor goes back to it.
        """
        newest: dict[tuple[str, int], float] = {}
        for claim in claims:
            key, due_at = (claim.topic, claim.priority), claim.due_at
            if newest.get(key, _NEVER) < due_at:
                newest[key] = due_at
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
            busy[level.topic] = busy.pop(level.topic, 0)  # after the others

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
