"""Schedules in the database: the definitions, the cursor, and the one statement that fires."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from asyncpg.pgproto.pgproto import UUID

from pulse.store.reading.jobs import cut_page, decode_cursor, wire_row
from pulse.store.reading.page_size import Row, fit_row
from pulse.store.rows import Due, Fired, Firing, Level, NewSchedule, NextOccurrences, Work, from_us, to_us
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from datetime import datetime

    from asyncpg import Record

    from pulse.store.operators.jobs import Connections

SCHEDULES_CHANNEL: Final = "pulse_schedules"  # NOTIFY of pulse.create_schedule, update_schedule and resume_schedule
MAX_HELD: Final = 100  # jobs that one schedule with overlap `queue` holds back; later occurrences are skipped
MAX_HELD_OF_ALL: Final = 10_000  # the same with catch_up `all`: as many occurrences as it makes up for
KEY_WAIT: Final = "50ms"  # for a transaction that has submitted the same key: most are over by then, others last long


class ScheduleStore:
    """
    Statements about schedules.

    Args:
        pool: The query connections.
    """

    def __init__(self, pool: Connections) -> None:
        self._pool = pool

    async def create(self, new: NewSchedule) -> bool:
        """Insert a schedule; False: its id or its key exists."""
        async with self._pool.connection() as connection:
            return await connection.fetchrow(STATEMENTS["create_schedule"].sql, *_columns(new)) is not None

    async def update(self, new: NewSchedule, revision: int, *, moved: bool) -> bool:
        """
        Replace a schedule by *new*; False: it has changed since *revision*, or is gone.

        Args:
            new: The whole schedule; ``next_run_at`` and ``following_run_at`` count only if *moved*.
            revision: The revision that was read.
            moved: Whether its times change; else the cursor stays.
        """
        async with self._pool.connection() as connection:
            row = await connection.fetchrow(STATEMENTS["update_schedule"].sql, *_columns(new), revision, moved)
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

    async def pause(self, identity: bytes, *, paused: bool) -> bool:
        """Pause or resume a schedule; False: there is none."""
        async with self._pool.connection() as connection:
            return await connection.fetchrow(STATEMENTS["pause_schedule"].sql, UUID(identity), paused) is not None

    async def trigger(self, identity: bytes, job_id: bytes) -> bytes | None:
        """
        Submit a job of this schedule now, beside its occurrences.

        Returns:
            Its id, or the id of the job that has the unique key; None: there is no such schedule.
        """
        async with self._pool.connection() as connection:
            made: bytes | None = await connection.fetchval(
                STATEMENTS["trigger_schedule"].sql, UUID(identity), UUID(job_id)
            )
        return made

    async def delete(self, identity: bytes) -> bool:
        """Remove a schedule; False: there was none."""
        async with self._pool.connection() as connection:
            return bool(await connection.fetchval(STATEMENTS["delete_schedule"].sql, UUID(identity)))

    async def undeclare(self, declared_by: str, keys: Sequence[str]) -> list[tuple[bytes, str]]:
        """Mark schedules that an application no longer declares (all but *keys*); returns the newly marked."""
        async with self._pool.connection() as connection:
            rows = await connection.fetch(STATEMENTS["undeclare_schedules"].sql, declared_by, list(keys))
        return [(row["id"], row["key"]) for row in rows]

    async def due(
        self, limit: int, *, unique: bool = False, without: Sequence[bytes] = (), now: datetime | None = None
    ) -> list[Due]:
        """
        Schedules that are due, the one that waits longest first.

        Args:
            limit: Most.
            unique: Whether those with a unique key, or those without.
            without: Leave out these.
            now: Instead of the database's clock.
        """
        but = [UUID(one) for one in without]
        async with self._pool.connection() as connection:
            rows = await connection.fetch(STATEMENTS["due_schedules"].sql, limit, now, unique, but)
        return [_due(row) for row in rows]

    async def unreckoned(self, limit: int, *, now: datetime | None = None) -> list[Due]:
        """Schedules whose next occurrence, or the one after it, must be computed."""
        async with self._pool.connection() as connection:
            rows = await connection.fetch(STATEMENTS["unreckoned_schedules"].sql, limit, now)
        return [_due(row) for row in rows]

    async def work(self, *, without: Sequence[bytes] = (), now: datetime | None = None) -> Work:
        """When there is something to do, *without* these of the schedules with a unique key."""
        but = [UUID(one) for one in without]
        async with self._pool.connection() as connection:
            row = await connection.fetchrow(STATEMENTS["next_schedule"].sql, now, but)
        return Work(None, reckon=False, waiting=False) if row is None else Work(*row)

    async def fire(self, firings: Sequence[Firing], *, now: datetime | None = None) -> list[Fired]:
        """Move cursors and insert the jobs; the result of each schedule whose cursor was as expected."""
        ordered = sorted(firings, key=lambda firing: firing.schedule_id)
        async with self._pool.connection() as connection:
            rows = await connection.fetch(
                STATEMENTS["fire_schedules"].sql,
                [UUID(firing.schedule_id) for firing in ordered],
                [from_us(firing.cursor_us) for firing in ordered],
                [firing.revision for firing in ordered],
                [_moment(firing.occurrence_us) for firing in ordered],
                [_moment(firing.next_us) for firing in ordered],
                [_moment(firing.following_us) for firing in ordered],
                MAX_HELD,
                MAX_HELD_OF_ALL,
                now,
            )
        levels = {row["id"]: Level(row["topic"], row["priority"]) for row in rows if row["topic"] is not None}
        canceled = {row["id"]: row["canceled"] for row in rows if row["canceled"] is not None}
        return [
            Fired(row["id"], row["verdict"], levels.get(row["id"]), canceled=canceled.get(row["id"]))
            for row in rows
            if row["verdict"] is not None
        ]

    async def fire_unique(self, firing: Firing, *, now: datetime | None = None) -> Fired | None:
        """
        Fire a schedule with a unique key; None: its cursor was not as expected, or the key was given away just now.

        Raises:
            StatementTimeoutError: A transaction that has submitted the same key is open.
            StatementError: It would replace a job of another handler.
        """
        async with self._pool.connection() as connection, connection.transaction():
            await connection.execute(STATEMENTS["limit_key_wait"].sql, KEY_WAIT)
            row = await connection.fetchrow(
                STATEMENTS["fire_unique"].sql,
                UUID(firing.schedule_id),
                from_us(firing.cursor_us),
                firing.revision,
                _moment(firing.occurrence_us),
                _moment(firing.next_us),
                _moment(firing.following_us),
                now,
            )
        if row is None:
            return None
        level = None if row["topic"] is None else Level(row["topic"], row["priority"])
        return Fired(firing.schedule_id, row["verdict"], level, canceled=None)

    async def release(self, limit: int, *, now: datetime | None = None) -> list[Level]:
        """Release jobs that were held back until an earlier one finished; returns their topics and priorities."""
        async with self._pool.connection() as connection:
            rows = await connection.fetch(STATEMENTS["release_held"].sql, limit, now)
        return [Level(row["topic"], row["priority"]) for row in rows]

    async def reckon(self, reckoned: Sequence[NextOccurrences]) -> int:
        """Store what was computed; returns for how many schedules it was still valid."""
        ordered = sorted(reckoned, key=lambda one: one.schedule_id)
        async with self._pool.connection() as connection:
            rows = await connection.fetch(
                STATEMENTS["reckon_schedules"].sql,
                [UUID(one.schedule_id) for one in ordered],
                [_moment(one.cursor_us) for one in ordered],
                [one.revision for one in ordered],
                [_moment(one.next_us) for one in ordered],
                [_moment(one.following_us) for one in ordered],
                [one.error for one in ordered],
            )
        return len(rows)

    async def retry_stuck(self) -> None:
        """Compute again those whose times could not be computed."""
        async with self._pool.connection() as connection:
            await connection.execute(STATEMENTS["retry_stuck_schedules"].sql)


def _moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else from_us(microseconds)


def _columns(new: NewSchedule) -> tuple[object, ...]:
    """The arguments of `create_schedule`."""
    return (
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
        new.following_run_at,
        new.starts_at,
        new.ends_at,
        new.jitter_s,
        new.catch_up,
        new.overlap,
        new.key,
        new.declared_by,
        new.unique_key,
        new.unique_until,
        new.on_conflict,
        new.group_key,
    )


def _us(moment: datetime | None) -> int | None:
    return None if moment is None else to_us(moment)


def _due(row: Record) -> Due:
    return Due(
        id=row["id"].bytes,
        kind=row["kind"],
        cron=row["cron"],
        timezone=row["timezone"],
        every_s=row["every_s"],
        at_us=_us(row["run_at"]),
        starts_us=_us(row["starts_at"]),
        ends_us=_us(row["ends_at"]),
        jitter_s=row["jitter_s"],
        catch_up=row["catch_up"],
        cursor_us=_us(row["next_run_at"]),
        following_us=_us(row["following_run_at"]),
        is_reckoned=not row["reckon"],
        revision=row["revision"],
        now_us=to_us(row["now"]),
    )
