"""Topics whose claims cannot be made are left alone for a while, by themselves."""

from __future__ import annotations

from pulse_actors.dispatcher.barred import LONGEST_S, SHORTEST_S, Barred


def test_what_may_have_passed_is_tried_again_soon() -> None:
    """Then later each time, up to a bound; a claim that is made ends that."""
    barred, now_s, pauses = Barred(), 100.0, list[float]()
    for _ in range(6):
        assert not barred.are_barred(("a", "b"), now_s)
        pauses.append(barred.failed(("b", "a"), now_s, lasts=False))
        assert barred.are_barred(("a", "b"), now_s + pauses[-1] - 0.001)
        now_s += pauses[-1]
    assert pauses == [SHORTEST_S, 1.0, 2.0, 4.0, 8.0, LONGEST_S]
    barred.succeeded(("a", "b"))
    assert barred.failed(("a", "b"), now_s, lasts=False) == SHORTEST_S
    assert barred.failed(("a", "b"), now_s, lasts=True) == LONGEST_S


def test_others_go_on() -> None:
    """It is about the topics that were claimed together; each of them waits for that."""
    barred = Barred()
    barred.failed(("a", "b"), 100.0, lasts=False)
    assert barred.are_barred(("a", "b"), 100.1)
    assert not barred.is_barred("a", 100.1)  # a slow moment blames no job
    barred.failed(("a", "b"), 100.0, lasts=True)
    assert [barred.are_barred(topics, 105.0) for topics in (("a", "b"), ("a",), ("c",))] == [True, False, False]
    assert [barred.is_barred(topic, 105.0) for topic in "abc"] == [True, True, False]
    assert not barred.is_barred("a", 110.0)
    barred.succeeded(("c",))
    assert barred.is_barred("a", 105.0)


def test_what_was_to_look_at_everything_is_to_be_made_up_for() -> None:
    """Once, when its topics may be claimed again; whatever others have looked at meanwhile."""
    barred = Barred()
    barred.failed(("b",), 100.0, lasts=True)
    assert not barred.has_missed(110.0)
    barred.failed(("a",), 100.0, lasts=True, full=True)
    assert not barred.has_missed(109.9)
    assert [barred.has_missed(110.0) for _ in range(2)] == [True, False]
    barred.failed(("a",), 120.0, lasts=True, full=True)
    barred.succeeded(("a",))
    assert barred.has_missed(121.0)
