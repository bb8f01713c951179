"""
Handlers: what a worker runs.

    pulse-supervisor &
    pulse worker examples.app:app --processes 2
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import anyio

import pulse

app = pulse.App()


@app.handler("checksum", topic="files", max_attempts=3, timeout_s=60.0)
def checksum(path: str) -> dict[str, object]:
    """A plain def: it may block, it runs in a thread. Its args object became keyword arguments."""
    data = Path(path).read_bytes()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@app.handler("count-down")
async def count_down(seconds: int, ctx: pulse.Context) -> str:
    """An async def, which tells how far it is; ctx comes because it is annotated."""
    for passed in range(seconds):
        await ctx.progress(passed / seconds, f"{seconds - passed} s to go")
        await anyio.sleep(1)
    return f"attempt {ctx.attempt} of {ctx.job_id} counted {seconds} s"


@app.handler("thumbnails", stall_s=30.0)
async def thumbnails(paths: list[str], ctx: pulse.Context) -> int:
    """May take hours, but never 30 s for one file; another attempt goes on where this one was."""
    saved = ctx.previous.checkpoint if ctx.previous else None
    done = saved if isinstance(saved, int) else 0
    for number in range(done, len(paths)):
        await anyio.sleep(0.1)  # paths[number] would be made smaller here
        await ctx.checkpoint(number + 1)  # a word to the stall detector, too
    return len(paths) - done


@app.handler("solve", isolate=True, max_memory_bytes=2 * 2**30, max_cpu_s=600)
def solve(numbers: list[int]) -> int:
    """In a process of its own, with limits: what it does to that costs no other job anything."""
    return math.lcm(*numbers)


@app.handler("fetch")
async def fetch(url: str, *, ready: bool = False) -> pulse.Snooze | None:
    """The ways for a handler to answer: return a value, snooze, fail, or give up."""
    if not url.startswith("https://"):
        raise pulse.Discard(f"{url!r} will never work")  # straight to the dead letters
    if not ready:
        return pulse.Snooze(30)  # try again in 30 s, and do not charge it
    raise pulse.RetryAfter(5, "the server said 429")  # a charged failure with its own delay


@app.handler("report")
async def report(ctx: pulse.Context) -> str:
    """For examples/schedules.py: a job knows the occurrence that fired it."""
    return f"report for {ctx.occurrence}"
