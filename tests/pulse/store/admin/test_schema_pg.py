"""The schema: what its CHECKs refuse, how it is installed, and what no index may hold."""

from __future__ import annotations

import asyncio
import json
import os

import asyncpg
import pytest

from pulse.errors import SchemaError, UnavailableError
from pulse.store.admin import schema
from pulse.store.admin.schema import RELEASES, SCHEMA_VERSION, ensure_schema
from pulse.store.connections.pool import Target
from pulse.store.connections.session import begin_migration
from pulse.store.statements import STATEMENTS
from pulse.store.store import Store
from tests.support.admin.checks import CHECKS, Check, Columns, insert_of
from tests.support.admin.indexes import INDEXES
from tests.support.servers import postgres
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import Patch, Sql, forge, new_id
from tests.support.waiting import until_blocked


async def insert(connection: Sql, table: str, columns: Columns, returning: str = "true") -> bool:
    """Insert a row, and take it back; what *returning* is of it."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(
            "DELETE FROM pulse.topics; DELETE FROM pulse.dispatch_control; DELETE FROM pulse.sweep_mark;"
            "DELETE FROM pulse.retention_mark"
        )
        return bool(await connection.fetchval(f"{insert_of(table, columns)} RETURNING {returning}"))
    finally:
        await transaction.rollback()


@pytest.mark.parametrize("check", CHECKS, ids=str)
async def test_check(connection: Sql, check: Check) -> None:
    """Each CHECK allows the right side of its boundaries, and it alone refuses the other."""
    for columns in check.good:
        await insert(connection, check.table, columns)
    for columns in check.bad:
        with pytest.raises(asyncpg.CheckViolationError) as caught:
            await insert(connection, check.table, columns)
        assert caught.value.constraint_name == check.name, columns


async def test_every_check_is_tested(connection: Sql) -> None:
    sql = "SELECT conname FROM pg_constraint WHERE contype = 'c' AND connamespace = 'pulse'::regnamespace"
    assert {row["conname"] for row in await connection.fetch(sql)} == {check.name for check in CHECKS}


async def test_indexes_hold_what_they_should(connection: Sql) -> None:
    """Each partial index, on both sides of each condition."""
    sql = """
        SELECT c.relname, pg_get_expr(i.indpred, i.indrelid) AS holds FROM pg_index i
        JOIN pg_class c ON c.oid = i.indexrelid
        WHERE c.relnamespace = 'pulse'::regnamespace AND i.indpred IS NOT NULL"""
    holds = {row["relname"]: row["holds"] for row in await connection.fetch(sql)}
    assert holds.keys() == {index.name for index in INDEXES}
    for index in INDEXES:
        for expected, rows in ((True, index.good), (False, index.bad)):
            for columns in rows:
                held = await insert(connection, index.table, columns, holds[index.name])
                assert held is expected, (index.name, columns)


@pytest.mark.parametrize(("table", "key"), [
    ("jobs", {"id": f"'{new_id().hex()}'"}), ("attempts", {"job_id": f"'{new_id().hex()}'"}),
    ("schedules", {"id": f"'{new_id().hex()}'"}), ("dispatch_control", {}), ("handlers", {}), ("topics", {}),
    ("schema_version", {}), ("sweep_mark", {}), ("retention_mark", {}), ("set_aside", {}), ("audit", {"id": "7"}),
    ("epochs", {}), ("witnesses", {}), ("limits", {}), ("dependencies", {}), ("outbox", {}),
])  # fmt: skip
async def test_keys_are_unique(connection: Sql, table: str, key: Columns) -> None:
    sql = insert_of(table, key)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("DELETE FROM pulse.sweep_mark; DELETE FROM pulse.retention_mark")  # full
    await connection.execute(sql)
    with pytest.raises(asyncpg.UniqueViolationError, match="duplicate key"):
        await connection.execute(sql)
    await transaction.rollback()


async def test_no_index_holds_what_a_heartbeat_writes(connection: Sql) -> None:
    """lease_until and progress are in no index, neither as column nor in a predicate: beats can stay HOT."""
    sql = "SELECT pg_get_indexdef(indexrelid) AS text FROM pg_index WHERE indrelid = 'pulse.jobs'::regclass"
    found = [row["text"] for row in await connection.fetch(sql)]
    assert len(found) == 12
    assert [text for text in found if "lease_until" in text or "progress" in text] == []


async def test_a_plain_job_is_deleted_without_a_trigger(connection: Sql) -> None:
    """Retention deletes them by the million."""
    await forge(connection, "COMPLETED")
    told = json.loads(await connection.fetchval("EXPLAIN (ANALYZE, FORMAT JSON) DELETE FROM pulse.jobs"))
    assert (told[0]["Plan"]["Plans"][0]["Actual Rows"], told[0]["Triggers"]) == (1, [])


async def test_a_migration_has_limits_of_its_own(connection: Sql) -> None:
    """Whatever the role has; and it calls no function that somebody put into public."""
    names = ("lock_timeout", "statement_timeout", "search_path")
    async with connection.transaction():
        await connection.execute("SET LOCAL statement_timeout = '9s'; SET LOCAL search_path = public")
        await begin_migration(connection, "7s")
        found = [await connection.fetchval("SELECT current_setting($1)", name) for name in names]
    assert found == ["7s", "0", "pg_catalog, pg_temp"]


async def test_install(empty_dsn: str) -> None:
    store = Store(Target(empty_dsn, "test"))
    found = [await store.prepare() for _ in range(3)]
    assert found == [0, SCHEMA_VERSION, SCHEMA_VERSION]
    assert await store.reads.counts() == (dict.fromkeys(sorted(await _statuses(store)), 0), True)
    async with store.query.connection() as connection:
        rows = await connection.fetch("SELECT version, release FROM pulse.schema_version")
        seeds = await connection.fetchrow(
            "SELECT (SELECT count(*) FROM pulse.topics), (SELECT count(*) FROM pulse.dispatch_control WHERE NOT paused)"
        )
    store.close()
    assert [tuple(row) for row in rows] == [(SCHEMA_VERSION, RELEASES[SCHEMA_VERSION])]
    assert tuple(seeds or ()) == (1, 1)


async def _statuses(store: Store) -> set[str]:
    async with store.query.connection() as connection:
        return {
            row["status"]
            for row in await connection.fetch("SELECT unnest(enum_range(NULL::pulse.job_status))::text AS status")
        }


async def test_many_installs_at_once(empty_dsn: str) -> None:
    """Of eight that start at once one installs, the others wait for it, and all go on."""
    stores = [Store(Target(empty_dsn, "test")) for _ in range(8)]
    await asyncio.gather(*(store.query.open() for store in stores))
    assert set(await asyncio.gather(*(store.prepare() for store in stores))) <= {0, SCHEMA_VERSION}
    assert await stores[0].prepare() == SCHEMA_VERSION
    for store in stores:
        store.close()


async def test_a_much_newer_schema_is_refused(store: Store, connection: Sql) -> None:
    await connection.execute("INSERT INTO pulse.schema_version VALUES ($1, 'newer')", SCHEMA_VERSION + 2)
    said = f"version {SCHEMA_VERSION + 2}; this pulse works with {SCHEMA_VERSION} to {SCHEMA_VERSION + 1}: upgrade"
    with pytest.raises(SchemaError, match=said):
        await store.prepare()


async def test_a_newer_schema_that_came_while_waiting(empty_dsn: str) -> None:
    """The newer pulse was just installing: after the wait the older one looks again, and refuses."""
    newer, older, watcher = [await asyncpg.connect(empty_dsn) for _ in range(3)]
    async with newer.transaction():
        await newer.execute(STATEMENTS["schema_lock"].sql)
        waiting = asyncio.create_task(ensure_schema(older))
        await until_blocked(watcher, by=newer.get_server_pid())
        await newer.execute(
            "CREATE SCHEMA pulse; CREATE TABLE pulse.schema_version AS "
            f"SELECT {SCHEMA_VERSION + 2} AS version, 'newer' AS release"
        )
    with pytest.raises(SchemaError, match=f"works with {SCHEMA_VERSION} to {SCHEMA_VERSION + 1}: upgrade"):
        await waiting
    for connection in (newer, older, watcher):
        await connection.close(timeout=5)


async def test_an_old_server_is_refused(connection: Sql, server: Postgres, monkeypatch: Patch) -> None:
    monkeypatch.setattr(schema, "MIN_SERVER", (server.major + 1) * 10000)
    with pytest.raises(SchemaError, match=f"the database is PostgreSQL {server.major}; 15 to 18"):
        await ensure_schema(connection)


async def test_waiting_for_a_migration_ends(empty_dsn: str, monkeypatch: Patch) -> None:
    """A long wait for another's migration ends as "away", and nothing is installed."""
    monkeypatch.setattr(schema, "LOCK_TIMEOUT_S", 0.05)
    holder = await asyncpg.connect(empty_dsn)
    store = Store(Target(empty_dsn, "test"))
    async with holder.transaction():
        await holder.execute(STATEMENTS["schema_lock"].sql)
        with pytest.raises(UnavailableError, match="lock timeout"):
            await store.prepare()
    assert await holder.fetchval("SELECT to_regnamespace('pulse')") is None
    store.close()
    await holder.close(timeout=5)


