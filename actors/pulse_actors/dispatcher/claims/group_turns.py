"""
Which levels of groups, and of topics with a limit, the next claim names, and in which order. Pure.

Groups of a topic take turns: who got jobs goes behind the others. A group that is full, or has no token, is left out
until one of its jobs ends, its token is due, or a survey finds room: so blocked jobs cost nothing, however many there
are.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from pulse.store.limit_claims import Blocked, GroupHead
from pulse.store.rows import Claim, GroupLevel
from pulse_actors.dispatcher.claims.cursors import (
    BACK_S,
    CHEAP_S,
    FULL_PAUSE_MAX_S,
    LEVELS_MAX,
    MAX_LEVELS,
    SURVEY,
    UNWANTED_PAUSE_MAX_S,
)
from pulse_actors.shared.duty_cycle import rest_s

FIRST: Final = GroupLevel("", "", -101)  # before all levels of groups
BUSY_S: Final = 0.002  # until another host's claim has ended
NEVER: Final = float("inf")
WANTED_SHARE: Final = 0.2  # of the time, for surveys that something asks for
POLLING_SHARE: Final = 0.02  # for others
DEARER: Final = 20.0  # so much smaller are both where a part takes long: every claim waits meanwhile

Group: TypeAlias = tuple[str, str | None]  # topic, group


class GroupStart(NamedTuple):
    """Where to begin claiming a level: Unix seconds, None: with what became due in the last seconds."""

    level: GroupLevel
    from_s: float | None


class GroupTurns:
    """
    The turns of one dispatcher.

    Args:
        poll_s: Longest pause between two surveys while a worker has room, if they are fast.

    Attributes:
        limits: Topics that go by a limit -> its name; all their jobs are claimed here, also those without a group.
        levels: Groups with work, maybe: priority -> where claims go on. While there are none, nothing need be asked.
        is_used: Whether there ever was a job of a group, or of a topic with a limit.
        survey_at_s: When to look for unknown work and room, at the next part of all groups (monotonic).
    """

    def __init__(self, poll_s: float) -> None:
        self._poll_s = poll_s
        self.limits: Mapping[str, str] = {}
        self.levels: dict[Group, dict[int, float | None]] = {}
        self.is_used = False
        self._ready: dict[str, dict[Group, int]] = {}  # topic -> groups that may get jobs, the next one first -> news
        self._closed: dict[Group | str, float] = {}  # groups and limits that get none before that monotonic time
        self._opening: list[tuple[float, int, Group | str]] = []
        self._numbers = itertools.count()
        self._version = 0
        self._freed: set[str] = set()  # limits with a new slot
        self._freed_since: set[Group | str] = set()  # limits and groups with a new slot since the claim began
        self._survey: GroupLevel | None = None  # the level after which the next part begins
        self._wanted = True
        self._survey_took_s = 0.0
        self._surveyed_s = float("-inf")
        self.survey_at_s = float("-inf")

    def learn(self, level: GroupLevel, due_s: float | None = None) -> None:
        """There is new work at *level*, due then (Unix seconds; None: about now). It may be behind the last claim."""
        self._version, self.is_used = self._version + 1, True
        group: Group = level[:2]
        if group not in self.levels and len(self.levels) >= MAX_LEVELS:
            self._forget(next(iter(self.levels)))  # a survey finds it again
        levels = self.levels.setdefault(group, {})
        begin_s = None if due_s is None else due_s - BACK_S
        known_s = levels.get(level.priority, begin_s)
        levels[level.priority] = known_s if begin_s is None or known_s is None else min(known_s, begin_s)
        if group not in self._closed:
            self._ready.setdefault(level.topic, {})[group] = self._version

    def use(self) -> None:
        """There is a job of a group."""
        self.is_used = True

    def want_survey(self) -> None:
        """There may be work, or room, that no message has named."""
        self._wanted = True
        self._plan_survey()

    def freed(self, topic: str, group: str | None) -> None:
        """A job of a topic with a limit has ended: its slots are free."""
        limit = self.limits.get(topic)
        if limit is not None:
            self._freed.add(limit)
            for key in (limit, (topic, group)):
                self._freed_since.add(key)
                if self._closed.get(key) == NEVER:  # else it waits for a token
                    self._open(key)

    def has_left_slots(self) -> bool:
        """Whether slots were freed since the last call that no claim here has taken."""
        freed, self._freed = self._freed, set()
        return bool(freed)

    def set_limits(self, limits: Mapping[str, str]) -> None:
        """Topics that go by a limit, and its name; policies may have changed, too."""
        self.limits = limits
        for key in list(self._closed):
            self._open(key)

    def has_turns(self, topics: Iterable[str]) -> bool:
        """Whether some group of *topics* may get jobs."""
        return any(self._ready.get(topic) and not self._is_closed(topic) for topic in topics)

    def starts(self, topics: Iterable[str], now_s: float) -> list[GroupStart]:
        """The levels for the next claim of *topics*, at most about LEVELS_MAX: a group of each topic in turn."""
        self._open_due(now_s)
        found: list[GroupStart] = []
        for group in _in_turn(
            [self._ready[one] for one in topics if self._ready.get(one) and not self._is_closed(one)]
        ):
            if len(found) >= LEVELS_MAX:
                break
            levels = self.levels[group]
            found += [GroupStart(GroupLevel(*group, one), levels[one]) for one in sorted(levels, reverse=True)]
        return found

    def begin(self) -> int:
        """A claim begins and may miss later news; returns how many there were before, for ``claimed``."""
        self._freed_since.clear()
        return self._version

    def claimed(
        self,
        starts: Sequence[GroupStart],
        claims: Sequence[Claim],
        blocked: Iterable[Blocked],
        *,
        most: int,
        is_full: bool,
        version: int,
        now_s: float,
    ) -> bool:
        """
        A claim has answered.

        Args:
            starts: The levels that it named.
            claims: What was claimed at these levels.
            blocked: Where nothing could be; a slot that was freed since it began is looked at again.
            most: How many jobs of one level it might take.
            is_full: Whether it took as much as it could in all, so that there may be more everywhere.
            version: What ``begin`` returned.
            now_s: Monotonic.

        Returns:
            Whether there may be more to claim at once.
        """
        left_out: set[Group] = set()
        for one in blocked:
            left_out.add(one.level[:2])
            self._close(one, now_s)
        taken: Counter[Group] = Counter()
        served: set[str] = set()  # limits
        for claim in claims:
            group = (claim.topic, claim.group_key)
            taken[group] += 1
            self._go_on(group, claim)
            if claim.topic in self.limits:
                served.add(self.limits[claim.topic])
        self._freed -= served
        for group in {start.level[:2]: None for start in starts}:
            if group in left_out or self._is_closed(group[0]):
                continue
            ready = self._ready.get(group[0], {})
            if taken[group] and group in ready:
                ready[group] = ready.pop(group)  # behind the others
            if not is_full and taken[group] < most and self.limits.get(group[0]) not in served:
                self._exhausted(group, version)
        return bool(claims) or self.has_turns({start.level.topic for start in starts})

    def _go_on(self, group: Group, claim: Claim) -> None:
        """The next claim of that level begins at this job, unless an earlier one is known since."""
        levels = self.levels.get(group, {})
        position = levels.get(claim.priority)
        if claim.priority in levels and (position is None or position < claim.due_at - BACK_S):
            levels[claim.priority] = claim.due_at - BACK_S

    def _close(self, blocked: Blocked, now_s: float) -> None:
        """Leave out what is blocked: the group, or the whole limit."""
        until_s = {"full": NEVER, "busy": now_s + BUSY_S}.get(blocked.verdict, now_s + (blocked.retry_s or 0.0))
        group: Group = blocked.level[:2]
        limit = self.limits.get(group[0])
        key = limit if blocked.of_limit and limit is not None else group
        if blocked.verdict == "full" and key in self._freed_since:
            return
        self._closed[key] = until_s
        if until_s < NEVER:
            heapq.heappush(self._opening, (until_s, next(self._numbers), key))
        if key == group:
            self._ready.get(group[0], {}).pop(group, None)

    def _is_closed(self, topic: str) -> bool:
        return self.limits.get(topic) in self._closed

    def _open(self, key: Group | str) -> None:
        self._closed.pop(key, None)
        if not isinstance(key, str) and key in self.levels:
            self._ready.setdefault(key[0], {}).setdefault(key, self._version)

    def _open_due(self, now_s: float) -> None:
        while self._opening and self._opening[0][0] <= now_s:
            key = heapq.heappop(self._opening)[2]
            if self._closed.get(key, NEVER) > now_s:
                continue  # opened, and closed again for longer
            self._open(key)

    def _exhausted(self, group: Group, version: int) -> None:
        """The claim has found everything there was before it began."""
        if self._ready.get(group[0], {}).get(group, version + 1) <= version:
            self._forget(group)

    def _forget(self, group: Group) -> None:
        self.levels.pop(group, None)
        self._closed.pop(group, None)
        self._ready.get(group[0], {}).pop(group, None)

    def opens_s(self) -> float:
        """When something opens by itself (monotonic)."""
        return self._opening[0][0] if self._opening else NEVER

    def _plan_survey(self) -> None:
        share, least_s, most_s = POLLING_SHARE, self._poll_s, UNWANTED_PAUSE_MAX_S
        if self._survey is not None or self._wanted:
            share, least_s, most_s = WANTED_SHARE, 0.0, FULL_PAUSE_MAX_S
        if self._survey_took_s > CHEAP_S:
            share /= DEARER
        self.survey_at_s = self._surveyed_s + max(least_s, rest_s(self._survey_took_s, share, most_s))

    def survey_from(self) -> GroupLevel:
        """The level after which the next part begins."""
        return self._survey or FIRST

    def survey_begins(self) -> bool:
        """A part is read; it may miss what becomes wanted from now on. Returns whether it is the first part."""
        if self._survey is None:
            self._wanted = False
            for key in [key for key, until_s in self._closed.items() if isinstance(key, str) and until_s == NEVER]:
                self._open(key)
        return self._survey is None

    def surveyed(self, heads: Sequence[GroupHead], served: Iterable[str], began_s: float, ended_s: float) -> None:
        """
        A part has found these levels.

        Args:
            heads: The levels.
            served: Topics that workers here serve.
            began_s: Monotonic.
            ended_s: Monotonic.
        """
        here = set(served)
        for head in heads:
            if head.is_due and not head.is_full and head.level.topic in here:
                if self._closed.get(head.level[:2]) == NEVER:
                    self._open(head.level[:2])
                self.found(head.level, head.due_at)
        self._survey = heads[-1].level if len(heads) >= SURVEY else None
        self._survey_took_s, self._surveyed_s = ended_s - began_s, ended_s
        self._plan_survey()

    def found(self, level: GroupLevel, due_s: float) -> None:
        """The first job of *level* is due then."""
        self.learn(level, due_s)
        if self.levels[level[:2]][level.priority] is None:
            self.levels[level[:2]][level.priority] = due_s - BACK_S


def _in_turn(queues: Sequence[Iterable[Group]]) -> Iterator[Group]:
    """One of each in turn."""
    for turn in itertools.zip_longest(*queues):
        yield from (group for group in turn if group is not None)
