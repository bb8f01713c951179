"""
Gives the real modules the simulated kernel.

The machine of the calling process answers for ``os``, ``signal``, /proc and sockets. A context variable says which
process calls, so this is done once for all runs.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import types
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, Final
from unittest import mock
from uuid import NAMESPACE_DNS, UUID, uuid5

import anyio
import anyio.abc
import anyio.to_thread
import structlog
import trio

from pulse.client import async_transport
from pulse.client.discovery import LocalSocket
from pulse.system import process_tree, processes
from pulse.worker.session import reconnect
from pulse_actors.dispatcher import main
from pulse_actors.dispatcher.epochs import witness
from pulse_actors.dispatcher.liveness import process_watch
from pulse_actors.dispatcher.net import session
from pulse_actors.shared import identity
from pulse_actors.shared.epoch_memory import Memory
from tests.simulation.machine.machine import Machine
from tests.simulation.machine.process import PROCESS, Process
from tests.simulation.machine.wire import End

STATE_DIR: Final = Path("/simulated/state")
SOCKET: Final = Path("/simulated/pulse.sock")


def _machine() -> Machine:
    return PROCESS.get().machine


def _look_up(pid: int) -> Process | None:
    return _machine().look_up(pid)


def _look_up_or_raise(pid: int) -> Process:
    process = _look_up(pid)
    if process is None:
        raise ProcessLookupError
    return process


# pulse.system.processes


def _start_time(pid: int) -> int:
    process = _look_up(pid)
    return 0 if process is None else process.start_time


def _state(pid: int) -> str:
    process = _look_up(pid)
    return "" if process is None else process.state


def _lives(pid: int, start_time_ticks: int) -> bool:
    return _start_time(pid) == start_time_ticks and _state(pid) not in {"Z", "X", ""}


def _parent(pid: int) -> int:
    process = _look_up(pid)
    return 0 if process is None or process.parent is None else process.parent.pid


def _exit_status(_pid: int, pidfd: int) -> int | None:
    return _machine().of_pidfd(pidfd).status


def _uptime_s() -> float:
    return trio.current_time() - _machine().up_since_s


def _boot_id() -> str:
    return _machine().boot_id


def _pid_namespace(pid: int | None = None) -> int:
    process = PROCESS.get() if pid is None else _look_up(pid)
    return 0 if process is None else process.pidns


# os and signal, as identity, deaths and visit use them


def _may_signal(process: Process) -> bool:
    return PROCESS.get().uid in {0, process.uid}


def _kill(pid: int, number: int) -> None:
    process = _look_up_or_raise(pid)
    if not _may_signal(process):
        raise PermissionError
    _machine().signal(process, number, PROCESS.get())


def _killpg(pid: int, number: int) -> None:
    assert number == signal.SIGKILL
    _machine().kill_group(pid)


def _getpgid(pid: int) -> int:
    return pid if _look_up_or_raise(pid).leads_group else 1


def _pidfd_open(pid: int) -> int:
    return _machine().open_pidfd(_look_up_or_raise(pid))


def _pidfd_send_signal(pidfd: int, number: int) -> None:
    process = _machine().of_pidfd(pidfd)
    if process.dead and process.reaped:
        raise ProcessLookupError
    if not _may_signal(process):
        raise PermissionError
    _machine().signal(process, number, PROCESS.get())


def _close(fd: int) -> None:
    _machine().close(fd)


async def _wait_readable(fd: int) -> None:
    await _machine().of_pidfd(fd).died.wait()


def _mark_of(pid: int) -> str | None:
    process = _look_up(pid)
    return process.name if process is not None and process.parent is not None else None


async def _end_tree(mark: str) -> int:
    await trio.lowlevel.checkpoint()
    return _machine().kill_marked(mark)


def _kill_orphans() -> int:
    return _machine().kill_orphans()


async def _run_sync(function: Callable[..., object], *args: object, **_: object) -> object:
    await trio.lowlevel.checkpoint()
    answer = function(*args)
    return await answer if inspect.isawaitable(answer) else answer


def _user_of(host: identity.Host, name: str) -> int | None:
    found = identity.process_of(host, name)
    if found is None or not processes.lives(*found):
        return None
    return _look_up_or_raise(found[0]).uid


# The socket


async def _connect_unix(_path: object) -> End:
    await trio.lowlevel.checkpoint()
    process = PROCESS.get()
    return process.machine.connect(process)


class _Listener:
    async def accept(self) -> End:
        return await _machine().accept()


async def _from_socket(_socket: object) -> _Listener:
    return _Listener()


# The state directory


class _MemoryFile:
    """What a dispatcher remembers of the database; it survives its end, and a loss of power."""

    problem = None

    def __init__(self, _directory: object) -> None:
        self.directory = STATE_DIR

    def open(self, lineage: UUID) -> Memory:
        machine = _machine()
        return machine.state_dir.get(lineage) or Memory(lineage, uuid5(NAMESPACE_DNS, machine.name))

    def keep(self, memory: Memory) -> None:
        process = PROCESS.get()
        if not process.dead:
            process.machine.state_dir[memory.lineage] = memory

    def hangs(self) -> None:
        """It was slow: a machine that stops for a while while it writes."""


# Logs


def _record(_logger: object, method: str, event: MutableMapping[str, Any]) -> str:
    process = PROCESS.get(None)
    if process is not None and not process.dead:
        process.machine.world.logged(process, method, event)
    raise structlog.DropEvent


def _facade(real: types.ModuleType, **changed: Callable[..., Any]) -> Any:
    class Facade:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    facade = Facade()
    for name, function in changed.items():
        setattr(facade, name, function)
    return facade


@contextlib.contextmanager
def installed() -> Iterator[None]:
    kernel = _facade(
        os, kill=_kill, killpg=_killpg, getpgid=_getpgid, getsid=_getpgid, pidfd_open=_pidfd_open, close=_close
    )
    changed: list[tuple[object, str, object]] = [
        (processes, "start_time", _start_time),
        (processes, "state", _state),
        (processes, "lives", _lives),
        (processes, "parent", _parent),
        (processes, "exit_status", _exit_status),
        (processes, "uptime_s", _uptime_s),
        (processes, "boot_id", _boot_id),
        (processes, "pid_namespace", _pid_namespace),
        (processes, "oom_kills", lambda _pid: None),
        (process_tree, "mark_of", _mark_of),
        (process_tree, "end_tree", _end_tree),
        (process_tree, "kill_orphans", _kill_orphans),
        (anyio.to_thread, "run_sync", _run_sync),
        (identity, "os", kernel),
        (identity, "user_of", _user_of),
        (process_watch, "os", kernel),
        (process_watch, "signal", _facade(signal, pidfd_send_signal=_pidfd_send_signal)),
        (session, "os", kernel),
        (witness, "MemoryFile", _MemoryFile),
        (main, "socket", types.SimpleNamespace(socket=lambda fileno: fileno)),
        (anyio, "wait_readable", _wait_readable),
        (anyio, "connect_unix", _connect_unix),
        (anyio.abc.SocketListener, "from_socket", _from_socket),
        (async_transport, "why_not", lambda _target: None),
        (reconnect, "find_servers", lambda _socket: [LocalSocket(SOCKET, named=True)]),
    ]
    logging = structlog.get_config()
    structlog.configure(processors=[_record], wrapper_class=structlog.make_filtering_bound_logger(0))
    try:
        with contextlib.ExitStack() as stack:
            for where, name, what in changed:
                stack.enter_context(mock.patch.object(where, name, what))
            yield
    finally:
        structlog.configure(**logging)
