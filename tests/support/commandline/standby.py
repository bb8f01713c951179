"""
A child that waits to be the interpreter that a warm process starts first: forked before that begins, with its imports.

A supervisor starts the template of its actors, and a pool its first handler process: each would import for some tenths
of a second. What they start later starts cold.
"""

from __future__ import annotations

import fcntl
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from pulse.system.processes import environment_start, show_command_line

_AT_START: Final = ("PYTHON", "LC_", "LANG", "LD_")  # variables that an interpreter looks at when it starts
_OPTIONS: Final = {"stdin", "env", "pass_fds", "start_new_session"}  # another one starts cold
_REQUEST_BYTES: Final = 100_000
_ABOVE: Final = 256  # no program of a test has so many descriptors
_FDS_MAX: Final = 16


class Order(NamedTuple):
    """What it becomes: its words, environment, and the numbers of the descriptors that it inherits."""

    words: list[str]
    env: dict[str, str]
    numbers: list[int]
    leads_session: bool


def at_start(env: Mapping[str, str]) -> dict[str, str]:
    """What an interpreter looks at."""
    return {key: value for key, value in env.items() if key.startswith(_AT_START)}


def be_shown(words: Sequence[str], env: Mapping[str, str]) -> None:
    """Have these words and this environment, also where the kernel shows them: the start has left room for them."""
    sys.orig_argv[:] = words
    show_command_line(words)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    room = len(Path("/proc/self/environ").read_bytes())
    block = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in env.items())
    assert len(block) < room, "the start has left too little room"
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(environment_start())
        memory.write(block.ljust(room, b"\0"))


def lend(module: str) -> None:
    """Let the first ``python -m MODULE`` that this process starts be a child that is forked now."""
    orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if not pid:
        orders.close()
        _become(theirs)
    theirs.close()
    standby = [pid]
    cold = subprocess.Popen

    def start(words: Sequence[str], **options: Any) -> Any:
        flags = [word for word in words[1:] if word != "-P"]
        is_wanted = standby and words[0] == sys.executable and flags[:2] == ["-m", module]
        as_usual = options.keys() == _OPTIONS and options["stdin"] == subprocess.DEVNULL
        if not (is_wanted and as_usual) or at_start(options["env"]) != at_start(os.environ):
            return cold(words, **options)
        order = Order(list(words), options["env"], list(options["pass_fds"]), options["start_new_session"])
        with orders:
            socket.send_fds(orders, [json.dumps(order).encode()], order.numbers)
        return Child(words, standby.pop())

    subprocess.Popen = start  # type: ignore[misc,assignment]


class Child:
    """As much of a Popen as pools and supervisors use."""

    def __init__(self, words: Sequence[str], pid: int) -> None:
        self.args: Final = words
        self.pid: Final = pid
        self.returncode: int | None = None

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


def _become(orders: socket.socket) -> None:
    """Wait for the order, and carry it out; without one, end with the parent."""
    data, passed, _, _ = socket.recv_fds(orders, _REQUEST_BYTES, _FDS_MAX)
    if not data:
        os._exit(0)
    order = Order(*json.loads(data))
    kept = [fcntl.fcntl(one, fcntl.F_DUPFD, _ABOVE) for one in passed]
    orders.detach()
    os.closerange(3, _ABOVE)
    for one, number in zip(kept, order.numbers, strict=True):
        os.dup2(one, number)
        os.close(one)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if order.leads_session:
        os.setsid()
    be_shown(order.words, order.env)
    first = order.words.index("-m") + 1
    if "-P" not in order.words[:first]:
        sys.path.insert(0, str(Path.cwd()))
    sys.argv[1:] = order.words[first + 1 :]
    for name in (order.words[first], f"{order.words[first]}.__main__"):
        sys.modules.pop(name, None)  # it runs as the main module
    runpy.run_module(order.words[first], run_name="__main__", alter_sys=True)
    sys.exit(0)
