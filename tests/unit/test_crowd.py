"""How many connections a source may have."""

from __future__ import annotations

from pulse_actors.dispatcher.crowd import Crowd


def test_bounds() -> None:
    """Of one source, of those of it that have said nothing, and of all who have said nothing; who leaves makes room."""
    crowd = Crowd(most=3, most_unknown=2, most_unknown_of_all=3)
    first, second = crowd.enter("a"), crowd.enter("a")
    assert crowd.refusal("a") == "2 connections of a have not said hello yet"
    first.known()
    first.known()
    assert crowd.refusal("a") is None
    third = crowd.enter("a")
    assert crowd.refusal("a") == "3 connections of a are open already"
    other = crowd.enter("b")
    assert crowd.refusal("c") == "3 connections have not said hello yet"
    other.free()
    assert crowd.refusal("c") is None
    for one in (second, third, first):
        one.free()
    assert crowd.refusal("a") is None
    assert not crowd._here
    assert not crowd._unknown
