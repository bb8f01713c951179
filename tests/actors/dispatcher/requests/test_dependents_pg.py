"""An operator cancels or retries jobs that others wait for: with those others, or so that they wait again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

import asyncpg
import pytest

from pulse.errors import BadRequestError
from pulse.protocol import JobsWithDependents
from pulse.store.statements import STATEMENTS, parse, texts
from pulse.store.store import Store
from pulse_actors.dispatcher.context import RequestContext
from pulse_actors.dispatcher.requests import jobs
from pulse_actors.dispatcher.requests.jobs import cancel_jobs, retry_jobs
from tests.actors.dispatcher.net.test_session_pg import Lobby
from tests.pulse.store.workflows.test_dependencies_pg import (
    PREVENTED,
    cancel,
    complete,
    fail,
    state,
    submit,
    value,
)
from tests.support.store.helpers import Sql
from tests.support.waiting import until_blocked

if TYPE_CHECKING:
    from pulse_actors.dispatcher.context import Answer

CHECKS = parse(*texts("admin", "checks.sql"))
HELD, DUE = ("PENDING", 1, True), ("PENDING", 0, False)


@pytest.fixture
def context(store: Store, connection: Sql) -> RequestContext:
    return RequestContext(Lobby(store, connection).services())


async def retry(context: RequestContext, *named: UUID, with_dependents: bool = True) -> Answer:
    return await retry_jobs(context, JobsWithDependents([one.bytes for one in named], with_dependents=with_dependents))


async def violations(connection: Sql) -> list[str]:
    return [row["detail"] for row in await connection.fetch(CHECKS["check_dependencies"].sql, 10)]


async def states(connection: Sql, *jobs: UUID) -> list[tuple[str, int | None, bool]]:
    return [await state(connection, job) for job in jobs]


def ids(answer: Answer) -> set[UUID]:
    done = answer["done"]
    assert isinstance(done, list)
    return {UUID(bytes=one) for one in done}


async def test_a_tree_is_canceled(context: RequestContext, connection: Sql) -> None:
    """Also what would run all the same, behind one that was canceled before; its neighbours go on."""
    root, other = await submit(connection), await submit(connection)
    all_the_same = await submit(connection, root, other, on_failure="run")
    before = await submit(connection, all_the_same)
    leaf = await submit(connection, before, on_failure="run")
    neighbour = await submit(connection, other)
    await cancel(connection, before)
    assert await state(connection, leaf) == DUE
    answer = await cancel_jobs(context, JobsWithDependents([root.bytes], with_dependents=True))
    assert ids(answer) == {root, all_the_same, leaf}
    assert answer["refused"] == []
    assert await state(connection, neighbour) == HELD
    detail = await connection.fetchval("SELECT detail->>'ids' FROM pulse.audit WHERE action = 'jobs.cancel'")
    assert all(str(one) in detail for one in (root, all_the_same, leaf))
    assert await violations(connection) == []


async def test_without_them_a_cancel_lets_run_what_is_to_run(context: RequestContext, connection: Sql) -> None:
    root = await submit(connection)
    child = await submit(connection, root, on_failure="run")
    assert ids(await cancel_jobs(context, JobsWithDependents([root.bytes]))) == {root}
    assert await state(connection, child) == DUE


async def test_what_was_canceled_because_of_a_job_waits_again(context: RequestContext, connection: Sql) -> None:
    """In the order in which it waited before; and not what an operator had canceled, nor what waits behind that."""
    root = await submit(connection)
    child, by_hand = await submit(connection, root), await submit(connection, root)
    grandchild, behind = await submit(connection, child), await submit(connection, by_hand)
    await cancel(connection, by_hand)
    await fail(connection, root)
    answer = await retry(context, root)
    assert ids(answer) == {root, child, grandchild}
    assert await states(connection, child, grandchild) == [HELD, HELD]
    assert [(await state(connection, one))[0] for one in (by_hand, behind)] == ["CANCELED", "CANCELED"]
    assert await violations(connection) == []
    for job, waiting in ((root, child), (child, grandchild)):
        await complete(connection, job)
        assert await state(connection, waiting) == DUE
    assert await connection.fetchval("SELECT jobs FROM pulse.audit WHERE action = 'jobs.retry'") == 3


async def test_without_them_it_alone_is_retried(context: RequestContext, connection: Sql) -> None:
    root = await submit(connection)
    child = await submit(connection, root)
    await fail(connection, root)
    assert ids(await retry(context, root, with_dependents=False)) == {root}
    assert (await state(connection, child))[0] == "CANCELED"


async def test_another_parent_that_failed(context: RequestContext, connection: Sql) -> None:
    """It cancels again what waits for it, and all behind that, for its own reason; one that may fail does not."""
    root, bad, may_fail = [await submit(connection) for _ in range(3)]
    child = await submit(connection, root, bad)
    grandchild = await submit(connection, child)
    all_the_same = await submit(connection, root, on_failure="run")
    both = await submit(connection, may_fail, all_the_same, on_failure="run")
    await fail(connection, may_fail)
    await fail(connection, bad)
    await fail(connection, root)
    assert ids(await retry(context, root)) == {root}
    assert await value(connection, "last_error", child) == PREVENTED.format(bad, "DEAD_LETTERED")
    assert await value(connection, "last_error", grandchild) == PREVENTED.format(child, "CANCELED")
    assert await state(connection, both) == HELD  # all_the_same is due, and was not canceled
    assert await violations(connection) == []
    assert ids(await retry(context, bad)) == {bad, child, grandchild}
    assert await state(connection, child) == ("PENDING", 2, True)


async def test_who_still_waits_waits_for_it_again(context: RequestContext, connection: Sql) -> None:
    """With its dependents or without: a job that is held, but not one that was let go."""
    root, other = await submit(connection), await submit(connection)
    held, gone = await submit(connection, root, other), await submit(connection, root)
    await complete(connection, root)
    assert await states(connection, held, gone) == [HELD, DUE]
    assert ids(await retry(context, root, with_dependents=False)) == {root}
    assert await states(connection, held, gone) == [("PENDING", 2, True), DUE]
    await complete(connection, other)
    assert await state(connection, held) == HELD
    assert await violations(connection) == []


async def test_both_are_named(context: RequestContext, connection: Sql) -> None:
    """The second one waits for the first again; named alone it runs whatever its parent has come to."""
    root = await submit(connection)
    child = await submit(connection, root)
    await cancel(connection, root)
    assert ids(await retry(context, child, with_dependents=False)) == {child}
    assert await state(connection, child) == DUE
    await cancel(connection, child)
    assert ids(await retry(context, child, root, with_dependents=False)) == {child, root}
    assert await state(connection, child) == HELD
    assert await violations(connection) == []


async def test_a_parent_that_is_gone(context: RequestContext, connection: Sql) -> None:
    """Nobody waits for it again."""
    root, gone = await submit(connection), await submit(connection)
    child = await submit(connection, root, gone)
    await complete(connection, gone)
    await connection.execute("DELETE FROM pulse.jobs WHERE id = $1", gone)
    await fail(connection, root)
    assert ids(await retry(context, root)) == {root, child}
    assert await state(connection, child) == HELD


@pytest.mark.parametrize("way", ["cancel", "retry"])
async def test_too_many(context: RequestContext, connection: Sql, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Nothing at all is done."""
    monkeypatch.setattr(jobs, "DEPENDENTS", 1)
    root = await submit(connection)
    children = [await submit(connection, root) for _ in range(2)]
    if way == "retry":
        await fail(connection, root)
    before = await states(connection, root, *children)
    with pytest.raises(BadRequestError, match="more than 1 jobs depend on these"):
        await {"cancel": cancel_jobs, "retry": retry_jobs}[way](
            context, JobsWithDependents([root.bytes], with_dependents=True)
        )
    assert await states(connection, root, *children) == before


