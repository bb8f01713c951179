"""The pause switch in the database; the claim itself looks at it, so what is here only tells and changes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulse.store.statements import STATEMENTS
from pulse.store.times import to_s

if TYPE_CHECKING:
    from datetime import datetime

    from pulse.store.pool import Pool

GATE_CHANNEL = "pulse_gate"  # NOTIFY of pause_dispatch and resume_dispatch


class GateStore:
    """
    The gate of the whole ('') and of each topic.

    Args:
        pool: The query connections.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def get(self) -> dict[str, object]:
        """``{"paused": bool, "reason", "paused_at", "topics": {topic: {"reason", "paused_at"}}}``."""
        async with self._pool.connection() as connection:
            rows = await connection.fetch(STATEMENTS["get_gate"].sql)
        closed: dict[str, dict[str, object]] = {
            row["topic"]: {"reason": row["reason"], "paused_at": to_s(row["paused_at"])} for row in rows
        }
        whole = closed.pop("", None)
        return {"paused": whole is not None, **(whole or {"reason": None, "paused_at": None}), "topics": closed}

    async def pause(self, topic: str, reason: str | None, *, now: datetime | None = None) -> None:
        """Close the gate of *topic*; nothing of it is claimed from the next claim on."""
        async with self._pool.connection() as connection:
            await connection.fetch(STATEMENTS["pause_dispatch"].sql, topic, reason, now)

    async def resume(self, topic: str) -> bool:
        """Open the gate of *topic*; whether it was closed."""
        async with self._pool.connection() as connection:
            return bool(await connection.fetch(STATEMENTS["resume_dispatch"].sql, topic))
