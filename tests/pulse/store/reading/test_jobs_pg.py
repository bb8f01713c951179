"""What people ask of the store: one job, pages of jobs, counts."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from typing import Any, Final

import pytest
from asyncpg.pgproto.pgproto import UUID

from pulse.errors import StatementTimeoutError, UnavailableError
from pulse.store.connections.pool import Target
from pulse.store.reading import counts
from pulse.store.reading import jobs as reads
from pulse.store.reading.counts import Depth
from pulse.store.reading.listing import JobFilter
from pulse.store.rows import Ending, EndingKind, NewSchedule
from pulse.store.statements import STATEMENTS
from pulse.store.store import Store
from pulse_supervisor.control.status import GATHER_S
from tests.support.servers.proxy import Proxy, socket_of, through
from tests.support.store.helpers import (
    NOW,
    STATUSES,
    WORKER,
    Patch,
    Sql,
    at,
    fence,
    forge,
    found_of,
    holding,
    new_id,
    remember,
)
from tests.support.waiting import DEADLINE_S, until_async

STOP_WAITING: Final = """
    SELECT pg_cancel_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pg_blocking_pids(pid) <> '{}'
"""


async def test_a_job_that_goes_after_it_could_not_be_read(connection: Sql) -> None:
    assert await reads._legible(connection, UUID(bytes(16))) is None


async def test_one_job(store: Store, connection: Sql) -> None:
    """All its columns, times as Unix seconds, JSON as text, and its history, oldest first."""
    identity = await forge(connection, "RUNNING", args='{"a": [1]}', progress="0.5", attempts=2, lease_until=at(-1))
    await remember(connection, identity)
    await store.end([Ending(*fence(identity, 2), EndingKind.TIMEOUT, "why", 5.0)], now=NOW)
    found = found_of(await store.reads.job(identity))
    columns = await connection.fetch(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'pulse.jobs'::regclass AND attnum > 0"
    )
    of_claims = {"checkpoint", "traceparent", "counted_by", "run_after"}  # they are for the next attempt
    assert set(found) == {row["attname"] for row in columns} - of_claims | {"history"}
    expected = {
        "id": identity, "args": '{"a": [1]}', "status": "RETRYING", "next_run_at": at(5).timestamp(),
        "progress": "0.5",
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    told: Any = found["history"]
    assert [(x["attempt"], x["outcome"], x["worker"]) for x in told] == [(1, "error", None), (2, "timeout", WORKER)]
    assert (told[1]["job_id"], told[1]["ended_at"], told[1]["progress"]) == (identity, NOW.timestamp(), "0.5")


async def test_history_has_the_columns_of_an_attempt(store: Store, connection: Sql) -> None:
    identity = await forge(connection, "RETRYING", attempts=1)
    await connection.execute(
        "INSERT INTO pulse.attempts VALUES ($1, $2, $3, 7, -9, 'stalled', 'w:1', 'slow', '0.25', 1.5, 4096, 'at x')",
        identity.hex(), at(-2), at(-1),
    )  # fmt: skip
    found = await store.reads.job(identity)
    row = await connection.fetchrow("SELECT * FROM pulse.attempts WHERE job_id = $1", identity.hex())
    assert found is not None
    assert row is not None
    assert found["history"] == [{**reads.wire_row(row), "job_id": identity}]


async def test_no_job(store: Store) -> None:
    assert await store.reads.job(new_id()) is None


def test_cursors_are_exact() -> None:
    identity = new_id()
    moment, decoded = reads.decode_cursor(reads.encode_cursor(at(0.000001), identity))
    assert (moment, decoded) == (at(0.000001), uuid.UUID(bytes=identity))


async def test_counts(store: Store, connection: Sql) -> None:
    """A small table is counted exactly, every status named, also those without a job."""
    for number, status in enumerate(STATUSES[1:], 1):
        for _ in range(number):
            await forge(connection, status)
    expected = dict(zip(STATUSES, range(len(STATUSES)), strict=True))
    assert await store.reads.counts() == (expected, True)


async def test_counts_of_a_large_table(store: Store, connection: Sql, monkeypatch: Patch) -> None:
    """Beyond the limit, jobs that may still run are counted, and finished ones estimated from the statistics."""
    monkeypatch.setattr(reads, "EXACT_ROWS", 5)
    for status, jobs in (("COMPLETED", 30), ("PENDING", 4), ("RUNNING", 3), ("RETRYING", 2), ("CANCELED", 10)):
        for _ in range(jobs):
            await forge(connection, status)
    await connection.execute("ANALYZE pulse.jobs")
    await forge(connection)
    counted, exact = await store.reads.counts()
    assert not exact
    assert counted == {"PENDING": 5, "RUNNING": 3, "RETRYING": 2, "COMPLETED": 30, "DEAD_LETTERED": 0, "CANCELED": 10}


async def test_counts_that_take_too_long(store: Store, connection: Sql, monkeypatch: Patch) -> None:
    for status, jobs in (("COMPLETED", 30), ("PENDING", 10)):
        for _ in range(jobs):
            await forge(connection, status)
    await connection.execute("ANALYZE pulse.jobs")
    slow = dataclasses.replace(STATEMENTS["count_jobs"], sql="SELECT 'PENDING' AS status, $1::int FROM pg_sleep(60)")
    monkeypatch.setattr(reads, "STATEMENTS", {**STATEMENTS, "count_jobs": slow})
    before = await _session(store)
    counted, exact = await store.reads.counts()
    assert not exact
    assert counted == {**dict.fromkeys(STATUSES, 0), "PENDING": 10, "COMPLETED": 30}
    assert await _session(store) == before, "to open another one may take longer than there is time"


async def _session(store: Store) -> int:
    async with store.query.connection() as connection:
        return connection.get_server_pid()


async def test_the_database(store: Store, connection: Sql) -> None:
    told = await store.reads.database()
    assert told == {
        "ok": True,
        "dsn": store.query.target.shown,
        "schema": "pulse",
        "server_version": await connection.fetchval("SHOW server_version"),
    }


async def test_a_database_that_is_away_is_told_in_time(dsn: str) -> None:
    """The error comes while the supervisor still waits for the answer."""
    async with Proxy(socket_of(dsn)).running() as proxy:
        away = Store(Target(through(dsn, proxy.port), "away"))
        proxy.cut()
        with pytest.raises(UnavailableError, match=r"no answer within 0\.6 s"):
            await away.reads.database()
        away.close()
    assert reads.DATABASE_DEADLINE_S < GATHER_S


async def test_who_may_still_run_a_job(store: Store, connection: Sql) -> None:
    """The worker of the last attempt, if that was canceled or runs; not of an older or finished one."""
    running = await forge(connection, "RUNNING", attempts=2)
    canceled = await forge(connection, "RUNNING", locked_by="w2")
    again = await forge(connection, "CANCELED", attempts=2)
    waiting = await forge(connection)
    failed = await forge(connection, "RUNNING", max_attempts=1)
    await store.cancel([canceled, waiting])
    await store.end([Ending(*fence(failed), EndingKind.DISCARDED, "why")])
    await connection.execute(
        "INSERT INTO pulse.attempts (job_id, attempt, outcome, worker) VALUES ($1, 1, 'canceled', 'w3')", again.hex()
    )
    ids = [running, canceled, again, waiting, failed, new_id()]
    assert await store.reads.last_workers(ids) == {running: WORKER, canceled: "w2"}


async def test_pages_of_large_schedules(store: Store) -> None:
    large = f'{{"a": "{"x" * 1_500_000}"}}'
    made: list[bytes] = []
    for _ in range(3):
        made.append(new_id())
        await store.schedules.create(NewSchedule(made[-1], "n", "at", large, None, run_at=NOW))
    first, after = await store.schedules.page(10, None)
    rest, end = await store.schedules.page(10, after)
    assert ([row["id"] for row in first], [row["id"] for row in rest], end) == ([made[2], made[1]], [made[0]], None)


@pytest.mark.rest
async def test_a_job_larger_than_a_frame(store: Store, connection: Sql) -> None:
    """Its longest text is left out, alone and in a page, with a note."""
    result = f"[{'1, ' * 3_000_000}1]"
    large = await forge(connection, "COMPLETED", args='{"a": 1}', result=result, submitted_at=at(1))
    await forge(connection)
    found = found_of(await store.reads.job(large))
    assert (found["result"], found["omitted"], found["args"], found["history"]) == (None, ["result"], '{"a": 1}', [])
    listed, after, _ = await store.listing.page(JobFilter(), 2, oldest=True, budget_s=DEADLINE_S)
    assert (listed[0]["id"], listed[0]["omitted"], "omitted" in listed[1], after) == (large, ["result"], False, None)


async def test_a_schedule_larger_than_a_frame(store: Store) -> None:
    identity = new_id()
    large = f'{{"a": "{"x" * 9_000_000}"}}'
    await store.schedules.create(NewSchedule(identity, "n", "at", large, None, run_at=NOW))
    found = found_of(await store.schedules.get(identity))
    assert (found["args"], found["omitted"]) == (None, ["args"])


# How many jobs wait, by topic: counted, or estimated from some pages, and never at any price.


FILL: Final = """
    INSERT INTO pulse.jobs (id, name, topic, priority, submitted_at, next_run_at, max_attempts)
    SELECT gen_random_uuid(), 'n', 't' || g % $2, g % 3, $3, $3::timestamptz + g * interval '1 ms', 5
    FROM generate_series(1, $1) AS g
