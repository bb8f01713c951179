"""
How an attempt ends: turns what a handler returned or raised into an outcome for the wire. Pure.

What a handler returns is the result; ``Snooze(60)`` means: call again later. It fails by raising; ``Discard`` and
``RetryAfter`` also decide about the next try.
"""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias, cast
from uuid import UUID

from pulse.app.parameters import ArgumentError
from pulse.app.workflows.steps import Asleep, SignalWaiting
from pulse.common import json_text
from pulse.common.text import cut_middle
from pulse.errors import ResultError

__all__ = [
    "DONE",
    "RELEASED",
    "Discard",
    "Outcome",
    "RetryAfter",
    "Snooze",
    "cause_of",
    "classify",
    "clean_text",
    "crashed",
    "describe",
    "result_text",
    "split",
    "stalled",
    "timed_out",
]

ERROR_MAX_BYTES: Final = 64 * 1024  # a traceback of any sane program; one row is still one page of TOAST
MAX_SECONDS: Final = 1e9  # as on the wire: 31 years
# What runs handlers, in workers and in tests: their tracebacks begin below it.
_OWN_DIRS: Final = tuple(str(Path(__file__).parents[1] / name) for name in ("worker", "testing"))

OutcomeName: TypeAlias = Literal["ok", "error", "retry", "discard", "snooze", "wait", "release", "crash"]
Detail: TypeAlias = "str | float | tuple[float, str] | tuple[float, tuple[str, int]] | tuple[str, int | None] | None"


class Outcome(NamedTuple):
    """An outcome and its detail, as the ``report`` frame carries them."""

    outcome: OutcomeName
    detail: Detail


DONE: Final = Outcome("ok", None)
RELEASED: Final = Outcome("release", None)


@dataclass(frozen=True, slots=True)
class Snooze:
    """
    Returned by a handler that wants to be called again later; the attempt is not charged.

    Args:
        seconds: How long to wait, 0 or more.

    Raises:
        ValueError: *seconds* is negative, not finite or more than 1e9.

    Example:
        ``return pulse.Snooze(60)``
    """

    seconds: float

    def __post_init__(self) -> None:
        _check_seconds(self.seconds)


class Discard(Exception):
    """
    Raised by a handler whose job can never succeed: it goes straight to the dead letters.

    Args:
        reason: Kept as ``last_error``.

    Example:
        ``raise pulse.Discard("no such customer")``
    """

    def __init__(self, reason: str = "discarded by the handler") -> None:
        super().__init__(reason)
        self.reason = reason


class RetryAfter(Exception):
    """
    Raised by a handler that failed and knows when it is worth trying again; charged like any failure.

    Args:
        seconds: Delay before the next try, instead of the usual back-off.
        reason: Kept as ``last_error``.

    Raises:
        ValueError: *seconds* is negative, not finite or more than 1e9.

    Example:
        ``raise pulse.RetryAfter(30, "rate limited")``
    """

    def __init__(self, seconds: float, reason: str = "the handler asked to be retried") -> None:
        super().__init__(reason)
        _check_seconds(seconds)
        self.seconds = seconds
        self.reason = reason


def classify(value: object) -> Outcome:
    """
    The outcome of an attempt.

    Args:
        value: What the handler returned, or the exception that ended it.

    Returns:
        The outcome. Never raises: a result that cannot be stored or printed becomes an ``error`` with the reason.
    """
    if value is None:
        return DONE
    if isinstance(value, BaseException):
        return _classify_error(value)
    if isinstance(value, Snooze):
        return Outcome("snooze", float(value.seconds))
    if inspect.iscoroutine(value):
        value.close()
        return Outcome("error", "the handler is a plain def that returned a coroutine; declare it with async def")
    return _classify_result(value)


def split(value: object, ids: Sequence[UUID]) -> list[object]:
    """
    What each job of a batch has come to, for ``classify``.

    Args:
        value: What the handler returned, or the exception that ended it.
        ids: Of the jobs, in order.

    Returns:
        A value for each of *ids*; a ``ResultError`` for each, if *value* is not one result for each.
    """
    if value is None or isinstance(value, BaseException | Snooze) or inspect.iscoroutine(value):
        return [value] * len(ids)
    allowed = "a list in the order of the jobs, a dict by their ids, or None is allowed"
    match value:
        case Mapping():
            found = cast("Mapping[object, object]", value)
            unknown = [key for key in found if key not in ids]
            if not unknown:
                return [found.get(one) for one in ids]
            text = f"the handler returned a result for {unknown[0]!r:.100}, which is no id of the batch; {allowed}"
        case list() | tuple():
            results = cast("Collection[object]", value)
            if len(results) == len(ids):
                return list(results)
            text = f"the handler returned {len(results)} results for {len(ids)} jobs; {allowed}"
        case _:
            text = f"the handler of a batch returned {type(value).__name__}; {allowed}"
    return [ResultError(text)] * len(ids)


def _classify_result(value: object) -> Outcome:
    try:
        return Outcome("ok", result_text(value))
    except json_text.NotStorableError as error:
        return Outcome("error", clean_text(f"result is not storable: {error}"))
    except ValueError as error:
        return Outcome("error", clean_text(f"result is not JSON: {error}"))


def result_text(value: object) -> str:
    """
    The JSON text of a result.

    Raises:
        ValueError: It is not JSON, or PostgreSQL cannot hold it.
    """
    try:
        return json_text.dumps(value)
    except json_text.NotJsonError as error:  # a dataclass, a date, a model; trying costs nothing where it is JSON
        try:
            return json_text.dumps(json_text.to_json(value))
        except ValueError:
            raise error from None


