"""Stacks: of coroutines that wait, and of processes that are asked by a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import coroutine
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from pulse import procs
from pulse.handlers import make_handler
from pulse.protocol import MAX_STACK_CHARS, Assignment
from pulse.worker import stacks
from pulse.worker.attempt import Attempt
from pulse.worker.stacks import STACK_SIGNAL, StackFile, join, take, waits_at, where_is

pytestmark = pytest.mark.anyio

LISTENS = """
import signal, sys
from pulse.worker import stacks

def nap():
    while True:
        signal.pause()

stacks.listen(int(sys.argv[1]))
print("up", flush=True)
nap()
"""


# A handler of the signal in C, as faulthandler's is, that takes its time: main waits without the interpreter's lock.
IS_SLOW = """
import ctypes, os, signal, sys, time
fd = int(sys.argv[1])

@ctypes.CFUNCTYPE(None, ctypes.c_int)
def dump(_):
    os.write(fd, b"first\\n")
    time.sleep(0.2)
    os.write(fd, b"last\\n")

libc = ctypes.CDLL(None)
libc.signal(signal.SIGRTMIN + 7, dump)
print("up", flush=True)
while True:
    libc.pause()
"""


@contextmanager
def napping(file: StackFile, program: str = LISTENS) -> Iterator[subprocess.Popen[bytes]]:
    """A process that listens, and does nothing else."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(file.fd)], pass_fds=(file.fd,), stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


@coroutine
def trap() -> Generator[str, None, None]:
    """Where an event loop would take over."""
    yield "trapped"


class Waiting:
    """Awaits something of its own, as libraries' objects do."""

    def __await__(self) -> Generator[Any, None, None]:
        return inner().__await__()


async def inner() -> None:
    """Wait in a generator."""
    await trap()


async def items() -> AsyncIterator[int]:
    """Wait in an object."""
    await Waiting()
    yield 1


async def outer() -> None:
    """Wait in an async generator."""
    async for _ in items():
        pass


async def endless(depth: int) -> None:
    """Wait in itself."""
    if depth:
        await endless(depth - 1)
    await trap()


class Task:
    """Something that runs a coroutine."""

    def __init__(self, running: Coroutine[Any, Any, None]) -> None:
        self._running = running

    def cancel(self) -> None:
        """Not in this test."""

    def get_coro(self) -> object:
        """The coroutine."""
        return self._running


def waiting(running: Coroutine[Any, Any, None]) -> Attempt:
    """An attempt whose handler waits."""
    attempt = Attempt(Assignment(b"i" * 16, 1, "n", "t", "{}", None, 30.0), make_handler("n", outer), 0.0)
    attempt.task, attempt.begun = Task(running), True
    running.send(None)
    return attempt


def calls(text: str) -> list[str]:
    """The names of the functions."""
    return [line.rpartition(" in ")[2] for line in text.splitlines() if line.startswith("  File ")]


def test_the_chain_goes_through_all_kinds_of_waiting() -> None:
    """Coroutines, async generators, objects with __await__, generators: each call once, outermost first."""
    running = outer()
    text = waits_at(waiting(running))
    assert text.splitlines()[0] == "The handler waits here (most recent call last):"
    assert calls(text) == ["outer", "items", "inner", "trap"]
    assert "    async for _ in items():" in text.splitlines()
    running.close()


def test_a_very_long_chain_is_cut() -> None:
    """A recursion does not make a stack without end."""
    running = endless(400)
    assert len(calls(waits_at(waiting(running)))) <= stacks._MAX_DEPTH
    running.close()


def test_nothing_is_made_up() -> None:
    """A handler that was not called yet, or is done, waits nowhere; its threads are shown all the same."""
    running = inner()
    attempt = waiting(running)
    running.close()
    assert waits_at(attempt) == ""
    attempt.task = None
    assert waits_at(attempt) == ""
    assert "in test_nothing_is_made_up" in where_is(attempt)


def test_a_stack_is_bounded_and_storable() -> None:
    """What comes first is kept; NUL is not."""
    text = join("a\0b", None, "", "ä" * MAX_STACK_CHARS)
    assert text.startswith("a\N{REPLACEMENT CHARACTER}b\nää")
    assert len(text.encode()) <= MAX_STACK_CHARS


async def test_another_process_is_asked() -> None:
    """It answers by itself, as often as it is asked; one that is stopped or gone does not, and is not harmed."""
    with closing(StackFile()) as file, napping(file) as process:
        pidfd = os.pidfd_open(process.pid)
        with anyio.fail_after(10):
            while "in nap\n" not in (await take(process.pid, pidfd, file) or ""):
                pass
        text = await take(process.pid, pidfd, file)
        assert text is not None
        assert text.count("in nap\n") == 1
        process.send_signal(signal.SIGSTOP)
        with anyio.fail_after(10):
            while procs.state(process.pid) != "T":
                await anyio.lowlevel.checkpoint()
        assert await take(process.pid, pidfd, file) is None
        assert not procs.is_pending(process.pid, STACK_SIGNAL)
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        assert await take(process.pid, pidfd, file) is None
        os.close(pidfd)


async def test_a_dump_that_takes_its_time_is_waited_for() -> None:
    """It is complete when the handler of the signal has returned, as the kernel shows; not when something is there."""
    with closing(StackFile()) as file, napping(file, IS_SLOW) as process:
        pidfd = os.pidfd_open(process.pid)
        for _ in range(2):
            assert await take(process.pid, pidfd, file) == "first\nlast\n"
        os.close(pidfd)


def test_a_closed_file_is_left_alone() -> None:
    """Its number may be another file's by now."""
    file = StackFile()
    os.write(file.fd, b"Thread\nFatal Python error: Aborted\n")
    assert file.read_fault() == "Fatal Python error: Aborted\n"
    file.close()
    with closing(StackFile()) as other:
        assert other.fd == file.fd
        os.write(other.fd, b"x")
        file.clear()
        file.close()
        assert (file.read(), file.read_fault(), other.read()) == ("", None, "x")


def test_who_blocks_a_signal() -> None:
    """Pending signals and threads that block them are seen from outside."""
    number = signal.SIGRTMIN + 3
    before = procs.blocking(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        assert procs.blocking(os.getpid(), number) - before == {str(threading.get_native_id())}
        assert not procs.is_pending(os.getpid(), number)
        if len(list(Path("/proc/self/task").iterdir())) == 1:  # another thread would take it, and all would die
            os.kill(os.getpid(), number)
            assert procs.is_pending(os.getpid(), number)
            assert signal.sigtimedwait({number}, 1) is not None
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    assert procs.blocking(os.getpid(), number) == before
