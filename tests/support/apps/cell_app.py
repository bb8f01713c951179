"""The handlers of the tests of isolated jobs; most of them in two kinds: async and plain."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import anyio

import pulse
from tests.support.apps.worker_app import known, opened, serve_ends, tell, watch_lease

app = pulse.App()
serve_ends(app, isolate=True)
app.handler("tell", isolate=True)(tell)
app.handler("watch-lease", isolate=True)(watch_lease)


def whoami() -> dict[str, Any]:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    sockets = [str(link.readlink()) for link in links]
    return {
        "oom_score": int(Path("/proc/self/oom_score_adj").read_text()),
        "inherited": [link.name for link in links if int(link.name) > 2 and os.get_inheritable(int(link.name))],
        "pid": os.getpid(), "parent": os.getppid(), "group": os.getpgid(0), "threads": threading.active_count(),
        "sockets": sorted(name for name in sockets if name.startswith("socket:")),
    }  # fmt: skip


async def who(**given: Any) -> dict[str, Any]:
    return {**whoami(), "given": given}


def who_plain(**given: Any) -> dict[str, Any]:
    return {**whoami(), "given": given}


for _name, _isolate in (("who", True), ("here", False)):
    app.handler(_name, isolate=_isolate)(who)
    app.handler(f"{_name}-plain", isolate=_isolate)(who_plain)


@app.handler("wait", isolate=True)
async def wait(gate: str, started: str) -> str:
    """End when a file is there; tell by another one, with the pid, that the call began."""
    tell_pid(started)
    return await opened(gate)


@app.handler("wait-plain", isolate=True)
def wait_plain(gate: str, started: str, ctx: pulse.Context) -> str:
    tell_pid(started)
    while not Path(gate).exists():
        if ctx.cancelled:
            return f"asked to end, lease lost: {ctx.lease_lost}"
        time.sleep(0.005)
    return "through"


def tell_pid(path: str) -> None:
    early = Path(f"{path}-early")
    early.write_text(str(os.getpid()))
    early.rename(path)


@app.handler("echo", isolate=True)
async def echo(text: str) -> str:
    return text


@app.handler("deaf", isolate=True)
async def deaf(started: str) -> None:
    tell_pid(started)
    sum(itertools.repeat(0))


@app.handler("deaf-plain", isolate=True)
def deaf_plain(started: str) -> None:
    tell_pid(started)
    while True:
        pass


@app.handler("tell-plain", isolate=True)
def tell_plain(gate: str, ctx: pulse.Context) -> dict[str, object]:
    ctx.progress(0.5, "half way")
    ctx.checkpoint({"page": 3})
    while not Path(gate).exists():
        time.sleep(0.005)
    return known(ctx)


@app.handler("watch-lease-plain", isolate=True)
def watch_lease_plain(ctx: pulse.Context) -> str:
    while not ctx.lease_lost:
        time.sleep(0.005)
    return f"lost, cancelled: {ctx.cancelled}"


@app.handler("silent", isolate=True, stall_s=0.5)
async def silent(ctx: pulse.Context) -> None:
    """Tell progress for a second, then nothing."""
    for number in range(10):
        await ctx.progress(number)
        await anyio.sleep(0.1)
    await anyio.sleep_forever()


@app.handler("silent-plain", isolate=True, stall_s=0.5)
def silent_plain(ctx: pulse.Context) -> None:
    for number in range(10):
        ctx.progress(number)
        time.sleep(0.1)
    sum(itertools.repeat(0))


@app.handler("coroutine", isolate=True)
def coroutine() -> object:
    return anyio.sleep(1)


@app.handler("die")
def die(code: int = 7) -> None:
    """End the process without a word; isolated only when the server says so."""
    os._exit(code)


@app.handler("kill-itself", isolate=True)
async def kill_itself(number: int) -> None:
    os.kill(os.getpid(), number)
    await anyio.sleep_forever()


@app.handler("fault", isolate=True)
def fault() -> None:
    ctypes.string_at(0)


@app.handler("kill-its-parent-at", isolate=True)
def kill_its_parent_at(gate: str, started: str) -> None:
    tell_pid(started)
    while not Path(gate).exists():
        time.sleep(0.002)
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()


@app.handler("kill-its-group", isolate=True)
def kill_its_group() -> None:
    os.killpg(0, signal.SIGKILL)


@app.handler("orphan", isolate=True)
def orphan(gate: str, started: str) -> None:
    """Start processes that end by themselves, when those are gone that had made them; then wait."""
    script = "sleep 0.01 >/dev/null & echo $!"
    pids = [subprocess.check_output(["/bin/sh", "-c", script], text=True).strip() for _ in range(5)]
    early = Path(f"{started}-early")
    early.write_text(" ".join(pids))
    early.rename(started)
    while not Path(gate).exists():
        time.sleep(0.005)


@app.handler("eat", isolate=True, max_memory_bytes=512 * 2**20)
async def eat(step: int = 2**20) -> None:
    eaten = []
    while True:
        eaten.append(bytes(step))


@app.handler("eat-plain", isolate=True, max_memory_bytes=512 * 2**20)
def eat_plain(step: int = 2**20) -> None:
    eaten = []
    while True:
        eaten.append(bytes(step))


@app.handler("eat-crumbs", isolate=True, max_memory_bytes=512 * 2**20)
def eat_crumbs() -> None:
    crumb: tuple[object, ...] = ()
    beside = (None,) * 56  # the most that is still allocated as a small object
    while True:
        crumb = (crumb, *beside)


@app.handler("eat-all", isolate=True)
def eat_all() -> None:
    eaten = []
    while True:
        eaten.append(b"x" * 2**20)


@app.handler("diet", isolate=True, max_memory_bytes=4096)
def diet() -> None:
    """Have a lower memory limit than is in use already."""


@app.handler("compute", isolate=True, max_cpu_s=1)
async def compute() -> None:
    sum(itertools.repeat(0))


@app.handler("compute-plain", isolate=True, max_cpu_s=0.2)
def compute_plain() -> None:
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    sum(itertools.repeat(0))


@app.handler("spawn", isolate=True)
def spawn(started: str, end: str) -> None:
    """Leave a process of another session behind, which ignores what it can, and end in one of several ways."""
    child = subprocess.Popen(
        [sys.executable, "-c", "import os, time; os.fork() or os.setsid(); time.sleep(600)"], start_new_session=True
    )
    Path(started).write_text(str(child.pid))
    match end:
        case "return":
            return
        case "die":
            os._exit(3)
        case _:
            signal.pause()


@app.handler("fork", isolate=True)
def fork() -> int | str:
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return "the child"


@app.handler("write-junk", isolate=True)
def write_junk() -> None:
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith("socket:"):
                os.write(int(link.name), b"\xff" * 64)


@app.handler("close-all", isolate=True)
def close_all() -> str:
    os.closerange(3, 256)
    return "done"


@app.handler("mumble", isolate=True)
def mumble() -> None:
    sys.stderr.write("half a line")
