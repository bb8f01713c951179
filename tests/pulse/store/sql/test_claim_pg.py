"""The claim: which worker gets what, in which order, and what can never be claimed."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from typing import Final

import asyncpg
import pytest

from pulse.store.rows import Claim
from pulse.store.statements import STATEMENTS
from pulse.store.store import Store
from tests.support.slow_gate import GATE_LOCK, SLOW_GATE
from tests.support.store.helpers import (
    LEASE_S,
    NOW,
    STATUSES,
    TOPIC,
    WAITING,
    WORKER,
    Sql,
    at,
    changes,
    claim,
    forge,
    job,
    new_id,
    read,
)
from tests.support.waiting import until_blocked

Known = tuple[str, int, float | None]


@pytest.mark.parametrize("status", WAITING)
async def test_a_claim_opens_the_lease(store: Store, connection: Sql, status: str) -> None:
    """A claim sets status, lease and token at once, clears the last progress, and changes nothing else."""
    identity = await forge(
        connection, status, attempts=3, uncharged=1, crashes=1, progress='"half"', last_error="boom", priority=4,
        timeout_s=2.5,
    )  # fmt: skip
    before = await read(connection, identity)
    claimed = await claim(store, seconds=5.0)
    assert claimed == [
        Claim(
            id=identity, attempt=4, name="n", topic=TOPIC, args="{}", timeout_s=2.5, priority=4,
            due_at=NOW.timestamp(), worker=0, uncharged=1, crashes=1,
        )
    ]  # fmt: skip
    assert changes(before, await read(connection, identity)) == {
        "status": "RUNNING", "attempts": 4, "locked_by": WORKER, "started_at": at(5), "lease_until": at(5 + LEASE_S),
        "progress": None,
    }  # fmt: skip


async def test_a_claim_tells_the_occurrence(store: Store, connection: Sql) -> None:
    await forge(connection, schedule_id=new_id().hex(), occurrence=at(-3))
    assert [one.occurrence_at for one in await claim(store)] == [at(-3).timestamp()]


async def test_a_claim_tells_the_attempt_before(store: Store, connection: Sql) -> None:
    """It returns the end of the last attempt in the history; not older ones, nor other jobs', nor later ones."""
    told = await forge(connection, "RETRYING", attempts=2, checkpoint='{"at": 7}')
    silent = await forge(connection, "RETRYING", attempts=2)
    first = await forge(connection)
    insert = """INSERT INTO pulse.attempts (job_id, attempt, outcome, error, worker, progress)
                VALUES ($1, $2, $3, 'why', 'w9', '0.5')"""
    rows = [(told.hex(), 2, "timeout"), (told.hex(), 1, "error"), (silent.hex(), 1, "error")]
    rows.append((told.hex(), 4, "released"))  # of another host, which knows what the database has lost
    await connection.executemany(insert, rows)
    claimed = {one.id: (one.checkpoint, one.previous) for one in await claim(store)}
    assert claimed == {
        told: ('{"at": 7}', '["timeout", "why", "w9", "0.5"]'),
        silent: (None, '["error", "why", "w9", "0.5"]'),  # its second attempt was put back before anybody saw it
        first: (None, None),
    }
    assert (await read(connection, told))["checkpoint"] == '{"at": 7}'


@pytest.mark.parametrize("status", sorted(set(STATUSES) - set(WAITING)))
async def test_only_waiting_jobs_are_claimed(store: Store, connection: Sql, status: str) -> None:
    identity = await forge(connection, status, next_run_at=at(-9))
    before = await read(connection, identity)
    waiting = await forge(connection)
    assert [one.id for one in await claim(store, 1)] == [waiting]
    assert await claim(store) == []
    assert await read(connection, identity) == before


@pytest.mark.parametrize("status", WAITING)
async def test_only_due_jobs_are_claimed(store: Store, connection: Sql, status: str) -> None:
    later = await forge(connection, status, next_run_at=at(10), priority=9)
    now = await forge(connection, status)
    assert [one.id for one in await claim(store, 1)] == [now]
    assert await claim(store, seconds=9.999999) == []
    assert [one.id for one in await claim(store, seconds=10)] == [later]


