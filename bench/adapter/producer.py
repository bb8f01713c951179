"""The producer: so many jobs a second on a real clock, or as the harness says on stdin, or up to a depth."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

import pulse
from bench.adapter.settings import Settings
from pulse.client.client import Client
from pulse.errors import PulseError

ARGS_BYTES: Final = 60  # of a job's JSON without the padding
IDLE_S: Final = 0.05  # between two looks while there is nothing to submit
AWAY_S: Final = 0.2  # after a submit that failed: the database may be away on purpose
TOKEN: Final = b"ENQUEUE "


@dataclass(slots=True)
class Depth:
    """How many jobs wait, as last *seen*, and how many this producer had *enqueued* before it was looked."""

    seen: int = 0
    enqueued: int = 0


class Producer:
    """Submits jobs and counts them."""

    def __init__(self, client: Client, settings: Settings, depth: Depth) -> None:
        self._client, self._settings, self._depth = client, settings, depth
        self._pad = "x" * max(0, settings.payload_bytes - ARGS_BYTES)
        self.enqueued = 0

    @property
    def target_rate(self) -> float:
        """What is asked for now, jobs per second; 0 where a depth is asked for."""
        return self._settings.rate_now() if self._settings.mode == "fixed" else 0.0

    async def run(self) -> None:
        """Until cancelled, or until nobody can ask for more."""
        loop = asyncio.get_running_loop()
        async for count in self._batches():
            try:
                await loop.run_in_executor(None, self._submit, count)
                self.enqueued += count
            except (PulseError, OSError) as error:
                print(f"submit failed: {error}", file=sys.stderr, flush=True)
                await asyncio.sleep(AWAY_S)

    def _submit(self, count: int) -> None:
        now_s, first = time.time(), self.enqueued
        numbers = range(first, first + count)
        new: list[pulse.NewJob] = [
            {"name": "job", "topic": "bench", "args": {"number": number, "submitted_s": now_s, "pad": self._pad}}
            for number in numbers
        ]
        self._client.submit_many(new)

    def _batches(self) -> AsyncIterator[int]:
        if self._settings.mode == "depth-target":
            return self._to_depth()
        return self._told() if self._settings.pacing == "harness" else self._paced()

    async def _to_depth(self) -> AsyncIterator[int]:
        """What was submitted since the last look waits as well, as far as anybody knows."""
        while True:
            missing = self._settings.target_depth - self._depth.seen - (self.enqueued - self._depth.enqueued)
            if missing > 0:
                yield min(self._settings.batch_max, missing)
            else:
                await asyncio.sleep(IDLE_S)

    async def _paced(self) -> AsyncIterator[int]:
        """Credit grows with the time that has really passed, however long a submit took."""
        credit, before_s = 0.0, time.monotonic()
        while True:
            await asyncio.sleep(max(0.0, before_s + self._settings.batch_s - time.monotonic()))
            now_s = time.monotonic()
            credit += self._settings.rate_now() * (now_s - before_s)
            before_s = now_s
            while credit >= 1:
                count = min(int(credit), self._settings.batch_max)
                credit -= count
                yield count

    async def _told(self) -> AsyncIterator[int]:
        """The harness keeps the time; each of its lines is one bulk call."""
        loop, counts = asyncio.get_running_loop(), asyncio.Queue[int]()

        def tell(count: int) -> None:
            loop.call_soon_threadsafe(counts.put_nowait, count)

        threading.Thread(target=read_tokens, args=(sys.stdin.fileno(), tell), daemon=True).start()
        while count := await counts.get():
            yield count


def read_tokens(file: int, tell: Callable[[int], None]) -> None:
    """Tell the number of each ``ENQUEUE n`` line, and 0 at the end; other lines are nobody's."""
    rest = b""
    try:
        while data := os.read(file, 1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                digits = line.removeprefix(TOKEN).strip()
                if line.startswith(TOKEN) and digits.isdigit() and int(digits):
                    tell(int(digits))
        tell(0)
    except RuntimeError:  # the loop has ended meanwhile
        return
