"""Limits and groups as people see them: which are full, and what waits in each group of a topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from datetime import datetime

    from pulse.store.connections.pool import Pool

LOOKED_AT: Final = 2000  # groups of a topic: finding one takes 15 microseconds
LOOKED_ROWS: Final = 100  # jobs of each of these, to find the hottest
GROUP_ROWS: Final = 1000  # that are counted of each listed one
MOST_TOPICS: Final = 1000  # that are listed of each limit
DEADLINE_S: Final = 2.0


class SlotUsage(msgspec.Struct, frozen=True):
    """
    What a limit, or one of its groups, has left for jobs that wait.

    Attributes:
        concurrency: Most jobs that run at once; None: any number.
        running: How many of them run; 0 where nothing limits that.
        holders: The first of these.
        retry_s: Seconds until the next token; None: there is one, or no rate.
    """

    concurrency: int | None = None
    running: int = 0
    holders: tuple[bytes, ...] = ()
    retry_s: float | None = None


class GroupTurn(msgspec.Struct, frozen=True):
    """
    What a job of a sequence waits for.

    Attributes:
        policy: ``continue`` or ``halt``.
        ahead_id: The job that goes first; None: it is this one, or it is not due.
        ahead_at: Until when that one is put off, Unix seconds; None: it is not.
        halted_by: The dead letter that halts the sequence.
    """

    policy: str
    ahead_id: bytes | None = None
    ahead_at: float | None = None
    halted_by: bytes | None = None


class LimitFacts(msgspec.Struct, frozen=True):
    """
    How limits, groups and sequences keep a job waiting.

    Attributes:
        limit: The name of the limit that its topic goes by; None: there is none.
        total: Of the limit.
        group: Of its group.
        sequence: In its sequence; None: its group is none.
    """

    limit: str | None = None
    total: SlotUsage = SlotUsage()
    group: SlotUsage = SlotUsage()
    sequence: GroupTurn | None = None


NO_LIMIT: Final = LimitFacts()


def limit_facts(row: Mapping[str, object]) -> LimitFacts:
    """The columns of `why_job` about limits; *row* as it goes on the wire."""
    if row["limit_name"] is None:
        return NO_LIMIT
    total, group = (
        msgspec.convert({name: row[f"{part}_{name}"] for name in SlotUsage.__struct_fields__}, SlotUsage)
        for part in ("limit", "group")
    )
    columns = {name: row["sequence" if name == "policy" else name] for name in GroupTurn.__struct_fields__}
    place = None if row["sequence"] is None else msgspec.convert(columns, GroupTurn)
    return LimitFacts(str(row["limit_name"]), total, group, sequence=place)


class LimitUsage(NamedTuple):
    """
    What is taken of a limit.

    Attributes:
        name: Of the limit.
        concurrency: Most jobs that run at once; None: any number.
        running: How many run.
        retry_s: Seconds until the next token; None: there is one, or no rate.
        topics: That go by it.
    """

    name: str
    concurrency: int | None
    running: int
    retry_s: float | None
    topics: Sequence[str]

    @property
    def is_full(self) -> bool:
        """Whether no job may start until another ends."""
        return self.concurrency is not None and self.running >= self.concurrency


class TopicGroup(NamedTuple):
    """
    A group with jobs that wait.

    Attributes:
        group_key: Its key.
        ready: Jobs that are due; with ``later`` counted up to ``GROUP_ROWS``.
        later: Jobs that are due later.
        oldest_s: How long the first of them has been due, seconds; None: none is.
        running: How many of its jobs run, counted up to that, too.
        concurrency: Most that run at once; None: any number.
        halted_by: The dead letter that halts its sequence.
    """

    group_key: str
    ready: int
    later: int
    oldest_s: float | None
    running: int
    concurrency: int | None
    halted_by: bytes | None

    @property
    def is_full(self) -> bool:
        """Whether no job of it may start until another ends."""
        return self.concurrency is not None and self.running >= self.concurrency


class LimitReader:
    """
    Reads limits and groups, within a bounded time.

    Args:
        pool: Connections with plans that do not depend on statistics.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def usage(self, most: int, *, now: datetime | None = None) -> tuple[list[LimitUsage], int]:
        """The *most* limits with the most slots taken, the full ones first; and how many more there are."""
        async with self._pool.connection(deadline_s=DEADLINE_S) as connection:
            rows = await connection.fetch(STATEMENTS["limit_usage"].sql, most, GROUP_ROWS, MOST_TOPICS, now)
        return [LimitUsage(*tuple(row)[:5]) for row in rows], rows[0]["omitted"] if rows else 0

    async def groups(
        self, topic: str, most: int, *, looked_at: int = LOOKED_AT, now: datetime | None = None
    ) -> tuple[list[TopicGroup], bool]:
        """The *most* groups of *topic* with the most due jobs, and whether all that have jobs were looked at."""
        async with self._pool.connection(deadline_s=DEADLINE_S) as connection:
            rows = await connection.fetch(
                STATEMENTS["topic_groups"].sql, topic, looked_at + 1, LOOKED_ROWS, most, GROUP_ROWS, now
            )
        return [TopicGroup(*tuple(row)[:7]) for row in rows], not rows or rows[0]["found"] <= looked_at
