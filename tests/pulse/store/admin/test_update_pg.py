"""Which schemas a pulse installs, works with, waits for and refuses."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from pulse.errors import SchemaError, UnavailableError
from pulse.store.admin import schema
from pulse.store.admin.schema import RELEASES, SCHEMA_VERSION, ensure_schema
from pulse.store.statements import STATEMENTS, schema_sql
from tests.support.admin.upgrade_kit import DEVELOPMENT, catalogue, make_upgrades
from tests.support.store.helpers import Patch, Sql

RELEASED = {1: "f8109ebaf2834b3b"}  # what tells the schema of each version that was released from all others
STEP = "CREATE TABLE IF NOT EXISTS pulse.later (id int)"


@pytest.fixture
async def empty(empty_dsn: str) -> AsyncIterator[Sql]:
    connection = await asyncpg.connect(empty_dsn)
    yield connection
    await connection.close(timeout=5)


@pytest.fixture
async def installed(empty: Sql) -> Sql:
    await ensure_schema(empty)
    return empty


@pytest.mark.parametrize("install", [True, False])
async def test_the_schema_of_the_release_before_will_do(
    installed: Sql, monkeypatch: Patch, tmp_path: Path, *, install: bool
) -> None:
    """A start does not upgrade it: servers of that release may run, and an operator decides when."""
    before = await catalogue(installed)
    make_upgrades(monkeypatch, tmp_path, STEP)
    assert await ensure_schema(installed, install=install) == SCHEMA_VERSION
    assert await catalogue(installed) == before


@pytest.mark.parametrize("install", [True, False])
async def test_the_schema_of_the_release_after_will_do(installed: Sql, *, install: bool) -> None:
    """That release has added to it, and taken nothing away that this one needs."""
    await installed.execute("INSERT INTO pulse.schema_version VALUES ($1, 'newer')", SCHEMA_VERSION + 1)
    assert await ensure_schema(installed, install=install) == SCHEMA_VERSION + 1


async def test_a_schema_of_two_releases_ago_is_refused(installed: Sql, monkeypatch: Patch, tmp_path: Path) -> None:
    before = await catalogue(installed)
    newest = make_upgrades(monkeypatch, tmp_path, STEP, STEP)
    said = (
        f"^the schema pulse is at version {SCHEMA_VERSION}; this pulse works with {newest - 1} to {newest + 1}: stop "
    )
    with pytest.raises(SchemaError, match=said):
        await ensure_schema(installed)
    assert await catalogue(installed) == before


async def test_who_only_looks_changes_nothing(empty: Sql, monkeypatch: Patch, tmp_path: Path) -> None:
    """An actor that restarts waits for a schema that is missing, half restored, or too old."""
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
    newest = make_upgrades(monkeypatch, tmp_path, STEP, STEP)
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
    monkeypatch.setitem(schema.RELEASES, SCHEMA_VERSION, "another")
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
    assert (RELEASES[SCHEMA_VERSION], _made_by(schema_sql())) == ("0.2.0", RELEASED[1])


@pytest.mark.parametrize("version", RELEASED)
def test_a_released_schema_stays_as_it_was(version: int) -> None:
    """Its frozen copy is what later releases upgrade."""
    frozen = (Path(__file__).parent / "released" / f"schema_v{version}.sql").read_text("utf-8")
    assert _made_by(frozen) == RELEASED[version]


def _made_by(text: str) -> str:
    """What tells schemas apart: their SQL without comments."""
    return hashlib.sha256(" ".join(re.sub("--.*", "", text).split()).encode()).hexdigest()[:16]
