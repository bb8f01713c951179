"""Reads for people: jobs, pages, counts, and whether the database is there."""

from __future__ import annotations

import asyncio
import base64
import binascii
import struct
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

import asyncpg
import msgspec
from asyncpg.pgproto.pgproto import UUID

from pulse.errors import BadRequestError
from pulse.job import Status
from pulse.store.failures import Meaning, meaning_of
from pulse.store.reading.damaged_jobs import legible_history, legible_job
from pulse.store.reading.limits import NO_LIMIT, LimitFacts, limit_facts
from pulse.store.reading.page_size import Row, fit_job, fit_page
from pulse.store.rows import from_us, to_s, to_us
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from asyncpg import Connection, Record

    from pulse.store.connections.pool import Pool

EXACT_ROWS: Final = 500_000  # counting that many takes about 0.1 s; beyond, terminal statuses are estimated
COUNT_S: Final = 0.5  # after that all statuses are estimated: `status` must answer within a second
STATUSES: Final = tuple(status.value for status in Status)
DATABASE_DEADLINE_S: Final = 0.6  # the supervisor waits 0.8 s for the answer, also for "the database is away"
ATTEMPT: Final[tuple[str, ...]] = (  # columns of an attempt in a job's history, in the order of `get_job`
    "job_id",
    "attempt",
    "worker",
    "started_at",
    "ended_at",
    "outcome",
    "error",
    "exit_code",
    "progress",
    "cpu_s",
    "peak_rss_bytes",
    "stack",
)
BEFORE_MAX: Final = 1000  # jobs ahead of one are counted up to so many: more help nobody, and cost time
_CURSOR: Final = struct.Struct(">q16s")


class StoredFacts(msgspec.Struct, frozen=True, kw_only=True):
    """
    A job, and all in the database that may keep it from running: the row of `why_job`. Times are Unix seconds.

    Attributes:
        last_error: The beginning of its last error.
        now: When it was read, by the database's clock.
        held: Whether it waits until the last job of its schedule has ended.
        outcome: Of its newest attempt; None: there was none, it succeeded, or no worker received it.
        ended_at: When that attempt ended; ``attempt_error`` is the beginning of its error, ``worker`` its holder.
        all_paused_at: Since when everything is paused; None: it is not.
        paused_at: Since when its topic is paused.
        last_job_id: The last job of its schedule, if this one is held.
        held_before: Held jobs that are released before it.
        aside_since: When it was set aside, because the database refused ``aside_statement``; None: it is not.
        aside_for_good: Whether an operator set it aside, so that it is not tried again.
        handler_topic: The topic that its handler declares.
        handler_seen_at: When a worker last declared its handler, on whichever host.
        host_seen_at: When the host that holds it, or had its newest attempt, was last seen.
        other_hosts: How many other hosts were seen within the last minute.
        before: Due jobs of its topic, or of its group if it has one, that come first; ``BEFORE_MAX``: so many, or more.
        unique_key: As in the row, with ``unique_until``.
        group_key: As in the row.
        waiting_on: How many jobs it waits for; ``waits_for`` are the first of them, ``failed`` counts those that have
            failed, although it goes on without them.
        awaited_signal: The signal that its handler waits for, until ``next_run_at`` at most.
        limits: How limits and its group keep it waiting.
    """

    id: bytes
    topic: str
    name: str
    status: str
    priority: int
    attempts: int
    uncharged: int
    max_attempts: int
    crashes: int
    submitted_at: float
    next_run_at: float
    now: float
    held: bool = False
    started_at: float | None = None
    completed_at: float | None = None
    expires_at: float | None = None
    lease_until: float | None = None
    locked_by: str | None = None
    last_error: str | None = None
    outcome: str | None = None
    attempt_error: str | None = None
    ended_at: float | None = None
    worker: str | None = None
    all_paused_at: float | None = None
    all_paused_by: str | None = None
    all_paused_until: float | None = None
    all_reason: str | None = None
    paused_at: float | None = None
    paused_by: str | None = None
    paused_until: float | None = None
    reason: str | None = None
    last_job_id: bytes | None = None
    last_job_status: str | None = None
    held_before: int = 0
    aside_since: float | None = None
    aside_for_good: bool | None = None
    aside_sqlstate: str | None = None
    aside_statement: str | None = None
    aside_error: str | None = None
    handler_topic: str | None = None
    handler_seen_at: float | None = None
    host_seen_at: float | None = None
    other_hosts: int = 0
    before: int = 0
    unique_key: str | None = None
    unique_until: str | None = None
    group_key: str | None = None
    waiting_on: int = 0
    waits_for: tuple[bytes, ...] = ()
    failed: int = 0
    awaited_signal: str | None = None
    limits: LimitFacts = NO_LIMIT

    @property
    def is_due(self) -> bool:
        """Whether ``next_run_at`` is over."""
        return self.next_run_at <= self.now

    @property
    def waits_for_signal(self) -> bool:
        """Whether its handler waits for ``awaited_signal``, and nothing else puts it off."""
        is_put_off = self.held or self.waiting_on > 0 or self.was_given_back
        return self.awaited_signal is not None and not self.is_due and not is_put_off

    @property
    def was_given_back(self) -> bool:
        """Whether its newest claim was given back before a worker received it: such an attempt leaves no row."""
        return self.attempts > 0 and self.outcome is None


