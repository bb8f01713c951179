"""
Every statement that writes several rows takes them in id order, so that no two can wait for each other in a circle.

The rows lie in the table in the opposite order. A session holds the first; a statement that wants all of them must wait
for it before it has touched any other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import asyncpg
import pytest

from pulse.protocol import HandlerInfo
from pulse.store.connections.pool import Target
from pulse.store.rows import Completion, Ending, EndingKind, Fence, Firing, NewSchedule, NextOccurrences, Renewal, to_us
from pulse.store.store import Store
from tests.support.store import audit
from tests.support.store.helpers import LEASE_S, NOW, OTHER, TOPIC, WORKER, Sql, at, fence, forge, job, new_id
from tests.support.waiting import until_blocked

pytestmark = pytest.mark.usefixtures("own_database")

ROWS: Final = 6


@dataclass(frozen=True, slots=True)
class Write:
    """A statement over the rows *ids*, which have *status* in *table* when it begins."""

    name: str
    do: Callable[[Store, list[bytes]], Coroutine[Any, Any, object]]
    status: str = "RUNNING"
    table: str = "pulse.jobs"

    def __str__(self) -> str:
        return self.name


def _firing(identity: bytes) -> Firing:
    return Firing(identity, to_us(NOW), None, to_us(NOW))


UPDATES: Final = [
    Write("complete", lambda store, ids: store.complete([Completion(one, 1, WORKER, None) for one in ids])),
    Write("end", lambda store, ids: store.end([Ending(*fence(one), EndingKind.ERROR, "why") for one in ids])),
    Write("extend", lambda store, ids: store.extend([Renewal(one, 1, WORKER, None) for one in ids], LEASE_S)),
    Write("checkpoint", lambda store, ids: store.checkpoint([Renewal(one, 1, WORKER, "1") for one in ids])),
    Write("move", lambda store, ids: store.move([(fence(one), OTHER) for one in ids])),
    Write("cancel", lambda store, ids: store.cancel(ids)),
    Write("retry", lambda store, ids: store.retry(ids), status="CANCELED"),
    Write("delete", lambda store, ids: store.delete(ids), status="CANCELED"),
    Write("change", lambda store, ids: store.change(ids, priority=7), status="PENDING"),
    Write("fire", lambda store, ids: store.schedules.fire([_firing(one) for one in ids]), table="pulse.schedules"),
    Write(
        "reckon",
        lambda store, ids: store.schedules.reckon(
            [NextOccurrences(one, to_us(NOW), 0, to_us(NOW), None) for one in ids]
        ),
        table="pulse.schedules",
    ),
]
INSERTS: Final = [
    Write("submit", lambda store, ids: store.submit([job(id=one) for one in ids])),
    Write("submit again", lambda store, ids: store.submit_again([job(id=one) for one in ids])),
    Write(
        "submit and claim",
        lambda store, ids: store.submit_and_claim(
            [job(id=one) for one in ids], [TOPIC], [WORKER], [0] * len(ids), LEASE_S
        ),
    ),
]


async def _made(connection: Sql, store: Store, write: Write) -> list[bytes]:
    ids = sorted(new_id() for _ in range(ROWS))
    for identity in reversed(ids):
        if write.table == "pulse.jobs":
            await forge(connection, write.status, id=identity)
        else:
            await store.schedules.create(NewSchedule(identity, "n", "every", "{}", next_run_at=NOW, every_s=60.0))
    return [*ids[1::2], *ids[::2]]


@pytest.mark.parametrize(
    "analysed", [False, pytest.param(True, marks=pytest.mark.rest)], ids=["never analysed", "analysed"]
)
@pytest.mark.parametrize("write", UPDATES, ids=str)
async def test_updates(store: Store, connection: Sql, write: Write, analysed: bool, other: Sql) -> None:
    """While the first row is locked, a statement that waits for it holds none of the others."""
    ids = await _made(connection, store, write)
    if analysed:
        await connection.execute("ANALYZE pulse.jobs, pulse.schedules")
    hexes = sorted(one.hex() for one in ids)
    holding = connection.transaction()
    await holding.start()
    await connection.execute(f"SELECT FROM {write.table} WHERE id = $1 FOR UPDATE", hexes[0])
    writing = asyncio.create_task(write.do(store, ids))
    await until_blocked(other, by=connection.get_server_pid())
    free = await other.fetch(f"SELECT id FROM {write.table} WHERE id = ANY ($1::uuid[]) FOR UPDATE SKIP LOCKED", hexes)
    await holding.rollback()
    await writing
    assert sorted(row["id"].hex for row in free) == hexes[1:]


@pytest.mark.parametrize("write", INSERTS, ids=str)
async def test_inserts(store: Store, connection: Sql, write: Write, other: Sql) -> None:
    """While another inserts the first id, a statement that waits for it has inserted none of the others."""
    ids = sorted(new_id() for _ in range(ROWS))
    holding = connection.transaction()
    await holding.start()
    await forge(connection, id=ids[0])
    writing = asyncio.create_task(write.do(store, [*ids[1::2], *ids[::2]]))
    await until_blocked(other, by=connection.get_server_pid())
    await other.execute("SET lock_timeout = '200ms'")
    for identity in ids[1:]:
        probe = other.transaction()
        await probe.start()
        await forge(other, id=identity)
        await probe.rollback()
    await holding.rollback()
    await writing


async def test_submit_many(store: Store, connection: Sql, dsn: str, other: Sql) -> None:
    sql = """SELECT pulse.submit_many((
                 SELECT jsonb_agg(jsonb_build_object('name', 'n', 'id', id)) FROM unnest($1::uuid[]) AS id))"""
    write = Write("SQL", lambda _, ids: _fetch(dsn, sql, [one.hex() for one in ids]))
    await test_inserts(store, connection, write, other)


async def test_handlers(store: Store, connection: Sql, other: Sql) -> None:
    names = ["a", "b", "c", "d"]
    for name in reversed(names):
        await store.note_handlers({name: HandlerInfo()})
    holding = connection.transaction()
    await holding.start()
    await connection.execute("SELECT FROM pulse.handlers WHERE name = 'a' FOR UPDATE")
    writing = asyncio.create_task(store.note_handlers({name: HandlerInfo(topic="x") for name in reversed(names)}))
    await until_blocked(other, by=connection.get_server_pid())
    free = await other.fetch("SELECT name FROM pulse.handlers FOR UPDATE SKIP LOCKED")
    await holding.rollback()
    await writing
    assert sorted(row["name"] for row in free) == names[1:]


async def _fetch(dsn: str, sql: str, *args: object) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.fetch(sql, *args)
    await connection.close(timeout=5)


@pytest.mark.rest
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_storm(connection: Sql, dsn: str, seed: int) -> None:
    await audit.install(connection)
    ids = [await forge(connection, max_attempts=20, next_run_at=at(-9)) for _ in range(12)]
    stores = [Store(Target(dsn, "storm"), hot=1, queries=1) for _ in range(5)]
    try:
        await asyncio.gather(*(_rage(one, random.Random(f"{seed} {n}"), ids) for n, one in enumerate(stores)))
    finally:
        for store in stores:
            store.close()
    assert await audit.violations(connection) == []
    assert await connection.fetchval("SELECT count(*) FROM public.moves") > 100


async def _rage(store: Store, chance: random.Random, ids: list[bytes]) -> None:
    """A hundred random statements over random jobs; some tokens are current, most are not."""
    tokens: list[Fence] = [fence(identity) for identity in ids]
    for turn in range(100):
        now = at(turn * LEASE_S)
        some, few = chance.sample(tokens, min(8, len(tokens))), chance.sample(ids, 3)
        match chance.randrange(9):
            case 0 | 1 | 2:
                workers = [f"w{chance.randrange(2)}", f"w{chance.randrange(2)}"]
                claimed = await store.claim([TOPIC], workers, [chance.randrange(2) for _ in range(6)], LEASE_S, now=now)
                tokens += [fence(one.id, one.attempt, workers[one.worker]) for one in claimed]
            case 3:
                await store.complete([Completion(*one, None) for one in some], now=now)
            case 4:
                kinds = [
                    EndingKind.ERROR, EndingKind.RELEASED, EndingKind.SNOOZED, EndingKind.CRASHED,
                    EndingKind.DISCARDED,
                ]  # fmt: skip
                await store.end([Ending(*one, chance.choice(kinds), "why", 1.0) for one in some], now=now)
            case 5:
                await store.extend([Renewal(*one, None) for one in some], LEASE_S, now=now)
            case 6:
                lapsed = await store.lapsed(5, now=now)
                await store.end([Ending(*one, EndingKind.LEASE_EXPIRED, "lapsed") for one in lapsed], now=now)
            case 7:
                await store.cancel(few[:1], now=now)
            case _:
                await store.retry(few, now=now)
