"""
Receives NOTIFY on a connection of its own, which is replaced when it breaks. Notifications are hints.

PostgreSQL drops notifications that nobody listens to: so a new listener must look once, right after it began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import anyio
import structlog

from pulse.errors import PulseError
from pulse.security.schema_name import derived
from pulse.store.connections.citus import stay_with_rows
from pulse.store.connections.pool import STATEMENT_DEADLINE_S, Target, connect
from pulse.store.failures import FAILURES
from pulse_actors.runtime.actor import Backoff

if TYPE_CHECKING:
    from pulse.store.connections.session import Session

LOOK_S: Final = 5.0  # on Citus: nobody notifies on the node that a queue has left, and the connection lives on
log = structlog.get_logger()


async def listen(target: Target, channels: Mapping[str, Callable[[str], None]], began: Callable[[], None]) -> None:
    """
    Listen until cancelled.

    Args:
        target: The database, and the schema whose notifications are meant.
        channels: Name for the default schema -> function to call with the text of each notification.
        began: Called whenever listening has begun; notifications from before are lost.
    """
    backoff = Backoff()
    called = {derived(channel, target.schema): call for channel, call in channels.items()}

    def heard(_connection: object, _pid: int, channel: str, text: object) -> None:
        called[channel](str(text))

    while True:
        lost = asyncio.Event()
        try:
            connection = await connect(target, {}, owns_session=True)
        except PulseError:
            await anyio.sleep(backoff.next_s())
            continue
        try:
            connection.add_termination_listener(lambda _connection, lost=lost: lost.set())
            async with asyncio.timeout(STATEMENT_DEADLINE_S):
                for channel in called:
                    await connection.add_listener(channel, heard)
            backoff.reset()
            began()
            await _until_gone(connection, lost, target.shown)
        except FAILURES as error:
            log.debug("listen_failed", error=str(error))
        finally:
            connection.terminate()
        await anyio.sleep(backoff.next_s())


async def _until_gone(connection: Session, lost: asyncio.Event, shown: str) -> None:
    """Return when the connection is lost, or Citus has moved the queue to another node."""
    while not lost.is_set():
        with anyio.move_on_after(LOOK_S if connection.home_since_s else None):
            await lost.wait()
            return
        try:
            await stay_with_rows(connection, shown)
        except PulseError as error:
            log.debug("listen_failed", error=error.message)
            return
