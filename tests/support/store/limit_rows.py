"""Limits and groups in the model: what a claim takes where topics have limits or jobs have groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil, floor, inf
from typing import NamedTuple, TypeAlias

from pulse.store.limit_claims import Blocked, GroupHead
from pulse.store.rows import GroupLevel, from_s
from tests.support.store.model import WAITING, Model, ModelJob

RECENT = timedelta(seconds=5)
Group: TypeAlias = tuple[str, str | None]
Start: TypeAlias = tuple[GroupLevel, float | None]  # a level, and where to begin there


@dataclass(slots=True)
class Limit:
    """A limit: options as in ``set_limit``, and what its row counts."""

    concurrency: int | None = None
    group_concurrency: int | None = None
    rate: float | None = None
    claims: int = 0
    tokens: float = inf
    tokens_at: datetime | None = None

    def tokens_now(self, now: datetime) -> float:
        """What is in its bucket, at most a second's worth; inf: it has no rate."""
        if self.rate is None:
            return inf
        since_s = 0.0 if self.tokens_at is None else (now - self.tokens_at).total_seconds()
        return min(max(ceil(self.rate), 1), self.tokens + max(since_s, 0.0) * self.rate)


class Seen(NamedTuple):
    """What a statement sees: how many claims each limit had when it began, and how many jobs ran."""

    claims: dict[str, int]
    running: Counter[str | Group | None]


@dataclass(frozen=True, slots=True)
class Room:
    """
    What a claim may take of a level.

    Attributes:
        of_group: Slots of its group.
        of_limit: Slots of the limit in all.
        tokens: In the bucket of the limit.
        retry_s: Until its next token.
        is_busy: Another claim under the limit has ended since this one began.
    """

    start: Start
    place: int
    name: str | None
    of_group: float = inf
    of_limit: float = inf
    tokens: float = inf
    retry_s: float = 0.0
    is_busy: bool = False

    @property
    def in_all(self) -> float:
        return min(self.of_limit, floor(self.tokens) if self.tokens < inf else inf)

    def blocked(self) -> Blocked | None:
        level, slots = self.start[0], min(self.of_group, self.of_limit)
        if self.is_busy:
            return Blocked(level, "busy", None, of_limit=True)
        if slots <= 0:
            return Blocked(level, "full", None, of_limit=self.of_limit <= 0)
        return Blocked(level, "rate", self.retry_s, of_limit=True) if self.tokens < 1 else None


@dataclass(slots=True)
class Turn:
    """A job that a claim found, and which of its group's it is; *rank*: of the best job of that turn."""

    job: ModelJob
    room: Room
    turn: int = 0
    rank: int = 0

    @property
    def pool(self) -> str:
        return self.room.name or self.job.topic

    @property
    def order(self) -> tuple[object, ...]:
        return (-self.rank, self.turn, self.room.place, self.job.next_run_at, self.job.id)


