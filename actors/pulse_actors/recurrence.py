"""
When a schedule occurs: ``at`` once, ``every`` so many seconds, ``cron`` in a time zone. Pure; times are int
microseconds.

Occurrences that were missed while nothing ran come to one: the oldest fires, the rest up to now is passed over.
"""

from __future__ import annotations

import zoneinfo
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from croniter import CroniterError, croniter

from pulse.errors import BadRequestError
from pulse.store.times import from_us, to_us

if TYPE_CHECKING:
    from pulse.store.rows import Due

MIN_EVERY_S: Final = 0.1
FIELDS: Final = (5, 6)
DEFAULT_ZONE: Final = "UTC"


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
            return cls("cron", cron=_checked_cron(cron), timezone=_checked_zone(timezone or DEFAULT_ZONE))
        if every_s is not None:
            if every_s < MIN_EVERY_S:
                raise BadRequestError(f"every is {every_s:g} s; at least {MIN_EVERY_S:g} s is allowed")
            return cls("every", every_s=every_s)
        return cls("at", at_us=round((at_s or 0.0) * 1e6))

    @classmethod
    def stored(cls, due: Due) -> Recurrence:
        """The rule of a stored schedule; it was checked when it was made."""
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
        return self._next_cron(now_us)

    def after(self, cursor_us: int, now_us: int) -> int | None:
        """The occurrence after *cursor_us* that lies in the future of *now_us*; None: there is none."""
        latest_us = max(cursor_us, now_us)
        if self.every_s is not None:
            step_us = _step_us(self.every_s)
            return cursor_us + ((latest_us - cursor_us) // step_us + 1) * step_us
        if self.cron is not None:
            try:
                return self._next_cron(latest_us)
            except BadRequestError:
                return None
        return None

    def _next_cron(self, after_us: int) -> int:
        assert self.cron is not None  # noqa: S101 - narrows the type
        start = from_us(after_us).astimezone(ZoneInfo(self.timezone or DEFAULT_ZONE))
        try:
            found: datetime = croniter(
                self.cron, start, ret_type=datetime, second_at_beginning=True, max_years_between_matches=30
            ).get_next()
        except CroniterError:
            raise BadRequestError(f"cron is {self.cron!r}: it names no day that ever comes") from None
        return to_us(found)


def _checked_cron(text: str) -> str:
    if len(text.split()) not in FIELDS:
        raise BadRequestError(f"cron is {text!r:.100}; five fields are allowed, or six with seconds first")
    try:
        croniter(text, second_at_beginning=True)
    except (CroniterError, ValueError, KeyError) as error:
        raise BadRequestError(f"cron is {text!r:.100}: {error}") from None
    return text


def _checked_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise BadRequestError(f"timezone is {name!r:.100}; an IANA name such as Europe/Berlin is allowed") from None
    return name


def _step_us(every_s: float) -> int:
    return round(every_s * 1e6)
