"""Jobs that are not worth starting late: never claimed after their time, and dead letters soon."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import anyio
import asyncpg
import pytest
import structlog
from structlog.testing import capture_logs

from pulse.errors import StatementError, UnavailableError
from pulse.store.rows import Claim, Ending, EndingKind, ExpiredJob, from_s
from pulse.store.store import Store
from pulse.system.failure_log import FailureLog
from pulse_actors.watchdog import expiry
from pulse_actors.watchdog.expiry import expire
from tests.support.store.helpers import (
    LEASE_S,
    NOW,
    STATUSES,
    TERMINAL,
    TOPIC,
    WAITING,
    WORKER,
    Patch,
    Sql,
    at,
    forge,
    history,
    job,
    read,
)
from tests.support.store.refusing_kit import refusing
from tests.support.waiting import until_async, until_blocked

pytestmark = pytest.mark.heavy


async def expires_at(connection: Sql, identity: bytes) -> object:
    return await connection.fetchval("SELECT expires_at FROM pulse.jobs WHERE id = $1", UUID(bytes=identity))


@pytest.mark.parametrize("status", WAITING)
@pytest.mark.parametrize("levels", [None, [(TOPIC, 0, NOW.timestamp())]], ids=["full", "known levels"])
async def test_what_has_expired_is_not_claimed(
    store: Store, connection: Sql, status: str, levels: list[tuple[str, int, float | None]] | None
) -> None:
    for _ in range(20):
        await forge(connection, status, expires_at=at(5))
    good = await forge(connection, status, next_run_at=at(1), expires_at=at(5.001))
    found = await store.claim([TOPIC], [WORKER], [0] * 9, LEASE_S, levels=levels, now=at(5))
    assert [one.id for one in found] == [good]


@pytest.mark.parametrize("ageing", [None, {TOPIC: 1.0}], ids=["strict", "ageing"])
@pytest.mark.parametrize("levels", [None, [(TOPIC, 0, None)]], ids=["full", "known levels"])
async def test_what_expires_while_a_claim_waits(
    store: Store,
    connection: Sql,
    dsn: str,
    levels: list[tuple[str, int, float | None]] | None,
    ageing: dict[str, float] | None,
) -> None:
    """A claim that waited for a lock on the table leaves out jobs that expired meanwhile, and takes all others."""
    await connection.execute(
        "SELECT pulse.submit(name => 'n', topic => $1, expires_in_s => s) FROM unnest('{0.3,1e6}'::float8[]) AS s",
        TOPIC,
    )
    holder = await asyncpg.connect(dsn)
    try:
        await holder.execute("BEGIN; LOCK TABLE pulse.jobs IN EXCLUSIVE MODE")
        claiming = asyncio.create_task(store.claim([TOPIC], [WORKER], [0] * 9, LEASE_S, levels=levels, ageing_s=ageing))
        await until_blocked(connection, by=holder.get_server_pid())
        is_over = "SELECT min(expires_at) < clock_timestamp() FROM pulse.jobs"
        await until_async(lambda: connection.fetchval(is_over), "its time is over")
    finally:
        await holder.close()
    assert [row["started_at"] < row["expires_at"] for row in await _claimed(connection, await claiming)] == [True]


@pytest.mark.parametrize("ageing", [None, {TOPIC: 1.0}], ids=["strict", "ageing"])
async def test_what_expires_while_a_claim_works(store: Store, connection: Sql, ageing: dict[str, float] | None) -> None:
    await connection.execute(
        """INSERT INTO pulse.jobs (id, name, topic, args, max_attempts, timeout_s, expires_at)
           SELECT gen_random_uuid(), 'n', $1, '{}', 1, 1, now() + n * interval '1 millisecond'
           FROM generate_series(1, 500) AS n""",
        TOPIC,
    )
    rows = await _claimed(connection, await store.claim([TOPIC], [WORKER], [0] * 500, LEASE_S, ageing_s=ageing))
    assert 0 < len(rows) < 500
    assert all(row["started_at"] < row["expires_at"] for row in rows)


async def _claimed(connection: Sql, claims: list[Claim]) -> list[Any]:
    ids = [UUID(bytes=one.id) for one in claims]
    return await connection.fetch("SELECT started_at, expires_at FROM pulse.jobs WHERE id = ANY($1)", ids)


async def test_who_expires(store: Store, connection: Sql) -> None:
    made = {
        (status, seconds): await forge(connection, status, expires_at=at(seconds), next_run_at=at(100))
        for status in STATUSES
        for seconds in (0, 10, 11)
    }
    never = await forge(connection)
    await store.gate.pause("", None)
    assert len(await store.expire(100, now=at(10))) == 4
    assert (await read(connection, never))["status"] == "PENDING"
    for (status, seconds), identity in made.items():
        row = await read(connection, identity)
        dead = status in WAITING and seconds <= 10
        assert row["status"] == ("DEAD_LETTERED" if dead else status)
        assert (row["completed_at"] == at(10)) is dead
    assert len(await store.expire(100, now=at(10))) == 0


async def test_what_an_expired_job_says(store: Store, connection: Sql) -> None:
    fresh = await forge(connection, expires_at=at(5.25))
    failed = await forge(connection, "RETRYING", expires_at=at(5.25), last_error="boom", progress="1")
    assert len(await store.expire(100, now=at(6))) == 2
    text = "expired: not started by 2030-01-01T00:00:05.250Z"
    assert (await read(connection, fresh))["last_error"] == text
    row = await read(connection, failed)
    assert row["last_error"] == f"{text}\nthe last error was: boom"
    assert (row["attempts"], row["uncharged"], row["progress"]) == (1, 0, "1")
    for identity, error in ((fresh, text), (failed, row["last_error"])):
        (one,) = await history(connection, identity)
        found = {name: one[name] for name in ("attempt", "outcome", "worker", "ended_at", "error")}
        assert [*found.values()] == [0, "expired", None, at(6), error]


@pytest.mark.parametrize("status", ["RUNNING", *TERMINAL])
async def test_what_does_not_wait_takes_no_place(store: Store, connection: Sql, status: str) -> None:
    """Of so many late jobs as are asked for, each one waits, however many others are later."""
    await forge(connection, status, expires_at=at(-20))
    late = await forge(connection, expires_at=at(-10))
    assert [one.id for one in await store.expire(1, now=NOW)] == [late]


async def test_some_at_a_time(store: Store, connection: Sql) -> None:
    ids = [await forge(connection, expires_at=at(-seconds)) for seconds in range(5)]
    assert len(await store.expire(2, now=NOW)) == 2
    assert [(await read(connection, one))["status"] for one in ids] == ["PENDING"] * 3 + ["DEAD_LETTERED"] * 2


async def test_a_row_that_is_locked_waits_for_the_next_look(store: Store, connection: Sql) -> None:
    locked, other = [await forge(connection, expires_at=NOW) for _ in range(2)]
    async with connection.transaction():
        await connection.execute("SELECT FROM pulse.jobs WHERE id = $1 FOR UPDATE", UUID(bytes=locked))
        assert len(await store.expire(10, now=at(1))) == 1
    assert (await read(connection, other))["status"] == "DEAD_LETTERED"
    assert len(await store.expire(10, now=at(1))) == 1


@pytest.mark.parametrize("kind", [EndingKind.ERROR, EndingKind.RELEASED, EndingKind.SNOOZED])
async def test_what_runs_may_finish_but_not_start_again(store: Store, connection: Sql, kind: EndingKind) -> None:
    """A handler that started in time goes on; if it fails, or is given back, after that time, the job ends."""
    identity = await forge(connection, "RUNNING", expires_at=at(1))
    assert len(await store.expire(10, now=at(2))) == 0
    await store.end([Ending(identity, 1, WORKER, kind, "boom", 0.0)], now=at(2))
    assert len(await store.expire(10, now=at(2))) == 1
    row = await read(connection, identity)
    assert (row["status"], row["last_error"].split(":")[0]) == ("DEAD_LETTERED", "expired")
    assert {one["outcome"] for one in await history(connection, identity)} == {kind.value, "expired"}


@pytest.mark.parametrize(("now", "left"), [(at(4), at(5)), (at(5), None)])
async def test_a_retry_drops_an_expiry_that_is_over(store: Store, connection: Sql, now: Any, left: object) -> None:
    identity = await forge(connection, "CANCELED", expires_at=at(5))
    await store.retry([identity], now=now)
    assert await expires_at(connection, identity) == left
    assert len(await store.expire(10, now=now)) == 0
    assert [one.id for one in await store.claim([TOPIC], [WORKER], [0], LEASE_S, now=now)] == [identity]


@pytest.mark.parametrize("again", [False, True])
async def test_submit(store: Store, connection: Sql, again: bool) -> None:
    absolute, relative, never = job(expires_at=at(7).timestamp()), job(expires_in_s=2.5, delay_s=1.0), job()
    jobs = [absolute, relative, never]
    submit = store.submit_again if again else store.submit
    await submit(jobs, now=NOW)
    expected = [at(7), at(2.5), None]
    assert [await expires_at(connection, one.id or b"") for one in jobs] == expected
    await store.submit_again(jobs, now=at(1))
    assert [await expires_at(connection, one.id or b"") for one in jobs] == expected


async def test_submit_by_sql(connection: Sql) -> None:
    one = await connection.fetchval(
        "SELECT pulse.submit(name => 'n', expires_at => '2030-01-01T00:00:09Z', run_at => '2030-01-01')"
    )
    two = await connection.fetchval("SELECT pulse.submit(name => 'n', expires_in_s => 60)")
    many = await connection.fetch(
        """SELECT pulse.submit_many('[{"name": "n", "expires_in_s": 60}, {"name": "n", "expires_at": "2001-01-01Z"},
                                      {"name": "n"}]') AS id"""
    )
    rows = {row["id"]: row for row in await connection.fetch("SELECT id, submitted_at, expires_at FROM pulse.jobs")}
    assert rows[one]["expires_at"] == at(9)
    for identity in (two, many[0]["id"]):
        row = rows[identity]
        assert (row["expires_at"] - row["submitted_at"]).total_seconds() == pytest.approx(60, abs=1)
    assert rows[many[1]["id"]]["expires_at"] == from_s(978307200)
    assert rows[many[2]["id"]]["expires_at"] is None


