"""Where claims go on, and when they begin at the start again."""

from __future__ import annotations

import pytest

from pulse.store.rows import Claim, Level
from pulse_actors.dispatcher import cursors
from pulse_actors.dispatcher.cursors import BACK_S, Cursors, Start


def claim(topic: str, priority: int, due_at: float) -> Claim:
    """A claimed job."""
    return Claim(bytes(16), 1, "n", topic, "{}", None, priority, due_at, 0, 0)


def test_a_claim_goes_on_where_the_last_one_ended() -> None:
    """Each level at the latest due time that was claimed, a little before; a cursor never goes back."""
    one = Cursors(0.5)
    one.claimed([claim("a", 1, 10.0), claim("a", 1, 12.0), claim("b", 3, 7.0), claim("a", 1, 11.0)])
    one.claimed([claim("a", 1, 9.0)])
    assert one.starts(("b", "a")) == [Start("b", 3, 7.0 - BACK_S), Start("a", 1, 12.0 - BACK_S)]
    assert one.starts(("a",)) == [Start("a", 1, 12.0 - BACK_S)]
    assert one.starts(()) == []


def test_levels_are_served_by_priority_then_in_the_order_of_the_topics() -> None:
    """As a full claim serves them."""
    one = Cursors(0.5)
    for level in (Level("a", 0), Level("b", 0), Level("c", 5), Level("b", 5)):
        one.learn(level)
    assert [(start.topic, start.priority) for start in one.starts(("b", "a", "c"))] == [
        ("b", 5),
        ("c", 5),
        ("b", 0),
        ("a", 0),
    ]


def test_news_of_a_known_level_change_nothing() -> None:
    """New work lies ahead of its cursor; of a level that is not known, only the last seconds are looked at."""
    one = Cursors(0.5)
    one.learn(Level("a", 1))
    assert one.starts(("a",)) == [Start("a", 1, None)]
    one.claimed([claim("a", 1, 12.0)])
    one.learn(Level("a", 1))
    one.learn(Level("a", 1), 13.0)
    assert one.starts(("a",)) == [Start("a", 1, 12.0 - BACK_S)]


def test_work_that_was_due_long_ago() -> None:
    """A job may be submitted with a time in the past: the cursor goes back to it, and on behind it."""
    one = Cursors(0.5)
    one.claimed([claim("a", 1, 12.0)])
    one.learn(Level("a", 1), 1.0)
    one.learn(Level("b", 1), 2.0)
    assert one.starts(("a", "b")) == [Start("a", 1, 1.0 - BACK_S), Start("b", 1, 2.0 - BACK_S)]
    one.claimed([claim("a", 1, 1.0), claim("a", 1, 13.0)])
    assert one.starts(("a",)) == [Start("a", 1, 13.0 - BACK_S)]


def test_the_first_claim_is_a_full_one() -> None:
    """Nothing is known yet."""
    assert Cursors(0.5).is_full_due(0.0)


@pytest.mark.parametrize(
    ("took_s", "soonest_s"),
    [(0.001, 0.004), (0.05, 0.2), (0.1, 9.9)],  # a fifth of the time while it is cheap, a hundredth when it is not
)
def test_full_claims_take_a_share_of_the_time(took_s: float, soonest_s: float) -> None:
    """However often one is wanted."""
    one = Cursors(0.5)
    one.full_begins()
    one.full_done(100.0, 100.0 + took_s)
    one.want_full()
    end_s = 100.0 + took_s
    assert not one.is_full_due(end_s + 0.99 * soonest_s)
    assert one.pause_s(end_s) == pytest.approx(soonest_s)
    assert one.is_full_due(end_s + 1.01 * soonest_s)


def test_a_full_claim_is_made_at_every_poll() -> None:
    """It finds what nobody has told of."""
    one = Cursors(0.5)
    one.full_begins()
    one.full_done(100.0, 100.001)
    assert not one.is_full_due(100.4)
    assert one.pause_s(100.4) == pytest.approx(0.101)
    assert one.is_full_due(100.51)


def test_what_comes_up_during_a_full_claim() -> None:
    """The claim may have looked there before: another one follows."""
    one = Cursors(60.0)
    one.full_begins()
    one.want_full()
    one.full_done(100.0, 100.001)
    assert one.is_full_due(101.0)


def test_levels_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has been known for longest is forgotten; full claims find it."""
    monkeypatch.setattr(cursors, "KNOWN_MAX", 3)
    one = Cursors(0.5)
    for priority in range(5):
        one.learn(Level("a", priority))
    one.claimed([claim("a", 9, 1.0)])
    assert [start.priority for start in one.starts(("a",))] == [9, 4, 3]


def test_a_level_that_is_known_without_a_cursor() -> None:
    """It is looked at in the last seconds already: a due time changes nothing of that."""
    one = Cursors(0.5)
    one.learn(Level("a", 1))
    one.learn(Level("a", 1), 5.0)
    assert one.starts(("a",)) == [Start("a", 1, None)]


def test_a_known_level_needs_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first claim at a level that was told of forgets no other one."""
    monkeypatch.setattr(cursors, "KNOWN_MAX", 3)
    one = Cursors(0.5)
    for priority in range(3):
        one.learn(Level("a", priority))
    one.claimed([claim("a", 1, 1.0)])
    assert [start.priority for start in one.starts(("a",))] == [2, 1, 0]
