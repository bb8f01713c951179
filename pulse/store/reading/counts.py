"""How many jobs wait and since when, by topic: counted where they are few, sampled where they are many."""

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

ROWS: Final = 20_000  # that are counted one by one; more are sampled
PAGES: Final = 1000.0  # of the table, 8 MiB, whatever its size; how many they really are differs by 3 %, as do the sums
TOPICS: Final = 100  # with rows of their own, where jobs are sampled, and as many that are named
TOPIC_ROWS: Final = 100  # of each of them that are counted
RECOUNT_S: Final = 60.0  # after a count that took too long
DEADLINE_S: Final = 2.0  # of which the server takes a quarter for each of two statements
AGAIN: Final = 1.5  # so much below ROWS by the sample it is worth counting


class Depth(NamedTuple):
    """
    What waits in a topic.

    Attributes:
        topic: Its name; None: all topics together that are not told by themselves.
        topics: How many that are.
        ready: Jobs that are due.
        scheduled: Those that are due later.
        running: Those that run; not known where they are sampled.
        oldest_s: How long the first of those that are ready has been due, seconds; None: none is, or it is not known.
    """

    topic: str | None
    topics: int
    ready: int
    scheduled: int
    running: int
    oldest_s: float | None


class Depths(msgspec.Struct, frozen=True):
    """
    What waits.

    Attributes:
        topics: The largest first, and the others together.
        is_exact: Whether each was counted.
        now_s: When, by the database's clock; Unix seconds.
    """

    topics: tuple[Depth, ...]
    is_exact: bool
    now_s: float


class DepthStore:
    """
    Counts or samples, whichever is bounded.

    Args:
        pool: One connection, with plans that do not depend on statistics, and statements that end soon.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._count_at_s = float("-inf")  # by the monotonic clock: not before that

    async def read(self, most: int, names: Sequence[str], *, now: datetime | None = None) -> Depths:
        """
        What waits now.

        Args:
            most: How many topics have rows of their own, beside those that are named.
            names: Topics of interest, where not all can be counted.
            now: Instead of the database's clock.

        Raises:
            UnavailableError: The database is away, or took too long for the sample, too.
        """
        if time.monotonic() >= self._count_at_s:
            try:
                depths = await self.count(most, now=now)
            except UnavailableError:  # dead rows slow it down, or the database is away
                depths = None
            if depths is not None:
                return depths
            self._count_at_s = time.monotonic() + RECOUNT_S
        depths = await self.sample(most, names, now=now)
        if sum(one.ready + one.scheduled for one in depths.topics) < ROWS / AGAIN:
            self._count_at_s = float("-inf")
        return depths

    async def count(self, most: int, *, rows: int = ROWS, now: datetime | None = None) -> Depths | None:
        """Each job is counted; None: there are more than *rows* of them."""
        async with self._pool.connection(deadline_s=DEADLINE_S) as connection:
            found = await connection.fetch(STATEMENTS["count_waiting"].sql, rows + 1, most, now)
        depths = _depths(found, is_exact=True)
        waiting = sum(one.ready + one.scheduled for one in depths.topics)
        return None if max(waiting, sum(one.running for one in depths.topics)) > rows else depths

    async def sample(
        self, most: int, names: Sequence[str], *, pages: float = PAGES, now: datetime | None = None
    ) -> Depths:
        """Some pages stand for all."""
        async with self._pool.connection(deadline_s=DEADLINE_S) as connection:
            found = await connection.fetch(
                STATEMENTS["sample_waiting"].sql, pages, min(most, TOPICS), list(names[:TOPICS]), TOPIC_ROWS, now
            )
        return _depths(found, is_exact=False)


def _depths(rows: Sequence[Record], *, is_exact: bool) -> Depths:
    topics = [Depth(*list(row.values())[:6]) for row in rows if row["topics"]]
    topics.sort(key=lambda one: (one.topic is None, -one.ready, -one.scheduled))
    return Depths(tuple(topics), is_exact, rows[0]["now_s"])
