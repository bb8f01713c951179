"""
Lists of jobs by filter: pages within a bounded time, however many jobs there are.

If an index covers a small part of the table that contains all matches (running jobs, waiting jobs, jobs of a schedule),
that part is read whole. Else the table is walked in the order of the list, window by window, until the page is full or
its time is over: then it ends early, and the next page goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from asyncpg.pgproto.pgproto import UUID

from pulse.common.ids import ID_BYTES
from pulse.store.reading.damaged_jobs import legible_jobs
from pulse.store.reading.jobs import decode_cursor, encode_cursor, wire_row
from pulse.store.reading.list_position import (
    FIRST,
    LAST,
    TIMED_END,
    ListPosition,
    ListWalk,
    first_id,
    following_id,
    hungriest,
    merged,
    place_of,
    reached,
)
from pulse.store.reading.page_size import PageRows, Row
from pulse.store.reading.prefixes import id_range
from pulse.store.rows import from_us, to_us
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from asyncpg import Connection, Record

    from pulse.store.connections.pool import Pool

SMALL: Final = 20_000  # rows of a part that is read whole: 50 ms
BUDGET_S: Final = 0.08  # for a page; a step may outlast it, and up to 0.2 s seem instant to people
FIRST_WINDOW: Final = 500
MAX_WINDOW: Final = 10_000
PIECE: Final = 100  # rows that are read at once: some milliseconds of the loop
_TIME_BYTES: Final = 8
GROWTH: Final = 4
_OLDEST_AT: Final = datetime(1, 1, 1, tzinfo=UTC)
_NEWEST_AT: Final = datetime(9999, 12, 31, tzinfo=UTC)
_PARTS: Final[Mapping[str, str]] = {
    "RUNNING": "running",
    "PENDING": "waiting",
    "RETRYING": "waiting",
    "DEAD_LETTERED": "dead",
    "CANCELED": "canceled",
}
_ENDED_BADLY: Final = frozenset({"DEAD_LETTERED", "CANCELED"})


@dataclass(frozen=True, slots=True)
class JobFilter:
    """
    Which jobs to list; None: any.

    Attributes:
        statuses: Allowed statuses.
        topic: Their topic.
        name: Their handler.
        schedule: The schedule that fired them.
        error: A part of their last error, in upper or lower case.
        worker: A part of the identity of the worker that runs them.
        older_s: They were submitted longer ago than that.
        newer_s: They were submitted no longer ago than that.
        prefix: The hexadecimal digits with which their ids begin.
        due: Whether their time has come; False: they are to run later. Those that no worker has a handler for are
            neither.
    """

    statuses: Sequence[str] | None = None
    topic: str | None = None
    name: str | None = None
    schedule: bytes | None = None
    error: str | None = None
    worker: str | None = None
    older_s: float | None = None
    newer_s: float | None = None
    prefix: str | None = None
    due: bool | None = None

    def ids(self) -> tuple[UUID, UUID] | None:
        """The first and the last id that may match."""
        if self.prefix is None:
            return None
        return id_range(self.prefix.replace("-", ""))

    def columns(self) -> tuple[object, ...]:
        """The arguments of the statements."""
        return (
            list(self.statuses) if self.statuses else None,
            self.topic,
            self.name,
            None if self.schedule is None else UUID(self.schedule),
            _containing(self.error),
            _containing(self.worker),
            *(self.ids() or (None, None)),
            self.due,
        )

    def parts(self) -> list[str]:
        """Indexed parts of the table that contain all matches; empty: only the whole table does."""
        if self.schedule is not None:
            return ["schedule"]
        if self.worker is not None:
            return ["running"]
        if self.prefix is not None:
            return ["prefix"]
        return sorted({_PARTS[one] for one in self.statuses or ()}) if set(self.statuses or ()) <= set(_PARTS) else []

    def walks(self) -> list[ListWalk]:
        """The walks to make if these parts are not small."""
        kinds = [_PARTS[one] for one in self.statuses or ()] if set(self.statuses or ("",)) <= _ENDED_BADLY else ["ids"]
        return [ListWalk(kind) for kind in (*dict.fromkeys(kinds), "others")]


class Range(NamedTuple):
    """From one position (included) to another (excluded)."""

    start: ListPosition
    end: ListPosition

    def columns(self, ids: tuple[UUID, UUID] | None) -> tuple[object, ...]:
        """The arguments of walk_jobs; of timed ids only those between the two *ids* are walked through."""
        low, high = first_id(self.start), min(first_id(self.end), TIMED_END)
        if ids is not None:
            low, high = max(low, ids[0].bytes), min(high, following_id(ids[1].bytes))
        return (UUID(low), UUID(high), _moment(self.start), UUID(self.start.id), _moment(self.end), UUID(self.end.id))


class Page(NamedTuple):
    """Some jobs, where the next page begins (None: there are no more), and up to which time the search is complete."""

    jobs: list[Row]
    next: str | None
    reached_s: float | None


class Listing:
    """
    Pages of jobs.

    Args:
        pool: The query connections.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def page(
        self,
        wanted: JobFilter,
        limit: int,
        after: str | None = None,
        *,
        oldest: bool = False,
        brief: bool = False,
        budget_s: float = BUDGET_S,
    ) -> Page:
        """
        A page of the jobs that match *wanted*, newest first.

        Args:
            wanted: The filter.
            limit: Most jobs of the page.
            after: ``next`` of the page before.
            oldest: Oldest first.
            brief: Without columns that may be long.
            budget_s: Time after which a page ends although it is not full.
        """
        until_s = time.monotonic() + budget_s
        moment, identity = decode_cursor(after)
        cursor = None if moment is None or identity is None else ListPosition(to_us(moment), identity.bytes)
        async with (
            self._pool.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            now_us = to_us(await connection.fetchval(STATEMENTS["list_limits"].sql))
            scope = _scope(wanted, cursor, now_us, oldest=oldest)
            search = _Search(connection, wanted, scope, limit=limit, oldest=oldest)
            places, until, ends = await search.run(until_s)
            page = await _filled(connection, places, "jobs_in_brief" if brief else "jobs_by_ids")
        if len(page) < len(places):
            until, ends = places[len(page) - 1], False
        elif not ends and until is None:
            until = places[-1]
        return _told(page, None if ends else until, now_us)


def _told(page: list[Row], until: ListPosition | None, now_us: int) -> Page:
    if until is None:
        return Page(page, None, None)
    reached_us = min(max(until.at_us, to_us(_OLDEST_AT)), now_us)
    return Page(page, encode_cursor(_moment(until), until.id), reached_us / 1e6)


def _scope(wanted: JobFilter, cursor: ListPosition | None, now_us: int, *, oldest: bool) -> Range:
    """The part of the list that is left."""
    start = FIRST if wanted.newer_s is None else ListPosition(now_us - round(wanted.newer_s * 1e6), bytes(16))
    end = LAST if wanted.older_s is None else ListPosition(now_us - round(wanted.older_s * 1e6), bytes(16))
    if cursor is None:
        return Range(start, end)
    return Range(max(start, cursor.following()), end) if oldest else Range(start, min(end, cursor))


async def _collect(
    connection: Connection[Record], wanted: JobFilter, scope: Range, limit: int, *, oldest: bool
) -> list[ListPosition] | None:
    """The first positions of matches, one more than *limit*; None: no small part contains all matches."""
    parts = wanted.parts()
    if not parts:
        return None
    timed, others = list[bytes](), list[ListPosition]()
    for part in parts:
        row = await connection.fetchrow(STATEMENTS["collect_jobs"].sql, part, SMALL, *wanted.columns())
        if row is None or row["walked"] == SMALL:
            return None
        timed += _pieces(row["timed"], ID_BYTES)
        others += [
            ListPosition(int.from_bytes(one[ID_BYTES:], signed=True), one[:ID_BYTES])
            for one in _pieces(row["others"], ID_BYTES + _TIME_BYTES)
        ]
    low, high = first_id(scope.start), first_id(scope.end)
    first = sorted((one for one in timed if low <= one < high), reverse=not oldest)[: limit + 1]
    inside = (one for one in others if scope.start <= one < scope.end)
    return sorted([*(place_of(one, 0) for one in first), *inside], reverse=not oldest)[: limit + 1]


def _pieces(data: bytes | None, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)] if data else []


