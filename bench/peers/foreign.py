"""A peer that runs in an environment of its own: a program of three verbs, prepare, produce and work."""

from __future__ import annotations

import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import ClassVar, Final

from bench.peers.child import Child, running
from bench.peers.install import clean_environment, node_environment, python_environment
from bench.peers.peer import Facts, Mark, Place, Queue

NODE_PROGRAMS: Final = Path(__file__).parent / "node"


class Foreign(ABC):
    """
    What such peers share; each adds its facts, its environment and where it keeps its jobs.

    Attributes:
        finished_sql: Number of jobs that were finished at $1, Unix seconds; empty: it keeps none, and the calls of the
            handler are counted.
        left_sql: Number of jobs that are not finished; empty: it has no such table.
        ended_sql: Number of jobs that are finished, for a peer that keeps no more of them than that.
    """

    facts: ClassVar[Facts]
    finished_sql: ClassVar[str] = ""
    left_sql: ClassVar[str] = ""
    ended_sql: ClassVar[str] = ""

    @abstractmethod
    def install(self, cache: Path) -> None:
        """Make its environment, unless it is there."""

    @abstractmethod
    def command(self, verb: str, dsn: str, place: Place) -> Sequence[str]:
        """How to run its program."""

    def environment(self) -> Mapping[str, str]:
        """What its processes find."""
        return clean_environment()

    def services(self, place: Place) -> AbstractContextManager[str]:
        """What it needs beside itself; yields the address that its program is given."""
        return _just(place.dsn)

    @contextmanager
    def open(self, place: Place) -> Iterator[Queue]:
        """Prepare its schema, and start its producer."""
        with self.services(place) as dsn:
            with running(self.command("prepare", dsn, place), self.environment(), place.log) as prepare:
                prepare.wait()
            command = self.command("produce", dsn, place)
            with running(command, self.environment(), place.log, talks=True) as producer:
                producer.ask({"do": "hello"})
                yield ForeignQueue(self, dsn, place, producer)


class PythonPeer(Foreign):
    """One from PyPI; its program is the module of its name in `bench.peers.programs`."""

    requirements: ClassVar[Sequence[str]]
    program: ClassVar[str]

    def __init__(self) -> None:
        self._python = Path()

    def install(self, cache: Path) -> None:
        """Make its venv."""
        self._python = python_environment(cache, self.facts.name, self.requirements)

    def command(self, verb: str, dsn: str, place: Place) -> Sequence[str]:
        """Its interpreter, and the module."""
        module = f"bench.peers.programs.{self.program}"
        return [str(self._python), "-m", module, verb, dsn, str(place.directory)]


class NodePeer(Foreign):
    """One from npm; its program is a file in `bench/peers/node`."""

    requirement: ClassVar[str]
    program: ClassVar[str]

    def __init__(self) -> None:
        self._node, self._prefix = "", Path()

    def install(self, cache: Path) -> None:
        """Make its npm prefix."""
        self._node, self._prefix = node_environment(cache, self.facts.name, self.requirement)

    def command(self, verb: str, dsn: str, place: Place) -> Sequence[str]:
        """Node, and the file."""
        return [self._node, str(NODE_PROGRAMS / self.program), verb, dsn, str(place.directory)]

    def environment(self) -> Mapping[str, str]:
        """With the place of its packages, which are not beside the program."""
        return {**clean_environment(), "BENCH_PREFIX": str(self._prefix), "NODE_ENV": "production"}


class ForeignQueue:
    """It, installed in a database."""

    def __init__(self, peer: Foreign, dsn: str, place: Place, producer: Child) -> None:
        self._peer, self._dsn, self._place, self._producer = peer, dsn, place, producer
        self._submitted = 0

    def submit(self, count: int) -> None:
        """By its own bulk call, in the producer's process."""
        self._producer.ask({"do": "submit", "first": self._submitted, "count": count})
        self._submitted += count

    @contextmanager
    def working(self) -> Iterator[None]:
        """Its worker."""
        command = self._peer.command("work", self._dsn, self._place)
        with running(command, self._peer.environment(), self._place.log) as worker:
            worker.wait_for(self._place.directory / "ready")
            yield

    def waiting(self) -> int:
        """What no process of the worker has counted."""
        return self._submitted - self._called()

    def _called(self) -> int:
        return sum(_count(path) for path in self._place.directory.glob("count-*"))

    def mark(self) -> Mark:
        """With what the worker's processes have counted."""
        return Mark(time.time(), self._called())

    def finished(self, mark: Mark) -> int:
        """What is on record, where it keeps that."""
        sql = self._peer.finished_sql
        return self._place.observer.value(sql, mark.at_s) if sql else mark.called

    def left(self) -> int:
        """What is not finished."""
        if self._peer.ended_sql:
            return self._submitted - self._place.observer.value(self._peer.ended_sql)
        return self._place.observer.value(self._peer.left_sql) if self._peer.left_sql else self.waiting()

    def latencies_ms(self, count: int, per_second: float) -> Sequence[float]:
        """The producer takes the time at its call, the handler when it begins, both on the clock of the machine."""
        began_s = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, began_s + number / per_second - time.monotonic()))
            self._producer.ask({"do": "stamp"})
        return self._place.stamps_ms(count)


def _count(path: Path) -> int:
    data = path.read_bytes()
    return int(struct.unpack("<Q", data[:8])[0]) if len(data) >= 8 else 0  # noqa: PLR2004 - of an unsigned 64-bit number


@contextmanager
def _just(dsn: str) -> Iterator[str]:
    yield dsn
