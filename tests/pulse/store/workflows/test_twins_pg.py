"""Two graphs that are alike: whatever happens to one neither changes nor locks the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import pytest

from pulse.store.statements import STATEMENTS
from pulse.store.store import Store
from tests.pulse.store.workflows.test_dependencies_pg import cancel, complete, delete, fail, submit, value
from tests.support.store.helpers import Sql, holding

ROWS: Final = """
    SELECT id, status::text, attempts, waiting_on, next_run_at, run_after, completed_at, is_parent, signals,
        (SELECT array_agg((parent_id, is_over) ORDER BY parent_id) FROM pulse.dependencies WHERE child_id = j.id),
        (SELECT count(*) FROM pulse.signals s WHERE s.job_id = j.id)
    FROM pulse.jobs j WHERE id = ANY ($1) ORDER BY id"""
LOCK: Final = """
    WITH jobs AS (SELECT FROM pulse.jobs WHERE id = ANY ($1) FOR UPDATE),
        edges AS (SELECT FROM pulse.dependencies WHERE child_id = ANY ($1) FOR UPDATE),
        signals AS (SELECT FROM pulse.signals WHERE job_id = ANY ($1) FOR UPDATE)
    SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM edges), (SELECT count(*) FROM signals)"""


@dataclass(frozen=True, slots=True)
class Graph:
    """
    A graph, in the middle of its work.

    Attributes:
        done: It has completed.
        failed: It is a dead letter.
        first: It waits for nothing.
        second: Likewise.
        released: It waited for *done*.
        half: It has waited for *done*, and waits for *first* and *second*.
        last: It waits for *half*, whatever becomes of that, and has had a signal.
        canceled: Because of *failed*; it would wait for *first*, too.
        retried: Likewise, and an operator has retried it: it waits for *first*.
    """

    done: UUID
    failed: UUID
    first: UUID
    second: UUID
    released: UUID
    half: UUID
    last: UUID
    canceled: UUID
    retried: UUID

    @property
    def jobs(self) -> list[UUID]:
        return [getattr(self, name) for name in self.__slots__]


async def grow(connection: Sql) -> Graph:
    done, failed, first, second = [await submit(connection) for _ in range(4)]
    released = await submit(connection, done)
    half = await submit(connection, done, first, second)
    last = await submit(connection, half, on_failure="run")
    canceled, retried = [await submit(connection, failed, first) for _ in range(2)]
    await complete(connection, done)
    await fail(connection, failed)
    await connection.execute(STATEMENTS["retry_jobs"].sql, [retried], None)
    await connection.execute("SELECT pulse.signal($1, 'approval')", last)
    return Graph(done, failed, first, second, released, half, last, canceled, retried)


async def again(connection: Sql, retried: list[UUID], prevented: list[UUID]) -> set[UUID]:
    """As an operator's retry with dependents; returns what waits then."""
    await connection.execute(STATEMENTS["retry_jobs"].sql, retried, None)
    found = await connection.fetch(STATEMENTS["retry_relatives"].sql, retried, prevented)
    waiting = {UUID(bytes=row["id"]) for row in found}
    assert waiting <= set(retried)
    return waiting


