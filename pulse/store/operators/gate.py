"""The pause switch (the gate) in the database. Claims read it themselves; this module only shows and changes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from pulse.store.rows import to_s
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from datetime import datetime

    from asyncpg import Record

    from pulse.store.operators.jobs import Connections

GATE_CHANNEL = "pulse_gate"  # NOTIFY of pause_dispatch, resume_dispatch and expire_pauses, and of a policy that changed
_COLUMNS: Final = ("reason", "paused_at", "paused_by", "paused_until")


class Expired(NamedTuple):
    """A pause whose time is over."""

    topic: str
    reason: str | None
    paused_by: str | None


class GateStore:
    """
    The gate of everything ('') and of each topic.

    Args:
        pool: The query connections.
    """

    def __init__(self, pool: Connections) -> None:
        self._pool = pool

    async def get(self) -> dict[str, object]:
        """
        What is paused now.

        Returns:
            ``{"paused": bool, "reason", "paused_at", "paused_by", "paused_until", "topics": {topic: {the same}}}``.
        """
        return (await self.look())[0]

    async def look(self, *, now: datetime | None = None) -> tuple[dict[str, object], float | None]:
        """The same, and seconds until the next pause ends by itself; None: none does."""
        async with self._pool.connection() as connection:
            rows = await connection.fetch(STATEMENTS["get_gate"].sql, now)
        closed: dict[str, dict[str, object]] = {row["topic"]: _pause(row) for row in rows}
        whole = closed.pop("", None)
        left = [row["left_s"] for row in rows if row["left_s"] is not None]
        said: Mapping[str, object] = dict.fromkeys(_COLUMNS) if whole is None else whole
        gate: dict[str, object] = {"paused": whole is not None, **said, "topics": closed}
        return gate, min(left, default=None)

    async def pause(
        self,
        topic: str,
        reason: str | None,
        *,
        who: str | None = None,
        until_s: float | None = None,
        for_s: float | None = None,
        now: datetime | None = None,
    ) -> None:
        """
        Pause *topic*: from the next claim on none of its jobs is claimed.

        Args:
            topic: Its name; '' pauses everything.
            reason: Why.
            who: The operator.
            until_s: When it opens by itself, Unix seconds.
            for_s: Or in how many seconds.
            now: Instead of the database's clock.
        """
        async with self._pool.connection() as connection:
            await connection.fetch(STATEMENTS["pause_dispatch"].sql, topic, reason, who, until_s, for_s, now)

    async def expire(self, *, now: datetime | None = None) -> list[Expired]:
        """Clear pauses whose time is over, and notify the other hosts; returns them."""
        async with self._pool.connection() as connection:
            rows = await connection.fetch(STATEMENTS["expire_pauses"].sql, now)
        return [Expired(row["topic"], row["reason"], row["paused_by"]) for row in rows]

    async def resume(self, topic: str) -> bool:
        """Resume *topic*; returns whether it was paused."""
        async with self._pool.connection() as connection:
            return bool(await connection.fetch(STATEMENTS["resume_dispatch"].sql, topic))


def _pause(row: Record) -> dict[str, object]:
    until = row["paused_until"]
    return {
        "reason": row["reason"],
        "paused_at": to_s(row["paused_at"]),
        "paused_by": row["paused_by"],
        "paused_until": None if until is None else to_s(until),
    }