async def test_the_database_clock_decides(store: Store, connection: Sql) -> None:
    await forge(connection, next_run_at=await connection.fetchval("SELECT now() + interval '1 minute'"))
    due = await forge(connection, next_run_at=await connection.fetchval("SELECT now()"))
    assert [one.id for one in (await store.claim([TOPIC], [WORKER], [0, 0], LEASE_S))] == [due]
    left_s = "SELECT extract(epoch FROM lease_until - clock_timestamp()) FROM pulse.jobs WHERE status = 'RUNNING'"
    assert LEASE_S - 5 < float(await connection.fetchval(left_s)) <= LEASE_S


async def test_only_the_topics_asked_for(store: Store, connection: Sql) -> None:
    await forge(connection, topic="other")
    assert await claim(store) == []
    wanted = await forge(connection)
    assert [one.id for one in await claim(store)] == [wanted]
    assert await store.claim([], [WORKER], [0], LEASE_S, now=NOW) == []


@pytest.mark.parametrize("known", [None, [("a", 0, None), ("b", 0, None)]], ids=["full", "known"])
@pytest.mark.parametrize(("paused", "claimable"), [("", set[str]()), ("a", {"b"}), ("c", {"a", "b"})])
async def test_the_gate(
    store: Store, connection: Sql, paused: str, claimable: set[str], known: list[Known] | None
) -> None:
    """A closed gate stops claims of its topic, the global one all; opened again, it stops none."""
    for topic in "ab":
        await forge(connection, topic=topic)
        await forge(connection, topic=topic)
    await store.gate.pause(paused, None)
    claimed = await store.claim(["a", "b"], [WORKER], [0] * 4, LEASE_S, levels=known, now=NOW)
    assert {one.topic for one in claimed} == claimable
    assert len(claimed) == 2 * len(claimable)
    await store.gate.resume(paused)
    rest = await store.claim(["a", "b"], [WORKER], [0] * 4, LEASE_S, levels=known, now=NOW)
    assert len(claimed) + len(rest) == 4


async def test_known_levels(store: Store, connection: Sql) -> None:
    """Only the named levels are claimed, in their order, each from its own time on; none: the last seconds."""
    await store.gate.pause("low", "paused, and opened again")
    await store.gate.resume("low")
    due = {
        name: await forge(connection, topic=topic, priority=priority, next_run_at=at(-ago_s), name=name)
        for name, topic, priority, ago_s in (
            ("before", "a", 5, 100.001), ("behind", "a", 5, 99.999), ("old", "low", 0, 5.001),
            ("new", "low", 0, 4.999), ("other level", "a", 4, 1.0), ("other topic", "b", 5, 1.0),
            ("not due", "a", 5, -0.001),
        )
    }  # fmt: skip
    known = [("a", 5, at(-100).timestamp()), ("low", 0, None), ("nothing", 1, None)]
    claimed = await store.claim(["unused"], [WORKER], [0] * 9, LEASE_S, levels=known, now=NOW)
    assert sorted(one.name for one in claimed) == ["behind", "new"]
    [first] = await store.claim([], [WORKER], [0], LEASE_S, levels=[("b", 5, None), ("a", 4, None)], now=NOW)
    assert (first.name, first.id) == ("other topic", due["other topic"])
    assert await store.claim(["a", "b", "low"], [WORKER], [0] * 9, LEASE_S, levels=[], now=NOW) == []
    assert len(await store.claim(["a", "b", "low"], [WORKER], [0] * 9, LEASE_S, now=NOW)) == 3


async def test_order(store: Store, connection: Sql) -> None:
    """Higher priority first, in any topic; then the topic named first; then the first due."""
    ranked = [
        await forge(connection, topic="b", priority=5),
        await forge(connection, topic="a", priority=2, next_run_at=at(-1)),
        await forge(connection, topic="a", priority=2),
        await forge(connection, topic="b", priority=2, next_run_at=at(-9)),
        await forge(connection, topic="a", priority=-4, next_run_at=at(-99)),
    ]
    claimed = [await store.claim(["a", "b"], [WORKER], [0], LEASE_S, now=NOW) for _ in ranked]
    assert [[one.id for one in batch] for batch in claimed] == [[identity] for identity in ranked]


