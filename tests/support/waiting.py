"""Waiting for the database to be in a certain state: asked again until a deadline."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    from asyncpg import Connection, Record

DEADLINE_S: Final = 10.0
_POLL_S: Final = 0.002  # other tests need the processor meanwhile
_BLOCKED: Final = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)))"


async def until(condition: Callable[[], Awaitable[object] | bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """
    Return when *condition* holds.

    Raises:
        AssertionError: It did not within *deadline_s*; names *what* was waited for.
    """
    until_s = time.monotonic() + deadline_s
    while not await _holds(condition()):
        await anyio.sleep(_POLL_S)
        assert time.monotonic() < until_s, f"waited in vain for: {what}"


async def _holds(found: Awaitable[object] | bool) -> bool:
    return found if isinstance(found, bool) else bool(await found)


async def until_blocked(connection: Connection[Record], *, by: int) -> None:
    """Return when some session waits for a lock that the backend *by* holds."""
    await until(lambda: connection.fetchval(_BLOCKED, by), f"a session that waits for {by}")
