"""Fills the queue of NOTIFY of a server, as a program does that listens and forgets to end its transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import asyncpg

if TYPE_CHECKING:
    from asyncpg import Connection, Record

PAGES: Final = 64
SETTINGS: Final = {"max_notify_queue_pages": str(PAGES)}  # as small as it can be, from PostgreSQL 17 on; 8 GB before
PAGE: Final = "x" * 7900  # a text of which each takes a page


class NotifyQueue:
    """The queue of the server of *dsn*, a session that listens in a transaction, and one that fills it."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._listener: Connection[Record] | None = None
        self._filler: Connection[Record] | None = None
        self.pid = 0

    async def fill(self, upto: float = 2.0) -> None:
        """Until that part of it is used; by default until it is full."""
        if self._listener is None or self._filler is None:
            self._listener, self._filler = await asyncpg.connect(self._dsn), await asyncpg.connect(self._dsn)
            await self._listener.execute("LISTEN trial")  # in force from its commit on
            await self._listener.execute("BEGIN; SELECT 1")
            self.pid = self._listener.get_server_pid()
        for number in range(PAGES + 1):
            if await self.usage() >= upto:
                return
            try:
                await self._filler.execute("SELECT pg_notify('trial', $1)", f"{number}{PAGE}")
            except asyncpg.ProgramLimitExceededError:
                return
        raise AssertionError("somebody reads it")

    async def usage(self) -> float:
        assert self._filler is not None
        found: float = await self._filler.fetchval("SELECT pg_notification_queue_usage()")
        return found

    async def close(self) -> None:
        for one in (self._listener, self._filler):
            if one is not None:
                await one.close(timeout=5)
        self._listener = self._filler = None
