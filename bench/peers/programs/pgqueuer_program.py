"""pgqueuer, in its own environment."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg
from pgqueuer import PgQueuer  # type: ignore[import-not-found]
from pgqueuer.db import AsyncpgDriver  # type: ignore[import-not-found]
from pgqueuer.queries import Queries  # type: ignore[import-not-found]

from bench.peers.programs.kit import PAD, Producer, System, Tally, main

CONSUMERS: Final = 5
BATCH: Final = 100


class Submitter(Producer):
    """One connection."""

    def __init__(self, queries: Any) -> None:  # noqa: ANN401 - the package is not installed where this is checked
        self._queries = queries

    async def submit(self, first: int, count: int) -> None:
        """Lists make a batch."""
        payloads = [json.dumps({"number": number, "pad": PAD}).encode() for number in range(first, first + count)]
        await self._queries.enqueue(["noop"] * count, payloads, [0] * count)

    async def stamp(self) -> None:
        """One."""
        await self._queries.enqueue("stamp", json.dumps({"submitted_s": time.monotonic()}).encode())


class PgQueuerSystem(System):
    """As its benchmark runs it."""

    async def prepare(self, dsn: str) -> None:
        """Its tables, and the settings of autovacuum that it advises."""
        queries = Queries(AsyncpgDriver(await asyncpg.connect(dsn)))
        await queries.install()
        await queries.optimize_autovacuum()

    @asynccontextmanager
    async def producer(self, dsn: str) -> AsyncIterator[Producer]:
        """Connect."""
        yield Submitter(Queries(AsyncpgDriver(await asyncpg.connect(dsn))))

    async def work(self, dsn: str, tally: Tally, stop: asyncio.Event) -> None:
        """Consumers side by side in one loop."""

        async def noop(job: Any) -> None:  # noqa: ANN401 - as above
            json.loads(job.payload)
            tally.count()

        async def stamp(job: Any) -> None:  # noqa: ANN401 - as above
            tally.stamp(json.loads(job.payload)["submitted_s"])

        consumers = [PgQueuer(AsyncpgDriver(await asyncpg.connect(dsn))) for _ in range(CONSUMERS)]
        for one in consumers:
            one.entrypoint("noop")(noop)
            one.entrypoint("stamp")(stamp)
        running = asyncio.gather(*(one.run(batch_size=BATCH) for one in consumers))
        tally.ready()
        await stop.wait()
        for one in consumers:
            one.shutdown.set()
        await running


if __name__ == "__main__":
    main(PgQueuerSystem())
