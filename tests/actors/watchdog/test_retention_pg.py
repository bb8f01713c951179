"""What is deleted, and what stays: by retention, and on completion where nothing is kept."""

from __future__ import annotations

from typing import Final
from unittest.mock import AsyncMock
from uuid import UUID

import anyio
import pytest

from pulse.errors import UnavailableError
from pulse.store.rows import Completion
from pulse.store.store import Store
from pulse_actors.watchdog.retention import WINDOW, retain
from tests.support.store.helpers import (
    NOW,
    OTHER,
    STATUSES,
    WORKER,
    Patch,
    Sql,
    at,
    claim,
    count,
    fence,
    forge,
    history,
    read,
)
from tests.support.waiting import until_async

FIRST: Final = bytes(16)
LAST: Final = b"\xff" * 16
KEEP_S, KEEP_DEAD_S = 60.0, 600.0
ENDED: Final = ("COMPLETED", "CANCELED", "DEAD_LETTERED")


async def ids(connection: Sql) -> set[bytes]:
    return {row["id"].bytes for row in await connection.fetch("SELECT id FROM pulse.jobs")}


async def test_a_job_goes_when_its_time_is_over(store: Store, connection: Sql) -> None:
    made = {
        (status, age): await forge(connection, status, completed_at=at(-age))
        for status in ENDED
        for age in (KEEP_DEAD_S + 1, KEEP_DEAD_S, KEEP_S + 1, KEEP_S)  # the oldest id is of one that goes
    }
    found = await store.forget(FIRST, 100, KEEP_S, KEEP_DEAD_S, now=NOW)
    left = {("COMPLETED", KEEP_S), ("CANCELED", KEEP_S)} | {
        ("DEAD_LETTERED", age) for age in (KEEP_S, KEEP_S + 1, KEEP_DEAD_S)
    }
    assert await ids(connection) == {made[one] for one in left}
    assert found == (True, 12, 7, max(made.values()), min(made[one] for one in left))


async def test_a_topic_keeps_its_own_time(store: Store, connection: Sql) -> None:
    await store.topics.set("short", {"retention_s": 5.0, "retention_dead_s": 7.0})
    await store.topics.set("long", {"retention_s": 1000.0})
    await store.topics.set("none", {"backoff": "fixed:1"})
    made = {
        (topic, status, age): await forge(connection, status, topic=topic, completed_at=at(-age))
        for topic in ("short", "long", "none", "other")
        for status in ENDED
        for age in (6, 8, 61, 601)
    }

    def limit(topic: str, status: str) -> float:
        if status == "DEAD_LETTERED":
            return 7.0 if topic == "short" else KEEP_DEAD_S
        return {"short": 5.0, "long": 1000.0}.get(topic, KEEP_S)

    await store.forget(FIRST, 100, KEEP_S, KEEP_DEAD_S, now=NOW)
    assert await ids(connection) == {made[one] for one in made if one[2] <= limit(*one[:2])}


@pytest.mark.usefixtures("own_database")
async def test_what_has_not_ended_stays(store: Store, connection: Sql) -> None:
    """However old it is, and with any end in its row (which the schema refuses)."""
    await connection.execute("ALTER TABLE pulse.jobs DROP CONSTRAINT jobs_finished")
    for status in set(STATUSES) - set(ENDED):
        await forge(connection, status, submitted_at=at(-1e6), next_run_at=at(-1e6), completed_at=at(-1e6))
    found = await store.forget(FIRST, 100, KEEP_S, KEEP_DEAD_S, now=NOW)
    assert (found.walked, found.gone) == (3, 0)


async def test_the_history_goes_with_its_job(store: Store, connection: Sql) -> None:
    gone, stays = [await forge(connection, "COMPLETED", completed_at=at(-age), attempts=2) for age in (99, 9)]
    for one in (gone, stays):
        await connection.execute(
            "INSERT INTO pulse.attempts (job_id, attempt, outcome) VALUES ($1, 1, 'error'), ($1, 2, 'error')",
            UUID(bytes=one),
        )
    assert (await store.forget(FIRST, 100, KEEP_S, KEEP_DEAD_S, now=NOW)).gone == 1
    assert await history(connection, gone) == []
    assert len(await history(connection, stays)) == 2


async def test_a_window_of_the_table(store: Store, connection: Sql) -> None:
    made = sorted([await forge(connection, "COMPLETED", completed_at=at(-99)) for _ in range(6)])
    assert await store.forget(made[1], 3, KEEP_S, KEEP_DEAD_S, now=NOW) == (True, 3, 3, made[3], None)
    assert await ids(connection) == {made[0], made[4], made[5]}
    assert await store.forget(LAST, 3, KEEP_S, KEEP_DEAD_S, now=NOW) == (True, 0, 0, None, None)


async def test_its_plan_does_not_depend_on_statistics(store: Store, connection: Sql, monkeypatch: Patch) -> None:
    """It runs where hot statements do: where the planner has its choice, it may read the whole table for each job."""
    await forge(connection, "COMPLETED", completed_at=at(-99))
    monkeypatch.setattr(store, "query", None)
    assert (await store.forget(FIRST, 9, KEEP_S, KEEP_DEAD_S, now=NOW)).gone == 1


