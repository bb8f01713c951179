"""
A job for clients: its row, its history, and the transitions between its statuses.

``TRANSITIONS`` is the state machine, one table; a missing entry is the error. A test compares it with the guards in the
SQL.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar, overload
from uuid import UUID

from pulse.common import json_text
from pulse.common.json_text import JsonValue
from pulse.errors import ResultError

__all__ = [
    "CATCH_UPS",
    "OVERLAPS",
    "TERMINAL",
    "TRANSITIONS",
    "HandlerProcess",
    "HistoryEntry",
    "Job",
    "RelatedJob",
    "Schedule",
    "Signal",
    "Status",
    "handler_process",
    "is_endless",
    "keeps_unique_key",
    "unique_problem",
]

_IDENTITY_PARTS: Final = 5
MAX_UNIQUE_KEY: Final = 500
MAX_GROUP_KEY: Final = 200
_ENDLESS_S: Final = 9e8  # 28 years; a wait for a signal that has no time limit ends in 31
T = TypeVar("T")

CATCH_UPS: Final = ("skip", "latest", "all")  # what a schedule does with occurrences that were missed
OVERLAPS: Final = ("allow", "skip", "queue", "cancel")  # and while its earlier job is not finished


class Status(enum.StrEnum):
    """The status of a job."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    RETRYING = "RETRYING"
    DEAD_LETTERED = "DEAD_LETTERED"
    CANCELED = "CANCELED"


_WAITING_TO: Final = frozenset({Status.RUNNING, Status.CANCELED, Status.DEAD_LETTERED})  # dead letter: it expired
_RETRY_TO: Final = frozenset({Status.PENDING})  # an operator's retry

TRANSITIONS: Final[Mapping[Status, frozenset[Status]]] = MappingProxyType(
    {
        Status.PENDING: _WAITING_TO,
        Status.RETRYING: _WAITING_TO,
        # PENDING: given back or snoozed, without a charged attempt.
        Status.RUNNING: frozenset(
            {
                Status.COMPLETED,
                Status.RETRYING,
                Status.DEAD_LETTERED,
                Status.CANCELED,
                Status.PENDING,
            }
        ),
        Status.COMPLETED: _RETRY_TO,
        Status.DEAD_LETTERED: _RETRY_TO,
        Status.CANCELED: _RETRY_TO,
    }
)

TERMINAL: Final = frozenset({Status.COMPLETED, Status.DEAD_LETTERED, Status.CANCELED})


def keeps_unique_key(unique_until: str | None, attempts: int) -> bool:
    """Whether a job that has not ended still has its unique key, as ``idx_jobs_unique`` has it."""
    return unique_until == "end" or (unique_until == "start" and not attempts)


def is_endless(due_s: float, now_s: float) -> bool:
    """Whether a wait for a signal that is due then has no time limit."""
    return due_s >= now_s + _ENDLESS_S


def unique_problem(unique: object, unique_until: object, on_conflict: object, overlap: object) -> str | None:
    """What is wrong with the unique key of a schedule, in one line; None: nothing."""
    if unique is None:
        if unique_until is None and on_conflict is None:
            return None
        return "unique_until or on_conflict is given; they are allowed with unique only"
    if not isinstance(unique, str) or not 1 <= len(unique) <= MAX_UNIQUE_KEY:
        return f"unique is {unique!r:.100}; text of 1 to {MAX_UNIQUE_KEY} characters is allowed"
    for name, value, allowed in (
        ("unique_until", unique_until, ("start", "end")),
        ("on_conflict", on_conflict, ("skip", "replace")),
    ):
        if value is not None and value not in allowed:
            return f"{name} is {value!r:.100}; allowed are {', '.join(allowed)}"
    return None if overlap == "allow" else f"overlap is {overlap!r:.20}; with unique only allow is: on_conflict decides"


def group_problem(group: object) -> str | None:
    """What is wrong with a group, in one line; None: nothing."""
    if group is None or (isinstance(group, str) and 1 <= len(group) <= MAX_GROUP_KEY and group != "*"):
        return None
    return f"group_key is {group!r:.100}; text of 1 to {MAX_GROUP_KEY} characters is allowed, but not * alone"


