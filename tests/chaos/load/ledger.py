"""
The ledger: what producers and handlers did, written by themselves, outside of everything that pulse knows.

Each process appends to its own file, one line before and one after each act, in one write: a line survives a kill in
the next instruction. All processes are on one machine, so all times are of one monotonic clock.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from pulse.system import processes

GOVERNED_TOPIC: Final = "governed"  # where the policy is changed while it is in use
LIMITED_TOPIC: Final = "limited"  # goes by a limit of its name
MOST: Final = 4  # of its jobs at once
MOST_OF_A_GROUP: Final = 2
ORDERED_TOPIC: Final = "ordered"  # whose groups are sequences
VARIABLE: Final = "CHAOS_LEDGER"  # names the directory
_LOCKS: Final = "running.locks"
_SUFFIX: Final = ".jsonl"
_FLOCK: Final = struct.Struct("hhqqi4x")  # of x86-64 and arm64
_OFFSET_MASK: Final = (1 << 62) - 1


@dataclass(frozen=True, slots=True)
class Line:
    """
    One act.

    Attributes:
        act: ``intent``, ``acked``, ``not_new`` of producers; ``start``, ``end``, ``overlap`` and more of handlers.
        attempt: Of handlers; 0 of producers.
        at_s: When, monotonic.
        born: When the process that wrote it had started, in clock ticks: a pid may be used again.
        host: Where that was: the subdirectory of its file; '': there are no hosts.
    """

    act: str
    job: UUID
    attempt: int
    pid: int
    at_s: float
    facts: dict[str, Any] = field(default_factory=dict)
    born: int = 0
    host: str = ""

    @property
    def process(self) -> tuple[int, int]:
        return self.pid, self.born


class Ledger:
    """The ledger as one process writes it; made anew by a fork."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._pid = 0
        self._descriptor = -1
        self._locks = -1
        self._running: set[UUID] = set()
        self._turn = threading.Lock()

    def write(self, act: str, job: UUID, attempt: int = 0, **facts: Any) -> None:
        self._reopen()
        pid = os.getpid()
        line = (
            [act, str(job), attempt, pid, time.monotonic(), facts]
            if facts
            else [act, str(job), attempt, pid, time.monotonic()]
        )
        data = json.dumps(line).encode() + b"\n"
        written = os.write(self._descriptor, data)
        assert written == len(data)

    def enter(self, job: UUID) -> int | None:
        """
        Hold *job*'s byte of the lock file while its handler runs; None, or the pid of a process that holds it.

        The kernel releases it when a process dies, and no child inherits it, so its holder really runs the job.
        """
        self._reopen()
        with self._turn:
            if job in self._running:
                return os.getpid()
            try:
                fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _offset(job))
            except OSError:
                return self._holder(job)
            self._running.add(job)
        return None

    def leave(self, job: UUID) -> None:
        with self._turn:
            if job in self._running:
                self._running.remove(job)
                fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, _offset(job))

    def _holder(self, job: UUID) -> int:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _offset(job), 1, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(self._locks, fcntl.F_GETLK, asked))
        return int(pid) if kind != fcntl.F_UNLCK else 0

    def _reopen(self) -> None:
        pid = os.getpid()
        if pid == self._pid:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        name = f"{pid}.{processes.start_time(pid)}{_SUFFIX}"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(self.directory / name, flags, 0o600)
        self._locks = os.open(self.directory / _LOCKS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._running, self._turn, self._pid = set(), threading.Lock(), pid


def read(directory: Path) -> list[Line]:
    """What was written, on all hosts, in the order of time; half a line at the end of a file is left out."""
    files = {"": directory, **{one.name: one for one in directory.glob("*/")}}
    lines = itertools.chain.from_iterable(
        _lines(path, host) for host, place in files.items() for path in place.glob(f"*{_SUFFIX}")
    )
    return sorted(lines, key=lambda line: line.at_s)


def _lines(path: Path, host: str) -> Iterator[Line]:
    *whole, _ = path.read_text("utf-8").split("\n")
    born = int(path.stem.rpartition(".")[2])
    for text in whole:
        act, job, attempt, pid, at_s, *more = json.loads(text)
        yield Line(act, UUID(job), attempt, pid, at_s, more[0] if more else {}, born, host)


def _offset(job: UUID) -> int:
    return job.int & _OFFSET_MASK
