"""
What a dispatcher remembers of its database: a small file in the state directory.

The file outlives the process, so that a restore while nothing ran is noticed, too. It is replaced as a whole. Several
supervisors of a host may share a state directory and a database: each has a file of its own.
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
        lineage: Id of the database.
        instance: This host's witness, the row whose counter it increments.
        counter: The last confirmed counter.
        seen_at: When that was, by the database's clock.
        epoch: The newest accepted epoch.
        highest: The highest attempt number that may have been handed out.
        place: Server, timeline, start and table in one.
        system_id: Identifier of the cluster.
        timeline: PostgreSQL's timeline.
        database: The hosts, ports and name of the database; "": the file is from before this was stored.
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
    The file for one database, owned by this process.

    A write may hang with the disk, for ever. Until it returns no other thread writes, so that late data never replaces
    newer data. The hanging thread writes the newest data itself if it goes on.

    Args:
        directory: The state directory, created if missing; None: nothing is stored.

    Attributes:
        directory: As above.
        problem: Why nothing can be stored; None: it can.
    """

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self._path: Path | None = None
        self._lock: int | None = None
        self._busy = threading.Lock()  # held by the thread that uses the file
        self._newest: deque[Memory] = deque(maxlen=1)  # not written yet
        self.problem = "there is no state directory" if directory is None else None

    def open(self, lineage: UUID) -> Memory:
        """What is stored about the database *lineage*, or a new witness if nothing is. Blocks."""
        with self._busy:  # a file that is still being written is not left to others
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
        """Replace the file, or leave that to the thread that writes it; ``problem`` says why it failed. Blocks."""
        self._newest.append(memory)
        while self._newest:  # checked after the release: a thread that came before it leaves the write to this one
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
        """Record that reading or writing took too long."""
        self.problem = f"{self.directory} does not answer: reading or writing there hangs"

    def close(self) -> None:
        """Release the file."""
        if self._lock is not None:
            with suppress(OSError):
                os.close(self._lock)
        self._lock = self._path = None
