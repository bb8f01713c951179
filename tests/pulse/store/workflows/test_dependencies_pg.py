"""Jobs that wait for others: when they are due or canceled, whatever ends the others, in any order of transactions."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final
from uuid import UUID

import asyncpg
import pytest

from pulse.store.arguments import fence_columns
from pulse.store.operators.dependencies import FIRST
from pulse.store.rows import Completion, Fence
from pulse.store.statements import STATEMENTS
from pulse.store.store import Store
from tests.support.store.helpers import WORKER, Sql, heard_until, holding
from tests.support.waiting import until_blocked

HELD: Final = "9999-12-30 00:00:00+00"
PREVENTED: Final = "canceled: it waited for other jobs, and {} is {}"
RUN: Final = f"""
    UPDATE pulse.jobs
    SET status = 'RUNNING', attempts = 1, started_at = now(), lease_until = now(), locked_by = '{WORKER}'
    WHERE id = ANY ($1)"""


async def complete(connection: Sql, *jobs: UUID) -> None:
    await connection.execute(RUN, jobs)
    fences = fence_columns([Fence(one.bytes, 1, WORKER) for one in sorted(jobs)])
    for name in ("complete_jobs", "complete_parents"):
        await connection.execute(STATEMENTS[name].sql, *fences, [], [], None)


async def complete_in_a_transaction(connection: Sql, job: UUID) -> None:
    await connection.execute(RUN, [job])
    await connection.execute("SELECT pulse.complete_attempt($1, 1, $2)", job, WORKER)


async def cancel(connection: Sql, job: UUID) -> None:
    await connection.execute(STATEMENTS["cancel_jobs"].sql, [job], None)


async def fail(connection: Sql, job: UUID) -> None:
    await _report(connection, job, "discarded")


async def retry(connection: Sql, job: UUID) -> None:
    """It failed, and has not ended."""
    await _report(connection, job, "error")


async def _report(connection: Sql, job: UUID, outcome: str) -> None:
    await connection.execute(RUN, [job])
    rest: tuple[object, ...] = ([outcome], ["x"], [None], [None], [None], [None], [None], [None], [], [], None)
    await connection.execute(STATEMENTS["end_attempts"].sql, *fence_columns([Fence(job.bytes, 1, WORKER)]), *rest)


async def expire(connection: Sql, job: UUID) -> None:
    await connection.execute("UPDATE pulse.jobs SET expires_at = now() - interval '1 s' WHERE id = $1", job)
    await connection.execute(STATEMENTS["expire_jobs"].sql, 10, None)


async def delete(connection: Sql, job: UUID) -> None:
    await connection.execute("DELETE FROM pulse.jobs WHERE id = $1", job)


End = Callable[[Sql, UUID], Coroutine[None, None, None]]
# What ends a job, and the status that it has then; None: it is gone.
ENDS: Final[Mapping[End, str | None]] = {
    complete: "COMPLETED", complete_in_a_transaction: "COMPLETED", cancel: "CANCELED", fail: "DEAD_LETTERED",
    expire: "DEAD_LETTERED", delete: None,
}  # fmt: skip
FAILED: Final = {"CANCELED", "DEAD_LETTERED"}


async def submit(connection: Sql, *after: UUID, **options: object) -> UUID:
    words = "".join(f", {name} => ${place}" for place, name in enumerate(options, 2))
    sql = f"SELECT pulse.submit('n', after => $1{words})"
    found: UUID = await connection.fetchval(sql, list(after) or None, *options.values())
    return found


async def state(connection: Sql, job: UUID) -> tuple[str, int | None, bool]:
    """Its status, how many jobs it waits for, and whether it is held."""
    columns = f"status::text, waiting_on, next_run_at = '{HELD}'"
    row = await connection.fetchrow(f"SELECT {columns} FROM pulse.jobs WHERE id = $1", job)
    assert row is not None
    return tuple(row)


async def value(connection: Sql, column: str, job: UUID) -> Any:
    return await connection.fetchval(f"SELECT {column} FROM pulse.jobs WHERE id = $1", job)


async def test_what_may_run_elsewhere_is_not_released(connection: Sql, store: Store) -> None:
    """A child that was put off since the database went back to when its parent had not ended."""
    parent = await submit(connection)
    child, later = await submit(connection, parent), await submit(connection, parent, delay_s=3600.0)
    await store.epochs.put_off([child.bytes, later.bytes], 600.0)
    assert await state(connection, child) == ("PENDING", 1, True)
    await complete(connection, parent)
    due_in = "SELECT date_part('epoch', next_run_at - now()) FROM pulse.jobs WHERE id = $1"
    assert 500 < await connection.fetchval(due_in, child) < 600 < await connection.fetchval(due_in, later)


async def test_a_job_waits_for_all_others(connection: Sql) -> None:
    """It is due when the last one has ended, and not before the time that it was given."""
    parents = [await submit(connection) for _ in range(3)]
    child = await submit(connection, *parents, delay_s=3600.0)
    for left, parent in zip((3, 2, 1), parents, strict=True):
        assert await state(connection, child) == ("PENDING", left, True)
        await complete(connection, parent)
    assert await state(connection, child) == ("PENDING", 0, False)
    assert await value(connection, "next_run_at - submitted_at > '3590 s' AND run_after IS NULL", child)


async def test_it_is_due_when_it_is_released(connection: Sql) -> None:
    parent = await submit(connection)
    child = await submit(connection, parent)
    await complete(connection, parent)
    assert await value(connection, "next_run_at BETWEEN submitted_at AND clock_timestamp()", child)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("on_failure", [None, "cancel", "run"])
@pytest.mark.parametrize("is_before", [True, False])
async def test_however_a_job_ends(connection: Sql, end: End, on_failure: str | None, is_before: bool) -> None:
    """Before the submit of the child or after it: one that fails cancels it, unless it is to run all the same."""
    status = ENDS[end]
    parent = await submit(connection)
    if is_before:
        await end(connection, parent)
        if status is None:
            with pytest.raises(asyncpg.ForeignKeyViolationError, match=f"wait for job {parent}, and there is no such"):
                await submit(connection, parent)
            return
    child = await submit(connection, parent, on_failure=on_failure)
    if not is_before:
        await end(connection, parent)
    if status not in FAILED or on_failure == "run":
        assert await state(connection, child) == ("PENDING", 0, False)
    else:
        assert (await state(connection, child))[0] == "CANCELED"
        assert await value(connection, "last_error", child) == PREVENTED.format(parent, status)
    assert await connection.fetchval("SELECT bool_and(is_over) FROM pulse.dependencies")


@pytest.mark.rest
async def test_a_cascade(connection: Sql) -> None:
    """Each of a thousand that wait for each other is canceled because of the one before it, in one statement."""
    jobs = [await submit(connection)]
    for _ in range(1000):
        jobs.append(await submit(connection, jobs[-1]))
    await fail(connection, jobs[0])
    rows = await connection.fetch("SELECT id, last_error FROM pulse.jobs WHERE status = 'CANCELED'")
    errors = {row["id"]: row["last_error"] for row in rows}
    assert errors.pop(jobs[1]) == PREVENTED.format(jobs[0], "DEAD_LETTERED")
    assert errors == {child: PREVENTED.format(parent, "CANCELED") for parent, child in itertools.pairwise(jobs[1:])}


@pytest.mark.rest
async def test_many_at_once(connection: Sql) -> None:
    """More than are settled at once; each child waits for two of them."""
    parents = [row[0] for row in await connection.fetch("SELECT pulse.submit('n') FROM generate_series(1, 1200)")]
    children = [await submit(connection, *pair) for pair in zip(parents[::2], parents[1::2], strict=True)]
    await cancel(connection, parents[0])
    await complete(connection, *parents[1:])
    states = [await state(connection, child) for child in children]
    assert states == [("CANCELED", 0, True), *[("PENDING", 0, False)] * 599]


@pytest.mark.parametrize("end", ENDS)
async def test_a_job_ends_before_the_other_transaction_commits(connection: Sql, dsn: str, end: End) -> None:
    """The statement that ends it cannot see the child: the commit of the child sees the end."""
    parent = await submit(connection)
    async with holding(dsn, "SELECT pulse.submit('child', after => $1)", [parent]):
        await end(connection, parent)
    row = await connection.fetchrow("SELECT status::text, waiting_on FROM pulse.jobs WHERE name = 'child'")
    assert tuple(row or ()) == ("CANCELED" if ENDS[end] in FAILED else "PENDING", 0)


@pytest.mark.parametrize("is_parent", [True, False])
@pytest.mark.parametrize("commits", [True, False])
async def test_the_other_transaction_commits_before_the_end_of_the_job(
    connection: Sql, dsn: str, is_parent: bool, commits: bool
) -> None:
    """The commit of the child waits for the transaction that ends the job, whether it had a child before or not."""
    parent = await submit(connection)
    if is_parent:
        await submit(connection, parent)
    ender = await asyncpg.connect(dsn)
    try:
        transaction = ender.transaction()
        await transaction.start()
        await complete(ender, parent)
        other = await asyncpg.connect(dsn)
        try:
            task = asyncio.create_task(submit(other, parent))
            await until_blocked(connection, by=ender.get_server_pid())
            await (transaction.commit() if commits else transaction.rollback())
            child = await task
        finally:
            await other.close(timeout=5)
    finally:
        await ender.close(timeout=5)
    assert await state(connection, child) == ("PENDING", 0 if commits else 1, not commits)
    if not commits:
        await complete(connection, parent)
        assert await state(connection, child) == ("PENDING", 0, False)


async def test_the_end_waits_for_a_commit_that_joins(connection: Sql, dsn: str) -> None:
    """While a transaction commits a child, the end of the job waits, and then sees that child."""
    parent = await submit(connection)
    await submit(connection, parent)
    other = await asyncpg.connect(dsn)
    try:
        transaction = other.transaction()
        await transaction.start()
        child = await submit(other, parent)
        await other.execute("SET CONSTRAINTS ALL IMMEDIATE")  # as the commit does
        task = asyncio.create_task(complete(connection, parent))
        watch = await asyncpg.connect(dsn)
        try:
            await until_blocked(watch, by=other.get_server_pid())
        finally:
            await watch.close(timeout=5)
        await transaction.commit()
        await task
    finally:
        await other.close(timeout=5)
    assert await state(connection, child) == ("PENDING", 0, False)


async def test_a_rolled_back_end_changes_nothing(connection: Sql) -> None:
    """Nor does it leave anything for the next statement of the transaction."""
    parent, other = await submit(connection), await submit(connection)
    child = await submit(connection, parent)
    async with connection.transaction():
        savepoint = connection.transaction()
        await savepoint.start()
        await complete(connection, parent)
        await savepoint.rollback()
        await complete(connection, other)
    assert await state(connection, child) == ("PENDING", 1, True)


async def test_in_one_call(connection: Sql) -> None:
    """Each may wait for those before it, which this call makes; a dead one that was there cancels what follows."""
    dead = await submit(connection)
    await fail(connection, dead)
    a, b, c, d = (UUID(int=number) for number in range(1, 5))
    jobs: list[dict[str, Any]] = [
        {"id": str(a), "name": "n"}, {"id": str(b), "name": "n", "after": [str(a), str(a)]},
        {"id": str(c), "name": "n", "after": [str(dead)]}, {"id": str(d), "name": "n", "after": [str(c), str(b)]},
    ]  # fmt: skip
    for _ in range(2):  # it may be repeated
        assert await many(connection, jobs) == [a, b, c, d]
    assert [await state(connection, job) for job in (a, b)] == [("PENDING", None, False), ("PENDING", 1, True)]
    assert [(await state(connection, job))[0] for job in (c, d)] == ["CANCELED", "CANCELED"]
    assert await value(connection, "last_error", d) == PREVENTED.format(c, "CANCELED")


async def many(connection: Sql, jobs: list[dict[str, Any]]) -> list[UUID]:
    rows = await connection.fetch("SELECT pulse.submit_many($1)", json.dumps(jobs))
    return [row[0] for row in rows]


@pytest.mark.parametrize(("first", "second"), [([1], []), ([2], []), ([2], [1])])
async def test_no_circle(connection: Sql, first: list[int], second: list[int]) -> None:
    """A job that waits for itself, or for one that is submitted after it."""
    ids = [UUID(int=1), UUID(int=2)]
    jobs = [
        {"id": str(one), "name": "n", "after": [str(UUID(int=number)) for number in after]}
        for one, after in zip(ids, (first, second), strict=True)
    ]
    if first == [2] and not second:
        assert await many(connection, jobs) == ids  # the order of a call says nothing, where there is no circle
        return
    with pytest.raises(asyncpg.InvalidParameterValueError, match="only a job that was submitted before it is allowed"):
        await many(connection, jobs)
    assert await connection.fetchval("SELECT count(*) FROM pulse.jobs") == 0


async def test_a_unique_job_that_waits(connection: Sql) -> None:
    """A new one waits; one that is there already stays as it is, but that it may be replaced while it waits."""
    parent, other = await submit(connection), await submit(connection)
    child = await submit(connection, parent, unique_key="k")
    for after in (UUID(int=7), other):  # what it would wait for is not looked at
        assert await submit(connection, after, unique_key="k", on_conflict="replace", delay_s=3600.0) == child
    assert await state(connection, child) == ("PENDING", 1, True)
    await complete(connection, parent)
    assert await value(connection, "next_run_at - submitted_at > '3590 s'", child)


@pytest.mark.parametrize(("options", "said"), [
    ({"on_failure": "run"}, "on_failure is given; it is allowed with after only"),
    ({"after": [], "on_failure": "run"}, None),
    ({"after": [UUID(int=7)], "on_failure": "skip"}, "on_failure is 'skip'; allowed are cancel, run"),
    ({"after": [UUID(int=7)]}, "there is no such job"),
])  # fmt: skip
async def test_what_is_wrong(connection: Sql, options: Mapping[str, object], said: str | None) -> None:
    words = ", ".join(f"{name} => ${place}" for place, name in enumerate(options, 1))
    sql = f"SELECT pulse.submit('n', {words})"
    if said is None:
        await connection.fetchval(sql, *options.values())
        return
    with pytest.raises(asyncpg.PostgresError, match=said):
        await connection.fetchval(sql, *options.values())
    assert await connection.fetchval("SELECT count(*) FROM pulse.jobs") == 0


async def test_nobody_else_can_be_made_to_wait(connection: Sql) -> None:
    """Neither a job that waits for nothing, nor one that waits for its own, not even beside one that is allowed to."""
    parent, plain, new = [await submit(connection) for _ in range(3)]
    child = await submit(connection, parent)
    await connection.execute("UPDATE pulse.jobs SET waiting_on = 1 WHERE id = $1", new)
    add = "SELECT pulse.add_dependencies($1, $2, '{NULL, NULL, NULL}')"
    await connection.execute(add, [plain, child, new], [parent, plain, parent])
    assert [await state(connection, job) for job in (plain, child)] == [("PENDING", None, False), ("PENDING", 1, True)]
    assert await connection.fetchval("SELECT count(*) FROM pulse.dependencies") == 2


async def test_what_is_deleted_takes_its_dependencies_along(connection: Sql) -> None:
    parent = await submit(connection)
    child = await submit(connection, parent)
    await connection.execute("DELETE FROM pulse.jobs WHERE id = $1", child)
    assert await connection.fetchval("SELECT count(*) FROM pulse.dependencies") == 0
    await complete(connection, parent)


async def test_a_retry_is_no_end(connection: Sql) -> None:
    parent = await submit(connection)
    child = await submit(connection, parent)
    await retry(connection, parent)
    assert await state(connection, child) == ("PENDING", 1, True)


async def test_a_schedule_cancels_what_it_held(connection: Sql) -> None:
    """That somebody waited for; and nothing else."""
    schedules = [await connection.fetchval("SELECT pulse.create_schedule('n', every_s => 60)") for _ in range(2)]
    parents = [await submit(connection) for _ in range(2)]
    held = f"schedule_id = $1, next_run_at = '{HELD}'"
    for schedule, parent in zip(schedules, parents, strict=True):
        await connection.execute(f"UPDATE pulse.jobs SET {held} WHERE id = $2", schedule, parent)
    children = [await submit(connection, parent) for parent in parents]
    await connection.execute("SELECT pulse.delete_schedule($1)", schedules[0])
    assert [(await state(connection, child))[0] for child in children] == ["CANCELED", "PENDING"]
    assert (await state(connection, parents[1]))[0] == "PENDING"


async def test_what_nobody_has_settled(connection: Sql, store: Store) -> None:
    """Somebody's own SQL ended a job: the watchdog sees it when it comes to that, step by step, and begins again."""
    parents = sorted([await submit(connection) for _ in range(3)])
    children = [await submit(connection, parent) for parent in parents]
    ended = "UPDATE pulse.jobs SET status = 'CANCELED', completed_at = now() WHERE id = ANY ($1)"
    await connection.execute(ended, parents[1:])
    assert (first := await store.dependencies.settle_forgotten(FIRST, 1)).settled == 0
    assert (second := await store.dependencies.settle_forgotten(first.after, 1)).settled == 1
    assert [(await state(connection, child))[0] for child in children] == ["PENDING", "CANCELED", "PENDING"]
    assert await store.dependencies.settle_forgotten(second.after, 5) == (FIRST, 1)
    assert (await state(connection, children[2]))[0] == "CANCELED"


