"""Schedules in the database: the definitions, the cursor, and the one statement that fires."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from asyncpg.pgproto.pgproto import UUID

from pulse.store.fit import Row, fit_row
from pulse.store.reads import cut_page, decode_cursor, wire_row
from pulse.store.rows import Due, Firing, Level, NewSchedule
from pulse.store.statements import STATEMENTS
from pulse.store.times import from_us, to_us

if TYPE_CHECKING:
    from datetime import datetime

    from pulse.store.pool import Pool


class ScheduleStore:
    """
    Statements about schedules.

    Args:
        pool: The query connections.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def create(self, new: NewSchedule) -> bool:
        """Insert a schedule; False: its id exists."""
        async with self._pool.connection() as connection:
            row = await connection.fetchrow(
                STATEMENTS["create_schedule"].sql,
                UUID(new.id),
                new.name,
                new.topic,
                new.args,
                new.kind,
                new.cron,
                new.timezone,
                new.every_s,
                new.run_at,
                new.next_run_at,
                new.priority,
                new.max_attempts,
                new.timeout_s,
            )
        return row is not None

    async def get(self, identity: bytes) -> Row | None:
        """One schedule, or None."""
        async with self._pool.connection() as connection:
            row = await connection.fetchrow(STATEMENTS["get_schedule"].sql, UUID(identity))
        return None if row is None else fit_row(wire_row(row))

    async def page(self, limit: int, after: str | None) -> tuple[list[Row], str | None]:
        """A page of schedules, newest first, and the cursor of the next page."""
        moment, identity = decode_cursor(after)
        async with self._pool.connection() as connection:
            rows = await connection.fetch(STATEMENTS["list_schedules"].sql, moment, identity, limit + 1)
        return cut_page(rows, limit, "created_at")

    async def delete(self, identity: bytes) -> bool:
        """Remove a schedule; False: there was none."""
        async with self._pool.connection() as connection:
            return await connection.fetchrow(STATEMENTS["delete_schedule"].sql, UUID(identity)) is not None

    async def due(self, limit: int, *, now: datetime | None = None) -> list[Due]:
        """Schedules whose cursor is due, oldest first."""
        async with self._pool.connection() as connection:
            rows = await connection.fetch(STATEMENTS["due_schedules"].sql, limit, now)
        return [
            Due(
                row["id"].bytes,
                row["kind"],
                row["cron"],
                row["timezone"],
                row["every_s"],
                to_us(row["next_run_at"]),
                to_us(row["now"]),
            )
            for row in rows
        ]

    async def next_due_s(self, *, now: datetime | None = None) -> float | None:
        """Seconds until the next cursor is due (0 or less: it is), None when no schedule waits."""
        async with self._pool.connection() as connection:
            due_s: float | None = await connection.fetchval(STATEMENTS["next_schedule"].sql, now)
        return due_s

    async def fire(self, firings: Sequence[Firing], *, now: datetime | None = None) -> list[Level]:
        """Move cursors and insert the jobs; topics and priorities of the jobs that were inserted."""
        ordered = sorted(firings, key=lambda firing: firing.schedule_id)
        async with self._pool.connection() as connection:
            rows = await connection.fetch(
                STATEMENTS["fire_schedules"].sql,
                [UUID(firing.schedule_id) for firing in ordered],
                [from_us(firing.cursor_us) for firing in ordered],
                [None if firing.next_us is None else from_us(firing.next_us) for firing in ordered],
                [UUID(firing.job_id) for firing in ordered],
                now,
            )
        return [Level(row["topic"], row["priority"]) for row in rows]
