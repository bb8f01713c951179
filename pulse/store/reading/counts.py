"""How many jobs wait in each topic, or ends in the outbox, and since when: counted where few, sampled where many."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from pulse.errors import UnavailableError
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from datetime import datetime

    from asyncpg import Record

    from pulse.store.connections.pool import Pool

ROWS: Final = 20_000  # up to so many are counted one by one; more are sampled
PAGES: Final = 1000.0  # of the table, 8 MiB, whatever its size; how many they really are differs by 3 %, as do the sums
TOPICS: Final = 100  # that are listed by name when jobs are sampled, beside as many that the caller names
TOPIC_ROWS: Final = 100  # of each listed topic that are counted
RECOUNT_S: Final = 60.0  # after a count that took too long
DEADLINE_S: Final = 2.0  # for three statements, each limited to a quarter of it on the server
AGAIN: Final = 1.5  # if the sample is below ROWS by this factor, count again


class Depth(NamedTuple):
    """
    What waits in a topic.

    Attributes:
        topic: Its name; None: all topics together that are not listed by name.
        topics: How many topics this covers.
        ready: Jobs that are due.
        scheduled: Jobs that are due later, for the first time.
        retrying: Jobs that are due later, after a failure.
        unhandled: Jobs that were given back because no worker has their handler, due or not.
        running: Jobs that run; unknown where jobs are sampled.
        oldest_s: How long the first ready job has been due, seconds; None: there is none, or unknown.
        waiting_for_jobs: How many of the scheduled jobs wait for others.
    """

    topic: str | None
    topics: int
    ready: int
    scheduled: int
    retrying: int
    unhandled: int
    running: int
    oldest_s: float | None
    waiting_for_jobs: int = 0

    @property
    def waiting(self) -> int:
        """All that do not run."""
        return self.ready + self.scheduled + self.retrying + self.unhandled


class Depths(msgspec.Struct, frozen=True):
    """
    How many jobs wait in each topic.

    Attributes:
        topics: The largest first, then the others together.
        is_exact: Whether jobs were counted, not sampled.
        now_s: The database's time, Unix seconds.
        ends: How many ends of jobs wait in the outbox; above ``ROWS`` an estimate.
        ends_oldest_s: For how long the first of them, seconds; None: there is none.
    """

    topics: tuple[Depth, ...]
    is_exact: bool
    now_s: float
    ends: int = 0
    ends_oldest_s: float | None = None


class DepthStore:
    """
    Counts or samples, whichever is bounded.

    Args:
        pool: One connection, with plans that do not depend on statistics, and statements that end soon.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._count_at_s = float("-inf")  # monotonic clock: no count before this

    async def read(self, most: int, names: Sequence[str], *, now: datetime | None = None) -> Depths:
        """
        Read how many jobs wait now.

        Args:
            most: How many topics are listed by name, beside *names*.
            names: Topics to list in any case.
            now: Instead of the database's clock.

        Raises:
            UnavailableError: The database is away, or took too long for the sample, too.
        """
        if time.monotonic() >= self._count_at_s:
            try:
                depths = await self.count(most, now=now)
            except UnavailableError:  # dead rows slow the count down, or the database is away
                depths = None
            if depths is not None:
                return depths
            self._count_at_s = time.monotonic() + RECOUNT_S
        depths = await self.sample(most, names, now=now)
        if sum(one.waiting for one in depths.topics) < ROWS / AGAIN:
            self._count_at_s = float("-inf")
        return depths

    async def count(self, most: int, *, rows: int = ROWS, now: datetime | None = None) -> Depths | None:
        """Count each job; None: there are more than *rows*."""
        async with self._pool.connection(deadline_s=DEADLINE_S) as connection:
            found = await connection.fetch(STATEMENTS["count_waiting"].sql, rows + 1, most, now)
            topics = _topics(found)
            if max(sum(one.waiting for one in topics), sum(one.running for one in topics)) > rows:
                return None
            (ends,) = await connection.fetch(STATEMENTS["count_ends"].sql, rows, now)
        return Depths(topics, is_exact=True, now_s=found[0]["now_s"], **dict(ends))

    async def sample(
        self, most: int, names: Sequence[str], *, pages: float = PAGES, now: datetime | None = None
    ) -> Depths:
        """Estimate from some pages of the table."""
        async with self._pool.connection(deadline_s=DEADLINE_S) as connection:
            found = await connection.fetch(
                STATEMENTS["sample_waiting"].sql, pages, min(most, TOPICS), list(names[:TOPICS]), TOPIC_ROWS, now
            )
            (ends,) = await connection.fetch(STATEMENTS["count_ends"].sql, ROWS, now)
        return Depths(_topics(found), is_exact=False, now_s=found[0]["now_s"], **dict(ends))


def _topics(rows: Sequence[Record]) -> tuple[Depth, ...]:
    topics = [Depth(*list(row.values())[:9]) for row in rows if row["topics"]]
    topics.sort(key=lambda one: (one.topic is None, -one.ready, -one.waiting))
    return tuple(topics)
