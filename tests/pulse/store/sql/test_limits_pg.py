"""The claim under limits: slots, tokens, turns of groups and sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from pulse.store.limit_claims import Blocked, GroupHead
from pulse.store.rows import Claim, Completion, Ending, EndingKind, GroupLevel, Level
from pulse.store.store import Store
from tests.support.store.helpers import LEASE_S, NOW, TOPIC, WAITING, WORKER, Sql, at, fence, forge, job, read

START: Final = GroupLevel("", "", 0)


def level(group: str | None = None, priority: int = 0, topic: str = TOPIC) -> GroupLevel:
    return GroupLevel(topic, group, priority)


async def claim(
    store: Store, *levels: GroupLevel, limit: int = 10, seconds: float = 0.0, most: int | None = None,
    ageing_s: dict[str, float] | None = None, only: Sequence[bytes] | None = None,
) -> tuple[list[Claim], list[Blocked]]:  # fmt: skip
    named = [(one, 0.0) for one in levels or (level(),)]
    return await store.limited.claim(
        named, [WORKER], [0] * limit, LEASE_S, most=most, ageing_s=ageing_s, only=only, now=at(seconds)
    )


async def claimed(store: Store, *levels: GroupLevel, limit: int = 10, seconds: float = 0.0) -> list[bytes]:
    return [one.id for one in (await claim(store, *levels, limit=limit, seconds=seconds))[0]]


async def end(store: Store, identity: bytes, kind: EndingKind | None = None, *, attempt: int = 1, seconds: float = 0.0,
              delay_s: float | None = None) -> None:  # fmt: skip
    if kind is None:
        await store.complete([Completion(identity, attempt, WORKER, None)], now=at(seconds))
    else:
        error = None if kind is EndingKind.SNOOZED else "why"
        await store.end([Ending(*fence(identity, attempt), kind, error, delay_s)], now=at(seconds))


@pytest.mark.parametrize("status", WAITING)
@pytest.mark.parametrize("group", [None, "g"])
async def test_a_claim_opens_the_lease(store: Store, connection: Sql, group: str | None, status: str) -> None:
    """As claim_jobs, and the row says which limit counts it."""
    await store.limits.set(TOPIC, {"concurrency": 1})
    identity = await forge(
        connection, status, attempts=3, uncharged=1, crashes=1, group_key=group, progress="1", priority=4,
        checkpoint="7", traceparent="00-" + 32 * "a" + "-" + 16 * "b" + "-01",
    )  # fmt: skip
    another = await forge(connection, "COMPLETED")
    history = "INSERT INTO pulse.attempts (job_id, attempt, outcome) VALUES ($1, 2, 'error'), ($2, 3, 'crashed')"
    await connection.execute(history, identity.hex(), another.hex())
    [one], blocked = await claim(store, level(group, 4), seconds=5)
    assert blocked == []
    assert one == Claim(
        id=identity, attempt=4, name="n", topic=TOPIC, args="{}", timeout_s=None, priority=4, due_at=NOW.timestamp(),
        worker=0, uncharged=1, crashes=1, checkpoint="7", previous='["error", null, null, null]',
        traceparent="00-" + 32 * "a" + "-" + 16 * "b" + "-01", group_key=group,
    )  # fmt: skip
    row = await read(connection, identity)
    assert (row["status"], row["started_at"], row["lease_until"]) == ("RUNNING", at(5), at(5 + LEASE_S))
    assert (row["locked_by"], row["attempts"], row["progress"]) == (WORKER, 4, None)
    [marks] = await connection.fetch("SELECT counted_by, run_after FROM pulse.jobs WHERE status = 'RUNNING'")
    assert tuple(marks) == (TOPIC, None)


@pytest.mark.parametrize("kind", [None, *(one for one in EndingKind if one is not EndingKind.LEASE_EXPIRED)])
async def test_every_end_frees_the_slot(store: Store, connection: Sql, kind: EndingKind | None) -> None:
    """A slot is a RUNNING row: whatever ends the attempt, the next job may start; until then the verdict is full."""
    await store.limits.set(TOPIC, {"concurrency": 1})
    first, second = [await forge(connection, next_run_at=at(number)) for number in (-2, -1)]
    assert await claimed(store) == [first]
    assert await claim(store) == ([], [Blocked(level(), "full", None, of_limit=True)])
    await end(store, first, kind, delay_s=60.0)
    assert await claimed(store) == [second]


async def test_the_limit_of_a_group(store: Store, connection: Sql) -> None:
    """Each group has as many slots as the limit gives to groups, or what differs for it; 0 pauses it."""
    await store.limits.set(TOPIC, {"concurrency": 9, "group_concurrency": 2})
    await store.limits.set(TOPIC, {"concurrency": 3}, group="big")
    await store.limits.set(TOPIC, {"concurrency": 0}, group="off")
    for group in ("small", "big", "off"):
        for _ in range(4):
            await forge(connection, group_key=group)
    levels = [level(group) for group in ("small", "big", "off")]
    found, blocked = await claim(store, *levels)
    assert sorted(str(one.group_key) for one in found) == ["big"] * 3 + ["small"] * 2
    assert blocked == [Blocked(level("off"), "full", None, of_limit=False)]
    assert {one.level.group for one in (await claim(store, *levels))[1]} == {"small", "big", "off"}
    heads = await store.limited.find_levels(START, 9, now=NOW)
    assert [(one.level.group, one.is_full) for one in heads] == [("big", True), ("off", True), ("small", True)]
    await store.limits.unset(TOPIC, group="off")
    assert len(await claimed(store, level("off"))) == 2


async def test_a_limit_in_all_holds_over_groups_and_topics(store: Store, connection: Sql) -> None:
    """Several topics may go by one limit; whichever is named, together they have its slots."""
    await connection.execute("INSERT INTO pulse.topics (topic, limit_name) VALUES ('a', 'api'), ('b', 'api')")
    await store.limits.set("api", {"concurrency": 3})
    assert await store.limited.topics() == {"a": "api", "b": "api", "api": "api"}
    for topic, group in (("a", None), ("b", None), ("a", "g"), ("b", "g")):
        await forge(connection, topic=topic, group_key=group)
        await forge(connection, topic=topic, group_key=group)
    levels = [level(group, topic=topic) for topic in "ab" for group in (None, "g")]
    assert len(await claimed(store, *levels)) == 3
    assert [one.of_limit for one in (await claim(store, *levels))[1]] == [True] * 4
    assert [one["running"] for one in await store.limits.page(9)] == [3]


@pytest.mark.parametrize("other", ["a", "z"])
async def test_what_another_limit_counts_takes_no_slot(store: Store, connection: Sql, other: str) -> None:
    """Neither that, nor when it started, is read with the slots of this one."""
    await store.limits.set(TOPIC, {"concurrency": 1})
    await forge(connection, "RUNNING", topic=other, counted_by=other, started_at=at(-5))
    jobs = [await forge(connection)]
    assert await claimed(store) == jobs
    assert await connection.fetchval("SELECT oldest_at FROM pulse.limits WHERE name = $1", TOPIC) == NOW


async def test_a_lowered_limit_stops_nothing_and_starts_nothing(store: Store, connection: Sql) -> None:
    await store.limits.set(TOPIC, {"concurrency": 3})
    jobs = [await forge(connection, next_run_at=at(number - 9)) for number in range(5)]
    assert await claimed(store) == jobs[:3]
    await store.limits.set(TOPIC, {"concurrency": 2})
    for number, found in enumerate(([], [], jobs[3:4])):
        assert await claimed(store) == found
        await end(store, jobs[number])
    assert await claimed(store) == jobs[4:]


async def test_the_rate(store: Store, connection: Sql) -> None:
    """Starts take tokens, which come back as fast as the rate says, up to the burst; the verdict says when."""
    await store.limits.set(TOPIC, {"rate": 2.0, "burst": 3})
    for _ in range(20):
        await forge(connection, next_run_at=at(-99))
    assert len(await claimed(store)) == 3
    assert await claim(store, seconds=0.25) == ([], [Blocked(level(), "rate", 0.25, of_limit=True)])
    assert len(await claimed(store, seconds=0.5)) == 1
    assert len(await claimed(store, seconds=60)) == 3
    assert await claimed(store, seconds=0) == []  # the clock stepped back: nothing is gained, nothing lost for ever
    assert await claimed(store, seconds=60.49) == []
    assert len(await claimed(store, seconds=60.5)) == 1


async def test_the_clock_steps_back_while_tokens_are_left(store: Store, connection: Sql) -> None:
    await store.limits.set(TOPIC, {"rate": 1.0, "burst": 4})
    for _ in range(20):
        await forge(connection, next_run_at=at(-999))
    assert len(await claimed(store, limit=1)) == 1
    assert len(await claimed(store, seconds=-100)) == 3
    assert await claimed(store, seconds=-99.5) == []
    assert len(await claimed(store, seconds=-99)) == 1


async def test_the_rate_of_a_group(store: Store, connection: Sql) -> None:
    """Each group has a bucket; a full one is forgotten, but not one from which something was just taken."""
    await store.limits.set(TOPIC, {"group_rate": 1.0, "group_burst": 2})
    await store.limits.set(TOPIC, {"rate": 0.5}, group="slow")
    for group in ("a", "slow"):
        for _ in range(9):
            await forge(connection, group_key=group, next_run_at=at(-99))
    assert [one.group_key for one in (await claim(store, level("a"), level("slow")))[0]] == ["a", "slow", "a"]
    found, blocked = await claim(store, level("a"), level("slow"), seconds=0.5)
    assert found == []
    assert [(one.level.group, one.verdict, one.retry_s, one.of_limit) for one in blocked] == [
        ("a", "rate", 0.5, False), ("slow", "rate", 1.5, False),
    ]  # fmt: skip
    assert await store.limits.forget_buckets(now=at(1.9)) == 0
    assert await store.limits.forget_buckets(now=at(2)) == 1
    assert await store.limits.forget_buckets(now=at(99)) == 0  # what differs for a group is no mere bucket
    assert len(await claimed(store, level("a"), seconds=3)) == 2


async def test_groups_take_turns(store: Store, connection: Sql) -> None:
    """In the order of the levels, one each, priorities only inside a group; and no more of a level than *most*."""
    jobs = {}
    for group, count, priority in (("hot", 9, 9), ("b", 2, 0), ("c", 1, 0)):
        jobs[group] = [
            await forge(connection, group_key=group, priority=priority, next_run_at=at(number - 99))
            for number in range(count)
        ]
    jobs["b"].insert(0, await forge(connection, group_key="b", priority=5))
    levels = [level("c"), level("b", 5), level("b"), level("hot", 9)]
    found, _ = await claim(store, *levels, limit=7, most=3)
    assert [one.group_key for one in found] == ["c", "b", "hot", "b", "hot", "b", "hot"]
    assert [one.id for one in found if one.group_key == "b"] == jobs["b"]
    assert [one.id for one in found if one.group_key == "hot"] == jobs["hot"][:3]


async def test_a_turn_ranks_as_its_best_job_among_other_topics(store: Store, connection: Sql) -> None:
    await store.limits.set("plain", {})
    middle = await forge(connection, topic="plain", priority=5)
    high = await forge(connection, group_key="a", priority=9)
    low = await forge(connection, group_key="b", priority=0)
    last = await forge(connection, group_key="a", priority=1)
    levels = [level(topic="plain", priority=5), level("b"), level("a", 9), level("a", 1)]
    assert await claimed(store, *levels) == [low, high, middle, last]


async def test_ageing_counts_inside_a_group(store: Store, connection: Sql) -> None:
    """Ten seconds of waiting are worth one priority, in a group and without one; strict where nothing ages."""
    await store.limits.set(TOPIC, {})
    for group in (None, "g"):
        old = await forge(connection, group_key=group, priority=0, next_run_at=at(-50))
        new = await forge(connection, group_key=group, priority=3, next_run_at=at(-10))
        levels = [level(group, 3), level(group, 0)]
        assert [one.id for one in (await claim(store, *levels, limit=1, ageing_s={TOPIC: 10.0}))[0]] == [old]
        assert await claimed(store, *levels) == [new]


@pytest.mark.parametrize("group", [None, "g"])
async def test_what_no_claim_takes(store: Store, connection: Sql, group: str | None) -> None:
    """Not due, expired, set aside, of a paused topic; *only* takes what is set aside."""
    await store.limits.set(TOPIC, {})
    await forge(connection, group_key=group, next_run_at=at(1))
    await forge(connection, group_key=group, expires_at=NOW)
    aside = await forge(connection, group_key=group)
    await connection.execute(
        "INSERT INTO pulse.set_aside (job_id, sqlstate, statement, error) VALUES ($1, 'x', 'x', 'x')", aside.hex()
    )
    assert await claim(store, level(group)) == ([], [])
    await store.gate.pause(TOPIC, None)
    assert await claim(store, level(group), only=[aside]) == ([], [])
    await store.gate.resume(TOPIC)
    assert [one.id for one in (await claim(store, level(group), only=[aside]))[0]] == [aside]


async def test_plain_claims_leave_limited_topics_and_groups_alone(store: Store, connection: Sql) -> None:
    """A full claim, one of levels, and a submit that would be handed out at once."""
    await connection.execute("INSERT INTO pulse.topics (topic, limit_name) VALUES ('by name', 'api')")
    await store.limits.set("api", {})
    await store.limits.set(TOPIC, {})
    topics = ["by name", TOPIC, "free"]
    for topic in topics:
        await forge(connection, topic=topic, group_key="g")
    for topic in topics[:2]:
        await forge(connection, topic=topic)
    for levels in (None, [(topic, 0, 0.0) for topic in topics]):
        assert await store.claim(topics, [WORKER], [0] * 9, LEASE_S, levels=levels, now=NOW) == []
    jobs = [job(topic=topic) for topic in topics]
    started, _ = await store.submit_and_claim(jobs, topics, [WORKER], [0] * 3, LEASE_S)
    assert [one.topic for one in started] == ["free"]
    assert {one.level.topic for one in await store.find_levels(Level("", 0), 9)} == {"by name", TOPIC}


async def test_a_claim_without_a_limit_ends_counting(store: Store, connection: Sql) -> None:
    """A retry after the limit is gone runs uncounted, by either claim."""
    for group in (None, "g"):
        await store.limits.set(TOPIC, {})
        identity = await forge(connection, group_key=group)
        await claimed(store, level(group))
        await end(store, identity, EndingKind.RELEASED)
        assert await store.limits.unset(TOPIC)
        if group is None:
            await store.claim([TOPIC], [WORKER], [0], LEASE_S, now=NOW)
        else:
            assert await claimed(store, level(group)) == [identity]
        sql = "SELECT status::text, counted_by FROM pulse.jobs WHERE id = $1"
        [row] = await connection.fetch(sql, identity.hex())
        assert tuple(row) == ("RUNNING", None)


@pytest.mark.parametrize("policy", ["continue", "halt"])
@pytest.mark.parametrize("kind", [EndingKind.ERROR, EndingKind.SNOOZED, EndingKind.RELEASED, EndingKind.CRASHED,
                                  EndingKind.UNASSIGNED])  # fmt: skip
async def test_a_retry_keeps_its_place(store: Store, connection: Sql, kind: EndingKind, policy: str) -> None:
    """In a sequence one job runs at a time; what waits for its next try is first, and the others wait for it."""
    await store.limits.set(TOPIC, {"sequence": policy})
    jobs = [await forge(connection, group_key="g", next_run_at=at(number - 9)) for number in range(3)]
    assert await claimed(store, level("g")) == jobs[:1]
    assert [one.verdict for one in (await claim(store, level("g")))[1]] == ["full"]
    await end(store, jobs[0], kind, delay_s=20.0)
    assert (await read(connection, jobs[0]))["next_run_at"] == at(-9)
    assert await claim(store, level("g"), seconds=19) == ([], [])
    [head] = await store.limited.find_levels(START, 9, now=at(19))
    assert head == GroupHead(level("g"), at(20).timestamp(), is_due=False, is_full=False)
    assert await claimed(store, level("g"), seconds=20) == jobs[:1]
    await end(store, jobs[0], attempt=2)
    assert await claimed(store, level("g")) == jobs[1:2]


async def test_order_of_a_sequence(store: Store, connection: Sql) -> None:
    """By priority, then by due time, then by id; a job that is not due stalls nobody; each group by itself."""
    await store.limits.set(TOPIC, {"sequence": "continue"})
    same = sorted([await forge(connection, group_key="g") for _ in range(3)])
    high = await forge(connection, group_key="g", priority=3)
    await forge(connection, group_key="g", priority=9, next_run_at=at(60))
    other = await forge(connection, group_key="h")
    for expected in (high, *same):
        found = await claimed(store, level("g", 3), level("g"), level("h"))
        assert found == ([expected, other] if expected == high else [expected])
        await end(store, expected)


async def test_a_head_that_cannot_start_stops_its_sequence(store: Store, connection: Sql) -> None:
    """Expired, it waits for the sweep; set aside, for its trial."""
    await store.limits.set(TOPIC, {"sequence": "continue"})
    first = await forge(connection, group_key="g", next_run_at=at(-9), expires_at=at(-1))
    await forge(connection, group_key="g")
    assert await claim(store, level("g")) == ([], [])
    await connection.execute("UPDATE pulse.jobs SET expires_at = NULL")
    await connection.execute(
        "INSERT INTO pulse.set_aside (job_id, sqlstate, statement, error) VALUES ($1, 'x', 'x', 'x')", first.hex()
    )
    assert await claim(store, level("g")) == ([], [])
    assert [one.id for one in (await claim(store, level("g"), only=[first]))[0]] == [first]


async def test_a_dead_letter_halts_a_sequence(store: Store, connection: Sql) -> None:
    """Until it is retried, which gives it its place again, or deleted; `continue` goes on."""
    await store.limits.set(TOPIC, {"sequence": "halt"})
    first, second = [await forge(connection, group_key="g", next_run_at=at(number)) for number in (-2, -1)]
    await claimed(store, level("g"))
    await end(store, first, EndingKind.DISCARDED)
    full = [Blocked(level("g"), "full", None, of_limit=False)]
    assert await claim(store, level("g")) == ([], full)
    assert [one.is_full for one in await store.limited.find_levels(START, 9, now=NOW)] == [True]
    await store.retry([first], now=NOW)
    assert await claimed(store, level("g")) == [first]
    await end(store, first, EndingKind.DISCARDED, attempt=2)
    assert await claim(store, level("g")) == ([], full)
    await store.limits.set(TOPIC, {"sequence": "continue"})
    assert [one.is_full for one in await store.limited.find_levels(START, 9, now=NOW)] == [False]
    assert await claimed(store, level("g")) == [second]


async def test_what_was_put_off_in_a_sequence_waits_without_one_too(store: Store, connection: Sql) -> None:
    await store.limits.set(TOPIC, {"sequence": "halt"})
    identity = await forge(connection, group_key="g")
    await claimed(store, level("g"))
    await end(store, identity, EndingKind.ERROR, delay_s=9.0)
    await store.limits.set(TOPIC, {"sequence": None})
    assert await claimed(store, level("g"), seconds=8) == []
    assert await claimed(store, level("g"), seconds=9) == [identity]
    assert await connection.fetchval("SELECT run_after FROM pulse.jobs") is None


async def test_levels_of_groups(store: Store, connection: Sql) -> None:
    """Topic by topic, group by group, highest priority first; each time after the one that is given."""
    for topic, group, priority in (("a", "g", 1), ("a", "g", 5), ("a", "h", 0), ("b", "g", 0)):
        await forge(connection, topic=topic, group_key=group, priority=priority, next_run_at=at(-priority))
    await forge(connection, topic="a")
    await forge(connection, "RUNNING", topic="c", group_key="g")
    levels = [level("g", 5, "a"), level("g", 1, "a"), level("h", 0, "a"), level("g", 0, "b")]
    heads = await store.limited.find_levels(START, 9, now=at(-1))
    assert [(one.level, one.is_due) for one in heads] == list(zip(levels, [True, True, False, False], strict=True))
    assert [one.level for one in await store.limited.find_levels(levels[0], 2)] == levels[1:3]
