"""Which hints are sent, and which wait for an actor's next turn."""

from __future__ import annotations

import socket
from typing import cast

import pytest

from pulse.config import Settings
from pulse.protocol.bus import MAX_HINT_BYTES
from pulse.store.store import Store
from pulse_actors.runtime.actor import MOST_NUDGES, Runtime
from pulse_actors.runtime.bus import Bus, Hint

pytestmark = pytest.mark.anyio


async def test_what_anybody_may_say_is_bounded() -> None:
    runtime = Runtime("pause", cast("Bus", None), Settings(), cast("Store", None), boot=False)  # it speaks to nobody
    some = [Hint("pause", "work", {"from": str(number)}) for number in range(MOST_NUDGES * 2)]
    for hint in some:
        runtime.nudge(hint)
        runtime.nudge(some[0])
    stop = Hint("supervisor", "reload")
    runtime.poke(stop)
    assert await runtime.hints(0.0) == (*some[:MOST_NUDGES], stop)
    runtime.nudge(some[0])
    assert await runtime.hints(0.0) == (some[0],)


async def test_a_hint_that_is_too_long_is_not_sent() -> None:
    near, far = socket.socketpair()
    bus, supervisor = await Bus.over(near.detach()), await Bus.over(far.detach())
    await bus.hint(Hint("pause", "work", {"from": "x" * MAX_HINT_BYTES}))
    await bus.hint(Hint("pause", "work", {"from": "x"}))
    frame = await anext(supervisor.frames())
    assert frame.body == {"to": "pause", "event": "work", "data": {"from": "x"}}
    for one in (bus, supervisor):
        await one._stream.aclose()
