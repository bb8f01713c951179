"""Reports, and the rows that are written for them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pulse.common.text import cut_middle
from pulse.protocol import Result, ResultExtra
from pulse.store.rows import Completion, Ending, EndingKind
from pulse_actors.dispatcher.admission.memory_budget import nothing_reserved
from pulse_actors.dispatcher.workers.records import Pair, RegisteredWorker
from pulse_actors.dispatcher.writes.batcher import ROW_BYTES
from pulse_actors.shared.json_size import comes_back, excess

MAX_RESULT_BYTES: Final = 4 * 1024 * 1024  # jsonb prints more than it was given, and that must fit into a frame
MAX_ERROR_BYTES: Final = 64 * 1024
MAX_CODE: Final = 2**31 - 1  # the column is an integer
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")

_KINDS: Final = {
    "error": EndingKind.ERROR,
    "retry": EndingKind.RETRY,
    "discard": EndingKind.DISCARDED,
    "snooze": EndingKind.SNOOZED,
    "wait": EndingKind.SNOOZED,
    "release": EndingKind.RELEASED,
    "crash": EndingKind.CRASHED,
}

_STOPS: Final = {"timeout": EndingKind.TIMEOUT, "stalled": EndingKind.STALLED}


@dataclass(frozen=True, slots=True)
class PendingReport:
    """
    One report frame, waiting to be written.

    Attributes:
        pairs: Its attempts.
        settled: Called when it is no longer kept in memory.
    """

    worker: RegisteredWorker
    request: int | None
    results: Sequence[Result]
    pairs: Sequence[Pair]
    settled: Callable[[], None] = nothing_reserved


@dataclass(frozen=True, slots=True)
class Obituary:
    """How the attempts of a dead worker ended; written after its last reports, so completed jobs stay completed."""

    endings: Sequence[Ending]

    @property
    def pairs(self) -> list[Pair]:
        """Its attempts."""
        return [(ending.id, ending.attempt) for ending in self.endings]


def weight_of(item: PendingReport | Obituary) -> int:
    """Rows; long texts count as several rows, so that a statement ends in time."""
    if isinstance(item, Obituary):
        return len(item.endings)
    texts = [one for one in item.results if one.detail is not None or one.extra is not None]  # hardly any
    return len(item.results) + sum(_chars(one) // ROW_BYTES for one in texts)


def _chars(one: Result) -> int:
    """Characters of its texts."""
    details = one.detail if isinstance(one.detail, tuple) else (one.detail,)
    extra = one.extra or ResultExtra()
    return sum(len(text) for text in (*details, extra.progress, extra.stack) if isinstance(text, str))


def split(reports: Sequence[PendingReport]) -> tuple[list[Completion], list[Ending]]:
    """The rows of *reports*: successes, and all other ends."""
    completions: list[Completion] = []
    endings: list[Ending] = []
    for report in reports:
        identity = report.worker.identity
        for result in report.results:
            if result.outcome == "ok":
                text = result.detail if isinstance(result.detail, str) else None
                if text is not None and (size_bytes := excess(text, MAX_RESULT_BYTES)):
                    error = f"result is too large: {size_bytes} bytes; at most {MAX_RESULT_BYTES} are stored"
                    endings.append(Ending(result.id, result.attempt, identity, kind=EndingKind.ERROR, error=error))
                    continue
                progress = None if result.extra is None else _progress(result.extra)
                completions.append(Completion(result.id, result.attempt, identity, result=text, progress=progress))
            else:
                endings.append(ending_of(result, identity))
    return completions, endings


def ending_of(result: Result, worker: str) -> Ending:
    """The Ending of a result without success; its detail was checked before."""
    text, delay_s, code = None, None, None
    awaits: tuple[str, int] | None = None
    match (result.outcome, result.detail):
        case ("retry", (float(delay), str(reason))):
            text, delay_s = reason, delay
        case ("snooze", float(delay)):
            delay_s = delay
        case ("wait", (float(delay), (str(name), int(seen)))):
            delay_s, awaits = delay, (name, seen)
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
        kind=kind,
        error=text,
        delay_s=delay_s,
        exit_code=code,
        progress=_progress(extra),
        stack=None if extra.stack is None else clean(extra.stack),
        cpu_s=extra.cpu_s,
        peak_rss_bytes=extra.peak_rss_bytes,
        awaits=awaits,
    )


def _progress(extra: ResultExtra) -> str | None:
    """The last progress, if it can be stored."""
    return extra.progress if comes_back(extra.progress) else None


def clean(text: str) -> str:
    """*text* as PostgreSQL can store it: no NUL, no surrogates, not longer than 64 KiB, not empty."""
    storable = _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", cut_middle(text, MAX_ERROR_BYTES))
    return cut_middle(storable, MAX_ERROR_BYTES) or "no reason given"  # again: a NUL has one byte, a replacement three
