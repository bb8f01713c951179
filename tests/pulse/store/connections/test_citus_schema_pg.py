"""The layout of a queue on Citus, made on one PostgreSQL: its views take every statement that a table takes."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Literal

import asyncpg
import pytest

from pulse.store.admin.schema import RELEASES, SCHEMA_VERSION
from pulse.store.connections import citus_schema
from pulse.store.connections.citus import CITUS
from pulse.store.connections.rendering import rendered
from pulse.store.statements import STATEMENTS, schema_sql, texts
from tests.support.checking.planning import refused

if TYPE_CHECKING:
    from asyncpg import Connection, Record

pytestmark = pytest.mark.postgres
SCHEMAS: Final = ("pulse", "x y")
NOTICES: Final = CITUS["notice_move"].sql
(_GUARD,) = texts("connections", "citus_guard.sql")
_TRIGGER: Final = """
    CREATE TRIGGER a_stay_with_rows BEFORE INSERT ON moved
    FOR EACH STATEMENT EXECUTE FUNCTION pulse.stay_with_rows('1')
"""
_WRITE: Final = "INSERT INTO moved DEFAULT VALUES"
Isolation = Literal["repeatable_read", "serializable"]
_TABLES: Final = "SELECT relname::text FROM pg_class WHERE relnamespace = $1::text::regnamespace AND relkind = 'r'"


@asynccontextmanager
async def _laid_out(dsn: str, schema: str) -> AsyncIterator[Connection[Record]]:
    """A queue whose tables have the names that they have on a node of Citus."""
    connection: Connection[Record] = await asyncpg.connect(dsn, statement_cache_size=0)
    try:
        for command in (*citus_schema.for_all_nodes(schema_sql()), *citus_schema.rows(schema_sql())):
            await connection.execute(rendered(command, schema))
        rows = rendered("pulse_rows", schema)
        shards = dict(zip((row[0] for row in await connection.fetch(_TABLES, rows)), itertools.count(102_000)))
        for table, shard in shards.items():
            await connection.execute(f"ALTER TABLE {rows}.{table} RENAME TO {table}_{shard}")
        for table in ("audit", "signals"):  # Citus gives shards no identities
            await connection.execute(f"ALTER TABLE {rows}.{table}_{shards[table]} ALTER COLUMN id DROP IDENTITY")
        for command in (_GUARD, *citus_schema.for_home(schema_sql(), shards, NOTICES)):
            await connection.execute(rendered(command, schema))
        for table, shard in shards.items():  # only Citus has what it asks
            await connection.execute(f"DROP TRIGGER a_stay_with_rows ON {rows}.{table}_{shard}")
        yield connection
    finally:
        await connection.close(timeout=5)


@pytest.mark.parametrize("schema", SCHEMAS)
async def test_all_statements_but_the_sample_are_planned(empty_dsn: str, schema: str) -> None:
    async with _laid_out(empty_dsn, schema) as connection:
        assert (await refused(connection, schema)).keys() == {"sample_waiting"}


@pytest.mark.parametrize("schema", SCHEMAS)
async def test_the_functions_work_on_views(empty_dsn: str, schema: str) -> None:
    async with _laid_out(empty_dsn, schema) as connection:

        async def does(sql: str, *values: object) -> object:
            return await connection.fetchval(rendered(sql, schema), *values)

        parent = await does("SELECT pulse.submit('a', unique_key => 'k')")
        child = await does("SELECT pulse.submit('b', group_key => 'g', after => ARRAY[$1::uuid])", parent)
        assert await does("SELECT id FROM pulse.jobs WHERE waiting_on = 1") == child
        assert await does("SELECT pulse.signal($1, 'go')", child)
        assert await does("SELECT id FROM pulse.signals") == 1
        for _ in range(2):
            await does("SELECT pulse.note('test')")
        assert await does("SELECT array_agg(id ORDER BY id) FROM pulse.audit") == [1, 2]
        schedule = await does("SELECT pulse.create_schedule('nightly', every_s => 60)")
        assert await does("SELECT pulse.trigger_schedule($1)", schedule)
        assert await does("DELETE FROM pulse.jobs WHERE id = $1 RETURNING true", child)
        for linked in ("pulse.dependencies", "pulse.signals"):  # by a trigger of the table
            assert await does(f"SELECT count(*) FROM {linked}") == 0


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_transaction_with_one_snapshot_does_not_write(empty_dsn: str, isolation: Isolation) -> None:
    """It would not see a move that it waited for: its write would go to tables that Citus drops."""
    connection: Connection[Record] = await asyncpg.connect(empty_dsn)
    for command in ("CREATE SCHEMA pulse", _GUARD, "CREATE TABLE moved ()", _TRIGGER):
        await connection.execute(command)
    refusal = f"READ COMMITTED transactions only; this one is {isolation.replace('_', ' ').upper()}"
    with pytest.raises(asyncpg.FeatureNotSupportedError, match=refusal):
        async with connection.transaction(isolation=isolation):
            await connection.execute(_WRITE)
    with pytest.raises(asyncpg.UndefinedFunctionError, match="lock_shard_metadata"):  # Citus would have it
        await connection.execute(_WRITE)
    await connection.close(timeout=5)


def test_each_command_is_somewhere() -> None:
    found = list(citus_schema.commands(schema_sql()))
    assert len(found) > 100
    assert all(command.startswith(("CREATE ", "COMMENT ", "INSERT ", "DO ", "GRANT ", "REVOKE ")) for command in found)
    made = [*citus_schema.for_all_nodes(schema_sql()), *citus_schema.rows(schema_sql())]
    home = list(citus_schema.for_home(schema_sql(), _Numbers(), NOTICES))
    for command in found:
        name = command.split("(")[0].split("pulse.")[-1].split()[0]
        assert any(name in one for one in (*made, *home)), command


def test_a_transaction_that_an_attempt_decides_notices_a_move() -> None:
    """It commits by what the function has read, on a node where the rows may have been until just now."""
    (fence,) = [one for one in citus_schema.for_home(schema_sql(), _Numbers(), NOTICES) if NOTICES in one]
    assert "FUNCTION pulse.check_attempt(" in fence


def test_the_version_that_rows_must_have() -> None:
    assert citus_schema.version_of(schema_sql()) == (SCHEMA_VERSION, RELEASES[SCHEMA_VERSION])


@pytest.mark.parametrize(("command", "wanted"), [
    ("ALTER TABLE pulse.jobs ADD COLUMN a pulse.job_time, DROP CONSTRAINT b, ADD CHECK (a IN (1, 2) AND ',' <> '(')", [
        "ALTER TABLE pulse_rows.jobs ADD COLUMN a pulse.job_time", "ALTER TABLE pulse_rows.jobs DROP CONSTRAINT b",
        "ALTER TABLE pulse_rows.jobs ADD CHECK (a IN (1, 2) AND ',' <> '(')",
    ]),
    ("ALTER TABLE IF EXISTS pulse.jobs ADD a int", ["ALTER TABLE IF EXISTS pulse_rows.jobs ADD a int"]),
    ("CREATE TABLE IF NOT EXISTS pulse.new (a pulse.other, b int REFERENCES pulse.jobs)",
     ["CREATE TABLE IF NOT EXISTS pulse_rows.new (a pulse.other, b int REFERENCES pulse_rows.jobs)"]),
    ("CREATE UNIQUE INDEX CONCURRENTLY a ON pulse.jobs (pulse.jittered(id))",
     ["CREATE UNIQUE INDEX CONCURRENTLY a ON pulse_rows.jobs (pulse.jittered(id))"]),
    ("DROP INDEX CONCURRENTLY pulse.idx_jobs_held", ["DROP INDEX CONCURRENTLY pulse_rows.idx_jobs_held"]),
    ("DROP TABLE pulse.jobs", ["DROP TABLE pulse_rows.jobs"]),
    ("CREATE DOMAIN pulse.colour AS text", ["CREATE DOMAIN pulse.colour AS text"]),
    ("ALTER TYPE pulse.job_status ADD VALUE 'NEW'", ["ALTER TYPE pulse.job_status ADD VALUE 'NEW'"]),
    *((command, []) for command in (
        "CREATE FUNCTION pulse.x()", "UPDATE pulse.jobs", "INSERT INTO pulse.jobs", "CREATE TRIGGER x",
        "DROP TRIGGER x", "CREATE SEQUENCE pulse.x", "GRANT SELECT ON TABLE pulse.jobs TO x", "DO $$BEGIN END$$",
    )),
])  # fmt: skip
def test_what_the_coordinator_takes_of_an_upgrade(command: str, wanted: list[str]) -> None:
    """Names of tables become those of the rows; types and functions are where they were."""
    assert citus_schema.for_coordinator(command, {"jobs"}) == wanted


@pytest.mark.parametrize(("command", "wanted"), [
    ("CREATE TRIGGER a AFTER INSERT ON pulse.jobs EXECUTE FUNCTION pulse.x()",
     "CREATE TRIGGER a AFTER INSERT ON pulse_rows.jobs_7 EXECUTE FUNCTION pulse.x()"),
    ("CREATE OR REPLACE TRIGGER a ON pulse.jobs", "CREATE OR REPLACE TRIGGER a ON pulse_rows.jobs_7"),
    ("DROP TRIGGER IF EXISTS a ON pulse.jobs", "DROP TRIGGER IF EXISTS a ON pulse_rows.jobs_7"),
    ("DROP TRIGGER IF EXISTS a ON pulse.gone", "DROP TRIGGER IF EXISTS a ON pulse.gone"),
    ("CREATE OR REPLACE FUNCTION pulse.check_attempt()\nBEGIN\nEND",
     f"CREATE OR REPLACE FUNCTION pulse.check_attempt()\nBEGIN\n    {NOTICES};\nEND"),
    ("UPDATE pulse.jobs SET a = 1", "UPDATE pulse.jobs SET a = 1"),
])  # fmt: skip
def test_what_the_node_of_the_rows_takes_of_an_upgrade(command: str, wanted: str) -> None:
    assert citus_schema.for_rows(command, {"jobs": 7}, NOTICES) == wanted


def test_the_columns_that_an_upgrade_drops() -> None:
    command = "ALTER TABLE pulse.jobs DROP COLUMN a, ADD b int, DROP COLUMN IF EXISTS c"
    assert citus_schema.columns_dropped_by(command) == ["jobs.a", "jobs.c"]
    assert citus_schema.columns_dropped_by("SELECT 'DROP COLUMN a'") == []


class _Numbers(dict[str, int]):
    def __missing__(self, key: str) -> int:
        return 1


@pytest.mark.parametrize(("sql", "wanted"), [
    ("-- a; b\nSELECT 1;\n\n-- c\nSELECT ';', \";\";", ["SELECT 1", "SELECT ';', \";\""]),
    ("DO $x$ BEGIN; $$;$$ END; $x$;", ["DO $x$ BEGIN; $$;$$ END; $x$"]),
    ("CREATE FUNCTION f() BEGIN ATOMIC\n  SELECT 1;\nEND;", ["CREATE FUNCTION f() BEGIN ATOMIC\n  SELECT 1;\nEND"]),
])  # fmt: skip
def test_commands_end_where_they_end(sql: str, wanted: list[str]) -> None:
    assert list(citus_schema.commands(sql)) == wanted


def test_there_are_statements() -> None:
    assert len(STATEMENTS) > 100
