"""`python -m bench.adapter`: producer, workers and telemetry in one long-running program, until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncpg

from bench.adapter import settings as environment
from bench.adapter.app import CALLS, WORK_MS
from bench.adapter.producer import Depth, Producer
from bench.adapter.settings import Settings, SettingsError
from bench.adapter.telemetry import Sampler, descriptor, emit
from pulse.client.client import Client
from pulse.errors import PulseError
from pulse.ops.demo.server import running_server

if TYPE_CHECKING:
    from asyncpg import Connection, Record

DRAIN_S: Final = "1"  # of the five seconds between SIGTERM and the end; jobs take milliseconds
LOOK_S: Final = 0.1  # between two looks at the depth
AWAY_S: Final = 0.5  # before the next try to reach a database that is away
DEPTH: Final = (
    "SELECT count(*) FROM pulse.jobs WHERE group_key IS NULL AND status IN ('PENDING', 'RETRYING') AND topic = 'bench'"
)
SCHEMA_VERSION: Final = "SELECT max(version)::text FROM pulse.schema_version"


async def look(dsn: str, depth: Depth, producer: Producer) -> None:
    """Look how many jobs wait, on a connection of its own, until cancelled, whatever happens to the database."""
    while True:
        with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection: Connection[Record] = await asyncpg.connect(dsn)
            try:
                while True:
                    enqueued = producer.enqueued
                    depth.seen, depth.enqueued = await connection.fetchval(DEPTH), enqueued
                    await asyncio.sleep(LOOK_S)
            finally:
                connection.terminate()
        await asyncio.sleep(AWAY_S)


async def schema_version(dsn: str) -> str:
    """What the schema says of itself."""
    connection: Connection[Record] = await asyncpg.connect(dsn)
    try:
        return str(await connection.fetchval(SCHEMA_VERSION))
    finally:
        await connection.close()


async def run(client: Client, settings: Settings, calls: Path) -> None:
    """Produce, look and report, until SIGTERM or until one of these fails."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    emit(descriptor(settings, await schema_version(settings.database_url)))
    depth = Depth()
    producer = Producer(client, settings, depth)
    parts = [Sampler(settings, producer, calls, depth).run()]
    needs_depth = settings.observes or settings.mode == "depth-target"
    parts += [look(settings.database_url, depth, producer)] if needs_depth else []
    parts += [producer.run()] if settings.produces else []
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part) for part in parts]
        await stop.wait()
        for task in tasks:
            task.cancel()


def main() -> int:
    """A pulse of its own on the harness's database; 0 when a signal ended it."""
    try:
        settings = environment.read(os.environ)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="pulse-adapter-") as directory:
        env = {
            "PULSE_DSN": settings.database_url,
            "PULSE_DRAIN_S": DRAIN_S,
            CALLS: directory,
            WORK_MS: str(settings.work_ms),
        }
        try:
            with running_server("bench.adapter.app:app", env, processes=1, concurrency=settings.workers) as client:
                asyncio.run(run(client, settings, Path(directory)))
        except PulseError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
