"""What the scheduler computes: first occurrences for SQL, what follows a cursor; and rules without a next one."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from pulse.common.ids import uuid7
from pulse.store.rows import NewSchedule, NextOccurrences
from pulse.store.store import Store
from pulse_actors.scheduler.catchup import reckoned_of
from tests.support.store.helpers import NOW, Sql, at, found_of

MINUTE_S = 60.0


def new(**fields: Any) -> NewSchedule:
    base: dict[str, Any] = {"id": uuid7().bytes, "name": "n", "kind": "cron", "args": "{}", "next_run_at": NOW}
    return NewSchedule(**{**base, "cron": "* * * * *", "timezone": "UTC", **fields})


async def created(store: Store, **fields: Any) -> NewSchedule:
    schedule = new(**fields)
    assert await store.schedules.create(schedule)
    return schedule


async def reckon(store: Store) -> int:
    due = await store.schedules.unreckoned(100, now=at(1))
    return await store.schedules.reckon([reckoned_of(one) for one in due])


async def occurrences(connection: Sql, schedule: NewSchedule) -> tuple[Any, ...]:
    """The next one, the one after it, whether the scheduler must compute, and why it cannot."""
    sql = "SELECT next_run_at, following_run_at, reckon, error FROM pulse.schedules WHERE id = $1"
    return tuple(found_of(await connection.fetchrow(sql, schedule.id.hex())))


async def test_what_is_created_is_reckoned(store: Store, connection: Sql) -> None:
    schedule = await created(store)
    await created(store, following_run_at=at(MINUTE_S))
    await created(store, kind="every", cron=None, timezone=None, every_s=60.0)
    assert [one.id for one in await store.schedules.unreckoned(10)] == [schedule.id]
    assert (await store.schedules.work(now=NOW)).reckon
    assert await reckon(store) == 1
    assert await occurrences(connection, schedule) == (NOW, at(MINUTE_S), False, None)
    assert not (await store.schedules.work(now=NOW)).reckon
    assert await reckon(store) == 0


async def test_what_was_reckoned_for_another_cursor(store: Store, connection: Sql) -> None:
    schedule = await created(store)
    [due] = await store.schedules.unreckoned(10)
    await connection.execute("UPDATE pulse.schedules SET next_run_at = $1", at(MINUTE_S))
    assert await store.schedules.reckon([reckoned_of(due)]) == 0
    assert await occurrences(connection, schedule) == (at(MINUTE_S), None, True, None)


async def test_what_was_reckoned_for_another_rule(store: Store, connection: Sql) -> None:
    """Where the definition was changed since it was read, too, though it has no cursor before or after."""
    schedule = await created(store, next_run_at=None)
    await connection.execute("UPDATE pulse.schedules SET reckon = true")
    [due] = await store.schedules.unreckoned(10, now=NOW)
    await connection.execute("SELECT pulse.update_schedule($1, cron => '0 0 1 1 *')", schedule.id.hex())
    assert await store.schedules.reckon([reckoned_of(due)]) == 0
    assert await occurrences(connection, schedule) == (None, None, True, None)


async def test_each_is_reckoned_alone(store: Store, connection: Sql) -> None:
    schedules = [await created(store), await created(store, next_run_at=at(-MINUTE_S))]
    first, second = sorted(await store.schedules.unreckoned(10), key=lambda due: due.cursor_us or 0, reverse=True)
    assert await store.schedules.reckon([reckoned_of(first)]) == 1
    assert (await occurrences(connection, schedules[1]))[:3] == (at(-MINUTE_S), None, True)
    assert await store.schedules.reckon([reckoned_of(second), reckoned_of(first)]) == 2


async def test_what_cannot_be_followed_does_not_fire(store: Store, connection: Sql) -> None:
    """It keeps its cursor and says why, and is neither due nor computed again, until somebody changes it."""
    schedule = await created(store, timezone="Mars/Base")
    assert await reckon(store) == 1
    error = "timezone is 'Mars/Base'; an IANA name such as Europe/Berlin is allowed"
    assert await occurrences(connection, schedule) == (NOW, None, False, error)
    assert await store.schedules.due(10, now=at(1)) == []
    assert (await store.schedules.work(now=at(1))).due_s is None
    await connection.execute("UPDATE pulse.schedules SET timezone = 'UTC'")
    await store.schedules.retry_stuck()
    assert await reckon(store) == 1
    assert await occurrences(connection, schedule) == (NOW, at(MINUTE_S), False, None)


async def test_an_update_is_another_chance(store: Store, connection: Sql) -> None:
    schedule = await created(store)
    [due] = await store.schedules.unreckoned(10)
    failed = NextOccurrences(due.id, due.cursor_us, due.revision, due.cursor_us, None, "why")
    assert await store.schedules.reckon([failed]) == 1
    assert await store.schedules.update(replace(schedule, name="m"), 0, moved=False)
    assert await occurrences(connection, schedule) == (NOW, None, True, None)


async def test_what_is_mended_by_hand_is_followed_again(store: Store, connection: Sql) -> None:
    """A plain UPDATE that sets `reckon` is enough; one that mends nothing is tried once more, not without end."""
    schedule = await created(store, timezone="Mars/Base", next_run_at=None)
    await connection.execute("UPDATE pulse.schedules SET reckon = true")
    assert await reckon(store) == 1
    for zone, next_at, is_stuck in (("Moon/Base", None, True), ("UTC", at(MINUTE_S), False)):
        await connection.execute("UPDATE pulse.schedules SET timezone = $1, reckon = true", zone)
        assert await reckon(store) == 1
        found_at, _, is_left, error = await occurrences(connection, schedule)
        assert (found_at, is_left) == (next_at, False)
        assert (error is not None and zone in error) == is_stuck
        assert not (await store.schedules.work(now=NOW)).reckon


async def test_what_sql_made_gets_its_first_occurrences(store: Store, connection: Sql) -> None:
    for rule, seconds in (
        ("cron => '* * * * *'", (60, 120)),
        ("every_s => 30", (31, 61)),
        ("run_at => '2030-02-01Z'", (2_678_400, None)),
    ):
        await connection.execute("DELETE FROM pulse.schedules")
        await connection.execute(f"SELECT pulse.create_schedule('n', {rule})")
        assert await store.schedules.due(10) == []
        assert await reckon(store) == 1
        row = found_of(await connection.fetchrow("SELECT next_run_at, following_run_at FROM pulse.schedules"))
        assert [None if one is None else one - NOW for one in row] == [
            None if one is None else timedelta(seconds=one) for one in seconds
        ]
