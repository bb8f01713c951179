"""Schedules whose jobs have a unique key: what an occurrence becomes while another job has it."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Final

import pytest

from pulse.common.ids import uuid7
from pulse.errors import StatementError, StatementTimeoutError
from pulse.protocol import HandlerInfo
from pulse.store.rows import Fired, Firing, Level, NewSchedule, Work, to_us
from pulse.store.statements import STATEMENTS
from pulse.store.store import Store
from pulse_actors.scheduler.catchup import firing_of
from pulse_actors.shared.recurrence import jittered_us
from tests.support.store.helpers import NOW, TOPIC, Sql, at, claim, count, dropping, found_of, holding, job, read
from tests.support.waiting import until_blocked

EVERY_S: Final = 60.0
KEY: Final = "report:daily"


async def make(store: Store, **fields: Any) -> bytes:
    options = {"kind": "every", "every_s": EVERY_S, "topic": TOPIC, "unique_key": KEY, **fields}
    new = NewSchedule(uuid7().bytes, "n", args='{"a": 1}', next_run_at=NOW, **options)
    assert await store.schedules.create(new)
    return new.id


async def fire(store: Store, number: int) -> Fired | None:
    [due] = await store.schedules.due(10, unique=True, now=at(number * EVERY_S))
    return await store.schedules.fire_unique(firing_of(due), now=at(number * EVERY_S))


async def verdicts(store: Store, *numbers: int) -> list[str | None]:
    return [None if fired is None else fired.verdict for fired in [await fire(store, number) for number in numbers]]


async def submit(store: Store, **fields: Any) -> bytes:
    one = job(unique=KEY, **fields)
    await store.unique.submit([one], now=NOW)
    return one.id or b""


async def test_one_that_fires(store: Store, connection: Sql) -> None:
    """Its job has the key, and all that the jobs of other schedules have; the cursor moves."""
    schedule = await make(store, priority=3, max_attempts=2, unique_until="start", group_key="g")
    fired = await fire(store, 0)
    assert fired == Fired(schedule, "fired", Level(TOPIC, 3), canceled=None)
    columns = "name, args, topic, priority, max_attempts, next_run_at, submitted_at, schedule_id, occurrence"
    row = await connection.fetchrow(f"SELECT {columns}, unique_key, unique_until, group_key FROM pulse.jobs")
    assert tuple(row or ()) == (
        "n", '{"a": 1}', TOPIC, 3, 2, NOW, NOW, uuid.UUID(bytes=schedule), NOW, KEY, "start", "g"
    )  # fmt: skip
    found = found_of(await store.schedules.get(schedule))
    assert (found["next_run_at"], found["last_run_at"]) == (at(EVERY_S).timestamp(), NOW.timestamp())
    assert (found["skipped_at"], found["skipped_for"]) == (None, None)
    assert await store.schedules.due(10, now=at(1e6)) == []  # of those without a key


async def test_a_key_is_kept_until_the_end_of_a_job(store: Store, connection: Sql) -> None:
    await make(store)
    assert await verdicts(store, 0, 1) == ["fired", "skipped"]
    assert await connection.fetchval("SELECT unique_until FROM pulse.jobs") == "end"
    await claim(store)
    assert await verdicts(store, 2) == ["skipped"]
    await connection.execute("DELETE FROM pulse.jobs")
    assert await verdicts(store, 3) == ["fired"]


async def test_with_start_the_next_one_waits_while_the_first_one_runs(store: Store, connection: Sql) -> None:
    await make(store, unique_until="start")
    assert await verdicts(store, 0, 1) == ["fired", "skipped"]
    await claim(store)
    assert await verdicts(store, 2, 3) == ["fired", "skipped"]
    assert await count(connection) == 2


async def test_what_was_skipped_is_on_record(store: Store) -> None:
    """The newest occurrence that became nothing, and the job in its way, of any client; later ones leave it."""
    schedule = await make(store)
    other = await submit(store)
    assert await verdicts(store, 0, 1) == ["skipped"] * 2
    found = found_of(await store.schedules.get(schedule))
    assert (found["skipped_at"], found["skipped_for"]) == (at(EVERY_S).timestamp(), other)
    assert (found["last_run_at"], found["next_run_at"]) == (None, at(2 * EVERY_S).timestamp())
    await store.cancel([other])
    assert await verdicts(store, 2) == ["fired"]
    found = found_of(await store.schedules.get(schedule))
    assert (found["skipped_at"], found["skipped_for"]) == (at(EVERY_S).timestamp(), other)


async def test_replace(store: Store, connection: Sql) -> None:
    """The job that has the key gets the schedule's args and is due now; one that runs is left alone."""
    schedule = await make(store, on_conflict="replace", priority=7)
    other = await submit(store, delay_s=3600.0, priority=2)
    assert await fire(store, 0) == Fired(schedule, "replaced", Level(TOPIC, 2), canceled=None)
    row = await read(connection, other)
    assert (row["args"], row["next_run_at"], row["schedule_id"]) == ('{"a": 1}', NOW, None)
    assert found_of(await store.schedules.get(schedule))["last_run_at"] == NOW.timestamp()
    await claim(store)
    assert await verdicts(store, 1) == ["skipped"]


