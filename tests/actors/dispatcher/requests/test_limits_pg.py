"""Changes of limits that meet each other in the database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, TypeAlias, cast

import pytest

from pulse.protocol import LimitsDeclare, LimitSet, LimitUnset
from pulse.protocol.requests import LimitDeclared
from pulse.store.store import Store
from pulse_actors.dispatcher.context import RequestContext
from pulse_actors.dispatcher.requests.limits import declare_limits, set_limit, unset_limit
from tests.actors.dispatcher.net.test_session_pg import Lobby
from tests.support.store.helpers import Sql, found_of
from tests.support.waiting import until_async

Change: TypeAlias = Callable[[RequestContext], Awaitable[object]]

OLD, NEW = "a limit", "made anew"  # they are declared in this order
DECLARED: Final = LimitsDeclare("shop", [LimitDeclared(name, {"concurrency": 5}) for name in (OLD, NEW)])
LOCKED_OUT: Final = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


async def hint(_event: object) -> None:
    """For the other actors: there are none."""


def declare(context: RequestContext) -> Awaitable[object]:
    return declare_limits(context, DECLARED)


@pytest.mark.parametrize("change", [
    declare,
    lambda context: set_limit(context, LimitSet(OLD, {"rate": 2})),
    lambda context: unset_limit(context, LimitUnset(OLD)),
], ids=["declared twice", "set", "unset"])  # fmt: skip
async def test_two_changes_at_once(
    own_database: str, store: Store, connection: Sql, other: Sql, change: Change
) -> None:
    """One waits for the other from its begin on: two that have read the limits would wait for each other."""
    await store.limits.set(OLD, {"rate": 1})
    database = own_database.partition("?")[0].rpartition("/")[2]
    await connection.execute(f"ALTER DATABASE {database} SET deadlock_timeout = '50ms'")
    await store.limits.page(1)
    bus = cast("Any", SimpleNamespace(hint=hint))
    context = RequestContext(replace(Lobby(store, connection).services(), bus=bus))

    async def wait(number: int) -> None:
        async def are_there() -> bool:
            return bool(await connection.fetchval(LOCKED_OUT) == number)

        await until_async(are_there, f"{number} wait")

    async with asyncio.TaskGroup() as tasks, other.transaction():
        await other.execute("SELECT FROM pulse.limits WHERE name = $1 FOR UPDATE", OLD)
        for number, one in enumerate((declare, change), 1):
            tasks.create_task(cast("Any", one(context)))
            await wait(number)
    assert found_of(await store.limits.get(NEW))["concurrency"] == 5
