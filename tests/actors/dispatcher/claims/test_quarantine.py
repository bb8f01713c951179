"""Topics whose claims fail are left alone for a while, by themselves."""

from __future__ import annotations

from pulse.store.failures import STUBBORN
from pulse_actors.dispatcher.claims.quarantine import APART_S, LONGEST_S, REFUSED_S, SHORTEST_S, Quarantine
from pulse_actors.dispatcher.workers.registry import TopicWorkers


def serving(*topics: str) -> TopicWorkers:
    return TopicWorkers(topics, {})


def test_what_may_have_passed_is_tried_again_later_each_time() -> None:
    quarantine, now_s, pauses = Quarantine(), 100.0, list[float]()
    for _ in range(6):
        assert not quarantine.holds(("a",), now_s)
        pauses.append(quarantine.failed(("a",), now_s, lasts=False))
        assert quarantine.holds(("a",), now_s + pauses[-1] - 0.001)
        now_s += pauses[-1]
    assert pauses == [SHORTEST_S, 1.0, 2.0, 4.0, 8.0, LONGEST_S]
    quarantine.succeeded(("a",), full=True)
    assert quarantine.failed(("a",), now_s, lasts=False) == SHORTEST_S
    assert quarantine.failed(("a",), now_s, lasts=True) == REFUSED_S


def test_others_go_on() -> None:
    """The whole group is suspect; claims of each topic show which one it is."""
    quarantine = Quarantine()
    assert quarantine.failed(("a", "b"), 100.0, lasts=False) == SHORTEST_S
    assert quarantine.holds(("b", "a"), 100.1)
    assert not quarantine.is_quarantined("a", 100.1)  # a slow moment blames no job
    assert quarantine.failed(("a",), 100.0, lasts=True) == REFUSED_S
    assert [quarantine.holds(topics, 101.0) for topics in (("a", "b"), ("a",), ("c",))] == [False, True, False]
    assert [quarantine.is_quarantined(topic, 101.0) for topic in "abc"] == [True, False, False]
    assert not quarantine.is_quarantined("a", 102.0)
    quarantine.succeeded(("c",), full=True)
    assert quarantine.is_quarantined("a", 101.0)
    quarantine.failed(("d",), 100.0, lasts=False)
    assert not quarantine.is_quarantined("d", 100.1)


def test_what_is_heard_each_time_is_believed() -> None:
    """Of the same topics, and with no success in between."""
    quarantine = Quarantine()
    for _ in range(2):
        for full in (True, False):
            heard = [quarantine.is_refused(("a", "b"), full=full) for _ in range(STUBBORN)]
            assert heard == [False] * (STUBBORN - 1) + [True]
        assert not quarantine.is_refused(("a",), full=False)
        quarantine.succeeded(("a",), full=False)
        quarantine.succeeded(("b", "a"), full=True)


def test_a_claim_that_looks_elsewhere_proves_nothing() -> None:
    """One that looks at everything meets what others have passed."""
    quarantine = Quarantine()
    for _ in range(STUBBORN - 1):
        assert not quarantine.is_refused(("a",), full=True)
        quarantine.succeeded(("a",), full=False)
    assert quarantine.is_refused(("a",), full=True)


def test_the_topic_is_found() -> None:
    quarantine, topics = Quarantine(), ("c", "a", "e", "b", "d")
    assert quarantine.parts(topics, 100.0) == [topics]
    for failing in (topics, ("c", "d", "e"), ("d", "e")):
        assert quarantine.failed(failing, 100.0, lasts=True) == 0.0
        assert not quarantine.holds(topics, 100.0)
    assert quarantine.parts(topics, 100.0) == [("a", "b"), ("c",), ("d",), ("e",)]
    assert quarantine.failed(("d",), 100.0, lasts=True) == REFUSED_S
    assert quarantine.parts(topics, 100.1) == [("a", "b"), ("c",), ("e",)]
    assert quarantine.parts(("d",), 100.1) == []
    assert (quarantine.holds(("d",), 100.1), quarantine.holds(topics, 100.1)) == (True, False)
    later_s = 100.0 + APART_S
    assert quarantine.parts(topics, later_s) == [("a", "b"), ("c",), ("d",), ("e",)], "it was not yet read"
    quarantine.succeeded(("d",), full=True)
    assert len(quarantine.parts(topics, later_s - 1)) == 4
    assert quarantine.parts(topics, later_s) == [topics]
    assert quarantine._apart == {frozenset("cde"): later_s, frozenset("de"): later_s}


