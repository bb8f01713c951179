"""What `manage.py check` says of pulse: nothing of a project that is right, one line of each thing that is wrong."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import django.db  # type: ignore[import-untyped]
import pytest
from django.conf import settings  # type: ignore[import-untyped]
from django.test import override_settings  # type: ignore[import-untyped]

import tests.pulse.sql.connections  # noqa: F401 - it sets Django up, which the imports below need

# isort: split
from pulse.contrib.django import asignal, signal, submit
from pulse.contrib.django.checks import check_database, check_link, check_schema, check_settings
from pulse.errors import ConfigError
from tests.pulse.sql.connections import peer
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import Sql

pytestmark = [pytest.mark.postgres, pytest.mark.anyio]

DEFAULT = ["default"]


@pytest.fixture(scope="module")
def server(newest_server: Postgres) -> Postgres:
    """Django is tested, not PostgreSQL."""
    return newest_server


def said(found: list[Any]) -> list[tuple[str, str]]:
    return [(one.id, one.msg) for one in found]


def every(databases: list[str] | None = None) -> list[tuple[str, str]]:
    found = [*check_settings(), *check_database(), *check_link(), *check_schema(databases=databases)]
    return said(found)


async def test_nothing_is_wrong(dsn: str) -> None:
    async with peer("Django", dsn):
        assert every(DEFAULT) == []


async def test_each_wrong_setting_is_one_error() -> None:
    """The other checks wait until they are right."""
    with override_settings(PULSE={"USER": 1, "PASWORD": "x", "DATABASE": "nowhere", "DASHBOARD_URL": "/jobs/"}):
        assert [one for one, _ in every(["default", "nowhere"])] == ["pulse.E001"] * 3


@contextlib.contextmanager
def databases(**changed: dict[str, str]) -> Iterator[None]:
    """Other databases, as other settings would make them."""
    every: Any = django.db.connections
    kept = dict(every.databases)
    for alias, more in changed.items():
        every.databases[alias] = {**kept["default"], **more}
    every["default"].close()
    del every["default"]
    try:
        yield
    finally:
        every.close_all()
        with contextlib.suppress(AttributeError):  # nobody has used it
            del every["default"]
        every.databases.clear()
        every.databases.update(kept)


async def test_jobs_are_in_postgresql() -> None:
    with databases(default={"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}):
        assert every(DEFAULT) == [("pulse.E002", "database 'default' is SQLite: jobs are in PostgreSQL")]
        with pytest.raises(ConfigError, match="database 'default' is SQLite: jobs are in PostgreSQL"):
            submit("resize")


async def test_the_schema_is_looked_at_where_one_asks(empty_dsn: str) -> None:
    """A missing one is a warning: `manage.py migrate`, which installs it, runs the checks of its database first."""
    async with peer("Django", empty_dsn):
        assert every() == every([]) == every(["other"]) == []
        ((name, line),) = every(DEFAULT)
        assert name == "pulse.W002"
        assert line == "database 'default': relation \"pulse.schema_version\" does not exist"


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ("release = 'x'", "a development version of pulse made the schema there"),
        ("version = 99", "the schema there has version 99, this pulse needs "),
    ],
)
async def test_a_schema_of_another_version(
    own_database: str, dsn: str, connection: Sql, change: str, wrong: str
) -> None:
    await connection.execute(f"UPDATE pulse.schema_version SET {change}")
    async with peer("Django", dsn):
        ((name, line),) = every(DEFAULT)
    assert (name, line.startswith(f"database 'default': {wrong}")) == ("pulse.E003", True), line


async def test_a_schema_of_the_next_release_will_do(own_database: str, dsn: str, connection: Sql) -> None:
    await connection.execute("INSERT INTO pulse.schema_version VALUES (2, 'newer')")
    async with peer("Django", dsn):
        assert every(DEFAULT) == []


async def test_the_sdk_alone_cannot_tell_the_version(
    own_database: str, dsn: str, connection: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    await connection.execute("UPDATE pulse.schema_version SET version = 99")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    async with peer("Django", dsn):
        assert every(DEFAULT) == []


async def test_a_role_without_rights(dsn: str, connection: Sql) -> None:
    async with peer("Django", dsn) as mine:
        await connection.execute("DO $$ BEGIN CREATE ROLE stranger; EXCEPTION WHEN duplicate_object THEN END $$")
        await mine.execute("SET ROLE stranger")
        assert every(DEFAULT) == [("pulse.E003", "database 'default': permission denied for schema pulse")]


@pytest.mark.parametrize(
    ("order", "warned"),
    [
        (["django.contrib.admin", "pulse.contrib.django"], True),
        (["pulse.contrib.django", "django.contrib.admin"], False),
        (["pulse.contrib.django"], False),
    ],
)
async def test_the_link_needs_an_order(order: list[str], *, warned: bool) -> None:
    def warnings() -> list[str]:
        kept, settings.INSTALLED_APPS = settings.INSTALLED_APPS, order
        try:
            return [one for one, _ in said(check_link())]
        finally:
            settings.INSTALLED_APPS = kept

    assert warnings() == []
    with override_settings(PULSE={"DASHBOARD_URL": "/jobs/"}):
        assert warnings() == ["pulse.W001"] * warned


async def test_jobs_in_a_database_of_their_own(dsn: str, connection: Sql) -> None:
    """``PULSE["DATABASE"]`` names it; a submit may name any, and so may a signal."""
    async with peer("Django", dsn):
        with databases(jobs={}, default={"NAME": "nowhere"}):
            with override_settings(PULSE={"DATABASE": "jobs"}):
                job = submit("one")
                assert signal(job, "paid", {"cents": 5}, key="k")
                assert not await asignal(job, "paid", key="k")
                assert every(["jobs"]) == every(DEFAULT) == []
            job = submit("two", {"n": 1}, using="jobs", priority=3)
            assert signal(job, "go", using="jobs")
    rows = await connection.fetch("SELECT name, priority FROM pulse.jobs ORDER BY name")
    assert [tuple(row) for row in rows] == [("one", 0), ("two", 3)]
    sent = await connection.fetch("SELECT name, payload::text AS payload FROM pulse.signals ORDER BY id")
    assert [tuple(row) for row in sent] == [("paid", '{"cents": 5}'), ("go", "null")]
