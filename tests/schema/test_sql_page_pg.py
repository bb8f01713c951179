"""``docs/sql.md`` held against a database: its tables and rules; its blocks run in ``tests/docs``."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest

from pulse.common.ids import uuid7
from pulse.protocol import SubmittedJob
from pulse.store.rows import Completion, Ending, EndingKind, NewSchedule, from_s
from tests.support.checking.markdown import DOCS, blocks, section, table
from tests.support.store.helpers import Sql

if TYPE_CHECKING:
    from pulse.store.store import Store


PAGE: Final = (DOCS / "sql.md").read_text("utf-8")
SUBMITS: Final = ("Submitting a job", "Submitting many", "Rights")
ROLE: Final = "shop"
_TABLES: Final = (
    "SELECT column_name, CASE data_type WHEN 'USER-DEFINED' THEN 'pulse.' || udt_name ELSE data_type END "
    "FROM information_schema.columns WHERE table_schema = 'pulse' AND table_name = 'jobs'"
)


@pytest.fixture
async def shop(own_database: str, connection: Sql) -> AsyncIterator[Sql]:
    await connection.execute("CREATE TABLE orders (id int PRIMARY KEY, customer text)")
    yield connection
    if await connection.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = $1", ROLE):
        await connection.execute(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}")


async def _submit_blocks(connection: Sql) -> None:
    for heading in SUBMITS:
        for block in blocks(section(PAGE, heading), "sql"):
            await connection.execute(block)


async def test_rights_are_enough_and_not_more(shop: Sql) -> None:
    await _submit_blocks(shop)
    await shop.execute(f"SET ROLE {ROLE}")
    assert await shop.fetchval("SELECT pulse.submit('resize')")
    assert await shop.fetch("""SELECT pulse.submit_many('[{"name": "resize"}]')""")
    for forbidden in ("UPDATE pulse.jobs SET priority = 1", "UPDATE pulse.dispatch_control SET paused = false"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="permission denied for table"):
            await shop.execute(forbidden)
    await shop.execute("RESET ROLE")


async def test_queries_run_and_find_what_they_are_about(store: Store, connection: Sql) -> None:
    jobs = [SubmittedJob(name="resize", id=uuid7().bytes, topic="images") for _ in range(5)]
    await store.submit(jobs)
    done, failed, dead, _running = await store.claim(["images"], ["w"], [0] * 4, 30.0)
    await store.complete([Completion(done.id, done.attempt, "w", '{"ok": true}')])
    await store.end(
        [
            Ending(failed.id, failed.attempt, "w", EndingKind.ERROR, "KeyError: 'path'\n  in resize"),
            Ending(dead.id, dead.attempt, "w", EndingKind.DISCARDED, "no such file"),
        ]
    )
    await store.gate.pause("mails", "the provider is down")
    await store.schedules.create(NewSchedule(uuid7().bytes, "report", "every", "{}", from_s(4e9), every_s=60.0))
    queries = blocks(section(PAGE, "Queries"), "sql")
    assert len(queries) == 9
    for query in queries:
        assert await connection.fetch(query), query


@pytest.mark.parametrize(("sqlstate", "call"), [
    ("22023", "SELECT pulse.submit('')"),
    ("22023", "SELECT pulse.submit('a', '[]')"),
    ("22023", "SELECT pulse.submit('a', priority => 101)"),
    ("22023", """SELECT pulse.submit_many('{"name": "a"}')"""),
    ("22023", """SELECT pulse.submit_many('[{"name": "a", "delay": 5}]')"""),
    ("23514", "SELECT pulse.submit('a', max_attempts => 0)"),
    ("23505", "SELECT pulse.submit('b', id => '0199a1b2-c3d4-7e5f-8a0b-1c2d3e4f5a6b')"),
])  # fmt: skip
async def test_errors_have_the_sqlstates_of_the_page(shop: Sql, sqlstate: str, call: str) -> None:
    await _submit_blocks(shop)
    before = await shop.fetchval("SELECT count(*) FROM pulse.jobs")
    assert sqlstate in {row["SQLSTATE"] for row in table(section(PAGE, "Submitting a job").rpartition("```")[2])}
    with pytest.raises(asyncpg.PostgresError) as raised:
        await shop.execute(call)
    assert raised.value.sqlstate == sqlstate
    assert await shop.fetchval("SELECT count(*) FROM pulse.jobs") == before


async def test_parameters_are_those_of_the_function(connection: Sql) -> None:
    described = [
        f"{row['parameter']} {row['type']}{_default(row['parameter'], row['default'])}"
        for row in table(section(PAGE, "Submitting a job"))
    ]
    arguments = await connection.fetchval(
        "SELECT pg_get_function_arguments(oid) FROM pg_proc WHERE oid = 'pulse.submit'::regproc"
    )
    plain = re.sub(r"'(\{\})'::jsonb|NULL::[a-z ]+(?:\[\])?", lambda match: match[1] or "NULL", arguments)
    assert plain.split(", ") == described


def _default(name: str, shown: str) -> str:
    return "" if shown == "required" else f" DEFAULT {shown or 'NULL'}" if name else ""


async def test_columns_are_those_of_the_table(connection: Sql) -> None:
    described = {
        (column.strip(), row["type"])
        for row in table(section(PAGE, "Reading jobs"))
        for column in row["column of pulse.jobs"].split(",")
    }
    assert described == {tuple(row) for row in await connection.fetch(_TABLES)}
