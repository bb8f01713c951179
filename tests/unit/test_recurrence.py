"""When schedules occur: held against an oracle that looks at every minute, and at the edges of clocks and requests."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pulse.errors import BadRequestError
from pulse.store.rows import Due
from pulse.store.times import from_us, to_us
from pulse_actors.recurrence import ALLOWED_CRON, MIN_EVERY_S, Recurrence

NOW: Final = datetime(2024, 2, 28, 12, 0, tzinfo=UTC)
NOW_US: Final = to_us(NOW)
SECOND_US: Final = 1_000_000
BERLIN: Final = "Europe/Berlin"
ZONES: Final = ("UTC", BERLIN)
SPRING: Final = date(2024, 3, 31)  # in Berlin 02:00 to 03:00 does not exist
AUTUMN: Final = date(2024, 10, 27)  # in Berlin 02:00 to 03:00 exists twice


def checked(**rule: Any) -> Recurrence:
    """The rule of a request that gives only this."""
    return Recurrence.checked(**{"cron": None, "timezone": None, "every_s": None, "at_s": None, **rule})


def next_of(cron: str, after: datetime, zone: str = "UTC") -> datetime:
    """The first occurrence after a time."""
    return from_us(checked(cron=cron, timezone=zone).first(to_us(after)) or 0)


def day_of(cron: str, day: date, zone: str = BERLIN) -> list[str]:
    """The local times of one day's occurrences, with their offset in hours."""
    rule, local = checked(cron=cron, timezone=zone), ZoneInfo(zone)
    found: list[str] = []
    cursor = to_us(datetime(day.year, day.month, day.day, tzinfo=local)) - 1
    while True:
        cursor = rule.after(cursor, cursor) or 0
        moment = from_us(cursor).astimezone(local)
        if moment.date() != day:
            return found
        found.append(moment.strftime("%H:%M:%S%z")[:11])


def test_at_occurs_once() -> None:
    """An ``at`` occurs at its time, past or future, and never again."""
    rule = checked(at_s=1_700_000_000.25)
    assert rule.kind == "at"
    assert rule.first(NOW_US) == 1_700_000_000_250_000
    assert rule.after(1_700_000_000_250_000, NOW_US) is None


def test_every_begins_one_step_from_now() -> None:
    """An ``every`` occurs first after one step, then at multiples of it from there."""
    rule = checked(every_s=90.0)
    first_us = NOW_US + 90 * SECOND_US
    assert rule.first(NOW_US) == first_us
    assert rule.after(first_us, first_us) == first_us + 90 * SECOND_US


def test_missed_steps_come_to_one() -> None:
    """After an outage the next occurrence is the first of the grid that lies in the future, and the grid is kept."""
    rule = checked(every_s=60.0)
    for missed_us in (0, 1, 59_999_999, 60_000_000, 3_600_000_001):
        following = rule.after(NOW_US, NOW_US + missed_us)
        assert following is not None
        assert (following - NOW_US) % (60 * SECOND_US) == 0
        assert NOW_US + missed_us < following <= NOW_US + missed_us + 60 * SECOND_US


def test_missed_cron_occurrences_come_to_one() -> None:
    """A cron that was missed for days goes on with the first occurrence in the future."""
    rule = checked(cron="0 3 * * *")
    assert rule.after(NOW_US - 5 * 86_400 * SECOND_US, NOW_US) == to_us(datetime(2024, 2, 29, 3, 0, tzinfo=UTC))


