"""The processes that try mutants: forks of one pytest, a few at once, each with a time by which it must have got on."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import select
import signal
import struct
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import psutil

from tests.mutants.judging import leftovers
from tests.support.servers.postgres import Postgres

SURVIVED, KILLED, UNFIT, HUNG, LEFT_OUT = 0, 1, 2, 3, 4  # what becomes of a fork
START_S: Final = 6.0  # for what a fork does before it says itself how long it takes
_PR_SET_PDEATHSIG: Final = 1
_SLOT: Final = struct.Struct("di")  # until when it must have got on; the test that it is at
_LOOK_S: Final = 0.2
_WAITING: Final = 3  # so many times as many may wait as work
_IDLE_PERCENT: Final = 60.0  # of the processors' time

Run: TypeAlias = Callable[[int], int]
Ended: TypeAlias = Callable[[int, int, int], None]


@dataclass(frozen=True, slots=True)
class Fork:
    pid: int
    pidfd: int
    slot: int
    ended: Ended


@dataclass(slots=True, eq=False)
class Processors:
    """Whether those of this machine have nothing to do."""

    _since_s: float = field(default_factory=time.monotonic)

    def idle_for_a_while(self) -> bool:
        """Most of the time since this was asked the last time; False if that was just now."""
        now_s = time.monotonic()
        if now_s - self._since_s < _LOOK_S:
            return False
        self._since_s, part = now_s, psutil.cpu_times_percent()
        return part.idle + part.iowait > _IDLE_PERCENT


@dataclass(slots=True, eq=False)
class Forks:
    """
    Runs functions in forks of this process.

    Args:
        directory: For files: ``output-SLOT`` has what the last fork of a slot has printed.
        side_by_side: How many work at once; more while the machine idles, for then these wait.
        server: Where their databases are made, and dropped when they end; None: they make none.
        until_s: When all end (time.monotonic): what runs is killed, what waits does not begin.
    """

    directory: Path
    side_by_side: int
    server: Postgres | None
    until_s: float = math.inf
    _running: list[Fork] = field(default_factory=list[Fork])
    _waiting: deque[tuple[Run, Ended]] = field(default_factory=deque[tuple[Run, Ended]])
    _board: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 4096))
    _processors: Processors = field(default_factory=Processors)

    def put_off(self, run: Run, ended: Ended) -> None:
        """
        Have a fork do something as soon as there is room; what *ended* does next begins so.

        Args:
            run: Gets the slot of the fork, and returns its exit code.
            ended: Gets its exit code (HUNG: it did not get on; LEFT_OUT: the time was over), the number of the test
                that it was at, and its slot.
        """
        self._waiting.append((run, ended))

    def start(self, run: Run, ended: Ended) -> None:
        """The same; returns when it has begun."""
        self.put_off(run, ended)
        while self._waiting:
            self._step()

    def drain(self) -> None:
        """Return when all have ended."""
        while self._waiting or self._running:
            self._step()

    def kill(self) -> None:
        for one in self._running:
            leftovers.end(one.pid)

    def get_on(self, slot: int, limit_s: float, number: int = -1) -> None:
        """Called in a fork: it is at a test, or before all, and must have got on after *limit_s*."""
        _SLOT.pack_into(self._board, slot * _SLOT.size, time.monotonic() + limit_s, number)

    def _step(self) -> None:
        """Begin what waits first, or wait until one ends."""
        if not self._waiting or not self._has_room():
            self._wait()
        elif time.monotonic() < self.until_s:
            self._begin(*self._waiting.popleft())
        else:
            _, ended = self._waiting.popleft()
            ended(LEFT_OUT, -1, -1)

    def _has_room(self) -> bool:
        left = self.side_by_side - len(self._running)
        return left > 0 or (left > -_WAITING * self.side_by_side and self._processors.idle_for_a_while())

    def _begin(self, run: Run, ended: Ended) -> None:
        slot = min(set(range(len(self._running) + 1)) - {one.slot for one in self._running})
        self.get_on(slot, START_S)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _child(lambda: run(slot), self.directory / f"output-{slot}")
        self._running.append(Fork(pid, os.pidfd_open(pid), slot, ended))

    def _wait(self) -> None:
        ready, _, _ = select.select([one.pidfd for one in self._running], [], [], _LOOK_S)
        now_s = time.monotonic()
        for one in list(self._running):
            until_s, number = _SLOT.unpack_from(self._board, one.slot * _SLOT.size)
            if one.pidfd not in ready and now_s < min(until_s, self.until_s):
                continue
            leftovers.end(one.pid)  # what hangs, or what the tests of a mutant have left
            _, status = os.waitpid(one.pid, 0)
            os.close(one.pidfd)
            self._running.remove(one)
            if self.server is not None:
                self.server.drop_of(one.pid)
            code = os.waitstatus_to_exitcode(status)
            if one.pidfd not in ready:
                code = HUNG if until_s <= now_s else LEFT_OUT
            one.ended(code, number, one.slot)
            print(".", end="", flush=True)  # noqa: T201 - progress


def _child(run: Callable[[], int], output: Path) -> None:
    code = UNFIT
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        leftovers.mark()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with output.open("wb") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
        code = run()
    except BaseException:  # noqa: BLE001 - a mutant may raise whatever there is
        code = KILLED
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)
