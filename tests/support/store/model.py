"""What the store has to do, as plain Python over a dict: written from the contract, not from the SQL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from pulse.store.rows import Canceled, Completion, Ended, Ending, EndingKind, Fence, Renewal

MAX_CRASHES: Final = 3
GIVEN_BACK: Final = {EndingKind.RELEASED, EndingKind.UNASSIGNED}
UNCHARGED: Final = {*GIVEN_BACK, EndingKind.SNOOZED, EndingKind.CRASHED}
WAITING: Final = {"PENDING", "RETRYING"}
FINISHED: Final = {"COMPLETED", "DEAD_LETTERED", "CANCELED"}
Fenced: TypeAlias = Fence | Completion | Ending | Renewal
Key = tuple[int, int, datetime]  # how claims are ordered: priority (negated), place of the topic, due time


@dataclass(slots=True)
class ModelJob:
    id: bytes
    topic: str
    name: str
    args: str
    priority: int
    max_attempts: int
    submitted_at: datetime
    next_run_at: datetime
    status: str = "PENDING"
    attempts: int = 0
    uncharged: int = 0
    crashes: int = 0
    started_at: datetime | None = None
    lease_until: datetime | None = None
    completed_at: datetime | None = None
    locked_by: str | None = None
    ran_by: str | None = None
    progress: str | None = None
    result: str | None = None
    checkpoint: str | None = None
    last_error: str | None = None
    timeout_s: float | None = None
    expires_at: datetime | None = None
    group_key: str | None = None
    counted_by: str | None = None
    is_parent: bool = False
    waiting_on: int | None = None
    run_after: datetime | None = None
    signals: int = 0
    awaited_signal: str | None = None

    def is_over(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    def is_held(self, by: Fenced) -> bool:
        """Whether that attempt holds this job now."""
        return self.status == "RUNNING" and (self.id, self.attempts, self.locked_by) == (by.id, by.attempt, by.worker)

    def let_go(self, status: str, *, finished_at: datetime | None = None) -> None:
        self.status, self.completed_at = status, finished_at
        self.locked_by = self.lease_until = None


@dataclass(slots=True)
class Model:
    jobs: dict[bytes, ModelJob] = field(default_factory=dict)
    history: dict[tuple[bytes, int], dict[str, Any]] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)

    def is_held(self, by: Fenced) -> bool:
        """Whether that attempt holds its job now; a deleted job has no holder."""
        job = self.jobs.get(by.id)
        return job is not None and job.is_held(by)

    def held(self) -> list[Fence]:
        return sorted(Fence(x.id, x.attempts, x.locked_by or "") for x in self.jobs.values() if x.status == "RUNNING")

    def claimable(self, topics: Sequence[str], now: datetime) -> list[tuple[Key, bytes]]:
        """The jobs that a claim may take, in the order in which it takes them; equal keys in any order."""
        return sorted(
            ((-job.priority, topics.index(job.topic), job.next_run_at), job.id)
            for job in self.jobs.values()
            if job.status in WAITING and job.topic in topics and job.next_run_at <= now
            if not self.is_paused(job.topic, now) and not job.is_over(now) and not self.is_in_turn(job)
        )

    def is_in_turn(self, job: ModelJob) -> bool:
        """Whether it is claimed under a limit, or by the turn of its group: no plain claim takes it."""
        return job.group_key is not None

    def is_paused(self, topic: str, _now: datetime) -> bool:
        return bool(self.paused & {"", topic})

    def wait_s(self, job: ModelJob) -> float:
        return float((job.attempts - job.uncharged) ** 2)

    def seated(
        self, claimed: Iterable[bytes], workers: Sequence[str], lease_s: float, now: datetime
    ) -> dict[bytes, str]:
        """Give *claimed* to *workers*, one each: by priority, due time, id; returns the pairs."""
        jobs = sorted((self.jobs[one] for one in claimed), key=lambda job: (-job.priority, job.next_run_at, job.id))
        for job, worker in zip(jobs, workers, strict=False):
            job.status, job.locked_by, job.attempts = "RUNNING", worker, job.attempts + 1
            job.started_at, job.lease_until, job.progress = now, now + timedelta(seconds=lease_s), None
            job.counted_by = None
        return {job.id: job.locked_by or "" for job in jobs}

    def before(self, identity: bytes) -> tuple[object, ...] | None:
        """The newest attempt in the history before the current one."""
        job = self.jobs[identity]
        attempts = [attempt for one, attempt in self.history if one == identity and attempt < job.attempts]
        if not attempts:
            return None
        row = self.history[identity, max(attempts)]
        return (row["outcome"], row["error"], row["worker"], row["progress"])

    def complete(self, completions: Sequence[Completion], now: datetime) -> set[tuple[bytes, int]]:
        """Close those attempts that hold their jobs; returns those that are closed, by this or before."""
        closed = set()
        for one in completions:
            job = self.jobs.get(one.id)
            if job is None:
                continue
            if job.is_held(one):
                job.ran_by = job.locked_by
                job.let_go("COMPLETED", finished_at=now)
                job.result, job.progress = one.result, one.progress if one.progress is not None else job.progress
            if job.status == "COMPLETED" and job.attempts == one.attempt:
                closed.add((job.id, job.attempts))
        return closed

    def extend(self, renewals: Sequence[Renewal], lease_s: float, now: datetime) -> set[tuple[bytes, int]]:
        held = [one for one in renewals if self.is_held(one)]
        for one in held:
            job = self.jobs[one.id]
            job.lease_until = now + timedelta(seconds=lease_s)
            job.progress = one.progress if one.progress is not None else job.progress
        return {(one.id, one.attempt) for one in held}

    def save(self, checkpoints: Sequence[Renewal]) -> set[tuple[bytes, int]]:
        held = [one for one in checkpoints if self.is_held(one)]
        for one in held:
            self.jobs[one.id].checkpoint = one.progress
        return {(one.id, one.attempt) for one in held}

    def move(self, fence: Fence, heir: str) -> set[bytes]:
        if not self.is_held(fence):
            return set()
        self.jobs[fence.id].locked_by = heir
        return {fence.id}

    def lapsed(self, now: datetime) -> set[Fence]:
        return {
            Fence(job.id, job.attempts, job.locked_by or "")
            for job in self.jobs.values()
            if job.lease_until is not None and job.lease_until < now
        }

    def end(self, endings: Sequence[Ending], now: datetime) -> list[Ended]:
        return [self._end(one, now) for one in endings if self._may_end(one, now)]

    def _may_end(self, one: Ending, now: datetime) -> bool:
        if not self.is_held(one):
            return False
        lease_until = self.jobs[one.id].lease_until
        return one.kind != EndingKind.LEASE_EXPIRED or (lease_until is not None and lease_until < now)

    def _end(self, one: Ending, now: datetime) -> Ended:
        job = self.jobs[one.id]
        tries = job.attempts - job.uncharged  # with this one
        if one.kind == EndingKind.CRASHED:
            dead, delay_s = job.crashes + 1 >= MAX_CRASHES, float(job.crashes**2)
            job.crashes += 1
        elif one.kind in UNCHARGED:
            dead, delay_s = False, 0.0 if one.kind in GIVEN_BACK else self.wait_s(job)
        else:
            dead, delay_s = one.kind == EndingKind.DISCARDED or tries >= job.max_attempts, self.wait_s(job)
        delay_s = delay_s if one.delay_s is None else one.delay_s
        job.uncharged += one.kind in UNCHARGED
        untried = one.kind in UNCHARGED - {EndingKind.CRASHED} and job.uncharged == job.attempts
        job.progress = one.progress if one.progress is not None else job.progress
        job.last_error = one.error if one.error is not None else job.last_error
        if one.kind != EndingKind.UNASSIGNED:  # no worker ever saw it
            kind = EndingKind.LEASE_EXPIRED if one.kind == EndingKind.SILENT else one.kind
            self._remember(job, kind.value, now, error=one.error, exit_code=one.exit_code)
        if dead:
            job.let_go("DEAD_LETTERED", finished_at=now)
        else:
            job.let_go("PENDING" if untried else "RETRYING")
            job.next_run_at = now + timedelta(seconds=delay_s)
        due_s = job.next_run_at.timestamp()
        return Ended(
            job.id, job.attempts, job.status, job.topic, job.priority, delay_s, due_s, job.name, job.group_key
        )  # fmt: skip

    def cancel(self, ids: Iterable[bytes], now: datetime) -> list[Canceled]:
        canceled = []
        for job in self._there(ids):
            if job.status not in FINISHED:
                if job.status == "RUNNING":
                    self._remember(job, "canceled", now)
                canceled.append(Canceled(job.id, job.attempts, job.locked_by))
                job.let_go("CANCELED", finished_at=now)
        return canceled

    def retry(self, ids: Iterable[bytes], now: datetime) -> set[bytes]:
        chosen = {job.id for job in self._there(ids) if job.status in FINISHED}
        for job in self._there(chosen):
            if job.status == "COMPLETED":
                self.history[job.id, job.attempts] = {
                    "worker": job.ran_by, "started_at": job.started_at, "ended_at": job.completed_at,
                    "outcome": "completed", "error": None, "exit_code": None, "progress": job.progress,
                }  # fmt: skip
            job.let_go("PENDING")
            job.uncharged, job.crashes, job.next_run_at, job.ran_by = job.attempts, 0, now, None
            job.result = job.progress = job.checkpoint = None
            job.expires_at = None if job.is_over(now) else job.expires_at
        return chosen

    def delete(self, ids: Iterable[bytes]) -> set[bytes]:
        gone = {job.id for job in self._there(ids) if job.status in FINISHED}
        self.jobs = {one: job for one, job in self.jobs.items() if one not in gone}
        self.history = {pair: row for pair, row in self.history.items() if pair[0] not in gone}
        return gone

    def change(
        self, ids: Iterable[bytes], topic: str | None, priority: int | None, now: datetime
    ) -> dict[bytes, tuple[str, int, bool]]:
        """Move those that wait: where each was, and whether that was elsewhere. Due jobs become due from now on."""
        before = {}
        for job in self._there({*ids}):
            if job.status not in WAITING:
                continue
            was = (job.topic, job.priority)
            job.topic, job.priority = topic or job.topic, job.priority if priority is None else priority
            moved = (job.topic, job.priority) != was
            if moved and job.next_run_at <= now:
                job.next_run_at = now
            before[job.id] = (*was, moved)
        return before

    def _there(self, ids: Iterable[bytes]) -> list[ModelJob]:
        return [self.jobs[one] for one in ids if one in self.jobs]

    def _remember(self, job: ModelJob, outcome: str, now: datetime, **more: Any) -> None:
        self.history[job.id, job.attempts] = {
            "worker": job.locked_by, "started_at": job.started_at, "ended_at": now, "outcome": outcome, "error": None,
            "exit_code": None, "progress": job.progress, **more,
        }  # fmt: skip
