"""Where claims go on, and when they begin at the start again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pulse.store.rows import Claim, Level
from pulse_actors.dispatcher.claims import cursors
from pulse_actors.dispatcher.claims.cursors import BACK_S, FEW_TOPICS, Cursors, LevelStart


def claim(topic: str, priority: int, due_at: float) -> Claim:
    return Claim(bytes(16), 1, "n", topic, "{}", None, priority, due_at, 0, 0)


def test_a_claim_goes_on_where_the_last_one_ended() -> None:
    """Each level at the latest due time that was claimed, a little before; a cursor never goes back."""
    one = Cursors(0.5)
    one.claimed([claim("a", 1, 10.0), claim("a", 1, 12.0), claim("b", 3, 7.0), claim("a", 1, 11.0)])
    one.claimed([claim("a", 1, 9.0)])
    assert one.starts(("b", "a")) == [LevelStart("b", 3, 7.0 - BACK_S), LevelStart("a", 1, 12.0 - BACK_S)]
    assert one.starts(("a",)) == [LevelStart("a", 1, 12.0 - BACK_S)]
    assert one.starts(()) == []


def test_much_work_behind_a_cursor() -> None:
    """A full batch has found the first of it: the cursor goes back until all is claimed, then on."""
    one = Cursors(0.5)
    one.claimed([claim("a", 1, 100.0), claim("a", 2, 7.0), claim("b", 1, 50.0)], more=True)
    before = one.starts(("a", "b"))
    one.claimed([claim("a", 1, 9.0), claim("a", 1, 10.0), claim("b", 1, 60.0), claim("b", 1, 20.0)], more=True)
    assert one.starts(("a", "b")) == [before[0], LevelStart("a", 1, 10.0 - BACK_S), LevelStart("b", 1, 60.0 - BACK_S)]
    one.claimed([claim("a", 1, 8.0)], more=True)
    one.claimed([claim("a", 1, 20.0)], more=True)
    assert one.starts(("a",))[1] == LevelStart("a", 1, 20.0 - BACK_S)
    count = one.begin()
    one.learn(Level("a", 1), 30.0)
    one.exhausted(one.starts(("a",)), count)
    assert one.starts(("a",))[1] == LevelStart("a", 1, 20.0 - BACK_S), "there were news meanwhile"
    one.exhausted(("a",), one.begin())
    assert one.starts(("a",))[1] == LevelStart("a", 1, 100.0 - BACK_S)
    one.claimed([claim("a", 1, 5.0)], more=True)
    one.claimed([claim("a", 1, 120.0)])
    one.exhausted(one.starts(("a",)), one.begin())
    assert one.starts(("a",))[1] == LevelStart("a", 1, 120.0 - BACK_S)


def test_news_while_a_claim_is_made() -> None:
    """The claim may have missed them, so the cursor does not pass them."""
    one = Cursors(0.5)
    one.learn(Level("a", 1), 1.0)
    one.begin()
    one.learn(Level("a", 1), 12.0)
    one.learn(Level("a", 1), 14.0)
    one.claimed([claim("a", 1, 15.0)])
    assert one.starts(("a",)) == [LevelStart("a", 1, 12.0 - BACK_S)]
    one.begin()
    one.claimed([claim("a", 1, 15.0)])
    assert one.starts(("a",)) == [LevelStart("a", 1, 15.0 - BACK_S)]


def test_levels_are_served_by_priority_then_in_the_order_of_the_topics() -> None:
    one = Cursors(0.5)
    for level in (Level("a", 0), Level("b", 0), Level("c", 5), Level("b", 5)):
        one.learn(level)
    assert [(start.topic, start.priority) for start in one.starts(("b", "a", "c"))] == [
        ("b", 5), ("c", 5), ("b", 0), ("a", 0),
    ]  # fmt: skip


@pytest.mark.parametrize(("took_s", "soonest_s"), [(0.001, 0.004), (0.05, 0.2)])
def test_full_claims_take_a_share_of_the_time(took_s: float, soonest_s: float) -> None:
    """A fifth while they are cheap, however often one is wanted."""
    for want in (Cursors.want_full, Cursors.want_recent):
        one = Cursors(0.5)
        one.full_begins()
        one.full_done(0.0, took_s)
        want(one)
        end_s = took_s
        assert not one.is_full_due(end_s + 0.99 * soonest_s)
        assert one.window_due(end_s + 0.99 * soonest_s) is None
        assert one.pause_s(end_s) == pytest.approx(soonest_s)
        assert one.is_full_due(end_s + 1.01 * soonest_s)
        one.full_begins()
        assert not one.is_full_due(end_s + 1.01 * soonest_s)


def dear(took_s: float = 0.1) -> Cursors:
    """At 100 s, after a full claim that took so long, as others did for long."""
    one = Cursors(0.5)
    one.full_done(-2000.0 - took_s, -2000.0)
    one.full_begins()
    one.full_done(100.0 - took_s, 100.0)
    return one


@pytest.mark.parametrize(
    ("took_s", "wanted_s", "unwanted_s"), [(0.0501, 4.96, 50.0), (0.1, 9.9, 99.9), (0.5, 10.0, 499.5), (9.0, 10.0, 1e3)]
)
def test_a_dear_full_claim_is_rare(took_s: float, wanted_s: float, unwanted_s: float) -> None:
    """A hundredth of the time where it is wanted, a thousandth where it is not; news are no reason for one."""
    one = dear(took_s)
    for _ in range(2):
        assert not one.is_full_due(100.0 + 0.99 * unwanted_s)
        assert one.is_full_due(100.0 + 1.01 * unwanted_s)
        one.want_recent()
    one.want_full()
    assert not one.is_full_due(100.0 + 0.99 * wanted_s)
    assert one.is_full_due(100.0 + 1.01 * wanted_s)


def test_a_claim_that_was_slow_once_is_made_again_soon() -> None:
    """It may have waited for a lock: rarely only if all of them are slow."""
    one = Cursors(0.5)
    one.full_begins()
    one.full_done(0.0, 0.01)
    one.full_done(97.0, 100.0)
    assert not one.is_full_due(109.9)
    assert one.is_full_due(110.1)
    one.full_done(297.0, 300.0)
    assert not one.is_full_due(502.9)
    assert one.is_full_due(503.1)
    one.full_done(510.0, 510.01)
    one.full_done(597.0, 600.0)
    assert one.is_full_due(610.1)


def test_a_cursor_does_not_stay_at_a_job_that_no_claim_takes() -> None:
    """One that is set aside, or locked: each claim would walk over all dead entries behind it."""
    one, level = Cursors(0.5), Level("a", 0)
    one.learn(level, 1000.0)
    before = one.starts(["a"])
    one.found(level, 10.0)
    assert one.starts(["a"])[0].from_s == 10.0 - BACK_S
    one.exhausted(one.starts(["a"]), one.begin())
    assert one.starts(["a"]) == before


def test_one_that_is_wanted_is_made_again_soon_while_few_were_slow() -> None:
    """Work waits for it, so pauses become longer with each that is slow, instead of a hundred times as long at once."""
    one = Cursors(0.5)
    one.full_begins()
    one.full_done(0.0, 0.01)
    at_s = 1.0
    for pause_s in (0.1, 0.3, 0.7, 1.5, 3.1, 6.3, 9.9, 9.9):
        one.full_begins()
        one.full_done(at_s, at_s + 0.1)
        one.want_full()
        at_s += 0.1 + pause_s
        assert not one.is_full_due(at_s - 0.01)
        assert one.is_full_due(at_s + 0.01)


def test_windows_take_the_place_of_dear_full_claims() -> None:
    one = dear()
    assert one.window_due(100.0) == 2
    assert one.pause_s(100.0) == 0.0
    one.window_begins()
    one.window_done(2, 100.0, 100.01)
    assert one.window_due(101.0) is None
    assert one.pause_s(100.01) == pytest.approx(1.0)
    assert one.window_due(101.1) == 0
    one.window_done(0, 101.1, 101.11)
    assert one.window_due(102.0) is None
    assert one.window_due(110.1) == 1
    one.window_done(1, 110.1, 110.11)
    assert [one.window_due(at_s) for at_s in (111.0, 111.2, 120.2, 200.1)] == [None, 0, 1, 2]
    one.full_done(300.0, 300.04)
    assert one.window_due(1e6) is None, "they are cheap again"


def test_windows_take_a_share_of_the_time() -> None:
    """A fiftieth; a thousandth where everybody would wait for long. A long window has its own cost."""
    one = dear()
    one.window_done(0, 100.0, 100.04)
    one.window_done(1, 100.0, 100.01)
    one._next_s[2] = 1e9
    assert one.window_due(101.0) is None
    one.window_done(0, 100.0, 100.04)
    assert one.window_due(101.99) is None
    assert one.window_due(102.1) == 0
    one._next_s[:] = [1e9, 1e9, 0.0]
    one.window_done(2, 200.0, 200.5)
    assert one.window_due(201.4) is None
    assert one.window_due(201.6) == 0
    assert one.window_due(210.6) == 1
    assert one.window_due(699.0) == 1
    assert one.window_due(701.0) == 2
    one.window_done(2, 1000.0, 1009.0)
    assert [one.window_due(at_s) for at_s in (2008.0, 2010.0)] == [1, 2]
    one.window_done(0, 0.0, 0.05)
    assert one._next_s[0] == pytest.approx(2.5)


def test_news_are_looked_for_in_the_shortest_window() -> None:
    """At once, but for no more than a fifth of the time."""
    one = dear()
    one.window_done(2, 100.0, 100.01)
    one.want_recent()
    assert one.window_due(100.02) is None
    assert one.pause_s(100.01) == pytest.approx(0.04)
    assert one.window_due(100.06) == 0
    one.window_begins()
    one.want_recent()
    one.window_done(0, 100.06, 100.07)
    assert one.window_due(100.2) == 0, "they came while it was made"
    one.window_begins()
    one.window_done(0, 100.2, 100.21)
    assert one.window_due(100.3) is None


def test_a_window_looks_at_every_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the cursor where there is one, the last seconds where there is none."""
    monkeypatch.setattr(cursors, "PRIORITIES", (3, 2))
    one = Cursors(0.5)
    one.claimed([claim("b", 2, 1000.0)])
    one.learn(Level("a", 2))
    at_s = 1000.0 - BACK_S
    assert one.window(("a", "b"), 0, 5000.0) == [
        LevelStart("a", 3, None), LevelStart("b", 3, None), LevelStart("a", 2, None), LevelStart("b", 2, at_s - 2.0),
    ]  # fmt: skip
    assert one.window(("a", "b"), 1, 5000.0) == [
        LevelStart("a", 3, 4980.0), LevelStart("b", 3, 4980.0), LevelStart("a", 2, 4980.0),
        LevelStart("b", 2, at_s - 20.0),
    ]  # fmt: skip


