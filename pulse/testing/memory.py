"""
Jobs in memory: what is due, and what becomes of a job when an attempt ends.

As the server's statements have it, but without a database: ``submit_jobs``, ``claim_jobs``, ``end_attempts`` and
``cancel_jobs``. A test runs the same handlers on both and compares the rows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from pulse import job as records_of_jobs
from pulse.app.app import App
from pulse.app.handler import Handler
from pulse.app.outcome import Outcome
from pulse.client import records
from pulse.common import json_text
from pulse.common.backoff import backoff_s
from pulse.common.ids import uuid7s
from pulse.common.json_text import JsonValue
from pulse.common.text import iso
from pulse.errors import BadRequestError, ConflictError, NotFoundError, PulseError
from pulse.job import Job, Status, keeps_unique_key
from pulse.protocol import Assignment, SubmittedJob
from pulse.protocol.answers import AttemptInfo, JobInfo
from pulse.security.codec import BY
from pulse.testing import signals
from pulse.testing.dependencies import settle, wait_for
from pulse.testing.recording import InlineJob, Recording
from pulse.worker.execution.attempt import Attempt, StopReason
from pulse.worker.execution.runner import interrupt

__all__ = ["MemoryJob", "MemoryQueue", "time_step"]

WORKER: Final = "inline"
MAX_ATTEMPTS: Final = 5  # as PULSE_MAX_ATTEMPTS
MAX_EVENT_ERROR: Final = 10_000
LEASE_S: Final = 30.0
_WAITING: Final = frozenset({"PENDING", "RETRYING"})
_HISTORY: Final[Mapping[str, str]] = {
    "error": "error",
    "retry": "retry",
    "discard": "discarded",
    "snooze": "snoozed",
    "wait": "snoozed",
    "release": "released",
}
_UNCHARGED: Final = frozenset({"snooze", "wait", "release"})


def time_step(seconds: float, minutes: float, hours: float, days: float) -> timedelta:
    """
    How far a test sets the time forward.

    Raises:
        BadRequestError: These are no numbers, or together they go back.
    """
    try:
        step = timedelta(seconds=seconds, minutes=minutes, hours=hours, days=days)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadRequestError(f"advance: {error}; numbers are allowed") from None
    if step < timedelta():
        raise BadRequestError(f"advance: {step.total_seconds():g} s would be back; 0 and more are allowed")
    return step


class MemoryJob:
    """
    A job in memory.

    Attributes:
        info: Its row.
        recording: What its handler reported, in all attempts.
        attempt: The attempt that runs, if one does.
        delays_s: The wait before each next try.
        error: What the last attempt raised.
        waits_for: The jobs that have to end before it is due, and what it does if one fails.
        after: All that it has waited for.
    """

    def __init__(self, info: JobInfo) -> None:
        self.waits_for: dict[bytes, str] = {}
        self.after: tuple[bytes, ...] = ()
        self.info = info
        self.recording = Recording()
        for sent in info.signals:
            self.recording.receive(sent)
        self.attempt: Attempt | None = None
        self.delays_s: list[float] = []
        self.error: BaseException | None = None

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended."""
        return Status(self.info.status) in records_of_jobs.TERMINAL

    def holds(self, key: str | None) -> bool:
        """Whether no other job may have that unique key."""
        info = self.info
        if key is None or info.unique_key != key or self.is_terminal:
            return False
        return keeps_unique_key(info.unique_until, info.attempts)

    def answer(self) -> dict[str, object]:
        """The body of the answer to jobs.get."""
        row = msgspec.structs.asdict(self.info)
        parts = {name: [msgspec.structs.asdict(one) for one in row[name]] for name in ("history", "signals")}
        return {"job": {**row, **parts}}

    def record(self) -> InlineJob:
        """The job for the test."""
        job = records.job(self.answer())
        known = {one.name: getattr(job, one.name) for one in fields(Job)}
        checkpoints = self.recording.checkpoints
        return InlineJob(
            **known,
            error=self.error,
            delays_s=tuple(self.delays_s),
            progress_reports=tuple(self.recording.progress_reports),
            checkpoint=checkpoints[-1] if checkpoints else None,
        )