def test_a_clock_behind_the_cursor_does_not_repeat() -> None:
    """Where the clock has stepped back behind the cursor, the next occurrence is still after the cursor."""
    for rule in (checked(every_s=1.0), checked(cron="* * * * *")):
        following = rule.after(NOW_US, NOW_US - 3600 * SECOND_US)
        assert following is not None
        assert following > NOW_US


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("* * * * *", "2024-02-28 12:01:00"),
        ("0 0 * * *", "2024-02-29 00:00:00"),
        ("0 0 29 2 *", "2024-02-29 00:00:00"),
        ("30 4 1,15 * 5", "2024-03-01 04:30:00"),
        ("0 22 * * 1-5", "2024-02-28 22:00:00"),
        ("0 0 * * 7", "2024-03-03 00:00:00"),
        ("0 0 * * SUN", "2024-03-03 00:00:00"),
        ("0 12 * JAN *", "2025-01-01 12:00:00"),
        ("0 0 L * *", "2024-02-29 00:00:00"),
        ("0 0 29 2 1#5", "2044-02-29 00:00:00"),
    ],
)
def test_five_fields(cron: str, expected: str) -> None:
    """Minute, hour, day, month, weekday; a day OR a weekday where both are given; names, lists, last days."""
    assert f"{next_of(cron, NOW):%Y-%m-%d %H:%M:%S}" == expected


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("*/10 * * * * *", "2024-02-28 12:00:10"),
        ("30 0 0 * * *", "2024-02-29 00:00:30"),
        ("59 59 23 31 12 *", "2024-12-31 23:59:59"),
    ],
)
def test_six_fields_begin_with_seconds(cron: str, expected: str) -> None:
    """With six fields the first is the second, not the last."""
    assert f"{next_of(cron, NOW):%Y-%m-%d %H:%M:%S}" == expected


def test_cron_runs_in_its_zone() -> None:
    """The fields mean local time of the zone that is given, UTC without one."""
    assert next_of("0 8 * * *", NOW, "Asia/Kolkata") == datetime(2024, 2, 29, 2, 30, tzinfo=UTC)
    assert checked(cron="0 8 * * *").timezone == "UTC"


@pytest.mark.parametrize(
    ("cron", "spring", "autumn"),
    [
        ("0 3 * * *", ["03:00:00+02"], ["03:00:00+01"]),
        ("30 2 * * *", ["03:00:00+02"], ["02:30:00+02", "02:30:00+01"]),
        ("*/30 2 * * *", ["03:00:00+02"], ["02:00:00+02", "02:30:00+02", "02:00:00+01", "02:30:00+01"]),
        ("0 2,3 * * *", ["03:00:00+02"], ["02:00:00+02", "02:00:00+01", "03:00:00+01"]),
        ("59 1 * * *", ["01:59:00+01"], ["01:59:00+02"]),
    ],
)
def test_days_on_which_the_clock_changes(cron: str, spring: list[str], autumn: list[str]) -> None:
    """A local time that does not exist fires once, right after the gap; one that exists twice fires twice."""
    assert day_of(cron, SPRING) == spring
    assert day_of(cron, AUTUMN) == autumn


def test_every_hour_is_every_hour() -> None:
    """An hourly schedule has 23 occurrences on the short day, 25 on the long one, an hour apart."""
    assert len(day_of("30 * * * *", SPRING)) == 23
    assert len(day_of("30 * * * *", AUTUMN)) == 25


# The oracle: every minute of a day is looked at, by the time zone's own arithmetic.


def numbers(field: str, low: int, high: int) -> set[int]:
    """What a cron field stands for."""
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


@functools.lru_cache(maxsize=100)
def minutes_of(day: date, zone: str) -> list[datetime]:
    """Every minute of a local day, in order."""
    noon = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    local = ZoneInfo(zone)
    spread = (noon + timedelta(minutes=offset) for offset in range(-15 * 60, 15 * 60))
    return [moment for one in spread if (moment := one.astimezone(local)).date() == day]


def oracle(cron: str, start: datetime, zone: str) -> Iterator[datetime]:
    """Occurrences after *start* in the next 800 days."""
    minute, hour, day, month, weekday = cron.split()
    minutes, hours = numbers(minute, 0, 59), numbers(hour, 0, 23)
    days, months = numbers(day, 1, 31), numbers(month, 1, 12)
    weekdays = {number % 7 for number in numbers(weekday, 0, 7)}
    first = start.astimezone(ZoneInfo(zone)).date()
    for today in (first + timedelta(days=count) for count in range(800)):
        on_day, on_weekday = today.day in days, today.isoweekday() % 7 in weekdays
        is_day = (on_day and on_weekday) if "*" in {day, weekday} else (on_day or on_weekday)
        if today.month in months and is_day:
            yield from (
                moment
                for moment in minutes_of(today, zone)
                if moment.minute in minutes and moment.hour in hours and moment > start
            )


