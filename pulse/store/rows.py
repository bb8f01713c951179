"""
Typed rows that go into statements and come out of them. Ids are 16 bytes, as on the wire.

Timestamps are converted from and to plain numbers without loss: float seconds as on the wire, int microseconds where
they are compared for equality.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from msgspec import Struct

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def to_us(moment: datetime) -> int:
    """Microseconds since the epoch."""
    return (moment - _EPOCH) // _MICROSECOND


def from_us(microseconds: int) -> datetime:
    """The aware datetime of *microseconds* since the epoch."""
    return _EPOCH + timedelta(microseconds=microseconds)


def to_s(moment: datetime) -> float:
    """Unix seconds."""
    return to_us(moment) / 1e6


def from_s(seconds: float) -> datetime:
    """
    The aware datetime of Unix *seconds*, rounded to microseconds.

    Raises:
        OverflowError: It lies outside the years 1 to 9999.
    """
    return _EPOCH + timedelta(microseconds=round(seconds * 1e6))


def readable(text: bytes) -> str:
    """Text of a row that may be corrupt, decoded with replacement characters: its job is ended all the same."""
    return text.decode(errors="replace")


class Fence(NamedTuple):
    """One attempt and its holder: every write by a worker must match these."""

    id: bytes
    attempt: int
    worker: str


class Completion(Struct, frozen=True, gc=False):
    """A success to be written; ``result`` and ``progress`` are JSON text or None, which keeps the row's progress."""

    id: bytes
    attempt: int
    worker: str
    result: str | None
    progress: str | None = None


class EndingKind(enum.StrEnum):
    """How an attempt without success ended; values of ``pulse.attempts.outcome``."""

    ERROR = "error"
    RETRY = "retry"
    TIMEOUT = "timeout"
    STALLED = "stalled"
    LEASE_EXPIRED = "lease_expired"
    CRASHED = "crashed"
    DISCARDED = "discarded"
    SNOOZED = "snoozed"
    RELEASED = "released"
    SILENT = "silent"  # lease_expired of a worker that was killed for its silence, its lease renewed until it was dead
    UNASSIGNED = "unassigned"  # given back by a dispatcher before any worker received it: no history


class Ending(NamedTuple):
    """
    An end without success, to be written.

    ``error`` None keeps the row's last_error; ``delay_s`` None means the back-off; ``exit_code`` negative: that signal;
    ``progress`` is JSON text, None keeps the row's; ``stack`` is the traceback where it hung; ``cpu_s`` and
    ``peak_rss_bytes`` are what it used; ``awaits``: the signal that its handler waits
    for, and how many it had seen.
    """

    id: bytes
    attempt: int
    worker: str
    kind: EndingKind
    error: str | None = None
    delay_s: float | None = None
    exit_code: int | None = None
    progress: str | None = None
    stack: str | None = None
    cpu_s: float | None = None
    peak_rss_bytes: int | None = None
    awaits: tuple[str, int] | None = None


class Ended(NamedTuple):
    """
    The result of an Ending.

    ``delay_s``: until the job is due again, ``due_s``: when that is, Unix seconds; ``name``, ``group_key``: the job's.
    """

    id: bytes
    attempt: int
    status: str
    topic: str
    priority: int
    delay_s: float
    due_s: float
    name: str = ""
    group_key: str | None = None


def ended_row(row: Iterable[Any]) -> Ended:
    """A row of ``end_attempts``, whose last two columns are bytes."""
    *rest, name, group_key = row
    return Ended._make((*rest, readable(name), None if group_key is None else readable(group_key)))


class ExpiredJob(NamedTuple):
    """A job that became a dead letter because it was not started in time; ``error`` says until when it should have."""

    id: bytes
    name: str
    topic: str
    error: str


class Renewal(NamedTuple):
    """A lease to be extended; ``progress`` is JSON text or None."""

    id: bytes
    attempt: int
    worker: str
    progress: str | None


class Claim(Struct, frozen=True, gc=False):
    """
    A claimed job, as ``claim_jobs`` returns it.

    Attributes:
        worker: Index into the workers that the claim was made for.
        due_at: Unix seconds at which it became due.
        crashes: Proven worker deaths so far; from the second on it runs alone in a process of its own.
        occurrence_at: Unix seconds of its schedule's occurrence, or None.
        checkpoint: JSON text that an earlier attempt saved, or None.
        previous: JSON text ``[outcome, error, worker, progress]`` of the attempt before, None where it left no history.
        traceparent: Of the span that submitted it, or None.
        group_key: Its group, or None.
    """

    id: bytes
    attempt: int
    name: str
    topic: str
    args: str
    timeout_s: float | None
    priority: int
    due_at: float
    worker: int
    uncharged: int
    crashes: int = 0
    occurrence_at: float | None = None
    checkpoint: str | None = None
    previous: str | None = None
    traceparent: str | None = None
    group_key: str | None = None


class Running(NamedTuple):
    """Columns of a RUNNING row."""

    name: str
    topic: str
    timeout_s: float | None
    group_key: str | None = None


def running_row(name: bytes, topic: bytes, timeout_s: float | None, group_key: bytes | None) -> Running:
    """Columns of a statement that reads RUNNING rows, whose texts are bytes."""
    return Running(
        readable(name), readable(topic), timeout_s, group_key=None if group_key is None else readable(group_key)
    )


