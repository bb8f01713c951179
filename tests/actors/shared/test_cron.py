"""
Cron expressions in time zones: held against an oracle that looks at every half hour of a year, in zones with odd rules.

The oracle works differently: it walks through the half hours of UTC, notes the wall-clock time of each, and so knows
which wall-clock times are left out, by which instant, and which come twice.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse.errors import BadRequestError
from pulse_actors.shared.cron import ALLOWED_CRON, checked_cron, cron_after
from tests.support.whole import WHOLE

NOW: Final = datetime(2024, 2, 28, 12, 0, tzinfo=UTC)
BERLIN: Final = "Europe/Berlin"
SPRING: Final = date(2024, 3, 31)  # in Berlin 02:00 to 03:00 does not exist
AUTUMN: Final = date(2024, 10, 27)  # in Berlin 02:00 to 03:00 exists twice
# Half an hour, two hours, twice a year around Ramadan, a missing day, gaps at midnight, a zone that moved for good.
YEARS: Final = (
    ("Australia/Lord_Howe", 2024), ("Antarctica/Troll", 2024), ("Africa/Casablanca", 2024), ("Pacific/Apia", 2011),
    ("America/New_York", 2024), (BERLIN, 2024), ("America/Sao_Paulo", 2018), ("Africa/Cairo", 2024),
    ("America/Caracas", 2016), ("UTC", 2024),
)  # fmt: skip


def next_of(cron: str, after: datetime, zone: str = "UTC") -> datetime:
    found = cron_after(cron, zone, int(after.timestamp()))
    assert found is not None
    return datetime.fromtimestamp(found, UTC)


def day_of(cron: str, day: date, zone: str = BERLIN) -> list[str]:
    local = ZoneInfo(zone)
    found: list[str] = []
    moment = datetime(day.year, day.month, day.day, tzinfo=local) - timedelta(seconds=1)
    while (moment := next_of(cron, moment, zone).astimezone(local)).date() == day:
        found.append(moment.strftime("%H:%M:%S%z")[:11])
    return found


@pytest.mark.parametrize(("cron", "expected"), [
    ("* * * * *", "2024-02-28 12:01:00"), ("0 0 * * *", "2024-02-29 00:00:00"),
    ("0 0 29 2 *", "2024-02-29 00:00:00"), ("30 4 1,15 * 5", "2024-03-01 04:30:00"),
    ("0 22 * * 1-5", "2024-02-28 22:00:00"), ("0 0 * * 7", "2024-03-03 00:00:00"),
    ("0 0 * * SUN", "2024-03-03 00:00:00"), ("0 12 * JAN *", "2025-01-01 12:00:00"),
    ("0 0 L * *", "2024-02-29 00:00:00"), ("0 0 29 2 1#5", "2044-02-29 00:00:00"),
    ("@yearly", "2025-01-01 00:00:00"), ("@annually", "2025-01-01 00:00:00"), ("@monthly", "2024-03-01 00:00:00"),
    ("@weekly", "2024-03-03 00:00:00"), ("@daily", "2024-02-29 00:00:00"), ("@midnight", "2024-02-29 00:00:00"),
    (" @Hourly ", "2024-02-28 13:00:00"), ("*/10 * * * * *", "2024-02-28 12:00:10"),
    ("30 0 0 * * *", "2024-02-29 00:00:30"), ("59 59 23 31 12 *", "2024-12-31 23:59:59"),
])  # fmt: skip
def test_when_it_is_next(cron: str, expected: str) -> None:
    """A day OR a weekday where both are given; names, lists, last days, aliases; six fields begin with seconds."""
    assert f"{next_of(cron, NOW):%Y-%m-%d %H:%M:%S}" == expected


def test_cron_runs_in_its_zone() -> None:
    assert next_of("0 8 * * *", NOW, "Asia/Kolkata") == datetime(2024, 2, 29, 2, 30, tzinfo=UTC)


@pytest.mark.parametrize(("cron", "spring", "autumn"), [
    ("0 3 * * *", ["03:00:00+02"], ["03:00:00+01"]),
    ("30 2 * * *", ["03:00:00+02"], ["02:30:00+02"]),
    ("*/30 2 * * *", ["03:00:00+02"], ["02:00:00+02", "02:30:00+02", "02:00:00+01", "02:30:00+01"]),
    ("0,30 2 * * *", ["03:00:00+02"], ["02:00:00+02", "02:30:00+02"]),
    ("0 2,3 * * *", ["03:00:00+02"], ["02:00:00+02", "03:00:00+01"]),
    ("0 2-3/1 * * *", ["03:00:00+02"], ["02:00:00+02", "02:00:00+01", "03:00:00+01"]),
    ("59 1 * * *", ["01:59:00+01"], ["01:59:00+02"]),
    ("15 30 2 * * *", ["03:00:00+02"], ["02:30:15+02"]),
    ("*/30 59 2 * * *", ["03:00:00+02"], ["02:59:00+02", "02:59:30+02", "02:59:00+01", "02:59:30+01"]),
])  # fmt: skip
def test_days_on_which_the_clock_changes(cron: str, spring: list[str], autumn: list[str]) -> None:
    """A time that does not exist fires once, right after the gap; one that exists twice once, or with a star twice."""
    assert day_of(cron, SPRING) == spring
    assert day_of(cron, AUTUMN) == autumn


def test_every_hour_is_every_hour() -> None:
    """Once an hour is 23 times on the short day, 25 on the long one; one more for the half hour that is left out."""
    assert len(day_of("0 * * * *", SPRING)) == 23
    assert len(day_of("0 * * * *", AUTUMN)) == len(day_of("30 * * * *", AUTUMN)) == 25
    assert day_of("30 * * * *", SPRING)[1:4] == ["01:30:00+01", "03:00:00+02", "03:30:00+02"]


def test_many_times_that_exist_twice() -> None:
    assert len(day_of("0-59 2 * * *", AUTUMN)) == 60
    assert len(day_of("* 2 * * *", AUTUMN)) == 120


def numbers(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


@dataclass(frozen=True, slots=True)
class Year:
    """
    A year of a zone.

    Attributes:
        days: Date -> half hour of the day -> the instants, Unix seconds, at which the wall clock is there: one; two
            where that time exists twice; and (negative) the first instant after the gap where it does not exist.
        changes: The instants at which the clock was changed.
    """

    days: dict[date, dict[int, list[int]]]
    changes: list[int]

    def instants_of(self, day: date, minute: int) -> list[int]:
        """The same of a minute of that day."""
        half, rest = divmod(minute, 30)
        return [begin if begin < 0 else begin + 60 * rest for begin in self.days[day].get(half, ())]


@functools.cache
def year_of(zone: str, year: int) -> Year:
    """Every half hour of a year, and of the day before and after it: no clock is changed in between."""
    local, days = ZoneInfo(zone), defaultdict[date, dict[int, list[int]]](dict)
    changes: list[int] = []
    instant = int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) - 86_400
    end = instant + 368 * 86_400
    before: datetime | None = None
    minute, half = timedelta(minutes=1), timedelta(minutes=30)
    while instant < end:
        ends = instant, instant + 29 * 60
        wall, last = (datetime.fromtimestamp(one, local).replace(tzinfo=None, fold=0) for one in ends)
        assert (last - wall + minute, wall.minute % 30) == (half, 0)
        if before is not None and wall - before != minute:
            changes.append(instant)
            missing = before + minute
            while missing < wall:
                days[missing.date()].setdefault(_half(missing), []).append(-instant)
                missing += half
        days[wall.date()].setdefault(_half(wall), []).append(instant)
        before = last
        instant += 1800
    return Year(dict(days), changes)


def _half(wall: datetime) -> int:
    return wall.hour * 2 + wall.minute // 30


def oracle(cron: str, zone: str, year: int, start: int, most: int) -> list[int]:
    minute, hour, day, month, weekday = cron.split()
    minutes = [h * 60 + m for h in sorted(numbers(hour, 0, 23)) for m in sorted(numbers(minute, 0, 59))]
    days, months = numbers(day, 1, 31), numbers(month, 1, 12)
    weekdays = {number % 7 for number in numbers(weekday, 0, 7)}
    goes_on = any(sign in minute + hour for sign in "*/")
    found: set[int] = set()
    first = datetime.fromtimestamp(start, UTC).date() - timedelta(days=2)
    there = year_of(zone, year)
    for today in there.days:
        if today < first:
            continue
        if sum(start < moment for moment in found) > 2 * most:
            break
        on_day, on_weekday = today.day in days, today.isoweekday() % 7 in weekdays
        is_day = (on_day and on_weekday) if "*" in {day, weekday} else (on_day or on_weekday)
        if today.month in months and is_day:
            for one in minutes:
                instants = there.instants_of(today, one)
                found |= set(map(abs, instants if goes_on else instants[:1]))
    return sorted(moment for moment in found if start < moment)[:most]


def listed(values: set[int]) -> str:
    return ",".join(map(str, sorted(values)))


def field(low: int, high: int, *others: str) -> st.SearchStrategy[str]:
    some = st.sets(st.integers(low, high), min_size=1, max_size=high - low).map(listed)
    return st.one_of(st.just("*"), st.sampled_from(others), some)


# Where both days are given, neither with a star: cron implementations agree on nothing else.
days = st.one_of(
    st.tuples(st.just("*"), st.just("*")),
    st.tuples(field(1, 31, "*/10", "28-31"), st.just("*")),
    st.tuples(st.just("*"), field(0, 6, "1-5", "7", "*/2")),
    st.tuples(field(1, 31, "28-31"), field(0, 6, "1-5", "7")),
)
expressions = st.builds(
    lambda minute, hour, month, day: f"{minute} {hour} {day[0]} {month} {day[1]}",
    field(0, 59, "*/7", "*/15", "*/30", "10-20/5"), field(0, 23, "*/5", "*/2", "1-3", "22-23"),
    st.one_of(st.just("*"), field(1, 12, "*/4", "3", "10")), days,
)  # fmt: skip


def walk(cron: str, zone: str, start: int, end: int, most: int) -> list[int]:
    found: list[int] = []
    following = cron_after(cron, zone, start)
    while following is not None and following < end and len(found) < most:
        found.append(following)
        following = cron_after(cron, zone, following)
    return found


@pytest.mark.rest
@settings(
    deadline=None, max_examples=settings().max_examples if WHOLE else 6
)  # the first example of a zone walks through its year
@given(expressions, st.sampled_from(YEARS), st.integers(0, 11), st.integers(-40 * 3600, 4 * 3600))
def test_around_every_change_it_is_the_oracles(cron: str, where: tuple[str, int], which: int, offset: int) -> None:
    """Any simple expression, from any time around any change of the clock."""
    zone, year = where
    changes = year_of(zone, year).changes or [int(datetime(year, 2, 28, tzinfo=UTC).timestamp())]
    start = changes[which % len(changes)] + offset
    end = int(datetime(year + 1, 1, 1, tzinfo=UTC).timestamp())
    expected = [moment for moment in oracle(cron, zone, year, start, 40) if moment < end]
    assert walk(cron, zone, start, end, 40) == expected


@pytest.mark.rest
@pytest.mark.parametrize("where", YEARS, ids=str)
@pytest.mark.parametrize("cron", ["30 2 * * *", "0 0 * * *", "15 */6 * * *", "15,45 2,3 13 1-11 5", "0 12 30 12 *"])
def test_a_whole_year_is_the_oracles(cron: str, where: tuple[str, int]) -> None:
    zone, year = where
    start, end = (int(datetime(one, 1, 1, tzinfo=UTC).timestamp()) for one in (year, year + 1))
    expected = [moment for moment in oracle(cron, zone, year, start, 10_000) if moment < end]
    assert walk(cron, zone, start, end, 10_000) == expected


def test_apia_has_no_30_december() -> None:
    """The day that Samoa left out occurs once, at the first instant after it."""
    local = ZoneInfo("Pacific/Apia")
    start = int(datetime(2011, 12, 29, 13, 0, tzinfo=local).timestamp())
    found = [datetime.fromtimestamp(one, local) for one in walk("0 12 * * *", local.key, start, start + 3 * 86_400, 2)]
    assert [f"{one:%d %H:%M}" for one in found] == ["31 00:00", "31 12:00"]


@pytest.mark.parametrize("cron", [
    "", " ", "@reboot", "@daily @daily", "* * * * * * *", "a b c d e", "* 24 * * *", "*/0 * * * *", "* * * 13 *",
    "* * * * 8", "-1 * * * *", "60 * * * * *", "0 0 * * 5#6", "\0 * * * *", "١ * * * *", "R R * * *",
    "H(0-7) 2 * * *", "9" * 150 + " * * * *",
])  # fmt: skip
def test_bad_expressions_are_refused(cron: str) -> None:
    """Each error is one short line that begins with the value; random times are none."""
    with pytest.raises(BadRequestError) as refused:
        checked_cron(cron, "UTC")
    message = refused.value.message
    assert message.startswith(f"cron is {cron!r:.100}")
    assert "\n" not in message
    assert "\0" not in message
    assert message.endswith(ALLOWED_CRON)


@pytest.mark.parametrize("cron", ["0 0 30 2 *", "0 0 31 4,6,9,11 *"])
def test_days_that_never_come(cron: str) -> None:
    assert cron_after(cron, "UTC", int(NOW.timestamp())) is None


def test_the_end_of_time() -> None:
    assert cron_after("* * * * *", "UTC", int(datetime(9999, 12, 31, 23, 59, tzinfo=UTC).timestamp())) is None


@pytest.mark.parametrize(
    "zone",
    ["../etc/passwd", "/etc/passwd", "Europe", "Europe/Berlin\0", "x" * 100, "tzdata.zi", "", "localtime", "right/UTC"],
)
def test_bad_zones_are_refused(zone: str) -> None:
    with pytest.raises(BadRequestError, match=r"^timezone is .* an IANA name such as Europe/Berlin is allowed$"):
        checked_cron("* * * * *", zone)
