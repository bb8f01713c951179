"""
When a schedule occurs: ``at`` once, ``every`` so many seconds, ``cron`` in a time zone; with start, end and jitter.

Pure; times are int microseconds.
"""

from __future__ import annotations

import hashlib
import math
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Final

from pulse.errors import BadRequestError
from pulse.store.rows import from_s, from_us, to_us
from pulse_actors.shared.cron import checked_cron, cron_after, cron_interval_s

if TYPE_CHECKING:
    from collections.abc import Iterator

MIN_EVERY_S: Final = 0.1
MAX_EVERY_S: Final = 1e9
MAX_JITTER_S: Final = 86_400.0  # enough for a daily schedule; with more, occurrences would overtake each other
DEFAULT_ZONE: Final = "UTC"
_SECOND_US: Final = 1_000_000
LAST_US: Final = to_us(datetime(9999, 12, 29, tzinfo=UTC))  # the columns hold times before the 31st, jitter not counted
_STEPS: Final = 4  # a window of `newest` may hold so many times the limit; else a shorter one is tried


@dataclass(frozen=True, slots=True)
class RecurrenceInput:
    """The times of a schedule in a request, unchecked; the fields are those of the request."""

    cron: str | None = None
    timezone: str | None = None
    every_s: float | None = None
    at_s: float | None = None
    starts_s: float | None = None
    ends_s: float | None = None
    jitter_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The rule of one schedule; only the fields of its kind are set."""

    kind: str
    cron: str | None = None
    timezone: str | None = None
    every_s: float | None = None
    at_us: int | None = None
    starts_us: int | None = None
    ends_us: int | None = None
    jitter_s: float = 0.0

    @classmethod
    def checked(cls, when: RecurrenceInput) -> Recurrence:
        """
        The rule of a request.

        Raises:
            BadRequestError: Not exactly one of cron, every and at is given, or it is invalid.
        """
        kind = _kind(when)
        starts_us, ends_us = _checked_range(when)
        if not 0 <= when.jitter_s <= MAX_JITTER_S:
            raise BadRequestError(f"jitter_s is {when.jitter_s:g}; 0 to {MAX_JITTER_S:g} s is allowed")
        if kind == "at":
            return cls(kind, at_us=_checked_time_us("at", when.at_s or 0.0), jitter_s=when.jitter_s)
        if when.cron is not None:
            zone = DEFAULT_ZONE if when.timezone is None else when.timezone
            checked_cron(when.cron, zone)
            rule = cls(kind, when.cron, zone, starts_us=starts_us, ends_us=ends_us, jitter_s=when.jitter_s)
        else:
            every_s = when.every_s or 0.0
            if not MIN_EVERY_S <= every_s <= MAX_EVERY_S:
                raise BadRequestError(f"every is {every_s:g} s; {MIN_EVERY_S:g} to {MAX_EVERY_S:g} s is allowed")
            rule = cls(kind, every_s=every_s, starts_us=starts_us, ends_us=ends_us, jitter_s=when.jitter_s)
        rule.check_jitter()
        return rule

    def check_jitter(self) -> None:
        """
        Check that no occurrence can fire before the one before it.

        Raises:
            BadRequestError: The jitter is longer than the interval (for cron, the shortest one).
        """
        if self.kind == "at" or not self.jitter_s:
            return
        interval_s = self.every_s or cron_interval_s(self.cron or "", self.timezone or DEFAULT_ZONE)
        if self.jitter_s > interval_s:
            raise BadRequestError(f"jitter_s is {self.jitter_s:g}; at most the interval, {interval_s:g} s, is allowed")

    def first(self, now_us: int) -> int | None:
        """
        The first occurrence of a schedule made at *now_us*.

        Raises:
            BadRequestError: There is none within the years that can be computed.
        """
        if self.kind == "at":
            return self.at_us
        found_us = self._first_behind(now_us)
        if found_us is None and self.cron is not None and self._next_cron(now_us) is None:
            raise BadRequestError(f"cron is {self.cron!r}: it names no day that ever comes; one that comes is allowed")
        if found_us is None and self.ends_us is not None:
            raise BadRequestError(
                f"ends_at is {from_us(self.ends_us).isoformat()}: no occurrence comes before it; a later one is allowed"
            )
        return found_us

    def _first_behind(self, now_us: int) -> int | None:
        starts_us = self.starts_us
        if self.every_s is None:
            return self._within(self._next_cron(now_us if starts_us is None else max(now_us, starts_us - 1)))
        step_us = _step_us(self.every_s)
        if starts_us is None:
            return self._within(now_us + step_us)
        return self._within(starts_us if starts_us > now_us else self._grid(starts_us, now_us))

    def after(self, occurrence_us: int) -> int | None:
        """
        The occurrence after *occurrence_us*; None: there is none.

        Raises:
            BadRequestError: The rule cannot be computed: SQL stored an invalid one, or its time zone is not known.
        """
        if self.kind == "at":
            return None
        if self.every_s is not None:
            return self._within(occurrence_us + _step_us(self.every_s))
        return self._within(self._next_cron(occurrence_us))

    def following(self, occurrence_us: int) -> Iterator[int]:
        """The occurrences after *occurrence_us*, in order."""
        found = self.after(occurrence_us)
        while found is not None:
            yield found
            found = self.after(found)

    def at_most(self, cursor_us: int, now_us: int) -> float:
        """Upper bound of the occurrences from *cursor_us* to *now_us*; fast, while ``newest`` goes through them."""
        interval_s = self.every_s or cron_interval_s(self.cron or "", self.timezone or DEFAULT_ZONE)
        return (now_us - cursor_us) / (interval_s * _SECOND_US) + 1

    def newest(self, cursor_us: int, now_us: int, limit: int) -> list[int]:
        """
        The newest occurrences from *cursor_us* (itself one) to *now_us*; oldest first, at most *limit*.

        Only times near *now_us* are computed: in a long absence a dense rule has missed millions.
        """
        if self.every_s is not None:
            step_us = _step_us(self.every_s)
            missed = max(0, (min(now_us, self.ends_us or now_us) - cursor_us) // step_us)
            return [cursor_us + number * step_us for number in range(max(0, missed - limit + 1), missed + 1)]
        if self.kind == "at":
            return [cursor_us]
        too_few_us, width_us = 0, limit * _SECOND_US
        while True:
            start_us = max(cursor_us, now_us - width_us)
            found = self._between(start_us, now_us, limit * _STEPS, inclusive=start_us == cursor_us)
            if len(found) > limit * _STEPS and width_us - too_few_us > _SECOND_US:
                width_us = (too_few_us + width_us) // 2  # too dense to go through: try nearer times
            elif len(found) >= limit or start_us == cursor_us:
                return found[-limit:]
            else:
                too_few_us, width_us = width_us, width_us * 2

    def _between(self, start_us: int, now_us: int, most: int, *, inclusive: bool) -> list[int]:
        """At most *most* plus one."""
        found = [start_us] if inclusive else []
        for one in islice(self.following(start_us), most + 1):
            if one > now_us:
                break
            found.append(one)
        return found

    def _grid(self, origin_us: int, behind_us: int) -> int:
        step_us = _step_us(self.every_s or MIN_EVERY_S)
        return origin_us + ((behind_us - origin_us) // step_us + 1) * step_us

    def _within(self, found_us: int | None) -> int | None:
        """*found_us*, if it is before the schedule's end and the calendar's."""
        if found_us is None or found_us > (LAST_US if self.ends_us is None else min(self.ends_us, LAST_US)):
            return None
        return found_us

    def _next_cron(self, after_us: int) -> int | None:
        assert self.cron is not None  # noqa: S101 - narrows the type
        found_s = cron_after(self.cron, self.timezone or DEFAULT_ZONE, after_us // _SECOND_US)
        return None if found_s is None else found_s * _SECOND_US


def jittered_us(schedule_id: bytes, occurrence_us: int, jitter_s: float) -> int:
    """
    When an occurrence fires: later by less than *jitter_s*, always by the same delay.

    ``pulse.jittered`` in schema.sql is the same in SQL.
    """
    if not jitter_s:
        return occurrence_us
    mark = f"{uuid.UUID(bytes=schedule_id)} {occurrence_us}".encode()
    share = int(hashlib.md5(mark, usedforsecurity=False).hexdigest()[:8], 16) / 2**32
    return occurrence_us + math.floor(jitter_s * share * _SECOND_US)


def _kind(when: RecurrenceInput) -> str:
    given = [
        name for name, value in (("cron", when.cron), ("every", when.every_s), ("at", when.at_s)) if value is not None
    ]
    if len(given) != 1:
        raise BadRequestError(f"{', '.join(given) or 'none'} of cron, every and at is given; exactly one is allowed")
    if when.timezone is not None and when.cron is None:
        raise BadRequestError(f"timezone is {when.timezone!r}; it is allowed with cron only")
    if given == ["at"] and (when.starts_s, when.ends_s) != (None, None):
        raise BadRequestError("starts_at or ends_at is given; they are allowed with cron and every only")
    return given[0]


def _checked_range(when: RecurrenceInput) -> tuple[int | None, int | None]:
    starts_us = None if when.starts_s is None else _checked_time_us("starts_at", when.starts_s)
    ends_us = None if when.ends_s is None else _checked_time_us("ends_at", when.ends_s)
    if starts_us is not None and ends_us is not None and ends_us < starts_us:
        raise BadRequestError(
            f"ends_at is {from_us(ends_us).isoformat()}, before starts_at, {from_us(starts_us).isoformat()}; "
            "a time from starts_at on is allowed"
        )
    return starts_us, ends_us


def _checked_time_us(what: str, at_s: float) -> int:
    try:
        return to_us(from_s(at_s))
    except (OverflowError, ValueError):
        raise BadRequestError(f"{what} is {at_s:g}; Unix seconds of the years 1 to 9999 are allowed") from None


def _step_us(every_s: float) -> int:
    return round(max(MIN_EVERY_S, every_s) * 1e6)