async def test_a_job_of_another_handler_is_not_replaced(store: Store) -> None:
    """The occurrence is refused, and fires when that job has ended."""
    await make(store, on_conflict="replace")
    other = await submit(store, name="other")
    with pytest.raises(StatementError, match=f"unique key '{KEY}' belongs to job .* of another handler"):
        await fire(store, 0)
    await store.cancel([other])
    assert await verdicts(store, 0) == ["fired"]


async def test_of_two_that_fire_one_occurrence_one_finds_it_moved(store: Store, connection: Sql) -> None:
    await make(store, unique_until="start")
    [due] = await store.schedules.due(10, unique=True, now=NOW)
    firing = firing_of(due)
    assert await store.schedules.fire_unique(firing) is not None
    assert await store.schedules.fire_unique(firing) is None
    assert await count(connection) == 1


async def test_the_second_of_two_that_fire_at_once_waits_for_the_first(
    store: Store, connection: Sql, other: Sql
) -> None:
    """And finds the cursor moved: what the first has fired does not count as a job in its way."""
    schedule = await make(store)
    [due] = await store.schedules.due(10, unique=True, now=NOW)
    moved = [uuid.UUID(bytes=schedule), NOW, 0, NOW, at(EVERY_S), None, NOW]
    async with connection.transaction():
        row = await connection.fetchrow(STATEMENTS["fire_unique"].sql, *moved)
        second = asyncio.create_task(store.schedules.fire_unique(firing_of(due), now=NOW))
        await until_blocked(other, by=connection.get_server_pid())
    assert (found_of(row)["verdict"], await second) == ("fired", None)
    assert found_of(await store.schedules.get(schedule))["skipped_at"] is None


@pytest.mark.parametrize("change", ["revision = revision + 1", "paused = true"])
async def test_what_was_changed_or_paused_meanwhile_does_not_fire(store: Store, connection: Sql, change: str) -> None:
    await make(store)
    [due] = await store.schedules.due(10, unique=True, now=NOW)
    await connection.execute(f"UPDATE pulse.schedules SET {change}")
    assert await store.schedules.fire_unique(firing_of(due)) is None
    assert await count(connection) == 0


async def test_an_occurrence_that_fired_does_not_fire_again(store: Store, connection: Sql) -> None:
    """After the cursor was set back; whether its job still has the key or not."""
    schedule = await make(store, unique_until="start")
    assert await verdicts(store, 0) == ["fired"]
    await claim(store)
    await connection.execute("UPDATE pulse.schedules SET next_run_at = $1", NOW)
    assert await fire(store, 0) == Fired(schedule, "fired", None, canceled=None)
    assert await count(connection) == 1
    assert await connection.fetchval("SELECT last_job_id = (SELECT id FROM pulse.jobs) FROM pulse.schedules")
    assert await verdicts(store, 1) == ["fired"]
    await connection.execute("UPDATE pulse.schedules SET next_run_at = $1", NOW)
    assert await verdicts(store, 0) == ["fired"]
    assert await connection.fetchval("SELECT last_run_at FROM pulse.schedules") == at(EVERY_S)  # the newest one


async def test_the_rows_of_others_are_theirs(store: Store, connection: Sql) -> None:
    """A schedule with the same times, and its job of the same occurrence."""
    mine, other = await make(store), await make(store, unique_key="other")
    dues = {due.id: due for due in await store.schedules.due(10, unique=True, now=NOW)}
    assert (await store.schedules.fire_unique(firing_of(dues[other]), now=NOW)) is not None
    fired = await store.schedules.fire_unique(firing_of(dues[mine]), now=NOW)
    assert fired is not None
    assert fired.level is not None
    third = await make(store, unique_key="third")
    [due] = await store.schedules.due(10, unique=True, now=NOW)
    assert due.id == third
    assert await store.schedules.fire_unique(firing_of(due), now=NOW) is not None
    found = [found_of(await store.schedules.get(one)) for one in (mine, other, third)]
    assert [one["next_run_at"] for one in found] == [at(EVERY_S).timestamp()] * 3
    assert await count(connection) == 3


async def test_options_are_those_of_the_handler_else_of_the_topic(store: Store, connection: Sql) -> None:
    await store.note_handlers({"n": HandlerInfo(max_attempts=7), "m": HandlerInfo(max_attempts=2, timeout_s=1.0)})
    await store.topics.set(TOPIC, {"timeout_s": 9.0, "max_attempts": 3})
    await store.topics.set("u", {"timeout_s": 5.0})
    await make(store)
    assert await verdicts(store, 0) == ["fired"]
    row = await connection.fetchrow("SELECT topic, max_attempts, timeout_s FROM pulse.jobs")
    assert tuple(row or ()) == (TOPIC, 7, 9.0)


