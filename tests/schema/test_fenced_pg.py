"""pulse.check_attempt and pulse.complete_attempt: the fence of a handler's own transaction, on every PostgreSQL."""

from __future__ import annotations

from typing import Any, Final

import asyncpg
import pytest

from tests.support.store.helpers import OTHER, STATUSES, WORKER, Sql, changes, forge, new_id, read

pytestmark = [pytest.mark.postgres, pytest.mark.anyio]

CALLS: Final = ("check_attempt(%s)", "check_attempt(%s, lock => true)", "complete_attempt(%s, result => '1')")
each_call = pytest.mark.parametrize("call", CALLS, ids=["check", "lock", "complete"])


async def fenced(
    connection: Sql, call: str, job: bytes, attempt: int = 1, worker: str = WORKER, **setting: str
) -> None:
    async with connection.transaction(**setting):  # type: ignore[arg-type]
        await connection.execute(f"SELECT pulse.{call % '$1, $2, $3'}", job.hex(), attempt, worker)


async def refused(connection: Sql, *call: Any, **more: Any) -> None:
    with pytest.raises(asyncpg.PostgresError, match="no longer holds job") as caught:
        await fenced(connection, *call, **more)
    assert getattr(caught.value, "sqlstate", "") == "PU001"


@each_call
@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read"])
async def test_a_stale_attempt_gets_an_error(connection: Sql, call: str, isolation: str) -> None:
    """Another job, attempt or holder; the row stays as it is, and its holder passes."""
    job = await forge(connection, "RUNNING", attempts=5)
    await forge(connection, "RUNNING", attempts=5)
    before = await read(connection, job)
    for stale in ((new_id(), 5), (job, 4), (job, 6), (job, 5, OTHER)):
        await refused(connection, call, *stale, isolation=isolation)
        assert await read(connection, job) == before
    await fenced(connection, call, job, 5, isolation=isolation)
    assert bool(changes(before, await read(connection, job))) == ("complete" in call)


@each_call
@pytest.mark.usefixtures("own_database")
async def test_only_a_running_job_has_an_attempt(connection: Sql, call: str) -> None:
    """Even if a row in another status still named its holder, which the schema refuses."""
    await connection.execute("ALTER TABLE pulse.jobs DROP CONSTRAINT jobs_lease")
    for status in sorted(set(STATUSES) - {"RUNNING"}):
        job = await forge(connection, status, attempts=1, locked_by=WORKER)
        before = await read(connection, job)
        for isolation in ("read_committed", "serializable"):
            await refused(connection, call, job, isolation=isolation)
        assert await read(connection, job) == before


async def test_the_check_locks_where_it_must(connection: Sql, other: Sql) -> None:
    """At the end of a block; and at its beginning, if the transaction has one snapshot."""
    job = await forge(connection, "RUNNING")
    free = "SELECT count(*) FROM (SELECT FROM pulse.jobs FOR NO KEY UPDATE SKIP LOCKED) AS free"
    for lock, isolation, is_free in (
        ("false", "read_committed", 1), ("true", "read_committed", 0), ("false", "repeatable_read", 0),
        ("false", "serializable", 0),
    ):  # fmt: skip
        async with connection.transaction(isolation=isolation):  # type: ignore[arg-type]
            await connection.execute(f"SELECT pulse.check_attempt($1, 1, $2, {lock})", job.hex(), WORKER)
            assert await other.fetchval(free) == is_free, (lock, isolation)


async def test_a_read_only_transaction_is_refused_at_once(connection: Sql) -> None:
    job = await forge(connection, "RUNNING")
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError, match="the transaction is read-only"):
        await fenced(connection, CALLS[0], job, readonly=True)  # type: ignore[arg-type]


async def test_what_is_stored(connection: Sql) -> None:
    """A result, if there is one, and the newest progress, else the one before; at most 4 MiB, as of a report."""
    job, bare = [await forge(connection, "RUNNING", progress='"old"') for _ in range(2)]
    complete = "SELECT pulse.complete_attempt($1, 1, $2, $3, $4)"
    with pytest.raises(asyncpg.ProgramLimitExceededError, match="result is too large: 4194305 bytes; at most 4194304"):
        await connection.execute(complete, job.hex(), WORKER, f'"{"x" * (4 * 1024 * 1024 - 1)}"', None)
    await connection.execute(complete, job.hex(), WORKER, f'"{"x" * (4 * 1024 * 1024 - 2)}"', '"new"')
    await connection.execute(complete, bare.hex(), WORKER, None, None)
    full, empty = await read(connection, job), await read(connection, bare)
    assert (len(full["result"]), full["progress"]) == (4 * 1024 * 1024, '"new"')
    assert (empty["result"], empty["progress"]) == (None, '"old"')
    for row in (full, empty):
        assert (row["status"], row["ran_by"], row["locked_by"], row["lease_until"]) == ("COMPLETED", WORKER, None, None)
