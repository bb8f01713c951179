"""`manage.py migrate` installs the schema of pulse where there is none, and changes none that is there."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest
from django.db import transaction  # type: ignore[import-untyped]
from django.test import override_settings  # type: ignore[import-untyped]

import tests.pulse.sql.connections  # noqa: F401 - it sets Django up, which the imports below need

# isort: split
import pulse.contrib.django
from pulse.contrib.django.schema import install
from pulse.errors import SchemaError
from pulse.store.admin.schema import ensure_schema
from tests.pulse.sql.connections import peer
from tests.support.hostile import HOSTILE, session_in
from tests.support.servers.postgres import Postgres

pytestmark = [pytest.mark.postgres, pytest.mark.anyio]

NOW = """
    SELECT current_setting('search_path'), current_setting('lock_timeout'), current_setting('statement_timeout'),
        to_regclass('pulse.jobs') IS NOT NULL
    """
OWN = ('"$user", public', "7s", "9s", True)


@pytest.fixture(scope="module")
def server(newest_server: Postgres) -> Postgres:
    """Django is tested; the schema is tested on every PostgreSQL."""
    return newest_server


def migrate(connection: Any, **more: object) -> tuple[object, ...]:
    """As Django does it, in a transaction; what is true at its end."""
    editor = SimpleNamespace(connection=SimpleNamespace(
        alias="default", vendor=connection.vendor, cursor=connection.cursor
    ))  # fmt: skip
    editor.connection.__dict__.update(more)
    atomic: Any = transaction.atomic
    with atomic(), connection.cursor() as cursor:
        install(None, editor)
        cursor.execute(NOW)
        return tuple(cursor.fetchone())


async def test_it_installs_the_schema_once(empty_dsn: str) -> None:
    """What Django does in the same transaction, it does with its own settings again."""
    async with peer("Django", empty_dsn) as mine:
        await mine.execute("SET lock_timeout = '7s'")
        await mine.execute("SET statement_timeout = '9s'")
        assert migrate(mine.connection) == OWN
        pulse.contrib.django.submit("kept")
        assert migrate(mine.connection) == OWN
    connection = await asyncpg.connect(empty_dsn)
    try:
        assert await connection.fetchval("SELECT name FROM pulse.jobs") == "kept"
        assert await ensure_schema(connection, install=False) > 0
    finally:
        await connection.close(timeout=5)


async def test_a_schema_of_another_name(empty_dsn: str) -> None:
    """It is installed there, once, whatever its name is; one with tables of somebody else is left as it is."""
    async with peer("Django", empty_dsn) as mine:
        with override_settings(PULSE={"SCHEMA": HOSTILE}):
            for _ in range(2):
                assert migrate(mine.connection)[-1] is False  # there is none that is called pulse
            pulse.contrib.django.submit("kept")
        await mine.execute("CREATE SCHEMA shop; CREATE TABLE shop.orders ()")
        with (
            override_settings(PULSE={"SCHEMA": "shop"}),
            pytest.raises(SchemaError, match=r'^the schema "shop" is not empty \(it has orders\)'),
        ):
            migrate(mine.connection)
    async with session_in(empty_dsn, HOSTILE) as sql:
        assert await sql.fetchval("SELECT name FROM pulse.jobs") == "kept"
        assert await ensure_schema(sql, install=False) > 0


@pytest.mark.parametrize("more", [{"alias": "replica"}, {"vendor": "sqlite"}])
async def test_other_databases_get_none(empty_dsn: str, more: dict[str, str]) -> None:
    async with peer("Django", empty_dsn) as mine:
        assert migrate(mine.connection, **more)[-1] is False
        with override_settings(PULSE={"DATABASE": "default"}):
            assert migrate(mine.connection)[-1] is True


def test_undoing_it_keeps_the_jobs() -> None:
    migration = importlib.import_module("pulse.contrib.django.migrations.0001_schema")
    (operation,) = migration.Migration.operations
    assert operation.code is install
    assert operation.reverse_code(None, None) is None
