"""Which database `pulse check` and `pulse doctor` look at, where none is named or one is."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from pulse.cli.admin.check import choose_dsn, choose_schema
from pulse.config import Settings
from pulse.protocol.answers import Database

NAMED, TOLD = "postgresql://named.example/a", "postgresql://told.example/b"


@pytest.mark.parametrize(("named", "told", "chosen"), [(NAMED, None, NAMED), (NAMED, TOLD, NAMED), (None, TOLD, TOLD)])
def test_the_one_that_is_named_comes_first(named: str | None, told: str | None, chosen: str, tmp_path: Path) -> None:
    assert choose_dsn(Settings(dsn=named, state_dir=tmp_path), {}, told) == chosen


@pytest.mark.parametrize(("dsn", "named", "told", "chosen"), [
    (None, None, None, "pulse"), (None, None, "orders", "orders"), (None, "mail", "orders", "mail"),
    (NAMED, None, "orders", "pulse"), (NAMED, "mail", None, "mail"),
])  # fmt: skip
def test_the_schema(dsn: str | None, named: str | None, told: str | None, chosen: str) -> None:
    """The one of the running server is meant where its database is."""
    database = None if told is None else Database(ok=True, dsn=TOLD, schema=told)
    assert choose_schema(Settings(dsn=dsn, schema=named), database) == chosen


def test_the_embedded_one_comes_last(tmp_path: Path) -> None:
    """Not where the server uses another, even if its password is missing."""
    settings = Settings(state_dir=tmp_path)
    with pytest.raises(click.UsageError, match="no server answers, and no embedded PostgreSQL runs"):
        choose_dsn(settings, {}, None)
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / ".s.PGSQL.5432").touch()
    assert f"host={tmp_path}/postgres&" in choose_dsn(settings, {}, None)
    with pytest.raises(click.UsageError, match="the server uses postgresql://ann:"):
        choose_dsn(settings, {}, "postgresql://ann:***@told.example/b")