def wire_row(row: Record | Mapping[str, object]) -> Row:
    """A row as it goes on the wire: times as Unix seconds, all else as it is (ids are bytes, JSON is text)."""
    return {key: to_s(value) if isinstance(value, datetime) else value for key, value in row.items()}


def encode_cursor(moment: datetime, identity: bytes) -> str:
    """Where a page ended, as an opaque string."""
    return base64.urlsafe_b64encode(_CURSOR.pack(to_us(moment), identity)).decode("ascii").rstrip("=")


def decode_cursor(text: str | None) -> tuple[datetime | None, UUID | None]:
    """
    The inverse of ``encode_cursor``; (None, None) for None.

    Raises:
        BadRequestError: It is not a cursor of pulse.
    """
    if text is None:
        return None, None
    try:
        microseconds, identity = _CURSOR.unpack(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        return from_us(microseconds), UUID(identity)
    except (struct.error, binascii.Error, ValueError, OverflowError):
        raise no_cursor(text) from None


def no_cursor(text: str) -> BadRequestError:
    """The error for *text* that is given as ``after``, and is no cursor of pulse."""
    return BadRequestError(f"after is {text!r:.60}; only a cursor that an earlier page gave as `next` is allowed")


class JobReader:
    """
    Reading statements on the query connections.

    Args:
        pool: The query connections.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def job(self, identity: bytes) -> Row | None:
        """All columns of one job and its history, as far as a frame can carry them, or None."""
        async with self._pool.connection() as connection:
            try:
                row = await connection.fetchrow(STATEMENTS["get_job"].sql, UUID(identity))
            except asyncpg.PostgresError as error:
                if meaning_of(error) in {Meaning.AWAY, Meaning.CONTESTED}:
                    raise
                return await _legible(connection, UUID(identity))
        if row is None:
            return None
        job = dict(row)
        history: list[dict[str, object]] = [dict(zip(ATTEMPT, one, strict=True)) for one in job.pop("history")]
        return fit_job(wire_row(job), [wire_row(one) for one in history])

    async def why(self, identity: bytes, host: str, now: datetime | None = None) -> StoredFacts | None:
        """The database's facts about why a job does not run, for the server of *host*; None: there is no such job."""
        async with self._pool.connection() as connection:
            row = await connection.fetchrow(STATEMENTS["why_job"].sql, UUID(identity), BEFORE_MAX, host, now)
        if row is None:
            return None
        columns = wire_row(row)
        return msgspec.convert({**columns, "limits": limit_facts(columns)}, StoredFacts)

    async def last_workers(self, ids: Sequence[bytes]) -> dict[bytes, str]:
        """The workers of the last attempts of *ids* that were canceled or still run."""
        async with self._pool.connection() as connection:
            rows = await connection.fetch(STATEMENTS["last_workers"].sql, [UUID(one) for one in ids])
        return {row["id"]: row["worker"] for row in rows}

    async def counts(self) -> tuple[dict[str, int], bool]:
        """Jobs per status, and whether that is exact; within a bounded time, however many there are."""
        counts = dict.fromkeys(STATUSES, 0)
        until_s = asyncio.get_running_loop().time() + COUNT_S
        async with self._pool.connection(deadline_s=1.5 * COUNT_S) as connection:
            try:
                async with asyncio.timeout_at(until_s):
                    found = await connection.fetch(STATEMENTS["count_jobs"].sql, EXACT_ROWS + 1)
                    exact = sum(row["count"] for row in found) <= EXACT_ROWS
                    if not exact:
                        found = await connection.fetch(STATEMENTS["estimate_jobs"].sql)
            except TimeoutError:  # too many jobs wait; the statement is canceled, and the connection stays
                exact = False
                found = await connection.fetch(STATEMENTS["guess_jobs"].sql)
        counts.update((row["status"], row["count"]) for row in found)
        return counts, exact

    async def now_us(self) -> int:
        """The database's time, microseconds since the epoch."""
        async with self._pool.connection() as connection:
            return to_us(await connection.fetchval(STATEMENTS["server_now"].sql, column=1))

    async def database(self) -> Row:
        """``{"ok": true, "dsn", "schema", "server_version"}``; raises UnavailableError when it is not there."""
        async with self._pool.connection(deadline_s=DATABASE_DEADLINE_S) as connection:
            row = await connection.fetchrow(STATEMENTS["server_now"].sql)
        target = self._pool.target
        version = row["server_version"] if row else None
        return {"ok": True, "dsn": target.shown, "schema": target.schema, "server_version": version}


async def _legible(connection: Connection[Record], identity: UUID) -> Row | None:
    """As ``JobReader.job``, for a job with corrupt values."""
    job = await legible_job(connection, identity)
    if job is None:
        return None
    return fit_job(wire_row(job), [wire_row(one) for one in await legible_history(connection, identity)])


def cut_page(rows: Sequence[Record], limit: int, moment: str) -> tuple[list[Row], str | None]:
    """Cut *rows* (one more than the page, if there are more) to a page that fits into a frame; and its cursor."""
    page = fit_page([wire_row(row) for row in rows[:limit]])
    if len(page) == len(rows):
        return page, None
    last = rows[len(page) - 1]
    return page, encode_cursor(last[moment], last["id"])
