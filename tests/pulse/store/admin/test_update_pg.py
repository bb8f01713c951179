"""How a schema is upgraded, by made-up steps, and which is refused: a development version's."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import asyncpg
import pytest

from pulse.errors import SchemaError, UnavailableError
from pulse.store.admin import schema
from pulse.store.admin.schema import RELEASES, SCHEMA_VERSION, ensure_schema
from pulse.store.statements import STATEMENTS, schema_sql
from tests.support.admin.upgrade_kit import DEVELOPMENT, catalogue, make_upgrades
from tests.support.store.helpers import Patch, Sql
from tests.support.waiting import until_async

STEP: Final = "CREATE TABLE pulse.later (id int); INSERT INTO pulse.later VALUES (1)"
_BOTH_WAIT: Final = "SELECT count(*) = 2 FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"


@pytest.fixture
async def empty(empty_dsn: str) -> AsyncIterator[Sql]:
    connection = await asyncpg.connect(empty_dsn)
    yield connection
    await connection.close(timeout=5)


@pytest.fixture
async def installed(empty: Sql) -> Sql:
    await ensure_schema(empty)
    return empty


async def test_an_upgrade_is_applied_once(installed: Sql, monkeypatch: Patch, tmp_path: Path) -> None:
    """It makes what the step says, and keeps the jobs; the next start finds the new version, and does nothing."""
    job = await installed.fetchval("SELECT pulse.submit(name => 'n')")
    newest = make_upgrades(monkeypatch, tmp_path, STEP)
    assert [await ensure_schema(installed) for _ in range(3)] == [SCHEMA_VERSION, newest, newest]
    assert await installed.fetchval("SELECT array_agg(id) FROM pulse.later") == [1]
    assert await installed.fetchval("SELECT array_agg(id) FROM pulse.jobs") == [job]
    versions = await installed.fetch("SELECT version, release FROM pulse.schema_version ORDER BY version")
    assert [tuple(row) for row in versions] == sorted(RELEASES.items())


async def test_steps_are_taken_in_order(installed: Sql, monkeypatch: Patch, tmp_path: Path) -> None:
    make_upgrades(monkeypatch, tmp_path, STEP)
    await ensure_schema(installed)
    newest = make_upgrades(
        monkeypatch, tmp_path, "ALTER TABLE pulse.later ADD COLUMN more int", "UPDATE pulse.later SET more = 2"
    )
    assert await ensure_schema(installed) == newest - 2
    assert tuple(await installed.fetchrow("SELECT id, more FROM pulse.later") or ()) == (1, 2)


async def test_two_upgrade_at_once(installed: Sql, empty_dsn: str, monkeypatch: Patch, tmp_path: Path) -> None:
    newest = make_upgrades(monkeypatch, tmp_path, STEP)
    both = [await asyncpg.connect(empty_dsn) for _ in range(2)]
    async with installed.transaction():
        await installed.execute(STATEMENTS["schema_lock"].sql)
        upgrades = [asyncio.create_task(ensure_schema(one)) for one in both]
        watcher = await asyncpg.connect(empty_dsn)

        await until_async(
            lambda: watcher.fetchval(_BOTH_WAIT, installed.get_server_pid()),
            "two sessions that wait for the lock of migrations",
        )
    assert await asyncio.gather(*upgrades) == [SCHEMA_VERSION, SCHEMA_VERSION]
    assert await ensure_schema(installed) == newest
    assert await installed.fetchval("SELECT array_agg(id) FROM pulse.later") == [1]
    for connection in (*both, watcher):
        await connection.close(timeout=5)


async def test_an_upgrade_is_whole_or_nothing(installed: Sql, monkeypatch: Patch, tmp_path: Path) -> None:
    """A failure in its second step leaves the schema as it was; after the repair, it is done."""
    before = await catalogue(installed)
    newest = make_upgrades(monkeypatch, tmp_path, STEP, "ALTER TABLE pulse.later ADD COLUMN more int; SELECT 1 / 0")
    with pytest.raises(asyncpg.DivisionByZeroError, match="division by zero"):
        await ensure_schema(installed)
    assert await catalogue(installed) == before
    faulty = tmp_path / "upgrades" / f"{newest}.sql"
    faulty.write_text(faulty.read_text().replace("1 / 0", "1"))
    assert await ensure_schema(installed) == SCHEMA_VERSION
    assert tuple(await installed.fetchrow("SELECT id, more FROM pulse.later") or ()) == (1, None)


async def test_an_upgrade_takes_its_time(installed: Sql, empty_dsn: str, monkeypatch: Patch, tmp_path: Path) -> None:
    """A step may rewrite a large table: the session's statement limit is off meanwhile."""
    hasty = await asyncpg.connect(empty_dsn, server_settings={"statement_timeout": "100"})
    make_upgrades(monkeypatch, tmp_path, f"SELECT pg_sleep(0.3); {STEP}")
    assert await ensure_schema(hasty) == SCHEMA_VERSION
    assert await hasty.fetchval("SHOW statement_timeout") == "100ms"
    await hasty.close(timeout=5)
    assert await installed.fetchval("SELECT count(*) FROM pulse.later") == 1


