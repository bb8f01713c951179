"""How many connections a source may have."""

from __future__ import annotations

from functools import partial

import pytest

from pulse.security.password_login import network_of
from pulse_actors.dispatcher.admission.connection_limits import ConnectionLimits


def stay() -> None:
    raise AssertionError


def test_bounds() -> None:
    """Of one source, and of its silent ones; a connection that closes makes room."""
    crowd = ConnectionLimits(most=3, most_before_hello=2)
    first, second = crowd.enter("a", stay), crowd.enter("a", stay)
    assert crowd.refusal("a") == "2 connections of a have not said hello yet"
    assert crowd.refusal("b") is None
    first.greeted()
    first.greeted()
    assert crowd.refusal("a") is None
    third = crowd.enter("a", stay)
    assert crowd.refusal("a") == "3 connections of a are open already"
    for one in (second, third, first):
        one.free()
    assert crowd.refusal("a") is None
    assert not crowd._here
    assert not crowd._before_hello
    assert not crowd._waiting


def test_the_oldest_that_has_said_nothing_makes_room() -> None:
    """For one more of any source; who has said hello stays, and so does who has left."""
    gone: list[str] = []
    crowd = ConnectionLimits(most_before_hello_of_all=2)
    known, first, second = (crowd.enter("a", partial(gone.append, name)) for name in ("known", "first", "second"))
    assert gone == ["known"]  # it said nothing until then
    known.free()
    second.greeted()
    third = crowd.enter("b", partial(gone.append, "third"))
    assert gone == ["known"]
    crowd.enter("c", partial(gone.append, "fourth"))
    assert gone == ["known", "first"]
    crowd.enter("d", partial(gone.append, "fifth"))
    assert gone == ["known", "first", "third"]
    first.free()
    third.free()
    crowd.enter("e", partial(gone.append, "sixth"))
    assert gone == ["known", "first", "third", "fourth"]


def test_room_is_made_where_the_most_are() -> None:
    """The source with a whole network of addresses loses its own, however young, not the few of others."""
    gone: list[str] = []
    crowd = ConnectionLimits(most_before_hello_of_all=4)
    for source in (
        "10.0.0.1",
        "2001:db8:7::/64",
        "2001:db8:7:1::/64",
        "2001:db8:7:2::/64",
        "10.0.1.1",
        "uid 7",
        "uid 8",
    ):
        crowd.enter(source, partial(gone.append, source))
    assert gone == ["2001:db8:7::/64", "2001:db8:7:1::/64", "10.0.0.1"]


@pytest.mark.parametrize(("source", "network"), [
    ("10.1.2.3", "10.1.2.0/24"), ("2001:db8:1:2::/64", "2001:db8:1::/48"), ("uid 1000", "uid 1000"),
    ("somewhere", "somewhere"),
])  # fmt: skip
def test_networks(source: str, network: str) -> None:
    assert network_of(source) == network