class HandlerProcess(NamedTuple):
    """A process that runs handlers: the name of its worker, its host (an id where no name is known), its pid."""

    worker: str
    host: str
    pid: int


def handler_process(identity: str, hosts: Mapping[str, str] = MappingProxyType({})) -> HandlerProcess | None:
    """
    The process in the *identity* of a worker, ``host/boot/pidns/pid.start/name``; None: it has another form.

    Args:
        identity: As in ``locked_by``.
        hosts: Names of hosts, by their ids.
    """
    parts = identity.split("/", _IDENTITY_PARTS - 1)
    if len(parts) < _IDENTITY_PARTS:
        return None
    host, _, _, process, name = parts
    pid = process.partition(".")[0]
    return HandlerProcess(name, hosts.get(host, host), int(pid)) if pid.isdecimal() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """
    One attempt that did not simply succeed, or completed its job before a retry; attempt 0 stands for none: it expired.

    Attributes:
        outcome: ``error retry timeout stalled lease_expired crashed discarded snoozed released canceled expired``, or
            ``completed``.
        worker: Identity of the worker, as the dispatcher saw it.
        exit_code: Exit code of a worker that died; negative: killed by that signal.
        cpu_s: Processor time of an isolated attempt.
        peak_rss_bytes: Most memory of an isolated attempt.
        stack: The traceback of an attempt that outlasted its limits.
    """

    attempt: int
    outcome: str
    worker: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    error: str | None = None
    exit_code: int | None = None
    progress: JsonValue = None
    cpu_s: float | None = None
    peak_rss_bytes: int | None = None
    stack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RelatedJob:
    """
    A job that another one waits for, or that waits for it.

    Attributes:
        name: Its handler; None: it was deleted, and so has no status.
        on_failure: What becomes of the one that waits if the other one fails: ``cancel`` or ``run``.
        is_over: Whether the one that is waited for has ended.
    """

    id: UUID
    name: str | None = None
    status: Status | None = None
    on_failure: str = "cancel"
    is_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """
    What somebody told a job.

    Attributes:
        payload: Any JSON value.
        sent_at: When, by the database's clock; aware.
    """

    name: str
    payload: JsonValue = None
    sent_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """
    A row of ``pulse.jobs`` as it was when the server answered; times are aware, UTC.

    Attributes:
        attempts: Claims so far; never goes down.
        uncharged: Attempts that do not use up the retry budget; charged are ``attempts - uncharged``.
        next_run_at: When it is or was due; while it waits for other jobs, when it is wanted at the earliest. None: it
            is held back behind an earlier job of its schedule.
        ran_by: Of a completed job: identity of the worker that completed it, of which ``process`` is the readable part.
        expires_at: If it has not started by then, it becomes a dead letter.
        group_key: Its group: limits per group, fair turns and sequences go by topic and group.
        unique_key: The key that it was submitted with. No other job has it until this one starts or ends.
        unique_until: Which of the two, ``start`` or ``end``; None: another job may have the key, since an operator has
            retried this one.
        waiting_on: How many jobs have not ended, of those that it was to wait for; None: it was to wait for none.
        parents: The jobs that it waits for, or was to wait for, a hundred at most of ``parents_total``;
            ``children``: those that wait for it. Filled as ``history`` is.
        awaited_signal: The signal that its handler waits for, until ``next_run_at`` at most.
        signals: Those that were sent to it, a hundred at most of ``signals_total``. Filled as ``history`` is.
        history: Every attempt that did not simply succeed, and completed ones before a retry, oldest first; filled by
            ``get`` and ``wait``.
        concealed: Whether args, result and progress are hidden, since the reader lacks the role ``client``.
        hosts: Names of hosts by the ids in identities, as far as the server knows them; filled as ``history`` is.
    """

    id: UUID
    name: str
    topic: str
    status: Status
    args: JsonValue = None
    result: JsonValue = None
    progress: JsonValue = None
    last_error: str | None = None
    priority: int = 0
    attempts: int = 0
    uncharged: int = 0
    max_attempts: int = 0
    crashes: int = 0
    timeout_s: float | None = None
    submitted_at: datetime | None = None
    next_run_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    occurrence: datetime | None = None
    expires_at: datetime | None = None
    lease_until: datetime | None = None
    locked_by: str | None = None
    ran_by: str | None = None
    schedule_id: UUID | None = None
    group_key: str | None = None
    unique_key: str | None = None
    unique_until: str | None = None
    waiting_on: int | None = None
    parents: tuple[RelatedJob, ...] = ()
    parents_total: int = 0
    children: tuple[RelatedJob, ...] = ()
    children_total: int = 0
    awaited_signal: str | None = None
    signals: tuple[Signal, ...] = ()
    signals_total: int = 0
    history: tuple[HistoryEntry, ...] = field(default=())
    concealed: bool = False
    hosts: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended: only an operator's retry can change its status."""
        return self.status in TERMINAL

    @overload
    def result_as(self, kind: type[T]) -> T: ...
    @overload  # a union, for example, is no type[T]
    def result_as(self, kind: object) -> Any: ...  # noqa: ANN401
    def result_as(self, kind: object) -> Any:
        """
        The result as that type: whatever a handler's parameter may be, a dataclass for example.

        Raises:
            ResultError: The job is not completed, or its result is not of that type.
        """
        if self.status is not Status.COMPLETED:
            reason = f": {self.last_error.partition(chr(10))[0]}" if self.last_error else ""
            raise ResultError(f"job {self.id} ({self.name}) has no result: it is {self.status}{reason}")
        try:
            return json_text.as_type(self.result, kind, "result")
        except json_text.NotOfTypeError as error:
            raise ResultError(f"job {self.id} ({self.name}): {error}") from None

    @property
    def process(self) -> HandlerProcess | None:
        """The handler process that completed it, or runs it now; None: none, or one whose identity has no process."""
        identity = self.ran_by or self.locked_by
        return None if identity is None else handler_process(identity, self.hosts)

    @property
    def took_s(self) -> float | None:
        """How long a completed job took, from its claim to its end."""
        if self.status is not Status.COMPLETED or self.started_at is None or self.completed_at is None:
            return None
        return (self.completed_at - self.started_at).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """
    A row of ``pulse.schedules``.

    Attributes:
        kind: ``at``, ``every`` or ``cron``; says which of ``run_at``, ``every_s`` and ``cron`` is set.
        next_run_at: The next occurrence, None when there is none any more.
        last_run_at: The newest occurrence that fired.
        due_at: When the next occurrence fires: later than that by its jitter.
        following_run_at: The occurrence after the next, where it is computed.
        catch_up: ``skip``, ``latest`` or ``all`` of what was missed.
        overlap: ``allow``, ``skip``, ``queue`` or ``cancel`` while its earlier job is not finished.
        group_key: The group of its jobs.
        unique_key: The unique key of its jobs; ``unique_until`` (``end`` if it is None) says how long they keep it, and
            ``on_conflict`` (``skip`` if it is None, or ``replace``) what happens while another job has it.
        skipped_at: The newest occurrence that submitted no job, since another one was in its way: ``skipped_for``.
        key: The stable key under which code declares it; ``declared_by`` is the application.
        undeclared_at: Since when its application no longer declares it.
        waiting: Jobs that are held back until an earlier one ends.
        error: Why its times cannot be computed; it does not fire then.
        concealed: Whether its args are hidden from the reader.
    """

    id: UUID
    name: str
    kind: str
    topic: str | None = None
    args: JsonValue = None
    cron: str | None = None
    timezone: str | None = None
    every_s: float | None = None
    run_at: datetime | None = None
    next_run_at: datetime | None = None
    last_run_at: datetime | None = None
    created_at: datetime | None = None
    paused: bool = False
    priority: int = 0
    max_attempts: int | None = None
    timeout_s: float | None = None
    due_at: datetime | None = None
    following_run_at: datetime | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    jitter_s: float = 0.0
    catch_up: str = "latest"
    overlap: str = "allow"
    key: str | None = None
    declared_by: str | None = None
    undeclared_at: datetime | None = None
    waiting: int = 0
    error: str | None = None
    concealed: bool = False
    group_key: str | None = None
    unique_key: str | None = None
    unique_until: str | None = None
    on_conflict: str | None = None
    skipped_at: datetime | None = None
    skipped_for: UUID | None = None
