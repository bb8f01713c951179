"""The handlers that worker processes of the tests serve."""
# ruff: noqa: ASYNC110, ASYNC230 - handlers poll small local files, which tests use as switches

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import anyio

import pulse

app = pulse.App()
_running = 0


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def _raise(error: BaseException) -> NoReturn:
    raise error


ENDS: Final[Mapping[str, Callable[[], object]]] = {
    "exit": lambda: sys.exit(3),
    "interrupt": lambda: _raise(KeyboardInterrupt()),  # what Ctrl-C raises
    "unprintable": lambda: _raise(UnprintableError()),
    "not-json": lambda: object(),  # noqa: PLW0108 - a class is no handler
    "snooze": lambda: pulse.Snooze(7),
    "discard": lambda: _raise(pulse.Discard("no such customer")),
}


def serve_ends(app: pulse.App, *, isolate: bool = False) -> None:
    for name, end in ENDS.items():
        app.handler(f"{name}-plain", isolate=isolate)(end)
        app.handler(name, isolate=isolate)(_coroutine(end))
    app.handler("retry-after", isolate=isolate)(lambda: _raise(pulse.RetryAfter(9.5, "rate limited")))
    app.handler("cancel-itself", isolate=isolate)(_coroutine(lambda: _raise(asyncio.CancelledError())))


def _coroutine(end: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    async def handler() -> object:
        return end()

    return handler


serve_ends(app)


@app.handler("echo", topic="images", max_attempts=7, timeout_s=50.0, max_crashes=4)
async def echo(**given: Any) -> Any:
    return given


@app.handler("echo-plain")
def echo_plain(**given: Any) -> Any:
    return given


app.limit("of the app", concurrency=50, rate=100.5)


@app.schedule("hourly", every_s=3600)
@app.handler("nothing")
async def nothing() -> None:
    """No result."""


async def opened(gate: str) -> str:
    while not Path(gate).exists():
        await anyio.sleep(0.005)
    return "through"


@app.handler("wait")
async def wait(gate: str, started: str | None = None) -> str:
    """End when a file is there; tell by another file that the call began."""
    if started is not None:
        Path(started).touch()
    return await opened(gate)


@app.handler("wait-plain")
def wait_plain(gate: str, started: str, ctx: pulse.Context) -> str:
    """The same in a thread, which nobody can interrupt; a cancel ends it, too."""
    Path(started).touch()
    while not Path(gate).exists():
        if ctx.cancelled:
            return f"asked to end, lease lost: {ctx.lease_lost}"
    return "through"


@app.handler("deaf")
def deaf(started: str) -> None:
    Path(started).touch()
    while True:
        pass


@app.handler("append")
async def append(path: str, line: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{line}\n")


@app.handler("crowd")
async def crowd(gate: str, counts: str) -> None:
    global _running  # noqa: PLW0603 - what is counted is the process
    _running += 1
    with Path(counts).open("a") as file:
        file.write(f"{_running}\n")
    await opened(gate)
    _running -= 1


@app.handler("hold-interpreter")
def hold_interpreter(seconds: float, started: str, ctx: pulse.Context) -> str:
    Path(started).touch()
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))  # PyDLL does not let the interpreter go
    return f"held, lease lost: {ctx.lease_lost}"


@app.handler("watch-lease")
async def watch_lease(ctx: pulse.Context) -> str:
    while not ctx.lease_lost:
        await anyio.sleep(0.005)
    return f"lost, cancelled: {ctx.cancelled}"


@app.handler("block-loop")
async def block_loop(gate: str, started: str, ctx: pulse.Context) -> str:
    Path(started).touch()
    while not Path(gate).exists():
        os.sched_yield()
    return f"held, lease lost: {ctx.lease_lost}"


@app.handler("nan")
async def nan() -> float:
    return float("nan")


@app.handler("big")
async def big(size: int) -> str:
    return "x" * size


@app.handler("tell")
async def tell(gate: str, ctx: pulse.Context) -> dict[str, object]:
    await ctx.progress(0.5, "half way")
    await ctx.checkpoint({"page": 3})
    await opened(gate)
    return known(ctx)


def known(ctx: pulse.Context) -> dict[str, object]:
    previous = ctx.previous
    return {
        "job_id": str(ctx.job_id), "attempt": ctx.attempt, "name": ctx.name, "topic": ctx.topic,
        "deadline": ctx.deadline is not None, "occurrence": ctx.occurrence.isoformat() if ctx.occurrence else None,
        "previous": None if previous is None else [previous.outcome, previous.reason, previous.checkpoint],
    }  # fmt: skip


@app.handler("tell-plain")
def tell_plain(ctx: pulse.Context) -> None:
    ctx.progress({"done": 3, "of": 4})


@app.handler("stubborn")
async def stubborn(started: str, gate: str) -> str:
    """Take a cancellation as a hint, and finish."""
    Path(started).touch()
    try:
        await anyio.sleep_forever()
    except BaseException:  # noqa: BLE001 - the cancellation of either event loop
        while not Path(gate).exists():
            pass
    return "finished all the same"


@app.handler("die")
async def die() -> None:
    os._exit(7)


@app.handler("restless", stall_s=0.5)
async def restless(word: str, started: str, gate: str, ctx: pulse.Context) -> str:
    for number in range(12):
        await (ctx.progress(number) if word == "progress" else ctx.checkpoint(number))
        await anyio.sleep(0.1)
    Path(started).touch()
    return await opened(gate)


@app.handler("restless-plain", stall_s=0.3)
def restless_plain(ctx: pulse.Context) -> None:
    while not ctx.cancelled:
        os.sched_yield()
    raise ValueError("I was not done")


async def lines(gate: Path) -> AsyncIterator[int]:
    while not gate.exists():
        await anyio.sleep(0.005)
    yield 1


async def first_line(gate: Path) -> int:
    async for line in lines(gate):
        return line
    return 0


@app.handler("wait-deeply")
async def wait_deeply(gate: str) -> int:
    return await first_line(Path(gate))


@app.handler("hog")
def hog(started: str) -> None:
    Path(started).touch()
    sum(itertools.repeat(0))


@app.handler("hog-mute")
async def hog_mute(started: str) -> None:
    """The same, with a hanging signal handler for stacks, in many threads."""
    for _ in range(8):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    libc = ctypes.CDLL(None)
    libc.signal(signal.SIGRTMIN + 7, libc.pause)
    Path(started).touch()
    sum(itertools.repeat(0))


@app.handler("fault")
async def fault() -> None:
    ctypes.string_at(0)
