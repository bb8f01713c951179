"""What the Python programs share: the three verbs, the producer's conversation, and the count of handler calls."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

PAD: Final = "x" * 170  # args of about 200 bytes, as in bench.load
SLOT_BYTES: Final = 8


class Tally:
    """
    Counts what the handlers of this process do, where the bench can read it at any time.

    Args:
        directory: A file per process is made there.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pid = self._count = 0

    def count(self) -> None:
        """A handler ran."""
        if os.getpid() != self._pid:  # the first one since a fork
            self._open()
        self._count += 1
        self._slot[0] = self._count

    def _open(self) -> None:
        self._pid, self._count = os.getpid(), 0
        with (self._directory / f"count-{self._pid}").open("w+b") as file:
            file.truncate(SLOT_BYTES)
            self._slot = memoryview(mmap.mmap(file.fileno(), SLOT_BYTES)).cast("Q")

    def stamp(self, submitted_s: float) -> None:
        """A handler began whose submit call began at *submitted_s* of the monotonic clock."""
        line = f"{1000 * (time.monotonic() - submitted_s):.3f}\n"
        stamps = os.open(self._directory / "stamps", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(stamps, line.encode())
        os.close(stamps)

    def ready(self) -> None:
        """The worker takes jobs from now on."""
        (self._directory / "ready").touch()


class Producer(ABC):
    """Submits jobs."""

    @abstractmethod
    async def submit(self, first: int, count: int) -> None:
        """So many no-ops in one call."""

    @abstractmethod
    async def stamp(self) -> None:
        """One job that carries the time at which its submit call begins."""


class System(ABC):
    """A job queue."""

    @abstractmethod
    async def prepare(self, dsn: str) -> None:
        """Install its schema."""

    @abstractmethod
    def producer(self, dsn: str) -> AbstractAsyncContextManager[Producer]:
        """Connect to it."""

    @abstractmethod
    async def work(self, dsn: str, tally: Tally, stop: asyncio.Event) -> None:
        """Run a worker until *stop*."""


def main(system: System) -> None:
    """One of the verbs: ``prepare``, ``produce`` or ``work``, an address, and the directory of the turn."""
    import uvloop  # type: ignore[import-untyped,unused-ignore]

    verb, dsn, directory = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if verb == "prepare":
            runner.run(system.prepare(dsn))
        elif verb == "produce":
            runner.run(_produce(system, dsn))
        else:
            runner.run(_work(system, dsn, Path(directory)))


async def _produce(system: System, dsn: str) -> None:
    loop = asyncio.get_running_loop()
    async with system.producer(dsn) as producer:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            question = json.loads(line)
            if question["do"] == "submit":
                await producer.submit(question["first"], question["count"])
            elif question["do"] == "stamp":
                await producer.stamp()
            sys.stdout.write("{}\n")
            sys.stdout.flush()


async def _work(system: System, dsn: str, directory: Path) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await system.work(dsn, Tally(directory), stop)
