"""Jobs in any state, and their history: the vocabulary of the store's tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from pulse.common.ids import uuid7
from pulse.job import Status
from pulse.protocol import SubmittedJob
from pulse.store.connections.pool import Target
from pulse.store.rows import Claim, Fence
from pulse.store.store import Store

if TYPE_CHECKING:
    from asyncpg import Connection, Record

    from tests.support.servers.postgres import Postgres

NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)  # the time that tests pass to statements
LEASE_S: Final = 30.0
WORKER: Final = "w1"
OTHER: Final = "w2"
TOPIC: Final = "t"
TERMINAL: Final = ("COMPLETED", "DEAD_LETTERED", "CANCELED")
WAITING: Final = ("PENDING", "RETRYING")
STATUSES: Final = tuple(status.value for status in Status)

_COLUMNS: Final = """
    id, submitted_at, next_run_at, started_at, lease_until, completed_at, occurrence, timeout_s, schedule_id, attempts,
    uncharged, max_attempts, crashes, status::text AS status, priority, topic, name, args, locked_by, ran_by,
    progress, result, checkpoint, last_error, group_key"""

EXAMPLES: Final = pytest.mark.parametrize("part", [3, pytest.param(1, marks=pytest.mark.rest)])  # of them, for a model

Row = dict[str, Any]
T = TypeVar("T")
Patch: TypeAlias = pytest.MonkeyPatch
Sql: TypeAlias = "Connection[Record]"  # a plain connection


@dataclass(frozen=True, slots=True)
class Database:
    runner: asyncio.Runner
    store: Store
    connection: Sql

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(doing)


@contextlib.contextmanager
def history_database(server: Postgres, *, hot: int = 4, queries: int = 2) -> Iterator[Database]:
    """A new database; *hot*, *queries*: how many connections of each kind the store has."""
    with server.database() as dsn, asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(dsn))
        store = Store(Target(dsn, "test"), hot=hot, queries=queries)
        yield Database(runner, store, connection)
        store.close()
        runner.run(connection.close())


def run_histories(machine: Any, part: int) -> None:
    few = settings(max_examples=settings().max_examples // part, suppress_health_check=[HealthCheck.too_slow])
    run_state_machine_as_test(machine, settings=few)


@contextlib.asynccontextmanager
async def holding(dsn: str, sql: str, *args: object) -> AsyncIterator[None]:
    """Meanwhile another session has done this, in a transaction that is open."""
    session = await asyncpg.connect(dsn)
    try:
        async with session.transaction():
            await session.execute(sql, *args)
            yield
    finally:
        await session.close(timeout=5)


async def heard_until(last: str, heard: asyncio.Queue[str]) -> list[str]:
    """All words of notifications up to *last*: those of other transactions come some time after their commit."""
    said = [await asyncio.wait_for(heard.get(), 10)]
    while said[-1] != last:
        said.append(await asyncio.wait_for(heard.get(), 10))
    return said


@contextlib.asynccontextmanager
async def dropping(connection: Sql) -> AsyncIterator[None]:
    """Meanwhile a trigger drops each job that is inserted, without an error."""
    await connection.execute("CREATE FUNCTION drop_it() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    await connection.execute(
        "CREATE TRIGGER drop_it BEFORE INSERT ON pulse.jobs FOR EACH ROW EXECUTE FUNCTION drop_it()"
    )
    try:
        yield
    finally:
        await connection.execute("DROP FUNCTION drop_it CASCADE")


def found_of(found: T | None) -> T:
    assert found is not None
    return found


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def new_id() -> bytes:
    return uuid7().bytes


def job(**fields: Any) -> SubmittedJob:
    return SubmittedJob(**{"name": "n", "topic": TOPIC, "id": new_id(), **fields})


async def forge(connection: Sql, status: str = "PENDING", **columns: Any) -> bytes:
    """Insert a row in *status*, attempt 1, held by WORKER where that applies; returns its id."""
    row: Row = {
        "id": new_id(), "name": "n", "topic": TOPIC, "max_attempts": 5, "submitted_at": NOW, "next_run_at": NOW,
        "attempts": 0 if status == "PENDING" else 1, "started_at": None if status == "PENDING" else NOW,
        "locked_by": WORKER if status == "RUNNING" else None,
        "lease_until": at(LEASE_S) if status == "RUNNING" else None,
        "completed_at": NOW if status in TERMINAL else None,
        "last_error": "boom" if status == "DEAD_LETTERED" else None, **columns,
    }  # fmt: skip
    names = ", ".join(row)
    places = ", ".join(f"${number}" for number in range(2, len(row) + 2))
    identity: bytes = row["id"]
    values = [identity.hex() if name == "id" else value for name, value in row.items()]
    # The status goes through text: asyncpg would look the enum up first, for 30 ms on each new connection.
    sql = f"INSERT INTO pulse.jobs (status, {names}) VALUES ($1::text::pulse.job_status, {places})"
    await connection.execute(sql, status, *values)
    return identity


async def read(connection: Sql, identity: bytes) -> Row:
    found = await connection.fetchrow(f"SELECT {_COLUMNS} FROM pulse.jobs WHERE id = $1", identity.hex())
    assert found is not None
    return dict(found)


async def history(connection: Sql, identity: bytes) -> list[Row]:
    found = await connection.fetch("SELECT * FROM pulse.attempts WHERE job_id = $1 ORDER BY attempt", identity.hex())
    return [dict(row) for row in found]


async def remember(connection: Sql, identity: bytes, outcome: str = "error", attempt: int = 1) -> None:
    sql = "INSERT INTO pulse.attempts (job_id, attempt, outcome) VALUES ($1, $2, $3)"
    await connection.execute(sql, identity.hex(), attempt, outcome)


async def count(connection: Sql) -> int:
    found: int = await connection.fetchval("SELECT count(*) FROM pulse.jobs")
    return found


async def claim(
    store: Store, limit: int = 10, *, worker: str = WORKER, topic: str = TOPIC, seconds: float = 0.0
) -> list[Claim]:
    return await store.claim([topic], [worker], [0] * limit, LEASE_S, now=at(seconds))


def fence(identity: bytes, attempt: int = 1, worker: str = WORKER) -> Fence:
    return Fence(identity, attempt, worker)


def changes(before: Row, after: Row) -> Row:
    return {name: value for name, value in after.items() if before[name] != value}