async def test_an_install_is_whole_or_nothing(empty_dsn: str) -> None:
    connection = await asyncpg.connect(empty_dsn)
    await connection.execute("CREATE SCHEMA pulse; CREATE TYPE pulse.hosts AS ENUM ()")
    with pytest.raises(asyncpg.DuplicateObjectError, match='type "hosts" already exists'):
        await ensure_schema(connection)
    assert await connection.fetchval("SELECT to_regclass('pulse.jobs')") is None
    await connection.close(timeout=5)


async def test_uuid7(connection: Sql) -> None:
    """pulse.uuid7 makes version 7, variant 10, a prefix of the milliseconds of its making, and never the same twice."""
    clock = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    rows = await connection.fetch(f"SELECT {clock}, pulse.uuid7(), {clock} FROM generate_series(1, 2000)")
    made = [row[1] for row in rows]
    assert len(set(made)) == 2000
    assert {one.version for one in made} == {7}
    assert {one.bytes[8] >> 6 for one in made} == {0b10}
    prefixes = [int.from_bytes(one.bytes[:6], "big") for one in made]
    assert prefixes == sorted(prefixes)
    assert all(row[0] <= prefix <= row[2] for row, prefix in zip(rows, prefixes, strict=True))


async def test_uuid7_is_random(connection: Sql) -> None:
    rows = await connection.fetch("SELECT pulse.uuid7() AS made FROM generate_series(1, 500)")
    assert {row["made"].bytes[8] >> 4 & 0b11 for row in rows} == {0b00, 0b01, 0b10, 0b11}
    assert len({row["made"].bytes[15] for row in rows}) > 100


@pytest.mark.skipif(
    len(postgres.installations()) < 2 or postgres.GIVEN_DSN in os.environ,
    reason="only one PostgreSQL is installed or given: the store is tested on that one",
)
def test_two_versions(server: Postgres, request: pytest.FixtureRequest) -> None:
    """The store is tested on the newest PostgreSQL here and on the oldest."""
    majors = sorted(one.major for one in postgres.installations())
    assert [one.major for one in postgres.to_test_on()] == [majors[-1], majors[0]]
    assert server.major == request.node.callspec.params["server"].major