@pytest.mark.parametrize(("given", "message"), [
    ({"expires_in_s": -1}, "expires_in_s is -1; seconds above 0, at most 1e9, are allowed"),
    ({"expires_in_s": 0}, "expires_in_s is 0; seconds above 0, at most 1e9, are allowed"),
    ({"expires_in_s": 2e9}, "expires_in_s is 2000000000; seconds above 0, at most 1e9, are allowed"),
    (
        {"expires_in_s": 1, "expires_at": "2030-01-01Z"},
        "expires_at and expires_in_s are both given; one of them is allowed",
    ),
    (
        {"expires_at": "2030-01-01T00:00:00+00", "run_at": "2030-01-01T00:00:00+00"},
        "expires_at is 2030-01-01 00:00:00+00; a time after run_at (2030-01-01 00:00:00+00) is allowed",
    ),
])  # fmt: skip
async def test_what_sql_refuses(connection: Sql, given: dict[str, object], message: str) -> None:
    await connection.execute("SET timezone = 'UTC'")
    arguments = ", ".join(f"{key} => '{value}'" for key, value in given.items())
    for sql in (
        f"SELECT pulse.submit(name => 'n', {arguments})",
        f"SELECT pulse.submit_many('{json.dumps([{'name': 'n'}, {'name': 'n', **given}])}')",
    ):
        with pytest.raises(asyncpg.InvalidParameterValueError) as caught:
            await connection.execute(sql)
        assert str(caught.value) == message
    assert await connection.fetchval("SELECT count(*) FROM pulse.jobs") == 0


