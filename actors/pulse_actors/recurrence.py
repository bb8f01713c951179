"""
When a schedule occurs: ``at`` once, ``every`` so many seconds, ``cron`` in a time zone. Pure; times are int
microseconds.

Occurrences that were missed while nothing ran come to one: the oldest fires, the rest up to now is passed over.
"""

from __future__ import annotations

import re
import zoneinfo
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from croniter import CroniterBadDateError, CroniterError, croniter

from pulse.errors import BadRequestError
from pulse.store.times import from_s, from_us, to_us

if TYPE_CHECKING:
    from pulse.store.rows import Due

MIN_EVERY_S: Final = 0.1
FARTHEST_YEARS: Final = 30  # a 29 February on a given weekday comes every 28 years
FIELDS: Final = (5, 6)
ALLOWED_CRON: Final = "five fields are allowed (minute hour day month weekday), or six with seconds first"
DEFAULT_ZONE: Final = "UTC"
_RANDOM: Final = re.compile(r"(?<![A-Z])[RH](?![A-Z])")  # two schedulers would reckon two different next times


@dataclass(frozen=True, slots=True)
class Recurrence:
    """One schedule's rule; exactly the fields of its kind are set."""

    kind: str
    cron: str | None = None
    timezone: str | None = None
    every_s: float | None = None
    at_us: int | None = None

    @classmethod
    def checked(
        cls, *, cron: str | None, timezone: str | None, every_s: float | None, at_s: float | None
    ) -> Recurrence:
        """
        The rule that a request asks for.

        Raises:
            BadRequestError: Not exactly one of cron, every and at is given, or it cannot be followed.
        """
        given = [name for name, value in (("cron", cron), ("every", every_s), ("at", at_s)) if value is not None]
        if len(given) != 1:
            raise BadRequestError(
                f"{', '.join(given) or 'none'} of cron, every and at is given; exactly one is allowed"
            )
        if timezone is not None and cron is None:
            raise BadRequestError(f"timezone is {timezone!r}; it is allowed with cron only")
        if cron is not None:
            zone = DEFAULT_ZONE if timezone is None else timezone
            _zone(zone)
            return cls("cron", cron=_checked_cron(cron), timezone=zone)
        if every_s is not None:
            if every_s < MIN_EVERY_S:
                raise BadRequestError(f"every is {every_s:g} s; at least {MIN_EVERY_S:g} s is allowed")
            return cls("every", every_s=every_s)
        return cls("at", at_us=_checked_time_us(at_s or 0.0))

    @classmethod
    def stored(cls, due: Due) -> Recurrence:
        """The rule of a stored schedule; it was checked when it was made, unless SQL made it."""
        return cls(due.kind, cron=due.cron, timezone=due.timezone, every_s=due.every_s)

    def first(self, now_us: int) -> int | None:
        """
        The first occurrence of a schedule made at *now_us*.

        Raises:
            BadRequestError: There is none within the years that can be reckoned.
        """
        if self.at_us is not None:
            return self.at_us
        if self.every_s is not None:
            return now_us + _step_us(self.every_s)
        found_us = self._next_cron(now_us)
        if found_us is None:
            raise BadRequestError(f"cron is {self.cron!r}: it names no day that ever comes")
        return found_us

    def after(self, cursor_us: int, now_us: int) -> int | None:
        """
        The occurrence after *cursor_us* that lies in the future of *now_us*; None: there is none.

        Raises:
            BadRequestError: The rule cannot be followed: SQL made it so, or its time zone is not known any more.
        """
        latest_us = max(cursor_us, now_us)
        if self.every_s is not None:
            step_us = _step_us(self.every_s)
            return cursor_us + ((latest_us - cursor_us) // step_us + 1) * step_us
        return None if self.cron is None else self._next_cron(latest_us)

    def _next_cron(self, after_us: int) -> int | None:
        assert self.cron is not None  # noqa: S101 - narrows the type
        start = from_us(after_us).astimezone(_zone(self.timezone or DEFAULT_ZONE))
        try:
            found = _parse(self.cron, start).get_next(datetime)
        except CroniterBadDateError:
            return None
        return to_us(found)


def _checked_cron(text: str) -> str:
    if len(text.split()) not in FIELDS:
        raise BadRequestError(f"cron is {text!r:.100}; {ALLOWED_CRON}")
    if _RANDOM.search(text.upper()):
        raise BadRequestError(f"cron is {text!r:.100}: R and H stand for random times; {ALLOWED_CRON}")
    _parse(text, from_us(0))
    return text


def _parse(text: str, start: datetime) -> croniter:
    try:
        return croniter(text, start, second_at_beginning=True, max_years_between_matches=FARTHEST_YEARS)
    except (CroniterError, ValueError, KeyError) as error:
        reason = str(error).removeprefix(f"[{text}] ").removeprefix(f"[{text.lower()}] ")
        reason = reason.removeprefix("is not acceptable").lstrip(",. ") or "not understood"
        raise BadRequestError(f"cron is {text!r:.100}: {reason}; {ALLOWED_CRON}") from None


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise BadRequestError(f"timezone is {name!r:.100}; an IANA name such as Europe/Berlin is allowed") from None


def _checked_time_us(at_s: float) -> int:
    try:
        return to_us(from_s(at_s))
    except OverflowError:
        raise BadRequestError(f"at is {at_s:g}; Unix seconds of the years 1 to 9999 are allowed") from None


def _step_us(every_s: float) -> int:
    return round(max(MIN_EVERY_S, every_s) * 1e6)
