"""Stacks: of coroutines that wait, and of processes that get a signal."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator
from contextlib import closing, contextmanager
from types import coroutine
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from pulse.app.handler import make_handler
from pulse.protocol import MAX_STACK_CHARS, Assignment
from pulse.system import processes
from pulse.worker.execution import stacks
from pulse.worker.execution.attempt import Attempt
from pulse.worker.execution.stacks import STACK_SIGNAL, StackFile, join, take, waits_at, where_is

pytestmark = [pytest.mark.anyio, pytest.mark.timed]

LISTENS = """
import signal, sys
from pulse.worker.execution import stacks

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


# Threads that call and return all the time, now with the interpreter's lock and now without.
IS_BUSY = """
import sys, threading
from pulse.worker.execution import stacks

def down(depth):
    if depth:
        return down(depth - 1)
    threading.Event().wait(0.001)

def busy():
    while True:
        down(20)

stacks.listen(int(sys.argv[1]))
for _ in range(16):
    threading.Thread(target=busy, daemon=True).start()
print("up", flush=True)
busy()
"""


# Threads of C code, which have no stack of Python's, and one that takes no signals.
HAS_OTHERS = """
import ctypes, signal, sys, threading
from pulse.worker.execution import stacks

libc = ctypes.CDLL(None)
pause = ctypes.cast(libc.pause, ctypes.c_void_p)
handle = ctypes.c_ulong()
for _ in range(12):
    libc.pthread_create(ctypes.byref(handle), None, pause, None)

def deaf():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    is_deaf.set()
    libc.pause()

is_deaf = threading.Event()
stacks.listen(int(sys.argv[1]))
threading.Thread(target=deaf, daemon=True).start()
is_deaf.wait()
print("up", flush=True)
while True:
    signal.pause()
"""


@contextmanager
def napping(file: StackFile, program: str = LISTENS) -> Iterator[subprocess.Popen[bytes]]:
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
    def __await__(self) -> Generator[Any, None, None]:
        return inner().__await__()


async def inner() -> None:
    await trap()


async def items() -> AsyncIterator[int]:
    await Waiting()
    yield 1


async def outer() -> None:
    others = (number for number in range(3))  # what it holds is not what it waits for
    async for _ in items():
        next(others)


async def endless(depth: int) -> None:
    if depth:
        await endless(depth - 1)
    await trap()


class Task:
    def __init__(self, running: Coroutine[Any, Any, None]) -> None:
        self._running = running

    def cancel(self) -> None:
        """Not in this test."""

    def get_coro(self) -> object:
        return self._running


def waiting(running: Coroutine[Any, Any, None]) -> Attempt:
    attempt = Attempt(Assignment(b"i" * 16, 1, "n", "t", "{}", None, 30.0), make_handler("n", outer), 0.0)
    attempt.task, attempt.begun = Task(running), True
    running.send(None)
    return attempt


def calls(text: str) -> list[str]:
    return [line.rpartition(" in ")[2] for line in text.splitlines() if line.startswith("  File ")]


def test_the_chain_goes_through_all_kinds_of_waiting() -> None:
    running = outer()
    text = waits_at(waiting(running))
    assert text.splitlines()[0] == "The handler waits here (most recent call last):"
    assert calls(text) == ["outer", "items", "inner", "trap"]
    assert "    async for _ in items():" in text.splitlines()
    running.close()


def test_a_very_long_chain_is_cut() -> None:
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
    text = join("a\0b", None, "", "ä" * MAX_STACK_CHARS)
    assert text.startswith("a\N{REPLACEMENT CHARACTER}b\nää")
    assert len(text.encode()) <= MAX_STACK_CHARS


