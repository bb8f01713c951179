"""Schedules: an occurrence fires exactly once, for any number of schedulers, and its job is resolved as any other."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import pytest

from pulse.store.rows import Due, Fired, Firing, Level, NewSchedule, Work, from_us, to_us
from pulse.store.store import Store
from pulse_actors.scheduler.catchup import firing_of
from pulse_actors.shared.recurrence import jittered_us
from tests.support.store.helpers import NOW, TOPIC, Row, Sql, at, count, found_of, new_id

EVERY_S: Final = 60.0


def new(**fields: Any) -> NewSchedule:
    base: dict[str, Any] = {
        "id": new_id(), "name": "n", "kind": "every", "args": '{"a": 1}', "next_run_at": NOW, "topic": TOPIC,
    }  # fmt: skip
    kind = {"every_s": EVERY_S} if fields.get("kind", "every") == "every" else {}
    return NewSchedule(**{**base, **kind, **fields})


async def made(store: Store, **fields: Any) -> NewSchedule:
    schedule = new(**fields)
    assert await store.schedules.create(schedule)
    return schedule


def firing(schedule: NewSchedule, seconds: float = 0.0, *, more: bool = True) -> Firing:
    cursor_us = to_us(at(seconds))
    next_us = to_us(at(seconds + EVERY_S)) if more else None
    return Firing(schedule.id, cursor_us, next_us, cursor_us)


async def cursor(connection: Sql, schedule: NewSchedule) -> tuple[Any, Any]:
    sql = "SELECT next_run_at, last_run_at FROM pulse.schedules WHERE id = $1"
    return tuple(found_of(await connection.fetchrow(sql, schedule.id.hex())))


async def only_job(connection: Sql) -> Row:
    [row] = await connection.fetch("SELECT *, NULL AS status FROM pulse.jobs")
    return dict(row)


async def test_fire(store: Store, connection: Sql) -> None:
    schedule = await made(store, priority=4, max_attempts=3, timeout_s=2.5, group_key="g")
    fired = replace(firing(schedule), following_us=to_us(at(2 * EVERY_S)))
    assert await store.schedules.fire([fired], now=at(0.25)) == [Fired(schedule.id, "fired", Level(TOPIC, 4), None)]
    assert await cursor(connection, schedule) == (at(EVERY_S), NOW)
    assert await connection.fetchval("SELECT following_run_at FROM pulse.schedules") == at(2 * EVERY_S)
    found = await only_job(connection)
    expected = {
        "name": "n", "topic": TOPIC, "args": '{"a": 1}', "priority": 4, "max_attempts": 3, "timeout_s": 2.5,
        "submitted_at": at(0.25), "next_run_at": at(0.25), "schedule_id": uuid.UUID(bytes=schedule.id),
        "occurrence": NOW, "attempts": 0, "group_key": "g",
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert found["id"].version == 7
    assert await connection.fetchval("SELECT last_job_id FROM pulse.schedules") == found["id"]


async def test_the_last_occurrence(store: Store, connection: Sql) -> None:
    """Without a next occurrence the cursor is empty, and nothing fires any more."""
    schedule = await made(store)
    await store.schedules.fire([firing(schedule, more=False)])
    assert await cursor(connection, schedule) == (None, NOW)
    assert await store.schedules.due(10, now=at(1e6)) == []
    assert (await store.schedules.work(now=NOW)).due_s is None
    assert await store.schedules.fire([firing(schedule)]) == []


async def test_fires_set_back(store: Store, connection: Sql) -> None:
    """A schedule that is set to an earlier time fires again; the newest occurrence stays the newest."""
    schedule = await made(store, kind="at", next_run_at=at(EVERY_S), run_at=at(EVERY_S))
    await store.schedules.fire([firing(schedule, EVERY_S, more=False)])
    earlier = replace(schedule, next_run_at=NOW, run_at=NOW)
    assert await store.schedules.update(earlier, 0, moved=True)
    [fired] = await store.schedules.fire([replace(firing(schedule, more=False), revision=1)])
    assert fired.verdict == "fired"
    assert await cursor(connection, schedule) == (None, at(EVERY_S))


async def test_an_occurrence_fires_once(store: Store, connection: Sql) -> None:
    schedule = await made(store)
    await store.schedules.fire([firing(schedule)])
    before = await cursor(connection, schedule)
    assert await store.schedules.fire([firing(schedule)]) == []
    assert await cursor(connection, schedule) == before
    assert await count(connection) == 1


async def test_a_cursor_that_was_set_back_does_not_fire_again(store: Store, connection: Sql) -> None:
    """The job of that occurrence exists, so no second one is inserted."""
    schedule = await made(store)
    await store.schedules.fire([firing(schedule)])
    before = await only_job(connection)
    await connection.execute("UPDATE pulse.schedules SET next_run_at = $1", NOW)
    assert await store.schedules.fire([firing(schedule)]) == [Fired(schedule.id, "fired", None, None)]
    assert await only_job(connection) == before
    assert await cursor(connection, schedule) == (at(EVERY_S), NOW)
    assert await connection.fetchval("SELECT last_job_id FROM pulse.schedules") == before["id"]


async def test_another_schedule_has_the_occurrence(store: Store, connection: Sql) -> None:
    for schedule in (new(), new()):
        await store.schedules.create(schedule)
        for seconds in (0.0, EVERY_S):
            await store.schedules.fire([firing(schedule, seconds)])
    assert await count(connection) == 4


async def test_a_paused_schedule_does_not_fire(store: Store, connection: Sql) -> None:
    """It is neither due nor fired, not even by a scheduler that saw it due before."""
    schedule = await made(store)
    await connection.execute("UPDATE pulse.schedules SET paused = true")
    assert await store.schedules.due(10, now=at(1)) == []
    assert (await store.schedules.work(now=NOW)).due_s is None
    assert await store.schedules.fire([firing(schedule)]) == []
    assert await cursor(connection, schedule) == (NOW, None)


async def test_each_of_a_batch_is_judged_alone(store: Store, connection: Sql) -> None:
    schedules = [await made(store, name=f"n{number}") for number in range(4)]
    await store.schedules.fire([firing(schedules[1]), firing(schedules[2])])
    assert len(await store.schedules.fire([firing(one) for one in reversed(schedules)])) == 2
    found = await connection.fetch("SELECT name FROM pulse.jobs ORDER BY name")
    assert [row["name"] for row in found] == ["n0", "n1", "n2", "n3"]


async def test_due(store: Store) -> None:
    """A schedule is due from the microsecond of its cursor on; the longest waiting one comes first."""
    late, early = new(next_run_at=at(-5)), new(kind="cron", cron="* * * * *", timezone="UTC")
    await store.schedules.create(early)
    await store.schedules.create(late)
    assert await store.schedules.due(10, now=at(-0.000001)) == [
        Due(late.id, "every", to_us(at(-0.000001)), to_us(at(-5)), every_s=EVERY_S, is_reckoned=True)
    ]
    second = Due(early.id, "cron", to_us(NOW), to_us(NOW), cron="* * * * *", timezone="UTC")
    assert (await store.schedules.due(10, now=NOW))[1:] == [second]
    assert [due.id for due in await store.schedules.due(1, now=NOW)] == [late.id]


async def test_next_due(store: Store) -> None:
    """Seconds until the earliest cursor, negative when it is overdue, None when there is no schedule."""
    assert await store.schedules.work() == Work(None, reckon=False, waiting=False)
    await store.schedules.create(new(next_run_at=at(90)))
    await store.schedules.create(new(next_run_at=at(2.5)))
    assert await store.schedules.work(now=NOW) == Work(2.5, reckon=False, waiting=False)
    assert await store.schedules.work(now=at(4)) == Work(-1.5, reckon=False, waiting=False)


async def test_create_get_delete(store: Store, connection: Sql) -> None:
    """A schedule is kept as it was given; its id is taken once; deleting it leaves its jobs."""
    schedule = new(kind="at", run_at=at(5), next_run_at=at(5), topic=None, priority=2)
    assert await store.schedules.create(schedule)
    other = await made(store)
    assert not await store.schedules.create(new(id=schedule.id, name="other"))
    found = found_of(await store.schedules.get(schedule.id))
    expected = {
        "id": schedule.id, "kind": "at", "name": "n", "run_at": at(5).timestamp(), "topic": None, "args": '{"a": 1}',
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    await store.schedules.fire([firing(schedule, 5, more=False)])
    assert [await store.schedules.delete(schedule.id) for _ in range(2)] == [True, False]
    assert await store.schedules.get(schedule.id) is None
    assert await store.schedules.get(other.id) is not None
    assert await count(connection) == 1


async def test_only_what_is_stuck_is_computed_again(store: Store, connection: Sql) -> None:
    stuck, _ = await made(store), await made(store)
    await connection.execute("UPDATE pulse.schedules SET error = 'no such zone' WHERE id = $1", stuck.id.hex())
    await store.schedules.retry_stuck()
    rows = await connection.fetch("SELECT id, error FROM pulse.schedules WHERE reckon")
    assert [(row["id"].bytes, row["error"]) for row in rows] == [(stuck.id, None)]


async def test_pages(store: Store) -> None:
    schedules = [await made(store) for _ in range(5)]
    seen: list[object] = []
    after = None
    for size in (2, 2, 1):
        rows, after = await store.schedules.page(2, after)
        assert len(rows) == size
        seen += [row["id"] for row in rows]
    assert after is None
    assert seen == [schedule.id for schedule in reversed(schedules)]


async def test_what_was_reckoned_by_another_rule_does_not_fire(store: Store, connection: Sql) -> None:
    """Where the definition was changed since it was read, nothing happens, though the cursor is the same."""
    schedule = await made(store)
    assert await store.schedules.update(replace(schedule, name="m"), 0, moved=False)
    assert await store.schedules.fire([firing(schedule)]) == []
    assert await store.schedules.fire([replace(firing(schedule), revision=1)])
    assert (await only_job(connection))["name"] == "m"


async def test_passing_over(store: Store, connection: Sql) -> None:
    schedule = await made(store)
    passed = replace(firing(schedule), occurrence_us=None)
    assert await store.schedules.fire([passed]) == [Fired(schedule.id, "passed", None, None)]
    assert await cursor(connection, schedule) == (at(EVERY_S), None)
    assert await count(connection) == 0


async def test_jitter(store: Store) -> None:
    """An occurrence is due later by its jitter, the same in SQL and Python, and its job has the occurrence's time."""
    schedules = [new(jitter_s=jitter_s, every_s=jitter_s) for jitter_s in (0.5, 30.0, 3600.0, 86_400.0)]
    for schedule in schedules:
        await store.schedules.create(schedule)
        found = found_of(await store.schedules.get(schedule.id))
        due_us = jittered_us(schedule.id, to_us(NOW), schedule.jitter_s)
        assert round(float(str(found["due_at"])) * 1e6) == due_us
        assert schedule.id not in {due.id for due in await store.schedules.due(10, now=from_us(due_us - 1))}
        assert schedule.id in {due.id for due in await store.schedules.due(10, now=from_us(due_us))}
    first_us = min(jittered_us(schedule.id, to_us(NOW), schedule.jitter_s) for schedule in schedules)
    assert (await store.schedules.work(now=NOW)).due_s == (first_us - to_us(NOW)) / 1e6
    assert await store.schedules.fire([firing(schedules[2])], now=at(3600))