def test_a_window_of_many_topics() -> None:
    """Only the priorities that somebody uses, and the usual one: each level costs a descent of the index."""
    one = Cursors(0.5)
    one.claimed([claim("a", 7, 1000.0), claim("b", -3, 1000.0)])
    few = [str(number) for number in range(cursors.FEW_TOPICS)]
    assert len(one.window(few, 0, 0.0)) == 201 * len(few)
    many = [*few, "a"]
    found = one.window(many, 0, 0.0)
    assert [start.priority for start in found[:: len(many)]] == [7, 0, -3]
    assert len(found) == 3 * len(many)


def test_a_full_claim_is_made_at_every_poll_though_nobody_tells_of_work() -> None:
    one = Cursors(0.5)
    one.full_begins()
    one.full_done(100.0, 100.001)
    assert not one.is_full_due(100.4)
    assert one.pause_s(100.4) == pytest.approx(0.101)
    assert one.is_full_due(100.51)


def test_what_comes_up_during_a_full_claim_brings_another_one() -> None:
    one = Cursors(60.0)
    one.full_begins()
    one.want_full()
    one.full_done(100.0, 100.001)
    assert one.is_full_due(101.0)


MANY = tuple(f"t{number}" for number in range(FEW_TOPICS + 1))


def topics_of(one: Cursors, topics: Sequence[str] = MANY) -> list[str]:
    return [start.topic for start in one.starts(topics)]