def listed(values: set[int]) -> str:
    """A field that lists values."""
    return ",".join(map(str, sorted(values)))


def field(low: int, high: int, *others: str) -> st.SearchStrategy[str]:
    """A star, one of *others*, or a list of some values, but not of all."""
    some = st.sets(st.integers(low, high), min_size=1, max_size=high - low).map(listed)
    return st.one_of(st.just("*"), st.sampled_from(others), some)


# Where both days are given, neither with a star: cron implementations agree on nothing else.
days = st.one_of(
    st.tuples(field(1, 31, "*/10", "28-31"), st.just("*")),
    st.tuples(st.just("*"), field(0, 6, "1-5", "7", "*/2")),
    st.tuples(field(1, 31, "28-31"), field(0, 6, "1-5", "7")),
)
expressions = st.builds(
    lambda minute, hour, month, day: f"{minute} {hour} {day[0]} {month} {day[1]}",
    field(0, 59, "*/7", "*/15", "10-20/5"),
    field(0, 23, "*/5", "1-3", "22-23"),
    field(1, 12, "*/4", "3", "10"),
    days,
)
around_changes = st.builds(
    lambda day, minute: datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(minutes=minute),
    st.sampled_from([SPRING, AUTUMN, date(2024, 2, 29), date(2024, 12, 31)]),
    st.integers(-30 * 60, 30 * 60),
)
any_time = st.integers(0, 365 * 86_400).map(lambda second: datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=second))


@given(expressions, st.one_of(around_changes, any_time), st.sampled_from(ZONES))
def test_the_next_three_are_the_oracles(cron: str, start: datetime, zone: str) -> None:
    """Any simple expression, anywhere in a year: the next occurrences are the next minutes that match."""
    expected = [moment for moment, _ in zip(oracle(cron, start, zone), range(3), strict=False)]
    assume(expected)
    rule, cursor, found = checked(cron=cron, timezone=zone), to_us(start), list[datetime]()
    for _ in expected:
        cursor = rule.after(cursor, cursor) or 0
        found.append(from_us(cursor).astimezone(ZoneInfo(zone)))
    if zone == BERLIN and SPRING in {moment.date() for moment in found}:
        gap_end = datetime(2024, 3, 31, 3, 0, tzinfo=ZoneInfo(BERLIN))  # the one more that the gap may add
        found = [moment for moment in found if moment != gap_end or moment in expected]
        expected = expected[: len(found)]
    assert found == expected


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("cron", ["0 */6 * * *", "15 8,20 13 1-11 5"])
def test_a_whole_year_is_the_oracles(cron: str, zone: str) -> None:
    """A year walked from occurrence to occurrence has exactly the oracle's, in order."""
    start, end = datetime(2024, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC)
    rule, cursor, found = checked(cron=cron, timezone=zone), to_us(start), list[datetime]()
    while (cursor := rule.after(cursor, cursor) or 0) < to_us(end):
        found.append(from_us(cursor))
    assert found == [moment for moment in oracle(cron, start, zone) if moment < end]