async def test_a_batch_is_what_comes_first(store: Store, connection: Sql) -> None:
    for priority in (3, 2, 1):
        for due_s in (-2, -1, 0):
            await forge(connection, priority=priority, next_run_at=at(due_s))
    ranked = sorted((-one.priority, one.due_at) for one in (await claim(store, 5)))
    assert [(-rank, round(due_at - NOW.timestamp())) for rank, due_at in ranked] == [
        (3, -2), (3, -1), (3, 0), (2, -2), (2, -1),
    ]  # fmt: skip
    assert len(await claim(store, 50)) == 4


_LETTERS: Final = "x" * 100_000
_NOISE: Final = base64.b64encode(random.Random(1).randbytes(75_000)).decode()


@pytest.mark.parametrize(("column", "pad"), [
    ("args", _LETTERS), ("args", _NOISE), ("checkpoint", _LETTERS), ("last_error", "\n" * 50_000),
    ("progress", _LETTERS),
])  # fmt: skip
async def test_what_is_stored_otherwise_counts_as_it_is_printed(
    store: Store, connection: Sql, column: str, pad: str
) -> None:
    """A hundred thousand equal letters take a few bytes on disk, and all of theirs on the wire."""
    text = json.dumps(pad) if column == "last_error" else json.dumps({"pad": pad})
    for _ in range(90):
        await forge(connection, **{column: pad if column == "last_error" else text})
    claimed = await claim(store, 90)
    counted = len(text) + (0 if column == "args" else 2000)  # short args count as so many
    assert len(claimed) == 8388608 // counted + 1


async def test_a_claim_ends_after_so_many_bytes(store: Store, connection: Sql) -> None:
    """A claim hands out at most 8 MiB of args, and exceeds that only by its last job: at least one job always."""
    args = '{"a": "' + "x" * 3 * 1024**2 + '"}'
    ids = [await forge(connection, args=args, next_run_at=at(-place)) for place in (4, 3, 2, 1)]
    huge = await forge(connection, args='{"a": "' + "x" * 9 * 1024**2 + '"}')
    claimed = [[one.id for one in await claim(store)] for _ in range(3)]
    assert [sorted(batch) for batch in claimed] == [sorted(ids[:3]), sorted([ids[3], huge]), []]


async def test_seats(store: Store, connection: Sql) -> None:
    ranked = [
        await forge(connection, priority=priority, next_run_at=at(due))
        for priority, due in ((9, 0), (5, -1), (5, 0), (1, -9))
    ]
    claimed = await store.claim([TOPIC], ["x", "y", "z"], [2, 0, 1, 1], LEASE_S, now=NOW)
    assert {one.id: one.worker for one in claimed} == dict(zip(ranked, (2, 0, 1, 1), strict=True))
    assert [(await read(connection, one))["locked_by"] for one in ranked] == ["z", "x", "y", "y"]


async def test_seats_of_jobs_that_are_due_together(store: Store, connection: Sql) -> None:
    """They are in the order of the ids, however they were stored."""
    ids = [new_id() for _ in range(3)]
    for one in (ids[1], ids[2], ids[0]):
        await forge(connection, id=one)
    claimed = await store.claim([TOPIC], ["x", "y", "z"], [0, 1, 2], LEASE_S, now=NOW)
    assert {one.id: one.worker for one in claimed} == {one: seat for seat, one in enumerate(ids)}


async def test_a_limit_of_another_topic(store: Store, connection: Sql) -> None:
    """It is of no concern to a claim."""
    await store.limits.set("other", {"concurrency": 1})
    for topic in (TOPIC, "other"):
        await forge(connection, topic=topic)
    claimed = await store.claim([TOPIC, "other"], [WORKER], [0, 0], LEASE_S, now=NOW)
    assert [one.topic for one in claimed] == [TOPIC]


async def test_no_seats_no_jobs(store: Store, connection: Sql) -> None:
    await forge(connection)
    assert await store.claim([TOPIC], [WORKER], [], LEASE_S, now=NOW) == []


async def test_claims_never_wait_for_each_other(store: Store, connection: Sql) -> None:
    """A row that another session is claiming is skipped at once; the two get different jobs."""
    first, second = await forge(connection, priority=1), await forge(connection)
    async with connection.transaction():
        args = ([TOPIC], 1, [WORKER], [1], LEASE_S, *[None] * 10, NOW)
        mine = await connection.fetch(STATEMENTS["claim_jobs"].sql, *args)
        others = await asyncio.wait_for(claim(store), 1.5)
    assert [row["id"] for row in mine] == [first]
    assert [one.id for one in others] == [second]


