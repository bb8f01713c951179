"""The first frame of an actor on the bus names it, or the link is broken; before its settings it gets no hint."""

from __future__ import annotations

import socket

import pytest

from pulse.protocol import encode
from pulse.protocol.bus import MAX_HINT_BYTES, HintEvent
from pulse_supervisor.bus.hub import Hub
from pulse_supervisor.bus.link import BusLink
from pulse_supervisor.children.events import BusBroken, Event, HelloReceived, ReadyReceived

READY = encode("ready", None, {})


def hello(name: str, pid: int) -> bytes:
    return encode("hello", None, {"name": name, "pid": pid})


@pytest.mark.parametrize(("said", "events"), [
    (hello("pause", 7) + READY, [HelloReceived(), ReadyReceived()]),
    (hello("watchdog", 7), [BusBroken("hello of watchdog (pid 7), not of pause (pid 7)")]),
    (hello("pause", 8), [BusBroken("hello of pause (pid 8), not of pause (pid 7)")]),
    (READY, [BusBroken("ready before hello")]),
], ids=["its own", "another's", "another process's", "none"])  # fmt: skip
@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.anyio
async def test_who_says_hello(said: bytes, events: list[Event]) -> None:
    ours, theirs = socket.socketpair()
    reported: list[Event] = []
    hub = Hub(lambda _name, event: reported.append(event), dict, lambda *_, **__: None)
    link = BusLink("pause", 7, ours)
    hub.attach(link)
    with theirs:
        theirs.sendall(said)
    hub.hang_up(link)
    assert reported == events


@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.anyio
async def test_who_has_no_settings_yet_gets_no_hint() -> None:
    ours, theirs = socket.socketpair()
    hub = Hub(lambda *_: None, dict, lambda *_, **__: None)
    link = BusLink("pause", 7, ours)
    with ours, theirs:
        hub.attach(link)
        told = [hub.tell_nowait(name, HintEvent.RELOAD) for name in ("pause", "nobody")]
    assert told == [False, False]


def test_a_pong_that_answers_no_ping() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not BusLink("pause", 7, ours).takes_pong(1)


@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.anyio
async def test_a_hint_that_is_too_large_is_dropped() -> None:
    told: list[tuple[str, object]] = []
    hub = Hub(lambda *_: None, dict, lambda event, **fields: told.append((event, fields["reason"])))
    ours, theirs = socket.socketpair()
    link = BusLink("pause", 7, ours)
    hub.attach(link)
    with theirs:
        data = b"x" * MAX_HINT_BYTES
        body = {"to": "dispatcher", "event": HintEvent.RELOAD.value, "data": {"a": data}}
        theirs.sendall(hello("pause", 7) + encode("hint", None, body))
    hub.hang_up(link)
    ((event, reason),) = told
    assert event == "hint_dropped"
    assert str(reason).endswith(f"at most {MAX_HINT_BYTES} are passed on")


@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.anyio
async def test_what_may_be_dropped_waits_behind_nothing() -> None:
    """Not behind what the socket does not take now, nor for a socket that is closed."""
    ours, theirs = socket.socketpair()
    link = BusLink("pause", 7, ours)
    with theirs:
        assert link.try_send_nowait(READY)
        link.send_nowait("ok", 1, {"a": b"x" * 10_000_000})
        assert not link.try_send_nowait(READY)
        link.close()
    other, theirs = socket.socketpair()
    link = BusLink("pause", 7, other)
    with theirs:
        link.close()
        assert not link.try_send_nowait(READY)
