"""Submits with unique keys through the store: which ids come back, what there is to wake, and what they wait for."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from typing import Final

import asyncpg
import pytest

from pulse.errors import ConflictError, NotFoundError, StatementError, StatementTimeoutError
from pulse.protocol import HandlerInfo
from pulse.store.arguments import uuids
from pulse.store.rows import Ending, EndingKind
from pulse.store.statements import STATEMENTS
from pulse.store.store import Store
from tests.support.store.helpers import NOW, TOPIC, Sql, at, claim, count, fence, forge, holding, job
from tests.support.waiting import until_blocked

KEY: Final = "doc:42"
HELD: Final = datetime(9999, 12, 30, tzinfo=UTC)
TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_all_that_a_job_has(store: Store, connection: Sql) -> None:
    """Its own options, else its handler's; the keys beside them."""
    await store.note_handlers({"n": HandlerInfo(max_attempts=7, timeout_s=9.0)})
    one = job(
        unique=KEY, unique_until="start", priority=5, args='{"a": 1}', run_at=at(60).timestamp(), traceparent=TRACE,
        group_key="g", expires_at=at(90).timestamp(),
    )  # fmt: skip
    two = job(unique="other", max_attempts=2, timeout_s=3.0, delay_s=60.0, expires_in_s=90.0)
    await store.unique.submit([one, two], now=NOW)
    columns = "priority, args, next_run_at, expires_at, max_attempts, timeout_s, traceparent, group_key, run_after"
    rows = await connection.fetch(f"SELECT unique_key, unique_until, {columns} FROM pulse.jobs ORDER BY unique_key")
    assert [tuple(row) for row in rows] == [
        (KEY, "start", 5, '{"a": 1}', at(60), at(90), 7, 9.0, TRACE, "g", None),
        ("other", "end", 0, "{}", at(60.000001), at(90), 2, 3.0, None, None, None),
    ]


async def test_ids_come_back_in_the_order_of_the_jobs(store: Store, connection: Sql) -> None:
    """Each its own, or the id of the job that has the key; plain ones are inserted, or there, as ever."""
    there, repeated = job(unique="b"), job()
    await store.unique.submit([there], now=NOW)
    await store.submit([repeated], now=NOW)
    jobs = [job(unique="c"), repeated, job(unique="b"), job(), job(unique="a")]
    ids, _ = await store.unique.submit(jobs, now=NOW)
    assert ids == [jobs[0].id, repeated.id, there.id, jobs[3].id, jobs[4].id]
    assert await count(connection) == 5


async def test_only_a_job_that_has_not_begun_is_held(connection: Sql) -> None:
    """Nor one that waits already; and no job that was not named."""
    new, tried, waits, ended, unnamed = [
        await forge(connection, status, attempts=attempts, waiting_on=waiting_on)
        for status, attempts, waiting_on in (
            ("PENDING", 0, None), ("PENDING", 1, None), ("PENDING", 0, 1), ("CANCELED", 0, None), ("PENDING", 0, None),
        )
    ]  # fmt: skip
    held = await connection.fetch(STATEMENTS["hold_jobs"].sql, uuids([new, tried, waits, ended]), [2] * 4)
    assert [row["id"] for row in held] == [new]
    rows = await connection.fetch("SELECT uuid_send(id) AS id, next_run_at, run_after, waiting_on FROM pulse.jobs")
    found = {row["id"]: tuple(row)[1:] for row in rows}
    assert found[new] == (HELD, NOW, 2)
    assert [found[one] for one in (tried, ended, unnamed)] == [(NOW, None, None)] * 3
    assert found[waits] == (NOW, None, 1)


async def test_a_job_that_waits_for_one_whose_key_is_taken(store: Store, connection: Sql) -> None:
    """It waits for the job that has the key, once, whatever ids it names."""
    holder, first, second = job(unique=KEY), job(unique=KEY), job(unique=KEY)
    await store.unique.submit([holder], now=NOW)
    child = job(after=[first.id, second.id, holder.id])
    ids, _ = await store.unique.submit([first, second, child], now=NOW)
    assert ids == [holder.id, holder.id, child.id]
    rows = await connection.fetch(
        "SELECT parent_id, child_id, waiting_on FROM pulse.dependencies JOIN pulse.jobs ON id = child_id"
    )
    assert [(row["parent_id"].bytes, row["child_id"].bytes, row["waiting_on"]) for row in rows] == [
        (holder.id, child.id, 1)
    ]


async def test_a_job_that_waits_for_one_that_is_not_there(store: Store, connection: Sql) -> None:
    with pytest.raises(NotFoundError, match="and there is no such job"):
        await store.unique.submit([job(after=[bytes(16)])], now=NOW)
    assert await count(connection) == 0