@given(st.floats(MIN_EVERY_S, 1e9), st.integers(0, 10**18))
def test_every_lies_in_the_future_and_on_the_grid(every_s: float, late_us: int) -> None:
    """However late, the next occurrence is after now, at most a step away, a whole number of steps from the cursor."""
    rule = checked(every_s=every_s)
    step_us = round(every_s * 1e6)
    following = rule.after(NOW_US, NOW_US + late_us)
    assert following is not None
    assert 0 < following - NOW_US - late_us <= step_us
    assert (following - NOW_US) % step_us == 0


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({}, "none of cron, every and at is given; exactly one is allowed"),
        ({"cron": "* * * * *", "at_s": 1.0}, "cron, at of cron, every and at is given; exactly one is allowed"),
        ({"every_s": 1.0, "timezone": "UTC"}, "timezone is 'UTC'; it is allowed with cron only"),
        ({"every_s": 0.05}, "every is 0.05 s; at least 0.1 s is allowed"),
        ({"at_s": -1e11}, "at is -1e+11; Unix seconds of the years 1 to 9999 are allowed"),
        (
            {"cron": "* * * * *", "timezone": "Mars/Base"},
            "timezone is 'Mars/Base'; an IANA name such as Europe/Berlin is allowed",
        ),
        ({"cron": "* * * * *", "timezone": ""}, "timezone is ''; an IANA name such as Europe/Berlin is allowed"),
        (
            {"cron": "* * * *"},
            f"cron is '* * * *'; {ALLOWED_CRON}",
        ),
        (
            {"cron": "61 * * * *"},
            f"cron is '61 * * * *': out of range; {ALLOWED_CRON}",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused(rule: dict[str, Any], message: str) -> None:
    """One line that names the thing, the value and what is allowed."""
    with pytest.raises(BadRequestError) as refused:
        checked(**rule)
    assert refused.value.message == message


@pytest.mark.parametrize(
    "cron",
    [
        "",
        " ",
        "@daily",
        "* * * * * * *",
        "a b c d e",
        "* 24 * * *",
        "*/0 * * * *",
        "* * * 13 *",
        "* * * * 8",
        "-1 * * * *",
        "60 * * * * *",
        "0 0 * * 5#6",
        "\0 * * * *",
        "١ * * * *",
        "R R * * *",
        "H(0-7) 2 * * *",
        "9" * 150 + " * * * *",
    ],
)
def test_bad_expressions_are_refused(cron: str) -> None:
    """Each is one line that begins with what was given, and does not grow with it; random times are none."""
    with pytest.raises(BadRequestError) as refused:
        checked(cron=cron)
    message = refused.value.message
    assert message.startswith(f"cron is {cron!r:.100}")
    assert "\n" not in message
    assert "\0" not in message
    assert "five fields are allowed" in message


@pytest.mark.parametrize("zone", ["../etc/passwd", "/etc/passwd", "Europe", "Europe/Berlin\0", "x" * 100, "tzdata.zi"])
def test_bad_zones_are_refused(zone: str) -> None:
    """What is no name of a zone is refused, paths and directories too."""
    with pytest.raises(BadRequestError, match=r"^timezone is "):
        checked(cron="* * * * *", timezone=zone)


@pytest.mark.parametrize("cron", ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "* * * 30 2 *"])
def test_a_day_that_never_comes_is_refused(cron: str) -> None:
    """An expression that is right in form but names no day is refused when the first occurrence is reckoned."""
    with pytest.raises(BadRequestError) as refused:
        checked(cron=cron).first(NOW_US)
    assert refused.value.message == f"cron is {cron!r}: it names no day that ever comes"


def due(**fields: Any) -> Due:
    """A stored schedule, as SQL may have made it."""
    return Due(
        **{
            "id": b"s" * 16,
            "kind": "cron",
            "cron": None,
            "timezone": None,
            "every_s": None,
            "cursor_us": NOW_US,
            "now_us": NOW_US,
            **fields,
        }
    )


@pytest.mark.parametrize(
    "fields", [{"cron": "nonsense", "timezone": "UTC"}, {"cron": "* * * * *", "timezone": "Mars/Base"}]
)
def test_a_stored_rule_that_cannot_be_followed_says_so(fields: dict[str, Any]) -> None:
    """A row made by hand, or a zone that is not known any more, is an error of that schedule and no other."""
    with pytest.raises(BadRequestError):
        Recurrence.stored(due(**fields)).after(NOW_US, NOW_US)


def test_a_stored_rule_that_ends_has_no_next() -> None:
    """Where no further day comes, the schedule has no next occurrence."""
    assert Recurrence.stored(due(cron="0 0 30 2 *", timezone="UTC")).after(NOW_US, NOW_US) is None


def test_a_stored_step_of_nothing_is_no_division_by_zero() -> None:
    """A step that rounds to nothing, made by hand, counts as the smallest that is allowed."""
    rule = Recurrence.stored(due(kind="every", every_s=1e-9))
    assert rule.after(NOW_US, NOW_US) == NOW_US + round(MIN_EVERY_S * SECOND_US)