@pytest.mark.parametrize("catch_up", ["latest", "skip", "all"])
async def test_jitter_that_lies_ahead(store: Store, connection: Sql, catch_up: str) -> None:
    """After an absence an occurrence whose own time has not come is not missed: it fires then."""
    next_us = to_us(at(EVERY_S))
    identity = next(one for _ in range(1000) if jittered_us(one := new_id(), next_us, EVERY_S) > next_us + 30_000_000)
    await store.schedules.create(new(id=identity, jitter_s=EVERY_S, catch_up=catch_up))
    late = from_us(max(next_us, jittered_us(identity, to_us(NOW), EVERY_S) + 6_000_000))
    assert late < from_us(jittered_us(identity, next_us, EVERY_S))
    [due] = await store.schedules.due(10, now=late)
    [fired] = await store.schedules.fire([firing_of(due)], now=late)
    assert fired.verdict == ("passed" if catch_up == "skip" else "fired")
    own = from_us(jittered_us(identity, next_us, EVERY_S))
    assert await store.schedules.due(10, now=own - timedelta(microseconds=1)) == []
    [due] = await store.schedules.due(10, now=own)
    assert [one.verdict for one in await store.schedules.fire([firing_of(due)], now=own)] == ["fired"]
    assert await connection.fetchval("SELECT max(occurrence) FROM pulse.jobs") == from_us(next_us)