class _Search:
    """The search for one page of positions, in one transaction."""

    def __init__(
        self, connection: Connection[Record], wanted: JobFilter, scope: Range, limit: int, *, oldest: bool
    ) -> None:
        self._connection = connection
        self._wanted = wanted
        self._scope = scope
        self._limit = limit
        self._oldest = oldest
        self._walks = wanted.walks()
        self._page: list[ListPosition] = []

    async def run(self, until_s: float) -> tuple[list[ListPosition], ListPosition | None, bool]:
        """The positions, how far the search got (None: to the last of them), and whether that is the end."""
        window = max(FIRST_WINDOW, self._limit)
        for walk in self._walks:  # each at least once, so that the list moves on however little time there is
            await self._step(walk, window)
        if self._take() is None:  # matches are frequent here, or this is the end
            return self._result()
        whole = await _collect(self._connection, self._wanted, self._scope, self._limit, oldest=self._oldest)
        if whole is not None:
            return whole[: self._limit], None, len(whole) <= self._limit
        while (hungry := self._take()) is not None and time.monotonic() < until_s:
            began_s = time.monotonic()
            await self._step(hungry, window)
            left_s, took_s = until_s - time.monotonic(), time.monotonic() - began_s
            window = max(min(window * GROWTH, round(window * left_s / took_s), MAX_WINDOW), 1)
        return self._result()

    def _take(self) -> ListWalk | None:
        """Take what is certain; returns the walk to go on with. None: the page is full, or there are no more jobs."""
        self._page += merged(self._walks, self._limit - len(self._page), oldest=self._oldest)
        return None if len(self._page) >= self._limit else hungriest(self._walks, oldest=self._oldest)

    def _result(self) -> tuple[list[ListPosition], ListPosition | None, bool]:
        if all(walk.done and not walk.found for walk in self._walks):
            return self._page, None, True
        if len(self._page) >= self._limit:
            return self._page, self._page[-1], False
        return self._page, reached(self._walks, oldest=self._oldest), False

    async def _step(self, walk: ListWalk, window: int) -> None:
        """Let *walk* look at so many more rows."""
        scope = self._scope
        if walk.to is not None:
            scope = Range(walk.to.following(), scope.end) if self._oldest else Range(scope.start, walk.to)
        arguments = (
            walk.kind,
            self._oldest,
            *scope.columns(self._wanted.ids()),
            window,
            self._limit + 1,
            *self._wanted.columns(),
        )
        rows = await self._connection.fetch(STATEMENTS["walk_jobs"].sql, *arguments)
        places = [place_of(row["id"], to_us(row["submitted_at"])) for row in rows]
        found = [place for place, row in zip(places, rows, strict=True) if row["is_wanted"]]
        more = bool(rows) and (len(rows) > self._limit or rows[-1]["place"] == window)
        walk.took(found, _walked_to(walk.kind, rows, places) if more else None)


