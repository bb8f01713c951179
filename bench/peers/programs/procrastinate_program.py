"""procrastinate, in its own environment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import procrastinate  # type: ignore[import-not-found]

from bench.peers.programs.kit import PAD, Producer, System, Tally, main

CONCURRENCY: Final = 30


def _app(dsn: str) -> Any:  # noqa: ANN401 - the package is not installed where this is checked
    return procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn))


class Submitter(Producer):
    """One app."""

    def __init__(self, app: Any) -> None:  # noqa: ANN401 - as above
        self._noop, self._stamp = app.configure_task("noop"), app.configure_task("stamp")

    async def submit(self, first: int, count: int) -> None:
        """Many in one statement."""
        args = ({"number": number, "pad": PAD} for number in range(first, first + count))
        await self._noop.batch_defer_async(*args)

    async def stamp(self) -> None:
        """One."""
        await self._stamp.defer_async(submitted_s=time.monotonic())


class ProcrastinateSystem(System):
    """With its async worker."""

    async def prepare(self, dsn: str) -> None:
        """Its schema."""
        async with _app(dsn).open_async() as app:
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def producer(self, dsn: str) -> AsyncIterator[Producer]:
        """Connect."""
        async with _app(dsn).open_async() as app:
            yield Submitter(app)

    async def work(self, dsn: str, tally: Tally, stop: asyncio.Event) -> None:
        """Thirty at once."""

        async def noop(number: int, pad: str) -> None:  # noqa: ARG001 - they come by these names
            tally.count()

        async def stamp(submitted_s: float) -> None:
            tally.stamp(submitted_s)

        app = _app(dsn)
        app.task(name="noop")(noop)
        app.task(name="stamp")(stamp)
        async with app.open_async():
            options = {"concurrency": CONCURRENCY, "install_signal_handlers": False}
            running = asyncio.create_task(app.run_worker_async(**options))
            tally.ready()
            await stop.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


if __name__ == "__main__":
    main(ProcrastinateSystem())
