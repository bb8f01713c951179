"""
Cron expressions in a time zone, and pulse's own rule for days on which the clock changes. Pure; times are Unix seconds.

The library (croniter) computes with wall-clock times without a zone. This module converts them to instants, since the
library fires ``30 2 * * *`` twice on the long day:
- a local time that does not exist (the clock was set forward over it) becomes the first instant after the gap;
several of one gap become one occurrence, and so do those of a day that a zone left out;
- a local time that exists twice occurs at its first time if the hours, minutes and seconds are fixed, and at both
if one of these fields has a star or a step: ``*/30 * * * *`` goes on every half hour.
"""

from __future__ import annotations

import functools
import math
import re
import zoneinfo
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from pulse.errors import BadRequestError

if TYPE_CHECKING:
    from croniter import croniter

FARTHEST_YEARS: Final = 41  # 29 February on a given weekday: every 28 years, or 40 across 2100, which is no leap year
FIELDS: Final = (5, 6)
ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
ALLOWED_CRON: Final = (
    "five fields are allowed (minute hour day month weekday), or six with seconds first, or one of " + " ".join(ALIASES)
)
CACHED: Final = (
    65_536  # next times; thousands of schedules share few expressions, and the library takes 0.1 ms for each
)
LOOKED_AT: Final = 32  # intervals, 3 ms of the library, once for each expression with jitter
_RANDOM: Final = re.compile(r"(?<![A-Z])[RH](?![A-Z])")  # two schedulers would compute different next times
_NO_ZONES: Final = ("localtime", "posixrules", "Factory")  # files beside the zones that differ between hosts
_NO_TREES: Final = ("posix/", "right/")  # copies of the zones, some with leap seconds: half a minute off
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - wall-clock time, whose zone is this file's affair


def checked_cron(text: str, zone: str) -> None:
    """
    Check an expression, as people write it, and its zone.

    Raises:
        BadRequestError: The expression is invalid, or the zone unknown.
    """
    _clock(text, zone)


@functools.lru_cache(maxsize=CACHED)
def cron_after(text: str, zone: str, unix_s: int) -> int | None:
    """
    The first occurrence after *unix_s*; None: there is none within the years that can be computed.

    Raises:
        BadRequestError: As `checked_cron`.
    """
    clock = _clock(text, zone)
    try:
        return clock.after(unix_s)
    except (OverflowError, ValueError):  # after the year 9999
        return None


@functools.lru_cache(maxsize=4096)
def cron_interval_s(text: str, zone: str) -> float:
    """
    The shortest time between two occurrences, without clock changes; infinite if there are no two.

    Raises:
        BadRequestError: As `checked_cron`.
    """
    return _clock(text, zone).interval_s()


@functools.lru_cache(maxsize=4096)
def _clock(text: str, zone_name: str) -> _Clock:
    zone = _zone(zone_name)
    fields = ALIASES.get(text.strip().lower(), text)
    if len(fields.split()) not in FIELDS:
        raise BadRequestError(f"cron is {text!r:.100}; {ALLOWED_CRON}")
    if _RANDOM.search(fields.upper()):
        raise BadRequestError(f"cron is {text!r:.100}: R and H stand for random times; {ALLOWED_CRON}")
    _parse(fields, _EPOCH)
    return _Clock(zone, fields, repeats=_is_interval(fields))


def _is_interval(text: str) -> bool:
    """Whether it means "every so often": its hours, minutes or seconds have a star or a step."""
    return any("*" in field or "/" in field for field in text.split()[:-3])


