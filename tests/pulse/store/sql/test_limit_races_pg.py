"""
Claims under limits on two connections, in every order.

A claim has its snapshot and waits; meanwhile something else commits; then it goes on. And several claimers at once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeAlias

import asyncpg
import pytest

from pulse.store.limit_claims import Blocked, LimitClaims
from pulse.store.operators.limits import LimitStore
from pulse.store.rows import Claim, Completion, Ending, EndingKind, GroupLevel
from pulse.store.store import Store
from tests.support.slow_gate import Held, held
from tests.support.store.helpers import LEASE_S, TOPIC, WORKER, Sql, at, fence, forge, holding, job
from tests.support.waiting import until_blocked

pytestmark = pytest.mark.usefixtures("own_database")

Meanwhile: TypeAlias = Callable[[Held, list[bytes]], Awaitable[object]]
G: Final = GroupLevel(TOPIC, "g", 0)
PLAIN: Final = GroupLevel(TOPIC, None, 0)


async def _claim(claims: LimitClaims, level: GroupLevel = G, limit: int = 9) -> tuple[list[Claim], list[Blocked]]:
    return await claims.claim([(level, 0.0)], [WORKER], [0] * limit, LEASE_S)


async def _jobs(connection: Sql, count: int = 3, group: str | None = "g") -> list[bytes]:
    return [await forge(connection, group_key=group, next_run_at=at(number - 3e8)) for number in range(count)]


async def _claim_and_end(meanwhile: Held, ids: list[bytes]) -> None:
    """Another server claims the first job, and it completes."""
    [one], _ = await _claim(LimitClaims(meanwhile, lambda: None), limit=1)
    assert one.id == ids[0]
    await meanwhile.session.execute(
        "UPDATE pulse.jobs SET status = 'COMPLETED', completed_at = now(), locked_by = NULL, lease_until = NULL"
        " WHERE status = 'RUNNING'"
    )


async def _claim_one(meanwhile: Held, ids: list[bytes]) -> None:
    await _claim(LimitClaims(meanwhile, lambda: None), limit=1)


async def _lower(meanwhile: Held, ids: list[bytes]) -> None:
    await LimitStore(meanwhile).set(TOPIC, {"group_concurrency": 0})


async def _unset(meanwhile: Held, ids: list[bytes]) -> None:
    await LimitStore(meanwhile).unset(TOPIC)


@pytest.mark.parametrize("meanwhile", [_claim_and_end, _claim_one, _lower, _unset])
@pytest.mark.parametrize("policy", [{"group_concurrency": 1}, {"sequence": "halt"}, {"group_rate": 1.0}, {"rate": 1.0}])
async def test_what_a_claim_cannot_have_seen_makes_it_busy(
    store: Store, connection: Sql, own_database: str, policy: dict[str, object], meanwhile: Meanwhile
) -> None:
    """Another claim, or a change of the limit, has committed since its snapshot: it takes nothing."""
    await store.limits.set(TOPIC, policy)
    ids = await _jobs(connection)
    if meanwhile is _lower and "sequence" in policy:
        await store.limits.set(TOPIC, {"group_concurrency": 1})
    async with held(own_database, connection, _claim(store.limited)) as other:
        await meanwhile(other, ids)
    assert other.results == [([], [Blocked(G, "busy", None, of_limit=True)])]


async def test_one_claims_at_a_time(store: Store, connection: Sql, own_database: str) -> None:
    """The row of the limit is locked by a claim that has not committed yet: nobody waits for it."""
    await store.limits.set(TOPIC, {"concurrency": 2})
    await _jobs(connection, group=None)
    lock = "UPDATE pulse.limits SET claims = claims + 1 WHERE group_key = ''"
    async with holding(own_database, lock):
        assert await _claim(store.limited, PLAIN) == ([], [Blocked(PLAIN, "busy", None, of_limit=True)])
    assert len((await _claim(store.limited, PLAIN))[0]) == 2


async def test_limits_do_not_keep_each_other_busy(store: Store, connection: Sql) -> None:
    """A claim that has not committed yet locks the row of its own limit alone."""
    for topic in (TOPIC, "u"):
        await store.limits.set(topic, {"concurrency": 1})
        await forge(connection, topic=topic, next_run_at=at(-3e8))
    async with connection.transaction():
        first, _ = await _claim(LimitClaims(Held(connection), lambda: None), PLAIN)
        second, _ = await _claim(store.limited, GroupLevel("u", None, 0))
    assert [one.topic for one in (*first, *second)] == [TOPIC, "u"]


@pytest.mark.parametrize("kind", [EndingKind.ERROR, EndingKind.RELEASED, EndingKind.SNOOZED, EndingKind.DISCARDED])
async def test_an_end_meanwhile_is_not_seen_yet(
    store: Store, connection: Sql, own_database: str, kind: EndingKind
) -> None:
    """The slot was taken in its snapshot, so the claim leaves it; the retry keeps its place before what waits."""
    await store.limits.set(TOPIC, {"sequence": "continue"})
    ids = await _jobs(connection)
    await _claim(store.limited)
    async with held(own_database, connection, _claim(store.limited)) as other:
        await store.end([Ending(*fence(ids[0]), kind, None if kind is EndingKind.SNOOZED else "why", 0.0)])
    assert other.results == [([], [Blocked(G, "full", None, of_limit=False)])]


@pytest.mark.parametrize("change", [
    "UPDATE pulse.jobs SET priority = -5 WHERE id = $1",
    "UPDATE pulse.jobs SET next_run_at = now() WHERE id = $1",
    "UPDATE pulse.jobs SET run_after = now() + interval '1 hour' WHERE id = $1",
    "UPDATE pulse.jobs SET status = 'CANCELED', completed_at = now() WHERE id = $1",
])  # fmt: skip
async def test_a_head_that_moves_meanwhile_is_not_taken(
    store: Store, connection: Sql, own_database: str, change: str
) -> None:
    await store.limits.set(TOPIC, {"sequence": "continue"})
    ids = await _jobs(connection)
    async with held(own_database, connection, _claim(store.limited)) as other:
        await other.session.execute(change, ids[0].hex())
    assert other.results == [([], [])]


async def test_a_better_job_that_comes_meanwhile_is_next(store: Store, connection: Sql, own_database: str) -> None:
    """It is not in the snapshot; the one that started before it keeps it waiting."""
    await store.limits.set(TOPIC, {"sequence": "continue"})
    ids = await _jobs(connection)
    async with held(own_database, connection, _claim(store.limited)) as other:
        better = await forge(connection, group_key="g", priority=5, next_run_at=at(-4e8))
    [(claims, _)] = other.results
    assert [one.id for one in claims] == ids[:1]
    await store.complete([Completion(ids[0], 1, WORKER, None)])
    assert [one.id for one in (await _claim(store.limited))[0]] == [better]


@pytest.mark.parametrize("how", ["claim", "submit and claim", "group"])
async def test_what_a_claim_takes_while_a_limit_appears_is_counted(
    store: Store, connection: Sql, own_database: str, how: str
) -> None:
    """Who adds a limit waits for the claims that do not know it, and counts what they took."""
    group = "g" if how == "group" else None
    if how != "submit and claim":
        await _jobs(connection, 1, group)
    claims: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "claim": lambda: store.claim([TOPIC], [WORKER], [0], LEASE_S),
        "submit and claim": lambda: store.submit_and_claim([job()], [TOPIC], [WORKER], [0], LEASE_S),
        "group": lambda: _claim(store.limited),
    }
    async with held(own_database, connection, claims[how]()) as other:
        adding = asyncio.ensure_future(store.limits.set(TOPIC, {"concurrency": 1}))
        pids = "SELECT pid FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"
        [claimer] = await connection.fetch(pids, other.session.get_server_pid())
        await until_blocked(connection, by=claimer["pid"])
    await adding
    assert [tuple(row) for row in await connection.fetch("SELECT status::text, counted_by FROM pulse.jobs")] == [
        ("RUNNING", TOPIC)
    ]


@pytest.mark.parametrize("before", ["none", "other"])
async def test_what_a_claim_takes_while_its_topic_goes_elsewhere_is_counted_there(
    store: Store, connection: Sql, own_database: str, before: str
) -> None:
    """Who sends a topic to another limit waits for the claims that go by the one before, and counts what they took."""
    await store.limits.set("api", {"concurrency": 1})
    await _jobs(connection, 1, None)
    if before == "other":
        await store.limits.set(TOPIC, {"concurrency": 5})
    claims: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "none": lambda: store.claim([TOPIC], [WORKER], [0], LEASE_S),
        "other": lambda: _claim(store.limited, PLAIN),
    }
    async with held(own_database, connection, claims[before]()) as other:
        moving = asyncio.ensure_future(store.topics.set(TOPIC, {"limit": "api"}))
        pids = "SELECT pid FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"
        [claimer] = await connection.fetch(pids, other.session.get_server_pid())
        await until_blocked(connection, by=claimer["pid"])
    await moving
    assert [tuple(row) for row in await connection.fetch("SELECT status::text, counted_by FROM pulse.jobs")] == [
        ("RUNNING", "api")
    ]
    await store.topics.set(TOPIC, {"limit": None})
    assert await connection.fetchval("SELECT counted_by FROM pulse.jobs") == (TOPIC if before == "other" else None)


async def test_a_long_look_at_the_limits_does_not_keep_one_away(
    store: Store, connection: Sql, own_database: str
) -> None:
    """Such as a dump's: after a second the limit is set all the same."""
    async with holding(own_database, "SELECT FROM pulse.limits"):
        await store.limits.set(TOPIC, {"concurrency": 1})
    assert await store.limited.topics() == {TOPIC: TOPIC}


