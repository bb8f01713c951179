"""NOTIFY as a hint: a connection of its own turns each notification into a turn of the actor; a poll is behind it."""

from __future__ import annotations

import asyncio

import anyio
import asyncpg
import structlog

from pulse.errors import PulseError
from pulse.store.pool import STATEMENT_DEADLINE_S, connect
from pulse_actors.bus import Hint
from pulse_actors.runtime import Backoff, Runtime

log = structlog.get_logger()


async def listen(runtime: Runtime, channel: str, hint: Hint) -> None:
    """Poke the actor with *hint* whenever *channel* is notified; for ever, through outages."""
    backoff = Backoff()

    def heard(*_notification: object) -> None:
        runtime.poke(hint)

    while True:
        lost = asyncio.Event()
        try:
            connection = await connect(runtime.store.query.target, {})
        except PulseError:
            await anyio.sleep(backoff.next_s())
            continue
        try:
            connection.add_termination_listener(lambda _connection, lost=lost: lost.set())
            async with asyncio.timeout(STATEMENT_DEADLINE_S):
                await connection.add_listener(channel, heard)
            backoff.reset()
            await lost.wait()
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            log.debug("listen_failed", error=str(error))
        finally:
            connection.terminate()
        await anyio.sleep(backoff.next_s())
