"""Writes workers' reports: those of all workers in one statement per flush."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import anyio
import asyncpg
import structlog

from pulse.errors import UnavailableError
from pulse.protocol import Result, ResultExtra
from pulse.store.pool import is_bad_row
from pulse.store.rows import Completion, Ending, EndingKind
from pulse.store.store import Store
from pulse_actors.dispatcher.batching import Batcher, halve
from pulse_actors.dispatcher.claims import Claims
from pulse_actors.dispatcher.desk import Desk, Pair, Worker
from pulse_actors.dispatcher.explain import explain
from pulse_actors.runtime import Backoff

BATCH: Final = 2000
MAX_ERROR_BYTES: Final = 64 * 1024
MAX_CODE: Final = 2**31 - 1  # the column is an integer
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")

_KINDS: Final = {
    "error": EndingKind.ERROR,
    "retry": EndingKind.RETRY,
    "discard": EndingKind.DISCARDED,
    "snooze": EndingKind.SNOOZED,
    "release": EndingKind.RELEASED,
    "crash": EndingKind.CRASHED,
}

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Reported:
    """One report frame, waiting to be written."""

    worker: Worker
    request: int | None
    results: Sequence[Result]


@dataclass(frozen=True, slots=True)
class Obituary:
    """How all that a dead worker held ended; written behind its last reports, so what it finished stays finished."""

    endings: Sequence[Ending]


class Results:
    """
    Collects reports and writes them; what is written is answered after the commit.

    Args:
        store: The database.
        desk: Whose places become free.
        claims: To be woken when places are free.
    """

    def __init__(self, store: Store, desk: Desk, claims: Claims) -> None:
        self._store = store
        self._desk = desk
        self._claims = claims
        self.batcher: Batcher[Reported | Obituary] = Batcher(self._write, _weight, BATCH)

    async def _write(self, items: Sequence[Reported | Obituary]) -> None:
        reports = [item for item in items if isinstance(item, Reported)]
        completions, endings = split(reports)
        endings += [ending for item in items if isinstance(item, Obituary) for ending in item.endings]
        rejected: list[Ending] = []
        written = await self._insist(lambda: self._complete(completions, rejected))
        written |= await self._insist(lambda: self._end([*endings, *rejected]))
        for report in reports:
            pairs = [result.pair for result in report.results]
            stale = [pair for pair in pairs if pair not in written]
            if stale:
                log.info("results_stale", worker=report.worker.identity, count=len(stale))
            self._desk.free(report.worker, pairs)
            report.worker.link.send("reported", report.request, {"stale": stale})
        self._claims.wake()

    async def _insist(self, write: Callable[[], Awaitable[set[Pair]]]) -> set[Pair]:
        """Repeat until the database takes it: a result is never dropped, and the fence makes repeating it harmless."""
        backoff = Backoff()
        while True:
            try:
                done = await write()
            except UnavailableError as error:
                if backoff.may_log():
                    log.warning("database_away", step="report", error=error.message)
                await anyio.sleep(backoff.next_s())
            else:
                return done

    async def _complete(self, completions: Sequence[Completion], rejected: list[Ending]) -> set[Pair]:
        done: set[Pair] = set()
        rejected.clear()

        async def write(some: Sequence[Completion]) -> bool:
            try:
                done.update(await self._store.complete(some))
            except asyncpg.PostgresError as error:
                if not is_bad_row(error):
                    raise
                if len(some) > 1:
                    return False
                bad = some[0]
                if bad.progress is not None:
                    return await write([bad._replace(progress=None)])
                text = clean(f"result is not storable: {explain(error)}")
                rejected.append(Ending(bad.id, bad.attempt, bad.worker, EndingKind.ERROR, text))
            return True

        await halve(completions, write)
        missing = [(one.id, one.attempt) for one in completions if (one.id, one.attempt) not in done]
        return done | await self._store.completed_already(missing) if missing else done

    async def _end(self, endings: Sequence[Ending]) -> set[Pair]:
        done: set[Pair] = set()

        async def write(some: Sequence[Ending]) -> bool:
            try:
                ended = await self._store.end(some)
            except asyncpg.PostgresError as error:
                if not is_bad_row(error):
                    raise
                if len(some) > 1:
                    return False
                bad = some[0]
                if bad.progress is not None:
                    return await write([bad._replace(progress=None)])
                log.warning("ending_not_storable", error=str(error))
                ended = await self._store.end([bad._replace(error="error text is not storable")])
            for one in ended:
                done.add((one.id, one.attempt))
                if one.status != "DEAD_LETTERED":
                    self._claims.wake(one.delay_s)
            return True

        await halve(endings, write)
        return done


def _weight(item: Reported | Obituary) -> int:
    return len(item.results) if isinstance(item, Reported) else len(item.endings)


def split(reports: Sequence[Reported]) -> tuple[list[Completion], list[Ending]]:
    """What is to be written for *reports*: successes, and all else."""
    completions: list[Completion] = []
    endings: list[Ending] = []
    for report in reports:
        identity = report.worker.identity
        for result in report.results:
            if result.outcome == "ok":
                text = result.detail if isinstance(result.detail, str) else None
                progress = None if result.extra is None else result.extra.progress
                completions.append(Completion(result.id, result.attempt, identity, text, progress))
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
    if kind is EndingKind.ERROR and extra.stopped == "timeout":
        kind = EndingKind.TIMEOUT
    return Ending(result.id, result.attempt, worker, kind, text, delay_s, code, extra.progress)


def clean(text: str) -> str:
    """*text* as PostgreSQL can store it: no NUL, no surrogates, not longer than 64 KiB, not empty."""
    storable = _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text[:MAX_ERROR_BYTES])
    return storable.encode()[:MAX_ERROR_BYTES].decode(errors="ignore") or "no reason given"
