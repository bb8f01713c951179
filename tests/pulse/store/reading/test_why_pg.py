"""What the database says of why a job does not run: each column, and its cost among a million that wait."""

from __future__ import annotations

import json
from typing import Any, Final

import asyncpg
import pytest

from pulse.store.connections.pool import Target, connect
from pulse.store.reading.jobs import BEFORE_MAX, StoredFacts
from pulse.store.rows import Ending, EndingKind
from pulse.store.statements import STATEMENTS
from pulse.store.store import Store
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import (
    LEASE_S,
    NOW,
    TERMINAL,
    TOPIC,
    WORKER,
    Sql,
    at,
    fence,
    forge,
    found_of,
    new_id,
    remember,
)

HOST: Final = "here"
HELD_AT: Final = "9999-12-30 00:00+00"
ROWS: Final = 100_000
PLANS: Final = ("force_generic_plan", "force_custom_plan")


async def standing(store: Store, identity: bytes, seconds: float = 0.0) -> StoredFacts:
    return found_of(await store.reads.why(identity, HOST, at(seconds)))


async def test_no_such_job(store: Store) -> None:
    assert await store.reads.why(new_id(), HOST) is None


async def test_a_job_that_waits(store: Store, connection: Sql) -> None:
    identity = await forge(connection, priority=3, expires_at=at(60), submitted_at=at(-5))
    assert await standing(store, identity) == StoredFacts(
        id=identity, topic=TOPIC, name="n", status="PENDING", priority=3, attempts=0, uncharged=0, max_attempts=5,
        crashes=0, submitted_at=at(-5).timestamp(), next_run_at=NOW.timestamp(), expires_at=at(60).timestamp(),
        now=NOW.timestamp(),
    )  # fmt: skip


async def test_the_database_has_the_time(store: Store, connection: Sql) -> None:
    identity = await forge(connection)
    found = found_of(await store.reads.why(identity, HOST))
    now_s = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
    assert abs(found.now - now_s) < 5


async def test_a_job_that_runs(store: Store, connection: Sql) -> None:
    """Its worker, since when, until when, and when that worker's host was last seen, in the boot that it names."""
    identity = await forge(connection, "RUNNING", locked_by="there/b/1/7.8/w", crashes=1)
    await connection.execute(
        "INSERT INTO pulse.hosts (host, boot, pidns, seen_at) VALUES ('there', 'b', 1, $1), ('there', 'c', 1, $2)",
        at(-3),
        at(-1),
    )
    found = await standing(store, identity)
    assert (found.status, found.locked_by, found.crashes, found.before) == ("RUNNING", "there/b/1/7.8/w", 1, 0)
    assert (found.started_at, found.lease_until) == (NOW.timestamp(), at(LEASE_S).timestamp())
    assert found.host_seen_at == at(-3).timestamp()


async def test_a_lease_that_lapsed(store: Store, connection: Sql) -> None:
    """A job without a holder has the host of its newest attempt."""
    identity = await forge(connection, "RUNNING", locked_by="there/b/1/7.8/w", lease_until=at(-1))
    seen = at(-90)
    await connection.execute("INSERT INTO pulse.hosts (host, boot, pidns, seen_at) VALUES ('there', 'b', 1, $1)", seen)
    await store.end([Ending(identity, 1, "there/b/1/7.8/w", EndingKind.LEASE_EXPIRED, "lapsed", 5.0)], now=NOW)
    found = await standing(store, identity, 1)
    assert (found.outcome, found.worker, found.host_seen_at) == ("lease_expired", "there/b/1/7.8/w", seen.timestamp())


@pytest.mark.parametrize("status", TERMINAL)
async def test_a_job_that_has_ended(store: Store, connection: Sql, status: str) -> None:
    found = await standing(store, await forge(connection, status, last_error="x" * 1000))
    assert (found.status, found.completed_at, found.last_error) == (status, NOW.timestamp(), "x" * 500)


async def test_after_an_error(store: Store, connection: Sql) -> None:
    """How, when and where the newest attempt ended, with which error; not older ones."""
    identity = await forge(connection, "RUNNING", attempts=2)
    await remember(connection, identity, "expired", 0)
    await remember(connection, identity, "timeout")
    await store.end([Ending(*fence(identity, 2), EndingKind.ERROR, "y" * 1000, 5.0)], now=NOW)
    found = await standing(store, identity, 1)
    assert (found.outcome, found.attempt_error, found.worker) == ("error", "y" * 500, WORKER)
    assert (found.ended_at, found.next_run_at) == (NOW.timestamp(), at(5).timestamp())
    assert (found.is_due, found.was_given_back) == (False, False)