class MemoryQueue:
    """
    The jobs of one test.

    Args:
        app: Whose handlers run them; jobs for others wait.
    """

    def __init__(self, app: App) -> None:
        self._handlers = app.handlers
        self._jobs: dict[bytes, MemoryJob] = {}
        self._advanced_s = 0.0

    def now_s(self) -> float:
        """The time of this queue, Unix seconds."""
        return time.time() + self._advanced_s

    def advance(self, seconds: float) -> None:
        """Set the time forward."""
        self._advanced_s += seconds

    def jobs(self) -> list[MemoryJob]:
        """All jobs, the oldest first."""
        return list(self._jobs.values())

    def job(self, job_id: bytes) -> MemoryJob:
        """
        One job.

        Raises:
            NotFoundError: There is none.
        """
        found = self._jobs.get(job_id)
        if found is None:
            raise NotFoundError("no such job")
        return found

    def parents(self, job: MemoryJob) -> dict[str, object]:
        """The body of the answer to jobs.parents: all of them, in the order of their ids."""
        return {"jobs": [self._jobs[one].answer()["job"] for one in sorted(job.after) if one in self._jobs]}

    def handler(self, job: MemoryJob) -> Handler | None:
        """Its handler, if the app has it."""
        return self._handlers.get(job.info.name)

    def submit(self, jobs: list[SubmittedJob]) -> list[bytes]:
        """
        Add *jobs*, all or none; the same id again with the same name, topic and args is the same job.

        Returns:
            Their ids; where another job has a unique key, its id.

        Raises:
            ConflictError: A job with such an id has another name, topic or args; or one has the unique key.
            NotFoundError: A job that one is to wait for is not there.
        """
        before = dict(self._jobs), [(job, job.info) for job in self._jobs.values()]
        ids, stored_as = list[bytes](), dict[bytes, bytes]()  # by its own id, which job has the unique key of each
        try:
            for one in jobs:
                new = self._made(one)
                after = [stored_as.get(parent, parent) for parent in one.after or ()]
                ids.append(self._add(new, replace(one, after=after)))
                stored_as[new.info.id] = ids[-1]
            return ids
        except PulseError:
            self._jobs, rows = before
            for job, info in rows:
                job.info = info
            raise

    def _add(self, new: MemoryJob, submitted: SubmittedJob) -> bytes:
        """Add *new* unless it is there, or its key belongs to another job; returns the id of whichever it is."""
        key, old = new.info.unique_key, self._jobs.get(new.info.id)
        if old is not None:
            is_same = key is not None and key == old.info.unique_key  # its args may have been replaced since
            if _key(old)[:2] != _key(new)[:2] or (not is_same and _key(old) != _key(new)):
                raise ConflictError("a job with this id exists, with another name, topic or args")
            return new.info.id
        holder = next((job for job in self._jobs.values() if job.holds(key)), None)
        on_conflict = submitted.on_conflict
        if holder is None:
            wait_for(self._jobs, new, submitted, self.now_s())
            self._jobs[new.info.id] = new
            return new.info.id
        holder_id, is_other = UUID(bytes=holder.info.id), holder.info.name != new.info.name
        if on_conflict == "error":
            raise ConflictError(f"unique key {key!r} belongs to job {holder_id}")
        if on_conflict == "replace" and is_other:
            allowed = "only one of the same handler can be replaced"
            raise ConflictError(f"unique key {key!r} belongs to job {holder_id} of another handler; {allowed}")
        if on_conflict == "replace" and holder.info.status in _WAITING:
            times = {"next_run_at": new.info.next_run_at, "expires_at": new.info.expires_at}
            holder.info = replace(holder.info, args=new.info.args, **times)
        return holder.info.id

    def add(self, info: JobInfo) -> MemoryJob:
        """Add a job whose row is known."""
        return self._jobs.setdefault(info.id, MemoryJob(info))

    def next_due(self) -> MemoryJob | None:
        """The job that a worker would start now."""
        now_s = self.now_s()
        due = [job for job in self._jobs.values() if self._is_due(job, now_s)]
        return min(due, key=_turn, default=None)

    def due_with(self, job: MemoryJob) -> list[MemoryJob]:
        """*job*, and the others that a worker would call its handler for at the same time."""
        handler, now_s = self.handler(job), self.now_s()
        if handler is None or handler.batch is None or _was_tried(job):
            return [job]
        others = [
            one
            for one in self._jobs.values()
            if one is not job and _fits(one, job) and not _was_tried(one) and self._is_due(one, now_s)
        ]
        others.sort(key=_turn)
        return [job, *others[: handler.batch - 1]]

    def claim(self, job: MemoryJob) -> Attempt | None:
        """Begin an attempt of a job that waits; None: it has expired."""
        now_s, handler, info = self.now_s(), self.handler(job), job.info
        if info.expires_at is not None and info.expires_at <= now_s:
            error = f"expired: not started by {iso(info.expires_at)}"
            self._end(job, "expired", now_s, error=error, attempt=0, dead=True)
            return None
        number = info.attempts + 1
        extra: dict[str, object] = {"tries": number - info.uncharged}
        if info.history:
            last = info.history[-1]
            stored = job.recording.stored
            extra["previous"] = {
                "outcome": last.outcome, "reason": last.error, "worker": last.worker, "progress": last.progress,
                "checkpoint": None if stored is None else json_text.dumps(stored),
            }  # fmt: skip
        packed = {key: msgspec.Raw(msgspec.msgpack.encode(value)) for key, value in extra.items()}
        assignment = Assignment(
            id=info.id,
            attempt=number,
            name=info.name,
            topic=info.topic,
            args=info.args or "{}",
            timeout_s=info.timeout_s,
            lease_s=LEASE_S,
            extra=packed,
        )
        job.info = replace(
            info, awaited_signal=None, status="RUNNING", attempts=number, started_at=now_s, lease_until=now_s + LEASE_S,
            locked_by=WORKER,
        )  # fmt: skip
        job.attempt = Attempt(assignment, handler, time.monotonic())
        job.recording.stop(cancelled=False)
        return job.attempt

    def end(self, job: MemoryJob, attempt: Attempt, outcome: Outcome, error: BaseException | None) -> None:
        """What becomes of *job* after *attempt*; nothing if that no longer holds it."""
        job.error = error
        if job.attempt is not attempt:
            return
        now_s, kind, detail = self.now_s(), outcome.outcome, outcome.detail
        if kind == "ok":
            self._complete(job, detail if isinstance(detail, str) else None, now_s)
        elif kind == "retry" and isinstance(detail, tuple):
            self._end(job, kind, now_s, error=str(detail[1]), delay_s=float(detail[0] or 0))
        elif kind == "wait":
            job.info, delay_s = signals.awaiting(job.info, detail)
            self._end(job, kind, now_s, delay_s=delay_s)
        elif kind in _UNCHARGED:
            self._end(job, kind, now_s, delay_s=float(detail) if isinstance(detail, float) else 0.0)
        else:
            stopped = attempt.stopped if attempt.stopped in {"timeout", "stalled"} else None
            self._end(job, stopped or kind, now_s, error=str(detail), dead=kind == "discard")

    def signal(self, job: MemoryJob, body: Mapping[str, Any]) -> bool:
        """Send *job* the signal in the body of a request; returns whether it is new."""
        found = signals.sent(job.info, body, self.now_s())
        if found is None:
            return False
        job.info = found
        job.recording.receive(found.signals[-1])
        return True

    def cancel(self, job: MemoryJob) -> bool:
        """Cancel a job that has not ended, and stop its handler."""
        if job.is_terminal:
            return False
        running, now_s, info = job.attempt, self.now_s(), job.info
        if running is not None:
            self._stop(job, running, "canceled")
            job.info = replace(info, history=[*info.history, _entry(info, info.attempts, "canceled", now_s, None)])
        job.info = replace(job.info, status="CANCELED", completed_at=now_s, locked_by=None, lease_until=None)
        settle(self._jobs, job, now_s)
        return True

    def lose_lease(self, job: MemoryJob) -> None:
        """End the attempt that runs as if its worker had been silent: what it still reports changes nothing."""
        running = job.attempt
        if running is not None:
            self._stop(job, running, "lost")
            self._end(job, "lease_expired", self.now_s(), error="worker lease expired")

    def _stop(self, job: MemoryJob, running: Attempt, reason: StopReason) -> None:
        running.stop(reason)
        job.recording.stop(cancelled=True, lease_lost=reason == "lost")
        job.attempt = None
        interrupt(running)

    def _is_due(self, job: MemoryJob, now_s: float) -> bool:
        waits = job.info.status in _WAITING and not job.waits_for
        return waits and (job.info.next_run_at or 0.0) <= now_s and self.handler(job) is not None

    def _made(self, new: SubmittedJob) -> MemoryJob:
        now_s, handler = self.now_s(), self._handlers.get(new.name)
        topic = new.topic or (handler and handler.topic) or "default"
        expires_at = new.expires_at if new.expires_in_s is None else now_s + new.expires_in_s
        info = JobInfo(
            id=new.id or uuid7s(1)[0],
            name=new.name,
            topic=topic,
            status="PENDING",
            args=new.args,
            priority=new.priority,
            max_attempts=new.max_attempts or (handler and handler.max_attempts) or MAX_ATTEMPTS,
            timeout_s=new.timeout_s or (handler.timeout_s if handler else None),
            submitted_at=now_s,
            next_run_at=now_s + (new.delay_s or 0.0) if new.run_at is None else new.run_at,
            expires_at=expires_at,
            group_key=new.group_key,
            unique_key=new.unique,
            unique_until=None if new.unique is None else new.unique_until or "end",
        )
        return MemoryJob(info)

    def _complete(self, job: MemoryJob, result: str | None, now_s: float) -> None:
        job.attempt = None
        job.info = replace(
            job.info, status="COMPLETED", result=result, completed_at=now_s, ran_by=WORKER, locked_by=None,
            lease_until=None, progress=_newest(job),
        )  # fmt: skip
        settle(self._jobs, job, now_s)

    def _end(
        self,
        job: MemoryJob,
        kind: str,
        now_s: float,
        *,
        error: str | None = None,
        delay_s: float | None = None,
        attempt: int | None = None,
        dead: bool = False,
    ) -> None:
        job.attempt = None
        handler, info = self.handler(job), replace(job.info, progress=_newest(job))
        uncharged = info.uncharged + (kind in _UNCHARGED)
        tries = info.attempts - info.uncharged
        dead = dead or (kind not in _UNCHARGED and tries >= info.max_attempts)
        entry = _entry(info, info.attempts if attempt is None else attempt, _HISTORY.get(kind, kind), now_s, error)
        changes: dict[str, Any] = {"status": "DEAD_LETTERED", "completed_at": now_s}
        if not dead:
            if delay_s is None:
                delay_s = backoff_s((handler and handler.backoff) or "quadratic", tries)
            given_back = kind in _UNCHARGED and info.attempts == uncharged
            changes = {"status": "PENDING" if given_back else "RETRYING", "next_run_at": now_s + delay_s}
            job.delays_s.append(delay_s)
        job.info = replace(
            info, uncharged=uncharged, last_error=error or info.last_error, history=[*info.history, entry],
            locked_by=None, lease_until=None, **changes,
        )  # fmt: skip
        if dead:
            settle(self._jobs, job, now_s)
        event = handler.events.get("on_dead_letter") if handler is not None and dead else None
        if event is not None:
            args = _event_args(info, entry)
            self.submit([SubmittedJob(name=event, args=args, topic=info.topic, priority=info.priority)])


