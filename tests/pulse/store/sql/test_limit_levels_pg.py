"""What a claim under limits looks at: the levels that are named, the slots of their limit and group, nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from pulse.store.limit_claims import LimitClaims
from pulse.store.recovery.epochs import CLOSED, Witnessed
from pulse.store.rows import Claim, GroupLevel
from pulse.store.store import Store
from tests.support.store.helpers import LEASE_S, NOW, TERMINAL, TOPIC, WORKER, Sql, at, forge, read

HEAVY = '{"pad": "' + 5_000_000 * "x" + '"}'


class Closed:
    """What a dispatcher knows whose database has gone back."""

    witnessed: Witnessed = CLOSED

    async def claimed(self, claims: Sequence[Claim]) -> None:
        assert claims == []

    def forgets(self, pairs: object) -> None:
        assert pairs

    def completed(self, pairs: object) -> None:
        assert pairs


async def _claim(store: Store, level: GroupLevel, begin_s: float = 0.0, *, ages: bool = False) -> list[bytes]:
    claims, _ = await store.limited.claim(
        [(level, begin_s)], [WORKER], [0] * 9, LEASE_S, ageing_s={TOPIC: 10.0} if ages else None, now=NOW
    )
    return [one.id for one in claims]


@pytest.mark.parametrize(("group", "ages"), [(None, False), (None, True), ("g", False), ("g", True)])
async def test_a_level_is_a_topic_a_group_and_a_priority(
    store: Store, connection: Sql, group: str | None, ages: bool
) -> None:
    """Jobs of others, those that are not due, those before the place where it begins, and those that do not wait."""
    await store.limits.set(TOPIC, {})
    await store.limits.set("u", {})
    others = itertools.product((TOPIC, "u"), (None, "g", "h"), (0, 1))
    for topic, other, priority in others:
        if (topic, other, priority) != (TOPIC, group, 0):
            await forge(connection, topic=topic, group_key=other, priority=priority, next_run_at=at(-2))
    for status in (*TERMINAL, "RUNNING"):
        await forge(connection, status, group_key=group, next_run_at=at(-2))
    early, due = [await forge(connection, group_key=group, next_run_at=at(seconds)) for seconds in (-5, -3)]
    await forge(connection, group_key=group, next_run_at=at(1))
    level = GroupLevel(TOPIC, group, 0)
    assert await _claim(store, level, at(-4).timestamp(), ages=ages) == [due]
    assert await _claim(store, level, ages=ages) == [early]


async def test_slots_and_tokens_of_others_are_theirs(store: Store, connection: Sql) -> None:
    """What runs elsewhere takes no slot here, and a claim here changes no other limit."""
    await connection.execute("INSERT INTO pulse.topics (topic, limit_name) VALUES ('v', 'u')")
    await store.limits.set(TOPIC, {"concurrency": 1, "group_concurrency": 1, "rate": 1.0, "group_rate": 1.0})
    await store.limits.set("u", {"concurrency": 1, "group_concurrency": 7, "rate": 1.0})
    await store.limits.set("u", {"concurrency": 0}, group="g")
    for topic, group in (("u", "g"), ("v", "g"), ("other", "g"), ("u", None)):
        await forge(connection, "RUNNING", topic=topic, group_key=group, counted_by=None if topic == "other" else "u")
    await forge(connection, group_key="h")
    before = await connection.fetch("SELECT * FROM pulse.limits WHERE name = 'u' ORDER BY group_key")
    waiting = await forge(connection, group_key="g")
    assert await _claim(store, GroupLevel(TOPIC, "g", 0)) == [waiting]
    assert await connection.fetch("SELECT * FROM pulse.limits WHERE name = 'u' ORDER BY group_key") == before


async def test_only_dead_letters_of_the_group_halt_it(store: Store, connection: Sql) -> None:
    await store.limits.set(TOPIC, {"sequence": "halt"})
    await store.limits.set("u", {"sequence": "halt"})
    for topic, group in (("u", "g"), (TOPIC, "h"), (TOPIC, None)):
        await forge(connection, "DEAD_LETTERED", topic=topic, group_key=group)
        await forge(connection, "RUNNING", topic=topic, group_key=group)
        await forge(connection, topic=topic, group_key=group, next_run_at=at(-9))
    await forge(connection, "COMPLETED", group_key="g")
    head = await forge(connection, group_key="g")
    assert await _claim(store, GroupLevel(TOPIC, "g", 0)) == [head]


async def test_a_database_that_went_back_is_not_claimed_from(store: Store, connection: Sql) -> None:
    await forge(connection, group_key="g")
    closed = LimitClaims(store.hot, Closed)
    assert await closed.claim([(GroupLevel(TOPIC, "g", 0), 0.0)], [WORKER], [0], LEASE_S, now=NOW) == ([], [])


async def test_attempts_go_on_above_the_floor(store: Store, connection: Sql, own_database: str) -> None:
    """Of a job that may be older than the epoch; the skipped numbers are not charged."""
    await connection.execute(
        "INSERT INTO pulse.epochs (epoch, attempts_floor, first_id)"
        " VALUES (2, 1000, '02000000-0000-7000-8000-000000000000')"
    )
    old = await forge(connection, group_key="g")
    new = await forge(connection, group_key="g", id=bytes.fromhex("03000000000070008000000000000001"))
    assert sorted(await _claim(store, GroupLevel(TOPIC, "g", 0))) == sorted([old, new])
    rows = await read(connection, old), await read(connection, new)
    assert [(row["attempts"], row["uncharged"]) for row in rows] == [(1001, 1000), (1, 0)]


async def test_a_claim_ends_after_so_many_bytes(store: Store, connection: Sql) -> None:
    first, second, _ = [await forge(connection, group_key="g", args=HEAVY, next_run_at=at(n - 9)) for n in range(3)]
    assert await _claim(store, GroupLevel(TOPIC, "g", 0)) == [first, second]
