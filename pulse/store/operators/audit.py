"""Reads and deletes the record of what operators did; and reads how far retention has got."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pulse.common.ids import ID_BYTES
from pulse.store.operators.jobs import Connections
from pulse.store.reading.jobs import decode_cursor, encode_cursor, wire_row
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from datetime import datetime

    from pulse.store.reading.page_size import Row

KEEP_S: Final = 90 * 86400.0  # what operators did
BATCH: Final = 1000


class AuditStore:
    """
    Statements about pulse.audit and pulse.retention_mark.

    Args:
        pool: The query connections.
    """

    def __init__(self, pool: Connections) -> None:
        self._pool = pool

    async def page(
        self,
        limit: int,
        after: str | None = None,
        *,
        action: str | None = None,
        topic: str | None = None,
        since_s: float | None = None,
        now: datetime | None = None,
    ) -> tuple[list[Row], str | None]:
        """A page of the audit, newest first, and the cursor of the next one; *since_s*: no longer ago than that."""
        moment, identity = decode_cursor(after)
        number = None if identity is None else identity.int % (1 << 63)
        async with self._pool.connection() as connection:
            rows = await connection.fetch(
                STATEMENTS["list_actions"].sql, action, topic, since_s, moment, number, limit + 1, now
            )
        page = [wire_row(row) for row in rows[:limit]]
        if len(rows) <= limit:
            return page, None
        last = rows[limit - 1]
        return page, encode_cursor(last["at"], last["id"].to_bytes(ID_BYTES))

    async def forget(self, keep_s: float = KEEP_S, *, now: datetime | None = None) -> int:
        """Delete a batch of entries older than *keep_s*; returns how many."""
        async with self._pool.connection() as connection:
            return int(await connection.fetchval(STATEMENTS["forget_actions"].sql, keep_s, BATCH, now))

    async def note_retention(self, walked: int, gone: int, *, begins: bool, ends: bool) -> None:
        """Add to how many jobs retention has looked at and deleted."""
        async with self._pool.connection() as connection:
            await connection.execute(STATEMENTS["note_retention"].sql, walked, gone, begins, ends, None)

    async def retention(self) -> Row | None:
        """How far it has got."""
        async with self._pool.connection() as connection:
            row = await connection.fetchrow(STATEMENTS["retention_progress"].sql)
        return None if row is None else wire_row(row)