def give_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine threads take long to answer."""
    for limit in ("TAKE_S", "_DEEP_S"):
        monkeypatch.setattr(stacks, limit, 60.0)


async def test_another_process_is_asked() -> None:
    """It answers by itself, each time; one that is stopped or gone does not, and is not harmed."""
    with closing(StackFile()) as file, napping(file) as process:
        pidfd = os.pidfd_open(process.pid)
        with anyio.fail_after(30):
            while "in nap\n" not in (await take(process.pid, pidfd, file) or ""):
                pass
        text = await take(process.pid, pidfd, file)
        assert text is not None
        assert text.count("in nap\n") == 1
        process.send_signal(signal.SIGSTOP)
        with anyio.fail_after(30):
            while processes.state(process.pid) != "T":
                await anyio.lowlevel.checkpoint()
        assert await take(process.pid, pidfd, file) is None
        assert not processes.is_pending(process.pid, process.pid, STACK_SIGNAL)
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        assert await take(process.pid, pidfd, file) is None
        os.close(pidfd)


async def test_a_dump_that_takes_its_time_is_waited_for() -> None:
    """It is complete when the signal handler has returned, as the kernel shows; not at its first bytes."""
    with closing(StackFile()) as file, napping(file, IS_SLOW) as process:
        pidfd = os.pidfd_open(process.pid)
        for _ in range(2):
            assert await take(process.pid, pidfd, file) == f"Main thread {process.pid} first\nlast\n"
        os.close(pidfd)


@pytest.mark.rest
async def test_to_be_asked_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each running thread dumps its own stack: reading another's could crash."""
    give_time(monkeypatch)
    with closing(StackFile()) as file, napping(file, IS_BUSY) as process:
        pidfd = os.pidfd_open(process.pid)
        with anyio.fail_after(30):  # the last of them may only just start
            while (await take(process.pid, pidfd, file) or "").count("in busy\n") < 17:
                pass
        for _ in range(60):
            text = await take(process.pid, pidfd, file)
            assert process.poll() is None
            assert text is not None
            parts = text.split("\n\n")
            assert len(parts) == 17
            assert all("in busy\n" in part for part in parts)
            assert parts[-1].startswith(f"Main thread {process.pid} (most recent call first):\n")
            assert len({part.split(" (")[0] for part in parts}) == 17
        os.close(pidfd)


@pytest.mark.rest
async def test_many_threads_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The main one's is kept: in a process of one job, it runs a plain handler."""
    give_time(monkeypatch)
    crowd = IS_BUSY.replace("range(16)", "range(90)")
    with closing(StackFile()) as file, napping(file, crowd) as process:
        pidfd = os.pidfd_open(process.pid)
        text = await take(process.pid, pidfd, file)
        assert text is not None
        assert len(text) == MAX_STACK_CHARS
        _, main, its = text.rpartition(f"\nMain thread {process.pid} (most recent call first):\n")
        assert main
        assert "in <module>" in its
        os.close(pidfd)


async def test_threads_that_cannot_tell_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of C code has no stack to show, one that blocks the signal gets none: the others are shown, and soon."""
    with closing(StackFile()) as file, napping(file, HAS_OTHERS) as process:
        pidfd = os.pidfd_open(process.pid)
        assert len(processes.threads(process.pid)) == 14
        give_time(monkeypatch)
        with anyio.fail_after(20):  # else it waits for a thread that has nothing to tell
            text = await take(process.pid, pidfd, file)
        assert text is not None
        assert text.count("(most recent call first)") == 1
        assert text.startswith("Main thread")
        (deaf,) = [t for t in processes.threads(process.pid) if processes.is_blocking(process.pid, t, STACK_SIGNAL)]
        assert not processes.is_pending(process.pid, deaf, STACK_SIGNAL), "it would die of it on some later day"
        os.close(pidfd)


async def test_nobody_else_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the process is gone its numbers may be another's: no signal goes to them."""
    with closing(StackFile()) as file, napping(file) as process, napping(file) as gone:
        pidfd = os.pidfd_open(gone.pid)
        gone.kill()
        gone.wait()
        assert await take(process.pid, pidfd, file) is None
        monkeypatch.setattr(processes, "state", lambda _: "S")
        assert await take(process.pid, pidfd, file) is None
        assert file.read() == ""
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
    number, own, pid = signal.SIGRTMIN + 3, threading.get_native_id(), os.getpid()
    assert not processes.is_blocking(pid, own, number)
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        assert processes.is_blocking(pid, own, number)
        assert not processes.is_pending(pid, own, number)
        processes.signal_thread(pid, own, number)
        assert processes.is_pending(pid, own, number)
        assert [one for one in processes.threads(pid) if processes.is_pending(pid, one, number)] == [own]
        assert signal.sigtimedwait({number}, 1) is not None
        assert not processes.is_pending(pid, own, number)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    assert not processes.is_blocking(pid, own, number)


def test_a_machine_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    with pytest.raises(OSError, match="tgkill on pdp11"):
        processes.signal_thread(os.getpid(), threading.get_native_id(), 0)
