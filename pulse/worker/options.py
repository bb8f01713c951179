"""The options of a pool and of its handler processes."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import socket
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from pulse.routes import Routes
from pulse.system import processes as procs

__all__ = [
    "Backend",
    "HostOptions",
    "PoolOptions",
    "PoolTopics",
    "ZygoteOptions",
    "import_loop",
    "loop_options",
    "received",
    "sent",
    "worker_name",
]

Backend = Literal["asyncio", "trio"]
LogFormat = Literal["json", "console"]
_HOST_CHARACTERS: Final = 40  # of the 64 of a worker's name: the rest is namespace, pid and slot
_MACHINE: Final = 0xEFFFFFFC  # Linux's initial pid namespace; all others belong to containers


class PoolTopics(msgspec.Struct, frozen=True, kw_only=True):
    """
    What decides which topics a pool serves, and which schedules it declares.

    Attributes:
        named: The topics to serve; None: those of the handlers, and ``default``.
        queue: The queue that it works for; None: there are not several.
        routes: Which queue each topic belongs to, if there are several.
    """

    named: tuple[str, ...] | None = None
    queue: str | None = None
    routes: Routes | None = None


class PoolOptions(msgspec.Struct, frozen=True, kw_only=True):
    """
    One pool of handler processes.

    Attributes:
        app: ``module:app``.
        processes: Handler processes, each with its own interpreter.
        concurrency: Handlers that run at once in each of them.
        spares: Processes that have loaded the app and wait to replace one that dies, where none can be forked.
        preload: Whether the app is loaded once, and handler processes are forked from there.
        topics: Which topics it serves.
        socket: The server's socket; None: it is looked for where servers put it.
        backend: Event loop that the handlers run on.
        drain_s: Longest time for running handlers to end when the pool stops, seconds.
        obey_s: Longest time for a hung handler to end after it was stopped, seconds; then its process is killed.
        log_level: Lowest level that is logged.
        log_format: None: console on a terminal, JSON elsewhere.
    """

    app: str
    processes: int = 1
    concurrency: int = 10
    spares: int = 1
    preload: bool = True
    topics: PoolTopics = PoolTopics()
    socket: str | None = None
    backend: Backend = "asyncio"
    drain_s: float = 30.0
    obey_s: float = 5.0
    log_level: str = "info"
    log_format: LogFormat | None = None


class HostOptions(msgspec.Struct, frozen=True, kw_only=True):
    """
    One handler process of a pool.

    Attributes:
        pool: Options of the pool.
        parent_pid: The pool parent; if it dies, this process ends.
        name: This worker's own name; '' until it gets one.
        name_fd: Where the name arrives: a line, or the end of the stream if it is not needed.
        notes_fd: For notes to the parent.
        stack_fd: For the threads' stacks when the parent asks for them.
        control_fd: If this is the template: its end of the socket to the parent.
        directory: The parent's, where the app is looked for, too, whenever it is loaded.
    """

    pool: PoolOptions
    parent_pid: int
    name: str = ""
    name_fd: int
    notes_fd: int
    stack_fd: int
    control_fd: int | None = None
    directory: str = "."


@contextlib.contextmanager
def sent(told: HostOptions) -> Generator[int]:
    """A descriptor to inherit, for ``received``; a command line holds 128 KiB, and all users can read it."""
    with os.fdopen(os.memfd_create("pulse-options", os.MFD_CLOEXEC), "wb", buffering=0) as file:
        file.write(msgspec.json.encode(told))
        file.seek(0)
        yield file.fileno()


def received(fd: int) -> HostOptions:
    """What the parent has sent by *fd*, which is closed."""
    with open(fd, "rb") as file:
        return msgspec.json.decode(file.read(), type=HostOptions)


class ZygoteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """
    The zygote of a handler process.

    Attributes:
        pool: Options of the pool.
        name: The worker's own name.
        parent_pid: The handler process; if it dies, so do the zygote and the cells.
        control_fd: The zygote's end of the socket between the two.
    """

    pool: PoolOptions
    name: str
    parent_pid: int
    control_fd: int


def loop_options(backend: Backend) -> dict[str, Any]:
    """Options of ``anyio.run``: uvloop, if it is installed."""
    return {"use_uvloop": importlib.util.find_spec("uvloop") is not None} if backend == "asyncio" else {}


def import_loop(backend: Backend) -> None:
    """Import what an event loop needs: once, for all processes that are forked afterwards."""
    importlib.import_module(f"anyio._backends._{backend}")
    if loop_options(backend).get("use_uvloop"):
        importlib.import_module("uvloop")


def worker_name(slot: int | str) -> str:
    """
    ``host-pid-slot``, with the characters and length that a worker's name may have.

    In a container ``host-namespace-pid-slot``: the containers of a pod share a host name, and each has a pid 1.
    """
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:_HOST_CHARACTERS] or "host"
    namespace = procs.pid_namespace()
    process = os.getpid() if namespace in {0, _MACHINE} else f"{namespace}-{os.getpid()}"
    return f"{host}-{process}-{slot}"


def absolute_socket(path: str | os.PathLike[str] | None) -> str | None:
    """A socket path that still means the same after a change of directory."""
    return None if path is None else str(Path(path).absolute())
