"""
Hears NOTIFY on a connection of its own, made anew when it breaks. What is heard is a hint; a poll is behind each.

PostgreSQL keeps no word for who was not listening when it was said: who begins to listen is to look once, right then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import anyio
import structlog

from pulse.errors import PulseError
from pulse.store.connections.pool import STATEMENT_DEADLINE_S, Target, connect
from pulse.store.failures import FAILURES
from pulse_actors.runtime.actor import Backoff

log = structlog.get_logger()


async def listen(target: Target, channels: Mapping[str, Callable[[str], None]], began: Callable[[], None]) -> None:
    """
    Listen until cancelled.

    Args:
        target: The database.
        channels: Name -> what to call with the text of each notification.
        began: Called whenever all of them are listened to from now on; what was told before was not heard.
    """
    backoff = Backoff()

    def heard(_connection: object, _pid: int, channel: str, text: object) -> None:
        channels[channel](str(text))

    while True:
        lost = asyncio.Event()
        try:
            connection = await connect(target, {})
        except PulseError:
            await anyio.sleep(backoff.next_s())
            continue
        try:
            connection.add_termination_listener(lambda _connection, lost=lost: lost.set())
            async with asyncio.timeout(STATEMENT_DEADLINE_S):
                for channel in channels:
                    await connection.add_listener(channel, heard)
            backoff.reset()
            began()
            await lost.wait()
        except FAILURES as error:
            log.debug("listen_failed", error=str(error))
        finally:
            connection.terminate()
        await anyio.sleep(backoff.next_s())