async def test_one_at_a_time(store: Store, connection: Sql) -> None:
    await forge(connection, "COMPLETED", completed_at=at(-99))
    async with connection.transaction():
        await connection.execute("SELECT FROM pulse.retention_mark FOR UPDATE")
        assert await store.forget(FIRST, 9, KEEP_S, KEEP_DEAD_S, now=NOW) == (False, 0, 0, None, None)
    assert (await store.forget(FIRST, 9, KEEP_S, KEEP_DEAD_S, now=NOW)).gone == 1


async def test_an_operator_who_was_first_keeps_the_job(store: Store, connection: Sql) -> None:
    """A retry that was not committed yet when the window was read: the job stays."""
    one = await forge(connection, "COMPLETED", completed_at=at(-99))
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(
        "UPDATE pulse.jobs SET status = 'PENDING', completed_at = NULL, uncharged = attempts WHERE id = $1",
        UUID(bytes=one),
    )
    with pytest.raises(UnavailableError, match="lock timeout"):
        await store.forget(FIRST, 9, KEEP_S, KEEP_DEAD_S, now=NOW)
    await transaction.commit()
    assert (await store.forget(FIRST, 9, KEEP_S, KEEP_DEAD_S, now=NOW)).gone == 0
    assert (await read(connection, one))["status"] == "PENDING"


async def test_a_success_that_nothing_is_kept_of(store: Store, connection: Sql) -> None:
    one, other = await forge(connection, "RUNNING", attempts=2), await forge(connection, "RUNNING", attempts=2)
    for job in (one, other):
        await connection.execute(
            "INSERT INTO pulse.attempts (job_id, attempt, outcome) VALUES ($1, 1, 'error')", UUID(bytes=job)
        )
    before = await read(connection, other)
    assert await store.complete([Completion(one, 2, WORKER, "not JSON")], keep=False) == {(one, 2)}
    assert await ids(connection) == {other}
    assert await read(connection, other) == before
    assert await history(connection, one) == []
    assert len(await history(connection, other)) == 1
    assert await store.complete([Completion(one, 2, WORKER, None)], keep=False) == {(one, 2)}, "it came again"


async def test_a_success_of_what_had_expired(store: Store, connection: Sql) -> None:
    """Its attempt 0, from its expiry before an operator's retry, goes with it."""
    late = await forge(connection, "PENDING", expires_at=at(-1))
    assert len(await store.expire(10, now=NOW)) == 1
    assert [entry["attempt"] for entry in await history(connection, late)] == [0]
    await store.retry([late], now=NOW)
    assert [(one.id, one.attempt) for one in await claim(store, seconds=1)] == [(late, 1)]
    assert await store.complete([Completion(*fence(late), None)], keep=False) == {(late, 1)}
    assert await history(connection, late) == []


@pytest.mark.usefixtures("own_database")
async def test_a_stale_success_deletes_nothing(store: Store, connection: Sql) -> None:
    running = await forge(connection, "RUNNING", attempts=5)
    for attempt, worker in ((4, WORKER), (6, WORKER), (5, OTHER)):
        assert await store.complete([Completion(running, attempt, worker, None)], keep=False) == set()
    await connection.execute("ALTER TABLE pulse.jobs DROP CONSTRAINT jobs_lease")
    for status in set(STATUSES) - {"RUNNING"}:
        one = await forge(connection, status, attempts=1, locked_by=WORKER, lease_until=NOW)
        assert await store.complete([Completion(one, 1, WORKER, None)], keep=False) == set()
    assert await count(connection) == len(STATUSES)


@pytest.mark.usefixtures("own_database")
async def test_a_refused_window_is_tried_in_smaller_ones(store: Store, connection: Sql, monkeypatch: Patch) -> None:
    """At once, down to one job, which is skipped then: the others go."""
    made = [UUID(int=number).bytes for number in range(1, 4)]  # of these ids nobody knows how old the job is
    bad, *others = [await forge(connection, "COMPLETED", id=one, completed_at=at(-2e8)) for one in made]
    await connection.execute(
        f"""
        CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN IF old.id = ''{UUID(bytes=bad)}'' THEN RAISE ''no''; END IF; RETURN old; END';
        CREATE TRIGGER refuse BEFORE DELETE ON pulse.jobs FOR EACH ROW EXECUTE FUNCTION public.refuse();
        """
    )
    forget = AsyncMock(wraps=store.forget)
    monkeypatch.setattr(store, "forget", forget)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(retain, store, KEEP_S)

        async def are_gone() -> bool:
            return (await ids(connection)).isdisjoint(others)

        await until_async(are_gone, "the others go")
        tasks.cancel_scope.cancel()
    assert await ids(connection) == {bad}
    assert [call.args[1] for call in forget.await_args_list[:6]] == [WINDOW, 250, 31, 3, 1, 1]