async def test_update(store: Store, connection: Sql) -> None:
    """Other words leave the cursor; a new rule sets it; a concurrent update is an error."""
    schedule, other = new(following_run_at=at(EVERY_S)), new()
    await store.schedules.create(schedule)
    await store.schedules.create(other)
    words = replace(
        schedule, name="m", priority=9, next_run_at=at(5), following_run_at=at(6), overlap="skip", ends_at=at(99)
    )
    assert await store.schedules.update(words, 0, moved=False)
    assert not await store.schedules.update(words, 0, moved=False)
    found = found_of(await store.schedules.get(schedule.id))
    assert (found["name"], found["priority"], found["overlap"], found["ends_at"]) == (
        "m", 9, "skip", at(99).timestamp(),
    )  # fmt: skip
    assert (found["next_run_at"], found["following_run_at"]) == (NOW.timestamp(), at(EVERY_S).timestamp())
    assert await store.schedules.update(words, 1, moved=True)
    assert (await cursor(connection, schedule))[0] == at(5)
    untouched = found_of(await store.schedules.get(other.id))
    assert (untouched["name"], untouched["revision"]) == ("n", 0)


@pytest.mark.parametrize(("kind", "next_at", "following_at", "reckon"), [
    ("cron", at(5), None, True), ("cron", at(5), at(6), False), ("cron", None, None, False),
    ("every", at(5), None, False),
])  # fmt: skip
async def test_whose_next_time_is_to_be_computed(
    store: Store, connection: Sql, kind: str, next_at: datetime | None, following_at: datetime | None, reckon: bool
) -> None:
    """Only of a cron expression, unless the time is known, or the schedule has ended."""
    rule: dict[str, Any] = {"cron": "* * * * *", "timezone": "UTC", "every_s": None} if kind == "cron" else {}
    schedule = replace(new(), kind=kind, next_run_at=next_at, following_run_at=following_at, **rule)
    await store.schedules.create(schedule)
    assert await connection.fetchval("SELECT reckon FROM pulse.schedules") == reckon


