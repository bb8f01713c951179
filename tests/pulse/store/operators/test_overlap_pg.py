"""Schedules whose earlier job is not finished: each occurrence follows the policy, for any scheduler."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import pytest

from pulse.common.ids import uuid7
from pulse.store.operators import schedules as scheduled
from pulse.store.operators.schedules import MAX_HELD
from pulse.store.rows import Completion, Ending, EndingKind, Fired, Firing, Level, NewSchedule, from_us, to_us
from pulse.store.store import Store
from pulse_actors.scheduler.catchup import firing_of
from tests.support.store.helpers import (
    NOW,
    OTHER,
    TOPIC,
    WORKER,
    Patch,
    Sql,
    at,
    claim,
    fence,
    forge,
    found_of,
    history,
    read,
)
from tests.support.waiting import until_blocked

EVERY_S: Final = 60.0


async def make(store: Store, overlap: str, **fields: Any) -> bytes:
    new = NewSchedule(uuid7().bytes, "n", "every", "{}", NOW, topic=TOPIC, every_s=EVERY_S, overlap=overlap, **fields)
    assert await store.schedules.create(new)
    return new.id


async def fire(store: Store, number: int) -> Fired:
    [due] = await store.schedules.due(10, now=at(number * EVERY_S))
    assert from_us(due.cursor_us or 0) == at(number * EVERY_S)
    [fired] = await store.schedules.fire([firing_of(due)], now=at(number * EVERY_S))
    return fired


async def job_of(connection: Sql, schedule: bytes, number: int) -> bytes:
    sql = "SELECT id FROM pulse.jobs WHERE schedule_id = $1 AND occurrence = $2"
    identity: uuid.UUID = await connection.fetchval(sql, schedule.hex(), at(number * EVERY_S))
    return identity.bytes


async def verdicts(store: Store, *numbers: int) -> list[str]:
    return [(await fire(store, number)).verdict for number in numbers]


async def statuses(connection: Sql) -> list[str]:
    rows = await connection.fetch("SELECT status::text AS status FROM pulse.jobs ORDER BY occurrence")
    return [row["status"] for row in rows]


async def finish(store: Store, now_s: float) -> None:
    done = await claim(store, seconds=now_s)
    assert len(done) == 1
    await store.complete([Completion(*fence(done[0].id, done[0].attempt), None)], now=at(now_s))


async def test_allow(store: Store, connection: Sql) -> None:
    await make(store, "allow")
    assert await verdicts(store, 0, 1, 2) == ["fired"] * 3
    assert len(await claim(store, seconds=200)) == 3
    assert await statuses(connection) == ["RUNNING"] * 3


@pytest.mark.parametrize("stage", ["PENDING", "RUNNING", "RETRYING"])
async def test_skip(store: Store, connection: Sql, stage: str) -> None:
    """While the last job is not finished, waiting for its retry included, occurrences become nothing."""
    schedule = await make(store, "skip")
    assert await verdicts(store, 0) == ["fired"]
    if stage != "PENDING":
        [one] = await claim(store)
        if stage == "RETRYING":
            await store.end([Ending(*fence(one.id), EndingKind.RETRY, "why", delay_s=1000.0)], now=NOW)
    assert await verdicts(store, 1, 2) == ["skipped"] * 2
    assert await statuses(connection) == [stage]
    found = found_of(await store.schedules.get(schedule))
    assert (found["next_run_at"], found["last_run_at"]) == (at(3 * EVERY_S).timestamp(), NOW.timestamp())
    assert found["skipped_at"] == at(2 * EVERY_S).timestamp()
    assert found["skipped_for"] == await job_of(connection, schedule, 0)


async def test_skip_goes_on_when_it_is_finished(store: Store, connection: Sql) -> None:
    """The next occurrence after the end of the last job fires; also when that job is gone. What was skipped is kept."""
    schedule = await make(store, "skip")
    assert await verdicts(store, 0, 1) == ["fired", "skipped"]
    first = await job_of(connection, schedule, 0)
    await finish(store, 61)
    assert await verdicts(store, 2) == ["fired"]
    await connection.execute("DELETE FROM pulse.jobs")
    assert await verdicts(store, 3) == ["fired"]
    found = found_of(await store.schedules.get(schedule))
    assert (found["skipped_at"], found["skipped_for"]) == (at(EVERY_S).timestamp(), first)
    assert await verdicts(store, 4) == ["skipped"]


async def test_jobs_that_were_triggered_do_not_count(store: Store, connection: Sql) -> None:
    schedule = await make(store, "skip")
    assert await store.schedules.trigger(schedule, uuid7().bytes)
    assert await verdicts(store, 0) == ["fired"]
    assert await statuses(connection) == ["PENDING"] * 2


async def test_cancel(store: Store, connection: Sql) -> None:
    """The old job is canceled as an operator would, in the statement that inserts the new one."""
    schedule = await make(store, "cancel")
    await forge(connection, topic="other", occurrence=at(-EVERY_S))
    assert await fire(store, 0) == Fired(schedule, "fired", Level(TOPIC, 0), None)
    [one] = await claim(store)
    assert await fire(store, 1) == Fired(schedule, "fired", Level(TOPIC, 0), one.id)
    old = await read(connection, one.id)
    assert (old["status"], old["completed_at"], old["locked_by"]) == ("CANCELED", at(EVERY_S), None)
    [entry] = await history(connection, one.id)
    assert (entry["attempt"], entry["outcome"], entry["worker"]) == (1, "canceled", WORKER)
    assert await fire(store, 2) == Fired(schedule, "fired", Level(TOPIC, 0), await job_of(connection, schedule, 1))
    assert await history(connection, await job_of(connection, schedule, 1)) == []
    assert await statuses(connection) == ["PENDING", "CANCELED", "CANCELED", "PENDING"]
    assert found_of(await store.schedules.get(schedule))["skipped_at"] is None
    await store.schedules.fire([Firing(schedule, to_us(at(3 * EVERY_S)), to_us(at(4 * EVERY_S)), None)])
    assert await statuses(connection) == ["PENDING", "CANCELED", "CANCELED", "PENDING"]  # it has passed


@pytest.mark.parametrize("marked", [True, False])
async def test_the_end_of_a_canceled_job_is_published_if_it_was_to_be(
    store: Store, connection: Sql, marked: bool
) -> None:
    publish = f"SELECT pulse.set_topic('{TOPIC}', '{{\"publish\": true}}')"
    await make(store, "cancel")
    if marked:
        await connection.execute(publish)
    await fire(store, 0)
    await connection.execute(publish)
    canceled = (await fire(store, 1)).canceled
    ends = [row["job_id"].bytes for row in await connection.fetch("SELECT job_id FROM pulse.outbox")]
    assert ends == ([canceled] if marked else [])


async def test_cancel_leaves_what_is_finished(store: Store, connection: Sql) -> None:
    await make(store, "cancel")
    await fire(store, 0)
    await finish(store, 1)
    assert (await fire(store, 1)).canceled is None
    assert await statuses(connection) == ["COMPLETED", "PENDING"]


async def test_a_cursor_that_was_set_back_cancels_nothing(store: Store, connection: Sql) -> None:
    """An occurrence that fires again by hand does not cancel its own job."""
    await make(store, "cancel")
    await fire(store, 0)
    await connection.execute("UPDATE pulse.schedules SET next_run_at = $1", NOW)
    found = await fire(store, 0)
    assert (found.level, found.canceled) == (None, None)
    assert await statuses(connection) == ["PENDING"]


async def test_queue(store: Store, connection: Sql) -> None:
    schedule = await make(store, "queue")
    assert await verdicts(store, 0, 1, 2) == ["fired", "held", "held"]
    assert (await store.schedules.work(now=NOW)).waiting
    assert await store.schedules.release(10, now=at(150)) == []
    for number in range(3):
        [one] = await claim(store, seconds=200 + number)
        assert one.id == await job_of(connection, schedule, number)
        assert await store.schedules.release(10, now=at(200)) == []
        await store.complete([Completion(*fence(one.id), None)], now=at(200))
        assert await claim(store, seconds=200 + number) == []
        released = await store.schedules.release(10, now=at(200 + number))
        assert released == ([Level(TOPIC, 0)] if number < 2 else [])
    assert not (await store.schedules.work(now=NOW)).waiting
    assert await statuses(connection) == ["COMPLETED"] * 3
    assert await verdicts(store, 3) == ["fired"]


async def test_what_is_held_keeps_its_turn(store: Store, connection: Sql) -> None:
    """An occurrence that comes between the end of a job and the release of the next waits behind it."""
    schedule = await make(store, "queue")
    assert await verdicts(store, 0, 1) == ["fired", "held"]
    await finish(store, 90)
    assert await verdicts(store, 2) == ["held"]
    await store.schedules.release(10, now=at(121))
    [one] = await claim(store, seconds=130, worker=OTHER)
    assert one.id == await job_of(connection, schedule, 1)


async def test_a_held_job_that_was_canceled_is_passed_over(store: Store, connection: Sql) -> None:
    """An operator may cancel a waiting one; the next takes its place, and an empty queue is none."""
    schedule = await make(store, "queue")
    await verdicts(store, 0, 1, 2)
    await store.cancel([await job_of(connection, schedule, 1)], now=at(120))
    await finish(store, 121)
    assert await store.schedules.release(10, now=at(122)) == [Level(TOPIC, 0)]
    await finish(store, 123)
    assert await statuses(connection) == ["COMPLETED", "CANCELED", "COMPLETED"]
    await verdicts(store, 3, 4)
    await store.cancel([await job_of(connection, schedule, 4)], now=at(240))
    await finish(store, 241)
    assert await store.schedules.release(10, now=at(242)) == []
    assert not (await store.schedules.work(now=NOW)).waiting


async def test_a_queue_is_bounded(store: Store, connection: Sql) -> None:
    schedule = await make(store, "queue")
    assert await verdicts(store, *range(MAX_HELD + 2)) == ["fired", *["held"] * MAX_HELD, "full"]
    await store.cancel([await job_of(connection, schedule, 5)], now=at(1))
    await connection.execute(
        "INSERT INTO pulse.jobs (id, topic, name, max_attempts, schedule_id, next_run_at)"
        "VALUES (pulse.uuid7(), 't', 'n', 5, pulse.uuid7(), '9999-12-30 00:00+00')"  # of another one
    )
    assert await verdicts(store, MAX_HELD + 2, MAX_HELD + 3) == ["held", "full"]
    assert len(await statuses(connection)) == MAX_HELD + 3


async def _held(connection: Sql, schedule: bytes, now_s: float) -> None:
    await connection.execute(
        "INSERT INTO pulse.jobs (id, topic, name, max_attempts, schedule_id, occurrence, next_run_at)"
        "VALUES ($1::uuid, 't', 'n', 5, $2::uuid, $3, '9999-12-30 00:00+00')",
        uuid7().hex,
        schedule.hex(),
        at(now_s),
    )


@asynccontextmanager
async def _releases_meanwhile(store: Store, connection: Sql) -> AsyncIterator[None]:
    """The block is a transaction that a release waits for; it then releases nothing."""
    async with connection.transaction():
        yield
        releasing = asyncio.create_task(store.schedules.release(10, now=at(121)))
        await until_blocked(connection, by=connection.get_server_pid())
    assert await releasing == []


async def test_what_is_held_back_during_a_release_is_not_forgotten(store: Store, connection: Sql) -> None:
    """A release that counted before another occurrence was held back writes nothing; the next one lets them all go."""
    schedule = await make(store, "queue")
    await verdicts(store, 0, 1)
    await finish(store, 61)
    async with _releases_meanwhile(store, connection):
        await connection.execute("UPDATE pulse.schedules SET waiting = waiting + 1")
        await _held(connection, schedule, 120)
    for number in (1, 2):
        assert await store.schedules.release(10, now=at(122 + number)) == [Level(TOPIC, 0)]
        [one] = await claim(store, seconds=130 + number)
        assert one.id == await job_of(connection, schedule, number)
        await store.complete([Completion(*fence(one.id), None)], now=at(130 + number))


async def test_a_release_does_not_pass_what_fired_meanwhile(store: Store, connection: Sql) -> None:
    """As many wait as before, but they are others, behind a job that this release cannot see."""
    schedule = await make(store, "queue")
    await verdicts(store, 0, 1)
    await store.cancel([await job_of(connection, schedule, 1)], now=at(60))
    await finish(store, 61)
    fired = uuid7()
    async with _releases_meanwhile(store, connection):
        await connection.execute(
            "INSERT INTO pulse.jobs (id, topic, name, max_attempts, schedule_id, occurrence)"
            "VALUES ($1::uuid, 't', 'n', 5, $2::uuid, $3)",
            fired.hex,
            schedule.hex(),
            at(120),
        )
        await connection.execute("UPDATE pulse.schedules SET last_job_id = $1::uuid", fired.hex)
        await _held(connection, schedule, 180)
    assert await store.schedules.release(10, now=at(190)) == []
    await connection.execute("DELETE FROM pulse.jobs WHERE id = $1::uuid", fired.hex)
    assert await store.schedules.release(10, now=at(191)) == [Level(TOPIC, 0)]


@pytest.mark.parametrize(
    "change", ["status = 'CANCELED', completed_at = clock_timestamp()", "next_run_at = '2100-01-01'"]
)
async def test_a_job_that_is_not_held_any_more_is_left_alone(store: Store, connection: Sql, change: str) -> None:
    """Somebody cancels it, or gives it another time, while a release waits for it."""
    schedule = await make(store, "queue")
    await verdicts(store, 0, 1)
    await finish(store, 61)
    job = await job_of(connection, schedule, 1)
    async with _releases_meanwhile(store, connection):
        await connection.execute(f"UPDATE pulse.jobs SET {change} WHERE id = $1", job.hex())
    assert (await read(connection, job))["next_run_at"] > at(200)


async def test_only_what_is_held_counts_as_waiting(store: Store, connection: Sql) -> None:
    """Not a job of the same schedule that was triggered."""
    schedule = await make(store, "queue")
    await verdicts(store, 0, 1)
    await finish(store, 61)
    await store.schedules.trigger(schedule, uuid7().bytes)
    assert await store.schedules.release(10, now=at(62)) == [Level(TOPIC, 0)]
    assert await connection.fetchval("SELECT waiting FROM pulse.schedules") == 0


async def test_each_schedule_counts_once(store: Store, connection: Sql) -> None:
    """Though others have as many that wait, and no last job either."""
    for _ in range(3):
        await _held(connection, await make(store, "queue"), 0)
    await connection.execute("UPDATE pulse.schedules SET waiting = 1")
    assert await store.schedules.release(2, now=at(1)) == [Level(TOPIC, 0)] * 2


async def test_release_is_of_one_schedule(store: Store, connection: Sql) -> None:
    """The end of one schedule's job releases one of its own, and none of another's."""
    first, second = await make(store, "queue"), await make(store, "queue")
    for _ in range(3):
        due = [replace(one, now_us=one.cursor_us or 0) for one in await store.schedules.due(10, now=at(1000))]
        await store.schedules.fire([firing_of(one) for one in due], now=NOW)
    await connection.execute("DELETE FROM pulse.jobs WHERE id = $1", (await job_of(connection, first, 0)).hex())
    older = "UPDATE pulse.jobs SET occurrence = occurrence - interval '1 day' WHERE schedule_id = $1::uuid"
    await connection.execute(older, second.hex())
    idle = await make(store, "queue")
    version = "SELECT xmin::text FROM pulse.schedules WHERE id = $1::uuid"
    before = await connection.fetchval(version, idle.hex())
    assert await store.schedules.release(10, now=at(1000)) == [Level(TOPIC, 0)]
    assert await connection.fetchval(version, idle.hex()) == before
    open_jobs = await connection.fetch("SELECT schedule_id FROM pulse.jobs WHERE next_run_at < '9999-01-01'")
    assert sorted(row["schedule_id"].bytes for row in open_jobs) == sorted([first, second])


async def test_deleting_cancels_what_is_held(store: Store, connection: Sql) -> None:
    """Held jobs would wait for ever without their schedule; the others stay as they are."""
    schedule = await make(store, "queue")
    other = await make(store, "allow")
    await store.schedules.delete(other)
    await verdicts(store, 0, 1, 2)
    await connection.execute(f"SELECT pulse.set_topic('{TOPIC}', '{{\"publish\": true}}')")
    assert await store.schedules.delete(schedule)
    assert await statuses(connection) == ["PENDING", "CANCELED", "CANCELED"]
    assert await connection.fetchval("SELECT count(*) FROM pulse.outbox") == 0  # they were there before


async def test_a_queue_that_makes_up_for_all(store: Store, monkeypatch: Patch) -> None:
    """With `all`, as many wait as the catch-up allows."""
    monkeypatch.setattr(scheduled, "MAX_HELD_OF_ALL", MAX_HELD + 2)
    await make(store, "queue", catch_up="all")
    assert await verdicts(store, *range(MAX_HELD + 4)) == ["fired", *["held"] * (MAX_HELD + 2), "full"]