@pytest.mark.parametrize(("meanwhile", "claimed_attempt"), [
    ("status = 'RUNNING', attempts = 1, locked_by = 'w2', lease_until = now(), started_at = now()", None),
    ("status = 'CANCELED', completed_at = now()", None),
    ("status = 'RETRYING', attempts = 1, next_run_at = next_run_at + interval '1 hour'", None),
    ("status = 'RETRYING', attempts = 1", 2),
    ("status = 'PENDING', attempts = 6, uncharged = 6", 7),
], ids=["claimed", "canceled", "put off", "failed, due", "given back"])  # fmt: skip
@pytest.mark.usefixtures("own_database")
async def test_a_claim_sees_what_happened_since_it_began(
    store: Store, connection: Sql, dsn: str, meanwhile: str, claimed_attempt: int | None
) -> None:
    """A row that changed after the snapshot of a claim is judged as it is now."""
    identity = await forge(connection)
    await connection.execute(SLOW_GATE)
    holder = await asyncpg.connect(dsn)
    try:
        await holder.execute(f"SELECT pg_advisory_lock({GATE_LOCK})")
        claiming = asyncio.create_task(claim(store))
        await until_blocked(connection, by=holder.get_server_pid())
        await connection.execute(f"UPDATE pulse.jobs SET {meanwhile}")
        before = await read(connection, identity)
        await holder.execute(f"SELECT pg_advisory_unlock({GATE_LOCK})")
        claimed = await claiming
    finally:
        await holder.close(timeout=5)
    assert [one.attempt for one in claimed] == ([] if claimed_attempt is None else [claimed_attempt])
    if claimed_attempt is None:
        assert await read(connection, identity) == before


TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203332-00"
BAD: Final = ["", "x", TRACE[:-1], f"{TRACE}0", TRACE.upper(), f"{TRACE}\n", f"\n{TRACE}"]


@pytest.mark.parametrize("way", ["submit", "again", "submit and claim", "SQL", "SQL, many"])
async def test_from_a_submit_to_the_claim(store: Store, connection: Sql, way: str) -> None:
    """Each job its own, or none, in each way."""
    jobs = [job(traceparent=TRACE), job(), job(traceparent=OTHER)]
    claims: list[Claim] = []
    if way == "submit and claim":
        claims, _ = await store.submit_and_claim(jobs, [TOPIC], [WORKER], [0, 0, 0], LEASE_S)
    elif way == "SQL":
        for one in jobs:
            await connection.execute("SELECT pulse.submit('n', topic => 't', traceparent => $1)", one.traceparent)
    elif way == "SQL, many":
        many = [{"name": "n", "topic": "t", **({"traceparent": t} if t else {})} for t in (j.traceparent for j in jobs)]
        await connection.execute("SELECT pulse.submit_many($1::jsonb)", json.dumps(many))
    else:
        await (store.submit_again if way == "again" else store.submit)(jobs)
    found = sorted(claims or await claim(store, seconds=1e9), key=lambda one: one.due_at)
    assert [one.traceparent for one in found] == [TRACE, None, OTHER]


async def test_what_was_written_past_the_functions(store: Store, connection: Sql) -> None:
    """An INSERT may bring megabytes: no frame could carry them, so the job is handed out without."""
    await store.submit([job()])
    await connection.execute("UPDATE pulse.jobs SET traceparent = repeat('x', 9000000)")
    assert [one.traceparent for one in await claim(store, seconds=1e9)] == [None]


@pytest.mark.parametrize("bad", BAD)
async def test_what_sql_refuses(connection: Sql, bad: str) -> None:
    for sql, given in (
        ("SELECT pulse.submit('n', traceparent => $1)", bad),
        ("SELECT pulse.submit_many($1::jsonb)", json.dumps([{"name": "n"}, {"name": "n", "traceparent": bad}])),
    ):
        with pytest.raises(asyncpg.PostgresError, match=r"(?s)^traceparent is .*; one of W3C Trace Context is allowed"):
            await connection.execute(sql, given)
