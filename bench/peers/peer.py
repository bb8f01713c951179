"""What a peer is: where it runs, what is said about it, and what the runner asks of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

SUBMIT_BATCH: Final = 1000  # jobs of one bulk call
MANY: Final = 1_000_000
STAMPS_S: Final = 20.0  # for all single jobs to have begun after the last one was submitted
POLL_S: Final = 0.005


class Unavailable(Exception):
    """This peer cannot be measured here; the message says why."""


class MeasureError(Exception):
    """This turn gave no figures; the message says why."""


@dataclass(frozen=True, slots=True)
class Facts:
    """
    What a reader has to know of a peer beside its figures.

    Attributes:
        settings: What is not its default.
        source: Which page of its documentation these come from.
        fence: Whether a worker that lost its job is kept from finishing it.
        keeps: What is left of a finished job.
        most_jobs: Jobs of a drain at most, so that it ends within its limit.
    """

    name: str
    version: str
    settings: str
    source: str
    fence: str
    keeps: str
    most_jobs: int = MANY


class Observer(Protocol):
    """A connection of the bench's own to a peer's database."""

    def value(self, sql: str, *args: object) -> int:
        """One number."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where one turn of a peer happens: a database and a directory that are new, and removed afterwards."""

    dsn: str
    directory: Path
    observer: Observer

    @property
    def log(self) -> Path:
        """The file for what its processes print."""
        return self.directory / "log"

    @property
    def stamps(self) -> Path:
        """The file to which the handler of single jobs adds how long each took to begin: a line, milliseconds."""
        return self.directory / "stamps"

    def stamps_ms(self, count: int) -> Sequence[float]:
        """
        So many of these, once they are there.

        Raises:
            MeasureError: Some jobs have not begun in time.
        """
        deadline_s = time.monotonic() + STAMPS_S
        while True:
            lines = self.stamps.read_text("ascii").split() if self.stamps.exists() else []
            if len(lines) >= count:
                return [float(line) for line in lines]
            if time.monotonic() > deadline_s:
                raise MeasureError(f"{len(lines)} of {count} single jobs have begun")
            time.sleep(POLL_S)


@dataclass(frozen=True, slots=True)
class Mark:
    """
    A moment.

    Attributes:
        at_s: Of the wall clock, which is the database's, too.
        called: What the handlers had counted, where they count.
    """

    at_s: float
    called: int


class Queue(Protocol):
    """A peer that is installed in a database."""

    def submit(self, count: int) -> None:
        """Submit so many jobs in one bulk call; they are committed when it returns."""
        ...

    def working(self) -> AbstractContextManager[None]:
        """One worker process runs inside."""
        ...

    def waiting(self) -> int:
        """Submitted jobs that no handler was called for, about; cheap, and good enough to pace a producer."""
        ...

    def mark(self) -> Mark:
        """This moment; cheap."""
        ...

    def finished(self, mark: Mark) -> int:
        """Jobs that were finished at that moment; may take a while, so ask when the measurement is over."""
        ...

    def left(self) -> int:
        """Jobs that are not finished, exactly."""
        ...

    def latencies_ms(self, count: int, per_second: float) -> Sequence[float]:
        """Of single jobs at an even pace, from the submit call to the start of the handler."""
        ...


class Peer(Protocol):
    """A job queue that can be measured."""

    @property
    def facts(self) -> Facts:
        """What there is to know of it."""
        ...

    def install(self, cache: Path) -> None:
        """
        Make its environment, unless it is there.

        Raises:
            Unavailable: It cannot be made here.
        """
        ...

    def open(self, place: Place) -> AbstractContextManager[Queue]:
        """Install it in the place's database; everything it started has ended afterwards."""
        ...


Answer = Mapping[str, object]
