"""Handlers to measure with: as good as nothing to do, so that what is measured is pulse."""

from __future__ import annotations

import time

import pulse

app = pulse.App()


@app.handler("noop")
async def noop(number: int, pad: str) -> None:
    """Nothing."""


@app.handler("stamp")
async def stamp(submitted_s: float) -> float:
    """Seconds since the submit call began, on the clock that all processes of a machine share."""
    return time.monotonic() - submitted_s