def _turn(job: MemoryJob) -> tuple[int, float]:
    return -job.info.priority, job.info.next_run_at or 0.0


def _fits(one: MemoryJob, other: MemoryJob) -> bool:
    return (one.info.name, one.info.timeout_s) == (other.info.name, other.info.timeout_s)


def _was_tried(job: MemoryJob) -> bool:
    """Whether an attempt was charged: then the next one is alone in its batch."""
    return job.info.attempts > job.info.uncharged


def _entry(info: JobInfo, attempt: int, outcome: str, now_s: float, error: str | None) -> AttemptInfo:
    worker = WORKER if attempt else None
    return AttemptInfo(
        attempt=attempt, outcome=outcome, worker=worker, started_at=info.started_at, ended_at=now_s, error=error,
        progress=info.progress,
    )  # fmt: skip


def _event_args(info: JobInfo, entry: AttemptInfo) -> str:
    """What a job that tells of a dead letter gets, as ``pulse.event_args`` makes it."""
    told = {
        "id": str(UUID(bytes=info.id)), "name": info.name, "topic": info.topic, "attempt": entry.attempt,
        "outcome": entry.outcome, "error": (entry.error or "")[:MAX_EVENT_ERROR],
    }  # fmt: skip
    return json_text.dumps({"job": told})


def _newest(job: MemoryJob) -> str | None:
    reports = job.recording.progress_reports
    return json_text.dumps(reports[-1]) if reports else job.info.progress


def _key(job: MemoryJob) -> tuple[str, str, JsonValue]:
    args = json_text.loads(job.info.args or "{}")
    return (
        job.info.name,
        job.info.topic,
        BY if isinstance(args, dict) and BY in args else job.info.args,
    )  # as schema.sql