@pytest.mark.parametrize("attempt", [1, 2])
async def test_a_signal_that_it_waits_for(store: Store, connection: Sql, attempt: int) -> None:
    """Until it runs, or the signal has come; also after an attempt that failed."""
    identity = await forge(connection, "RUNNING", attempts=attempt)
    waits = Ending(*fence(identity, attempt), EndingKind.SNOOZED, None, 60.0, awaits=("paid", 0))
    await store.end([waits], now=NOW)
    found = await standing(store, identity, 1)
    assert (found.awaited_signal, found.waits_for_signal, found.outcome) == ("paid", True, "snoozed")
    assert (found.ended_at, found.next_run_at) == (NOW.timestamp(), at(60).timestamp())
    assert not (await standing(store, identity, 60)).waits_for_signal
    await store.signals.send(identity, "paid", "null", None)
    assert (await standing(store, identity, 1)).awaited_signal is None


async def test_what_expired_before_it_was_claimed(store: Store, connection: Sql) -> None:
    identity = await forge(connection)
    await remember(connection, identity, "expired", 0)
    assert (await standing(store, identity)).outcome is None


async def test_what_nobody_could_take(store: Store, connection: Sql) -> None:
    identity = await forge(connection, "RUNNING")
    await store.end([Ending(*fence(identity), EndingKind.UNASSIGNED, "no handler", 5.0)], now=NOW)
    found = await standing(store, identity, 1)
    assert (found.status, found.outcome, found.was_given_back, found.is_due) == ("PENDING", None, True, False)


@pytest.mark.parametrize("topic", ["", TOPIC, "other"])
async def test_pauses(store: Store, connection: Sql, topic: str) -> None:
    """Those of everything and of its topic, with all their columns; not those of others."""
    identity = await forge(connection)
    await store.gate.pause(topic, "why", who="me", for_s=60.0, now=NOW)
    told: list[object] = [NOW.timestamp(), at(60).timestamp(), "me", "why"]
    nothing: list[object] = [None] * 4
    found = await standing(store, identity, 59)
    everything = [found.all_paused_at, found.all_paused_until, found.all_paused_by, found.all_reason]
    its_topic = [found.paused_at, found.paused_until, found.paused_by, found.reason]
    assert (everything, its_topic) == (told if topic == "" else nothing, told if topic == TOPIC else nothing)


@pytest.mark.parametrize("topic", ["", TOPIC])
async def test_pauses_that_are_over(store: Store, connection: Sql, topic: str) -> None:
    """A pause ends by its time, cleared or not, or by hand."""
    identity = await forge(connection)
    await store.gate.pause(topic, None, for_s=60.0, now=NOW)
    found = await standing(store, identity, 60)
    assert (found.all_paused_at, found.paused_at) == (None, None)
    await store.gate.pause(topic, None)
    await store.gate.resume(topic)
    found = await standing(store, identity)
    assert (found.all_paused_at, found.paused_at) == (None, None)


async def test_held_behind_its_schedule(store: Store, connection: Sql) -> None:
    """A held job has the job before it, its status, and the number of its schedule's that go first."""
    schedule, last = new_id().hex(), await forge(connection, "RUNNING")
    await connection.execute(
        "INSERT INTO pulse.schedules (id, name, kind, every_s, last_job_id) VALUES ($1, 'n', 'every', 5, $2)",
        schedule,
        last.hex(),
    )
    marked = await connection.fetchval(f"SELECT '{HELD_AT}'::timestamptz")
    held = [
        await forge(connection, schedule_id=schedule, occurrence=at(seconds), next_run_at=marked)
        for seconds in range(3)
    ]
    free = await forge(connection, schedule_id=schedule, occurrence=at(9))
    found = [await standing(store, identity) for identity in held]
    assert [(one.held, one.last_job_id, one.last_job_status) for one in found] == [(True, last, "RUNNING")] * 3
    assert [one.held_before for one in found] == [0, 1, 2]
    other = await standing(store, free)
    assert (other.held, other.last_job_id, other.held_before) == (False, None, 0)
    assert not (await standing(store, await forge(connection, next_run_at=marked))).held


