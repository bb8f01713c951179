"""Limits in the database: their policies. Claims read them; a change counts from the next claim on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import asyncpg
import msgspec

from pulse.errors import BadRequestError
from pulse.store.operators.policies import refuse_infinite
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from datetime import datetime

    from pulse.store.operators.jobs import Connections

BATCH: Final = 1000


class Limit(msgspec.Struct, frozen=True):
    """
    The policy of a limit, or what differs for one of its groups.

    Attributes:
        name: Of the limit.
        group_key: The group; None: all that goes by the limit.
        concurrency: Most jobs that run at once; 0: none.
        rate: Starts per second.
        burst: How many may start together; None: those of a second, one at least.
        group_concurrency: Most jobs of each group that run at once.
        group_rate: Starts per second of each group.
        group_burst: How many of each group may start together.
        sequence: Jobs of a group run one by one, in order: what a dead letter does to those behind it, ``continue`` or
            ``halt``; None: they do not.
        running: How many slots are taken, counted up to 1000; None for a group.
    """

    name: str
    group_key: str | None = None
    concurrency: int | None = None
    rate: float | None = None
    burst: int | None = None
    group_concurrency: int | None = None
    group_rate: float | None = None
    group_burst: int | None = None
    sequence: str | None = None
    running: int | None = None


class LimitStore:
    """
    The limits.

    Args:
        pool: The query connections.
    """

    def __init__(self, pool: Connections) -> None:
        self._pool = pool

    async def set(self, name: str, policy: Mapping[str, object], *, group: str | None = None) -> None:
        """
        Set options of a limit, or what differs for *group*; those that are None are unset.

        Raises:
            BadRequestError: An option is unknown, or its value not allowed; the message says which, and what is.
        """
        refuse_infinite(policy, f'limit "{name:.50}"')
        async with self._pool.connection() as connection:
            try:
                await connection.execute(STATEMENTS["set_limit"].sql, name, group, json.dumps(policy))
            except asyncpg.InvalidParameterValueError as error:
                raise BadRequestError(str(error)) from None

    async def unset(self, name: str, *, group: str | None = None) -> bool:
        """Remove a limit, or what differs for *group*; returns whether there was one."""
        async with self._pool.connection() as connection:
            return bool(await connection.fetchval(STATEMENTS["unset_limit"].sql, name, group))

    async def page(self, limit: int, after: tuple[str, str | None] | None = None) -> list[Limit]:
        """A page of limits and of groups that differ, in the order of names and groups, behind *after*."""
        name, group = after or (None, None)
        async with self._pool.connection() as connection:
            rows = await connection.fetch(STATEMENTS["page_of_limits"].sql, name, group or "", limit)
        return [Limit(*row) for row in rows]

    async def forget_buckets(self, *, now: datetime | None = None) -> int:
        """Delete a batch of buckets of groups that are full again; returns how many."""
        async with self._pool.connection() as connection:
            return int(await connection.fetchval(STATEMENTS["forget_buckets"].sql, BATCH, now))