async def test_levels_to_wake(store: Store) -> None:
    """Where a job is new or was replaced, and is due; it counts only if it is new. What was there keeps its group."""
    await store.unique.submit([job(unique="there", priority=3, group_key="old"), job(unique="kept")], now=NOW)
    jobs = [
        job(group_key="g"), job(unique="new", priority=1, group_key="h"), job(unique="later", priority=2, delay_s=60.0),
        job(unique="there", on_conflict="replace", group_key="other"), job(unique="kept"),
    ]  # fmt: skip
    _, woken = await store.unique.submit(jobs, now=NOW)
    due_s = NOW.timestamp()
    assert sorted((one.priority, one.due_s, one.jobs, one.group_key) for one in woken) == [
        (0, due_s, 1, "g"), (1, pytest.approx(due_s), 1, "h"), (2, None, 1, None), (3, pytest.approx(due_s), 0, "old"),
    ]  # fmt: skip
    assert {one.topic for one in woken} == {TOPIC}


async def test_a_job_that_was_replaced_in_its_back_off(store: Store, connection: Sql) -> None:
    """It is due when the new one says so, and runs with the new args."""
    identity = await forge(connection, "RETRYING", unique_key=KEY, unique_until="end", next_run_at=at(3600))
    await store.unique.submit([job(unique=KEY, on_conflict="replace", args='{"a": 2}')], now=NOW)
    assert [(one.id, one.args) for one in await claim(store)] == [(identity, '{"a": 2}')]


async def test_a_job_of_a_sequence_that_was_replaced_in_its_back_off(store: Store, connection: Sql) -> None:
    """It is due when the new one says so, too, although its back-off is kept apart from its place."""
    of_a_sequence = {"group_key": "g", "run_after": at(3600), "next_run_at": at(-9)}
    identity = await forge(connection, "RETRYING", unique_key=KEY, unique_until="end", **of_a_sequence)
    await store.unique.submit([job(unique=KEY, on_conflict="replace", delay_s=5.0)], now=NOW)
    rows = await connection.fetch("SELECT next_run_at, run_after FROM pulse.jobs WHERE id = $1", identity.hex())
    assert [tuple(row) for row in rows] == [(at(5), None)]


async def test_all_or_none(store: Store, connection: Sql) -> None:
    identity = await forge(connection, unique_key=KEY, unique_until="end")
    said = f"unique key '{KEY}' belongs to job {uuid.UUID(bytes=identity)}"
    with pytest.raises(ConflictError, match=said):
        await store.unique.submit([job(), job(unique="a"), job(unique=KEY, on_conflict="error")])
    with pytest.raises(ConflictError, match="exists already with another name, topic or args"):
        await store.unique.submit([job(unique="a"), job(id=identity, name="m")])
    with pytest.raises(StatementError, match="invalid input syntax for type json"):
        await store.unique.submit([job(), job(unique="a", args="{")])
    assert await count(connection) == 1


async def test_a_key_of_a_transaction_that_is_open(store: Store, dsn: str) -> None:
    """A submit with that key waits, for a limited time, on connections of its own: nobody else does."""
    async with holding(dsn, "SELECT pulse.submit('n', unique_key => $1)", KEY):
        with pytest.raises(StatementTimeoutError):
            await store.unique.submit([job(unique=KEY)])
        await store.submit([job()])
    assert store.unique.pool not in {store.hot, store.query}


async def test_keys_in_any_order(store: Store, dsn: str, connection: Sql) -> None:
    """Two servers that get the same keys in another order wait for each other in one direction only."""
    other = await asyncpg.connect(dsn)
    transaction = other.transaction()
    await transaction.start()
    await other.execute("SELECT pulse.submit('n', unique_key => 'b')")
    task = asyncio.create_task(store.unique.submit([job(unique="c"), job(unique="b"), job(unique="a")]))
    await until_blocked(connection, by=other.get_server_pid())
    await other.execute("SELECT pulse.submit('n', unique_key => 'c')")  # nobody has it yet
    await transaction.commit()
    await other.close(timeout=5)
    await task
    assert await count(connection) == 3


async def test_the_same_key_twice_in_one_call(store: Store, connection: Sql) -> None:
    """The first is inserted, and the last one's args win."""
    jobs = [job(unique=KEY, on_conflict="replace", args=f'{{"a": {number}}}') for number in range(3)]
    ids, woken = await store.unique.submit(jobs, now=NOW)
    assert (ids, [one.jobs for one in woken]) == ([jobs[0].id] * 3, [1, 0, 0])
    assert await connection.fetchval("SELECT args FROM pulse.jobs") == '{"a": 2}'


@pytest.mark.parametrize("kind", EndingKind)
async def test_no_ending_takes_a_key(store: Store, connection: Sql, kind: EndingKind) -> None:
    """A job whose key went at its start comes back to wait, and is claimed, beside another that has the key now."""
    identity = await forge(connection, "RUNNING", unique_key=KEY, unique_until="start", lease_until=at(-1))
    await store.unique.submit([job(unique=KEY, unique_until="start")], now=NOW)
    await store.end([Ending(*fence(identity), kind, "why", 0.0)], now=NOW)
    await store.retry([identity], now=NOW)
    assert len(await claim(store, seconds=3600)) == 2
