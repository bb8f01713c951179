"""Handlers to be killed, stopped and poisoned; each says when it begins, and where, over a socket or in a file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pulse
from pulse.system import processes

app = pulse.App()
LISTENER = "BENCH_LISTENER"  # path of the datagram socket that hears of every start of `hold`
RUNS = "BENCH_RUNS"  # path of the file that has a line for every start of `work`
CHILD_S = 60  # a child that nobody ends by then ends itself


def tell(ctx: pulse.Context, **more: object) -> None:
    """Tell the bench that this attempt begins."""
    told = {"job": ctx.job_id.hex, "attempt": ctx.attempt, "pid": os.getpid(), "at_s": time.monotonic(), **more}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(json.dumps(told).encode(), os.environ[LISTENER])


def lives(identity: str) -> bool:
    """Whether the process that a worker's identity names is there; a zombie is not."""
    pid, start_time = identity.split("/")[3].split(".")
    return processes.lives(int(pid), int(start_time))


@contextlib.contextmanager
def child_process(kind: str) -> Iterator[int]:
    """The pid of a process that holds the worker's connection; of kind ``kept`` nobody can tell whose it was."""
    if kind == "kept":
        sockets = [int(one.name) for one in Path("/proc/self/fd").iterdir() if is_socket(one)]
        command = ["/bin/sleep", str(CHILD_S)]
        pid = subprocess.Popen(command, env={}, start_new_session=True, pass_fds=sockets).pid
    else:
        pid = os.fork()
    if pid == 0:
        time.sleep(CHILD_S)
        os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def is_socket(descriptor: Path) -> bool:
    """Whether it is one; what is closed is none."""
    try:
        return stat.S_ISSOCK(descriptor.stat().st_mode)
    except OSError:
        return False


@app.handler("hold", topic="recovery")
async def hold(ctx: pulse.Context, child: str = "") -> None:
    """Run until canceled; with *child* a process of that kind holds the worker's sockets open."""
    before = ctx.previous.worker if ctx.previous is not None else None
    with child_process(child) if child and ctx.attempt == 1 else contextlib.nullcontext(0) as pid:
        tell(ctx, child=pid, before_lives=None if before is None else lives(before))
        await asyncio.sleep(3600)


@app.handler("work", topic="recovery")
def work(ctx: pulse.Context, ms: float) -> None:
    """An innocent."""
    runs = os.open(os.environ[RUNS], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(runs, f"{ctx.job_id.hex}\n".encode())  # in one write: a line is whole, whatever happens next
    os.close(runs)
    time.sleep(ms / 1000)


@app.handler("nothing", topic="recovery")
async def nothing() -> None:
    """To be claimed and completed."""


@app.handler("poison", topic="recovery")
def poison() -> None:
    """Kill the worker."""
    os.kill(os.getpid(), signal.SIGKILL)
