"""When schedules occur: once, every so often, by cron; with start, end and jitter; and what requests are refused."""

from __future__ import annotations

import functools
import re
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse.errors import BadRequestError
from pulse.store.rows import to_us
from pulse_actors.shared.cron import ALLOWED_CRON
from pulse_actors.shared.recurrence import MAX_JITTER_S, MIN_EVERY_S, Recurrence, RecurrenceInput, jittered_us

NOW: Final = datetime(2024, 2, 28, 12, 0, tzinfo=UTC)
NOW_US: Final = to_us(NOW)
SECOND_US: Final = 1_000_000
DAY_US: Final = 86_400 * SECOND_US


def checked(**when: Any) -> Recurrence:
    return Recurrence.checked(RecurrenceInput(**when))


def test_at_occurs_once() -> None:
    rule = checked(at_s=1_700_000_000.25)
    assert rule.kind == "at"
    assert rule.first(NOW_US) == 1_700_000_000_250_000
    assert rule.after(1_700_000_000_250_000) is None
    assert rule.newest(1_700_000_000_250_000, NOW_US, 5) == [1_700_000_000_250_000]


def test_where_every_begins() -> None:
    rule = checked(every_s=90.0)
    first_us = NOW_US + 90 * SECOND_US
    assert (rule.first(NOW_US), rule.after(first_us)) == (first_us, first_us + 90 * SECOND_US)
    rule = checked(every_s=90.0, starts_s=NOW.timestamp() + 7)
    firsts_us = [rule.first(NOW_US + late_s * SECOND_US) for late_s in (0, 7, 1000)]
    assert firsts_us == [NOW_US + late_s * SECOND_US for late_s in (7, 97, 7 + 12 * 90)]


def test_cron_begins_behind_its_start() -> None:
    start = datetime(2024, 3, 5, 3, 0, tzinfo=UTC)
    rule = checked(cron="0 3 * * *", starts_s=start.timestamp())
    assert rule.first(NOW_US) == to_us(start)
    assert rule.first(to_us(start)) == to_us(start) + DAY_US
    assert checked(cron="0 3 * * *").timezone == "UTC"


@pytest.mark.parametrize("rule", [{"cron": "0 3 * * *"}, {"every_s": 86_400.0, "starts_s": NOW.timestamp() - 9 * 3600}])
def test_the_end(rule: dict[str, Any]) -> None:
    end = datetime(2024, 3, 2, 3, 0, tzinfo=UTC)
    found = [to_us(datetime(2024, 2, 29, 3, 0, tzinfo=UTC))]
    bounded = checked(**rule, ends_s=end.timestamp())
    assert bounded.first(NOW_US) == found[0]
    assert list(bounded.following(found[0])) == [found[0] + DAY_US, to_us(end)]
    assert bounded.after(to_us(end)) is None
    with pytest.raises(BadRequestError, match=r"^ends_at is 2024-03-02T03:00:00\+00:00: no occurrence comes before it"):
        bounded.first(to_us(end))


