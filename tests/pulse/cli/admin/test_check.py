"""Which database `pulse check` and `pulse doctor` look at, where none is named or one is."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from pulse.cli.admin.check import choose_dsn
from pulse.config import Settings

NAMED, TOLD = "postgresql://named.example/a", "postgresql://told.example/b"


@pytest.mark.parametrize(("named", "told", "chosen"), [(NAMED, None, NAMED), (NAMED, TOLD, NAMED), (None, TOLD, TOLD)])
def test_the_one_that_is_named_comes_first(named: str | None, told: str | None, chosen: str, tmp_path: Path) -> None:
    assert choose_dsn(Settings(dsn=named, state_dir=tmp_path), {}, told) == chosen


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