async def test_slots_are_counted_in_the_order_of_ids(store: Store, connection: Sql, own_database: str) -> None:
    """As complete and end lock them: a row that is held stops the count before it has touched any behind it."""
    first, second = sorted([await forge(connection, "RUNNING") for _ in range(2)])
    async with holding(own_database, "SELECT FROM pulse.jobs WHERE id = $1 FOR UPDATE", first.hex()):
        adding = asyncio.ensure_future(store.limits.set(TOPIC, {"concurrency": 1}))
        holder = "SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()"
        await until_blocked(connection, by=await connection.fetchval(holder))
        async with connection.transaction():
            assert await connection.fetchval("SELECT id FROM pulse.jobs WHERE id = $1 FOR UPDATE NOWAIT", second.hex())
    await adding
    assert {row[0] for row in await connection.fetch("SELECT counted_by FROM pulse.jobs")} == {TOPIC}


async def test_a_limit_gives_up_on_a_job_that_is_locked(store: Store, connection: Sql, own_database: str) -> None:
    """A handler's transaction may hold its job for long: the limit is not set then, and claims go on."""
    await forge(connection, "RUNNING")
    async with holding(own_database, "SELECT FROM pulse.jobs FOR UPDATE"):
        with pytest.raises(asyncpg.PostgresError, match="lock timeout"):
            await connection.execute("""SELECT pulse.set_limit('t', NULL, '{"concurrency": 1}')""")
    assert await store.limited.topics() == {}


