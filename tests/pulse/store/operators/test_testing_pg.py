"""What pulse.testing does to a database: it forgets what a test left, and lets the time pass for what waits."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from pulse.store.operators.testing import END_IN_TEST, SEE_JOBS, DatabaseOfTesting
from pulse.store.rows import NewSchedule
from pulse.store.store import Store
from tests.support.store.helpers import Sql, forge, new_id

HOUR: Final = timedelta(hours=1)
HELD: Final = datetime(9999, 12, 30, tzinfo=UTC)


@pytest.fixture
def testing(store: Store) -> DatabaseOfTesting:
    return DatabaseOfTesting(store.query)


async def scheduled(store: Store, declared_by: str | None, **fields: Any) -> bytes:
    base: dict[str, Any] = {"name": "n", "kind": "every", "every_s": 60.0, "args": "{}"}
    new = NewSchedule(id=new_id(), declared_by=declared_by, **base, **fields)
    assert await store.schedules.create(new)
    return new.id


async def due(connection: Sql) -> dict[bytes, datetime]:
    rows = await connection.fetch("SELECT uuid_send(id) AS id, next_run_at FROM pulse.jobs")
    return {row["id"]: row["next_run_at"] for row in rows}


async def test_only_what_runs_and_what_an_application_declares_is_kept(
    store: Store, testing: DatabaseOfTesting, connection: Sql
) -> None:
    running, _ = await forge(connection, "RUNNING"), await forge(connection, "COMPLETED")
    soon = datetime.now(UTC)
    declared = await scheduled(store, "app", next_run_at=soon, following_run_at=soon + HOUR, key="k")
    await scheduled(store, None, next_run_at=soon)
    await connection.execute("UPDATE pulse.schedules SET last_run_at = now(), waiting = 2, error = 'x'")
    await testing.forget()
    assert list(await due(connection)) == [running]
    (row,) = await connection.fetch("SELECT *, uuid_send(id) AS sent FROM pulse.schedules")
    assert (row["sent"], row["paused"], row["reckon"], row["waiting"]) == (declared, True, True, 0)
    assert {row[name] for name in ("next_run_at", "following_run_at", "last_run_at", "last_job_id", "error")} == {None}


async def test_the_time_passes_for_what_waits_and_for_nothing_else(testing: DatabaseOfTesting, connection: Sql) -> None:
    now = datetime.now(UTC)
    times = {
        "late": now - HOUR,
        "second": now + HOUR,
        "first": now + HOUR / 2,
        "third": now + 1.5 * HOUR,
        "far": now + 9 * HOUR,
        "held": HELD,
    }
    waiting = {name: await forge(connection, next_run_at=moment) for name, moment in times.items()}
    retrying = await forge(connection, "RETRYING", next_run_at=now + 9 * HOUR, expires_at=now + 10 * HOUR)
    others = [await forge(connection, status, next_run_at=now + HOUR) for status in ("RUNNING", "COMPLETED")]
    await testing.advance(2 * 3600)
    found = await due(connection)
    assert found[waiting["late"]] == now - HOUR
    began = [found[waiting[name]] for name in ("first", "second", "third")]
    assert now < began[0] < began[1] < began[2] < datetime.now(UTC) + timedelta(seconds=1)
    assert (found[waiting["far"]], found[waiting["held"]]) == (now + 7 * HOUR, HELD)
    assert found[retrying] == now + 7 * HOUR
    assert await connection.fetchval("SELECT expires_at FROM pulse.jobs WHERE expires_at IS NOT NULL") == now + 8 * HOUR
    assert [found[one] for one in others] == [now + HOUR] * 2


async def test_unfinished_is_what_runs_or_would_run_now(
    store: Store, testing: DatabaseOfTesting, connection: Sql
) -> None:
    now = datetime.now(UTC)
    assert await testing.unfinished(["n"]) == 0
    await forge(connection, "RUNNING", name="other")
    await forge(connection, name="n", next_run_at=now - HOUR)
    await forge(connection, "RETRYING", name="n", next_run_at=now - HOUR, topic="paused")
    assert await testing.unfinished(["n"]) == 3
    await forge(connection, name="other", next_run_at=now - HOUR)
    await forge(connection, name="n", next_run_at=now + HOUR)
    await forge(connection, "COMPLETED", name="n", next_run_at=now - HOUR)
    assert await testing.unfinished(["n"]) == 3
    await store.gate.pause("paused", None)
    assert await testing.unfinished(["n"]) == 2
    await store.gate.pause("", None)
    assert await testing.unfinished(["n"]) == 1


async def test_declared_schedules_wait_until_the_time_passes(
    store: Store, testing: DatabaseOfTesting, connection: Sql
) -> None:
    now = datetime.now(UTC)
    assert await testing.next_occurrence() == (None, False)
    await scheduled(store, None, next_run_at=now + 3 * HOUR, following_run_at=now + 4 * HOUR)
    declared = await scheduled(store, "app", next_run_at=now + 2 * HOUR, following_run_at=now + 4 * HOUR, key="k")
    mine = await scheduled(store, None, next_run_at=now + HOUR, following_run_at=now + 4 * HOUR)
    await store.schedules.pause(mine, paused=True)
    await testing.hold_declared(held=True)
    paused = "SELECT uuid_send(id) AS id FROM pulse.schedules WHERE paused"
    assert {row["id"] for row in await connection.fetch(paused)} == {declared, mine}
    assert await testing.next_occurrence() == (now + 2 * HOUR, False)
    await testing.hold_declared(held=False)
    assert {row["id"] for row in await connection.fetch(paused)} == {mine}
    await connection.execute("UPDATE pulse.schedules SET reckon = true, error = 'x' WHERE declared_by IS NOT NULL")
    assert await testing.next_occurrence() == (now + 3 * HOUR, False)
    await connection.execute("UPDATE pulse.schedules SET reckon = true WHERE declared_by IS NULL")
    assert (await testing.next_occurrence()).reckon


async def test_a_test_ends_only_jobs_that_wait(connection: Sql) -> None:
    ids = [await forge(connection, status) for status in ("PENDING", "RETRYING", "RUNNING")]
    rows = json.loads(await connection.fetchval(SEE_JOBS, "all"))
    ended = {"status": "COMPLETED", "attempts": 3, "uncharged": 1, "result": 7, "ran_by": "inline"}
    await connection.execute(END_IN_TEST, json.dumps([{**ended, "id": row["id"]} for row in rows]))
    found = await connection.fetch("SELECT uuid_send(id) AS id, status::text, result FROM pulse.jobs")
    assert {row["id"]: (row["status"], row["result"]) for row in found} == {
        ids[0]: ("COMPLETED", "7"), ids[1]: ("COMPLETED", "7"), ids[2]: ("RUNNING", None),
    }  # fmt: skip