def test_of_many_topics_only_those_with_work_are_named() -> None:
    one = Cursors(0.5)
    for level in (Level("t3", 0), Level("t1", 0), Level("t2", 7), Level("elsewhere", 9)):
        one.learn(level)
    one.learn(Level("t1", 0), 5.0)
    assert topics_of(one) == ["t2", "t3", "t1"]
    starts, count = one.starts(MANY), one.begin()
    one.learn(Level("t3", 0))
    one.exhausted(starts, count)
    assert topics_of(one) == ["t3"], "it had news while the claim was made"
    one.claimed([claim("t1", 0, 6.0)])
    assert one.starts(MANY) == [LevelStart("t3", 0, None), LevelStart("t1", 0, 6.0 - BACK_S)]
    one.learn(Level("t1", -5))
    one.exhausted(one.starts(MANY)[:2], one.begin())
    assert one.starts(MANY) == [LevelStart("t1", -5, None)], "that priority was not looked at"
    one.exhausted(one.starts(MANY), one.begin())
    assert topics_of(one) == []
    assert len(one.starts(MANY[:4])) == 4, "of few all that are known"


def test_of_many_topics_what_was_claimed_comes_behind_the_others_of_its_priority() -> None:
    one = Cursors(0.5)
    for topic in ("t1", "t2", "t3"):
        one.learn(Level(topic, 0))
    one.claimed([claim("t1", 0, 6.0)])
    one.learn(Level("t3", 0))
    assert topics_of(one) == ["t2", "t3", "t1"]
    one.claimed([claim("t2", 0, 6.0), claim("t3", 0, 6.0)])
    assert topics_of(one) == ["t1", "t2", "t3"]


