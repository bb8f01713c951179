"""The rows with jobs that wait, for others or for signals: what ``pulse.settle`` and ``pulse.signal`` do."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple
from uuid import UUID

from pulse.errors import ConflictError, NotFoundError
from pulse.protocol import SubmittedJob
from pulse.store.operators.dependencies import FIRST, Settled
from pulse.store.rows import Canceled, Completion, Ended, Ending, Wake
from tests.support.store.model import FINISHED, WAITING, ModelJob
from tests.support.store.rows import Rows

HELD: Final = datetime(9999, 12, 30, tzinfo=UTC)
Edge = tuple[bytes, bytes]  # of a parent and its child


class SentSignal(NamedTuple):
    id: int
    job: bytes
    name: str
    payload: str | None
    key: str


@dataclass(slots=True)
class Dependency:
    on_failure: str
    is_over: bool = False


@dataclass(slots=True)
class WorkflowRows(Rows):
    edges: dict[Edge, Dependency] = field(default_factory=dict)
    sent: dict[bytes, list[SentSignal]] = field(default_factory=dict)

    # Jobs that wait for others.

    def ended_parents(self, jobs: Sequence[SubmittedJob]) -> dict[bytes, str]:
        """What the transaction of a submit sees of the parents that have ended, before it commits."""
        known = {*self.jobs}
        for job in jobs:
            for parent in job.after or ():
                if parent not in known:
                    raise NotFoundError(f"job {UUID(bytes=parent)} is not there")
            known.add(job.id or b"")
        parents = {parent for job in jobs for parent in job.after or () if parent in self.jobs}
        return {one: self.jobs[one].status for one in parents if self.jobs[one].status in FINISHED}

    def submit_held(self, jobs: Sequence[SubmittedJob], seen: Mapping[bytes, str], now: datetime) -> list[Wake]:
        """It commits; *seen*: the parents that had ended before, with their status."""
        added: list[Edge] = []
        new = [job for job in jobs if job.id not in self.jobs]
        woken = self.submit_again(jobs, now)
        for job in new:
            parents = [*dict.fromkeys(job.after or ())]
            if parents and job.id is not None:
                row = self.jobs[job.id]
                row.waiting_on, row.run_after, row.next_run_at = len(parents), row.next_run_at, HELD
                added += [(parent, row.id) for parent in parents]
                self.edges |= {(parent, row.id): Dependency(job.on_failure or "cancel") for parent in parents}
        others = [edge for edge in self.edges if edge not in added and self.is_over(edge[0])]
        self._settle([edge for edge in (*added, *others) if edge[0] in seen], seen, now)
        for edge in sorted(added):
            self.join(edge, now)
        return woken

    def join(self, edge: Edge, now: datetime) -> None:
        """``pulse.join_parent``, at the commit of the transaction that adds the dependency."""
        parent = self.jobs.get(edge[0])
        if parent is not None:
            parent.is_parent = True
        if not self.edges[edge].is_over:
            self.settle([edge[0]], now)

    def settle(self, ended: Iterable[bytes], now: datetime) -> None:
        """``pulse.settle``; a job that has not ended is left alone, one that was deleted counts as completed."""
        there = {one: self.jobs[one].status if one in self.jobs else "COMPLETED" for one in ended}
        over = {one: status for one, status in there.items() if status in FINISHED}
        self._settle([edge for edge in self.edges if edge[0] in over], over, now)

    def _settle(self, edges: Sequence[Edge], status_of: Mapping[bytes, str], now: datetime) -> None:
        counted: dict[bytes, int] = {}
        failed: dict[bytes, list[bytes]] = {}
        for parent, child in [edge for edge in edges if not self.edges[edge].is_over]:
            one = self.edges[parent, child]
            one.is_over = True
            counted[child] = counted.get(child, 0) + 1
            if status_of[parent] != "COMPLETED" and one.on_failure == "cancel":
                failed.setdefault(child, []).append(parent)
        canceled = []
        for child, number in sorted(counted.items()):
            row = self.jobs.get(child)
            if row is None or not row.waiting_on:
                continue
            had_ended, is_last = row.status in FINISHED, row.waiting_on <= number
            row.waiting_on = max(row.waiting_on - number, 0)
            if child in failed and row.status == "PENDING":
                first = min(failed[child])
                row.last_error = f"canceled: it waited for other jobs, and {UUID(bytes=first)} is {status_of[first]}"
                row.let_go("CANCELED", finished_at=now)
            if is_last and not had_ended:
                row.next_run_at, row.run_after = max(now, row.run_after or now), None
            if row.status == "CANCELED" and row.is_parent:
                canceled.append(child)
        if canceled:
            self.settle(canceled, now)

    def settle_forgotten(self, after: Edge, limit: int, now: datetime) -> Settled:
        walked = [edge for edge in sorted(self.edges) if edge > after][:limit]
        forgotten = {edge[0] for edge in walked if not self.edges[edge].is_over and self.is_over(edge[0])}
        self.settle(forgotten, now)
        return Settled(FIRST if len(walked) < limit else walked[-1], len(forgotten))

    def is_over(self, parent: bytes) -> bool:
        return parent not in self.jobs or self.jobs[parent].status in FINISHED

    def wait_again(self, retried: Iterable[bytes]) -> dict[bytes, bool]:
        """Let these count again for those that wait for them, and wait again; whether each is held."""
        chosen = {*retried}
        touched = {child for (parent, child), one in self.edges.items() if one.is_over and parent in chosen}
        for child in sorted(touched | chosen):
            row = self.jobs.get(child)
            if row is None or row.status != "PENDING" or row.waiting_on is None:
                continue
            if row.waiting_on == 0 and child not in chosen:
                continue
            its = {parent: one for (parent, its_child), one in self.edges.items() if its_child == child}
            for parent, one in its.items():
                one.is_over = one.is_over and self.is_over(parent)
            left = sum(not one.is_over for one in its.values())
            if row.waiting_on < left:
                row.run_after = row.run_after if row.waiting_on else row.next_run_at
                row.waiting_on, row.next_run_at = left, HELD
        return {one: bool(self.jobs[one].waiting_on) for one in sorted(chosen)}

    # What ends jobs, and what brings them back.

    def complete(self, completions: Sequence[Completion], now: datetime) -> set[tuple[bytes, int]]:
        held = [one.id for one in completions if self.is_held(one)]
        closed = Rows.complete(self, completions, now)
        self._settle_parents(held, now)
        return closed

    def end(self, endings: Sequence[Ending], now: datetime) -> list[Ended]:
        ended = Rows.end(self, endings, now)
        self._settle_parents([one.id for one in ended if one.status == "DEAD_LETTERED"], now)
        return ended

    def cancel(self, ids: Iterable[bytes], now: datetime) -> list[Canceled]:
        canceled = Rows.cancel(self, ids, now)
        self._settle_parents([one.id for one in canceled], now)
        return canceled

    def _settle_parents(self, ended: Iterable[bytes], now: datetime) -> None:
        self.settle([one for one in ended if self.jobs[one].is_parent], now)

    def retry(self, ids: Iterable[bytes], now: datetime) -> set[bytes]:
        """What had not completed keeps its steps, and what waits for others waits on."""
        wanted = [*ids]
        kept = {one: _steps_of(self.jobs[one]) for one in wanted if one in self.jobs}
        chosen = Rows.retry(self, wanted, now)
        for row in (self.jobs[one] for one in chosen):
            row.checkpoint, row.awaited_signal = kept[row.id], None
            row.next_run_at, row.run_after = (HELD, now) if row.waiting_on else (now, None)
        return chosen

    def delete(self, ids: Iterable[bytes]) -> set[bytes]:
        gone = Rows.delete(self, ids)
        self.sent = {job: some for job, some in self.sent.items() if job not in gone}
        self.edges = {edge: one for edge, one in self.edges.items() if edge[1] not in gone}
        return gone

    # Signals.

    def may_send(self, job: bytes, name: str, key: str) -> bool:
        """What ``pulse.signal`` looks at, in the sender's transaction: whether it is new."""
        if any((one.name, one.key) == (name, key) for one in self.sent.get(job, ())):
            return False
        if job not in self.jobs:
            raise NotFoundError(f"there is no job {UUID(bytes=job)}")
        if self.jobs[job].status in {"COMPLETED", "CANCELED"}:
            raise ConflictError(f"job {UUID(bytes=job)} is {self.jobs[job].status}")
        return True

    def deliver(self, signal: SentSignal, now: datetime) -> bool:
        """The sender commits: ``pulse.deliver_signal``; whether it is new."""
        row, some = self.jobs.get(signal.job), self.sent.setdefault(signal.job, [])
        if row is None or any((one.name, one.key) == (signal.name, signal.key) for one in some):
            return row is None
        some.append(signal)
        row.signals += 1
        if row.status in WAITING and row.awaited_signal == signal.name:
            row.awaited_signal, row.next_run_at = None, min(row.next_run_at, now)
        return True

    def next_signal(self, job: bytes, name: str, had: Sequence[int], now: datetime) -> dict[str, object] | None:
        if job not in self.jobs:
            return None
        row = self.jobs[job]
        fresh = sorted(one for one in self.sent.get(job, ()) if one.name == name and one.id not in had)
        found = {"id": fresh[0].id, "payload": fresh[0].payload, "sent_at": now.timestamp()} if fresh else None
        return {
            "signal": found, "sent": row.signals, "is_over": row.awaited_signal == name, "now": now.timestamp(),
        }  # fmt: skip

    def _end(self, one: Ending, now: datetime) -> Ended:
        name, seen = one.awaits or (None, 0)
        has_come = name is not None and self.has_come(self.jobs[one.id], seen)
        ended = Rows._end(self, one._replace(delay_s=0.0) if has_come else one, now)
        self.jobs[one.id].awaited_signal = None if has_come else name
        return ended

    def has_come(self, row: ModelJob, seen: int) -> bool:
        """Whether more signals were sent to it than its handler had seen."""
        return row.signals > seen


def _steps_of(row: ModelJob) -> str | None:
    """What a retry leaves of its checkpoint."""
    stored = None if row.checkpoint is None or row.status == "COMPLETED" else json.loads(row.checkpoint)
    return json.dumps({"$steps": stored["$steps"]}) if isinstance(stored, dict) and "$steps" in stored else None
