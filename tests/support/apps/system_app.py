"""The handlers of the whole system's tests. Each call writes into a ledger what happens to it, and when."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import structlog
from anyio.lowlevel import checkpoint

import pulse
from tests.support.apps.worker_app import serve_ends

LEDGER: Final = "SYSTEM_LEDGER"  # the variable that names the file
LOOK_S: Final = 0.01

app = pulse.App()
serve_ends(app)
log = structlog.get_logger()


def note(event: str, ctx: pulse.Context, **more: object) -> None:
    """One line of the ledger; short enough that the kernel never mixes two."""
    entry = {
        "event": event, "job": str(ctx.job_id), "attempt": ctx.attempt, "pid": os.getpid(), "at_s": time.monotonic(),
    }  # fmt: skip
    descriptor = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps(entry | more).encode() + b"\n")
    finally:
        os.close(descriptor)


@contextmanager
def noted(ctx: pulse.Context) -> Iterator[None]:
    note("start", ctx)
    try:
        yield
    except BaseException as error:
        note("broken", ctx, error=type(error).__name__, cancelled=ctx.cancelled, lease_lost=ctx.lease_lost)
        raise
    note("end", ctx)


def is_open(gate: str, ctx: pulse.Context) -> bool:
    return Path(gate).exists() or Path(f"{gate}.{ctx.attempt}").exists()


@app.handler("hold")
async def hold(gate: str, ctx: pulse.Context) -> str:
    with noted(ctx):
        while not is_open(gate, ctx):  # noqa: ASYNC110 - another process opens it
            await anyio.sleep(LOOK_S)
    return f"through at attempt {ctx.attempt}"


@app.handler("hold-plain")
def hold_plain(gate: str, ctx: pulse.Context) -> str:
    with noted(ctx):
        while not is_open(gate, ctx):
            if ctx.cancelled:
                note("asked", ctx, lease_lost=ctx.lease_lost)
                break
            time.sleep(LOOK_S)
    return f"through at attempt {ctx.attempt}"


@app.handler("deaf")
def deaf(gate: str, ctx: pulse.Context) -> None:
    with noted(ctx):
        while not is_open(gate, ctx):
            time.sleep(LOOK_S)


@app.handler("clog")
async def clog(gate: str, ctx: pulse.Context) -> None:
    """The same in a coroutine: it blocks its event loop."""
    with noted(ctx):
        while not is_open(gate, ctx):
            time.sleep(LOOK_S)  # noqa: ASYNC251 - that is the mistake


@app.handler("nap")
async def nap(seconds: float, ctx: pulse.Context) -> str:
    with noted(ctx):
        await anyio.sleep(seconds)
    return "rested"


@app.handler("mark")
async def mark(ctx: pulse.Context, **given: Any) -> Any:
    with noted(ctx):
        return given


@app.handler("mark-plain")
def mark_plain(ctx: pulse.Context, **given: Any) -> Any:
    with noted(ctx):
        return given


@app.handler("mark-trio", topic="trio")
async def mark_trio(ctx: pulse.Context) -> str:
    with noted(ctx):
        await checkpoint()
        try:
            return type(asyncio.get_running_loop()).__module__
        except RuntimeError:
            return "no asyncio"


@app.handler("tell")
async def tell(gate: str, ctx: pulse.Context) -> dict[str, object]:
    with noted(ctx):
        await ctx.progress(0.5, "half way")
        while not is_open(gate, ctx):  # noqa: ASYNC110 - another process opens it
            await anyio.sleep(LOOK_S)
    return {"name": ctx.name, "topic": ctx.topic, "has_deadline": ctx.deadline is not None}


@app.handler("occur")
async def occur(ctx: pulse.Context) -> str | None:
    with noted(ctx):
        return ctx.occurrence.isoformat() if ctx.occurrence else None


@app.handler("listen")
async def listen(signal: str, ctx: pulse.Context) -> Any:
    """Give back what a signal brings."""
    found = await ctx.wait_for(signal)
    return found.payload if found else None


@app.handler("snooze-once")
async def snooze_once(seconds: float, ctx: pulse.Context) -> str | pulse.Snooze:
    with noted(ctx):
        return pulse.Snooze(seconds) if ctx.attempt == 1 else "awake"


@app.handler("retry-once")
def retry_once(seconds: float, ctx: pulse.Context) -> str:
    with noted(ctx):
        if ctx.attempt == 1:
            raise pulse.RetryAfter(seconds, "rate limited")
        return "served"


@app.handler("fail")
async def fail(text: str, ctx: pulse.Context) -> None:
    with noted(ctx):
        raise ValueError(text)


@app.handler("return-text")
async def return_text(size: int = 0, code_point: int = 0x78) -> str:
    return chr(code_point) * size


@app.handler("die", max_crashes=3)
async def die(how: int, ctx: pulse.Context) -> None:
    """Kill the process by that signal, or 0: exit without a word, exit code 7."""
    with noted(ctx):
        if how == 0:
            os._exit(7)
        os.kill(os.getpid(), how)
        await anyio.sleep_forever()


@app.handler("leave-orphan")
def leave_orphan(ctx: pulse.Context) -> None:
    with noted(ctx):
        subprocess.run(["/bin/sh", "-c", "sleep 600 & exit 0"], check=True)


@app.handler("shout-plain")
def shout_plain(lines: int) -> int:
    for number in range(lines):
        print("x" * 999)  # noqa: T201 - what is tested
        log.info("shouted", number=number)
        logging.getLogger("other").warning("shouted %d", number)
        sys.stderr.write("y" * 999 + "\n")
    return 4 * lines


@app.handler("shout")
@app.handler("shout-apart", isolate=True)
async def shout(lines: int) -> int:
    return shout_plain(lines)


@app.handler("give-up", retry_on={ValueError: pulse.Discard})
async def give_up(text: str) -> None:
    raise ValueError(text)


@app.handler("die-once", max_crashes=1)
async def die_once() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.handler("die-apart", isolate=True, max_crashes=1)
async def die_apart() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
