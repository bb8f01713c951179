"""Which limits are full, and what waits in the groups of a topic."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg
import pytest

from pulse.store.connections.pool import COUNT_SETTINGS, Pool, Target, connect
from pulse.store.reading import limits, listing
from pulse.store.reading.limits import GROUP_ROWS, LimitReader, LimitUsage, TopicGroup
from pulse.store.reading.listing import JobFilter
from pulse.store.rows import GroupLevel
from pulse.store.store import Store
from tests.pulse.store.reading.test_why_pg import nodes, plan_of
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import LEASE_S, NOW, TOPIC, WORKER, Sql, at, forge
from tests.support.waiting import DEADLINE_S

HOT: Final = 3000
GROUPS: Final = 4000


async def groups(store: Store, most: int = 9, **more: Any) -> list[TopicGroup]:
    return (await store.limit_reads.groups(TOPIC, most, now=NOW, **more))[0]


async def test_no_limits(store: Store) -> None:
    assert await store.limit_reads.usage(9) == ([], 0)


async def test_the_slots_of_each_limit(store: Store, connection: Sql) -> None:
    """The full ones first; a limit that is lowered is full with more than it has, one of 0 with none."""
    await connection.execute("INSERT INTO pulse.topics (topic, limit_name) VALUES ('b', 'api'), ('a', 'api')")
    await connection.execute("INSERT INTO pulse.topics (topic, limit_name) VALUES ('left', 'api')")
    policies: dict[str, dict[str, object]] = {
        "api": {"concurrency": 2}, "left": {"concurrency": 0}, "rated": {"rate": 1.0, "group_concurrency": 1},
        "large": {"concurrency": 9},
    }  # fmt: skip
    for name, policy in policies.items():
        await store.limits.set(name, policy)
    await store.limits.set("large", {"concurrency": 1}, group="g")
    for topic, limit, number in (("a", "api", 3), ("large", "large", 4), ("rated", "rated", 1), ("a", None, 1)):
        for _ in range(number):
            await forge(connection, "RUNNING", topic=topic, counted_by=limit)
    await forge(connection, "COMPLETED", topic="a", counted_by="api")
    found, omitted = await store.limit_reads.usage(9)
    assert found == [
        LimitUsage("api", 2, 3, None, ["a", "api", "b", "left"]),
        LimitUsage("left", 0, 0, None, []),
        LimitUsage("large", 9, 4, None, ["large"]),
        LimitUsage("rated", None, 1, None, ["rated"]),
    ]
    assert (omitted, [one.is_full for one in found]) == (0, [True, True, False, False])
    assert await store.limit_reads.usage(3) == (found[:3], 1)


async def test_the_next_token_of_a_limit(store: Store, connection: Sql) -> None:
    await store.limits.set(TOPIC, {"rate": 2.0, "burst": 1})
    await forge(connection)
    await store.limited.claim([(GroupLevel(TOPIC, None, 0), 0.0)], [WORKER], [0], LEASE_S, now=NOW)
    for seconds, retry_s in ((0.25, 0.25), (-9, 0.5), (0.5, None)):
        [one], _ = await store.limit_reads.usage(9, now=at(seconds))
        assert (one.retry_s, one.is_full) == (retry_s, False)


async def test_the_groups_of_a_topic(store: Store, connection: Sql) -> None:
    """Those with the most due jobs first, then those with the most others, then the longest wait."""
    waiting: dict[str, list[dict[str, Any]]] = {
        "hot": [{"next_run_at": at(-5)}, {"next_run_at": at(-9), "priority": 1}, {"run_after": at(3), "attempts": 1}],
        "old": [{"next_run_at": at(-60)}], "new": [{}], "later": [{"next_run_at": at(1)}] * 4,
    }  # fmt: skip
    for group, rows in waiting.items():
        for columns in rows:
            await forge(
                connection, group_key=group, **{"started_at": NOW, **columns} if "run_after" in columns else columns
            )
    for columns in ({"status": "RUNNING"}, {"status": "DEAD_LETTERED"}, {"status": "COMPLETED"}, {"topic": "u"}):
        await forge(connection, group_key="other" if columns.get("topic") is None else "u", **columns)
    await forge(connection)
    await forge(connection, "RUNNING", group_key="hot")
    assert await groups(store) == [
        TopicGroup("hot", 2, 1, 9.0, 1, None, None),
        TopicGroup("old", 1, 0, 60.0, 0, None, None),
        TopicGroup("new", 1, 0, 0.0, 0, None, None),
        TopicGroup("later", 0, 4, None, 0, None, None),
    ]
    assert not any(one.is_full for one in await groups(store))
    assert [one.group_key for one in await groups(store, 2)] == ["hot", "old"]


async def test_a_topic_without_groups(store: Store) -> None:
    assert await store.limit_reads.groups(TOPIC, 9) == ([], True)


async def test_what_a_limit_gives_to_its_groups(store: Store, connection: Sql) -> None:
    await connection.execute("INSERT INTO pulse.topics (topic, limit_name) VALUES ($1, 'api')", TOPIC)
    for group in ("a", "b"):
        await forge(connection, group_key=group)
    await forge(connection, "RUNNING", group_key="a")
    await store.limits.set(TOPIC, {"group_concurrency": 9})
    await store.limits.set("api", {"group_concurrency": 1})
    await store.limits.set("api", {"concurrency": 3}, group="b")
    assert [(one.concurrency, one.is_full) for one in await groups(store)] == [(1, True), (3, False)]


@pytest.mark.parametrize("policy", ["halt", "continue"])
async def test_a_sequence_that_is_halted(store: Store, connection: Sql, policy: str) -> None:
    await store.limits.set(TOPIC, {"sequence": policy})
    await forge(connection, group_key="a")
    await forge(connection, group_key="b")
    dead = await forge(connection, "DEAD_LETTERED", group_key="a")
    found = [(one.concurrency, one.halted_by) for one in await groups(store)]
    assert found == [(1, dead if policy == "halt" else None), (1, None)]


@pytest.fixture(scope="module")
def crowded_database(server: Postgres) -> Any:
    with server.database() as made:
        yield made


async def test_among_many_groups(crowded_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded, and it says so where there may be more; the plan has no other scans than of the index."""
    monkeypatch.setattr(limits, "DEADLINE_S", 30.0)  # how long it takes is not judged here
    plain = await asyncpg.connect(crowded_database)
    insert = (
        "INSERT INTO pulse.jobs (id, topic, name, group_key, max_attempts, next_run_at)"
        " SELECT gen_random_uuid(), $1, 'n', {}, 5, $2 FROM generate_series(1, $3::int) AS n"
    )
    await plain.execute(insert.format("'zero'"), TOPIC, NOW, HOT)
    await plain.execute(insert.format("'a' || n"), TOPIC, NOW, GROUPS)
    pool = Pool(Target(crowded_database, "groups"), size=1, settings={**COUNT_SETTINGS, "statement_timeout": "0"})
    reader = LimitReader(pool)
    found, is_all = await reader.groups(TOPIC, 3, looked_at=GROUPS + 1, now=NOW)
    assert ([one.group_key for one in found], is_all) == (["zero", "a1", "a10"], True)
    assert [one.ready for one in found] == [GROUP_ROWS, 1, 1]
    found, is_all = await reader.groups(TOPIC, 3, looked_at=GROUPS, now=NOW)
    assert (len(found), is_all) == (3, False)
    pool.close()
    query = await connect(Target(crowded_database, "groups"), COUNT_SETTINGS)
    for statistics in ("never", "fresh"):
        if statistics == "fresh":
            await plain.execute("ANALYZE")
        arguments = f"'{TOPIC}', 500, 100, 9, 1000, '{NOW.isoformat()}'"
        plan = await plan_of(query, "force_generic_plan", statistics, "topic_groups", arguments)
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 10_000
        assert {one["Node Type"] for one in nodes(plan) if one.get("Relation Name") == "jobs"} <= {
            "Index Scan", "Index Only Scan",
        }  # fmt: skip
    query.terminate()
    await plain.close(timeout=5)


