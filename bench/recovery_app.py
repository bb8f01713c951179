"""Handlers to be killed, stopped and poisoned; each says over a socket when it begins, and where."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from pathlib import Path

import pulse

app = pulse.App()
LISTENER = "BENCH_LISTENER"  # path of the datagram socket that hears of every start


def tell(ctx: pulse.Context, **more: object) -> None:
    """Tell the bench that this attempt begins."""
    told = {"job": ctx.job_id.hex, "attempt": ctx.attempt, "pid": os.getpid(), "at_s": time.monotonic(), **more}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(json.dumps(told).encode(), os.environ[LISTENER])


def lives(identity: str) -> bool:
    """Whether the process that a worker's identity names is there; a zombie is not."""
    pid, start_time = identity.split("/")[3].split(".")
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(") ")[2].split()
    except OSError:
        return False
    return fields[19] == start_time and fields[0] not in "ZX"


@app.handler("hold", topic="recovery")
async def hold(ctx: pulse.Context, child: bool = False) -> None:  # noqa: FBT002 - args come by keyword
    """Run until canceled; with *child* a process that was forked here holds the worker's sockets open."""
    before = ctx.previous.worker if ctx.previous is not None else None
    tell(ctx, before_lives=before is not None and lives(before))
    if child and ctx.attempt == 1 and os.fork() == 0:
        time.sleep(60)  # noqa: ASYNC251 - in the child, which has no loop
        os._exit(0)
    await asyncio.sleep(3600)


@app.handler("work", topic="recovery")
def work(ms: float) -> None:
    """An innocent."""
    time.sleep(ms / 1000)


@app.handler("poison", topic="recovery")
def poison() -> None:
    """Kill the worker."""
    os.kill(os.getpid(), signal.SIGKILL)
