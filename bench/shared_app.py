"""Handlers of two applications on two hosts, whose topics share a limit."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import pulse

FIRST: Final = "first"
SECOND: Final = "second"

first = pulse.App()
second = pulse.App()


@first.handler("nap", topic=FIRST)
@second.handler("other-nap", topic=SECOND)
async def nap(seconds: float) -> None:
    """Hold a slot for so long."""
    await asyncio.sleep(seconds)


@first.handler("stamp", topic=FIRST)
async def stamp(submitted_s: float) -> float:
    """Seconds since the submit call began, on the clock that all processes of a machine share."""
    return time.monotonic() - submitted_s
