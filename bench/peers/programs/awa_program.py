"""awa, in its own environment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import awa  # type: ignore[import-not-found]

from bench.peers.programs.kit import PAD, Producer, System, Tally, main

QUEUE: Final = "bench"
WORKERS: Final = 1024


@dataclass
class Noop:
    """Args of the job that does nothing."""

    number: int
    pad: str


@dataclass
class Stamp:
    """Args of the job that tells how old it is."""

    submitted_s: float


class Submitter(Producer):
    """One client."""

    def __init__(self, client: Any) -> None:  # noqa: ANN401 - the package is not installed where this is checked
        self._client = client

    async def submit(self, first: int, count: int) -> None:
        """Its COPY straight into the storage of the queue."""
        jobs = [Noop(number, PAD) for number in range(first, first + count)]
        await self._client.enqueue_many_copy(jobs, queue=QUEUE)

    async def stamp(self) -> None:
        """One."""
        await self._client.insert(Stamp(time.monotonic()), queue=QUEUE)


def _client(dsn: str) -> Any:  # noqa: ANN401 - as above
    return awa.AsyncClient(dsn.replace("@/", "@localhost/"))  # its URL parser wants a host, and lets the query win


class AwaSystem(System):
    """With the storage that a fresh installation gets."""

    async def prepare(self, dsn: str) -> None:
        """Its schema."""
        async with _client(dsn) as client:
            await client.migrate()
            await client.install_queue_storage()

    @asynccontextmanager
    async def producer(self, dsn: str) -> AsyncIterator[Producer]:
        """Connect."""
        async with _client(dsn) as client:
            yield Submitter(client)

    async def work(self, dsn: str, tally: Tally, stop: asyncio.Event) -> None:
        """Its runtime, with handlers in this loop."""

        async def noop(_: Any) -> None:  # noqa: ANN401 - as above
            tally.count()

        async def stamp(job: Any) -> None:  # noqa: ANN401 - as above
            tally.stamp(job.args.submitted_s)

        async with _client(dsn) as client:
            client.task(Noop, queue=QUEUE)(noop)
            client.task(Stamp, queue=QUEUE)(stamp)
            await client.start([(QUEUE, WORKERS)])
            tally.ready()
            await stop.wait()
            await client.shutdown()


if __name__ == "__main__":
    main(AwaSystem())
