"""Pages of the jobs that a job has waited for: none is missing, and none is too large."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from pulse.errors import BadRequestError
from pulse.store.reading.page_size import PAGE_BYTES
from pulse.store.store import Store
from tests.support.store.helpers import Sql

CHILD = UUID(int=1000)
BIG = 10
WIDE = PAGE_BYTES // 4


async def _family(connection: Sql, parents: int) -> list[UUID]:
    """A child and its parents, in another order than that of their ids."""
    ids = [UUID(int=number) for number in range(1, parents + 1)]
    jobs = [{"id": str(one), "name": "n"} for one in reversed(ids)]
    await connection.execute(
        "SELECT pulse.submit_many($1)", json.dumps([*jobs, {"id": str(CHILD), "name": "c", "after": [*map(str, ids)]}])
    )
    return ids


async def _pages(store: Store, limit: int) -> list[list[UUID]]:
    pages, after = list[list[UUID]](), None
    while True:
        rows, after = await store.dependencies.parents(CHILD.bytes, limit, after)
        pages.append([UUID(bytes=bytes(row["id"])) for row in rows])  # type: ignore[call-overload]
        if after is None:
            return pages


@pytest.mark.parametrize(("limit", "sizes"), [(1, [1] * 5), (2, [2, 2, 1]), (4, [4, 1]), (5, [5]), (6, [5])])
async def test_pages(connection: Sql, store: Store, limit: int, sizes: list[int]) -> None:
    ids = await _family(connection, 5)
    pages = await _pages(store, limit)
    assert [len(page) for page in pages] == sizes
    assert [one for page in pages for one in page] == ids


async def test_long_results(connection: Sql, store: Store) -> None:
    """A page ends before its text is too long for a frame; what does not fit is on the next one."""
    ids = await _family(connection, BIG)
    await connection.execute("UPDATE pulse.jobs SET result = to_jsonb(repeat('x', $1)) WHERE name = 'n'", WIDE)
    pages = await _pages(store, 1000)
    assert [len(page) for page in pages] == [3, 3, 3, 1]
    assert [one for page in pages for one in page] == ids


async def test_a_deleted_one_is_missing(connection: Sql, store: Store) -> None:
    first, second, third = await _family(connection, 3)
    await connection.execute("DELETE FROM pulse.jobs WHERE id = $1", second)
    assert await _pages(store, 2) == [[first, third]]


async def test_no_parents(connection: Sql, store: Store) -> None:
    await _family(connection, 0)
    assert await _pages(store, 10) == [[]]


async def test_whose(connection: Sql, store: Store) -> None:
    """Those of this job, and of no other."""
    await _family(connection, 2)
    await connection.execute("SELECT pulse.submit('c', after => $1)", [CHILD])
    assert [len(page) for page in await _pages(store, 10)] == [2]


@pytest.mark.parametrize("after", ["", "x", "0" * 31])
async def test_no_cursor(store: Store, after: str) -> None:
    with pytest.raises(BadRequestError, match=r"after is .*; only a cursor that an earlier page gave as `next`"):
        await store.dependencies.parents(CHILD.bytes, 10, after)
