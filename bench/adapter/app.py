"""The handler that the harness wants: some work, and a note of when it began and ended."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Final

import pulse
from bench.adapter.histogram import Tally

CALLS: Final = "BENCH_CALLS"  # the directory of the files that count; set by the adapter
WORK_MS: Final = "BENCH_WORK_MS"

app = pulse.App()


class Counted:
    """The tally of this process, made at the first job: a spare process never needs one."""

    tally: Tally | None = None

    def __call__(self) -> Tally:
        """The one."""
        if self.tally is None:
            self.tally = Tally(Path(os.environ[CALLS]) / str(os.getpid()))
        return self.tally


counted: Final = Counted()


@app.handler("job", topic="bench")
async def job(number: int, submitted_s: float, pad: str) -> None:  # noqa: ARG001 - args come by these names
    """Work for a while; *submitted_s* is of the wall clock, which replicas share."""
    counted().started(time.time() - submitted_s)
    work_ms = float(os.environ[WORK_MS])
    if work_ms > 0:
        await asyncio.sleep(work_ms / 1000)
    counted().ended()
