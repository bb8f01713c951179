"""Schedulers and schedules with a unique key: what waits, and for how long."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from pulse.common.ids import uuid7
from pulse.store.rows import NewSchedule
from pulse.store.store import Store
from pulse_actors.runtime.actor import Turn, TurnResult
from pulse_actors.scheduler import unique
from pulse_actors.scheduler.actor import LOOK_S, Scheduler
from tests.support.store.helpers import TOPIC, Patch, Sql, holding, job
from tests.support.waiting import until_async

HOLD: Final = "SELECT pulse.submit('n', unique_key => $1)"
JOBS: Final = "SELECT count(*) FROM pulse.jobs WHERE schedule_id = $1"


@pytest.fixture(autouse=True)
def long_turns(monkeypatch: Patch) -> None:
    monkeypatch.setattr(unique, "TURN_S", 60.0)


async def make(store: Store, in_s: float = -1.0, **fields: Any) -> bytes:
    moment = datetime.now(UTC) + timedelta(seconds=in_s)
    fields = {"topic": TOPIC, **fields}
    new = NewSchedule(uuid7().bytes, "n", "at", "{}", moment, run_at=moment, **fields)
    assert await store.schedules.create(new)
    return new.id


async def turn(scheduler: Scheduler) -> TurnResult:
    return await scheduler.turn(Turn(time.monotonic()))


async def jobs(connection: Sql, *schedules: bytes) -> list[int]:
    return [await connection.fetchval(JOBS, one.hex()) for one in schedules]


async def test_a_firing_that_waits_for_a_transaction_delays_no_other(store: Store, connection: Sql, dsn: str) -> None:
    """One turn fires what has no key and what has another key, in the order of their times or not."""
    scheduler = Scheduler(store)
    blocked = await make(store, in_s=-9.0, unique_key="a")
    plain, other = await make(store), await make(store, unique_key="b")
    async with holding(dsn, HOLD, "a"):
        await turn(scheduler)
        assert await jobs(connection, blocked, plain, other) == [0, 1, 1]
        later = await make(store)
        began_s = time.monotonic()
        result = await turn(scheduler)
        took_s = time.monotonic() - began_s
        assert await jobs(connection, blocked, later) == [0, 1]
        assert took_s < unique.BLOCKED_S  # the other one was not even tried
        assert result.next_s <= unique.BLOCKED_S


async def test_what_waited_is_tried_again(store: Store, connection: Sql, dsn: str, monkeypatch: Patch) -> None:
    """A moment later, not before; once the transaction has ended it fires, or is skipped for the job of that one."""
    scheduler = Scheduler(store)
    schedule = await make(store, unique_key="a")
    async with holding(dsn, HOLD, "a"):
        await turn(scheduler)
    sql = "SELECT skipped_at IS NOT NULL FROM pulse.schedules WHERE id = $1"
    await turn(scheduler)
    assert not await connection.fetchval(sql, schedule.hex())

    async def is_skipped() -> bool:
        await turn(scheduler)
        return bool(await connection.fetchval(sql, schedule.hex()))

    await until_async(is_skipped, "the occurrence is skipped")
    assert (await turn(scheduler)).next_s == LOOK_S


async def test_it_wakes_the_dispatcher(store: Store) -> None:
    """When a job was inserted or replaced, and not when one was skipped."""
    scheduler = Scheduler(store)
    hints = []
    for how in (None, None, "replace"):
        await make(store, unique_key="a", on_conflict=how)
        hints.append(len((await turn(scheduler)).hints))
    assert hints == [1, 0, 1]


async def test_what_it_tells(store: Store) -> None:
    scheduler = Scheduler(store)
    for how in (None, None, "replace"):
        await make(store, unique_key="a", on_conflict=how)
    with capture_logs() as said:
        await turn(scheduler)
    assert [{**one, "log_level": ""} for one in said] == [
        {"event": "schedules_fired", "jobs": 1, "replaced": 1, "skipped": 1, "log_level": ""}
    ]


async def test_what_the_database_refuses_delays_no_other(store: Store, connection: Sql) -> None:
    """The log has it, once in a while."""
    scheduler = Scheduler(store)
    await store.unique.submit([job(name="other", unique="a")])
    refused, other = (
        await make(store, in_s=-9.0, unique_key="a", on_conflict="replace"),
        await make(store, unique_key="b"),
    )
    with capture_logs() as said:
        await turn(scheduler)
        await turn(scheduler)
    assert [one["event"] for one in said] == ["schedule_refused", "schedules_fired"]
    assert await jobs(connection, refused, other) == [0, 1]


async def test_one_whose_times_cannot_be_computed(store: Store, connection: Sql) -> None:
    """It is marked, as one without a key, and the others fire."""
    stuck, other = await make(store, unique_key="a"), await make(store, unique_key="b")
    await connection.execute(
        "UPDATE pulse.schedules SET kind = 'cron', run_at = NULL, cron = '* * * * *', timezone = 'UTC',"
        " jitter_s = 3600, next_run_at = next_run_at - interval '2 hours' WHERE id = $1",
        stuck.hex(),
    )
    await turn(Scheduler(store))
    assert await jobs(connection, stuck, other) == [0, 1]
    assert await connection.fetchval("SELECT error IS NOT NULL FROM pulse.schedules WHERE id = $1", stuck.hex())


async def test_a_turn_fires_for_a_moment(store: Store, connection: Sql, monkeypatch: Patch) -> None:
    """What has no key may be due again; the rest comes in the next turn, at once."""
    scheduler = Scheduler(store)
    monkeypatch.setattr(unique, "TURN_S", -1.0)
    schedules = [await make(store, unique_key="a"), await make(store, unique_key="b"), await make(store)]
    result = await turn(scheduler)
    assert await jobs(connection, *schedules) == [1, 0, 1]
    assert result.next_s < unique.SOON_S
    await turn(scheduler)
    assert await jobs(connection, *schedules) == [1, 1, 1]
