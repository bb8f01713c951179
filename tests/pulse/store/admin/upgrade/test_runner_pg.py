"""How a schema is upgraded, by made-up steps: step by step, in nobody's way, again where it was interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import asyncpg
import pytest

from pulse.errors import PulseError, SchemaError, UnavailableError
from pulse.store.admin.checks import connected
from pulse.store.admin.schema import RELEASES, SCHEMA_VERSION, ensure_schema
from pulse.store.admin.upgrade import runner
from pulse.store.admin.upgrade.plan import UPGRADE, plan
from pulse.store.admin.upgrade.runner import FIRST_ROWS, LEAST_ROWS, MOST_ROWS, Upgrade, next_size, upgrade
from pulse.store.admin.upgrade.steps import StepKind, parse_steps
from pulse.store.connections.pool import Target
from pulse.store.statements import STATEMENTS
from tests.support.admin.upgrade_kit import lock_of, make_upgrades, step, upgraded
from tests.support.hostile import HOSTILE
from tests.support.store.helpers import Patch, Sql
from tests.support.systems.releases import STEPS
from tests.support.waiting import DEADLINE_S, until_async

JOBS: Final = "pulse.jobs"
ADD: Final = step(
    "add", "ALTER TABLE pulse.jobs ADD COLUMN IF NOT EXISTS region text", table=JOBS, lock="ACCESS EXCLUSIVE"
)
FILL_SQL: Final = """
WITH part AS MATERIALIZED (
    SELECT j.id FROM pulse.jobs j
    WHERE j.id > coalesce($1::text, '00000000-0000-0000-0000-000000000000')::uuid AND j.id <= $3::text::uuid
    ORDER BY j.id LIMIT $2 FOR NO KEY UPDATE
), filled AS (
    UPDATE pulse.jobs j SET region = coalesce(j.region, '') || '.' FROM part WHERE j.id = part.id
)
SELECT max(id::text) AS reached, count(*) AS rows FROM part
"""
FILL: Final = step("fill", FILL_SQL, kind="batches", table=JOBS, lock="ROW EXCLUSIVE", key="id")
INDEX: Final = step(
    "index", "CREATE INDEX CONCURRENTLY IF NOT EXISTS jobs_region ON pulse.jobs (region)", kind="concurrent",
    table=JOBS, lock="SHARE UPDATE EXCLUSIVE",
)  # fmt: skip
CHECK: Final = step(
    "check", "ALTER TABLE pulse.jobs ADD CONSTRAINT jobs_region CHECK (region <> '') NOT VALID", table=JOBS,
    lock="ACCESS EXCLUSIVE",
)  # fmt: skip
VALIDATE: Final = step(
    "validate", "ALTER TABLE pulse.jobs VALIDATE CONSTRAINT jobs_region", kind="long", table=JOBS,
    lock="SHARE UPDATE EXCLUSIVE",
)  # fmt: skip
ALL: Final = ADD + FILL + CHECK + VALIDATE + INDEX
FAULTY: Final = step("faulty", "SELECT 1 / 0", kind="long")
FREE_S: Final = 1.0  # for a statement that waits for no lock, on a busy machine
LATER: Final = "CREATE TABLE IF NOT EXISTS pulse.later (id int)"


@pytest.fixture
async def installed(empty_dsn: str) -> AsyncIterator[Sql]:
    connection = await asyncpg.connect(empty_dsn)
    await ensure_schema(connection)
    yield connection
    await connection.close(timeout=5)


@pytest.fixture
async def other(empty_dsn: str, installed: Sql) -> AsyncIterator[Sql]:
    connection = await asyncpg.connect(empty_dsn)
    yield connection
    await connection.close(timeout=5)


async def filled(connection: Sql, rows: int) -> None:
    await connection.execute(f"SELECT pulse.submit(name => 'n') FROM generate_series(1, {rows})")


async def test_a_schema_of_another_name(empty_dsn: str, monkeypatch: Patch, tmp_path: Path) -> None:
    """Each step changes that schema, and nothing of the other; what an interrupted one has left is removed there."""
    target = Target(empty_dsn, "pulse-tests", HOSTILE)
    assert [await upgrade(Target(empty_dsn, "pulse-tests")), await upgrade(target)] == [0, 0]
    make_upgrades(monkeypatch, tmp_path, ALL)
    async with connected(target, {}) as theirs:
        await filled(theirs, 3)
        await theirs.execute("CREATE INDEX jobs_region ON pulse.jobs (id)")
        await theirs.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'pulse.jobs_region'::regclass")
        assert {one.rows is None for one in (await plan(theirs)).steps} == {False}
        assert await upgrade(target, alone=True) == SCHEMA_VERSION
        assert await theirs.fetchval("SELECT count(*) FROM pulse.jobs WHERE region = '.'") == 3
        index = await theirs.fetchval("SELECT pg_get_indexdef('pulse.jobs_region'::regclass)")
        assert index.endswith("(region)")
    async with connected(Target(empty_dsn, "pulse-tests"), {}) as ours:
        assert await ours.fetchval("SELECT count(*) FROM pg_attribute WHERE attname = 'region' AND attrelid = "
                                   "'pulse.jobs'::regclass") == 0  # fmt: skip


async def test_all_kinds_of_steps(installed: Sql, monkeypatch: Patch, tmp_path: Path) -> None:
    """Each does what it says; afterwards the version is there, and the notes are gone."""
    await filled(installed, FIRST_ROWS * 2 + 1)
    newest = make_upgrades(monkeypatch, tmp_path, ALL)
    said: list[str] = []
    assert await Upgrade(installed, said.append).run() == SCHEMA_VERSION
    assert said == [
        f"version {newest}, step {number} of 5: {name}"
        for number, name in enumerate(("add", "fill", "check", "validate", "index"), 1)
    ]
    assert await installed.fetchval("SELECT array_agg(DISTINCT region) FROM pulse.jobs") == ["."]
    made = await installed.fetchrow(
        "SELECT convalidated, indisvalid FROM pg_constraint, pg_index "
        "WHERE conname = 'jobs_region' AND indexrelid = 'pulse.jobs_region'::regclass"
    )
    assert tuple(made or ()) == (True, True)
    assert await installed.fetchval("SELECT to_regclass('pulse.schema_steps')") is None
    versions = await installed.fetch("SELECT version, release FROM pulse.schema_version ORDER BY version")
    assert [tuple(row) for row in versions] == sorted(RELEASES.items())
    assert await upgraded(installed) == newest


async def test_nothing_is_installed_by_steps(empty_dsn: str) -> None:
    """Where there is no schema, the newest is made at once."""
    said: list[str] = []
    assert [await upgrade(Target(empty_dsn, "test"), said.append) for _ in range(2)] == [0, SCHEMA_VERSION]
    assert said == []


async def test_versions_come_one_after_the_other(installed: Sql, monkeypatch: Patch, tmp_path: Path) -> None:
    newest = make_upgrades(monkeypatch, tmp_path, LATER, "ALTER TABLE pulse.later ADD COLUMN IF NOT EXISTS more int")
    assert await upgraded(installed) == newest - 2
    assert await installed.fetch("SELECT id, more FROM pulse.later") == []


async def test_an_upgrade_goes_on_where_it_was(installed: Sql, monkeypatch: Patch, tmp_path: Path) -> None:
    """What is done stays done and is not done again; the version comes when all is done."""
    await filled(installed, 3)
    await installed.execute("CREATE TABLE public.taken (id int)")
    once = step("once", "INSERT INTO public.taken VALUES (1)", kind="long")
    make_upgrades(monkeypatch, tmp_path, once + FILL.replace("region", "last_error") + FAULTY)
    for _ in range(2):
        with pytest.raises(asyncpg.DivisionByZeroError):
            await upgraded(installed)
        assert await ensure_schema(installed) == SCHEMA_VERSION
    states = [(one.step.name, one.noted.is_done, one.noted.rows) for one in (await plan(installed)).steps]
    assert states == [("once", True, 0), ("fill", True, 3), ("faulty", False, 0)]
    file = tmp_path / "upgrades" / f"{SCHEMA_VERSION + 1}.sql"
    file.write_text(file.read_text().replace("1 / 0", "1"))
    assert await upgraded(installed) == SCHEMA_VERSION
    assert await installed.fetchval("SELECT array_agg(DISTINCT last_error) FROM pulse.jobs") == ["."]
    assert await installed.fetchval("SELECT count(*) FROM public.taken") == 1


async def test_a_batch_and_its_note_are_one(installed: Sql, other: Sql, monkeypatch: Patch, tmp_path: Path) -> None:
    """An upgrade that is killed between two batches fills each row once, also after it was started again."""
    for name in ("FIRST_ROWS", "LEAST_ROWS", "MOST_ROWS"):
        monkeypatch.setattr(runner, name, 10)
    await filled(installed, 400)
    make_upgrades(monkeypatch, tmp_path, ADD + FILL)
    reached = "SELECT rows FROM pulse.schema_steps WHERE step = 'fill' AND done_at IS NULL AND rows BETWEEN 10 AND 390"
    running = asyncio.create_task(upgraded(other))
    await until_async(lambda: installed.fetchval("SELECT to_regclass('pulse.schema_steps')"), "it has begun")
    await until_async(lambda: installed.fetchval(reached), "some rows are filled")
    other.terminate()
    await asyncio.gather(running, return_exceptions=True)
    under_way = (await plan(installed)).steps[1].noted
    assert (under_way.is_done, under_way.reached is not None, 10 <= under_way.rows < 400) == (False, True, True)
    await upgraded(installed)
    assert await installed.fetchval("SELECT array_agg(DISTINCT region) FROM pulse.jobs") == ["."]


async def test_rows_that_come_meanwhile_do_not_prolong_it(installed: Sql, monkeypatch: Patch, tmp_path: Path) -> None:
    """While a batch is filled, as many new rows come: an upgrade that fills those, too, has no end."""
    for name in ("FIRST_ROWS", "LEAST_ROWS", "MOST_ROWS"):
        monkeypatch.setattr(runner, name, 10)
    await filled(installed, 25)
    come = "came AS MATERIALIZED (SELECT count(pulse.submit(name => 'new')) AS rows FROM part)"
    looks = FILL_SQL.replace("AS rows FROM part", "AS rows FROM part, came WHERE came.rows >= 0")
    steps = step("fill", looks.replace("filled AS", f"{come}, filled AS"), kind="batches", table=JOBS, key="id")
    make_upgrades(monkeypatch, tmp_path, ADD + steps)
    async with asyncio.timeout(DEADLINE_S):
        await upgraded(installed)
    by_name = "SELECT name, count(*), count(region) FROM pulse.jobs GROUP BY name ORDER BY name"
    assert [tuple(row) for row in await installed.fetch(by_name)] == [("n", 25, 25), ("new", 25, 0)]


async def test_a_key_that_is_a_number(installed: Sql, monkeypatch: Patch, tmp_path: Path) -> None:
    """The last one is not that whose text is the last."""
    await installed.execute("CREATE TABLE pulse.later (id int UNIQUE, was_seen bool NOT NULL DEFAULT false)")
    await installed.execute("INSERT INTO pulse.later VALUES (NULL), (8), (9), (10), (11)")
    sees = """
        WITH part AS (
            SELECT id FROM pulse.later WHERE id > coalesce($1::text::int, 0) AND id <= $3::text::int
            ORDER BY id LIMIT $2
        ), seen AS (UPDATE pulse.later l SET was_seen = true FROM part WHERE l.id = part.id)
        SELECT max(id)::text AS reached, count(*) AS rows FROM part"""
    make_upgrades(monkeypatch, tmp_path, step("see", sees, kind="batches", table="pulse.later", key="id"))
    await upgraded(installed)
    assert await installed.fetchval("SELECT count(*) FROM pulse.later WHERE was_seen") == 4


@pytest.fixture
async def third(empty_dsn: str, installed: Sql) -> AsyncIterator[Sql]:
    connection = await asyncpg.connect(empty_dsn)
    yield connection
    await connection.close(timeout=5)


async def until_tried(others: Sql, says: str, said: list[str]) -> None:
    """Others write, time and again, until the upgrade has said this five times."""

    async def goes_on() -> bool:
        async with asyncio.timeout(FREE_S):
            await filled(others, 1)
        return said.count(says) >= 5

    await until_async(goes_on, f"it has said five times: {says}")


async def test_who_has_a_table_is_waited_for_in_nobodys_way(
    installed: Sql, other: Sql, third: Sql, monkeypatch: Patch, tmp_path: Path
) -> None:
    """While a long transaction keeps a step from its lock, others do not wait behind it."""
    monkeypatch.setattr(runner, "TOLD_EVERY_S", 0.0)
    make_upgrades(monkeypatch, tmp_path, ADD)
    said: list[str] = []
    async with other.transaction():
        await filled(other, 1)
        upgrading = asyncio.create_task(Upgrade(installed, said.append).run())
        await until_tried(third, "add: waits for pulse.jobs", said)
    assert await upgrading == SCHEMA_VERSION
    assert await third.fetchval("SELECT count(region) FROM pulse.jobs") == 0


async def test_a_vacuum_is_waited_for_until_postgresql_ends_it(
    installed: Sql, other: Sql, third: Sql, monkeypatch: Patch, tmp_path: Path
) -> None:
    """It ends one that somebody waits for after a second: longer than a lock is tried that others wait behind."""
    make_upgrades(monkeypatch, tmp_path, ADD)
    async with other.transaction():
        await other.execute("LOCK TABLE pulse.jobs IN SHARE UPDATE EXCLUSIVE MODE")  # as vacuum does
        upgrading = asyncio.create_task(upgraded(installed))
        waits = "SELECT now() - waitstart > interval '1 s' FROM pg_locks WHERE pid = $1 AND NOT granted"
        await until_async(lambda: third.fetchval(waits, installed.get_server_pid()), "it waits for a second")
        async with asyncio.timeout(FREE_S):
            await filled(third, 1)
    assert await upgrading == SCHEMA_VERSION


@pytest.mark.parametrize(("name", "waits", "lock"), [
    ("add", ADD, "SELECT pulse.submit(name => 'n')"),
    ("fill", FILL.replace("region", "last_error"), "LOCK TABLE pulse.jobs IN ACCESS EXCLUSIVE MODE"),
])  # fmt: skip
async def test_patience_ends(
    installed: Sql, other: Sql, monkeypatch: Patch, tmp_path: Path, name: str, waits: str, lock: str
) -> None:
    """Then nothing is half done, and the error says which step, and what to do."""
    monkeypatch.setattr(runner, "PATIENCE_S", 0.1)
    make_upgrades(monkeypatch, tmp_path, waits)
    said = rf"^step {name} of version \d+ did not get pulse.jobs .*`pulse doctor`"
    async with other.transaction():
        await other.execute(lock)
        with pytest.raises(UnavailableError, match=said):
            await upgraded(installed)
    assert await upgraded(installed) == SCHEMA_VERSION


async def test_a_step_that_holds_a_table_for_long_is_ended(
    installed: Sql, other: Sql, monkeypatch: Patch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runner, "PATIENCE_S", 0.1)
    make_upgrades(monkeypatch, tmp_path, ADD.replace("ALTER", "SELECT pg_sleep(2); ALTER"))
    with pytest.raises(UnavailableError, match="statement timeout"):
        await upgraded(installed)
    async with asyncio.timeout(FREE_S):
        await filled(other, 1)


async def test_what_locks_nobody_out_takes_its_time(installed: Sql, monkeypatch: Patch, tmp_path: Path) -> None:
    """Whatever limits the role has."""
    await installed.execute("SET statement_timeout = 200")
    make_upgrades(monkeypatch, tmp_path, step("slow", "SELECT pg_sleep(0.4)", kind="long"))
    assert await upgraded(installed) == SCHEMA_VERSION


async def test_an_index_that_was_interrupted_is_made_again(installed: Sql, monkeypatch: Patch, tmp_path: Path) -> None:
    await filled(installed, 2)
    with pytest.raises(asyncpg.UniqueViolationError):
        await installed.execute("CREATE UNIQUE INDEX CONCURRENTLY jobs_region ON pulse.jobs (name)")
    make_upgrades(monkeypatch, tmp_path, ADD + INDEX)
    await upgraded(installed)
    is_valid = "SELECT indisvalid AND NOT indisunique FROM pg_index WHERE indexrelid = 'pulse.jobs_region'::regclass"
    assert await installed.fetchval(is_valid)


async def test_one_upgrade_at_a_time(empty_dsn: str, installed: Sql, monkeypatch: Patch, tmp_path: Path) -> None:
    """Others wait for it, for a while, and find that all is done."""
    newest = make_upgrades(monkeypatch, tmp_path, LATER)
    assert await installed.fetchval(UPGRADE["upgrade_lock"].sql)
    monkeypatch.setattr(runner, "OTHERS_S", 0.1)
    with pytest.raises(UnavailableError, match="another upgrade of the schema pulse has been under way"):
        await upgrade(Target(empty_dsn, "test"))
    monkeypatch.setattr(runner, "OTHERS_S", 30.0)
    both = [asyncio.create_task(upgrade(Target(empty_dsn, "test"))) for _ in range(2)]
    there = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'test' AND query LIKE '%try_advisory%'"
    await until_async(lambda: installed.fetchval(f"{there} HAVING count(*) = 2"), "both wait")
    await installed.execute("SELECT pg_advisory_unlock_all()")
    assert await asyncio.gather(*both) == [SCHEMA_VERSION, SCHEMA_VERSION]
    assert await ensure_schema(installed) == newest


async def test_who_has_nothing_to_do_waits_for_no_upgrade(installed: Sql, other: Sql, monkeypatch: Patch) -> None:
    """Installations and upgrades use the same lock."""
    monkeypatch.setattr(runner, "OTHERS_S", 0.0)
    assert await installed.fetchval(UPGRADE["upgrade_lock"].sql)
    assert await ensure_schema(other) == await upgraded(other) == SCHEMA_VERSION
    await other.execute("SET lock_timeout = 50")
    with pytest.raises(asyncpg.LockNotAvailableError):
        await other.execute(STATEMENTS["schema_lock"].sql)


async def test_servers_of_two_releases_ago_have_to_end_first(
    installed: Sql, monkeypatch: Patch, tmp_path: Path
) -> None:
    """They would not work with the new schema; those of the release before do."""
    await installed.execute("INSERT INTO pulse.hosts (host, boot, pidns) VALUES ('vm-2', 'b', 1)")
    newest = make_upgrades(monkeypatch, tmp_path, LATER, LATER)
    with pytest.raises(
        SchemaError, match=r"is at version \d+, this pulse brings \d+, and servers .* on vm-2: stop them"
    ):
        await upgraded(installed)
    assert await installed.fetchval("SELECT to_regclass('pulse.later')") is None
    await installed.execute("UPDATE pulse.hosts SET seen_at = now() - interval '1 minute'")
    assert await upgraded(installed) == newest - 2


async def test_a_database_that_refuses_a_step_is_an_error_of_pulse(
    empty_dsn: str, installed: Sql, monkeypatch: Patch, tmp_path: Path
) -> None:
    """And one that ends the session is away: others may try again."""
    make_upgrades(monkeypatch, tmp_path, FAULTY)
    with pytest.raises(PulseError, match=r"^the database refused: division by zero$"):
        await upgrade(Target(empty_dsn, "test"))
    file = tmp_path / "upgrades" / f"{SCHEMA_VERSION + 1}.sql"
    file.write_text(file.read_text().replace("1 / 0", "pg_terminate_backend(pg_backend_pid())"))
    with pytest.raises(UnavailableError):
        await upgrade(Target(empty_dsn, "test"))


async def test_servers_of_the_release_before_go_on(installed: Sql, monkeypatch: Patch, tmp_path: Path) -> None:
    await installed.execute("INSERT INTO pulse.hosts (host, boot, pidns) VALUES ('vm-2', 'b', 1)")
    make_upgrades(monkeypatch, tmp_path, LATER)
    assert await upgraded(installed) == SCHEMA_VERSION


@pytest.mark.parametrize(("size", "took_s", "following"), [
    (500, 0.001, 1000), (500, 0.02, 500), (500, 0.06, 250), (150, 1.0, LEAST_ROWS), (MOST_ROWS, 0.001, MOST_ROWS),
])  # fmt: skip
def test_the_size_of_the_next_batch(size: int, took_s: float, following: int) -> None:
    assert next_size(size, took_s) == following


async def test_the_plan(installed: Sql, monkeypatch: Patch, tmp_path: Path) -> None:
    """What an upgrade will do, on which tables, of which size."""
    await filled(installed, 100)
    await installed.execute("ANALYZE pulse.jobs")
    newest = make_upgrades(monkeypatch, tmp_path, ADD + step("later", LATER))
    told = await plan(installed)
    assert (told.found, told.wanted) == (SCHEMA_VERSION, newest)
    add, later = told.steps
    assert (add.step.lock, add.step.table, add.rows) == ("ACCESS EXCLUSIVE", JOBS, 100)
    assert (add.size_bytes or 0) > 8192
    assert (later.step.table, later.rows, later.size_bytes, later.noted.is_done) == (None, None, None, False)
    await upgraded(installed)
    assert (await plan(installed)).steps == []


async def test_steps_lock_what_they_say(installed: Sql) -> None:
    """The plan shows what is written in the header of a step: of those that were made up."""
    steps = parse_steps(SCHEMA_VERSION + 1, STEPS.read_text())
    assert [step.name for step in steps if step.kind is StepKind.CONCURRENT] == ["index-region"]  # by its nature
    for one in steps[:-1]:
        assert await lock_of(installed, one) == one.lock, one.name
