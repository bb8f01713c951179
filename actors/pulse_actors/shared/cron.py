"""
Cron expressions in a time zone, and pulse's own rule for days on which the clock changes. Pure; times are Unix seconds.

The library (croniter) sees nothing but wall-clock times without a zone: which of them an expression names. What instant
a wall-clock time is, is settled here, since the library fires ``30 2 * * *`` twice on the long day:

- a local time that does not exist (the clock was set forward over it) stands for the first instant after the gap;
  several of one gap come to one occurrence, and so does one of a day that a zone left out;
- a local time that exists twice occurs at its first time where the hours, minutes and seconds are fixed, and at both
  where one of these fields has a star or a step: ``*/30 * * * *`` goes on every half hour.
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

FARTHEST_YEARS: Final = 41  # a 29 February on a given weekday: 28 years, and 40 across 2100, which is no leap year
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
CACHED: Final = 65_536  # next times; thousands of schedules share few expressions, and a cron library takes 0.1 ms each
LOOKED_AT: Final = 32  # intervals, 3 ms of the library, once for each expression that has a jitter
_RANDOM: Final = re.compile(r"(?<![A-Z])[RH](?![A-Z])")  # two schedulers would reckon two different next times
_NO_ZONES: Final = ("localtime", "posixrules", "Factory")  # files beside the zones: not the same on all hosts
_NO_TREES: Final = ("posix/", "right/")  # the zones once more, in part with leap seconds: half a minute off the clock
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - wall-clock time, whose zone is this file's affair


def checked_cron(text: str, zone: str) -> None:
    """
    See that an expression, as people write it, can be followed in a zone.

    Raises:
        BadRequestError: It is none, or the zone is not known.
    """
    _clock(text, zone)


@functools.lru_cache(maxsize=CACHED)
def cron_after(text: str, zone: str, unix_s: int) -> int | None:
    """
    The first occurrence behind *unix_s*; None: there is none within the years that can be reckoned.

    Raises:
        BadRequestError: As `checked_cron`.
    """
    clock = _clock(text, zone)
    try:
        return clock.after(unix_s)
    except (OverflowError, ValueError):  # behind the year 9999
        return None


@functools.lru_cache(maxsize=4096)
def cron_interval_s(text: str, zone: str) -> float:
    """
    The shortest time between two occurrences, on a clock that nobody changes; infinite where there are no two.

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
    """Whether it means "every so often": of hours, minutes and seconds one has a star or a step."""
    return any("*" in field or "/" in field for field in text.split()[:-3])


@dataclass(frozen=True, slots=True)
class _Clock:
    """
    Wall-clock times of an expression as instants.

    A wall-clock time is told in seconds as if it were UTC. ``repeats``: one that exists twice occurs twice.
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

        The days that have occurrences have the same ones, and so have the hours of a day and the minutes of an hour: of
        so many, the shortest is the shortest of all, but for the oddest expressions.
        """
        shortest_s, wall_s = math.inf, self._match(-1)
        for _ in range(LOOKED_AT):
            if wall_s is None or (following_s := self._match(wall_s)) is None:
                break
            shortest_s, wall_s = min(shortest_s, following_s - wall_s), following_s
        return shortest_s

    def _once(self, unix_s: int, wall_s: int) -> int | None:
        """The first behind *unix_s*, of wall-clock times behind *wall_s*."""
        while (found := self._match(wall_s)) is not None:
            before_s, after_s = self._offsets_s(found)
            if before_s == after_s:
                return found - before_s
            if before_s < after_s:
                return self._change(found - after_s, found - before_s)
            if found - before_s > unix_s:
                return found - before_s
            if self.repeats:
                return found - after_s
            wall_s = self._change(found - before_s, found - after_s) + before_s - 1  # the end of what exists twice
        return None

    def _again(self, unix_s: int, offset_s: int) -> int | None:
        """Where *unix_s* is in the first pass through times that exist twice: the first match of the second pass."""
        before_s, after_s = self._offsets_s(unix_s + offset_s)
        if not after_s < before_s == offset_s:
            return None
        change_s = self._change(unix_s, unix_s + before_s - after_s)
        found = self._match(change_s + after_s - 1)
        return None if found is None else found - after_s  # one behind them is what `_once` finds, too

    def _match(self, wall_s: int) -> int | None:
        """The first wall-clock time of the expression behind *wall_s*."""
        from croniter import CroniterBadDateError

        try:
            found = _parse(self.text, _EPOCH + timedelta(seconds=wall_s)).get_next(datetime)
        except CroniterBadDateError:
            return None
        return (found - _EPOCH) // timedelta(seconds=1)

    def _offset_s(self, unix_s: int) -> int:
        """Of an instant."""
        return _seconds(
            (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=unix_s)).astimezone(self.zone).utcoffset()
        )

    def _offsets_s(self, wall_s: int) -> tuple[int, int]:
        """Of a wall-clock time: before and after the change, where it is in a gap or exists twice; else the same."""
        wall = (_EPOCH + timedelta(seconds=wall_s)).replace(tzinfo=self.zone)
        return _seconds(wall.utcoffset()), _seconds(wall.replace(fold=1).utcoffset())

    def _change(self, before_s: int, after_s: int) -> int:
        """The first instant of the offset that *after_s* has; *before_s* has another one."""
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