async def test_children_are_kept_waiting_by_an_operators_retry(connection: Sql) -> None:
    """A child that was canceled waits again for what has not ended; what was lost meanwhile it does not wait for."""
    failed, parent = await submit(connection), await submit(connection)
    child = await submit(connection, failed, parent)
    await fail(connection, failed)
    assert await state(connection, child) == ("CANCELED", 1, True)
    await connection.execute(STATEMENTS["retry_jobs"].sql, [child], None)
    assert await state(connection, child) == ("PENDING", 1, True)
    await complete(connection, parent)
    assert await state(connection, child) == ("PENDING", 0, False)


async def test_retention_keeps_what_a_child_may_read(connection: Sql, store: Store) -> None:
    """Until the child has ended, by itself or by retention; also of a topic that keeps nothing."""
    kept, gone = await submit(connection), await submit(connection)
    child = await submit(connection, kept)
    await connection.execute(RUN, [kept, gone])
    completions = [Completion(one.bytes, 1, WORKER, None) for one in (kept, gone)]
    assert await store.complete(completions, keep=False) == {(one.bytes, 1) for one in (kept, gone)}
    assert await state(connection, kept) == ("COMPLETED", None, False)
    over = await submit(connection)
    await submit(connection, over)  # it is canceled
    await cancel(connection, over)
    await store.forget(bytes(16), 100, 0.0, 0.0)
    assert await connection.fetchval("SELECT count(*) FROM pulse.jobs") == 2
    await cancel(connection, child)
    await store.forget(bytes(16), 100, 0.0, 0.0)
    assert await connection.fetchval("SELECT count(*) FROM pulse.jobs") == 0
    assert await connection.fetchval("SELECT count(*) FROM pulse.dependencies") == 0


