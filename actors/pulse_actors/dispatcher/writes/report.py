"""Writes workers' reports, those of all workers in one statement per flush."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

import anyio
import structlog
from msgspec import structs

from pulse.common.waiting import WakeupEvent
from pulse.errors import StatementError, UnavailableError
from pulse.store.connections.session import HeldCommit
from pulse.store.failures import CONSTRAINTS
from pulse.store.rows import Completion, Ended, Ending, EndingKind
from pulse.store.store import Store
from pulse.system.failure_log import MAX_ERROR_CHARS, FailedAttempt, FailureLog
from pulse_actors.dispatcher.claims.work_signal import WorkSignal
from pulse_actors.dispatcher.monitoring.counters import DispatchCounters
from pulse_actors.dispatcher.monitoring.observe import count_completed, count_ended, count_reaped, count_runs
from pulse_actors.dispatcher.workers.records import Pair, RegisteredWorker
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.dispatcher.writes.batcher import Batcher
from pulse_actors.dispatcher.writes.report_rows import Obituary, PendingReport, clean, split, weight_of
from pulse_actors.runtime.actor import Backoff
from pulse_actors.shared.failures import failed_attempts
from pulse_actors.shared.row_writes import UnwrittenRow, write_merged

BATCH: Final = 2000  # rows of one statement
LOCKED_PAUSE_S: Final = 0.2  # between two tries of locked rows
REFUSED_PAUSE_S: Final = 1.0  # between two tries of a refused row
READ_S: Final = 1.0  # a worker that lives has read an answer by then
MOST_UNREAD: Final = 1000  # dead letters that are kept for so long, in case it dies before
HURRY_S: Final = 0.5  # limit of statements that hold a connection and locks before the worker is known to be gone

Row = TypeVar("Row", Completion, Ending)
ByFate: TypeAlias = Callable[[Sequence[Completion]], list[tuple[bool, Sequence[Completion]]]]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Deferred:
    """A report to be written again, for its jobs *left*, not before that monotonic time."""

    item: PendingReport | Obituary
    left: frozenset[bytes]
    not_before_s: float


class ReportWriter:
    """
    Collects reports and writes them; each is answered after the commit.

    Args:
        failures: Learns of attempts whose end no worker logs.
        keep: Whether completed jobs are kept; else they are deleted.
    """

    def __init__(
        self,
        store: Store,
        registry: WorkerRegistry,
        signal: WorkSignal,
        counters: DispatchCounters,
        *,
        failures: FailureLog,
        keep: bool = True,
    ) -> None:
        self._store = store
        self._aside = store.aside
        self._keep = keep
        self._registry = registry
        self._signal = signal
        self._counters = counters
        self._failures = failures
        self._untold: dict[Pair, FailedAttempt] = {}  # written, of which the answer to their worker will tell
        self._told: deque[tuple[float, RegisteredWorker, FailedAttempt]] = deque(
            maxlen=MOST_UNREAD
        )  # by answers just sent
        self._kept: set[Pair] = set()  # written, of reports that are not answered yet
        self._deferred: list[_Deferred] = []
        self._refused: set[bytes] = set()  # jobs whose end the database refuses to write
        self._is_burying = False
        self._is_mixed = False  # so many are refused that good ones may wait behind them
        self._in_vain = Backoff()
        self._has_deferred = WakeupEvent()
        self.batcher: Batcher[PendingReport | Obituary] = Batcher(self._write, weight_of, BATCH)

    async def run(self) -> None:
        """Write until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.batcher.run)
            while True:
                await self._has_deferred.wait()
                while self._deferred:
                    await anyio.sleep(LOCKED_PAUSE_S)
                    with suppress(UnavailableError):
                        await self._bring_back()

    async def _bring_back(self) -> None:
        """Write those again whose time has come and whose rows are not locked: a statement would wait for a lock."""
        now_s = time.monotonic()
        aside = [one for one in self._deferred if one.not_before_s <= now_s]
        self._deferred = [one for one in self._deferred if one.not_before_s > now_s]
        try:
            free = await self._store.lockable([job for one in aside for job in one.left]) if aside else set[bytes]()
        except UnavailableError:
            self._deferred += aside
            raise
        for one in aside:
            if one.left <= free:
                self.batcher.put(one.item)
            else:
                self._deferred.append(one)

    def accept(self, report: PendingReport) -> None:
        """Take a report, to be written with the next flush."""
        self._registry.reporting.update(report.pairs)
        count_runs(self._counters, report.worker, report.pairs)
        self.batcher.put(report)

    def put(self, obituary: Obituary) -> None:
        """Take the ends of a dead worker's attempts, to be written after its last reports."""
        self.batcher.put(obituary)

    def parted(self, worker: RegisteredWorker) -> None:
        """Log the dead letters in the last answers to *worker*: its connection has ended, maybe before it read them."""
        if not worker.is_draining:  # one that drains ends when it has read everything
            since_s = time.monotonic() - READ_S
            self._failures.note([one for at_s, whose, one in self._told if whose is worker and at_s >= since_s])

    async def bury(self, endings: Sequence[Ending], commit: HeldCommit) -> None:
        """
        Write the ends of a dead worker's attempts, so that only the commit is left when its processes are gone.

        That takes a connection, and locks, so it is done for one worker at a time, and not for long; else, and after
        any error, the ends are written like reports, after that event.

        Args:
            endings: How its attempts ended.
            commit: Set when no process of the worker is left; before, no row is released.
        """
        began_s = time.monotonic()
        ended: list[Ended] | None = None
        if not self._is_burying:
            self._is_burying = True
            with anyio.move_on_after(HURRY_S), suppress(UnavailableError):
                ended = await self._store.end(endings, commit=commit)
            self._is_burying = False
        commit.sent.set()
        await commit.may_commit.wait()
        if ended is None:
            self.batcher.put(Obituary(endings))
            return
        count_ended(self._counters, endings, ended)
        count_reaped(self._counters, endings, ended, began_s)
        self._failures.note(failed_attempts(endings, ended))
        self._wake(ended)

    def _wake(self, ended: Sequence[Ended]) -> None:
        for one in ended:
            self._signal.ended(one)

    async def _write(self, items: Sequence[PendingReport | Obituary]) -> None:
        began_s = time.monotonic()
        reports = [item for item in items if isinstance(item, PendingReport)]
        completions, endings = split(reports)
        obituaries = [
            ending
            for item in items
            if isinstance(item, Obituary)
            for ending in item.endings
            if (ending.id, ending.attempt) not in self._registry.reporting  # its own report of that one has arrived
        ]
        batch = _ReportBatch(self._store, self._by_fate, await self._locked_among(items) if self._deferred else set())
        if self._is_mixed:
            random.shuffle(completions)
            random.shuffle(endings)
        if self._kept:
            batch.written |= self._kept.intersection(pair for item in items for pair in item.pairs)
        await self._insist(lambda: batch.complete(completions))
        await self._insist(lambda: batch.end([*endings, *obituaries]))
        self._wake(batch.ended)
        self._note_failures(reports, batch)
        answered = [
            (report, [pair for pair in report.pairs if pair not in batch.written])
            for report in reports
            if batch.left.isdisjoint(report.pairs)
        ]
        self._count(answered, obituaries, batch, began_s)
        for report, stale in answered:
            self._answer(report, stale)
        self._free(obituaries, batch)
        self._signal.look_again()
        await self._note_refused(items, reports, batch)
        self._is_mixed = bool(batch.in_vain) or (self._is_mixed and bool(self._deferred))
        for error in {*batch.in_vain.values()}:
            self._in_vain.failed(error, "report")
        if batch.left:
            refused = batch.refused.keys() | batch.in_vain.keys()
            if len(batch.left) > len(refused):
                log.warning("rows_locked", count=len(batch.left) - len(refused))
            self._has_deferred.wake()
            for item in items:
                left = frozenset(job for job, _ in batch.left.intersection(item.pairs))
                if left:
                    self._kept |= batch.written.intersection(item.pairs)
                    pause_s = LOCKED_PAUSE_S if left.isdisjoint(refused) else REFUSED_PAUSE_S
                    self._deferred.append(_Deferred(item, left, time.monotonic() + pause_s))

    def _note_failures(self, reports: Sequence[PendingReport], batch: _ReportBatch) -> None:
        """Log those that no worker reported, also of results that cannot be stored; workers log what they reported."""
        if not batch.ended:
            return
        reported = {(one.id, one.attempt) for report in reports for one in report.results if one.outcome != "ok"}
        own: list[FailedAttempt] = []
        for one in failed_attempts(batch.endings, batch.ended):
            if (one.id, one.attempt) in reported:
                self._untold[one.id, one.attempt] = one
            else:
                own.append(one)
        self._failures.note(own)

    async def _note_refused(
        self, items: Sequence[PendingReport | Obituary], reports: Sequence[PendingReport], batch: _ReportBatch
    ) -> None:
        """Log which jobs' ends the database refuses, and which it accepts again."""
        if not self._refused and not batch.refused:
            return
        again = self._refused.intersection(job for item in items for job, _ in item.pairs) - {
            job for job, _ in batch.left
        }
        for job, error in batch.refused.items():
            if job not in self._refused:
                log.error("report_refused", job=str(UUID(bytes=job)), sqlstate=error.sqlstate, error=error.message)
        self._refused = (self._refused - again) | batch.refused.keys()
        whose = self._registry.refused | {pair: report.worker.identity for report in reports for pair in report.pairs}
        self._registry.refused = {pair: worker for pair, worker in whose.items() if pair[0] in self._refused}
        with suppress(UnavailableError):  # only for people to see; the rows themselves are kept here
            if batch.refused:
                await self._aside.add([*batch.refused.items()], REFUSED_PAUSE_S)
            if again:
                await self._aside.readmit([*again])

    async def _locked_among(self, items: Sequence[PendingReport | Obituary]) -> set[Pair]:
        """Locked rows among *ids*, looked up beforehand, since a statement would wait for them."""
        pairs = {pair for item in items for pair in item.pairs}
        with suppress(UnavailableError):
            free = await self._store.lockable([job for job, _ in pairs])
            return {pair for pair in pairs if pair[0] not in free}
        return set()

    def _free(self, endings: Sequence[Ending], batch: _ReportBatch) -> None:
        """A living worker no longer holds attempts that the server has ended."""
        ended = {(one.id, one.attempt) for one in batch.ended}
        for ending in endings:
            worker = self._registry.find(ending.worker) if (ending.id, ending.attempt) in ended else None
            if worker is not None:
                self._signal.freed(self._registry.free(worker, [(ending.id, ending.attempt)]))

    def _count(
        self,
        answered: Sequence[tuple[PendingReport, Sequence[Pair]]],
        obituaries: Sequence[Ending],
        batch: _ReportBatch,
        began_s: float,
    ) -> None:
        """Count a batch; *answered*: its completely written reports, each with its stale attempts."""
        for report, stale in answered:
            count_completed(self._counters, report.worker, report.pairs, stale, batch.ended)
        count_ended(self._counters, batch.endings, batch.ended)
        count_reaped(self._counters, obituaries, batch.ended, began_s)

    def _answer(self, report: PendingReport, stale: Sequence[Pair]) -> None:
        """Answer with the stale attempts; a report with unwritten rows is answered later."""
        pairs = report.pairs
        if stale:
            log.info("results_stale", worker=report.worker.identity, count=len(stale))
        if self._kept:
            self._kept.difference_update(pairs)
        self._registry.reporting.difference_update(pairs)
        self._signal.freed(self._registry.free(report.worker, pairs))
        body: dict[str, object] = {"stale": stale}
        if self._untold:
            failed = [self._untold.pop(pair) for pair in pairs if pair in self._untold]
            if report.worker.link.is_over:
                self._failures.note(failed)  # its worker never hears of it
            elif dead := [one for one in failed if one.is_dead]:
                body["dead"] = [(one.id, one.attempt) for one in dead]
                self._keep_told(report.worker, dead)
        report.worker.link.send("reported", report.request, body)
        report.settled()

    def _keep_told(self, worker: RegisteredWorker, dead: Sequence[FailedAttempt]) -> None:
        now_s = time.monotonic()
        while self._told and self._told[0][0] < now_s - READ_S:
            self._told.popleft()
        self._told.extend((now_s, worker, one._replace(error=one.error[: MAX_ERROR_CHARS + 1])) for one in dead)

    def _by_fate(self, done: Sequence[Completion]) -> list[tuple[bool, Sequence[Completion]]]:
        return self._registry.by_fate(done, keep=self._keep)

    async def _insist(self, write: Callable[[], Awaitable[None]]) -> None:
        """Repeat until the database accepts it: no result is dropped, and the fence makes repeating harmless."""
        backoff = Backoff()
        while True:
            try:
                await write()
            except UnavailableError as error:
                await anyio.sleep(backoff.failed(error, "report"))
            else:
                return