async def test_the_sweep(store: Store, connection: Sql, monkeypatch: Patch) -> None:
    monkeypatch.setattr(expiry, "LIMIT", 3)
    ids = [await forge(connection, expires_at=NOW, submitted_at=NOW) for _ in range(7)]
    await connection.execute("UPDATE pulse.jobs SET expires_at = now()")
    with structlog.testing.capture_logs() as logs:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expire, store, FailureLog(structlog.get_logger()))

            async def are_dead() -> bool:
                waiting = await connection.fetchval("SELECT count(*) FROM pulse.jobs WHERE status = 'PENDING'")
                return waiting == 0 and any(one["event"] == "jobs_expired" for one in logs)

            await until_async(are_dead, "the sweep")
            tasks.cancel_scope.cancel()
    assert [one["count"] for one in logs if one["event"] == "jobs_expired"] == [7]
    assert {(await read(connection, one))["status"] for one in ids} == {"DEAD_LETTERED"}


async def test_what_has_expired_is_logged_though_the_answer_was_lost(
    store: Store, connection: Sql, monkeypatch: Patch
) -> None:
    real = Store.expire

    async def lose(self: Store, limit: int) -> list[ExpiredJob]:
        await real(self, limit)
        raise UnavailableError("the connection is gone")

    late = await forge(connection, "PENDING", expires_at=datetime.now(UTC) - timedelta(seconds=1))
    await forge(connection, "DEAD_LETTERED")
    sweep = expiry._Sweep(store, FailureLog(structlog.get_logger()))
    with capture_logs() as logged:
        with monkeypatch.context() as losing:
            losing.setattr(Store, "expire", lose)
            with pytest.raises(UnavailableError):
                await sweep.some(1)
        assert logged == []
        assert await sweep.some(1) == 0
        assert await sweep.some(1) == 0
    (line,) = logged
    assert (line["event"], line["id"], line["outcome"]) == ("job_dead_lettered", str(UUID(bytes=late)), "expired")


async def late(connection: Sql) -> bytes:
    return await forge(connection, "PENDING", expires_at=datetime.now(UTC) - timedelta(seconds=1))


async def aside(connection: Sql) -> set[bytes]:
    return {row["job_id"].bytes for row in await connection.fetch("SELECT job_id FROM pulse.set_aside")}


async def test_one_that_is_refused_is_set_aside_alone(store: Store, connection: Sql) -> None:
    """While several are expired at once, nobody knows which of them it is."""
    sweep = expiry._Sweep(store, FailureLog(structlog.get_logger()))
    bad, good = [await late(connection) for _ in range(2)]
    async with refusing(connection, {bad: "ZZ999"}, "DEAD_LETTERED"):
        assert await sweep.some(2) is None
        assert await aside(connection) == set()
        assert await sweep.some(1) == 1
    assert await aside(connection) == {bad}
    assert (await read(connection, good))["status"] == "DEAD_LETTERED"


@pytest.mark.usefixtures("own_database")
async def test_a_statement_that_is_refused_without_a_late_job(store: Store, connection: Sql) -> None:
    await connection.execute(
        """
        CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''no''; END';
        CREATE TRIGGER refuse BEFORE UPDATE ON pulse.jobs EXECUTE FUNCTION public.refuse();
        """
    )
    with pytest.raises(StatementError, match="refuses expire_jobs"):
        await expiry._Sweep(store, FailureLog(structlog.get_logger())).some(1)