CHANGES: Final[dict[str, Callable[[Sql, Graph], Awaitable[object]]]] = {
    "one of two parents completes": lambda sql, graph: complete(sql, graph.first),
    "both parents complete": lambda sql, graph: complete(sql, graph.first, graph.second),
    "a parent fails": lambda sql, graph: fail(sql, graph.second),
    "a child is canceled": lambda sql, graph: cancel(sql, graph.half),
    "what has completed is deleted": lambda sql, graph: delete(sql, graph.done),
    "a parent is deleted": lambda sql, graph: delete(sql, graph.first),
    "a child is deleted": lambda sql, graph: delete(sql, graph.half),
    "what has a signal is deleted": lambda sql, graph: delete(sql, graph.last),
    "a child of what has ended": lambda sql, graph: submit(sql, graph.done),
    "a child of what waits": lambda sql, graph: submit(sql, graph.done, graph.first),
    "a signal": lambda sql, graph: sql.execute("SELECT pulse.signal($1, 'approval')", graph.half),
    "what completed is retried": lambda sql, graph: again(sql, [graph.done], []),
    "what failed is retried": lambda sql, graph: again(sql, [graph.failed, graph.canceled], [graph.canceled]),
    "what was canceled is retried": lambda sql, graph: again(sql, [graph.canceled], [graph.canceled]),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_the_other_graph(connection: Sql, dsn: str, change: str) -> None:
    one, other = await grow(connection), await grow(connection)
    before = await connection.fetch(ROWS, other.jobs)
    await connection.execute("SET lock_timeout = '5s'")
    async with holding(dsn, LOCK, other.jobs):
        await CHANGES[change](connection, one)
    await connection.execute("RESET lock_timeout")
    assert await connection.fetch(ROWS, other.jobs) == before


async def test_children_of_one_parent_do_not_wait_for_each_other(connection: Sql, dsn: str) -> None:
    """Not even while the transaction that submits one of them commits, if the parent has had a child before."""
    graph = await grow(connection)
    await connection.execute("SET lock_timeout = '5s'")
    joining = f"SELECT pulse.submit('n', after => '{{{graph.first}}}'); SET CONSTRAINTS ALL IMMEDIATE"
    async with holding(dsn, joining):
        await submit(connection, graph.first)
    await connection.execute("RESET lock_timeout")


async def test_a_parent_counts_once(connection: Sql) -> None:
    """A later child settles what has ended again: for those that waited before, that is over."""
    graph = await grow(connection)
    await submit(connection, graph.done)
    assert await value(connection, "waiting_on", graph.half) == 2
    await complete(connection, graph.first)
    await submit(connection, graph.done, graph.first)
    assert await value(connection, "waiting_on", graph.half) == 1
    await complete(connection, graph.second)
    assert await value(connection, "waiting_on", graph.half) == 0


async def test_what_is_retried_with_dependents(connection: Sql, store: Store) -> None:
    """It waits again for what has not ended; what has not failed meanwhile and what runs on stay as they are."""
    graph = await grow(connection)
    await again(connection, [graph.done, graph.failed, graph.canceled], [graph.canceled])
    rows = {
        job: (await value(connection, "status::text", job), await value(connection, "waiting_on", job))
        for job in graph.jobs
    }
    assert rows == {
        graph.done: ("PENDING", None), graph.failed: ("PENDING", None), graph.first: ("PENDING", None),
        graph.second: ("PENDING", None), graph.released: ("PENDING", 0), graph.half: ("PENDING", 3),
        graph.last: ("PENDING", 1), graph.canceled: ("PENDING", 2), graph.retried: ("PENDING", 2),
    }  # fmt: skip
    assert await connection.fetchval("SELECT count(*) FROM pulse.jobs WHERE waiting_on > 0 AND run_after IS NULL") == 0
    for parent in (graph.done, graph.failed, graph.first, graph.second):
        await complete(connection, parent)
    for job in (graph.released, graph.half, graph.canceled, graph.retried):
        assert await value(connection, "waiting_on = 0 AND next_run_at <= clock_timestamp()", job), job


async def test_a_child_that_is_retried_with_what_it_waited_for(connection: Sql) -> None:
    """It waits again, and is due again when that has ended."""
    graph = await grow(connection)
    await complete(connection, graph.released)
    await again(connection, [graph.done, graph.released], [])
    assert await value(connection, "waiting_on = 1 AND run_after IS NOT NULL", graph.released)
    await complete(connection, graph.done)
    assert await value(connection, "waiting_on = 0 AND next_run_at <= clock_timestamp()", graph.released)


async def test_what_is_retried_is_held_by_what_has_not_ended(connection: Sql) -> None:
    """What has waited for completed jobs alone is due."""
    graph = await grow(connection)
    await complete(connection, graph.released)
    await cancel(connection, graph.half)
    retried = [graph.released, graph.half]
    await connection.execute(STATEMENTS["retry_jobs"].sql, retried, None)
    found = await connection.fetch(STATEMENTS["retry_relatives"].sql, retried, [])
    assert {UUID(bytes=row["id"]): row["is_held"] for row in found} == {graph.released: False, graph.half: True}


async def test_a_child_of_what_is_still_failed(connection: Sql) -> None:
    """It is canceled again; one that an operator has let go on waits for what it has waited for."""
    graph = await grow(connection)
    assert await again(connection, [graph.canceled], [graph.canceled]) == set()
    assert await value(connection, "status = 'CANCELED'", graph.canceled)
    assert await value(connection, "status = 'PENDING' AND waiting_on = 1", graph.retried)
    await again(connection, [graph.failed], [])
    assert await value(connection, "status = 'CANCELED' AND waiting_on = 1", graph.canceled)