@pytest.mark.parametrize(("after_s", "is_due"), [(-1, True), (60, False)])
async def test_what_a_sequence_puts_off_is_not_due(
    store: Store, connection: Sql, monkeypatch: pytest.MonkeyPatch, after_s: int, *, is_due: bool
) -> None:
    """Its next_run_at is its place: lists and counts go by the time until which it is put off, too."""
    now = datetime.now(UTC)
    identity = await forge(
        connection, "RETRYING", group_key="g", next_run_at=now - timedelta(hours=1), submitted_at=now,
        run_after=now + timedelta(seconds=after_s),
    )  # fmt: skip
    for small in (listing.SMALL, 0):
        monkeypatch.setattr(listing, "SMALL", small)
        for statuses in (None, ["RETRYING"]):
            wanted = JobFilter(statuses=statuses, due=is_due)
            page = await store.listing.page(wanted, 9, budget_s=DEADLINE_S)
            assert [row["id"] for row in page.jobs] == [identity]
            others = await store.listing.page(dataclasses.replace(wanted, due=not is_due), 9, budget_s=DEADLINE_S)
            assert others.jobs == []
    counts, _ = await store.filter_counts.read(JobFilter())
    assert (counts["ready"], counts["retrying"]) == (is_due, not is_due)
    for depths in (await store.depths.count(9), await store.depths.sample(9, [TOPIC])):
        assert depths is not None
        [one] = depths.topics
        assert (one.ready, one.retrying) == (is_due, not is_due)
        assert one.oldest_s == (pytest.approx(-after_s, abs=5) if is_due else None)