async def test_what_is_known_of_its_handler_and_of_hosts(store: Store, connection: Sql) -> None:
    """The topic of its handler and when it was seen; and the other hosts of the last minute."""
    identity = await forge(connection)
    await connection.execute("INSERT INTO pulse.handlers (name, topic, seen_at) VALUES ('n', 'u', $1)", at(-9))
    await connection.execute(
        "INSERT INTO pulse.hosts (host, boot, pidns, seen_at)"
        " VALUES ($1, 'b', 1, $2), ('a', 'b', 1, $2), ('a', 'c', 1, $2), ('old', 'b', 1, $3)",
        HOST,
        at(-59),
        at(-60),
    )
    found = await standing(store, identity)
    assert (found.handler_topic, found.handler_seen_at, found.other_hosts) == ("u", at(-9).timestamp(), 1)


async def test_who_comes_first(store: Store, connection: Sql) -> None:
    """Of its topic, waiting and due: of a higher priority, or due earlier at the same one."""
    identity = await forge(connection)
    first: list[dict[str, Any]] = [
        {"next_run_at": at(-1)},
        {"priority": 1, "next_run_at": at(5)},
        {"priority": 100, "next_run_at": at(-3)},
    ]
    for columns in first:
        await forge(connection, **columns)
    await forge(connection, "RETRYING", next_run_at=at(-2))
    later: list[dict[str, Any]] = [
        {"next_run_at": at(1)}, {"priority": -1, "next_run_at": at(-9)}, {"priority": 2, "next_run_at": at(11)},
        {"topic": "other", "next_run_at": at(-9)},
    ]  # fmt: skip
    for columns in later:
        await forge(connection, **columns)
    await forge(connection, "RUNNING", next_run_at=at(-9))
    assert (await standing(store, identity, 10)).before == len(first) + 1


async def test_who_comes_first_of_what_is_not_due(store: Store, connection: Sql) -> None:
    identity = await forge(connection, next_run_at=at(5))
    await forge(connection)
    assert (await standing(store, identity, 4)).before == 0


@pytest.fixture(scope="module")
def crowded_database(server: Postgres) -> Any:
    with server.database() as made:
        yield made


@pytest.mark.rest
async def test_among_many_that_wait(crowded_database: str) -> None:
    """A count that ends at its bound, and reads no more than that, with any statistics."""
    plain = await asyncpg.connect(crowded_database)
    await plain.execute(
        "INSERT INTO pulse.jobs (id, topic, name, priority, max_attempts, next_run_at)"
        " SELECT gen_random_uuid(), $1, 'n', CASE WHEN n % 2 = 0 THEN 0 ELSE 5 END, 5,"
        " CASE WHEN n % 2 = 0 THEN $2::timestamptz ELSE $3 END + n * interval '1 us'"
        " FROM generate_series(1, $4::int) AS n",
        TOPIC,
        NOW,
        at(86400),
        ROWS,
    )
    last = await forge(plain, next_run_at=at(5), args='{"a": 1}')
    third = await plain.fetchval(
        "SELECT uuid_send(id) FROM pulse.jobs WHERE priority = 0 ORDER BY next_run_at OFFSET 3 LIMIT 1"
    )
    store = Store(Target(crowded_database, "why"))
    assert [(await standing(store, one, 10)).before for one in (last, third)] == [BEFORE_MAX, 3]
    store.close()
    query = await connect(Target(crowded_database, "why"), {})
    for statistics in ("never", "fresh"):
        if statistics == "fresh":
            await plain.execute("ANALYZE")
        for mode in PLANS:
            plan = await plan_of_why(query, mode, f"{statistics}_{mode}", last)
            buffers = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
            assert buffers < 3 * BEFORE_MAX, (statistics, mode, buffers)
            used = {node["Index Name"] for node in nodes(plan) if "Index Name" in node}
            assert {"jobs_pkey", "idx_jobs_claim"} <= used
            assert not [
                node
                for node in nodes(plan)
                if node.get("Relation Name") == "jobs" and node["Node Type"] in {"Seq Scan", "Bitmap Heap Scan"}
            ]
    query.terminate()
    await plain.close(timeout=5)


async def plan_of(connection: Sql, mode: str, name: str, statement: str, arguments: str) -> dict[str, Any]:
    await connection.execute(f"SET plan_cache_mode = {mode}")
    await connection.execute(f"PREPARE {name} AS {STATEMENTS[statement].sql}")
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {name} ({arguments})")
    found: dict[str, Any] = json.loads(text)[0]["Plan"]
    return found


async def plan_of_why(connection: Sql, mode: str, name: str, identity: bytes) -> dict[str, Any]:
    arguments = f"'{identity.hex()}', {BEFORE_MAX}, '{HOST}', '{at(10).isoformat()}'"
    return await plan_of(connection, mode, name, "why_job", arguments)


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", []) for node in nodes(child))]