class _ReportBatch:
    """
    The results of one flush.

    Attributes:
        written: Attempts that are ended, now or before.
        left: Rows that were not written: locked or refused.
        refused: Jobs of the refused ones, and why.
        in_vain: Jobs of a batch of which none could be written: the jobs are hardly the cause.
        endings: Ends without success that were to be written.
        ended: Their results.
    """

    def __init__(self, store: Store, by_fate: ByFate, locked: set[Pair]) -> None:
        self._store = store
        self._before = store.endings
        self._by_fate = by_fate
        self.written: set[Pair] = set()
        self.left = locked
        self.refused: dict[bytes, StatementError] = {}
        self.in_vain: dict[bytes, StatementError] = {}
        self.endings: list[Ending] = []
        self.ended: list[Ended] = []
        self._rejected: list[Ending] = []

    async def complete(self, completions: Sequence[Completion]) -> None:
        self._rejected.clear()

        async def together(some: Sequence[Completion]) -> None:
            for keep, chosen in self._by_fate(some):
                self.written |= await self._store.complete(chosen, keep=keep)

        async def alone(bad: Completion, error: StatementError) -> None:
            again = error if bad.progress is None else await _write_bare(structs.replace(bad, progress=None), together)
            if again is None:
                return
            if again.sqlstate.startswith(CONSTRAINTS):
                raise again
            text = clean(f"result is not storable: {again.message}")
            self._rejected.append(Ending(bad.id, bad.attempt, bad.worker, kind=EndingKind.ERROR, error=text))

        rows = completions
        if self.left:
            rows = [row for row in completions if (row.id, row.attempt) not in self.left]
        self._leave(await write_merged(self._store, rows, together, alone, raises=False))

    async def end(self, endings: Sequence[Ending]) -> None:
        async def together(some: Sequence[Ending]) -> None:
            ended = await self._store.end(some)
            if len(ended) < len(some):  # stale; or written by a statement whose answer was lost, and still to be logged
                written = {(one.id, one.attempt) for one in ended}
                missing = [one for one in some if (one.id, one.attempt) not in written]
                ended = [*ended, *await self._before.written(missing)]
            self.ended += ended
            self.written |= {(one.id, one.attempt) for one in ended}

        async def alone(bad: Ending, error: StatementError) -> None:
            if bad.progress is not None and await _write_bare(bad._replace(progress=None), together) is None:
                return
            log.warning("ending_not_storable", error=error.message)
            await together([bad._replace(error="error text is not storable", stack=None, progress=None)])

        rows = [row for row in (*endings, *self._rejected) if row[:2] not in self.left]
        self.endings += rows
        self._leave(await write_merged(self._store, rows, together, alone, raises=False))

    def _leave(self, left: Sequence[UnwrittenRow[Completion]] | Sequence[UnwrittenRow[Ending]]) -> None:
        """These were not written now."""
        for one in left:
            self.left.add((one.row.id, one.row.attempt))
            if one.error is not None:
                (self.refused if one.is_blamed else self.in_vain)[one.row.id] = one.error


async def _write_bare(bare: Row, write: Callable[[Sequence[Row]], Awaitable[None]]) -> StatementError | None:
    """Write a row without its progress, which may be the cause; returns why that fails, too."""
    try:
        await write([bare])
    except StatementError as error:
        if not error.is_value:
            raise
        return error
    return None
