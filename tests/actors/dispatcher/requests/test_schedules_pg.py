"""Schedules that a request changes, on a real database: the change is made once, and the scheduler hears of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pulse.errors import ConflictError
from pulse.protocol import ScheduleCreate, ScheduleUpdate
from pulse.protocol.bus import HintEvent
from pulse.store.store import Store
from pulse_actors.dispatcher.context import RequestContext
from pulse_actors.dispatcher.requests import schedules
from pulse_actors.dispatcher.requests.schedules import create_schedule, update_schedule
from pulse_actors.runtime.bus import Hint
from tests.actors.dispatcher.net.test_session_pg import Lobby
from tests.support.store.helpers import Patch, Sql

pytestmark = pytest.mark.heavy


@pytest.fixture
def told() -> list[str]:
    """What the scheduler hears."""
    return []


@pytest.fixture
def on(store: Store, connection: Sql, told: list[str]) -> RequestContext:
    async def hint(one: Hint) -> None:
        told.append(one.event)

    return RequestContext(replace(Lobby(store, connection).services(), bus=cast("Any", SimpleNamespace(hint=hint))))


async def made(on: RequestContext) -> dict[str, Any]:
    return cast("dict[str, Any]", (await create_schedule(on, ScheduleCreate("n", every=60.0)))["schedule"])


async def test_a_change_is_made_once(on: RequestContext, connection: Sql, told: list[str]) -> None:
    old = await made(on)
    new = cast("Any", await update_schedule(on, ScheduleUpdate(old["id"], priority=7)))["schedule"]
    assert (new["priority"], new["revision"]) == (7, old["revision"] + 1)
    assert told == [HintEvent.SCHEDULES_CHANGED] * 2
    actions = [row["action"] for row in await connection.fetch("SELECT action FROM pulse.audit ORDER BY id")]
    assert actions == ["schedules.create", "schedules.update"]


async def test_whom_others_forestall_again_and_again(
    on: RequestContext, connection: Sql, monkeypatch: Patch, told: list[str]
) -> None:
    old = await made(on)

    async def forestalled(*_: object) -> bool:
        return False

    monkeypatch.setattr(schedules, "_change", forestalled)
    with pytest.raises(ConflictError, match="is being changed by others; ask again"):
        await update_schedule(on, ScheduleUpdate(old["id"], priority=7))
    assert await connection.fetchval("SELECT count(*) FROM pulse.audit") == 1
    assert told == [HintEvent.SCHEDULES_CHANGED]