@given(st.floats(MIN_EVERY_S, 1e9), st.integers(0, 10**17))
def test_every_lies_in_the_future_and_on_the_grid(every_s: float, late_us: int) -> None:
    rule = checked(every_s=every_s)
    step_us = round(every_s * 1e6)
    newest = rule.newest(NOW_US, NOW_US + late_us, 3)
    following = rule.after(newest[-1])
    assert following is not None
    assert 0 < following - NOW_US - late_us <= step_us
    assert (following - NOW_US) % step_us == 0
    assert newest == [newest[-1] - back * step_us for back in reversed(range(len(newest)))]
    assert len(newest) == min(3, late_us // step_us + 1)


def test_a_clock_behind_the_cursor_does_not_repeat() -> None:
    for rule in (checked(every_s=1.0), checked(cron="* * * * *")):
        assert rule.newest(NOW_US, NOW_US - 3600 * SECOND_US, 5) == [NOW_US]


@functools.cache
def occurrences(cron: str) -> list[int]:
    rule = checked(cron=cron)
    cursor = rule.after(to_us(datetime(2024, 2, 26, tzinfo=UTC)))
    assert cursor is not None
    every = [cursor]
    while (following := rule.after(every[-1])) is not None and following <= cursor + 2 * DAY_US + 7:
        every.append(following)
    return every


@pytest.mark.rest
@pytest.mark.parametrize(
    "cron",
    ["0 3 * * *", "*/30 * * * * *", "* * 28 2 *", "* 9 1 * *", "30 2 29 2 *", "*/20 * * 27 2 *", "0 0,6 * * 1-5"],
)
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_the_newest_of_many(cron: str, limit: int) -> None:
    """Missed ones are found from the new end, with the same result."""
    every = occurrences(cron)
    end = every[0] + 2 * DAY_US + 7
    assert checked(cron=cron).newest(every[0], end, limit) == every[-limit:]


def test_the_newest_after_years() -> None:
    rule = checked(cron="* * * 1 1 *")
    cursor = to_us(datetime(1990, 1, 1, tzinfo=UTC))
    last = to_us(datetime(2024, 1, 1, 23, 59, 59, tzinfo=UTC))
    assert rule.newest(cursor, NOW_US, 2) == [last - SECOND_US, last]


@given(st.binary(min_size=16, max_size=16), st.integers(0, 2**50), st.floats(0, MAX_JITTER_S))
def test_jitter(schedule_id: bytes, occurrence_us: int, jitter_s: float) -> None:
    found = jittered_us(schedule_id, occurrence_us, jitter_s)
    assert 0 <= found - occurrence_us <= jitter_s * 1e6
    assert found == jittered_us(schedule_id, occurrence_us, jitter_s)


def test_jitter_spreads() -> None:
    found = [jittered_us(number.to_bytes(16, "big"), NOW_US, 60.0) - NOW_US for number in range(600)]
    assert {one // (6 * SECOND_US) for one in found} == set(range(10))


@pytest.mark.parametrize(("rule", "message"), [
    ({}, "none of cron, every and at is given; exactly one is allowed"),
    ({"cron": "* * * * *", "at_s": 1.0}, "cron, at of cron, every and at is given; exactly one is allowed"),
    ({"every_s": 1.0, "timezone": "UTC"}, "timezone is 'UTC'; it is allowed with cron only"),
    ({"every_s": 0.05}, "every is 0.05 s; 0.1 to 1e+09 s is allowed"),
    ({"every_s": 2e9}, "every is 2e+09 s; 0.1 to 1e+09 s is allowed"),
    ({"every_s": float("nan")}, "every is nan s; 0.1 to 1e+09 s is allowed"),
    ({"every_s": 1.0, "jitter_s": -1.0}, "jitter_s is -1; 0 to 86400 s is allowed"),
    ({"every_s": 1.0, "jitter_s": 86401.0}, "jitter_s is 86401; 0 to 86400 s is allowed"),
    ({"every_s": 60.0, "jitter_s": 61.0}, "jitter_s is 61; at most the interval, 60 s, is allowed"),
    ({"cron": "0 9,10 * * *", "jitter_s": 4e3}, "jitter_s is 4000; at most the interval, 3600 s, is allowed"),
    ({"at_s": -1e11}, "at is -1e+11; Unix seconds of the years 1 to 9999 are allowed"),
    ({"every_s": 1.0, "starts_s": 1e12}, "starts_at is 1e+12; Unix seconds of the years 1 to 9999 are allowed"),
    (
        {"every_s": 1.0, "starts_s": 60.0, "ends_s": 59.0},
        (
            "ends_at is 1970-01-01T00:00:59+00:00, before starts_at, 1970-01-01T00:01:00+00:00; "
            "a time from starts_at on is allowed"
        ),
    ),
    ({"at_s": 1.0, "ends_s": 5.0}, "starts_at or ends_at is given; they are allowed with cron and every only"),
    ({"cron": "61 * * * *"}, f"cron is '61 * * * *': out of range; {ALLOWED_CRON}"),
])  # fmt: skip
def test_what_cannot_be_followed_is_refused(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequestError, match=f"^{re.escape(message)}$"):
        checked(**rule).first(NOW_US)
