"""Claims under limits and of groups, and where their jobs wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pulse.store.arguments import uuids
from pulse.store.recovery.epochs import UNWITNESSED, ClaimWitness
from pulse.store.rows import Claim, GroupLevel
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from datetime import datetime

    from pulse.store.operators.jobs import Connections

_CLAIM: Final = STATEMENTS["claim_limited"].sql
_AFTER_A_CLAIM: Final = 16  # columns


class GroupHead(NamedTuple):
    """
    The first job of a level of a group.

    Attributes:
        level: The level.
        due_at: When the job is due, Unix seconds.
        is_due: Whether it is due now.
        is_full: Whether its group has no slot now.
    """

    level: GroupLevel
    due_at: float
    is_due: bool
    is_full: bool


class Blocked(NamedTuple):
    """
    A level of which nothing can be claimed now.

    Attributes:
        level: The level.
        verdict: ``full``: until a job ends, or an operator releases a sequence; ``rate``: until there is a token;
            ``busy``: another server claims under this limit.
        retry_s: Of ``rate``: seconds until the next token.
        of_limit: Whether it is so for everything that goes by the limit, not for this group alone.
    """

    level: GroupLevel
    verdict: str
    retry_s: float | None
    of_limit: bool


class LimitClaims:
    """
    Claims where topics have limits or jobs have groups.

    Args:
        pool: The hot connections.
        knowledge: What the dispatcher has seen of the database; None: claim without this check.
    """

    def __init__(self, pool: Connections, knowledge: Callable[[], ClaimWitness | None]) -> None:
        self._pool = pool
        self._knowledge = knowledge

    async def claim(
        self,
        levels: Sequence[tuple[GroupLevel, float | None]],
        workers: Sequence[str],
        seats: Sequence[int],
        lease_s: float,
        *,
        most: int | None = None,
        ageing_s: Mapping[str, float] | None = None,
        only: Sequence[bytes] | None = None,
        now: datetime | None = None,
    ) -> tuple[list[Claim], list[Blocked]]:
        """
        Claim up to ``len(seats)`` due jobs.

        Args:
            levels: In the order in which they are served, each with the due time (Unix seconds) to begin at, None: the
                last seconds.
            workers: The workers that may get jobs.
            seats: For the first, second ... job: index into *workers*.
            lease_s: Length of the leases.
            most: How many jobs of one level of a group; None: any number.
            ageing_s: Of the topics that age: how many seconds of waiting are worth one priority.
            only: These jobs alone, also where they are set aside; None: any that is not.
            now: Instead of the database's clock.

        Returns:
            What was claimed, and the levels of which nothing can be.
        """
        ages = [None if ageing_s is None else ageing_s.get(level.topic) for level, _ in levels]
        knowledge = self._knowledge()
        witnessed = UNWITNESSED if knowledge is None else knowledge.witnessed
        columns = [[level[place] for level, _ in levels] for place in range(3)]
        async with self._pool.connection() as connection:
            rows = await connection.fetch(
                _CLAIM, *columns, [begin for _, begin in levels], len(seats), workers,
                [seat + 1 for seat in seats] if len(workers) > 1 else [], lease_s, most, ages if any(ages) else None,
                *witnessed, None if only is None else uuids(only), now,
            )  # fmt: skip
        claims = [Claim(*tuple(row)[:_AFTER_A_CLAIM]) for row in rows if row["id"] is not None]
        if knowledge is not None and claims:
            await knowledge.claimed(claims)
        return claims, [
            Blocked(GroupLevel(row["topic"], row["group_key"], row["priority"]), *tuple(row)[_AFTER_A_CLAIM:])
            for row in rows
            if row["id"] is None
        ]

    async def find_levels(self, after: GroupLevel, limit: int, *, now: datetime | None = None) -> list[GroupHead]:
        """The levels of groups after *after* that have waiting jobs, served or not, in the order of the index."""
        async with self._pool.connection() as connection:
            rows = await connection.fetch(STATEMENTS["find_group_levels"].sql, *after, limit, now)
        return [GroupHead(GroupLevel(*row[:3]), *row[3:]) for row in map(tuple, rows)]

    async def topics(self) -> dict[str, str]:
        """The topics that go by a limit, and its name; every other topic is claimed without one."""
        async with self._pool.connection() as connection:
            rows = await connection.fetch(STATEMENTS["limited_topics"].sql)
        return {topic: limit for limit, topic in rows}
