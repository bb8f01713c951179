"""What goes into the store and comes out of it, typed. Ids are 16 bytes, as on the wire."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

__all__ = [
    "Canceled",
    "Claim",
    "Completion",
    "Due",
    "Ended",
    "Ending",
    "EndingKind",
    "Fence",
    "Firing",
    "Forgotten",
    "Level",
    "NewSchedule",
    "Renewal",
    "Running",
    "Wake",
]


class Fence(NamedTuple):
    """One attempt and who holds it: what every write by a worker is matched against."""

    id: bytes
    attempt: int
    worker: str


class Completion(NamedTuple):
    """A success to be written; ``result`` and ``progress`` are JSON text or None, which keeps the row's progress."""

    id: bytes
    attempt: int
    worker: str
    result: str | None
    progress: str | None = None


class EndingKind(enum.StrEnum):
    """How an attempt ended that did not succeed, in the words of ``pulse.attempts.outcome``."""

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
    UNASSIGNED = "unassigned"  # given back by a dispatcher before any worker saw it: no history


class Ending(NamedTuple):
    """
    An end without success, to be written.

    ``error`` None keeps the row's last_error; ``delay_s`` None means the back-off; ``exit_code`` negative: that signal;
    ``progress`` is JSON text, None keeps the row's; ``stack`` is where it hung; ``cpu_s`` and ``peak_rss_bytes``
    are what it used.
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


class Ended(NamedTuple):
    """What an Ending came to; ``delay_s`` until the job is due again."""

    id: bytes
    attempt: int
    status: str
    topic: str
    priority: int
    delay_s: float


class Renewal(NamedTuple):
    """A lease to be extended; ``progress`` is JSON text or None."""

    id: bytes
    attempt: int
    worker: str
    progress: str | None


class Claim(NamedTuple):
    """
    A claimed job, as ``claim_jobs`` returns it.

    Attributes:
        worker: Index into the workers that the claim was made for.
        due_at: Unix seconds at which it became due.
        crashes: Proven deaths on its record; from the second on it runs alone in a process of its own.
        occurrence_at: Unix seconds of its schedule's occurrence, or None.
        checkpoint: JSON text that an earlier attempt saved, or None.
        previous: JSON text ``[outcome, error, worker, progress]`` of the attempt before, None where it left no history.
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


class Running(NamedTuple):
    """What a RUNNING row says of its job."""

    name: str
    topic: str
    timeout_s: float | None


class Leased(NamedTuple):
    """What a RUNNING row says of its job, and for how many seconds its lease still runs."""

    name: str
    topic: str
    timeout_s: float | None
    left_s: float


class Wake(NamedTuple):
    """A level that got work due now; ``due_s`` is when the first of it was due, Unix seconds."""

    topic: str
    priority: int
    due_s: float


class Level(NamedTuple):
    """Where jobs wait: a topic and a priority."""

    topic: str
    priority: int


class Head(NamedTuple):
    """
    The first job of a level.

    Attributes:
        level: Where.
        due_at: When it is due, Unix seconds.
        is_due: Whether that is now or before.
    """

    level: Level
    due_at: float
    is_due: bool


class Forgotten(NamedTuple):
    """
    A window of jobs that retention has gone through.

    Attributes:
        mine: Nobody else was at it; else nothing was done.
        walked: Jobs in the window; fewer than it holds: it reached the end of the table.
        gone: Of those, how many were deleted.
        last: Id of the last job in the window.
        first_left: Id of the first one that is still there.
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
    """A schedule to be created; exactly the kind's own fields are set."""

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


@dataclass(frozen=True, slots=True)
class Due:
    """A schedule whose cursor is due; microseconds since the epoch, since the cursor is compared for equality."""

    id: bytes
    kind: str
    cron: str | None
    timezone: str | None
    every_s: float | None
    cursor_us: int
    now_us: int


@dataclass(frozen=True, slots=True)
class Firing:
    """One occurrence to be fired: the cursor expected, the next one (None: no more) and the id of its job."""

    schedule_id: bytes
    cursor_us: int
    next_us: int | None
    job_id: bytes
