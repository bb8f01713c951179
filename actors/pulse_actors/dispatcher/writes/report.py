"""Writes workers' reports: those of all workers in one statement per flush."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

import anyio
import structlog

from pulse.errors import StatementError, UnavailableError
from pulse.protocol import Result, ResultExtra
from pulse.store.rows import Completion, Ended, Ending, EndingKind, Level
from pulse.store.store import Store
from pulse_actors.dispatcher.admission.memory_budget import nothing_reserved
from pulse_actors.dispatcher.claims.work_signal import WorkSignal
from pulse_actors.dispatcher.monitoring.counters import DispatchCounters
from pulse_actors.dispatcher.monitoring.observe import count_completed, count_ended, count_reaped, count_runs
from pulse_actors.dispatcher.workers.registry import Pair, RegisteredWorker, WorkerRegistry
from pulse_actors.dispatcher.writes.batcher import ROW_BYTES, Batcher
from pulse_actors.runtime.actor import Backoff
from pulse_actors.shared.json_size import comes_back, excess
from pulse_actors.shared.row_writes import Left, write_merged

BATCH: Final = 2000  # rows of one statement
MAX_RESULT_BYTES: Final = 4 * 1024 * 1024  # jsonb prints more than it was given, and has to fit into a frame again
LOCKED_PAUSE_S: Final = 0.2  # between two looks at rows that somebody else has locked
REFUSED_PAUSE_S: Final = 1.0  # between two tries of a row that the database refuses
HURRY_S: Final = 0.5  # for what is not dead yet, and a busy database: it holds a connection and locks
MAX_ERROR_BYTES: Final = 64 * 1024
MAX_CODE: Final = 2**31 - 1  # the column is an integer
CONSTRAINTS: Final = "23"  # what a handler returns breaks none of pulse's: it is somebody's, and may be dropped
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")

_KINDS: Final = {
    "error": EndingKind.ERROR,
    "retry": EndingKind.RETRY,
    "discard": EndingKind.DISCARDED,
    "snooze": EndingKind.SNOOZED,
    "release": EndingKind.RELEASED,
    "crash": EndingKind.CRASHED,
}

_STOPS: Final = {"timeout": EndingKind.TIMEOUT, "stalled": EndingKind.STALLED}

Row = TypeVar("Row", Completion, Ending)
ByFate: TypeAlias = Callable[[Sequence[Completion]], list[tuple[bool, Sequence[Completion]]]]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PendingReport:
    """
    One report frame, waiting to be written.

    Attributes:
        pairs: The attempts that it is about.
        settled: Called when it is kept no more.
    """

    worker: RegisteredWorker
    request: int | None
    results: Sequence[Result]
    pairs: Sequence[Pair]
    settled: Callable[[], None] = nothing_reserved


@dataclass(frozen=True, slots=True)
class Obituary:
    """How all that a dead worker held ended; written behind its last reports, so what it finished stays finished."""

    endings: Sequence[Ending]

    @property
    def pairs(self) -> list[Pair]:
        """The attempts that it is about."""
        return [(ending.id, ending.attempt) for ending in self.endings]


@dataclass(frozen=True, slots=True)
class _Deferred:
    """What waits to be written again, for the jobs *left* of it, and not before that time; monotonic."""

    item: PendingReport | Obituary
    left: frozenset[bytes]
    not_before_s: float


class ReportWriter:
    """
    Collects reports and writes them; what is written is answered after the commit.

    Args:
        store: The database.
        registry: Whose places become free.
        signal: Hears of places that are free, and of jobs that are tried again.
        keep: Jobs that are completed are kept; else they are deleted.
    """

    def __init__(self, store: Store, registry: WorkerRegistry, signal: WorkSignal, *, keep: bool = True) -> None:
        self._store = store
        self._keep = keep
        self._registry = registry
        self._signal = signal
        self._kept: set[Pair] = set()  # written, of reports that are still to be answered
        self._deferred: list[_Deferred] = []
        self._refused: set[bytes] = set()  # jobs of which the database refuses to write how they ended
        self._is_burying = False
        self._is_mixed = False  # so many are refused that those which are not may stand behind them
        self._in_vain = Backoff()
        self._has_deferred = anyio.Event()
        self.batcher: Batcher[PendingReport | Obituary] = Batcher(self._write, _weight, BATCH)

    async def run(self) -> None:
        """Write until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.batcher.run)
            while True:
                await self._has_deferred.wait()
                self._has_deferred = anyio.Event()
                while self._deferred:
                    await anyio.sleep(LOCKED_PAUSE_S)
                    with suppress(UnavailableError):
                        await self._bring_back()

    async def _bring_back(self) -> None:
        """Have those written whose time has come and whose rows nobody has locked: a statement would wait for that."""
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
        """Take a report to be written with the next flush."""
        self._registry.reporting.update(report.pairs)
        count_runs(self._registry.counters, report.worker, report.pairs)
        self.batcher.put(report)

    async def bury(self, endings: Sequence[Ending], dead: anyio.Event) -> None:
        """
        Write what a dead worker held, so that all but the commit is done by the time *dead* is set.

        That takes a connection, and locks, so it is for one worker at a time, and not for long; else, and whatever goes
        wrong, it is written like reports are, behind that event.

        Args:
            endings: How it ended.
            dead: Set when nothing of the worker runs any more; no row is free before.
        """
        began_s = time.monotonic()
        ended: list[Ended] | None = None
        if not self._is_burying:
            self._is_burying = True
            with anyio.move_on_after(HURRY_S), suppress(UnavailableError):
                ended = await self._store.end(endings, once=dead.wait)
            self._is_burying = False
        await dead.wait()
        if ended is None:
            self.batcher.put(Obituary(endings))
            return
        count_ended(self._registry.counters, endings, ended)
        count_reaped(self._registry.counters, endings, ended, began_s)
        self._wake(ended)

    def _wake(self, ended: Sequence[Ended]) -> None:
        for one in ended:
            if one.status != "DEAD_LETTERED":
                self._signal.wake_level(Level(one.topic, one.priority), one.delay_s, due_s=one.due_s)

    async def _write(self, items: Sequence[PendingReport | Obituary]) -> None:
        began_s = time.monotonic()
        reports = [item for item in items if isinstance(item, PendingReport)]
        completions, endings = split(reports)
        obituaries = [
            ending
            for item in items
            if isinstance(item, Obituary)
            for ending in item.endings
            if (ending.id, ending.attempt) not in self._registry.reporting  # it has said itself how that one ended
        ]
        batch = _ReportBatch(
            self._store,
            self._registry.counters,
            self._by_fate,
            await self._locked_among(items) if self._deferred else set(),
        )
        if self._is_mixed:
            random.shuffle(completions)
            random.shuffle(endings)
        if self._kept:
            batch.written |= self._kept.intersection(pair for item in items for pair in item.pairs)
        await self._insist(lambda: batch.complete(completions))
        await self._insist(lambda: batch.end([*endings, *obituaries]))
        self._wake(batch.ended)
        for report in reports:
            self._answer(report, batch)
        count_reaped(self._registry.counters, obituaries, batch.ended, began_s)
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
            self._has_deferred.set()
            for item in items:
                left = frozenset(job for job, _ in batch.left.intersection(item.pairs))
                if left:
                    self._kept |= batch.written.intersection(item.pairs)
                    pause_s = LOCKED_PAUSE_S if left.isdisjoint(refused) else REFUSED_PAUSE_S
                    self._deferred.append(_Deferred(item, left, time.monotonic() + pause_s))

    async def _note_refused(
        self, items: Sequence[PendingReport | Obituary], reports: Sequence[PendingReport], batch: _ReportBatch
    ) -> None:
        """Tell of what the database refuses for one job alone, and of what it refuses no more."""
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
        with suppress(UnavailableError):  # where people look; what is to be written is kept here
            if batch.refused:
                await self._store.aside.add([*batch.refused.items()], REFUSED_PAUSE_S)
            if again:
                await self._store.aside.readmit([*again])

    async def _locked_among(self, items: Sequence[PendingReport | Obituary]) -> set[Pair]:
        """Whoever has locked some rows may have locked others: looked at beforehand, since a statement would wait."""
        pairs = {pair for item in items for pair in item.pairs}
        with suppress(UnavailableError):
            free = await self._store.lockable([job for job, _ in pairs])
            return {pair for pair in pairs if pair[0] not in free}
        return set()

    def _free(self, endings: Sequence[Ending], batch: _ReportBatch) -> None:
        """What was ended over the head of a worker that lives, it does not hold any more."""
        ended = {(one.id, one.attempt) for one in batch.ended}
        for ending in endings:
            worker = self._registry.find(ending.worker) if (ending.id, ending.attempt) in ended else None
            if worker is not None:
                self._registry.free(worker, [(ending.id, ending.attempt)])

    def _answer(self, report: PendingReport, batch: _ReportBatch) -> None:
        """Tell what was stale; a report some of whose rows are not written yet is answered when they are."""
        pairs = report.pairs
        if not batch.left.isdisjoint(pairs):
            return
        stale = [pair for pair in pairs if pair not in batch.written]
        if stale:
            log.info("results_stale", worker=report.worker.identity, count=len(stale))
        count_completed(self._registry.counters, report.worker, pairs, stale, batch.ended)
        self._kept.difference_update(pairs)
        self._registry.reporting.difference_update(pairs)
        self._registry.free(report.worker, pairs)
        report.worker.link.send("reported", report.request, {"stale": stale})
        report.settled()

    def _by_fate(self, done: Sequence[Completion]) -> list[tuple[bool, Sequence[Completion]]]:
        return self._registry.policies.by_fate(done, self._registry.topic_of, keep=self._keep)

    async def _insist(self, write: Callable[[], Awaitable[None]]) -> None:
        """Repeat until the database takes it: a result is never dropped, and the fence makes repeating it harmless."""
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
    What became of the rows of one flush.

    Attributes:
        written: Attempts that are ended, by this or before.
        left: Not written now: somebody else has locked them, or the database refuses them.
        refused: Jobs of those that it refuses, and why.
        in_vain: Jobs of which none could be written: it is not about them.
        ended: What became of those that did not succeed.
    """

    def __init__(self, store: Store, counters: DispatchCounters, by_fate: ByFate, locked: set[Pair]) -> None:
        self._store = store
        self._counters = counters
        self._by_fate = by_fate
        self.written: set[Pair] = set()
        self.left = locked
        self.refused: dict[bytes, StatementError] = {}
        self.in_vain: dict[bytes, StatementError] = {}
        self.ended: list[Ended] = []
        self._rejected: list[Ending] = []

    async def complete(self, completions: Sequence[Completion]) -> None:
        self._rejected.clear()

        async def together(some: Sequence[Completion]) -> None:
            for keep, chosen in self._by_fate(some):
                self.written |= await self._store.complete(chosen, keep=keep)

        async def alone(bad: Completion, error: StatementError) -> None:
            again = error if bad.progress is None else await _without_progress(bad, together)
            if again is None:
                return
            if again.sqlstate.startswith(CONSTRAINTS):
                raise again
            text = clean(f"result is not storable: {again.message}")
            self._rejected.append(Ending(bad.id, bad.attempt, bad.worker, EndingKind.ERROR, text))

        rows = [row for row in completions if row[:2] not in self.left] if self.left else completions
        self._leave(await write_merged(self._store, rows, together, alone, raises=False))

    async def end(self, endings: Sequence[Ending]) -> None:
        async def together(some: Sequence[Ending]) -> None:
            ended = await self._store.end(some)
            count_ended(self._counters, some, ended)
            self.ended += ended
            self.written |= {(one.id, one.attempt) for one in ended}

        async def alone(bad: Ending, error: StatementError) -> None:
            if bad.progress is not None and await _without_progress(bad, together) is None:
                return
            log.warning("ending_not_storable", error=error.message)
            await together([bad._replace(error="error text is not storable", stack=None, progress=None)])

        rows = [row for row in (*endings, *self._rejected) if row[:2] not in self.left]
        self._leave(await write_merged(self._store, rows, together, alone, raises=False))

    def _leave(self, left: Sequence[Left[Completion]] | Sequence[Left[Ending]]) -> None:
        """These were not written now."""
        for one in left:
            self.left.add((one.row.id, one.row.attempt))
            if one.error is not None:
                (self.refused if one.is_blamed else self.in_vain)[one.row.id] = one.error


async def _without_progress(bad: Row, write: Callable[[Sequence[Row]], Awaitable[None]]) -> StatementError | None:
    """Write *bad* without its progress, which may be all that is wrong with it; why that cannot be stored either."""
    try:
        await write([bad._replace(progress=None)])
    except StatementError as error:
        if not error.is_value:
            raise
        return error
    return None


def _weight(item: PendingReport | Obituary) -> int:
    """Rows, and long texts as many rows as they have pages: a statement has to end within its time."""
    if isinstance(item, Obituary):
        return len(item.endings)
    return sum(1 + _chars(one) // ROW_BYTES for one in item.results)


def _chars(one: Result) -> int:
    """How long its texts are."""
    details = one.detail if isinstance(one.detail, tuple) else (one.detail,)
    extra = one.extra or ResultExtra()
    return sum(len(text) for text in (*details, extra.progress, extra.stack) if isinstance(text, str))


def split(reports: Sequence[PendingReport]) -> tuple[list[Completion], list[Ending]]:
    """What is to be written for *reports*: successes, and all else."""
    completions: list[Completion] = []
    endings: list[Ending] = []
    for report in reports:
        identity = report.worker.identity
        for result in report.results:
            if result.outcome == "ok":
                text = result.detail if isinstance(result.detail, str) else None
                if text is not None and (size_bytes := excess(text, MAX_RESULT_BYTES)):
                    error = f"result is too large: {size_bytes} bytes; at most {MAX_RESULT_BYTES} are stored"
                    endings.append(Ending(result.id, result.attempt, identity, EndingKind.ERROR, error))
                    continue
                completions.append(Completion(result.id, result.attempt, identity, text, _progress(result.extra)))
            else:
                endings.append(ending_of(result, identity))
    return completions, endings


def ending_of(result: Result, worker: str) -> Ending:
    """The Ending of a result that is no success; its detail has been held against its outcome."""
    text, delay_s, code = None, None, None
    match (result.outcome, result.detail):
        case ("retry", (float(delay), str(reason))):
            text, delay_s = reason, delay
        case ("snooze", float(delay)):
            delay_s = delay
        case ("crash", (str(reason), signal_or_code)):
            text, code = reason, signal_or_code if isinstance(signal_or_code, int) else None
        case (_, str(reason)):
            text = reason
        case _:
            pass
    if text is not None:
        text = clean(text)
    if code is not None and not -MAX_CODE <= code <= MAX_CODE:
        code = None
    kind, extra = _KINDS[result.outcome], result.extra or ResultExtra()
    if kind is EndingKind.ERROR and extra.stopped in _STOPS:
        kind = _STOPS[extra.stopped]
    return Ending(
        result.id,
        result.attempt,
        worker,
        kind,
        text,
        delay_s,
        code,
        _progress(extra),
        None if extra.stack is None else clean(extra.stack),
        extra.cpu_s,
        extra.peak_rss_bytes,
    )


def _progress(extra: ResultExtra | None) -> str | None:
    """The last progress, where it can be kept."""
    return extra.progress if extra is not None and comes_back(extra.progress) else None


def clean(text: str) -> str:
    """*text* as PostgreSQL can store it: no NUL, no surrogates, not longer than 64 KiB, not empty."""
    storable = _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text[:MAX_ERROR_BYTES])
    return storable.encode()[:MAX_ERROR_BYTES].decode(errors="ignore") or "no reason given"
