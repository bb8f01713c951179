"""Which hints wait for an actor's next turn."""

from __future__ import annotations

from typing import cast

import pytest

from pulse.config import Settings
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
