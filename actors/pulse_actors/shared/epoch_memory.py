"""
What a dispatcher remembers of its database beside it: a small file in the state directory.

The file outlives the process, so that a database that was restored while nothing ran is noticed, too. It is replaced as
a whole. Several supervisors of a host may share a state directory, and a database: each has a file of its own.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections import deque
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import msgspec

from pulse.store.recovery.epochs import FIRST_HIGHEST

_FILES: Final = 16  # supervisors of one host that share a state directory
_ROOT: Final = 0


class Memory(msgspec.Struct, frozen=True):
    """
    What is remembered of a database.

    Attributes:
        lineage: Which one.
        instance: The witness that counts in it.
        counter: How far it has come, as was confirmed.
        seen_at: When that was, by the database's clock.
        epoch: The newest that was accepted.
        highest: No attempt that was handed out has a number above it.
        place: Server, timeline, start and table in one.
        system_id: Of the cluster.
        timeline: Of PostgreSQL.
        database: Under which hosts, ports and name it was used; "": from before that was kept.
    """

    lineage: UUID
    instance: UUID
    counter: int = 0
    seen_at: datetime | None = None
    epoch: int = 0
    highest: int = FIRST_HIGHEST
    place: str = ""
    system_id: str = ""
    timeline: int = 0
    database: str = ""


class MemoryFile:
    """
    The file of one database, owned by this process.

    A thread that writes may hang with the disk, for ever. Meanwhile no other one writes: so nothing that is written
    late comes over what is newer. The thread itself writes the newest that it finds, should it go on.

    Args:
        directory: The state directory, made when it is missing; None: there is none, and nothing is kept.

    Attributes:
        directory: As above.
        problem: Why nothing can be kept; None: it can.
    """

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self._path: Path | None = None
        self._lock: int | None = None
        self._busy = threading.Lock()  # held by the thread that uses the file
        self._newest: deque[Memory] = deque(maxlen=1)  # not written yet
        self.problem = "there is no state directory" if directory is None else None

    def open(self, lineage: UUID) -> Memory:
        """What is remembered of the database *lineage*; nothing but a new witness, where nothing is. Blocks."""
        with self._busy:  # a file that is written yet is not left to others
            self.close()
            self._newest.clear()
            try:
                self._path = self._own(lineage)
                kept = None if self._path is None else msgspec.json.decode(self._path.read_bytes(), type=Memory)
            except FileNotFoundError:
                kept = None
            except (OSError, msgspec.MsgspecError) as error:
                kept, self.problem = None, str(error)
        return kept if kept is not None and kept.lineage == lineage else Memory(lineage, uuid4())

    def _own(self, lineage: UUID) -> Path | None:
        if self.directory is None:
            return None
        self.directory.mkdir(0o711 if os.geteuid() == _ROOT else 0o700, parents=True, exist_ok=True)
        for number in range(_FILES):
            path = self.directory / f"database-{lineage}{f'.{number}' if number else ''}.json"
            lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            self._lock = lock
            return path
        self.problem = f"{_FILES} processes keep what they know of it in {self.directory}"
        return None

    def keep(self, memory: Memory) -> None:
        """Replace the file, or leave that to the thread that is at it; ``problem`` says why it is not kept. Blocks."""
        self._newest.append(memory)
        while self._newest:  # looked at after the release: who comes before it leaves it to this thread
            if not self._busy.acquire(blocking=False):
                self.hangs()
                return
            try:
                with suppress(IndexError):  # another thread has taken it
                    memory = self._newest.pop()
                    if self._path is not None:
                        self._replace(self._path, memory)
            finally:
                self._busy.release()

    def _replace(self, path: Path, memory: Memory) -> None:
        fresh = path.with_suffix(".new")
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, msgspec.json.encode(memory))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            fresh.replace(path)
            self.problem = None
        except OSError as error:
            self.problem = str(error)

    def hangs(self) -> None:
        """Say that it was not done in time."""
        self.problem = f"{self.directory} does not answer: reading or writing there hangs"

    def close(self) -> None:
        """Leave the file to others."""
        if self._lock is not None:
            with suppress(OSError):
                os.close(self._lock)
        self._lock = self._path = None