@dataclass(slots=True)
class Limits:
    """All limits by *name*, and the topics that name one (*of_topic*); every other topic goes by its own name."""

    by_name: dict[str, Limit] = field(default_factory=dict)
    of_topic: dict[str, str] = field(default_factory=dict)

    def name_of(self, topic: str) -> str | None:
        name = self.of_topic.get(topic, topic)
        return name if name in self.by_name else None

    def topics(self) -> dict[str, str]:
        found = {topic: self.name_of(topic) for topic in (*self.of_topic, *self.by_name)}
        return {topic: name for topic, name in found.items() if name is not None}

    def slots_of(self, name: str) -> float:
        """How many of its jobs may run at once."""
        most = self.by_name[name].concurrency
        return inf if most is None else most

    def look(self, model: Model) -> Seen:
        """What a statement sees that begins now."""
        running = [job for job in model.jobs.values() if job.status == "RUNNING"]
        counts: Counter[str | Group | None] = Counter(job.counted_by for job in running)
        counts.update((job.topic, job.group_key) for job in running if job.group_key is not None)
        return Seen({name: limit.claims for name, limit in self.by_name.items()}, counts)

    def rooms(self, starts: Iterable[Start], seen: Seen, now: datetime) -> Iterator[Room]:
        for place, start in enumerate(starts):
            topic, group, _ = start[0]
            name = self.name_of(topic)
            limit = Limit() if name is None else self.by_name[name]
            if name is not None and self.is_outdated(name, seen):
                yield Room(start, place, name, is_busy=True)
                continue
            tokens = limit.tokens_now(now)
            yield Room(
                start, place, name,
                inf if group is None else _left(limit.group_concurrency, seen.running[topic, group]),
                _left(limit.concurrency, seen.running[name]),
                tokens, 0.0 if limit.rate is None else (1 - tokens) / limit.rate,
            )  # fmt: skip

    def is_outdated(self, name: str, seen: Seen) -> bool:
        """Whether another claim under this limit has ended since, whose jobs were not seen running."""
        return self.by_name[name].claims != seen.claims[name]

    def spend(self, chosen: Iterable[Turn], now: datetime) -> None:
        """These start."""
        for name, jobs in Counter(one.room.name for one in chosen).items():
            if name is not None:
                limit = self.by_name[name]
                limit.claims += 1
                limit.tokens, limit.tokens_at = limit.tokens_now(now) - jobs, now

    def heads(self, model: Model, after: GroupLevel, most: int, now: datetime) -> list[GroupHead]:
        """The levels of groups after *after* that have waiting jobs."""
        first: dict[GroupLevel, datetime] = {}
        for job in model.jobs.values():
            if job.status in WAITING and job.group_key is not None:
                level = GroupLevel(job.topic, job.group_key, job.priority)
                first[level] = min(first.get(level, job.next_run_at), job.next_run_at)
        running = self.look(model).running
        return [
            GroupHead(level, first[level].timestamp(), first[level] <= now, self._is_full(level, running))
            for level in sorted((one for one in first if _place(one) > _place(after)), key=_place)[:most]
        ]

    def _is_full(self, level: GroupLevel, running: Counter[str | Group | None]) -> bool:
        name = self.name_of(level.topic)
        most = None if name is None else self.by_name[name].group_concurrency
        return _left(most, running[level[:2]]) <= 0

    def exceeded(self, model: Model) -> list[str]:
        """Where more jobs run than may, whatever the rows say that counts them."""
        running = [job for job in model.jobs.values() if job.status == "RUNNING"]
        in_all = Counter(name for job in running if (name := self.name_of(job.topic)) is not None)
        groups = Counter((job.topic, job.group_key) for job in running if job.group_key is not None)
        found = [
            f"{count} jobs of the limit {name} are RUNNING"
            for name, count in in_all.items()
            if _left(self.by_name[name].concurrency, count) < 0
        ]
        for (topic, group), count in groups.items():
            name = self.name_of(topic)
            if name is not None and _left(self.by_name[name].group_concurrency, count) < 0:
                found.append(f"{count} jobs of the group {group} of {topic} are RUNNING")
        return found


def _left(most: int | None, running: int) -> float:
    return inf if most is None else most - running


def _place(level: GroupLevel) -> tuple[str, str, int]:
    return level.topic, level.group or "", -level.priority


def choose(
    model: Model, rooms: Iterable[Room], seats: int, most: int | None, locked: Collection[bytes], now: datetime
) -> list[Turn]:
    """The jobs that a claim takes there, in the order of its seats: groups in turn, each by its best job."""
    open_rooms = [room for room in rooms if room.blocked() is None]
    plain = sorted((room for room in open_rooms if room.start[0].group is None), key=_by_priority)
    found = [one for room in plain for one in _due(model, room, seats, None, locked, now)][: 2 * seats]
    for room in open_rooms:
        if room.start[0].group is not None:
            found += _due(model, room, seats, most, locked, now)
    turns = _in_turn(found)
    got: Counter[str] = Counter()
    fit: list[Turn] = []
    for one in sorted(turns, key=lambda turn: turn.order):
        got[one.pool] += 1
        if got[one.pool] <= one.room.in_all:
            fit.append(one)
    return fit[:seats]


def _by_priority(room: Room) -> tuple[int, int]:
    return -room.start[0].priority, room.place


def _due(
    model: Model, room: Room, seats: int, most: int | None, locked: Collection[bytes], now: datetime
) -> list[Turn]:
    level, from_at_s = room.start
    begin = now - RECENT if from_at_s is None else from_s(from_at_s)
    due = [
        job
        for job in model.jobs.values()
        if GroupLevel(job.topic, job.group_key, job.priority) == level and job.status in WAITING
        if begin <= job.next_run_at <= now and not job.is_over(now) and job.id not in locked
    ]
    due.sort(key=lambda job: (job.next_run_at, job.id))
    most = seats if most is None else min(most, seats)
    return [Turn(job, room) for job in due[: int(min(room.of_group, room.in_all, most))]]


def _in_turn(found: Sequence[Turn]) -> list[Turn]:
    """Those that their groups have slots for, each with its turn."""
    got: Counter[tuple[str, str | None]] = Counter()
    turns: list[Turn] = []
    for one in sorted(found, key=lambda turn: (-turn.job.priority, turn.job.next_run_at, turn.job.id)):
        got[one.pool, one.job.group_key] += 1
        one.turn = got[one.pool, one.job.group_key]
        if one.turn <= one.room.of_group:
            turns.append(one)
    ranks: dict[tuple[str, int], int] = {}
    for one in turns:
        ranks[one.pool, one.turn] = max(ranks.get((one.pool, one.turn), -101), one.job.priority)
    for one in turns:
        one.rank = ranks[one.pool, one.turn]
    return turns