class Leased(NamedTuple):
    """Columns of a RUNNING row, and for how many seconds its lease still runs."""

    name: str
    topic: str
    timeout_s: float | None
    group_key: str | None
    left_s: float


class Wake(NamedTuple):
    """
    A level that got work.

    Attributes:
        due_s: When the first of its jobs became due, Unix seconds; None: none is due.
        jobs: How many jobs it got, where that is known.
        group_key: Of a level of a group: which; None: of jobs without one.
    """

    topic: str
    priority: int
    due_s: float | None
    jobs: int = 0
    group_key: str | None = None


class Level(NamedTuple):
    """Where jobs wait: a topic and a priority."""

    topic: str
    priority: int


class GroupLevel(NamedTuple):
    """Where jobs of a group wait: a topic, a group (None: the jobs without one) and a priority."""

    topic: str
    group: str | None
    priority: int


def level_of(topic: str, group: str | None, priority: int) -> Level | GroupLevel:
    """Where such a job waits."""
    return Level(topic, priority) if group is None else GroupLevel(topic, group, priority)


class Head(NamedTuple):
    """
    The first job of a level.

    Attributes:
        level: The level.
        due_at: When the job is due, Unix seconds.
        is_due: Whether it is due now.
    """

    level: Level
    due_at: float
    is_due: bool


class Forgotten(NamedTuple):
    """
    A window of jobs that retention has gone through.

    Attributes:
        mine: False: another process was deleting, and nothing was done.
        walked: Jobs in the window; fewer than asked for: it reached the end of the table.
        gone: How many of them were deleted.
        last: Id of the last job in the window.
        first_left: Id of the first job that was not deleted.
    """

    mine: bool
    walked: int
    gone: int
    last: bytes | None
    first_left: bytes | None


class Canceled(NamedTuple):
    """A canceled job; ``worker`` None: it was not running."""

    id: bytes
    attempt: int
    worker: str | None


@dataclass(frozen=True, slots=True)
class NewSchedule:
    """A new schedule, or the new values of one; of the kinds' fields, only those of its own kind are set."""

    id: bytes
    name: str
    kind: str
    args: str
    next_run_at: datetime | None
    topic: str | None = None
    cron: str | None = None
    timezone: str | None = None
    every_s: float | None = None
    run_at: datetime | None = None
    priority: int = 0
    max_attempts: int | None = None
    timeout_s: float | None = None
    following_run_at: datetime | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    jitter_s: float = 0.0
    catch_up: str = "latest"
    overlap: str = "allow"
    key: str | None = None
    declared_by: str | None = None
    unique_key: str | None = None
    unique_until: str | None = None
    on_conflict: str | None = None
    group_key: str | None = None


@dataclass(frozen=True, slots=True)
class Due:
    """
    A schedule to fire or to compute; times in microseconds, since the cursor is compared for equality.

    Attributes:
        cursor_us: Its next occurrence; None: not computed yet.
        following_us: The one after it, where that is computed.
        is_reckoned: Whether everything is computed: then a ``following_us`` of None means that there is none.
        revision: Revision of its definition.
        now_us: The database's time.
    """

    id: bytes
    kind: str
    now_us: int
    cursor_us: int | None
    cron: str | None = None
    timezone: str | None = None
    every_s: float | None = None
    at_us: int | None = None
    starts_us: int | None = None
    ends_us: int | None = None
    jitter_s: float = 0.0
    catch_up: str = "latest"
    following_us: int | None = None
    is_reckoned: bool = False
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Firing:
    """
    One step of a schedule's cursor.

    Attributes:
        cursor_us: The expected cursor.
        next_us: The new cursor; None: there are no more occurrences.
        occurrence_us: The occurrence to fire; None: missed occurrences are skipped, and nothing fires.
        following_us: The occurrence after the next; None: none, or not computed yet.
        revision: Revision of the definition that this was computed from.
        passed: How many missed occurrences it skips, at least.
    """

    schedule_id: bytes
    cursor_us: int
    next_us: int | None
    occurrence_us: int | None
    following_us: int | None = None
    revision: int = 0
    passed: int = 0


class Fired(NamedTuple):
    """
    The result of firing an occurrence.

    Attributes:
        verdict: ``fired``; ``held`` back until an earlier job ends; ``skipped`` because of one, or of the job that has
            the unique key; ``replaced`` the args of that one; ``full``: too many are held back; ``passed``: it was
            missed.
        level: Level of the job that was inserted or replaced, if one was.
        canceled: The earlier job that was canceled for it.
    """

    schedule_id: bytes
    verdict: str
    level: Level | None
    canceled: bytes | None


@dataclass(frozen=True, slots=True)
class NextOccurrences:
    """What was computed for a schedule whose cursor was at *cursor_us*; ``error``: why its times cannot be computed."""

    schedule_id: bytes
    cursor_us: int | None
    revision: int
    next_us: int | None
    following_us: int | None
    error: str | None = None


class Work(NamedTuple):
    """
    When a scheduler has something to do.

    Attributes:
        due_s: Seconds until the next occurrence, 0 or less: one is due; None: there is none.
        reckon: Whether something must be computed now.
        waiting: Whether jobs are held back until others end.
        unique_s: As ``due_s``, of schedules with a unique key, which do not count there.
    """

    due_s: float | None
    reckon: bool
    waiting: bool
    unique_s: float | None = None