async def test_a_parent_ends_while_an_operator_retries_another(connection: Sql, dsn: str) -> None:
    """Its end waits for the child that waits again, and then finds what has become of it."""
    root, other = await submit(connection), await submit(connection)
    child = await submit(connection, root, other)
    await complete(connection, root)
    operator, ender = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    try:
        transaction = operator.transaction()
        await transaction.start()
        await operator.execute(STATEMENTS["retry_jobs"].sql, [root], None)
        await operator.execute(STATEMENTS["retry_relatives"].sql, [root], [])
        task = asyncio.create_task(complete(ender, other))
        await until_blocked(connection, by=operator.get_server_pid())
        await transaction.commit()
        await task
    finally:
        await operator.close(timeout=5)
        await ender.close(timeout=5)
    assert await state(connection, child) == HELD
    assert await violations(connection) == []


@pytest.mark.rest
async def test_a_thousand(context: RequestContext, connection: Sql) -> None:
    """One behind the other, and as many behind the last."""
    chain = [await submit(connection)]
    for _ in range(300):
        chain.append(await submit(connection, chain[-1]))
    fan = [await submit(connection, chain[-1]) for _ in range(700)]
    await fail(connection, chain[0])
    assert ids(await retry(context, chain[0])) == {*chain, *fan}
    assert await violations(connection) == []
