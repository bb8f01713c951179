"""What sweeps leave and find: which hosts are there, when somebody swept last, and how long nobody may reap."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from datetime import datetime

    from pulse.store.operators.jobs import Connections


class Sweeps(ABC):
    """A part of the store."""

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
            gap_s: The longest time between two sweeps that is no gap.
            wait_s: How long nobody may reap after one.
            now: Instead of the database's clock.

        Returns:
            Seconds since the sweep before it, whoever made it; the database's time in Unix seconds; how long to wait.
        """
        async with self.lender.connection() as connection:
            row = await connection.fetchrow(STATEMENTS["mark_sweep"].sql, gap_s, wait_s, now)
        if row is None:  # somebody emptied the table: as if nobody had swept for ever
            return float("inf"), 0.0, wait_s
        return row["gap_s"], row["now_s"], row["wait_s"]

    async def doubt_leases(self, wait_s: float, *, now: datetime | None = None) -> None:
        """Nobody may take a lease for lapsed for so long: heartbeats that were heard cannot be written."""
        async with self.lender.connection() as connection:
            await connection.execute(STATEMENTS["doubt_leases"].sql, wait_s, now)

    async def note_host(self, host: str, boot: str, pidns: int) -> None:
        """This host's supervisor is alive."""
        async with self.lender.connection() as connection:
            await connection.execute(STATEMENTS["note_host"].sql, host, boot, pidns)