"""


async def test_what_waits_and_what_runs_is_counted(store: Store, connection: Sql) -> None:
    """By topic, the most work first: due, scheduled, retrying, unhandled, running, since when the first is due."""
    for topic, second, status in (
        ("a", -5.0, "PENDING"),
        ("a", -9.0, "RETRYING"),
        ("a", 60.0, "RETRYING"),
        ("a", 0.0, "COMPLETED"),
        ("b", 0.0, "RUNNING"),
        ("c", 5.0, "PENDING"),
    ):
        await forge(connection, status, topic=topic, next_run_at=at(second))
    for status, second, uncharged in (("PENDING", 9.0, 2), ("RETRYING", -1.0, 3), ("PENDING", 9.0, 1)):
        lost = {"last_error": 'no handler named "x" on topic "d"', "uncharged": uncharged, "attempts": uncharged}
        await forge(connection, status, topic="d", next_run_at=at(second), **lost)
    a, b, c, d = (1, 2, 0, 1, 0, 0, 9.0), (1, 0, 0, 0, 0, 1, None), (1, 0, 1, 0, 0, 0, None), (1, 0, 1, 0, 2, 0, None)
    wanted = (Depth("a", *a), Depth("b", *b), Depth("d", *d), Depth("c", *c))
    found = await store.depths.read(10, [], now=NOW)
    assert (found.is_exact, found.now_s) == (True, NOW.timestamp())
    assert set(found.topics) == set(wanted)
    assert [one.topic for one in found.topics] == ["a", "d", "c", "b"]
    sampled = await store.depths.sample(10, [], now=NOW)
    assert {one[:6] for one in sampled.topics} == {one[:6] for one in wanted if one.waiting}


async def test_jobs_that_wait_for_others_are_counted(store: Store, connection: Sql) -> None:
    """They are scheduled; by topic, in a sample as well, and where topics have no row of their own."""
    for topic in "ab":
        parent = await connection.fetchval("SELECT pulse.submit('n', topic => $1)", topic)
        for _ in range(2):
            await connection.execute("SELECT pulse.submit('n', topic => $1, after => $2)", topic, [parent])
    far = at(10 * 365 * 86400)  # nobody waits for so long that this is due
    for topics in ("ab", "a"):
        for found in (
            await store.depths.count(len(topics), now=far),
            await store.depths.sample(len(topics), [], now=far),
        ):
            assert found is not None
            told = [(one.topic, one.ready, one.scheduled, one.waiting_for_jobs) for one in found.topics]
            assert told == [(name, 1, 2, 2) for name in ("a", "b" if topics == "ab" else None)]


async def test_nothing_waits(store: Store) -> None:
    assert await store.depths.read(10, [], now=NOW) == counts.Depths((), is_exact=True, now_s=NOW.timestamp())
    assert await store.depths.sample(10, [], now=NOW) == counts.Depths((), is_exact=False, now_s=NOW.timestamp())


async def test_topics_beyond_the_limit_are_told_together(store: Store, connection: Sql) -> None:
    for number, topic in enumerate("aaabbcd"):
        await forge(connection, topic=topic, next_run_at=at(-number))
    found = await store.depths.read(2, [], now=NOW)
    assert found.topics == (
        Depth("a", 1, 3, 0, 0, 0, 0, 2.0),
        Depth("b", 1, 2, 0, 0, 0, 0, 4.0),
        Depth(None, 2, 2, 0, 0, 0, 0, 6.0),
    )


async def test_too_many_to_be_counted(store: Store, connection: Sql) -> None:
    for _ in range(5):
        await forge(connection)
    assert await store.depths.count(10, rows=5, now=NOW) is not None
    assert await store.depths.count(10, rows=4, now=NOW) is None


@pytest.mark.rest
async def test_many_are_estimated(store: Store, connection: Sql) -> None:
    """A sample is near the truth in sum and by topic; small topics, and named ones, are counted."""
    await connection.execute(FILL, 100_000, 4, NOW)
    for second in (-30.0, 5.0):
        await forge(connection, topic="small", next_run_at=at(second), priority=-100)
    found = await store.depths.sample(10, ["small", "absent"], pages=400.0, now=at(25))
    topics = {one.topic: one for one in found.topics}
    assert topics["small"] == Depth("small", 1, 2, 0, 0, 0, 0, 55.0)
    assert "absent" in topics
    assert topics["absent"][2:4] == (0, 0)
    for name in ("t0", "t1", "t2", "t3"):
        assert topics[name].ready == pytest.approx(6250, rel=0.4)
        assert topics[name].scheduled == pytest.approx(18_750, rel=0.4)
        assert topics[name].oldest_s == pytest.approx(25, abs=0.01)
    assert sum(one.ready + one.scheduled for one in found.topics) == pytest.approx(100_000, rel=0.25)


async def test_a_backlog_is_sampled_until_it_is_small_again(store: Store, connection: Sql, own_database: str) -> None:
    """Beyond the limit nothing is counted; when a sample finds few, everything is."""
    await connection.execute(FILL, counts.ROWS + 1000, 1, NOW)
    assert not (await store.depths.read(10, [], now=NOW)).is_exact
    statements = store.counting.usage.took.total
    found = await store.depths.read(10, [], now=NOW)
    assert not found.is_exact
    assert store.counting.usage.took.total == statements + 1  # the sample alone
    await connection.execute("DELETE FROM pulse.jobs WHERE id IN (SELECT id FROM pulse.jobs LIMIT 15000)")
    assert not (await store.depths.read(10, [], now=NOW)).is_exact
    found = await store.depths.read(10, [], now=NOW)
    assert (found.is_exact, found.topics[0].ready + found.topics[0].scheduled) == (True, counts.ROWS - 14_000)


async def test_a_count_that_is_in_nobodys_interest_ends(store: Store, connection: Sql, dsn: str) -> None:
    """A slow count becomes a sample, and a slow sample is left out."""
    async with holding(dsn, "LOCK TABLE pulse.jobs IN ACCESS EXCLUSIVE MODE"):
        with pytest.raises(UnavailableError, match="lock timeout"):
            await store.depths.read(10, [], now=NOW)
    assert (await store.depths.read(10, [], now=NOW)).is_exact is False  # for a while, a count is not tried again


async def test_a_job_that_is_read_too_slowly_is_not_corrupt(store: Store, connection: Sql, dsn: str) -> None:
    identity = await forge(connection)
    async with holding(dsn, "LOCK TABLE pulse.jobs"):
        reading = asyncio.create_task(store.reads.job(identity))
        await until_async(lambda: connection.fetchval(STOP_WAITING), "a session that waits")
    with pytest.raises(StatementTimeoutError):
        await reading