def test_work_anywhere_is_work_at_all_known_levels() -> None:
    """A gate has opened, say: what was empty when last claimed may not be."""
    one = Cursors(0.5)
    one.claimed([claim("t1", 0, 6.0), claim("t2", 3, 7.0)])
    one.exhausted(one.starts(MANY), one.begin())
    count = one.begin()
    one.want_full()
    assert one.starts(MANY) == [LevelStart("t2", 3, 7.0 - BACK_S), LevelStart("t1", 0, 6.0 - BACK_S)]
    one.exhausted(one.starts(MANY), count)
    assert len(one.starts(MANY)) == 2


def emptied(*topics: str) -> Cursors:
    one = Cursors(0.5)
    one.full_begins()
    one.learn(Level("a", 1))
    count = one.begin(100.0)
    one.claimed([claim("a", 1, 10.0)])
    one.exhausted(topics, count)
    one.emptied(topics)
    return one


def test_topics_in_which_nothing_waits() -> None:
    """Until the next poll, in whatever order they are named; it says nothing of other sets of topics."""
    one = emptied("a", "b")
    assert one.is_empty(("b", "a"), 100.49)
    assert not one.is_empty(("b", "a"), 100.5)
    assert not one.is_empty(("a",), 100.0)


def full_claim(one: Cursors) -> None:
    one.full_begins()
    one.full_done(100.1, 100.1)


@pytest.mark.parametrize("news", [
    lambda one: one.learn(Level("b", -3)), lambda one: one.found(Level("a", 1), 5.0),
    lambda one: one.claimed([claim("a", 1, 11.0)]), Cursors.want_full, Cursors.want_recent, full_claim,
    Cursors.window_begins,
])  # fmt: skip
def test_work_may_be_in_topics_again(news: Callable[[Cursors], None]) -> None:
    """After news of them, or of any topic; after a claim that left more; or a look everywhere without room."""
    one = emptied("a", "b")
    news(one)
    assert not one.is_empty(("a", "b"), 100.2)


def test_news_during_a_claim_that_found_all() -> None:
    """It may have missed them, with a level or without."""
    wants: list[Callable[[Cursors], None]] = [Cursors.want_recent, Cursors.want_full]
    for news in (lambda one: one.learn(Level("c", 1)), *wants):
        one = emptied("a")
        count = one.begin(100.1)
        news(one)
        one.exhausted(("c",), count)
        one.emptied(("c",))
        assert not one.is_empty(("c",), 100.2)


