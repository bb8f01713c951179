"""The handlers of the chaos suite: short, long, busy, forking, failing and deadly ones; each call is in the ledger."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import anyio

import pulse
from pulse.system import processes
from tests.chaos.load.ledger import GOVERNED_TOPIC, LIMITED_TOPIC, ORDERED_TOPIC, VARIABLE, Ledger

LOOK_S: Final = 0.02
GATHER_S: Final = 7.0
CHILD_S: Final = 120  # a child that nobody ends by then ends itself
Answer = dict[str, Any]

app = pulse.App()
ledger = Ledger(Path(os.environ.get(VARIABLE, "ledger")))


@contextmanager
def noted(ctx: pulse.Context) -> Iterator[Answer]:
    """Write down the start and the end, and whether another process runs the same job now; yields a result."""
    ledger.write("start", ctx.job_id, ctx.attempt, name=ctx.name)
    other = ledger.enter(ctx.job_id)
    if other is not None:
        ledger.write("overlap", ctx.job_id, ctx.attempt, other=other)
    how = "ok"
    try:
        yield {"attempt": ctx.attempt}
    except BaseException as error:
        how = f"{type(error).__name__}{', cancelled' if ctx.cancelled else ''}"
        raise
    finally:
        ledger.leave(ctx.job_id)
        ledger.write("end", ctx.job_id, ctx.attempt, how=how)


@app.handler("short")
@app.handler("perishable", topic=GOVERNED_TOPIC)
@app.handler("limited", topic=LIMITED_TOPIC)  # holds a slot of the limit and one of its group
@app.handler("unique")
@app.handler("child")  # waits for others
async def short(ctx: pulse.Context, seconds: float = 0.0) -> Answer:
    """Wait for something else, as most jobs do."""
    with noted(ctx) as result:
        await anyio.sleep(seconds)
        return result


@app.handler("long")
async def long(ctx: pulse.Context, seconds: float) -> Answer:
    """Long enough to need its heartbeats; reports its progress, and resumes where it was."""
    with noted(ctx) as result:
        saved = ctx.previous.checkpoint if ctx.previous is not None else None
        done_s = float(saved) if isinstance(saved, (int, float)) else 0.0
        while done_s < seconds:
            await anyio.sleep(0.25)
            done_s += 0.25
            await ctx.checkpoint(done_s)
            await ctx.progress(done_s / seconds)
        return result


@app.handler("busy")
def busy(ctx: pulse.Context, seconds: float) -> Answer:
    with noted(ctx) as result:
        until_s, digest = time.monotonic() + seconds, b""
        while time.monotonic() < until_s:
            digest = hashlib.sha256(digest * 100).digest()
        return result


@app.handler("hold")
async def hold(ctx: pulse.Context, gate: str) -> Answer:
    with noted(ctx) as result:
        while not Path(gate).exists():  # noqa: ASYNC110 - another process makes it
            await anyio.sleep(LOOK_S)
        return result


@app.handler("gathered", batch=12, batch_wait_s=GATHER_S)
async def gathered(jobs: list[pulse.BatchJob[dict[str, object]]]) -> list[Answer]:
    """Wait for others of their kind for so long that a host which is cut off meanwhile has lost its leases."""
    with contextlib.ExitStack() as stack:
        return [stack.enter_context(noted(job.ctx)) for job in jobs]


@app.handler("tick", topic="ticks")
async def tick(ctx: pulse.Context) -> Answer:
    with noted(ctx) as result:
        return result


@app.handler("flaky", max_attempts=4)
@app.handler("faulty", topic=GOVERNED_TOPIC)  # which says how often it is tried, and when
@app.handler("ordered", topic=ORDERED_TOPIC)
async def flaky(ctx: pulse.Context, fails: int) -> Answer:
    with noted(ctx) as result:
        if ctx.attempt <= fails:
            raise ValueError(f"attempt {ctx.attempt}")
        return result


@app.handler("doomed", max_attempts=2)
def doomed(ctx: pulse.Context) -> None:
    with noted(ctx):
        raise RuntimeError("always")


@app.handler("later")
async def later(ctx: pulse.Context, seconds: float, how: str) -> Answer | pulse.Snooze:
    with noted(ctx) as result:
        if ctx.attempt > 1:
            return result
        if how == "snooze":
            return pulse.Snooze(seconds)
        raise pulse.RetryAfter(seconds, "later")


@app.handler("discarded")
async def discarded(ctx: pulse.Context) -> None:
    with noted(ctx):
        raise pulse.Discard("no use")


@app.handler("wicked", max_attempts=1)
def wicked(ctx: pulse.Context, how: str) -> object:
    with noted(ctx):
        match how:
            case "nul":
                return "a\0b"
            case "surrogate":
                return "\ud800"
            case "nan":
                return float("nan")
            case "object":
                return object()
            case "deep":
                value: list[object] = []
                for _ in range(900):
                    value = [value]
                return value
            case _:
                raise ValueError("a\0b\ud800c" + "x" * 100_000)


@app.handler("deadly", max_crashes=3)
@app.handler("fatal", topic=GOVERNED_TOPIC)  # which says how often is too often
async def deadly(ctx: pulse.Context, how: str = "SIGKILL", times: int = 100) -> Answer:
    """Kill its process at each of the first so many attempts."""
    with noted(ctx) as result:
        if ctx.attempt <= times:
            if how == "exit":
                os._exit(7)
            os.kill(os.getpid(), signal.Signals[how])
            time.sleep(CHILD_S)  # noqa: ASYNC251 - the signal is on its way
        return result


@app.handler("grip")
def grip(ctx: pulse.Context, seconds: float) -> Answer:
    """Hold the interpreter, so that nothing else in this process runs; PyDLL does not let it go."""
    with noted(ctx) as result:
        ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
        return result


@app.handler("hung", max_attempts=2, timeout_s=1.0)
def hung(ctx: pulse.Context) -> Answer:
    """Go on and on, ignoring all cancels."""
    with noted(ctx) as result:
        until_s = time.monotonic() + CHILD_S
        while time.monotonic() < until_s:
            time.sleep(LOOK_S)
        return result


@app.handler("forks")
async def forks(ctx: pulse.Context, how: str, gate: str | None = None) -> Answer:
    """Leave a child behind that holds every descriptor of this process: plain, in a session of its own, or a daemon."""
    with noted(ctx) as result:
        child = os.fork()
        if child == 0:
            _be_child(ctx, how)
        if how == "daemon":
            os.waitpid(child, 0)  # noqa: ASYNC222 - it ends at once; its own child goes on
        while gate is not None and not Path(gate).exists():  # noqa: ASYNC110 - another process makes it
            await anyio.sleep(LOOK_S)
        return result


def _be_child(ctx: pulse.Context, how: str) -> None:
    signal.set_wakeup_fd(-1)  # the parent's, whose loop would take this process's signals for its own
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if how != "plain":
        os.setsid()
    if how == "daemon" and os.fork():
        os._exit(0)
    ledger.write("child", ctx.job_id, ctx.attempt, how=how, start=processes.start_time(os.getpid()))
    signal.alarm(CHILD_S)
    while True:
        signal.pause()
