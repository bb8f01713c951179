"""Claims of topics that age: waiting counts as much as priority, and nobody waits for ever."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import pytest

from pulse.store.store import Store
from tests.support.store.helpers import LEASE_S, NOW, WORKER, Sql, at, forge

TOPICS: Final = ("a", "b", "c")


@dataclass(frozen=True, slots=True)
class Waiting:
    id: bytes
    topic: str
    priority: int
    due_s: float  # seconds after NOW

    def rank(self, ageing_s: Mapping[str, float]) -> float:
        age_s = ageing_s.get(self.topic)
        return self.priority + (0.0 if age_s is None else -self.due_s / age_s)


async def some(connection: Sql, chance: random.Random) -> list[Waiting]:
    found: list[Waiting] = []
    for due_s in chance.sample(range(-600, 60), 120):
        topic, priority = chance.choice("aaabc"), chance.choice((-3, 0, 0, 0, 5))
        job = await forge(connection, topic=topic, priority=priority, next_run_at=NOW + timedelta(seconds=due_s))
        found.append(Waiting(job, topic, priority, due_s))
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("known", [False, True], ids=["full", "known"])
async def test_the_highest_rank_comes_first(store: Store, connection: Sql, seed: int, known: bool) -> None:
    """For any ageing, a claim brings the highest rank first, then the first due; again and again."""
    chance = random.Random(seed)
    waiting = await some(connection, chance)
    ageing_s = {topic: chance.choice((0.5, 10.0, 100.0, 1e9)) for topic in chance.sample(TOPICS, chance.randint(1, 3))}
    levels = [(topic, priority, at(-700).timestamp()) for priority in (5, 0, -3) for topic in TOPICS]
    places = {topic: place for place, topic in enumerate(TOPICS)}
    left = [one for one in waiting if one.due_s <= 0]
    while left:
        limit = chance.choice((1, 2, 7, 30))
        claims = await store.claim(
            TOPICS, [WORKER], [0] * limit, LEASE_S, levels=levels if known else None, ageing_s=ageing_s, now=NOW
        )
        left.sort(key=lambda one: (-one.rank(ageing_s), places[one.topic], one.due_s))
        assert {claim.id for claim in claims} == {one.id for one in left[:limit]}
        del left[:limit]
    assert await store.claim(TOPICS, [WORKER], [0], LEASE_S, ageing_s=ageing_s, now=NOW) == []


@pytest.mark.parametrize(("ageing_s", "longest_s"), [({}, None), ({"a": 5.0}, 50), ({"b": 5.0}, None)])
async def test_starvation(store: Store, connection: Sql, ageing_s: Mapping[str, float], longest_s: int | None) -> None:
    """Under a stream of higher priority that takes every place: strictly never, ageing after as long as promised."""
    lowest = await forge(connection, topic="a", priority=-2, next_run_at=NOW)
    begun: dict[bytes, int] = {}
    for second in range(150):
        for _ in range(2):  # twice as many as are claimed
            await forge(connection, topic="a", priority=8, next_run_at=at(second))
        for claim in await store.claim(["a"], [WORKER], [0], LEASE_S, ageing_s=ageing_s, now=at(second)):
            begun[claim.id] = second
    # The stream ages, too, and more of it than is claimed: what came 50 s after the lowest ranks as high.
    assert begun.get(lowest) == (None if longest_s is None else 2 * longest_s)


async def test_a_strict_level_below_an_ageing_one(store: Store, connection: Sql) -> None:
    """What does not age neither rises nor is passed over by what ranks lower."""
    strict = await forge(connection, topic="b", priority=3, next_run_at=at(-1000))
    risen = await forge(connection, topic="a", priority=0, next_run_at=at(-40))
    young = await forge(connection, topic="a", priority=0, next_run_at=at(-20))
    order = [(await store.claim(TOPICS, [WORKER], [0], LEASE_S, ageing_s={"a": 10.0}, now=NOW))[0].id for _ in range(3)]
    assert order == [risen, strict, young]


async def test_equal_ranks_are_served_in_the_order_of_the_topics(store: Store, connection: Sql) -> None:
    """As among topics that do not age: first the topic, then the due time."""
    older = await forge(connection, topic="c", next_run_at=at(-20))
    younger = await forge(connection, topic="b", next_run_at=at(-10))
    order = [(await store.claim(TOPICS, [WORKER], [0], LEASE_S, ageing_s={"a": 1.0}, now=NOW))[0].id for _ in range(2)]
    assert order == [younger, older]


async def test_seats_are_dealt_by_rank(store: Store, connection: Sql) -> None:
    young = await forge(connection, topic="a", priority=3, next_run_at=at(-1))
    old = await forge(connection, topic="a", priority=0, next_run_at=at(-1000))
    claims = await store.claim(["a"], ["v", "w"], [1, 0], LEASE_S, ageing_s={"a": 10.0}, now=NOW)
    assert {claim.id: claim.worker for claim in claims} == {old: 1, young: 0}


async def test_a_gate_that_is_closed(store: Store, connection: Sql) -> None:
    for topic in TOPICS:
        await forge(connection, topic=topic, next_run_at=at(-1000))
    await store.gate.pause("a", None)
    for levels in (None, [(topic, 0, 0.0) for topic in TOPICS]):
        claims = await store.claim(
            TOPICS, [WORKER], [0], LEASE_S, levels=levels, ageing_s={"a": 1.0, "b": 2.0, "c": 2.0}, now=NOW
        )
        assert Counter(claim.topic for claim in claims).keys() <= {"b", "c"}
        assert len(claims) == 1


async def test_what_somebody_has_locked_is_passed_over(store: Store, connection: Sql) -> None:
    first, second = [await forge(connection, topic="a", next_run_at=at(-1000 + number)) for number in range(2)]
    async with connection.transaction():
        await connection.execute("SELECT FROM pulse.jobs WHERE id = $1::uuid FOR UPDATE", first.hex())
        claims = await store.claim(["a"], [WORKER], [0, 0], LEASE_S, ageing_s={"a": 1.0}, now=NOW)
    assert [claim.id for claim in claims] == [second]


async def test_what_cannot_be_claimed_keeps_nobody_back(store: Store, connection: Sql) -> None:
    """Locked and expired jobs do not use up the batch."""
    jobs = [await forge(connection, topic="a", next_run_at=at(-1000 + number)) for number in range(6)]
    other = await forge(connection, topic="a", priority=1, next_run_at=at(-5))
    await connection.execute("UPDATE pulse.jobs SET expires_at = $2 WHERE id = $1::uuid", jobs[0].hex(), at(-1))
    async with connection.transaction():
        await connection.execute("SELECT FROM pulse.jobs WHERE id = $1::uuid FOR UPDATE", jobs[1].hex())
        claims = await store.claim(["a"], [WORKER], [0, 0], LEASE_S, ageing_s={"a": 10.0}, now=NOW)
    assert {claim.id for claim in claims} == {jobs[2], jobs[3]}
    claims = await store.claim(["a"], [WORKER], [0] * 5, LEASE_S, ageing_s={"a": 10.0}, now=NOW)
    assert {claim.id for claim in claims} >= {jobs[1], jobs[4], jobs[5]}
    claims += await store.claim(["a"], [WORKER], [0] * 5, LEASE_S, ageing_s={"a": 10.0}, now=NOW)
    assert {claim.id for claim in claims} == {jobs[1], jobs[4], jobs[5], other}


@pytest.mark.parametrize("columns", [{"group_key": "g", "next_run_at": at(-30)}, {"next_run_at": at(1)}])
async def test_what_is_not_for_this_claim_keeps_nobody_back(
    store: Store, connection: Sql, columns: Mapping[str, Any]
) -> None:
    """Jobs of groups, and those that are not due, do not use up the batch."""
    for _ in range(2):
        await forge(connection, topic="b", priority=5, **columns)
    jobs = [
        await forge(connection, topic="b", priority=5, next_run_at=at(-10)),
        await forge(connection, topic="a", next_run_at=at(-10)),
    ]
    claims = await store.claim(TOPICS, [WORKER], [0, 0], LEASE_S, ageing_s={"a": 100.0}, now=NOW)
    assert {claim.id for claim in claims} == set(jobs)


async def test_a_level_begins_where_it_is_told(store: Store, connection: Sql) -> None:
    before, behind = [await forge(connection, topic="a", next_run_at=at(-ago_s)) for ago_s in (20, 10)]
    for levels, found in (([("a", 0, at(-15).timestamp())], behind), (None, before)):
        claims = await store.claim(["a"], [WORKER], [0, 0], LEASE_S, levels=levels, ageing_s={"a": 1.0}, now=NOW)
        assert [claim.id for claim in claims] == [found]


@pytest.mark.parametrize("ageing_s", [{}, {"a": 1.0}])
async def test_what_is_set_aside_is_claimed_by_name(
    store: Store, connection: Sql, ageing_s: Mapping[str, float]
) -> None:
    """A claim of some jobs takes these alone, any other none of those that are set aside."""
    first, second, aside = [await forge(connection, topic="a", next_run_at=at(-30 + number)) for number in range(3)]
    put = "INSERT INTO pulse.set_aside (job_id, sqlstate, statement, error) VALUES ($1, 'P0001', 'claim_jobs', 'no')"
    await connection.execute(put, aside.hex())
    for only, found in (([second], second), (None, first), ([aside], aside)):
        claims = await store.claim(["a"], [WORKER], [0] * 3, LEASE_S, ageing_s=ageing_s, only=only, now=NOW)
        assert [claim.id for claim in claims] == [found]