def test_a_slow_time_divides_nothing_soon() -> None:
    """Many claims instead of one would make it slower: only what has failed for half a minute is claimed apart."""
    quarantine, now_s, pauses = Quarantine(), 100.0, list[float]()
    for _ in range(6):
        pauses.append(quarantine.failed(("a", "b"), now_s, lasts=False))
        now_s += pauses[-1]
    assert pauses == [SHORTEST_S, 1.0, 2.0, 4.0, 8.0, 0.0]
    assert quarantine.parts(("a", "b"), now_s) == [("a",), ("b",)]
    assert quarantine.parts(("a", "b"), now_s + APART_S) == [("a", "b")], "both were claimed meanwhile"
    assert quarantine.failed(("a", "b"), now_s + APART_S, lasts=False) == SHORTEST_S


def test_a_slow_job_is_found_soon() -> None:
    """What is divided already is divided on at once; meanwhile nothing of it is put together again."""
    quarantine, topics, now_s = Quarantine(), tuple("abcdefghijklmnop"), 100.0
    for _ in range(6):
        now_s += quarantine.failed(topics, now_s, lasts=False)
    for count in (8, 4, 2):
        now_s += APART_S - 1
        assert quarantine.failed(topics[-count:], now_s, lasts=False) == 0.0
    assert [len(part) for part in quarantine.parts(topics, now_s + APART_S - 1)] == [8, 4, 2, 1, 1]
    assert quarantine.failed(topics[-1:], now_s, lasts=False) == SHORTEST_S
    assert [len(part) for part in quarantine.parts(topics, now_s)] == [8, 4, 2, 1]
    assert quarantine.failed(("y", "z"), now_s, lasts=False) == SHORTEST_S, "it is no part of that"


def test_what_is_claimed_apart() -> None:
    """The halves of topics whose claim failed, but for a half in quarantine; whose topic is first goes first."""
    quarantine, whole, halved = Quarantine(), serving("a", "b"), serving("d", "c")
    assert [*quarantine.divided([whole, halved], 100.0)] == [whole, halved]
    quarantine.failed(("c", "d"), 100.0, lasts=True)
    assert [*quarantine.divided([whole, halved], 100.0)] == [whole, serving("d"), serving("c")]
    quarantine.failed(("c",), 100.0, lasts=True)
    assert [*quarantine.divided([halved], 100.0)] == [serving("d")]


def test_each_topic_is_first_in_its_turn() -> None:
    """As among those that are claimed together: else one with much work keeps the others of its part from theirs."""
    quarantine, topics = Quarantine(), tuple("abcdefgh")
    for failing in (topics, topics[4:], topics[6:], topics[7:]):
        quarantine.failed(failing, 100.0, lasts=True)
    firsts: list[tuple[str, ...]] = []
    for shift in range(8):
        turn = serving(*topics[shift:], *topics[:shift])
        firsts.append(next(quarantine.divided([turn], 100.1)).topics)
    assert [one[0] for one in firsts] == ["a", "b", "c", "d", "e", "f", "g", "a"]
    assert firsts[:4] == [tuple("abcd"), tuple("bcda"), tuple("cdab"), tuple("dabc")]


def test_what_was_to_look_at_everything_is_to_be_made_up_for() -> None:
    """Once, when its topics may be claimed again, whatever other claims have seen."""
    quarantine = Quarantine()
    quarantine.failed(("b",), 100.0, lasts=True)
    assert not quarantine.has_missed(102.0)
    quarantine.failed(("a",), 100.0, lasts=True, full=True)
    assert not quarantine.has_missed(101.9)
    assert [quarantine.has_missed(102.0) for _ in range(2)] == [True, False]
    quarantine.failed(("a",), 120.0, lasts=True, full=True)
    quarantine.succeeded(("a",), full=True)
    assert quarantine.has_missed(121.0)


def test_it_is_active_as_long_as_something_may_follow() -> None:
    one, both, unbelieved = Quarantine(), Quarantine(), Quarantine()
    assert not one.is_active
    one.failed(("a",), 100.0, lasts=True)
    both.failed(("a", "b"), 100.0, lasts=True)
    unbelieved.is_refused(("a",), full=False)
    for quarantine in (one, both, unbelieved):
        quarantine.succeeded(("c",), full=True)
        assert quarantine.is_active
    quarantine = Quarantine()
    quarantine.failed(("a",), 100.0, lasts=True, full=True)
    quarantine.succeeded(("a",), full=True)
    assert quarantine.is_active, "what is to be made up for is not forgotten"
    assert quarantine.has_missed(102.0)
    quarantine.succeeded(("a",), full=True)
    assert not quarantine.is_active