def timed_out(timeout_s: float, error: BaseException | None = None) -> Outcome:
    """The outcome of an attempt that was stopped after *timeout_s*; *error*: what the handler raised."""
    return _stopped(f"timed out after {timeout_s:g} s", error)


def stalled(stall_s: float, error: BaseException | None = None) -> Outcome:
    """The outcome of an attempt that was stopped after *stall_s* without progress; *error*: what the handler raised."""
    return _stopped(f"stalled: no progress for {stall_s:g} s", error)


def crashed(how: str, exit_code: int | None) -> Outcome:
    """The ending of an attempt whose own process died; *exit_code* negative: of that signal."""
    return Outcome("crash", (f"worker process died: {how}", exit_code))


def describe(error: BaseException) -> str:
    """
    Type and message of *error* on a line, which lists show, and its traceback with all causes: the ``last_error``.

    Returns:
        At most 64 KiB of UTF-8 without NUL and lone surrogates, whatever *error* does when it is printed.
    """
    headline, trace = _headline(error), _traceback(error)
    return clean_text(f"{headline.partition(chr(10))[0]}\n{trace}" if trace else headline)


def clean_text(text: str, max_bytes: int = ERROR_MAX_BYTES) -> str:
    """*text* as PostgreSQL can hold it: NUL and lone surrogates replaced, at most *max_bytes* of UTF-8."""
    if "\0" in text:
        text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return cut_middle(text, max_bytes)


def cause_of(error: BaseException) -> BaseException:
    """The error inside the groups that trio nurseries and anyio task groups wrap around it."""
    while len(members := _members(error)) == 1:
        error = members[0]
    return error


def _classify_error(error: BaseException) -> Outcome:
    error = _first_to_wake(cause_of(error))
    match error:
        case Discard():
            return Outcome("discard", clean_text(_text(error)) or "discarded by the handler")
        case ArgumentError():  # no try would change that
            return Outcome("discard", clean_text(f"the handler does not take these args: {error}"))
        case SignalWaiting():
            return Outcome("wait", (error.seconds, (error.signal, error.sent)))
        case Asleep():
            return Outcome("snooze", error.seconds)
        case RetryAfter():
            return Outcome("retry", (float(error.seconds), clean_text(_text(error))))
        case _:
            return Outcome("error", describe(error))


def _first_to_wake(error: BaseException) -> BaseException:
    """Of several parts of a handler that sleep or wait at the same time, the one that goes on first; else *error*."""
    parts = [_first_to_wake(one) for one in _members(error)]
    asleep = [one for one in parts if isinstance(one, Asleep)]
    return min(asleep, key=lambda one: one.seconds) if parts and len(asleep) == len(parts) else error


def _stopped(text: str, error: BaseException | None) -> Outcome:
    return Outcome("error", text if error is None else clean_text(f"{text}\n{describe(error)}"))


def _headline(error: BaseException) -> str:
    name = type(error).__name__
    match error:
        case SystemExit():
            return f"{name}: the handler called sys.exit({_safely(repr, error.code)})"
        case KeyboardInterrupt():
            return f"{name}: raised by the handler"
        case _:
            text = _text(error)
            return f"{name}: {text}" if text else name


def _text(error: BaseException) -> str:
    return _safely(str, error)


def _safely(show: Callable[[object], str], value: object) -> str:
    try:
        return show(value)
    except BaseException as broken:  # noqa: BLE001 - the user's __str__ may raise anything, SystemExit too
        return f"<unprintable: its {show.__name__}() raises {type(broken).__name__}>"


def _members(error: BaseException) -> list[BaseException]:
    """What an exception group holds; nothing for other exceptions."""
    if not isinstance(error, BaseExceptionGroup):
        return []
    return list(cast("BaseExceptionGroup[BaseException]", error).exceptions)


def _traceback(error: BaseException) -> str:
    """The traceback with causes and groups as Python prints it, without pulse's own calls; '' if there is none."""
    try:
        printed = traceback.TracebackException.from_exception(error)
        is_empty = not _leave_out_own(printed)
        return "" if is_empty else "".join(printed.format()).rstrip("\n")
    except Exception:  # noqa: BLE001 - a report without its calls is still a report
        return ""


def _leave_out_own(printed: traceback.TracebackException) -> bool:
    """Remove the calls of the worker itself; whether there is anything left beside the exception's own line."""
    parts, seen = [printed], False
    for part in parts:
        part.stack[:] = [_bare(call) for call in part.stack if not call.filename.startswith(_OWN_DIRS)]
        inner = [one for one in (part.__cause__, part.__context__, *(part.exceptions or ())) if one is not None]
        seen = seen or bool(part.stack or inner)
        parts += inner
        if not part.stack:
            part.stack = None  # type: ignore[assignment]  # then there is no "Traceback" above nothing
    return seen


def _bare(call: traceback.FrameSummary) -> traceback.FrameSummary:
    """A call without its columns: to mark them Python parses each line, for 0.2 ms, and thousands may fail at once."""
    return traceback.FrameSummary(call.filename, call.lineno, call.name, lookup_line=False, line=call.line)


def _check_seconds(seconds: float) -> None:
    if not math.isfinite(seconds) or not 0 <= seconds <= MAX_SECONDS:
        raise ValueError(f"seconds must be between 0 and {MAX_SECONDS:g}, not {seconds!r}")
