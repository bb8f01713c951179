"""The handlers of the whole system's tests, and some that do to their process what a library does on a bad day."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time

import pulse
from tests.support.apps.system_app import app, noted

__all__ = ["app"]


@app.handler("close-everything")
async def close_everything(ctx: pulse.Context) -> None:
    """As daemons do when they start."""
    with noted(ctx):
        os.closerange(3, 4096)


@app.handler("cancel-all-tasks")
async def cancel_all_tasks(ctx: pulse.Context) -> None:
    with noted(ctx):
        for task in asyncio.all_tasks():
            task.cancel()


@app.handler("ignore-children")
async def ignore_children(ctx: pulse.Context) -> None:
    """As programs do that want no zombies: nobody can wait for a child any more."""
    with noted(ctx):
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)


@app.handler("stop-the-clock")
async def stop_the_clock(ctx: pulse.Context) -> None:
    """As libraries for tests do that are left in."""
    with noted(ctx):
        now_s, wall_s = time.monotonic(), time.time()
        time.monotonic = lambda: now_s
        time.time = lambda: wall_s


@app.handler("leave-the-directory")
async def leave_the_directory(ctx: pulse.Context) -> None:
    with noted(ctx):
        with tempfile.TemporaryDirectory() as directory:
            os.chdir(directory)
        os.umask(0o777)


@app.handler("apart", isolate=True)
def apart() -> int:
    return os.getpid()
