"""
Shows where a handler is: the chain of coroutines in which an async one waits, and the stacks of all threads.

``where_is`` shows this process. Stacks of another process are taken by signals: there faulthandler writes the stack of
the thread that gets the signal into a file that the parent made. No Python code runs for that, so it works while C code
holds the interpreter; it fails only while the process is stopped, or deep in the kernel.

Each thread gets its own signal: faulthandler could write all stacks at once, but it reads them without the
interpreter's lock, and a thread that runs on meanwhile sooner or later makes it read freed memory, which kills the
process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

import anyio

from pulse.app.outcome import clean_text
from pulse.protocol import MAX_STACK_CHARS
from pulse.system import processes
from pulse.worker.execution.attempt import Attempt
from pulse.worker.execution.batch import called_by

__all__ = ["STACK_SIGNAL", "StackFile", "join", "listen", "own_threads", "take", "waits_at", "where_is"]

STACK_SIGNAL: Final = signal.SIGRTMIN + 7  # a signal that no other program in this field is known to use
TAKE_S: Final = 1.0  # for all of it: a thread needs a fraction of a millisecond, unless it is deep in the kernel
_FAULT: Final = "Fatal Python error"  # the first words of faulthandler's output at a fault
_OWN_HEAD: Final = "Stack "  # the first word of a thread's own stack; "(most recent call first)" follows
_FIRST_PAUSE_S: Final = 0.0001
_LAST_PAUSE_S: Final = 0.02
_SPEECHLESS_S: Final = 0.005  # a thread of C code writes nothing at all
_DEEP_S: Final = 0.25  # for a thread that is deep in the kernel; then the others get the signal
_WORKER_DIR: Final = str(Path(__file__).parents[1])
_MAX_DEPTH: Final = 200  # coroutines; a longer chain is a recursion


class _Names(NamedTuple):
    """Attributes of one kind of awaitable; for kinds without, only the garbage collector knows what they wait for."""

    frame: str = ""
    waits_for: str | None = None


_NAMES: Final = {
    "coroutine": _Names("cr_frame", "cr_await"),
    "generator": _Names("gi_frame", "gi_yieldfrom"),
    "async_generator": _Names("ag_frame", "ag_await"),
    "async_generator_asend": _Names(),  # anext() of an async generator
    "async_generator_athrow": _Names(),
    "coroutine_wrapper": _Names(),  # __await__() of a coroutine
}
_NO_ANSWER: Final = frozenset({"", "T", "t", "Z", "X", "x"})  # gone, or stopped: the signal would wait there


class StackFile:
    """
    A file in memory into which another process writes its stack.

    Attributes:
        fd: For that process to inherit; the file position is shared with it.
    """

    def __init__(self) -> None:
        self.fd: Final = os.memfd_create("pulse-stack", os.MFD_CLOEXEC)
        self._closed = False

    def clear(self) -> None:
        """Empty the file."""
        if not self._closed:
            os.ftruncate(self.fd, 0)
            os.lseek(self.fd, 0, os.SEEK_SET)

    def read(self) -> str:
        """Its contents; '' if it is closed."""
        data = b"" if self._closed else os.pread(self.fd, MAX_STACK_CHARS, 0)
        return data.decode("utf-8", "replace")

    def read_fault(self) -> str | None:
        """What was written when the process died of a fault; None: nothing."""
        text = self.read()
        at = text.find(_FAULT)
        return None if at < 0 else text[at:]

    def close(self) -> None:
        """Close this end."""
        if not self._closed:
            self._closed = True
            os.close(self.fd)


def listen(fd: int) -> None:
    """
    Let each thread of this process write its stack to *fd* at STACK_SIGNAL, and at a fault those of all threads.

    Without this call the signal ends the process.
    """
    os.set_inheritable(fd, False)
    faulthandler.register(STACK_SIGNAL, file=fd, all_threads=False, chain=False)
    faulthandler.enable(file=fd, all_threads=True)


async def take(pid: int, pidfd: int, file: StackFile) -> str | None:
    """
    The stacks of another process's threads, each as faulthandler prints it; the main thread comes last.

    Args:
        pid: Its pid; ``listen`` must have been called there.
        pidfd: Its pidfd: signals go to no other process.
        file: The file that it writes to; only one caller at a time may use it.

    Returns:
        At most MAX_STACK_CHARS characters; None: it is gone or stopped, or wrote nothing within a second.
    """
    give_up_s = time.monotonic() + TAKE_S
    parts: dict[int, str] = {}
    threads = sorted(processes.threads(pid), key=lambda one: (one != pid, -one))  # the main one must not be missed
    late = {one for one in threads if processes.is_pending(pid, one, STACK_SIGNAL)}  # from an earlier take
    try:
        for thread in threads:
            if time.monotonic() >= give_up_s or processes.state(pid) in _NO_ANSWER:
                break
            text = "" if thread in late else await _take_one(pid, pidfd, thread, file, give_up_s)
            awake = {one for one in late if not processes.is_pending(pid, one, STACK_SIGNAL)}
            if text and not awake:  # else it may be from a thread that got the signal earlier
                parts[thread] = _headed(text, pid, thread)
            late = {one for one in {*late, thread} - awake if processes.is_pending(pid, one, STACK_SIGNAL)}
    finally:
        if file.read_fault() is None:  # a later fault must not be appended to this
            file.clear()
    main = parts.pop(pid, "")
    others = "\n".join(parts.values())[: max(0, MAX_STACK_CHARS - len(main) - 1)]
    return "\n".join(filter(None, (others, main)))[:MAX_STACK_CHARS] or None


async def _take_one(pid: int, pidfd: int, thread: int, file: StackFile, give_up_s: float) -> str:
    """The stack of one thread; '' if it writes none."""
    if processes.is_blocking(pid, thread, STACK_SIGNAL):
        return ""
    file.clear()
    try:
        signal.pidfd_send_signal(pidfd, 0)  # its pid belongs to no other process
        processes.signal_thread(pid, thread, STACK_SIGNAL)
    except OSError:
        return ""
    asked_s, pause_s = time.monotonic(), _FIRST_PAUSE_S
    while time.monotonic() < min(give_up_s, asked_s + _DEEP_S):
        await anyio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)
        # While a signal handler runs, its thread blocks the signal: the kernel shows when the stack is complete.
        is_at_it = processes.is_pending(pid, thread, STACK_SIGNAL) or processes.is_blocking(pid, thread, STACK_SIGNAL)
        if not is_at_it and (file.read() or time.monotonic() - asked_s > _SPEECHLESS_S):
            break
    return file.read()


def _headed(text: str, pid: int, thread: int) -> str:
    """A heading with the thread's name, which faulthandler omits for a thread that writes its own stack."""
    who = "Main thread" if thread == pid else "Thread"
    return f"{who} {thread} {text.removeprefix(_OWN_HEAD)}"


