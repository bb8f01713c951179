"""What a claim under limits looks at: the levels that are named, the slots of their limit and group, nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

import pytest

from pulse.store.limit_claims import Blocked, LimitClaims
from pulse.store.recovery.epochs import CLOSED, Witnessed
from pulse.store.rows import Claim, GroupLevel
from pulse.store.store import Store
from tests.support.store.epoch_kit import OTHER, clean, come
from tests.support.store.helpers import LEASE_S, NOW, TERMINAL, TOPIC, WORKER, Sql, at, forge, read

G: Final = GroupLevel(TOPIC, "g", 0)
PLAIN: Final = GroupLevel(TOPIC, None, 0)
FIRST: Final = "a"  # a limit, with a name that comes before the topic's
TOKENS: Final = "SELECT name, group_key, claims, tokens FROM pulse.limits ORDER BY name, group_key"
HEAVY: Final = '{"pad": "' + 5_000_000 * "x" + '"}'


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


async def _claims(
    store: Store, *levels: GroupLevel, limit: int = 9, seconds: float = 0.0, **fields: Any
) -> tuple[list[bytes], list[Blocked]]:
    named = [(level, 0.0) for level in levels]
    claims, blocked = await store.limited.claim(named, [WORKER], [0] * limit, LEASE_S, now=at(seconds), **fields)
    return [one.id for one in claims], blocked


async def _jobs(connection: Sql, count: int, **columns: Any) -> list[bytes]:
    return [await forge(connection, next_run_at=at(number - 99), **columns) for number in range(count)]


@pytest.mark.parametrize("ageing_s", [None, {TOPIC: 10.0}])
async def test_no_job_takes_two_seats(store: Store, connection: Sql, ageing_s: dict[str, float] | None) -> None:
    """As many jobs as there are seats, the oldest first, whichever way they are read; nor does one take two tokens."""
    await store.limits.set(TOPIC, {"rate": 9.0})
    await forge(connection, "RUNNING", next_run_at=at(-999))
    jobs = await _jobs(connection, 5)
    assert await _claims(store, PLAIN, limit=4, ageing_s=ageing_s) == (jobs[:4], [])
    assert await _claims(store, PLAIN, limit=4, ageing_s=ageing_s) == (jobs[4:], [])
    assert await connection.fetchval("SELECT tokens FROM pulse.limits WHERE name = $1", TOPIC) == 4.0


async def test_what_another_limit_gives_to_groups_counts_there_alone(store: Store, connection: Sql) -> None:
    await store.limits.set("another", {"group_concurrency": 0})
    jobs = [await forge(connection, group_key="g")]
    assert await _claims(store, GroupLevel(TOPIC, "g", 0)) == (jobs, [])


async def test_what_no_claim_takes_where_jobs_age(store: Store, connection: Sql) -> None:
    """Expired, set aside; *only* takes what is set aside, and nothing else."""
    await store.limits.set(TOPIC, {})
    await forge(connection, expires_at=NOW)
    aside = await forge(connection)
    sql = "INSERT INTO pulse.set_aside (job_id, sqlstate, statement, error) VALUES ($1, 'x', 'x', 'x')"
    await connection.execute(sql, aside.hex())
    assert await _claims(store, PLAIN, ageing_s={TOPIC: 10.0}) == ([], [])
    await forge(connection)
    assert await _claims(store, PLAIN, ageing_s={TOPIC: 10.0}, only=[aside]) == ([aside], [])


async def test_turns_are_for_groups(store: Store, connection: Sql) -> None:
    """So many of one level of a group; jobs without one are taken as they come."""
    await store.limits.set(TOPIC, {})
    plain, grouped = await _jobs(connection, 3), await _jobs(connection, 3, group_key="g")
    assert (await _claims(store, PLAIN, most=1))[0] == plain
    assert (await _claims(store, G, most=1))[0] == grouped[:1]


async def test_two_levels_of_a_group_share_its_slots(store: Store, connection: Sql) -> None:
    await store.limits.set(TOPIC, {"group_concurrency": 1})
    low, high = [await forge(connection, group_key="g", priority=priority) for priority in (0, 3)]
    assert (await _claims(store, GroupLevel(TOPIC, "g", 3), G))[0] == [high]
    assert (await _claims(store, GroupLevel(TOPIC, "g", 3), G))[0] == []
    del low


async def test_each_topic_goes_by_its_own_limit(store: Store, connection: Sql) -> None:
    """In one claim: slots, and what each gives to its groups."""
    await store.limits.set(FIRST, {"concurrency": 3, "group_concurrency": 2})
    await store.limits.set(TOPIC, {"concurrency": 2, "group_concurrency": 1})
    theirs = [await _jobs(connection, 4, topic=FIRST, group_key=group) for group in "gh"]
    mine = [await _jobs(connection, 4, group_key=group) for group in "ghi"]
    levels = [GroupLevel(topic, group, 0) for topic in (FIRST, TOPIC) for group in "ghi"]
    claimed, _ = await _claims(store, *levels, limit=99)
    assert len({*claimed} & {one for some in theirs for one in some}) == 3
    assert [len({*claimed} & {*some}) for some in mine] == [1, 1, 0]


async def test_a_claim_changes_its_own_rows_of_limits(store: Store, connection: Sql) -> None:
    """The limit, and the bucket of the group; not the policy of groups, nor what differs for another."""
    await store.limits.set(TOPIC, {"rate": 5.0, "group_rate": 2.0})
    await store.limits.set(TOPIC, {"rate": 9.0}, group="h")
    await forge(connection, group_key="g")
    before = {row["group_key"]: tuple(row) for row in await connection.fetch(TOKENS)}
    await _claims(store, G)
    after = {row["group_key"]: tuple(row) for row in await connection.fetch(TOKENS)}
    assert {group for group in after if after[group] != before.get(group)} == {"", "g"}
    assert (after[""][3], after["g"][3]) == (4.0, 1.0)


async def test_where_counting_begins(store: Store, connection: Sql) -> None:
    """At the oldest slot of this limit: neither what has ended, nor what others count, is looked at."""
    await store.limits.set(TOPIC, {"concurrency": 9})
    await forge(connection, "RUNNING", topic="u", counted_by="u", started_at=at(-50))
    await forge(connection, "COMPLETED", counted_by=TOPIC, started_at=at(-40))
    await forge(connection, "RUNNING", counted_by=TOPIC, started_at=at(-30))
    await forge(connection)
    await _claims(store, PLAIN)
    sql = "SELECT oldest_at FROM pulse.limits WHERE name = $1 AND group_key = ''"
    assert await connection.fetchval(sql, TOPIC) == at(-30)


async def test_a_full_group_is_no_full_limit(store: Store, connection: Sql) -> None:
    """Though there is no token either: who waits for the group need not come back for it."""
    await store.limits.set(TOPIC, {"rate": 1.0, "burst": 1, "group_concurrency": 1})
    await _jobs(connection, 2, group_key="g")
    await _claims(store, G)
    assert await _claims(store, G) == ([], [Blocked(G, "full", None, of_limit=False)])


async def test_gates_of_others_and_gates_that_are_open_again(store: Store, connection: Sql) -> None:
    await store.limits.set(TOPIC, {})
    jobs = await _jobs(connection, 2)
    gate = "INSERT INTO pulse.dispatch_control (topic, paused, paused_at, paused_until) VALUES ($1, true, $2, $3)"
    await connection.execute(gate, "other", NOW, None)
    assert (await _claims(store, PLAIN, limit=1))[0] == jobs[:1]
    await connection.execute(gate, TOPIC, NOW, at(10))
    assert (await _claims(store, PLAIN, seconds=9))[0] == []
    assert (await _claims(store, PLAIN, seconds=10))[0] == jobs[1:]


async def test_what_a_claim_tells_of_the_attempts_before(store: Store, connection: Sql) -> None:
    """The newest one of this job; none of a first attempt; and no trace that is too long for a frame."""
    await store.limits.set(TOPIC, {})
    sql = "INSERT INTO pulse.attempts (job_id, attempt, outcome, error) VALUES ($1, $2, 'error', $3)"
    tried = await forge(connection, "RETRYING", attempts=2)
    fresh = await forge(connection, traceparent="00-" + 60 * "a", next_run_at=at(-1))
    for identity, attempt in ((tried, 1), (tried, 2), (tried, 3), (fresh, 0), (fresh, 4)):
        await connection.execute(sql, identity.hex(), attempt, f"{attempt} of {identity == tried}")
    claims, _ = await store.limited.claim([(PLAIN, 0.0)], [WORKER], [0] * 9, LEASE_S, now=NOW)
    told = {one.id: (one.previous, one.traceparent) for one in claims}
    assert told == {tried: ('["error", "2 of True", null, null]', None), fresh: (None, None)}


class Known:
    """What a dispatcher knows of the database."""

    def __init__(self, witnessed: Witnessed) -> None:
        self.witnessed = witnessed

    async def claimed(self, claims: Sequence[Claim]) -> None:
        assert claims

    def forgets(self, pairs: Iterable[tuple[bytes, int]]) -> None:
        raise AssertionError([*pairs])

    def completed(self, pairs: Collection[tuple[bytes, int]]) -> None:
        raise AssertionError([*pairs])


async def test_a_claim_needs_what_its_host_has_seen(store: Store, connection: Sql) -> None:
    """With any difference nothing is claimed; else it is."""
    await clean(connection)
    await forge(connection, group_key="g")
    _, known = await come(store)
    assert known.counter is not None
    assert known.started_at is not None
    assert known.relation is not None
    for wrong in (
        CLOSED, known._replace(instance=OTHER), known._replace(counter=known.counter + 1), known._replace(epoch=2),
        known._replace(started_at=known.started_at + timedelta(seconds=1)), known._replace(relation=known.relation + 1),
    ):  # fmt: skip
        claims = LimitClaims(store.hot, lambda wrong=wrong: Known(wrong))  # type: ignore[misc]
        assert await claims.claim([(G, 0.0)], [WORKER], [0], LEASE_S, now=NOW) == ([], [])
    found, _ = await LimitClaims(store.hot, lambda: Known(known)).claim([(G, 0.0)], [WORKER], [0], LEASE_S, now=NOW)
    assert len(found) == 1
    await clean(connection)


async def test_which_buckets_are_forgotten(store: Store, connection: Sql) -> None:
    """Those that hold all they can by their own limit's policy; none that says what differs for its group."""
    await store.limits.set(TOPIC, {"group_rate": 1.0, "group_burst": 10})
    await store.limits.set(FIRST, {"group_rate": 0.25, "group_burst": 1})
    await store.limits.set(TOPIC, {"rate": 1000.0}, group="own")
    await store.limits.set(TOPIC, {"concurrency": 2}, group="slots")
    bucket = """
        INSERT INTO pulse.limits AS x (name, group_key, tokens, tokens_at) VALUES ($1, $2, $3, $4)
        ON CONFLICT (name, group_key) DO UPDATE SET tokens = excluded.tokens, tokens_at = excluded.tokens_at"""
    for name, group, tokens in (
        (TOPIC, "g", 2.0), (FIRST, "g", 0.5), (TOPIC, "h", 8.0), (TOPIC, "own", 1.0), (TOPIC, "slots", 10.0),
        (FIRST, "j", 0.0),
    ):  # fmt: skip
        await connection.execute(bucket, name, group, tokens, NOW)
    assert await store.limits.forget_buckets(now=at(2)) == 2
    rows = await connection.fetch("SELECT name, group_key FROM pulse.limits WHERE group_key NOT IN ('', '*')")
    assert {tuple(row) for row in rows} == {(TOPIC, "g"), (TOPIC, "own"), (TOPIC, "slots"), (FIRST, "j")}
    await store.limits.set(FIRST, {"group_rate": None, "group_burst": None})
    assert await store.limits.forget_buckets(now=at(2)) == 1  # nothing goes by a rate any more
