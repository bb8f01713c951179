"""What an actor does about the schema of another release, when it starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pulse.store.admin.schema import SCHEMA_VERSION
from pulse.store.store import Store
from pulse_actors.runtime import schema as runtime_schema
from pulse_actors.runtime.schema import see_to_schema
from tests.support.admin.upgrade_kit import make_upgrades, step
from tests.support.store.helpers import Patch, Sql

LATER = "CREATE TABLE IF NOT EXISTS pulse.later (id int)"
THERE = "SELECT to_regclass('pulse.later') IS NOT NULL"
NEXT = SCHEMA_VERSION + 1

pytestmark = pytest.mark.usefixtures("own_database")


async def logged(store: Store, *, boot: bool = True, embedded: bool = False, tells: bool = True) -> list[object]:
    with capture_logs() as lines:
        await see_to_schema(store, boot=boot, embedded=embedded, tells=tells)
    return [(line["event"], line.get("found"), line.get("own")) for line in lines]


async def test_its_own_is_no_news(store: Store) -> None:
    assert await logged(store) == []


async def test_an_older_one_is_told_by_one_actor_and_left_as_it_is(
    store: Store, connection: Sql, monkeypatch: Patch, tmp_path: Path
) -> None:
    make_upgrades(monkeypatch, tmp_path, LATER)
    assert await logged(store) == [("schema_of_another_release", SCHEMA_VERSION, NEXT)]
    assert await logged(store, tells=False) == []
    assert await connection.fetchval(THERE) is False


async def test_an_upgrade_that_takes_a_moment_is_done_at_the_first_start(
    store: Store, connection: Sql, monkeypatch: Patch, tmp_path: Path
) -> None:
    """From the release before; not by a server that is started again, and not where a table has to be filled, too."""
    filled = step(
        "filled",
        "SELECT NULL::text AS reached, 0 AS rows WHERE $1::text IS NULL AND $2 > 0 AND $3::text <> ''",
        kind="batches",
        table="pulse.jobs",
        key="id",
    )
    make_upgrades(monkeypatch, tmp_path, step("later", LATER) + filled)
    assert await logged(store, tells=False) == []
    (tmp_path / "upgrades" / f"{NEXT}.sql").write_text(step("later", LATER), "utf-8")
    assert await logged(store, boot=False, tells=False) == []
    assert await connection.fetchval(THERE) is False
    assert await logged(store) == [("schema_upgrade", None, None)]
    assert await connection.fetchval(THERE) is True
    assert await logged(store) == []


async def test_one_that_fails_is_left_to_the_operator(store: Store, monkeypatch: Patch, tmp_path: Path) -> None:
    """The server works with the schema as it is."""
    make_upgrades(monkeypatch, tmp_path, step("forbidden", "DO $$ BEGIN RAISE insufficient_privilege; END $$"))
    told = [("schema_upgrade", None, None), ("schema_upgrade_failed", None, None)]
    assert await logged(store) == [*told, ("schema_of_another_release", SCHEMA_VERSION, NEXT)]


async def test_one_that_has_to_wait_is_left_to_the_operator(
    store: Store, connection: Sql, monkeypatch: Patch, tmp_path: Path
) -> None:
    """As long as another session has the table: the start does not wait for it."""
    monkeypatch.setattr(runtime_schema, "MOMENT_S", 0.5)
    add = "ALTER TABLE pulse.topics ADD COLUMN IF NOT EXISTS later int"
    make_upgrades(monkeypatch, tmp_path, step("waits", add, table="pulse.topics", lock="ACCESS EXCLUSIVE"))
    async with connection.transaction():
        await connection.execute("LOCK TABLE pulse.topics IN ACCESS SHARE MODE")
        with capture_logs() as lines:
            await see_to_schema(store, boot=True, embedded=False, tells=False)
    assert [line.get("error") for line in lines] == [None, "not within 0.5 s"]


async def test_a_newer_one_is_told(store: Store, connection: Sql) -> None:
    await connection.execute("INSERT INTO pulse.schema_version VALUES ($1, 'newer')", NEXT)
    assert await logged(store) == [("schema_of_another_release", NEXT, SCHEMA_VERSION)]


async def test_that_of_the_embedded_database_is_upgraded_at_the_first_start(
    store: Store, connection: Sql, monkeypatch: Patch, tmp_path: Path
) -> None:
    """Whatever was seen there a moment ago: its server has just been started."""
    await connection.execute("INSERT INTO pulse.hosts (host, boot, pidns) VALUES ('here', 'b', 1)")
    make_upgrades(monkeypatch, tmp_path, LATER)
    assert await logged(store, boot=False, embedded=True) == [("schema_of_another_release", SCHEMA_VERSION, NEXT)]
    assert await connection.fetchval(THERE) is False
    assert await logged(store, embedded=True) == [("schema_upgrade", None, None)]
    assert await connection.fetchval(THERE) is True
    make_upgrades(monkeypatch, tmp_path, "SELECT 2", "SELECT 3")
    assert len(await logged(store, embedded=True)) == 2