def where_is(attempt: Attempt, threads: str | None = None) -> str:
    """
    Where the handler of a running attempt of this process is, for people.

    Args:
        attempt: The attempt; the caller must not run in its task.
        threads: The result of ``own_threads``, if known.
    """
    parts: list[str] = []
    handler, called = attempt.handler, called_by(attempt)
    if handler is not None and handler.is_async:
        parts.append(waits_at(attempt))
    elif hasattr(called, "thread"):
        parts.append(f"The handler runs in thread 0x{called.thread:016x}.")
    parts.append(own_threads() if threads is None else threads)
    return join(*parts)


def waits_at(attempt: Attempt) -> str:
    """The calls of an async handler, from the outermost to the one in which it waits; '' if there are none."""
    called = called_by(attempt)
    coroutine = called.task.get_coro() if called.task is not None and called.begun else None
    summary = traceback.StackSummary.extract(iter(_frames(coroutine)))
    return f"The handler waits here (most recent call last):\n{''.join(summary.format())}" if summary else ""


def own_threads() -> str:
    """The stacks of all threads of this process, as faulthandler prints them."""
    with contextlib.closing(StackFile()) as file:
        faulthandler.dump_traceback(file.fd, all_threads=True)
        return file.read()


def join(*parts: str | None) -> str:
    """One text of several, storable, at most MAX_STACK_CHARS long; the first ones are kept."""
    return clean_text("\n".join(part.rstrip("\n") for part in parts if part), MAX_STACK_CHARS)


def _frames(coroutine: object) -> list[tuple[FrameType, int]]:
    """The frames of a suspended coroutine and of all that it waits for, without the worker's own."""
    return [
        (frame, frame.f_lineno) for frame in _chain(coroutine) if not frame.f_code.co_filename.startswith(_WORKER_DIR)
    ]


def _chain(awaited: object) -> Iterator[FrameType]:
    for _ in range(_MAX_DEPTH):
        names = _NAMES.get(type(awaited).__name__)
        if names is None:
            return
        frame, awaited = getattr(awaited, names.frame, None), _next(awaited, names.waits_for)
        if isinstance(frame, FrameType):
            yield frame


def _next(waiting: object, waits_for: str | None) -> object:
    if waits_for is not None:
        return getattr(waiting, waits_for, None)
    return next((one for one in gc.get_referents(waiting) if type(one).__name__ in _NAMES), None)
