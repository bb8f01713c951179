"""
The judge: knows what really happened, in every process and in the database, and says what must not have.

It watches each statement that changes rows, each handler that begins and ends, and each message, and compares them at
once. What it finds first ends the run.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from pulse.job import TRANSITIONS, Status
from pulse.protocol import Result
from tests.simulation.judge.workflows import WorkflowJudge
from tests.simulation.machine.process import Process
from tests.support.store.model import FINISHED, ModelJob

if TYPE_CHECKING:
    from tests.simulation.machine.machine import Machine
    from tests.simulation.machine.wire import Link
    from tests.simulation.world import World

T = TypeVar("T")
Pair = tuple[bytes, int]
TICK_S: Final = 1.5  # what a dispatcher claimed so long before the database went back, it alone knows
CHARGED: Final = frozenset({"error", "retry", "timeout", "stalled", "lease_expired", "discarded", "crashed"})
WRITES: Final = frozenset(
    {"claim", "move", "complete", "end", "cancel", "retry", "extend", "submit", "submit_again", "submit_and_claim"}
    | {"delete", "change", "begin", "submit_held", "signal", "settle_forgotten"}
)
CLAIMS: Final = frozenset({"claim", "submit_and_claim"})
NEW: Final = ("PENDING", 0, None)
# The outcome of a report, and as what it may be stored.
STORED: Final = {
    "ok": {"completed"}, "error": {"error", "timeout", "stalled"}, "retry": {"retry"}, "discard": {"discarded"},
    "snooze": {"snoozed"}, "wait": {"snoozed"}, "release": {"released"}, "crash": {"crashed"},
}  # fmt: skip


@dataclass(slots=True)
class Log:
    """
    The life of one attempt.

    Attributes:
        claimer: The dispatcher that claimed it.
        worker: Its worker, by the row.
        told: The process that received it.
        began: The process whose handler was called.
        named: To which dispatcher it was named as started, on which connection.
        apart: It has a process of its own, which dies with its worker's but does not kill it.
        outcome: Of the report that was sent.
        heard: By which dispatcher that report can be read, on which connection.
        closed: As what it ended in the database; "undone": that went back to before its claim.
        epoch: The newest when it was claimed.
        reopened: The database went back to before its end.
        older_s: When the database first went back since its claim.
        unknown: And its job was not in it: it is submitted again, while nobody can know that an attempt runs elsewhere.
        noted: A dispatcher that its worker was connected to has come to the epoch, and wrote it into the history.
        topic: Of its job, whose limit has a slot for it.
    """

    pair: Pair
    claimer: Process
    worker: str
    claimed_s: float
    renewed_s: float
    told: Process | None = None
    began: Process | None = None
    began_s: float = 0.0
    finished: bool = False
    named: tuple[Process | None, Link] | None = None
    apart: bool = False
    outcome: str | None = None
    heard: tuple[Process | None, Link] | None = None
    closed: str | None = None
    closed_s: float = 0.0
    epoch: int = 1
    reopened: bool = False
    older_s: float | None = None
    unknown: bool = False
    noted: bool = False
    topic: str = ""

    @property
    def runs(self) -> bool:
        return self.began is not None and not self.finished and not self.began.dead


@dataclass(slots=True)
class Judge:
    world: World
    logs: dict[Pair, Log] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    over: trio.Event = field(default_factory=trio.Event)
    counts: dict[str, int] = field(default_factory=dict)
    condemned: set[tuple[Process, str]] = field(default_factory=set)
    came_s: dict[str, float] = field(default_factory=dict)  # machine -> when it last accepted an epoch or a place
    workflows: WorkflowJudge = field(init=False)

    def __post_init__(self) -> None:
        self.workflows = WorkflowJudge(self.world)

    def fail(self, finding: str) -> None:
        self.findings.append(finding)
        self.world.trace("FOUND", finding)
        self.over.set()

    def broke(self, process: Process, error: BaseException) -> None:
        self.fail(f"{process} broke: {''.join(traceback.format_exception(error))}")

    def count(self, what: str) -> None:
        """Counts events, so that a test can see that each kind was tried."""
        self.counts[what] = self.counts.get(what, 0) + 1

    # The database.

    def watch(self, name: str, by: Process, act: Callable[[], T]) -> T:
        if name not in WRITES:
            return act()
        rows = self.world.database.rows
        before = {one: (job.status, job.attempts, job.locked_by) for one, job in rows.jobs.items()}
        answer = act()
        for one in before.keys() - rows.jobs.keys():
            self._deleted(one, *before[one][:2], by)
        for job in rows.jobs.values():
            was = before.get(job.id, NEW)
            if was != (job.status, job.attempts, job.locked_by):
                self._moved(name, by, was, job)
        for exceeded in rows.limits.exceeded(rows) if name in CLAIMS else ():
            self.fail(f"{name}: {exceeded}")
        self.workflows.look(name, {one: status for one, (status, *_) in before.items()})
        if name == "extend":
            self._renewed(answer)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        return answer

    def _deleted(self, job: bytes, status: str, attempts: int, by: Process) -> None:
        """An operator deletes only jobs that have ended, whose handlers no longer run."""
        self.count("deleted")
        self.world.trace("delete", by, job=job, was=status)
        self.world.deleted.add(job)
        if status not in FINISHED:
            self.fail(f"job {self.world.label(job)} was deleted while it was {status}")
        last = self.logs.get((job, attempts))
        if last is None or last.began is None or not last.runs or last.closed != "canceled":
            return
        if last.began.machine is by.machine and self.world.in_hand(last.began):
            self.fail(f"{self._show(last)} was deleted while its handler runs beside it, in {last.began}")

    def _renewed(self, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            self.logs[pair].renewed_s = trio.current_time()

    def _moved(self, name: str, by: Process, was: tuple[str, int, str | None], job: ModelJob) -> None:
        status, attempts, _ = was
        self.world.trace(
            name, by, job=job.id, attempt=job.attempts, moved=f"{status} -> {job.status}", error=job.last_error
        )
        if (job.status == "RUNNING") != (job.lease_until is not None and job.locked_by is not None):
            self.fail(f"{name}: RUNNING without a lease, or a lease without RUNNING: {job}")
        if job.status == status == "RUNNING" and job.attempts == attempts:
            self._passed_on(job)
            return
        if Status(job.status) not in TRANSITIONS[Status(status)]:
            self.fail(f"{name}: {status} -> {job.status} is no legal move")
        floor = self.world.database.rows.ledger.floor
        if job.attempts != (max(attempts, floor) + 1 if job.status == "RUNNING" else attempts):
            self.fail(f"{name}: attempts went from {attempts} to {job.attempts} with {status} -> {job.status}")
        if name == "retry":
            self.world.retried[job.id] = self.world.retried.get(job.id, 0) + 1
        if job.status == "CANCELED" and name != "cancel":
            self.workflows.canceled(job)
        if job.status == "RUNNING":
            self._claimed(by, job)
        elif status == "RUNNING":
            self._closed(self.logs[job.id, attempts], by, self._kind(name, job, attempts), by_epoch=name == "begin")

    def _claimed(self, by: Process, job: ModelJob) -> None:
        pair, epoch = (job.id, job.attempts), self.world.database.rows.ledger.newest.epoch
        before = self.logs.get(pair)
        if before is not None and self._was_cut_off(before):
            self.over.set()  # nobody can have known it, and what follows proves nothing
        elif before is not None and before.told is not None:
            self.fail(f"{self._show(before)} is handed out twice, by {before.claimer} and by {by}")
        now_s = trio.current_time()
        self.workflows.claimed(job.id)
        self.logs[pair] = Log(pair, by, job.locked_by or "", now_s, now_s, epoch=epoch, topic=job.topic)

    # The database goes back.

    def closed(self) -> dict[Pair, tuple[str | None, str]]:
        return {pair: (log.closed, log.worker) for pair, log in self.logs.items() if log.closed != "undone"}

    def went_back(self, known: dict[Pair, tuple[str | None, str]]) -> None:
        self.workflows.went_back()
        for pair, log in self.logs.items():
            closed, worker = known.get(pair, ("undone", log.worker))
            log.reopened = closed is None
            log.closed, log.worker = closed, worker
            log.older_s = self.world.database.gone_back_s if log.older_s is None else log.older_s
            log.unknown |= pair[0] not in self.world.database.rows.jobs
            log.noted = pair in self.world.database.rows.history

    def raised(self, machine: Machine) -> None:
        if self.came_s.get(machine.name, 0.0) > self.world.database.gone_back_s:
            self.fail(f"{machine.name} raised the epoch, and the database has not gone back since it came to it")

    def came(self, dispatcher: Process, *, ends: bool) -> None:
        """It knows where the database is; *ends*: and that its workers have lost what they hold."""
        self.came_s[dispatcher.machine.name] = trio.current_time()
        for log in self.logs.values() if ends else ():
            log.noted |= log.runs and log.began is not None and self.world.has_met(log.began, dispatcher)

    def _was_cut_off(self, older: Log) -> bool:
        """Whether the claimer could not report it before the database went back: then nobody else can know."""
        claimer = older.claimer
        if older.older_s is None:
            return False
        died_early = claimer.dead and claimer.died_s < older.claimed_s + TICK_S  # before it had counted on
        return died_early or not self.world.is_well(claimer.machine, older.older_s - TICK_S)

    def _kind(self, name: str, job: ModelJob, attempt: int) -> str:
        if name == "complete":
            return "completed"
        found = self.world.database.rows.history.get((job.id, attempt))
        return "unassigned" if found is None else str(found["outcome"])

    def _passed_on(self, job: ModelJob) -> None:
        log = self.logs[job.id, job.attempts]
        if log.told is not None:
            self.fail(f"attempt {job.attempts} was passed on although {log.told} had been told of it")
        log.worker = job.locked_by or ""

    def _closed(self, log: Log, by: Process, kind: str, *, by_epoch: bool = False) -> None:
        self.count(kind)
        log.closed, log.closed_s = kind, trio.current_time()
        holder = self.world.worker_named(log.worker)
        if log.reopened and kind == "lease_expired" and not self._was_cut_off(log) and not holder.dead:
            self.fail(f"{self._show(log)} was charged as {kind} although the database had gone back")
        if kind == "canceled" or (log.reopened and kind not in CHARGED and kind != "completed"):
            return
        if by_epoch and log.older_s is None and log.epoch == self.world.database.rows.ledger.newest.epoch:
            self.fail(f"{self._show(log)} was lost to its worker although it is of this epoch")
        if by_epoch:
            return
        if log.outcome is not None and kind in STORED[log.outcome]:
            return  # as its worker said
        if kind in {"completed", "error", "retry", "discarded", "snoozed"}:
            self.fail(f"{self._show(log)} ended as {kind}, which its worker did not say")
        elif by.name.endswith("watchdog"):
            self._reaped(log, by, holder)
        elif not holder.dead and log.told is not None and (kind != "lease_expired" or log.runs):
            self.fail(f"{self._show(log)} ended as {kind} by {by} while {holder} lives and knows of it")
        elif log.told is not None:
            self._buried(log, by, holder, kind)
        if log.told is None and kind in CHARGED and not self._may_charge_untold(log, by, holder, kind):
            self.fail(f"{self._show(log)} was charged as {kind} although no worker was told of it")

    def _may_charge_untold(self, log: Log, by: Process, holder: Process, kind: str) -> bool:
        """Its claimer is gone with its memory; or it is another machine, which knows only leases."""
        if kind == "crashed":
            return by is not log.claimer
        if not self.world.in_hand(holder):
            return kind == "lease_expired"
        if kind != "lease_expired":
            return False
        database = self.world.database
        obituary_is_late = holder.dead and (
            database.troubles_since(holder.died_s) > 0 or database.was_locked_since(holder.died_s)
        )
        its = holder.machine
        cut_off = its.cut_off or its.cut_off_s >= log.renewed_s
        renewal_failed = by.machine is not its and (cut_off or database.troubles_since(log.renewed_s) > 1)
        return log.claimer.dead or log.claimer.impaired_s >= log.renewed_s or obituary_is_late or renewal_failed

    def _buried(self, log: Log, by: Process, dead: Process, kind: str) -> None:
        heard = log.heard is not None and log.heard[0] is by and log.heard[1].intact
        if heard:
            self.fail(f"{self._show(log)} ended as {kind} although {by} has its report, {log.outcome}")
        if kind == "crashed":
            if dead.killer is by:
                self.fail(f"{self._show(log)} was charged for a death that {by} caused")
            if log.apart and any(self._is_suspect(one, by, dead) for one in self.logs.values()):
                self.fail(f"{self._show(log)} was charged for the death of {dead}, in which others ran")
            if log.claimer is by and log.named is None:  # what was cut later may have been heard before
                self.fail(f"{self._show(log)} was charged for the death of {dead} before it was started")
        elif kind == "released" and log.began and not self._is_excused(log, by, dead):
            self.fail(f"{self._show(log)} was running when {dead} died of it, and was charged nothing")

    def _is_excused(self, log: Log, by: Process, dead: Process) -> bool:
        """Whether an attempt that had begun is rightly given back."""
        intact = log.named is None or log.named[1].intact or log.named[0] is not by
        condemned = (by, log.worker) in self.condemned  # it may have died a moment before it was killed
        others = log.apart and any(self._may_have_run(one, by, dead) for one in self.logs.values())
        return condemned or others or dead.killer is not None or dead.leaving or log.claimer is not by or not intact

    def _may_have_run(self, log: Log, by: Process, dead: Process) -> bool:
        """Whether, for all *by* could know, this ran in that very process when it died."""
        heard = log.finished and log.heard is not None and log.heard[0] is by
        named = log.told is dead and log.named is not None and log.named[0] is by
        return (named or log.began is dead) and not log.apart and not heard

    def _is_suspect(self, log: Log, by: Process, dead: Process) -> bool:
        """Whether *by* knew when it buried *dead* that this had begun in that very process."""
        named = log.named is not None and log.named[0] is by and log.named[1].intact
        return log.began is dead and named and not log.apart and not log.finished and log.closed is None

    def _reaped(self, log: Log, by: Process, holder: Process) -> None:
        """A watchdog never reaps an attempt of its own machine, nor one that beats."""
        self.count("reaped")
        if holder.dead:
            return
        if holder.machine is by.machine and self.world.in_hand(holder):
            self.fail(f"{self._show(log)}: the watchdog {by} reaped it while {holder} lives beside it")
        if self.world.has_beaten(holder, log.renewed_s):
            self.fail(f"{self._show(log)}: the watchdog {by} reaped it while {holder} lives and beats")

    # The workers.

    def told(self, process: Process, pair: Pair) -> None:
        log = self.logs.get(pair)
        if log is None or self.world.worker_named(log.worker) is not process:
            self.fail(f"{process} was assigned {pair}, which it does not hold")
            return
        log.told = process

    def began(self, process: Process, pair: Pair) -> None:
        log = self.logs[pair]
        self.world.trace("begins", process, job=pair[0], attempt=pair[1])
        if log.began is not None:
            self.fail(f"{self._show(log)} was begun twice")
        log.began, log.began_s = process, trio.current_time()
        self._check_slots(process.machine, log.topic)
        for other in [one for one in self.logs.values() if one.pair[0] == pair[0] and one is not log and one.runs]:
            self.count("overlaps")
            if not self._may_overlap(log, other, process):
                self.fail(f"{self._show(log)} begins in {process} while {self._show(other)} runs in {other.began}")

    def _check_slots(self, machine: Machine, topic: str) -> None:
        """
        Of a limit no more handlers are alive on a host than may run: a slot is free only when its handler has ended.

        Others may run beside them: of jobs that were canceled, or whose lease has lapsed, from before the database went
        back, and in processes that their dispatcher cannot kill.
        """
        limits = self.world.database.rows.limits
        name = limits.name_of(topic)
        alive = [
            log
            for log in self.logs.values()
            if log.runs and log.began is not None and log.began.machine is machine and self.world.in_hand(log.began)
            if log.closed not in {"canceled", "lease_expired"} and log.older_s is None
            if limits.name_of(log.topic) == name
        ]
        if name is not None and len(alive) > limits.slots_of(name):
            self.fail(f"{machine.name} has {len(alive)} handlers of the limit {name}: {[*map(self._show, alive)]}")

    def _may_overlap(self, log: Log, other: Log, process: Process) -> bool:
        """An attempt of a job begins while an older one runs: it depends on where the older one is."""
        older, its = (log, process) if log.pair[1] < other.pair[1] else (other, other.began)
        newer = other.began if older is log else process
        assert its is not None
        assert newer is not None
        if older.closed == "canceled" and abs(log.pair[1] - other.pair[1]) > 1:
            return True  # canceled and retried twice, each time elsewhere: nobody here remembers the first one
        if self._is_unheard(older, its):
            later = any(
                one[0] == log.pair[0] and older.pair[1] < one[1] < max(log.pair[1], other.pair[1]) for one in self.logs
            )
            if older.unknown or later or not older.noted or its.machine is not newer.machine:
                return True
        if its.machine is newer.machine and self.world.in_hand(its):
            return False
        return older.closed in {"lease_expired", "canceled"} or older.unknown or self._was_cut_off(older)

    def _is_unheard(self, older: Log, its: Process) -> bool:
        """
        The limits of ADR 0044: since the database went back, its worker was too busy to say hello to the dispatcher
        there; that one has the history, if the one before could write it, of one attempt.
        """
        return older.older_s is not None and not self.world.has_met(its, self.world.dispatcher_of(its.machine))

    def finished(self, process: Process, pair: Pair) -> None:
        self.world.trace("ends", process, job=pair[0], attempt=pair[1])
        self.logs[pair].finished = True

    def named(self, pairs: Iterable[Pair], apart: Iterable[Pair], link: Link) -> None:
        """The dispatcher can read that they were started."""
        for pair in pairs:
            self.logs[pair].named = link.server.owner, link
        for pair in apart:
            self.logs[pair].apart = True

    def sends(self, results: Sequence[Result]) -> None:
        for one in results:
            self.logs[one.pair].outcome = one.outcome

    def sent(self, results: Sequence[Result], link: Link) -> None:
        for one in results:
            self.logs[one.pair].heard = link.server.owner, link

    def reported(self, process: Process, results: Sequence[Result], stale: set[Pair]) -> None:
        """A report was answered: it is in the database, or was stale."""
        for one in results:
            log = self.logs[one.pair]
            if log.older_s is not None:
                continue  # what was answered may be undone since
            if log.closed is None:
                self.fail(f"{self._show(log)}: its report was answered, and it is open in the database")
            elif one.pair not in stale and log.closed not in STORED[one.outcome]:
                self.fail(f"{self._show(log)}: {one.outcome} was acknowledged, and stored as {log.closed}")

    def died(self, process: Process) -> None:
        self.count("deaths")

    # The end.

    def at_the_end(self, acknowledged: Iterable[bytes]) -> None:
        rows = self.world.database.rows
        self.workflows.at_the_end()
        for one in acknowledged:
            if one not in rows.jobs and one not in self.world.deleted:
                self.fail(f"job {one.hex()} was acknowledged, and is gone")
        for job in rows.jobs.values():
            if job.status == "COMPLETED":
                log = self.logs[job.id, job.attempts]
                if not log.finished or log.outcome != "ok":
                    self.fail(f"{self._show(log)} is completed, and its handler did not succeed")
            done = [log for log in self.logs.values() if log.pair[0] == job.id and log.closed == "completed"]
            if len(done) > 1 + self.world.retried.get(job.id, 0):
                self.fail(f"job {job.id.hex()} was completed {len(done)} times")

    def _show(self, log: Log) -> str:
        return f"attempt {log.pair[1]} of {self.world.label(log.pair[0])}"