@pytest.mark.parametrize("seed", range(2))
async def test_claimers_at_once_never_exceed_a_limit(store: Store, connection: Sql, seed: int) -> None:
    """Four that claim and end as they like, over eight groups: after each claim no limit is exceeded."""
    chance = random.Random(seed)
    await store.limits.set(TOPIC, {"concurrency": 7, "group_concurrency": 2})
    groups = [f"g{number}" for number in range(8)]
    await connection.execute(
        "INSERT INTO pulse.jobs (id, name, topic, group_key, max_attempts, next_run_at)"
        " SELECT gen_random_uuid(), 'n', $1, 'g' || n % 8, 9, now() - interval '1 hour' + n * interval '1 ms'"
        " FROM generate_series(1, 2000) AS n",
        TOPIC,
    )
    most: list[tuple[int, int]] = []

    async def claimer() -> None:
        mine: list[Claim] = []
        for _ in range(40):
            chance.shuffle(groups)
            levels = [(GroupLevel(TOPIC, group, 0), 0.0) for group in groups]
            mine += (await store.limited.claim(levels, [WORKER], [0] * chance.randint(1, 6), LEASE_S))[0]
            async with store.query.connection() as own:
                most.extend(map(tuple, await own.fetch(
                    "SELECT coalesce(sum(r.jobs), 0)::int, coalesce(max(r.jobs), 0)::int FROM (SELECT count(*) AS jobs"
                    " FROM pulse.jobs WHERE status = 'RUNNING' GROUP BY group_key) AS r"
                )))  # fmt: skip
            chance.shuffle(mine)
            count = chance.randint(0, len(mine))
            done, mine = mine[:count], mine[count:]
            kind = chance.choice([None, EndingKind.ERROR, EndingKind.RELEASED, EndingKind.SNOOZED])
            if kind is None:
                await store.complete([Completion(one.id, one.attempt, WORKER, None) for one in done])
            else:
                error = None if kind is EndingKind.SNOOZED else "why"
                await store.end([Ending(one.id, one.attempt, WORKER, kind, error, 0.0) for one in done])

    await asyncio.gather(*(claimer() for _ in range(4)))
    assert max(total for total, _ in most) == 7
    assert max(group for _, group in most) == 2
