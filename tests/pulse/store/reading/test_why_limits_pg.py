"""What the database says of the limits, groups and sequences that keep a job waiting, and what that costs."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import asyncpg
import pytest

from pulse.store.connections.pool import Target, connect
from pulse.store.operators.limits import LimitStore
from pulse.store.reading.jobs import BEFORE_MAX
from pulse.store.reading.limits import NO_LIMIT, GroupTurn, LimitFacts, SlotUsage
from pulse.store.rows import Ending, EndingKind, GroupLevel
from pulse.store.store import Store
from tests.pulse.store.reading.test_why_pg import PLANS, nodes, plan_of_why, standing
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import LEASE_S, NOW, TERMINAL, TOPIC, WORKER, Sql, at, fence, forge

MANY: Final = 20_000


async def limits_of(store: Store, identity: bytes, seconds: float = 0.0) -> LimitFacts:
    return (await standing(store, identity, seconds)).limits


async def claim(store: Store, group: str | None = None, *, seconds: float = 0.0) -> list[bytes]:
    level = (GroupLevel(TOPIC, group, 0), 0.0)
    claims, _ = await store.limited.claim([level], [WORKER], [0] * 9, LEASE_S, now=at(seconds))
    return [one.id for one in claims]


async def test_no_limit(store: Store, connection: Sql) -> None:
    """Neither a limit of another name, nor one that its topic leaves for another, nor one of other groups."""
    await connection.execute("INSERT INTO pulse.topics (topic, limit_name) VALUES ($1, 'none')", TOPIC)
    await store.limits.set(TOPIC, {"concurrency": 0})
    found = await standing(store, await forge(connection, group_key="g"))
    assert (found.limits, found.group_key) == (NO_LIMIT, "g")


async def test_the_slots_of_its_limit(store: Store, connection: Sql) -> None:
    """Those of other topics count, too; the first five that were taken are named, the oldest first."""
    await connection.execute("INSERT INTO pulse.topics (topic, limit_name) VALUES ($1, 'api'), ('u', 'api')", TOPIC)
    await store.limits.set("api", {"concurrency": 9})
    identity = await forge(connection, group_key="g")
    assert await limits_of(store, identity) == LimitFacts("api", SlotUsage(9, 0))
    slots = [
        await forge(connection, "RUNNING", topic="u", counted_by="api", started_at=at(number)) for number in range(6)
    ]
    await store.limits.set("api", {"concurrency": 3})
    await forge(connection, "RUNNING", counted_by="else")
    await forge(connection, "COMPLETED", counted_by="api")
    assert (await limits_of(store, identity)).total == SlotUsage(3, 6, tuple(slots[:5]))
    await connection.execute("UPDATE pulse.limits SET oldest_at = $1", at(4))
    assert (await limits_of(store, identity)).total == SlotUsage(3, 2, tuple(slots[4:]))


async def test_the_slots_of_its_group(store: Store, connection: Sql) -> None:
    """As many as the limit gives to each group, or what differs for it; what runs in its topic and group counts."""
    await store.limits.set(TOPIC, {"group_concurrency": 2})
    await store.limits.set(TOPIC, {"concurrency": 7}, group="big")
    small, big, alone = [await forge(connection, group_key=group) for group in ("small", "big", None)]
    slots = [
        await forge(connection, "RUNNING", group_key="small", next_run_at=at(number), priority=priority)
        for number, priority in ((0, 1), (-9, 0), (-8, 0))
    ]
    await forge(connection, "RUNNING", group_key="small", topic="u")
    await forge(connection, "DEAD_LETTERED", group_key="small", last_error="e")
    assert (await limits_of(store, small)).group == SlotUsage(2, 3, tuple(slots))
    assert (await limits_of(store, big)).group == SlotUsage(7, 0)
    assert (await limits_of(store, alone)).group == SlotUsage()


async def test_the_next_token(store: Store, connection: Sql) -> None:
    await store.limits.set(TOPIC, {"rate": 2.0, "burst": 1, "group_rate": 0.5})
    await store.limits.set(TOPIC, {"rate": 10.0, "burst": 1}, group="fast")
    await forge(connection, group_key="g")
    identity = await forge(connection, group_key="g")
    assert (await limits_of(store, identity)).group.retry_s is None
    await claim(store, "g")
    found = await limits_of(store, identity, 0.25)
    assert (found.total.retry_s, found.group.retry_s) == (0.25, 1.75)
    assert (await limits_of(store, identity, -9)).total.retry_s == 0.5  # the clock stepped back
    assert (await limits_of(store, identity, 2)).group.retry_s is None
    await forge(connection, group_key="fast")
    fast = await forge(connection, group_key="fast")
    await claim(store, "fast", seconds=5)
    assert (await limits_of(store, fast, 5)).group.retry_s == pytest.approx(0.1)
    await store.limits.set(TOPIC, {"rate": None, "burst": None})
    assert (await limits_of(store, identity, 5)).total.retry_s is None


async def test_its_place_in_a_sequence(store: Store, connection: Sql) -> None:
    """The head by priority and position goes first, also while it is put off; a job that is not due stalls nobody."""
    await store.limits.set(TOPIC, {"sequence": "continue"})
    await forge(connection, group_key="g", next_run_at=at(60), priority=9)
    second = await forge(connection, group_key="g", next_run_at=at(-1))
    first = await forge(connection, group_key="g", next_run_at=at(-2))
    later = await forge(connection, group_key="g", next_run_at=at(30), priority=9)
    assert await limits_of(store, first) == LimitFacts(TOPIC, SlotUsage(), SlotUsage(1, 0), GroupTurn("continue"))
    assert (await limits_of(store, second)).sequence == GroupTurn("continue", first)
    assert (await limits_of(store, later)).sequence == GroupTurn("continue")
    assert await claim(store, "g") == [first]
    assert (await limits_of(store, second)).group == SlotUsage(1, 1, (first,))
    await store.end([Ending(*fence(first), EndingKind.ERROR, "why", 20.0)], now=NOW)
    assert (await limits_of(store, second)).sequence == GroupTurn("continue", first, at(20).timestamp())
    put_off = await standing(store, first)
    assert (put_off.next_run_at, put_off.is_due, put_off.limits.sequence) == (
        at(20).timestamp(), False, GroupTurn("continue"),
    )  # fmt: skip


@pytest.mark.parametrize("policy", ["halt", "continue"])
async def test_what_halts_its_sequence(store: Store, connection: Sql, policy: str) -> None:
    await store.limits.set(TOPIC, {"sequence": policy})
    identity = await forge(connection, group_key="g")
    await forge(connection, "DEAD_LETTERED", group_key="h", last_error="e")
    await forge(connection, "DEAD_LETTERED", group_key="g", topic="u", last_error="e")
    assert (await limits_of(store, identity)).sequence == GroupTurn(policy)
    dead = await forge(connection, "DEAD_LETTERED", group_key="g", last_error="e")
    assert (await limits_of(store, identity)).sequence == GroupTurn(
        policy, halted_by=dead if policy == "halt" else None
    )


@pytest.mark.parametrize("status", ["RUNNING", *TERMINAL])
async def test_only_of_jobs_that_wait(store: Store, connection: Sql, status: str) -> None:
    await store.limits.set(TOPIC, {"concurrency": 1})
    identity = await forge(connection, status, last_error="e", run_after=at(60))
    found = await standing(store, identity)
    assert (found.limits, found.next_run_at) == (NO_LIMIT, NOW.timestamp())


async def test_who_comes_first_in_its_group(store: Store, connection: Sql) -> None:
    """Of its group, waiting and due: of a higher priority, or due earlier at the same one, then by id."""
    mine: dict[str, Any] = {"group_key": "g"}
    ids = sorted([await forge(connection, **mine) for _ in range(3)])
    first: list[dict[str, Any]] = [
        {"next_run_at": at(-1)},
        {"priority": 1, "next_run_at": at(5)},
        {"priority": 100, "next_run_at": at(-3), "status": "RETRYING"},
    ]
    for columns in first:
        await forge(connection, **mine, **columns)
    later: list[dict[str, Any]] = [
        {"next_run_at": at(1)}, {"priority": -1, "next_run_at": at(-9)}, {"priority": 2, "next_run_at": at(11)},
        {"topic": "other", "next_run_at": at(-9)}, {"group_key": "h", "next_run_at": at(-9)},
        {"group_key": None, "next_run_at": at(-9)}, {"status": "RUNNING", "next_run_at": at(-9)},
    ]  # fmt: skip
    for columns in later:
        await forge(connection, **{**mine, **columns})
    found = [(await standing(store, identity, 10)).before for identity in ids]
    assert found == [len(first), len(first) + 1, len(first) + 2]
    future = await forge(connection, **mine, next_run_at=at(60))
    assert (await standing(store, future, 10)).before == 0


@pytest.fixture(scope="module")
def crowded_database(server: Postgres) -> Any:
    with server.database() as made:
        yield made


@pytest.mark.rest
async def test_in_a_crowded_group(crowded_database: str) -> None:
    """Bounded, whatever waits, runs and has died in the group."""
    plain = await asyncpg.connect(crowded_database)
    columns = "id, topic, name, group_key, counted_by, max_attempts, next_run_at, status, attempts, started_at"
    await plain.execute(
        f"INSERT INTO pulse.jobs ({columns}, completed_at, last_error, locked_by, lease_until)"
        " SELECT gen_random_uuid(), $1, 'n', 'g', CASE s WHEN 'RUNNING' THEN $1 END, 5,"
        " $2::timestamptz + n * interval '1 us',"
        " s::pulse.job_status, CASE s WHEN 'PENDING' THEN 0 ELSE 1 END, $2,"
        " CASE s WHEN 'DEAD_LETTERED' THEN $2 END, CASE s WHEN 'DEAD_LETTERED' THEN 'e' END,"
        " CASE s WHEN 'RUNNING' THEN 'w' END, CASE s WHEN 'RUNNING' THEN $2 END"
        " FROM generate_series(1, $3::int) AS n, unnest(ARRAY['PENDING', 'RUNNING', 'DEAD_LETTERED']) AS s",
        TOPIC,
        NOW,
        MANY,
    )
    store = Store(Target(crowded_database, "why"))
    await LimitStore(store.query).set(TOPIC, {"concurrency": 3, "group_concurrency": 1, "sequence": "halt"})
    last = await forge(plain, group_key="g", next_run_at=at(5))
    found = await standing(store, last, 10)
    running = BEFORE_MAX + 3, BEFORE_MAX + 1
    assert (found.before, found.limits.total.running, found.limits.group.running) == (BEFORE_MAX, *running)
    store.close()
    query = await connect(Target(crowded_database, "why"), {})
    for statistics in ("never", "fresh"):
        if statistics == "fresh":
            await plain.execute("ANALYZE")
        for mode in PLANS:
            plan = await plan_of_why(query, mode, f"{statistics}_{mode}", last)
            buffers = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
            assert buffers < 8 * BEFORE_MAX, (statistics, mode, buffers)
            scans = {"Seq Scan", "Bitmap Heap Scan"}
            assert not [one for one in nodes(plan) if one.get("Relation Name") == "jobs" and one["Node Type"] in scans]
    query.terminate()
    await asyncio.wait_for(plain.close(), 5)