@pytest.mark.parametrize(("moved", "following_at", "reckon"), [
    (True, None, True), (True, at(6), False), (False, None, False),
])  # fmt: skip
async def test_whose_next_time_is_to_be_computed_anew(
    store: Store, connection: Sql, moved: bool, following_at: datetime | None, reckon: bool
) -> None:
    schedule = new(following_run_at=at(EVERY_S))
    await store.schedules.create(schedule)
    words = replace(schedule, next_run_at=at(5), following_run_at=following_at)
    assert await store.schedules.update(words, 0, moved=moved)
    assert await connection.fetchval("SELECT reckon FROM pulse.schedules") == reckon


async def test_pause_and_resume(store: Store) -> None:
    schedules = [await made(store), await made(store)]
    assert await store.schedules.pause(schedules[0].id, paused=True)
    assert [due.id for due in await store.schedules.due(10, now=NOW)] == [schedules[1].id]
    assert await store.schedules.pause(schedules[0].id, paused=False)
    assert len(await store.schedules.due(10, now=NOW)) == 2
    assert not await store.schedules.pause(new_id(), paused=True)


async def test_trigger(store: Store, connection: Sql) -> None:
    """A triggered job is like one that fires, but no occurrence, and moves no cursor; a repeated request is one job."""
    schedule = await made(store, priority=3, max_attempts=2)
    job_id = new_id()
    assert [await store.schedules.trigger(schedule.id, job_id) for _ in range(2)] == [job_id, job_id]
    found = await only_job(connection)
    assert (found["id"].bytes, found["schedule_id"].bytes, found["occurrence"]) == (job_id, schedule.id, None)
    assert (found["name"], found["topic"], found["priority"], found["max_attempts"]) == ("n", TOPIC, 3, 2)
    assert await cursor(connection, schedule) == (NOW, None)
    assert not await store.schedules.trigger(new_id(), new_id())


async def test_undeclare(store: Store, connection: Sql) -> None:
    """A schedule that code no longer declares is reported once, until it is declared again; others are left alone."""
    mine = [new(key=key, declared_by="a") for key in ("one", "two", "three")]
    theirs, nobodys = new(key="four", declared_by="b"), new()
    for schedule in (*mine, theirs, nobodys):
        await store.schedules.create(schedule)
    assert await store.schedules.undeclare("a", ["one"]) == [(mine[1].id, "two"), (mine[2].id, "three")]
    assert await store.schedules.undeclare("a", ["one"]) == []
    assert await store.schedules.update(mine[1], 0, moved=False)
    rows = await connection.fetch("SELECT key FROM pulse.schedules WHERE undeclared_at IS NOT NULL")
    assert [row["key"] for row in rows] == ["three"]
    assert not await store.schedules.create(new(key="one"))


@pytest.mark.parametrize(("next_at", "following_at", "reckon"), [
    (at(60), None, True), (at(60), at(120), False), (None, None, False),
])  # fmt: skip
async def test_whose_next_time_is_to_be_computed_after_it_fired(
    store: Store, connection: Sql, next_at: datetime | None, following_at: datetime | None, reckon: bool
) -> None:
    schedule = await made(store, kind="cron", cron="* * * * *", timezone="UTC", following_run_at=at(60))
    next_us, following_us = (None if one is None else to_us(one) for one in (next_at, following_at))
    [fired] = await store.schedules.fire([Firing(schedule.id, to_us(NOW), next_us, to_us(NOW), following_us)])
    assert fired.verdict == "fired"
    assert await connection.fetchval("SELECT reckon FROM pulse.schedules") == reckon
