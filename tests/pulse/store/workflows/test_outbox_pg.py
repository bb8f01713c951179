"""The outbox: each end of a job whose topic publishes is a row, committed with the end, until a publisher is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from uuid import UUID

import pytest

from pulse.store.rows import Completion, to_us
from pulse.store.statements import STATEMENTS
from pulse.store.store import Store
from tests.pulse.store.workflows.test_dependencies_pg import ENDS, RUN, End, cancel, complete, fail, retry, submit
from tests.support.store.helpers import NOW, WORKER, Sql, at, job

ORDERS: Final = "orders"
LARGE: Final = 1_000_000
SCHEDULE: Final = """
    INSERT INTO pulse.schedules (id, kind, name, topic, every_s, next_run_at, unique_key)
    VALUES (pulse.uuid7(), 'every', 'n', 'orders', 60, now(), $1) RETURNING id"""


@pytest.fixture(autouse=True)
async def publishing(connection: Sql) -> None:
    await set_publish(connection, publish=True)


async def set_publish(connection: Sql, *, publish: bool, topic: str = ORDERS) -> None:
    await connection.execute("SELECT pulse.set_topic($1, jsonb_build_object('publish', $2::boolean))", topic, publish)


async def ends(connection: Sql) -> list[tuple[UUID, int, str]]:
    sql = "SELECT job_id, attempt, status::text FROM pulse.outbox ORDER BY ended_at, job_id"
    return [tuple(row) for row in await connection.fetch(sql)]


async def order(connection: Sql) -> UUID:
    return await submit(connection, topic=ORDERS)


@pytest.mark.parametrize("end", ENDS)
async def test_however_a_job_ends(connection: Sql, end: End) -> None:
    """Its end is in the outbox, if its topic publishes; a job that is deleted before has none."""
    other, parent = await submit(connection), await order(connection)
    await end(connection, other)
    assert await ends(connection) == []
    await end(connection, parent)
    status = ENDS[end]
    attempt = 0 if end.__name__ in {"cancel", "expire"} else 1
    assert await ends(connection) == ([] if status is None else [(parent, attempt, status)])


async def test_what_a_row_has(connection: Sql) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    parent = await connection.fetchval("SELECT pulse.submit('ship', topic => $1, traceparent => $2)", ORDERS, trace)
    sql = "UPDATE pulse.jobs SET result = '{\"n\": 1}', last_error = 'once' WHERE id = $1"
    await connection.execute(sql, parent)
    await complete(connection, parent)
    row = await connection.fetchrow("SELECT o.*, j.completed_at FROM pulse.outbox o JOIN pulse.jobs j ON j.id = job_id")
    assert row is not None
    assert (row["name"], row["topic"], row["traceparent"], row["last_error"]) == ("ship", ORDERS, trace, "once")
    assert row["ended_at"] == row["completed_at"]


async def test_it_commits_with_the_end(connection: Sql) -> None:
    parent = await order(connection)
    transaction = connection.transaction()
    await transaction.start()
    await complete(connection, parent)
    assert len(await ends(connection)) == 1
    await transaction.rollback()
    assert await ends(connection) == []


async def test_a_job_that_fails_and_is_tried_again_has_not_ended(connection: Sql) -> None:
    parent = await order(connection)
    await retry(connection, parent)
    assert await ends(connection) == []


async def test_jobs_that_are_canceled_because_of_it(connection: Sql) -> None:
    """Wave by wave, those among them whose topic publishes."""
    first = await order(connection)
    second = await submit(connection, first, topic=ORDERS)
    third = await submit(connection, second)
    await submit(connection, third, topic=ORDERS)
    last = await submit(connection, third, topic=ORDERS)
    await fail(connection, first)
    found = await ends(connection)
    assert found[:2] == [(first, 1, "DEAD_LETTERED"), (second, 0, "CANCELED")]
    assert len(found) == 4
    assert (last, 0, "CANCELED") in found


async def _by_submit(_store: Store, connection: Sql) -> None:
    await connection.execute("SELECT pulse.submit('n', topic => $1)", ORDERS)


async def _by_key(_store: Store, connection: Sql) -> None:
    await connection.execute("SELECT pulse.submit('n', topic => $1, unique_key => 'k')", ORDERS)


async def _by_submit_many(_store: Store, connection: Sql) -> None:
    await connection.execute(f"""SELECT pulse.submit_many('[{{"name": "n", "topic": "{ORDERS}"}}]')""")


async def _by_store(store: Store, _connection: Sql) -> None:
    await store.submit([job(topic=ORDERS)])


async def _again(store: Store, _connection: Sql) -> None:
    await store.submit_again([job(topic=ORDERS)])


async def _claimed_at_once(store: Store, _connection: Sql) -> None:
    await store.submit_and_claim([job(topic=ORDERS)], [ORDERS], [WORKER], [0], 60.0)


async def _triggered(_store: Store, connection: Sql) -> None:
    made = await connection.fetchval(SCHEDULE, None)
    await connection.execute("SELECT pulse.trigger_schedule($1)", made)


async def _fired(_store: Store, connection: Sql) -> None:
    made = await connection.fetchval(SCHEDULE, None)
    rest = "ARRAY[next_run_at], ARRAY[revision], ARRAY[next_run_at], ARRAY[now()], ARRAY[now()]"
    row = await connection.fetchrow(f"SELECT {rest} FROM pulse.schedules WHERE id = $1", made)
    await connection.execute(STATEMENTS["fire_schedules"].sql, [made], *tuple(row or ()), 1, 1, None)


async def _fired_with_a_key(_store: Store, connection: Sql) -> None:
    made = await connection.fetchval(SCHEDULE, "k")
    row = await connection.fetchrow(
        "SELECT next_run_at, revision, next_run_at AS at, now(), now() FROM pulse.schedules WHERE id = $1", made
    )
    await connection.execute(STATEMENTS["fire_unique"].sql, made, *tuple(row or ()), None)


async def _moved(store: Store, connection: Sql) -> None:
    moved = await submit(connection)
    await store.change([moved.bytes], topic=ORDERS)


_WAYS: Final[Mapping[str, Callable[[Store, Sql], Awaitable[None]]]] = {
    "submit": _by_submit, "unique": _by_key, "submit_many": _by_submit_many, "store": _by_store, "again": _again,
    "claimed": _claimed_at_once, "triggered": _triggered, "fired": _fired, "fired_unique": _fired_with_a_key,
    "moved": _moved,
}  # fmt: skip


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("publish", [True, False])
async def test_however_a_job_comes(store: Store, connection: Sql, way: str, publish: bool) -> None:
    """Into its topic: by each INSERT, or by a move. Where the topic does not publish, the job is not marked."""
    await set_publish(connection, publish=publish)
    await set_publish(connection, publish=True, topic="another")
    await _WAYS[way](store, connection)
    found = await connection.fetchrow("SELECT id, topic, is_parent FROM pulse.jobs")
    assert found is not None
    assert (found["topic"], found["is_parent"]) == (ORDERS, True if publish else None)
    await cancel(connection, found["id"])
    assert len(await ends(connection)) == publish


async def test_a_job_that_is_moved_away(store: Store, connection: Sql) -> None:
    parent = await order(connection)
    await store.change([parent.bytes], topic="elsewhere")
    await cancel(connection, parent)
    assert await ends(connection) == []


@pytest.mark.parametrize("end", ENDS)
async def test_a_job_that_was_there_before(connection: Sql, end: End) -> None:
    """It is not marked; one that was marked is not written after the topic has stopped."""
    await set_publish(connection, publish=False)
    before = await order(connection)
    await set_publish(connection, publish=True)
    await end(connection, before)
    marked = await order(connection)
    await set_publish(connection, publish=False)
    await set_publish(connection, publish=True, topic="another")
    await end(connection, marked)
    assert await ends(connection) == []


async def test_a_child_that_was_there_before(connection: Sql) -> None:
    parent = await order(connection)
    await set_publish(connection, publish=False)
    await submit(connection, parent, topic=ORDERS)
    await set_publish(connection, publish=True)
    await cancel(connection, parent)
    assert await ends(connection) == [(parent, 0, "CANCELED")]


async def test_a_retention_of_nothing(store: Store, connection: Sql) -> None:
    """The job is deleted, and its end is not."""
    parent = await order(connection)
    await cancel(connection, parent)
    await store.delete([parent.bytes])
    assert await ends(connection) == [(parent, 0, "CANCELED")]
    done = await order(connection)
    await connection.execute(RUN, [done])
    await store.complete([Completion(done.bytes, 1, WORKER, "7", None)], keep=False)
    assert await ends(connection) == [(parent, 0, "CANCELED"), (done, 1, "COMPLETED")]
    assert await connection.fetchval("SELECT result FROM pulse.outbox WHERE job_id = $1", done) == "7"


async def test_each_end_of_a_job_is_another(store: Store, connection: Sql) -> None:
    """Also two cancels with a retry between them, without any attempt."""
    parent = await order(connection)
    for _ in range(2):
        await cancel(connection, parent)
        await store.retry([parent.bytes])
    await complete(connection, parent)
    assert await ends(connection) == [(parent, 0, "CANCELED"), (parent, 0, "CANCELED"), (parent, 1, "COMPLETED")]


async def test_a_job_that_waits_for_one_that_has_ended(connection: Sql) -> None:
    """The end was published: a later dependency does not do it again, neither at its submit nor at its commit."""
    parent = await order(connection)
    await fail(connection, parent)
    await connection.execute("DELETE FROM pulse.outbox")
    child = await submit(connection, parent, topic=ORDERS)
    assert await ends(connection) == [(child, 0, "CANCELED")]


async def test_take_and_forget(store: Store, connection: Sql) -> None:
    """The oldest first; what is taken comes again when its time is over; what is forgotten does not."""
    jobs = [await order(connection) for _ in range(3)]
    for one in jobs:
        await cancel(connection, one)
    await connection.execute("UPDATE pulse.outbox SET result = '[1, 2]' WHERE job_id = $1", jobs[0])
    first, second = await store.outbox.take(2, 30.0, LARGE, now=NOW)
    assert (first["job"], first["result"], first["result_omitted"]) == (jobs[0].bytes, "[1, 2]", False)
    assert (second["job"], second["status"], second["result"]) == (jobs[1].bytes, "CANCELED", None)
    third = await store.outbox.take(9, 30.0, LARGE, now=at(29.9))
    assert [one["job"] for one in third] == [jobs[2].bytes]
    again = await store.outbox.take(9, 30.0, 5, now=at(30.0))
    assert [(one["job"], one["result"], one["result_omitted"]) for one in again] == [
        (jobs[0].bytes, None, True), (jobs[1].bytes, None, False),
    ]  # fmt: skip
    assert await store.outbox.forget([(first["job"], first["ended_at"]), (second["job"], second["ended_at"] + 1)]) == 1
    assert await store.outbox.forget([(first["job"], first["ended_at"])]) == 0
    assert {one for one, _, _ in await ends(connection)} == set(jobs[1:])


async def test_ends_at_the_same_time_and_of_the_same_job(store: Store, connection: Sql) -> None:
    """Each is taken by itself, and forgotten by itself."""
    job, other = await order(connection), await order(connection)
    for one in (job, other):
        await cancel(connection, one)
    await connection.execute("UPDATE pulse.outbox SET ended_at = $1", NOW)
    await connection.execute(
        "INSERT INTO pulse.outbox (job_id, ended_at, attempt, status, topic, name)"
        " SELECT job_id, $1, 1, status, topic, name FROM pulse.outbox WHERE job_id = $2",
        at(1),
        job,
    )
    taken = [await store.outbox.take(1, 60.0, LARGE, now=at(2)) for _ in range(4)]
    assert [len(rows) for rows in taken] == [1, 1, 1, 0]
    found = [(row["job"], row["ended_at"]) for rows in taken for row in rows]
    now_us = to_us(NOW)
    assert found == [(job.bytes, now_us), (other.bytes, now_us), (job.bytes, now_us + 1_000_000)]
    assert await store.outbox.forget(found[:1]) == 1
    assert [one for one, _, _ in await ends(connection)] == [other, job]


async def test_large_results(store: Store, connection: Sql) -> None:
    """No more than fit a frame are taken at once; what is left out does not count."""
    for _ in range(9):
        await cancel(connection, await order(connection))
    await connection.execute("UPDATE pulse.outbox SET result = to_jsonb(repeat('x', 1000000))")
    assert [len(await store.outbox.take(9, 60.0, 2 * LARGE)) for _ in range(3)] == [5, 4, 0]
    await connection.execute("UPDATE pulse.outbox SET taken_until = '-infinity'")
    assert len(await store.outbox.take(9, 60.0, 1000)) == 9


async def test_two_publishers(store: Store, connection: Sql) -> None:
    """Each row is taken by one, while the other transaction is open and after it."""
    for _ in range(20):
        await cancel(connection, await order(connection))
    async with store.query.connection() as one:
        transaction = one.transaction()
        await transaction.start()
        mine = await one.fetch(STATEMENTS["take_ends"].sql, 5, 60.0, LARGE, None)
        found = await asyncio.gather(*(store.outbox.take(5, 60.0, LARGE) for _ in range(2)))
        await transaction.commit()
    rest = await store.outbox.take(20, 60.0, LARGE)
    lists: list[list[Any]] = [mine, *found, rest]
    taken = [row["job"] for rows in lists for row in rows]
    assert (len(taken), len(set(taken))) == (20, 20)


async def test_how_many_wait(store: Store, connection: Sql) -> None:
    """And since when; up to a number they are counted, beyond it the statistics say how many there are."""
    assert (await store.depths.read(9, [])).ends_oldest_s is None
    for _ in range(5):
        await cancel(connection, await order(connection))
    later = "(SELECT count(*) FROM pulse.outbox p WHERE p.job_id < o.job_id) * interval '1 second'"
    await connection.execute(f"UPDATE pulse.outbox o SET ended_at = $1::timestamptz + {later}", NOW)
    for found in (await store.depths.count(9, now=at(30.0)), await store.depths.sample(9, [], now=at(30.0))):
        assert found is not None
        assert (found.ends, found.ends_oldest_s) == (5, 30.0)
    sql = STATEMENTS["count_ends"].sql
    await connection.execute("SELECT pg_stat_force_next_flush()")
    await connection.execute("SELECT pg_stat_reset_single_table_counters('pulse.outbox'::regclass)")
    assert await connection.fetchval(sql, 3, None) == 3
    await connection.execute("ANALYZE pulse.outbox")
    assert [await connection.fetchval(sql, most, None) for most in (3, 6)] == [5, 5]
    await connection.execute("DELETE FROM pulse.outbox WHERE ended_at <> $1", NOW)
    assert await connection.fetchval(sql, 3, None) == 1
