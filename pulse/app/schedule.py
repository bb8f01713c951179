"""Schedules that an application declares in code."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypedDict

from pulse.app.call import resolve_call
from pulse.common.wire_values import unix_time
from pulse.errors import BadRequestError, HandlerError
from pulse.job import CATCH_UPS, OVERLAPS, group_problem, unique_problem

__all__ = ["Declared", "ScheduleRules", "declare", "to_wire"]

_MAX_KEY: Final = 200
_KINDS: Final = ("cron", "every_s", "run_at")
_TIMES: Final = ("run_at", "starts_at", "ends_at")


class ScheduleRules(TypedDict, total=False):
    """
    When a schedule fires, exactly one of cron, every_s and run_at, and what its jobs are like.

    Keys:
        cron: Five fields, six with seconds first, or a name such as @daily.
        timezone: IANA name of the zone of *cron*; UTC if it is left out.
        every_s: Seconds between two occurrences, at least 0.1.
        run_at: Time of the only occurrence: an aware datetime, or Unix seconds.
        starts_at: No occurrence before it; with *every_s* it is the first.
        ends_at: No occurrence after it.
        jitter_s: Each occurrence fires later by a fixed part of this: 0 to 86400, at most the interval.
        catch_up: Which occurrences fire that were missed while nothing ran: none (skip), the newest (latest), all.
        overlap: While its earlier job is not finished: allow another one, skip the occurrence, queue it, or cancel the
            earlier job.
        group_key: Group of its jobs.
        unique: Unique key of its jobs; with it *overlap* must be allow.
        unique_until: When a job gives the key away: "end", or already at its "start".
        on_conflict: While another job has the key: "skip" the occurrence, or "replace" that job's args.
        topic: Where its jobs wait; the handler's if it is left out.
        priority: -100 ... 100, higher first.
        max_attempts: Charged tries before the dead letter.
        timeout_s: Longest run of one attempt, seconds.
    """

    cron: str | None
    timezone: str | None
    every_s: float | None
    run_at: datetime | float | None
    starts_at: datetime | float | None
    ends_at: datetime | float | None
    jitter_s: float
    catch_up: str
    overlap: str
    group_key: str | None
    unique: str | None
    unique_until: Literal["start", "end"] | None
    on_conflict: Literal["skip", "replace"] | None
    topic: str | None
    priority: int
    max_attempts: int | None
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Declared:
    """A schedule by its stable key; ``body`` is what the server gets."""

    key: str
    body: Mapping[str, object]


def declare(
    key: str, function: Callable[..., Any], args: Mapping[str, object] | None, rules: Mapping[str, Any]
) -> Declared:
    """
    The schedule of ``@app.schedule``.

    Raises:
        HandlerError: The key, a rule or the arguments are invalid, or the function is not a handler.
    """
    label = f"schedule {key!r:.100}"
    if not 1 <= len(key) <= _MAX_KEY:
        raise HandlerError(f"schedule: the key must be text of 1 to {_MAX_KEY} characters, not {key!r:.100}")
    body = _checked_words(label, rules)
    for name in ("every_s", "jitter_s"):
        value = body.get(name, 0.0)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
            raise HandlerError(f"{label}: {name} is {value!r:.100}; seconds are allowed, not negative")
    try:
        to_wire(body)
        call = resolve_call(function, args)
    except BadRequestError as error:
        raise HandlerError(f"{label}: {error.message}") from None
    return Declared(key, {**body, "key": key, "name": call.name, "args": call.args})


def to_wire(body: dict[str, object]) -> None:
    """
    The times of a schedule, in the form of the wire.

    Raises:
        BadRequestError: A time is invalid.
    """
    for name in _TIMES:
        if name in body:
            body[name] = unix_time(body[name], name)
    for theirs, ours in (("every", "every_s"), ("at", "run_at")):
        if ours in body:
            body[theirs] = body.pop(ours)


def _checked_words(label: str, rules: Mapping[str, Any]) -> dict[str, object]:
    """The rules that are given: known ones, of one kind, with words that are allowed."""
    unknown = sorted(rules.keys() - ScheduleRules.__annotations__.keys())
    if unknown:
        allowed = ", ".join(sorted(ScheduleRules.__annotations__))
        raise HandlerError(f"{label}: unknown option {unknown[0]!r}; allowed are {allowed}")
    body: dict[str, object] = {name: value for name, value in rules.items() if value is not None}
    given = [kind for kind in _KINDS if kind in body]
    if len(given) != 1:
        raise HandlerError(f"{label}: give exactly one of {', '.join(_KINDS)}, not {', '.join(given) or 'none'}")
    for name, allowed_words in (("catch_up", CATCH_UPS), ("overlap", OVERLAPS)):
        if body.get(name, allowed_words[0]) not in allowed_words:
            raise HandlerError(f"{label}: {name} is {body[name]!r:.100}; allowed are {', '.join(allowed_words)}")
    problem = group_problem(body.get("group_key")) or unique_problem(
        body.get("unique"), body.get("unique_until"), body.get("on_conflict"), body.get("overlap", "allow")
    )
    if problem is not None:
        raise HandlerError(f"{label}: {problem}")
    return body