async def test_who_only_looks_changes_nothing(empty: Sql, monkeypatch: Patch, tmp_path: Path) -> None:
    """An actor that restarts waits for a schema that is missing, half restored, or older."""
    with pytest.raises(UnavailableError, match=f"pulse is not there; this pulse waits for version {SCHEMA_VERSION}"):
        await ensure_schema(empty, install=False)
    assert await empty.fetchval("SELECT to_regnamespace('pulse')") is None
    await ensure_schema(empty)
    (row,) = await empty.fetch("DELETE FROM pulse.schema_version RETURNING version, release")
    with pytest.raises(UnavailableError, match="pulse is not there; this pulse waits for"):
        await ensure_schema(empty, install=False)
    await empty.execute("INSERT INTO pulse.schema_version (version, release) VALUES ($1, $2)", *row)
    assert await ensure_schema(empty, install=False) == SCHEMA_VERSION
    before = await catalogue(empty)
    newest = make_upgrades(monkeypatch, tmp_path, STEP)
    with pytest.raises(
        UnavailableError, match=f"is at version {SCHEMA_VERSION}; this pulse waits for version {newest}"
    ):
        await ensure_schema(empty, install=False)
    assert await catalogue(empty) == before


async def test_who_finds_what_he_needs_waits_for_nobody(installed: Sql, empty_dsn: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(schema, "LOCK_TIMEOUT_S", 0.05)
    other = await asyncpg.connect(empty_dsn)
    async with installed.transaction():
        await installed.execute(STATEMENTS["schema_lock"].sql)
        assert await ensure_schema(other) == SCHEMA_VERSION
    await other.close(timeout=5)


@pytest.mark.parametrize("version", [1, 2, 10])
@pytest.mark.parametrize("install", [True, False])
async def test_a_schema_of_old_is_refused(empty: Sql, version: int, *, install: bool) -> None:
    """A table identifies numbers from before the first release; that schema is left as it is."""
    await empty.execute(DEVELOPMENT.format(version))
    before = await catalogue(empty)
    said = rf"development version .* \(as version {version}\), .*: dump .* DROP SCHEMA pulse .* run pulse migrate"
    with pytest.raises(SchemaError, match=said):
        await ensure_schema(empty, install=install)
    assert await catalogue(empty) == before


async def test_a_draft_is_refused(installed: Sql, monkeypatch: Patch, tmp_path: Path) -> None:
    """A version that its release made otherwise is refused, by that release and by later ones."""
    before = await catalogue(installed)
    monkeypatch.setitem(schema.RELEASES, SCHEMA_VERSION, "0.1.0")
    for _ in range(2):
        with pytest.raises(SchemaError, match=rf"development version .* \(as version {SCHEMA_VERSION}\)"):
            await ensure_schema(installed)
        make_upgrades(monkeypatch, tmp_path, STEP)
    assert await catalogue(installed) == before


def test_a_changed_schema_has_another_name() -> None:
    """
    A change of what schema.sql makes needs a later .dev release, there and in RELEASES, and here.

    So databases of the schema before are refused, instead of failing somewhere.
    """
    text = " ".join(re.sub("--.*", "", schema_sql()).split())
    made = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert (RELEASES[SCHEMA_VERSION], made) == ("0.1.0.dev13", "dc98ee40ef296f98")
