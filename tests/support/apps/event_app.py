"""An app that wants to know of dead letters and crashes."""

from __future__ import annotations

import os
import signal

import pulse

app = pulse.App()


@app.handler("charge", max_crashes=2)
def charge(way: str) -> None:
    if way == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    raise pulse.Discard("no account")


@app.on_dead_letter
async def warn(job: pulse.FailedJob) -> str:
    return f"{job.name} {job.id} {job.attempt} {job.outcome} {job.error}"


@app.on_crash
def note(ctx: pulse.Context, job: pulse.FailedJob) -> str:
    if ctx.attempt == 1:
        raise LookupError
    return f"{job.name} {job.attempt} {job.error}"
