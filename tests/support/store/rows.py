"""The model with submits, claims and all other requests of actors: the database of a simulation."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from pulse.errors import ConflictError, StatementError
from pulse.protocol import HandlerInfo, SubmittedJob
from pulse.store.failures import UNIQUE_VIOLATION
from pulse.store.limit_claims import Blocked
from pulse.store.operators.jobs import ChangedJob
from pulse.store.recovery.epochs import WENT_BACK, DatabaseState, Held, HostContact, Mark, NewEpoch
from pulse.store.rows import Claim, Ending, EndingKind, Fence, Head, Leased, Level, Running, Wake, from_s
from tests.support.store.epoch_rows import Ledger
from tests.support.store.limit_rows import Limits, Seen, Start, choose
from tests.support.store.model import WAITING, Key, Model, ModelJob

MAX_ATTEMPTS: Final = 5
SOON: Final = timedelta(seconds=1)
LAST: Final = timedelta(seconds=5)


@dataclass(slots=True)
class Rows(Model):
    handlers: dict[str, HandlerInfo] = field(default_factory=dict)
    hosts: dict[tuple[str, str, int], datetime] = field(default_factory=dict)
    swept_at: datetime | None = None
    wait_until: datetime | None = None
    ledger: Ledger = field(default_factory=Ledger)
    limits: Limits = field(default_factory=Limits)

    def _new(self, job: SubmittedJob, now: datetime, place: int) -> ModelJob:
        assert job.id is not None
        info = self.handlers.get(job.name, HandlerInfo())
        if job.run_at is not None:
            raise NotImplementedError
        return ModelJob(
            job.id, job.topic or info.topic or "default", job.name, job.args, job.priority,
            job.max_attempts or info.max_attempts or MAX_ATTEMPTS, now,
            now + timedelta(seconds=job.delay_s or 0.0, microseconds=place),
            timeout_s=job.timeout_s or info.timeout_s, group_key=job.group_key,
        )  # fmt: skip

    def submit(self, jobs: Sequence[SubmittedJob], now: datetime) -> list[Wake]:
        new = [self._new(job, now, place) for place, job in enumerate(jobs)]
        if len({row.id for row in new} - self.jobs.keys()) < len(new):
            why = "duplicate key value violates unique constraint"
            raise StatementError(why, sqlstate=UNIQUE_VIOLATION, statement="submit_jobs", is_value=True)
        return self._insert(new, now)

    def submit_and_claim(
        self,
        jobs: Sequence[SubmittedJob],
        topics: Sequence[str],
        workers: Sequence[str],
        seats: Sequence[int],
        lease_s: float,
        now: datetime,
    ) -> tuple[list[Claim], list[Wake]]:
        self.submit(jobs, now)
        open_ones = {topic for topic in topics if not self.is_paused(topic, now)}
        seat_of = {job.id: seat for job, seat in zip(jobs, seats, strict=False) if job.id is not None}
        held = {
            one: seat
            for one, seat in seat_of.items()
            if self.jobs[one].topic in open_ones and not self.is_in_turn(self.jobs[one])
        }
        for one, seat in held.items():
            self.seated([one], [workers[seat]], lease_s, now)
        claims = [self._claimed(one, seat, self.jobs[one].next_run_at) for one, seat in held.items()]
        left = [self.jobs[one] for one in seat_of if one not in held]
        return claims, [Wake(row.topic, row.priority, row.next_run_at.timestamp(), 1, row.group_key) for row in left]

    def submit_again(self, jobs: Sequence[SubmittedJob], now: datetime) -> list[Wake]:
        new = [self._new(job, now, place) for place, job in enumerate(jobs)]
        for row in new:
            there = self.jobs.get(row.id)
            if there is not None and (there.name, there.topic, there.args) != (row.name, row.topic, row.args):
                raise ConflictError(f"job {row.id.hex()} exists already with another name, topic or args")
        return self._insert([row for row in new if row.id not in self.jobs], now)

    def _insert(self, new: Sequence[ModelJob], now: datetime) -> list[Wake]:
        self.jobs.update((row.id, row) for row in new)
        first: dict[tuple[str, int, str | None], float | None] = {}
        for row in sorted(new, key=lambda one: one.next_run_at):
            due_s = row.next_run_at.timestamp() if row.next_run_at <= now + SOON else None
            first.setdefault((row.topic, row.priority, row.group_key), due_s)
        got = Counter((row.topic, row.priority, row.group_key) for row in new)
        return [Wake(*level[:2], due_s, got[level], level[2]) for level, due_s in first.items()]

    def claim(
        self,
        topics: Sequence[str],
        workers: Sequence[str],
        seats: Sequence[int],
        lease_s: float,
        now: datetime,
        *,
        levels: Sequence[tuple[str, int, float | None]] | None = None,
        locked: Iterable[bytes] = (),
    ) -> list[Claim]:
        skipped = set(locked)
        found = self.claimable(topics, now) if levels is None else self.claimable_from(levels, now)
        return self.take([one for _, one in found if one not in skipped][: len(seats)], workers, seats, lease_s, now)

    def is_in_turn(self, job: ModelJob) -> bool:
        return job.group_key is not None or self.limits.name_of(job.topic) is not None

    def claim_limited(
        self,
        starts: Sequence[Start],
        workers: Sequence[str],
        seats: Sequence[int],
        lease_s: float,
        now: datetime,
        *,
        seen: Seen | None = None,
        most: int | None = None,
        locked: Iterable[bytes] = (),
    ) -> tuple[list[Claim], list[Blocked]]:
        """Claim where topics have limits or jobs have groups; *seen*: what the statement saw when it began."""
        served = [one for one in starts if not self.is_paused(one[0].topic, now)]
        rooms = list(self.limits.rooms(served, self.limits.look(self) if seen is None else seen, now))
        chosen = choose(self, rooms, len(seats), most, set(locked), now)
        claims = []
        for one, seat in zip(chosen, seats, strict=False):
            self.seated([one.job.id], [workers[seat]], lease_s, now)
            one.job.counted_by = one.room.name
            claims.append(self._claimed(one.job.id, seat, one.job.next_run_at))
        self.limits.spend(chosen, now)
        return claims, [blocked for room in rooms if (blocked := room.blocked()) is not None]

    def find_levels(self, after: Level, most: int, now: datetime, *, topics: Sequence[str] | None = None) -> list[Head]:
        """The levels after *after*, or below its priority in *topics*, that have waiting jobs without a group."""
        first: dict[Level, datetime] = {}
        for job in self.jobs.values():
            level = Level(job.topic, job.priority)
            start = after if topics is None else Level(job.topic, after.priority)
            if topics is not None and job.topic not in topics:
                continue
            if job.status in WAITING and job.group_key is None and _place(level) > _place(start):
                first[level] = min(first.get(level, job.next_run_at), job.next_run_at)
        return [Head(one, first[one].timestamp(), first[one] <= now) for one in sorted(first, key=_place)[:most]]

    def take(
        self, due: Iterable[bytes], workers: Sequence[str], seats: Sequence[int], lease_s: float, now: datetime
    ) -> list[Claim]:
        """Claim these: a claim may bring any of the jobs that are due at the same time."""
        chosen = sorted(due, key=lambda one: (-self.jobs[one].priority, self.jobs[one].next_run_at, one))
        due_at = {one: self.jobs[one].next_run_at for one in chosen}
        self.seated(chosen, [workers[seat] for seat in seats], lease_s, now)
        return [self._claimed(one, seat, due_at[one]) for one, seat in zip(chosen, seats, strict=False)]

    def seated(
        self, claimed: Iterable[bytes], workers: Sequence[str], lease_s: float, now: datetime
    ) -> dict[bytes, str]:
        """Give them to *workers*; an attempt's number is above the floor of the newest epoch."""
        ids = list(claimed)
        for job in (self.jobs[one] for one in ids):
            jump = max(self.ledger.floor - job.attempts, 0)
            job.attempts, job.uncharged = job.attempts + jump, job.uncharged + jump
        return Model.seated(self, ids, workers, lease_s, now)

    def begin_epoch(
        self, seen: DatabaseState, coming: HostContact, epoch: int | None, held: Held | None, now: datetime
    ) -> tuple[NewEpoch | None, Mark | None]:
        instance, host, counter, highest = coming
        raised = None
        if epoch is not None:
            raised = self.ledger.begin(epoch, highest, instance, seen.back_to, now)
            if raised is None:
                return None, None
        number = seen.epoch if raised is None else raised.epoch
        mark = self.ledger.accept(instance, counter, number, highest, seen.place, now)
        if mark is not None and held is not None:
            self.note_lost(held, now)
            self.end_epoch(held, host, now)
            self.put_off([fence.id for fence in held.fences], held.put_off_s, now)
        return raised, mark

    def note_lost(self, held: Held, now: datetime) -> None:
        """What is held and is not known any more is in the history."""
        for job, attempt, worker in held.fences:
            if job in self.jobs and self.jobs[job].attempts < attempt and (job, attempt) not in self.history:
                lost = replace(self.jobs[job], attempts=attempt, locked_by=worker, started_at=None, progress=None)
                self._remember(lost, "released", now, error=WENT_BACK)

    def end_epoch(self, held: Held, host: str, now: datetime) -> None:
        """What the workers of *host* held before the newest epoch is given back."""
        over = [
            Ending(row.id, row.attempts, row.locked_by or "", EndingKind.RELEASED, WENT_BACK)
            for row in self.running()
            if row.attempts <= self.ledger.floor
            and (row.locked_by in held.workers or (row.locked_by or "").startswith(f"{host}/"))
        ]
        self.end(over, now)
        self.put_off([ending.id for ending in over], held.put_off_s, now)

    def put_off(self, ids: Sequence[bytes], put_off_s: float, now: datetime) -> None:
        until = now + timedelta(seconds=put_off_s)
        for job in (self.jobs[one] for one in ids if one in self.jobs):
            if job.status in WAITING and job.waiting_on:
                job.run_after = max(job.run_after or until, until)
            elif job.status in WAITING and (job.awaited_signal is not None or job.next_run_at < until):
                job.next_run_at, job.awaited_signal = until, None

    def knows_less(self, handed_out: Mapping[bytes, int], forgotten: AbstractSet[bytes]) -> bool:
        return any(
            self.jobs[job].attempts < attempt if job in self.jobs else job not in forgotten
            for job, attempt in handed_out.items()
        )

    def claimable_from(self, levels: Sequence[tuple[str, int, float | None]], now: datetime) -> list[tuple[Key, bytes]]:
        """What a claim may take that knows the levels, and where to begin in each."""
        begins = {
            (topic, priority): (place, now - LAST if at_s is None else from_s(at_s))
            for place, (topic, priority, at_s) in enumerate(levels)
        }
        found: list[tuple[Key, bytes]] = []
        for (_, _, due), one in self.claimable(list(dict.fromkeys(level[0] for level in levels)), now):
            job = self.jobs[one]
            place, begin = begins.get((job.topic, job.priority), (0, None))
            if begin is not None and due >= begin:
                found.append(((-job.priority, place, due), one))
        return sorted(found)

    def _claimed(self, identity: bytes, seat: int, due_at: datetime) -> Claim:
        row, before = self.jobs[identity], self.before(identity)
        return Claim(
            row.id, row.attempts, row.name, row.topic, row.args, row.timeout_s, row.priority, due_at.timestamp(),
            seat, row.uncharged, row.crashes, checkpoint=row.checkpoint,
            previous=None if before is None else json.dumps(before), group_key=row.group_key,
        )  # fmt: skip

    def moved(
        self, ids: Iterable[bytes], topic: str | None, priority: int | None, now: datetime
    ) -> dict[bytes, ChangedJob]:
        """Move what waits, and return what to wake there."""
        before = self.change(ids, topic, priority, now)
        return {
            one: ChangedJob(was, level, self._wake(self.jobs[one]) if is_moved else None)
            for one, (was, level, is_moved) in before.items()
        }

    def _wake(self, row: ModelJob) -> Wake:
        return Wake(row.topic, row.priority, row.next_run_at.timestamp(), group_key=row.group_key)

    def running(self) -> list[ModelJob]:
        return [self.jobs[one] for one, job in self.jobs.items() if job.status == "RUNNING"]

    def running_of(self, worker: str) -> dict[tuple[bytes, int], Running]:
        held = (row for row in self.running() if row.locked_by == worker)
        return {(row.id, row.attempts): _running(row) for row in held}

    def leases_of(self, workers: Sequence[str], now: datetime) -> dict[str, dict[tuple[bytes, int], Leased]]:
        """What each of *workers* holds, and for how long; those without jobs are missing."""
        held = {worker: [row for row in self.running() if row.locked_by == worker] for worker in workers}
        return {
            worker: {(row.id, row.attempts): Leased(*_running(row), _left_s(row, now)) for row in rows}
            for worker, rows in held.items()
            if rows
        }

    def named(self, ids: Sequence[bytes]) -> dict[bytes, Running]:
        rows = (self.jobs[one] for one in ids if one in self.jobs)
        return {row.id: _running(row) for row in rows}

    def running_workers(self) -> list[str]:
        return sorted({row.locked_by or "" for row in self.running()})

    def lapsed_except(self, limit: int, spared: Iterable[str], now: datetime) -> list[Fence]:
        """The oldest attempts whose lease has lapsed, of others than *spared*."""
        left = set(spared)
        lapsed = [one for one in self.lapsed(now) if one.worker not in left]
        lapsed.sort(key=lambda one: (self.jobs[one.id].started_at or now, one.id))
        return sorted(lapsed[:limit])

    def statuses(self, ids: Sequence[bytes]) -> dict[bytes, tuple[str, int]]:
        return {one: (self.jobs[one].status, self.jobs[one].attempts) for one in ids if one in self.jobs}

    def last_workers(self, ids: Sequence[bytes]) -> dict[bytes, str]:
        """The worker of the last attempt where it was canceled, or that still has it."""
        found: dict[bytes, str] = {}
        for job in (self.jobs[one] for one in ids if one in self.jobs):
            history: Mapping[str, object] = self.history.get((job.id, job.attempts), {})
            worker = job.locked_by or (history.get("worker") if history.get("outcome") == "canceled" else None)
            if worker is not None:
                found[job.id] = str(worker)
        return found

    def mark_sweep(self, gap_s: float, wait_s: float, now: datetime) -> tuple[float, float, float]:
        """Seconds since the sweep before, the time, and how long no attempt may be reaped."""
        before, self.swept_at = self.swept_at, now
        since_s = float("inf") if before is None else (now - before).total_seconds()
        longest = now + timedelta(seconds=wait_s)
        if since_s > gap_s:
            self.wait_until = longest
        elif self.wait_until is not None:
            self.wait_until = min(self.wait_until, longest)
        left_s = 0.0 if self.wait_until is None else max(0.0, (self.wait_until - now).total_seconds())
        return since_s, now.timestamp(), left_s

    def doubt_leases(self, wait_s: float, now: datetime) -> None:
        self.wait_until = max(self.wait_until or now, now + timedelta(seconds=wait_s))

    def host_boots(self, host: str, now: datetime) -> dict[str, float]:
        seen: dict[str, datetime] = {}
        for (name, boot, _), at in self.hosts.items():
            if name == host:
                seen[boot] = max(at, seen.get(boot, at))
        return {boot: (now - at).total_seconds() for boot, at in seen.items()}


def _place(level: Level) -> tuple[str, int]:
    return level.topic, -level.priority


def _running(row: ModelJob) -> Running:
    return Running(row.name, row.topic, row.timeout_s, row.group_key)


def _left_s(row: ModelJob, now: datetime) -> float:
    assert row.lease_until is not None
    return (row.lease_until - now).total_seconds()
