"""The outbox: ends of jobs whose topics publish them, until a publisher has handed them to a broker."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from pulse.store.arguments import uuids
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pulse.store.connections.pool import Pool

_order: Final = itemgetter("ended_at", "job")


class OutboxStore:
    """
    The table of ends.

    Args:
        pool: Its connections.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def take(
        self, limit: int, lease_s: float, result_bytes: int, *, now: datetime | None = None
    ) -> list[dict[str, Any]]:
        """
        Take up to *limit* ends, the oldest first; until *lease_s* have passed nobody else gets them.

        Args:
            result_bytes: A larger result is left out; ``result_omitted`` says so.
        """
        async with self._pool.connection() as connection:
            rows = await connection.fetch(STATEMENTS["take_ends"].sql, limit, lease_s, result_bytes, now)
        return [dict(row) for row in sorted(rows, key=_order)]

    async def forget(self, ends: Sequence[tuple[bytes, int]]) -> int:
        """Forget *ends*, by job and ``ended_at``; returns how many were there."""
        async with self._pool.connection() as connection:
            jobs, times = uuids([job for job, _ in ends]), [ended_at for _, ended_at in ends]
            gone: int = await connection.fetchval(STATEMENTS["forget_ends"].sql, jobs, times)
        return gone
