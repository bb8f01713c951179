"""Hints between the supervisor and the actors: each event says what is declared for it, however it is sent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pulse.errors import ProtocolError
from pulse.protocol import encode
from pulse.protocol.bus import (
    HINT_DATA,
    MAX_BUS_FRAME_BYTES,
    MAX_HINT_BYTES,
    NOTHING,
    CanceledJobs,
    Hint,
    HintEvent,
    LapsedLeases,
    OperatorAction,
    ReadyJobs,
    RefusedStatement,
    RefusedStatementsHint,
    TopicGate,
    WorkSomewhere,
    hint,
    received_hint,
)
from pulse_actors.runtime.actor import MOST_ERROR, MOST_REFUSED
from pulse_actors.scheduler.actor import HINT_JOBS

SAID: dict[HintEvent, tuple[Any, dict[str, object]]] = {
    HintEvent.READY: (ReadyJobs([0.5], 2), {"delays_s": [0.5], "reaped": 2}),
    HintEvent.LAPSED: (LapsedLeases(["w"]), {"workers": ["w"]}),
    HintEvent.CANCELED: (CanceledJobs(["0190163d"]), {"jobs": ["0190163d"]}),
    HintEvent.WORK: (WorkSomewhere("h"), {"from": "h"}),
    HintEvent.FAILING: (
        RefusedStatementsHint([RefusedStatement("pause", "look", "42P01", "no", 3, 1.5)]),
        {"statements": [["pause", "look", "42P01", "no", 3, 1.5]]},
    ),
    HintEvent.GATE_CHANGED: (TopicGate("t"), {"topic": "t"}),
    HintEvent.OPERATOR: (
        OperatorAction("drain", 0, 7, None, {"all": True}),
        {"action": "drain", "uid": 0, "pid": 7, "behalf": None, "detail": {"all": True}},
    ),
}


def test_every_event_says_something() -> None:
    """What is declared is complete; what says nothing is sent with an empty map."""
    assert HINT_DATA.keys() == set(HintEvent)
    assert hint("pause", HintEvent.READY, ReadyJobs()) == Hint("pause", "ready")
    for event in set(HintEvent) - SAID.keys():
        assert hint("x", event) == Hint("x", event, {})


@pytest.mark.parametrize("event", SAID)
def test_what_is_sent_is_what_is_received(event: HintEvent) -> None:
    """By the letter of the wire, from its encoding to its decoding."""
    data, wire = SAID[event]
    sent = hint("dispatcher", event, data)
    assert (sent.event, sent.data) == (event.value, wire)
    frame = encode("hint", None, {"from": "pause", "event": sent.event, "data": sent.data})
    body = msgspec.msgpack.decode(frame[4:])[2]
    assert received_hint(body) == Hint("pause", event, wire)


def test_an_event_with_the_words_of_another() -> None:
    """It is refused where it is made, and where it arrives."""
    with pytest.raises(TypeError, match="hint lapsed: LapsedLeases is allowed, not ReadyJobs"):
        hint("dispatcher", HintEvent.LAPSED, ReadyJobs())
    with pytest.raises(TypeError, match="hint ready: ReadyJobs is allowed, not Nothing"):
        hint("dispatcher", HintEvent.READY)
    with pytest.raises(ProtocolError, match="hint 'lapsed': "):
        received_hint({"from": "watchdog", "event": "lapsed", "data": {"workers": 7}})
    with pytest.raises(ProtocolError, match="hint 'lapsed': "):
        received_hint({"from": "watchdog", "event": "lapsed", "data": {}})
    with pytest.raises(ProtocolError, match="hint None: "):
        received_hint({"from": "watchdog", "data": {}})


def test_a_hint_of_tomorrow() -> None:
    """An event, or a word, that is not known yet is taken as it is."""
    assert received_hint({"from": "a", "event": "new", "data": {"x": 1}}) == Hint("a", "new", {"x": 1})
    assert received_hint({"from": "a", "event": "drain", "data": {"x": 1}}) == Hint("a", "drain", {"x": 1})


def test_the_largest_hints_are_passed_on() -> None:
    """What an actor puts into one hint fits into it."""
    jobs = CanceledJobs(["0190163d-8694-739b-aea5-966c26f8ad91"] * HINT_JOBS)
    one = RefusedStatement("scheduler", "a_statement_with_a_name", "42P01", "x" * MOST_ERROR, 2**31, 1e6)
    statements = RefusedStatementsHint([one] * MOST_REFUSED)
    for event, data in ((HintEvent.CANCELED, jobs), (HintEvent.FAILING, statements)):
        sent = hint("dispatcher", event, data)
        assert len(encode("hint", None, {"to": sent.peer, "event": sent.event, "data": sent.data})) <= MAX_HINT_BYTES
    assert MAX_HINT_BYTES < MAX_BUS_FRAME_BYTES
    assert hint("x", HintEvent.RELOAD, NOTHING).data == {}