async def test_what_does_not_fire_replaces_nothing(store: Store, connection: Sql) -> None:
    """An occurrence that passes, and one whose job is there already."""
    await make(store, on_conflict="replace", catch_up="skip")
    other = await submit(store, delay_s=3600.0)
    before = await read(connection, other)
    [due] = await store.schedules.due(10, unique=True, now=at(30))
    fired = await store.schedules.fire_unique(firing_of(due), now=at(30))
    assert fired is not None
    assert (fired.verdict, await read(connection, other)) == ("passed", before)
    await store.cancel([other])
    assert await verdicts(store, 1) == ["fired"]
    await connection.execute("UPDATE pulse.schedules SET next_run_at = $1", at(EVERY_S))
    [due] = await store.schedules.due(10, unique=True, now=at(EVERY_S))
    again = await store.schedules.fire_unique(firing_of(due), now=at(EVERY_S + 1))
    assert again is not None
    times = await connection.fetch("SELECT next_run_at FROM pulse.jobs WHERE schedule_id IS NOT NULL")
    assert (again.verdict, again.level, [one["next_run_at"] for one in times]) == ("fired", None, [at(EVERY_S)])


async def test_what_was_missed_passes(store: Store, connection: Sql) -> None:
    await make(store, catch_up="skip")
    [due] = await store.schedules.due(10, unique=True, now=at(30))
    fired = await store.schedules.fire_unique(firing_of(due), now=at(30))
    assert fired is not None
    assert (fired.verdict, await count(connection)) == ("passed", 0)


@pytest.mark.parametrize(
    ("kind", "following_us", "reckon"), [("cron", None, True), ("cron", 1, False), ("every", None, False)]
)
async def test_whose_next_time_is_to_be_computed_after_it_fired(
    store: Store, connection: Sql, kind: str, following_us: int | None, reckon: bool
) -> None:
    when = {"every_s": None, "cron": "* * * * *", "timezone": "UTC"} if kind == "cron" else {}
    schedule = await make(store, kind=kind, following_run_at=at(60), **when)
    moved = Firing(schedule, to_us(NOW), to_us(at(60)), to_us(NOW), following_us and to_us(at(120)))
    assert await store.schedules.fire_unique(moved) is not None
    assert await connection.fetchval("SELECT reckon FROM pulse.schedules") == reckon
    over = Firing(schedule, to_us(at(60)), None, to_us(at(60)))
    assert await store.schedules.fire_unique(over) is not None
    assert await connection.fetchval("SELECT (reckon, next_run_at, following_run_at) FROM pulse.schedules") == (
        False,
        None,
        None,
    )


async def test_an_open_transaction_with_the_key_is_not_waited_for_long(store: Store, connection: Sql, dsn: str) -> None:
    """Nothing has happened then, and the next try goes by what became of it."""
    schedule = await make(store)
    async with holding(dsn, "SELECT pulse.submit('n', unique_key => $1)", KEY):
        with pytest.raises(StatementTimeoutError):
            await fire(store, 0)
        assert found_of(await store.schedules.get(schedule))["next_run_at"] == NOW.timestamp()
    assert await verdicts(store, 0) == ["skipped"]
    async with holding(dsn, "SELECT pulse.submit('n', unique_key => 'another')"):
        assert await verdicts(store, 1) == ["skipped"]


async def test_nothing_is_moved_without_a_job_or_another_one(store: Store, connection: Sql) -> None:
    """As when the key is given away between the INSERT, which met it, and the look at who has it."""
    schedule = await make(store)
    async with dropping(connection):
        assert await fire(store, 0) is None
    assert found_of(await store.schedules.get(schedule))["next_run_at"] == NOW.timestamp()


async def test_what_has_a_key_counts_apart(store: Store) -> None:
    """So that it waits for nobody, and nobody for it; and what the next try is for can be left out."""
    schedule = await make(store)
    assert await store.schedules.work(now=at(10)) == Work(None, reckon=False, waiting=False, unique_s=-10.0)
    assert await store.schedules.work(now=at(10), without=[schedule]) == Work(None, reckon=False, waiting=False)
    assert await store.schedules.due(10, unique=True, without=[schedule], now=NOW) == []


async def test_when_the_next_one_with_a_key_fires(store: Store) -> None:
    """The first of them, its jitter included."""
    late = await make(store, jitter_s=30.0)
    waits_s = jittered_us(late, to_us(NOW), 30.0) / 1e6 - NOW.timestamp()
    assert (await store.schedules.work(now=NOW)).unique_s == pytest.approx(waits_s, abs=1e-6)
    await make(store, unique_key="another")
    assert (await store.schedules.work(now=NOW)).unique_s == 0.0