async def test_what_has_not_ended_settles_nothing(connection: Sql) -> None:
    await connection.execute("SELECT pulse.set_topic('orders', '{\"publish\": true}')")
    parent = await submit(connection, topic="orders")
    child = await submit(connection, parent)
    await connection.execute("SELECT pulse.settle(ARRAY[$1::uuid])", parent)
    assert await state(connection, child) == ("PENDING", 1, True)
    assert await connection.fetchval("SELECT count(*) FROM pulse.outbox") == 0


async def test_a_child_that_has_ended_already(connection: Sql) -> None:
    """What becomes of its parents changes nothing; after an operator's retry it waits for none of them."""
    parent = await submit(connection)
    child = await submit(connection, parent)
    await expire(connection, child)
    before = await value(connection, "to_jsonb(jobs) - 'waiting_on'", child)
    await fail(connection, parent)
    assert await value(connection, "to_jsonb(jobs) - 'waiting_on'", child) == before
    await connection.execute(STATEMENTS["retry_jobs"].sql, [child], None)
    assert await state(connection, child) == ("PENDING", 0, False)
    assert await value(connection, "next_run_at <= clock_timestamp() AND run_after IS NULL", child)


async def test_a_parent_that_has_ended_before_is_looked_at_at_once(connection: Sql) -> None:
    """Not at the commit, where each would be looked at by itself."""
    parent = await submit(connection)
    await complete(connection, parent)
    async with connection.transaction():
        child = await submit(connection, parent)
        assert await state(connection, child) == ("PENDING", 0, False)


@pytest.mark.parametrize("is_off", [False, True])
async def test_dispatchers_are_told(connection: Sql, dsn: str, is_off: bool) -> None:
    """By a word of its own, and only when a job is due; not at all where the session has turned that off."""
    heard: asyncio.Queue[str] = asyncio.Queue()
    await connection.add_listener("pulse_work", lambda *told: heard.put_nowait(told[3]))
    other = await asyncpg.connect(dsn)
    try:
        parents = [await submit(other), await submit(other)]
        await submit(other, *parents)
        if is_off:
            await other.execute("SET pulse.notify = off")
        for parent in parents:
            await complete(other, parent)
        await other.execute("SELECT pg_notify('pulse_work', 'end')")
        said = await heard_until("end", heard)
    finally:
        await other.close(timeout=5)
    assert said.count("released") == (0 if is_off else 1)
