"""Policies of topics in the database: what is set, what results, and the defaults of the server."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Final, TypeAlias

import asyncpg
import msgspec

from pulse.errors import BadRequestError
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from pulse.protocol import HandlerInfo
    from pulse.store.operators.jobs import Connections

Policy: TypeAlias = Mapping[str, object]
OPTIONS: Final = (
    "max_attempts",
    "max_crashes",
    "backoff",
    "timeout_s",
    "stall_s",
    "lease_s",
    "retention_s",
    "retention_dead_s",
    "ageing_s",
    "limit",
    "publish",
)
SERVER_OPTIONS: Final = ("timeout_s", "stall_s")  # options of the row '' that are not settings of the server


class LivePolicy(msgspec.Struct, frozen=True):
    """The part of a topic's policy that servers keep in memory; None: not set."""

    stall_s: float | None = None
    lease_s: float | None = None
    retention_s: float | None = None
    retention_dead_s: float | None = None
    ageing_s: float | None = None


class TopicStore:
    """
    The policies.

    Args:
        pool: The query connections.
    """

    def __init__(self, pool: Connections) -> None:
        self._pool = pool

    async def get(self, topic: str) -> tuple[Policy, Policy]:
        """The options that are set for *topic*, and for the server; others are None."""
        async with self._pool.connection() as connection:
            rows = await connection.fetch(STATEMENTS["get_topic"].sql, topic)
        found: dict[str, Policy] = {row["topic"]: dict(row) for row in rows}
        unset: Policy = dict.fromkeys(OPTIONS)
        return (found.get(topic, unset) if topic else unset), found.get("", unset)

    async def page(self, limit: int, after: str | None) -> tuple[Sequence[Policy], str | None]:
        """A page of policies, in the order of the topics, and the cursor of the next one; '' is the server."""
        async with self._pool.connection() as connection:
            rows = [dict(row) for row in await connection.fetch(STATEMENTS["list_topics"].sql, after, limit + 1)]
        return rows[:limit], rows[limit - 1]["topic"] if len(rows) > limit else None

    async def handlers(self, topic: str) -> list[Policy]:
        """Handlers whose jobs wait in *topic*, with what they declare."""
        async with self._pool.connection() as connection:
            rows = await connection.fetch(STATEMENTS["handlers_of_topic"].sql, topic)
        return [{key: value for key, value in row.items() if value is not None} for row in rows]

    async def set(self, topic: str, policy: Mapping[str, object]) -> None:
        """
        Set options of *topic*; those that are None are unset.

        Raises:
            BadRequestError: An option is unknown, or its value not allowed; the message says which, and what is.
        """
        refuse_infinite(policy, f'topic "{topic:.50}"')
        async with self._pool.connection() as connection:
            try:
                await connection.execute(STATEMENTS["set_topic"].sql, topic, json.dumps(policy))
            except asyncpg.InvalidParameterValueError as error:
                raise BadRequestError(str(error)) from None

    async def live(self) -> dict[str, LivePolicy]:
        """The policies that servers keep in memory."""
        async with self._pool.connection() as connection:
            rows = await connection.fetch(STATEMENTS["live_policies"].sql)
        return {topic: LivePolicy(*rest) for topic, *rest in rows}


def effective(own: Policy, server: Policy) -> dict[str, dict[str, object]]:
    """The value of each option that applies to a topic, and whether the topic, the server or neither (None) sets it."""
    found: dict[str, dict[str, object]] = {}
    for option in OPTIONS:
        levels = (("topic", own[option]), ("server", server[option]))
        source, value = next(((who, what) for who, what in levels if what is not None), (None, None))
        found[option] = {"value": value, "source": source}
    lease_s, least_s = own["lease_s"], server["lease_s"]
    if isinstance(lease_s, float) and isinstance(least_s, float) and lease_s < least_s:  # as extend_leases does
        found["lease_s"] = {"value": least_s, "source": "server"}
    return found


class Defaults(ABC):
    """A part of the store: defaults of the server and of handlers, which submits by SQL read."""

    @property
    @abstractmethod
    def lender(self) -> Connections:
        """Where its statements get their connections."""

    async def note_handlers(self, handlers: dict[str, HandlerInfo]) -> None:
        """Store what a worker declares of its handlers."""
        names = sorted(handlers)
        infos = [handlers[name] for name in names]
        async with self.lender.connection() as connection:
            await connection.execute(
                STATEMENTS["note_handlers"].sql,
                names,
                [info.topic for info in infos],
                [info.max_attempts for info in infos],
                [info.timeout_s for info in infos],
                [info.max_crashes for info in infos],
                [info.stall_s for info in infos],
                [info.backoff for info in infos],
                [info.on_dead_letter for info in infos],
                [info.on_crash for info in infos],
            )

    async def set_server_defaults(self, max_attempts: int, max_crashes: int, backoff: str = "quadratic") -> None:
        """Write the server's defaults where SQL submits find them."""
        async with self.lender.connection() as connection:
            await connection.execute(STATEMENTS["set_server_defaults"].sql, max_attempts, max_crashes, backoff)


def refuse_infinite(policy: Mapping[str, object], whose: str) -> None:
    """
    Refuse numbers that JSON has not.

    Raises:
        BadRequestError: An option is one; the message says which, and *whose*.
    """
    strange = next((key for key, value in policy.items() if isinstance(value, float) and not isfinite(value)), None)
    if strange is not None:
        raise BadRequestError(f"{strange} of {whose} is {policy[strange]}; a finite number is allowed")
