"""Sequences and slots when the database has gone back, or an answer is lost: places stay, and slots are freed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final

import asyncpg
import pytest

from pulse.errors import UnavailableError
from pulse.store.limit_claims import Blocked, LimitClaims
from pulse.store.recovery.epochs import Held
from pulse.store.rows import Ending, EndingKind, Fence, GroupLevel
from pulse.store.store import Store
from tests.support.store.epoch_kit import HOST, clean, raised
from tests.support.store.helpers import LEASE_S, TOPIC, WORKER, Sql, fence, forge

G: Final = GroupLevel(TOPIC, "g", 0)
MINE: Final = f"{HOST}/boot/1/2.3/w"


@pytest.fixture(autouse=True)
async def at_first(connection: Sql, store: Store) -> Any:
    await clean(connection)
    yield
    store.trust(None)
    await clean(connection)


class _Lost:
    """Connections whose statements are carried out; their answers are lost."""

    def __init__(self, store: Store) -> None:
        self._pool = store.hot

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        async with self._pool.connection() as connection:
            yield _Deaf(connection)


class _Deaf:
    def __init__(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        self._connection = connection

    async def fetch(self, *asked: Any) -> list[asyncpg.Record]:
        await self._connection.fetch(*asked)
        raise UnavailableError("the answer is lost")


async def _waiting(connection: Sql, *ago_s: float) -> list[bytes]:
    """Jobs of the group that are due, by the database's clock."""
    now = await connection.fetchval("SELECT clock_timestamp()")
    return [await forge(connection, group_key="g", next_run_at=now - timedelta(seconds=one)) for one in ago_s]


async def _row(connection: Sql, identity: bytes) -> Any:
    columns = "status::text, next_run_at, locked_by, run_after, extract(epoch FROM run_after - now())::float8 AS wait_s"
    return await connection.fetchrow(f"SELECT {columns} FROM pulse.jobs WHERE id = $1", identity.hex())


async def _set(connection: Sql, change: str) -> None:
    await connection.execute(f"UPDATE pulse.jobs SET {change}")


async def _claim(store: Store, *, by: LimitClaims | None = None, limit: int = 9) -> tuple[list[bytes], list[Blocked]]:
    claims, blocked = await (by or store.limited).claim([(G, 0.0)], [WORKER], [0] * limit, LEASE_S)
    return [one.id for one in claims], blocked


async def _sequence(store: Store, connection: Sql) -> list[bytes]:
    await store.limits.set(TOPIC, {"sequence": "halt"})
    return await _waiting(connection, 10, 9)


@pytest.mark.parametrize("held", [True, False])
async def test_what_ran_before_an_epoch_keeps_its_place_in_a_sequence(
    store: Store, connection: Sql, held: bool
) -> None:
    """It waits in `run_after`, nothing passes it, and it is the next to start; also if no worker says it holds it."""
    first, _ = await _sequence(store, connection)
    assert await _claim(store) == ([first], [])
    await _set(connection, f"locked_by = '{MINE}' WHERE status = 'RUNNING'")
    place = (await _row(connection, first))["next_run_at"]
    await raised(store, 2, held=Held([MINE], [Fence(first, 1, MINE)] if held else [], 60.0))
    row = await _row(connection, first)
    assert (row["status"], row["next_run_at"], row["locked_by"]) == ("PENDING", place, None)
    assert row["wait_s"] > 50
    assert (await _claim(store))[0] == []
    await _set(connection, "run_after = now() WHERE run_after IS NOT NULL")
    assert (await _claim(store))[0] == [first]


async def test_what_may_run_yet_is_put_off_without_losing_its_place(store: Store, connection: Sql) -> None:
    """Each time from now on, but never nearer; a job that is put off stops its sequence."""
    first, _ = await _sequence(store, connection)
    place = (await _row(connection, first))["next_run_at"]
    await store.epochs.put_off([first], 60.0)
    row = await _row(connection, first)
    assert row["next_run_at"] == place
    assert row["wait_s"] > 50
    await store.epochs.put_off([first], 30.0)
    assert (await _row(connection, first))["run_after"] == row["run_after"]
    assert (await _claim(store))[0] == []
    await _set(connection, "run_after = now() WHERE run_after IS NOT NULL")
    assert (await _claim(store))[0] == [first]


async def test_a_job_of_a_group_that_is_due_later_is_not_put_off(store: Store, connection: Sql) -> None:
    """It is claimed after that time anyway; then its due time says when, as before."""
    [later] = await _waiting(connection, -100)
    await store.epochs.put_off([later], 60.0)
    assert (await _row(connection, later))["run_after"] is None


async def test_an_attempt_from_before_an_epoch_frees_its_slot(store: Store, connection: Sql) -> None:
    """At once, though the job itself waits: its group and its limit have room for another."""
    await store.limits.set(TOPIC, {"concurrency": 1, "group_concurrency": 1})
    first, second = await _waiting(connection, 10, 9)
    assert (await _claim(store))[0] == [first]
    assert (await _claim(store))[0] == []
    await _set(connection, f"locked_by = '{MINE}' WHERE status = 'RUNNING'")
    await raised(store, 2, held=Held([MINE], [Fence(first, 1, MINE)], 60.0))
    assert (await _claim(store))[0] == [second]


async def test_a_claim_whose_answer_is_lost_holds_its_slots(store: Store, connection: Sql) -> None:
    """It is counted like any other, until its attempts are given back: then they are claimed again, and none twice."""
    await store.limits.set(TOPIC, {"concurrency": 2, "rate": 1.0, "burst": 3})
    jobs = await _waiting(connection, 9, 8, 7, 6)
    deaf = LimitClaims(_Lost(store), lambda: None)  # type: ignore[arg-type]  # what it asks of a pool
    with pytest.raises(UnavailableError):
        await _claim(store, by=deaf)
    rows = [await _row(connection, one) for one in jobs]
    assert [row["status"] for row in rows] == ["RUNNING", "RUNNING", "PENDING", "PENDING"]
    assert await _claim(store) == ([], [Blocked(G, "full", None, True)])
    released = [Ending(*fence(one), EndingKind.RELEASED, "why") for one in jobs[:2]]
    assert len(await store.end(released)) == 2
    claimed, _ = await _claim(store)
    assert claimed == jobs[2:3]  # what is given back is due now; and each start took a token
    assert await connection.fetchval("SELECT count(*) FROM pulse.jobs WHERE status = 'RUNNING'") == 1
