"""What a schedule's cursor does next, on time and after an absence, by each policy."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulse.errors import BadRequestError
from pulse.store.rows import Due, Firing, NextOccurrences, to_us
from pulse_actors.scheduler import catchup
from pulse_actors.scheduler.catchup import GRACE_S, MAX_CATCH_UP, firing_of, reckoned_of
from pulse_actors.shared.recurrence import Recurrence, jittered_us

ID: Final = uuid.UUID("0190163d-8694-739b-aea5-966c26f8ad92")
NOON_US: Final = to_us(datetime(2024, 2, 28, 12, 0, tzinfo=UTC))
SECOND_US: Final = 1_000_000
MINUTE_US: Final = 60 * SECOND_US
FEW: Final = 100  # occurrences that are made up for, where a test needs more than that


def due(late_s: float, **fields: Any) -> Due:
    """A schedule of once a minute with its cursor at noon, seen some seconds later."""
    base: dict[str, Any] = {"kind": "cron", "cron": "* * * * *", "timezone": "UTC", "cursor_us": NOON_US}
    if fields.get("kind", "cron") != "cron":
        base |= {"cron": None, "timezone": None}
    return Due(ID.bytes, now_us=NOON_US + round(late_s * SECOND_US), **{**base, **fields})


def minutes(firing: Firing) -> tuple[int | None, int | None]:
    """The occurrence that fires and the next cursor, in minutes from noon."""
    return tuple(  # type: ignore[return-value] # pyright: ignore[reportReturnType]
        None if one is None else (one - NOON_US) // MINUTE_US for one in (firing.occurrence_us, firing.next_us)
    )


def test_on_time() -> None:
    found = firing_of(due(0.2, following_us=NOON_US + 5 * MINUTE_US, is_reckoned=True, revision=3))
    assert found == Firing(ID.bytes, NOON_US, NOON_US + 5 * MINUTE_US, NOON_US, None, 3)


def test_what_was_not_reckoned_yet_is() -> None:
    assert minutes(firing_of(due(0.2))) == (0, 1)
    assert minutes(firing_of(due(0.2, is_reckoned=True))) == (0, None)


@pytest.mark.parametrize("following", [-5, 0, 100])
def test_what_was_reckoned_for_another_cursor_is_not_believed(following: int) -> None:
    """A cursor that was moved by hand has other successors: stored ones before it, or of an old read, do not count."""
    late_s = 0.2 if following <= 0 else GRACE_S + 1
    assert minutes(firing_of(due(late_s, following_us=NOON_US + following * MINUTE_US, is_reckoned=True))) == (0, 1)


def test_an_every_knows_two_occurrences() -> None:
    found = firing_of(due(0.2, kind="every", every_s=60.0))
    assert (minutes(found), found.following_us) == ((0, 1), NOON_US + 2 * MINUTE_US)
    last = firing_of(due(0.2, kind="every", every_s=60.0, ends_us=NOON_US + MINUTE_US))
    assert (minutes(last), last.following_us) == ((0, 1), None)


def test_at_and_dense_ones() -> None:
    assert minutes(firing_of(due(7200.0, kind="at", at_us=NOON_US))) == (0, None)
    assert firing_of(due(0.35, kind="every", every_s=0.1, catch_up="skip")).occurrence_us == NOON_US + 300_000


@pytest.mark.parametrize("rule", [{}, {"kind": "every", "every_s": 60.0}])
def test_latest(rule: dict[str, Any]) -> None:
    for minute in (1, 5, 3000):
        found = firing_of(due(minute * 60 + 59.9, **rule))
        assert (minutes(found), found.passed) == ((minute, minute + 1), 1)
    assert minutes(firing_of(due(59.999, **rule))) == (0, 1)
    assert firing_of(due(59.999, **rule)).passed == 0


@pytest.mark.parametrize("rule", [{}, {"kind": "every", "every_s": 60.0}])
def test_skip(rule: dict[str, Any]) -> None:
    """Occurrences later than the grace do not fire; the newest within it does."""
    assert minutes(firing_of(due(GRACE_S, **rule, catch_up="skip"))) == (0, 1)
    assert minutes(firing_of(due(GRACE_S + 0.001, **rule, catch_up="skip"))) == (None, 1)
    for late_s, fires in ((299.0, None), (300.0, 5), (300.0 + GRACE_S, 5), (300.1 + GRACE_S, None)):
        found = firing_of(due(late_s, **rule, catch_up="skip"))
        assert (minutes(found), found.passed) == ((fires, 5 if late_s < 300 else 6), 1)
    assert minutes(firing_of(due(7200.0, kind="at", at_us=NOON_US, catch_up="skip"))) == (None, None)


@pytest.mark.rest
@pytest.mark.parametrize("rule", [{}, {"kind": "every", "every_s": 60.0}])
def test_all(rule: dict[str, Any]) -> None:
    assert minutes(firing_of(due(300.0, **rule, catch_up="all"))) == (0, 1)
    last = MAX_CATCH_UP - 1
    bound = firing_of(due(last * 60 + 1, **rule, catch_up="all"))
    assert (minutes(bound), bound.passed) == ((0, 1), 0)
    beyond = firing_of(due((last + 50) * 60 + 1, **rule, catch_up="all"))
    assert (minutes(beyond), beyond.passed) == ((50, 51), 1)


@pytest.mark.parametrize("rule", [{}, {"cron": "0 * * * *"}, {"kind": "every", "every_s": 60.0}])
def test_all_goes_through_nothing(rule: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recurrence, "newest", None)
    assert minutes(firing_of(due((MAX_CATCH_UP - 1) * 60, **rule, catch_up="all")))[0] == 0


@pytest.mark.parametrize("rule", [{}, {"kind": "every", "every_s": 60.0}], ids=["cron", "every"])
@pytest.mark.parametrize("catch_up", ["latest", "skip", "all"])
@mock.patch.object(catchup, "MAX_CATCH_UP", FEW)
@given(identity=st.binary(min_size=16, max_size=16), late_s=st.floats(0, 10_000), jitter_s=st.floats(0.1, 60))
@example(ID.bytes, 7 * 60 + 30.0, 60.0)  # the seventh is due at 7 min 59 s
def test_jitter(rule: dict[str, Any], catch_up: str, identity: bytes, late_s: float, jitter_s: float) -> None:
    """An occurrence is missed when its own time has passed, jitter included: until then it waits."""
    own = [jittered_us(identity, NOON_US + minute * MINUTE_US, jitter_s) for minute in range(170)]
    now_us = own[0] + round(late_s * SECOND_US)
    found = firing_of(replace(due(0.0, **rule, catch_up=catch_up), id=identity, now_us=now_us, jitter_s=jitter_s))
    come = [minute for minute, own_us in enumerate(own) if own_us <= now_us]
    oldest_us = now_us - round(GRACE_S * SECOND_US)
    chosen = come[-FEW:][0] if catch_up == "all" else come[-1]
    fires = None if catch_up == "skip" and own[chosen] < oldest_us else chosen
    assert minutes(found) == (fires, chosen + 1)


def test_occurrences_fire_in_their_order() -> None:
    """After a jump of the clock the next occurrence may be due before the one before it: it waits."""
    hourly: dict[str, Any] = {"cron": "55 * * * *", "timezone": "Europe/Berlin", "jitter_s": 3600.0}
    moments = ((30, 22, 55), (30, 23, 55), (31, 0, 55), (31, 1, 0))  # 1:55, and 2:55, which does not exist
    first_us, second_us, third_us, fourth_us = (to_us(datetime(2024, 3, *one, tzinfo=UTC)) for one in moments)
    identity, own_us = next(
        (one, own_us)
        for one in (number.to_bytes(16) for number in range(100))
        if (own_us := jittered_us(one, fourth_us, 3600.0)) < jittered_us(one, third_us, 3600.0)
    )
    found = firing_of(replace(due(0.0, **hourly, cursor_us=first_us), id=identity, now_us=own_us))
    assert (found.occurrence_us, found.next_us) == (second_us, third_us)


@pytest.mark.parametrize(
    ("rule", "interval"),
    [({"kind": "every", "every_s": 60.0}, "60"), ({"cron": "0 9,10 * * *", "jitter_s": 3601.0}, "3600")],
)
def test_a_jitter_longer_than_the_interval(rule: dict[str, Any], interval: str) -> None:
    schedule = due(30.0, **{"jitter_s": 61.0, **rule})
    message = f"jitter_s is {schedule.jitter_s:g}; at most the interval, {interval} s, is allowed"
    assert reckoned_of(schedule).error == message
    with pytest.raises(BadRequestError, match=message):
        firing_of(schedule)


def test_reckoning() -> None:
    found = reckoned_of(due(30.0, cursor_us=None, revision=2))
    assert found == NextOccurrences(ID.bytes, None, 2, NOON_US + MINUTE_US, NOON_US + 2 * MINUTE_US)
    assert reckoned_of(due(300.0)) == NextOccurrences(ID.bytes, NOON_US, 0, NOON_US, NOON_US + MINUTE_US)
    at = reckoned_of(due(30.0, cursor_us=None, kind="at", at_us=5))
    assert at == NextOccurrences(ID.bytes, None, 0, 5, None)


@pytest.mark.parametrize(("rule", "error"), [
    ({"cron": "0 0 30 2 *"}, "cron is '0 0 30 2 *': it names no day that ever comes; one that comes is allowed"),
    ({"timezone": "Mars/Base"}, "timezone is 'Mars/Base'; an IANA name such as Europe/Berlin is allowed"),
])  # fmt: skip
def test_what_cannot_be_reckoned_says_why(rule: dict[str, Any], error: str) -> None:
    found = reckoned_of(due(30.0, cursor_us=None, **rule))
    assert found == NextOccurrences(ID.bytes, None, 0, None, None, error)
    with pytest.raises(BadRequestError, match="has no cursor yet"):
        firing_of(due(30.0, cursor_us=None))


@pytest.mark.parametrize("rule", [{}, {"kind": "every", "every_s": 60.0}], ids=["cron", "every"])
def test_an_end_that_was_passed_while_everything_was_down(rule: dict[str, Any]) -> None:
    ended = {**rule, "ends_us": NOON_US + 5 * MINUTE_US}
    assert minutes(firing_of(due(7200.0, **ended))) == (5, None)
    assert minutes(firing_of(due(7200.0, catch_up="all", **ended))) == (0, 1)
    assert minutes(firing_of(due(7200.0, catch_up="skip", **ended))) == (None, None)
    assert minutes(firing_of(due(130.0, catch_up="all", **ended))) == (0, 1)


def test_the_end_of_the_calendar() -> None:
    late_us = to_us(datetime(9990, 1, 1, tzinfo=UTC))
    found = reckoned_of(due(0.0, kind="every", every_s=1e9, cursor_us=None, starts_us=late_us))
    assert (found.next_us, found.following_us, found.error) == (late_us, None, None)
    assert firing_of(due(0.0, kind="every", every_s=1e9, cursor_us=late_us, following_us=None)).next_us is None