def test_what_a_survey_finds() -> None:
    one = Cursors(0.5)
    one.learn(Level("t1", 0))
    one.claimed([claim("t2", 0, 60.0)])
    for topic in ("t1", "t2", "t3"):
        one.found(Level(topic, 0), 50.0)
    assert {start.from_s for start in one.starts(MANY)} == {50.0 - BACK_S}
    one.found(Level("t1", 0), 55.0)
    assert one.starts(("t1",)) == [LevelStart("t1", 0, 50.0 - BACK_S)]


@pytest.mark.parametrize("want", [Cursors.want_full, Cursors.want_recent])
def test_a_survey_goes_on_until_its_end(monkeypatch: pytest.MonkeyPatch, want: Callable[[Cursors], None]) -> None:
    """Part by part, a share of the time, wanted or not; what is wanted meanwhile begins another one."""
    monkeypatch.setattr(cursors, "SURVEY", 2)
    one = Cursors(60.0)
    for wanted in (False, True):
        one.full_begins()
        assert one.survey_from() == cursors.FIRST
        one.surveyed([Level("a", 1), Level("a", 0)])
        assert one.survey_from() == Level("a", 0)
        one.full_done(100.0, 100.01)
        assert not one.is_full_due(100.02)
        assert one.pause_s(100.01) == pytest.approx(0.04)
        assert one.is_full_due(100.06)
        if wanted:
            want(one)
        one.full_begins()
        one.surveyed([Level("b", 0)])
        assert one.survey_from() == cursors.FIRST
        one.full_done(100.1, 100.11)
        assert one.is_full_due(101.0) is wanted
    one.full_begins()
    one.surveyed([])
    one.full_done(102.0, 102.01)
    assert not one.is_full_due(103.0)


def test_what_is_forgotten_is_forgotten_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors, "MAX_LEVELS", 2)
    one = Cursors(0.5)
    one.learn(Level("t1", 0))
    one.claimed([claim("t2", 1, 1.0)])
    one.exhausted(one.starts(MANY)[:1], one.begin())
    for level in (Level("t3", 0), Level("t3", 1), Level("t1", 2)):
        one.learn(level)
    assert [*one.starts(MANY)] == [LevelStart("t1", 2, None), LevelStart("t3", 1, None)]
    assert one.starts(("t1", "t2", "t3")) == one.starts(MANY)
    assert set(one._priorities) == {"t1", "t3"}


def test_where_many_topics_age_the_oldest_come_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that may rank high by its waiting is named before higher priorities, if not all levels fit."""
    monkeypatch.setattr(cursors, "LEVELS_MAX", 3)
    one = Cursors(0.5)
    for topic, priority, due_s in (
        ("t1", 9, None),
        ("t2", 8, 990.0),
        ("t3", 7, 990.0),
        ("t4", 0, 100.0),
        ("t5", 0, 900.0),
    ):
        one.learn(Level(topic, priority), due_s)
    assert topics_of(one) == ["t1", "t2", "t3"]
    ageing_s = {"t1": 10.0, "t4": 10.0, "t5": 10.0}
    assert [start.topic for start in one.starts(MANY, ageing_s, 1000.0)] == ["t4", "t5", "t1"]
    assert [start.topic for start in one.starts(MANY, {"t5": 1000.0}, 1000.0)] == ["t1", "t2", "t3"]
    assert len(one.starts(MANY[:3], ageing_s, 1000.0)) == 2, "of few all that are known"


def test_where_nothing_is_to_wait_for_a_full_claim_is_due() -> None:
    """Also where the sum and the difference of two times are rounded differently: a loop would turn without a pause."""
    for step in range(1000):
        one, ended_s = Cursors(1.0), 1023.5 + step * 0.00017
        one.full_begins()
        one.full_done(ended_s, ended_s)
        at_s = ended_s + one.pause_s(ended_s)
        assert one.is_full_due(at_s) == (one.pause_s(at_s) == 0.0)