def _walked_to(kind: str, rows: Sequence[Record], places: Sequence[ListPosition]) -> ListPosition:
    """The position of the last row; of an id that is not timed, the position that a timed one would have."""
    if kind == "others":
        return places[-1]
    identity = rows[-1]["id"]
    return ListPosition(int.from_bytes(identity[:6]) * 1000, identity)


async def _filled(connection: Connection[Record], places: Sequence[ListPosition], statement: str) -> list[Row]:
    """A page of the rows at *places*, read in pieces so that the loop serves other requests in between."""
    page = PageRows()
    for at in range(0, len(places), PIECE):
        page.take(map(wire_row, await _rows(connection, places[at : at + PIECE], statement)))
        if page.is_full:
            break
    return page.rows


async def _rows(
    connection: Connection[Record], places: Iterable[ListPosition], statement: str
) -> list[Mapping[str, object]]:
    """The rows at *places*, in that order."""
    ids = [place.id for place in places]
    found = await legible_jobs(connection, [UUID(one) for one in ids], statement)
    by_id = {row["id"]: row for row in found}
    return [by_id[one] for one in ids]


def _moment(place: ListPosition) -> datetime:
    if place.at_us <= to_us(_OLDEST_AT):
        return _OLDEST_AT
    return from_us(place.at_us) if place.at_us < to_us(_NEWEST_AT) else _NEWEST_AT


def _containing(text: str | None) -> str | None:
    """The ILIKE pattern that matches values which contain *text*."""
    if text is None:
        return None
    for special in ("\\", "%", "_"):
        text = text.replace(special, f"\\{special}")
    return f"%{text}%"
