"""Statements of sweeps: hosts that are alive, the time of the last sweep, lapsed leases, expired and old jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from asyncpg.pgproto.pgproto import UUID

from pulse.store.rows import ExpiredJob, Fence, Forgotten, readable
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pulse.store.connections.pool import Pool
    from pulse.store.operators.jobs import Connections


class Sweeps(ABC):
    """
    A part of the store.

    Attributes:
        hot: The connections whose plans do not depend on statistics.
    """

    hot: Pool

    @property
    @abstractmethod
    def lender(self) -> Connections:
        """Where its statements get their connections."""

    async def host_boots(self, host: str, *, now: datetime | None = None) -> dict[str, float]:
        """The boots of a host -> seconds since each was last seen."""
        async with self.lender.connection() as connection:
            rows = await connection.fetch(STATEMENTS["host_boots"].sql, host, now)
        return {row["boot"]: row["seen_ago_s"] for row in rows}

    async def mark_sweep(
        self, gap_s: float, wait_s: float, *, now: datetime | None = None
    ) -> tuple[float, float, float]:
        """
        A sweep begins.

        Args:
            gap_s: A longer time between two sweeps is a gap.
            wait_s: How long no watchdog may end attempts after a gap.
            now: Instead of the database's clock.

        Returns:
            Seconds since the sweep before it, of any watchdog; the database's time in Unix seconds; how long to wait.
        """
        async with self.lender.connection() as connection:
            row = await connection.fetchrow(STATEMENTS["mark_sweep"].sql, gap_s, wait_s, now)
        if row is None:  # the table was emptied: as if there had never been a sweep
            return float("inf"), 0.0, wait_s
        return row["gap_s"], row["now_s"], row["wait_s"]

    async def doubt_leases(self, wait_s: float, *, now: datetime | None = None) -> None:
        """For so long no lease counts as lapsed: heartbeats have arrived that cannot be written."""
        async with self.lender.connection() as connection:
            await connection.execute(STATEMENTS["doubt_leases"].sql, wait_s, now)

    async def note_host(self, host: str, boot: str, pidns: int) -> None:
        """This host's supervisor is alive."""
        async with self.lender.connection() as connection:
            await connection.execute(STATEMENTS["note_host"].sql, host, boot, pidns)

    async def expire(self, limit: int, *, now: datetime | None = None) -> list[ExpiredJob]:
        """Dead-letter jobs that were not started in time, at most *limit*; returns them."""
        async with self.hot.connection() as connection:
            rows = await connection.fetch(STATEMENTS["expire_jobs"].sql, limit, now)
        return [ExpiredJob(identity, *map(readable, texts)) for identity, *texts in rows]

    async def expired_within(self, seconds: float) -> list[ExpiredJob]:
        """What any watchdog has dead-lettered in the last *seconds* since it was not started in time."""
        async with self.lender.connection() as connection:
            rows = await connection.fetch(STATEMENTS["expired_jobs"].sql, seconds)
        return [ExpiredJob(identity, *map(readable, texts)) for identity, *texts in rows]

    async def lapsed(self, limit: int, *, spared: Sequence[str] = (), now: datetime | None = None) -> list[Fence]:
        """Attempts whose lease has lapsed, at most *limit*, except those of the workers *spared*."""
        async with self.lender.connection() as connection:
            rows = await connection.fetch(STATEMENTS["lapsed_attempts"].sql, limit, spared, now)
        return [Fence(*row.values()) for row in rows]

    async def forget(
        self, first: bytes, window: int, keep_s: float, keep_dead_s: float, *, now: datetime | None = None
    ) -> Forgotten:
        """
        Delete old jobs among *window* jobs, in the order of their ids, from *first* on.

        Args:
            first: The id to begin at.
            window: How many jobs are looked at.
            keep_s: How long completed and canceled jobs are kept.
            keep_dead_s: How long dead letters are kept.
            now: Instead of the database's clock.
        """
        async with self.hot.connection() as connection:  # its plan must not depend on statistics either
            row = await connection.fetchrow(
                STATEMENTS["forget_jobs"].sql, UUID(first), window, keep_s, keep_dead_s, now
            )
        return Forgotten(*row) if row is not None else Forgotten(False, 0, 0, last=None, first_left=None)
