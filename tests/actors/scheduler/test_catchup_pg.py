"""Schedulers that come back after a while: what `all` catches up on, how soon, and what a queue releases."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from pulse.common.ids import uuid7
from pulse.store.connections.pool import Target
from pulse.store.rows import NewSchedule
from pulse.store.store import Store
from pulse_actors.runtime.actor import Turn, TurnResult
from pulse_actors.scheduler import actor
from pulse_actors.scheduler.actor import SOON_S, WAIT_S, Scheduler
from tests.support.store.helpers import Patch, Sql

pytestmark = pytest.mark.heavy

AWAY_S: Final = 75.0
EVERY_S: Final = 0.5
MISSED: Final = int(AWAY_S / EVERY_S) + 1


@pytest.fixture(autouse=True)
def long_turns(monkeypatch: Patch) -> None:
    monkeypatch.setattr(actor, "TURN_S", 60.0)


async def missed(store: Store, overlap: str) -> tuple[bytes, datetime]:
    first = datetime.now(UTC) - timedelta(seconds=AWAY_S)
    new = NewSchedule(uuid7().bytes, "n", "every", "{}", first, every_s=EVERY_S, catch_up="all", overlap=overlap)
    assert await store.schedules.create(new)
    return new.id, first


async def turn(scheduler: Scheduler) -> TurnResult:
    return await scheduler.turn(Turn(time.monotonic()))


async def occurrences(connection: Sql, schedule: bytes) -> list[datetime]:
    sql = "SELECT occurrence FROM pulse.jobs WHERE schedule_id = $1 ORDER BY occurrence"
    return [row["occurrence"] for row in await connection.fetch(sql, schedule.hex())]


async def finish(connection: Sql) -> int:
    sql = (
        "UPDATE pulse.jobs SET status = 'COMPLETED', completed_at = clock_timestamp()"
        " WHERE status = 'PENDING' AND next_run_at <= clock_timestamp()"
    )
    return int((await connection.execute(sql)).removeprefix("UPDATE "))


@pytest.mark.parametrize("schedulers", [1, 2])
async def test_nothing_is_missed_under_all(store: Store, dsn: str, connection: Sql, schedulers: int) -> None:
    """One turn fires all missed occurrences, each once, beside other schedulers."""
    made = {overlap: await missed(store, overlap) for overlap in ("allow", "queue", "cancel")}
    other = Store(Target(dsn, "pulse-tests"))
    try:
        await asyncio.gather(*(turn(Scheduler(one)) for one in (store, other)[:schedulers]))
    finally:
        other.close()
    for schedule, first in made.values():
        found = await occurrences(connection, schedule)
        assert len(found) >= MISSED
        assert found == [first + number * timedelta(seconds=EVERY_S) for number in range(len(found))]


async def test_a_queue_lets_short_jobs_go_soon(store: Store, connection: Sql) -> None:
    schedule, _ = await missed(store, "queue")
    scheduler = Scheduler(store)
    await turn(scheduler)
    await connection.execute("UPDATE pulse.schedules SET paused = true")  # nothing new comes
    for _ in range(3):
        assert await finish(connection) == 1
        assert (await turn(scheduler)).next_s == SOON_S
    assert (await turn(scheduler)).next_s == 2 * SOON_S
    assert [(await turn(scheduler)).next_s for _ in range(5)][-1] == WAIT_S
    while await finish(connection):
        await turn(scheduler)
    sql = "SELECT count(*) FROM pulse.jobs WHERE schedule_id = $1 AND status = 'COMPLETED'"
    assert await connection.fetchval(sql, schedule.hex()) >= MISSED
