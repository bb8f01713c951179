"""Limits in the database: their policies, and what is taken. A change counts from the next claim on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from pulse.errors import BadRequestError
from pulse.store.operators.policies import refuse_infinite
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from datetime import datetime

    from pulse.store.operators.jobs import Connections

BATCH: Final = 1000


class LimitStore:
    """
    The limits.

    Args:
        pool: The query connections.
    """

    def __init__(self, pool: Connections) -> None:
        self._pool = pool

    async def begin_to_change(self) -> None:
        """Wait until no other transaction changes limits, and keep others waiting; before this one reads any."""
        async with self._pool.connection() as connection:
            await connection.execute(STATEMENTS["begin_to_change_limits"].sql)

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

    async def page(
        self,
        limit: int,
        after: tuple[str, str | None] | None = None,
        *,
        name: str | None = None,
        group: str | None = None,
        now: datetime | None = None,
    ) -> list[dict[str, Any]]:
        """A page of limits and of groups that differ, by name and group, behind *after*; *group* '': of all jobs."""
        last, behind = after or (None, None)
        async with self._pool.connection() as connection:
            rows = await connection.fetch(STATEMENTS["page_of_limits"].sql, last, behind or "", limit, name, group, now)
        return [dict(row) for row in rows]

    async def get(self, name: str, *, group: str | None = None) -> dict[str, Any] | None:
        """A limit, or what differs for *group*."""
        rows = await self.page(1, name=name, group=group or "")
        return rows[0] if rows else None

    async def declared(self, name: str, by: str) -> None:
        """Note that the code of the application *by* declares a limit."""
        async with self._pool.connection() as connection:
            await connection.execute(STATEMENTS["declare_limit"].sql, name, by)

    async def undeclare(self, by: str, names: Sequence[str]) -> list[str]:
        """Mark limits that *by* declared, and that are not among *names*; returns theirs."""
        async with self._pool.connection() as connection:
            rows = await connection.fetch(STATEMENTS["undeclare_limits"].sql, by, list(names))
        return [str(row["name"]) for row in rows]

    async def forget_buckets(self, *, now: datetime | None = None) -> int:
        """Delete a batch of buckets of groups that are full again; returns how many."""
        async with self._pool.connection() as connection:
            return int(await connection.fetchval(STATEMENTS["forget_buckets"].sql, BATCH, now))