@dataclass(frozen=True, slots=True)
class _Clock:
    """
    Wall-clock times of an expression as instants.

    A wall-clock time is in seconds as if it were UTC. ``repeats``: a time that exists twice occurs twice.
    """

    zone: ZoneInfo
    text: str
    repeats: bool

    def after(self, unix_s: int) -> int | None:
        offset_s = self._offset_s(unix_s)
        first = self._once(unix_s, unix_s + offset_s)
        again = self._again(unix_s, offset_s) if self.repeats else None
        return min((one for one in (first, again) if one is not None), default=None)

    def interval_s(self) -> float:
        """
        The shortest of the first `LOOKED_AT` intervals.

        All days with occurrences have the same ones, and so have the hours of a day and the minutes of an hour: so
        these contain the shortest of all, except in very odd expressions.
        """
        shortest_s, wall_s = math.inf, self._match(-1)
        for _ in range(LOOKED_AT):
            if wall_s is None or (following_s := self._match(wall_s)) is None:
                break
            shortest_s, wall_s = min(shortest_s, following_s - wall_s), following_s
        return shortest_s

    def _once(self, unix_s: int, wall_s: int) -> int | None:
        """The first occurrence after *unix_s* among wall-clock times after *wall_s*."""
        while (found := self._match(wall_s)) is not None:
            before_s, after_s = self._offsets_s(found)
            if before_s < after_s:
                return self._change(found - after_s, found - before_s)
            if found - before_s > unix_s:
                return found - before_s
            if self.repeats:
                return found - after_s
            wall_s = (
                self._change(found - before_s, found - after_s) + before_s - 1
            )  # the end of the time that exists twice
        return None

    def _again(self, unix_s: int, offset_s: int) -> int | None:
        """If *unix_s* is in the first pass of times that exist twice: the first match of the second pass."""
        before_s, after_s = self._offsets_s(unix_s + offset_s)
        if not after_s < before_s == offset_s:
            return None
        change_s = self._change(unix_s, unix_s + before_s - after_s)
        found = self._match(change_s + after_s - 1)
        return None if found is None else found - after_s  # `_once` finds a later one, too

    def _match(self, wall_s: int) -> int | None:
        """The first wall-clock time of the expression after *wall_s*."""
        from croniter import CroniterBadDateError

        try:
            found = _parse(self.text, _EPOCH + timedelta(seconds=wall_s)).get_next(datetime)
        except CroniterBadDateError:
            return None
        return (found - _EPOCH) // timedelta(seconds=1)

    def _offset_s(self, unix_s: int) -> int:
        """UTC offset of an instant."""
        return _seconds(
            (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=unix_s)).astimezone(self.zone).utcoffset()
        )

    def _offsets_s(self, wall_s: int) -> tuple[int, int]:
        """UTC offsets of a wall-clock time, before and after a change if it is in a gap or exists twice; else equal."""
        wall = (_EPOCH + timedelta(seconds=wall_s)).replace(tzinfo=self.zone)
        return _seconds(wall.utcoffset()), _seconds(wall.replace(fold=1).utcoffset())

    def _change(self, before_s: int, after_s: int) -> int:
        """The first instant with the offset of *after_s*; *before_s* has another one."""
        offset_s = self._offset_s(after_s)
        while after_s - before_s > 1:
            middle_s = (before_s + after_s) // 2
            if self._offset_s(middle_s) == offset_s:
                after_s = middle_s
            else:
                before_s = middle_s
        return after_s


def _seconds(offset: timedelta | None) -> int:
    return 0 if offset is None else offset // timedelta(seconds=1)


def _parse(text: str, start: datetime) -> croniter:
    from croniter import CroniterError, croniter  # not at start: it takes 20 ms, and most servers never need it

    try:
        return croniter(text, start, second_at_beginning=True, max_years_between_matches=FARTHEST_YEARS)
    except (CroniterError, ValueError, KeyError) as error:
        reason = str(error).removeprefix(f"[{text}] ").removeprefix(f"[{text.lower()}] ")
        reason = reason.removeprefix("is not acceptable").lstrip(",. ") or "not understood"
        raise BadRequestError(f"cron is {text!r:.100}: {reason}; {ALLOWED_CRON}") from None


def _zone(name: str) -> ZoneInfo:
    try:
        if name not in _NO_ZONES and not name.startswith(_NO_TREES):
            return ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        pass
    raise BadRequestError(f"timezone is {name!r:.100}; an IANA name such as Europe/Berlin is allowed")
