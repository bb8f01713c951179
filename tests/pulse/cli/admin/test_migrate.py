"""What a migration prints, and how it fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pulse.cli.admin.migrate import migrate, what_was_done
from pulse.errors import UnavailableError


@pytest.mark.parametrize(
    ("found", "said"), [(0, "installed, version 3"), (2, "from version 2 to 3"), (3, "nothing to do")]
)
def test_what_was_done(found: int, said: str) -> None:
    assert said in what_was_done(found, 3)


@pytest.mark.parametrize(("words", "code", "said"), [
    (["--print"], 2, "--print is allowed with --roles only"), (["--json"], 2, "--json is allowed with --plan only"),
    (["--plan", "--roles"], 2, "--plan is allowed without --roles only"), (["--print", "--roles"], 0, "CREATE ROLE"),
    (["--citus", "--roles"], 2, "--citus is allowed without"), (["--citus", "--plan"], 2, "--citus is allowed without"),
])  # fmt: skip
def test_what_is_only_printed(words: list[str], code: int, said: str) -> None:
    done = CliRunner().invoke(migrate, words, env={"PULSE_DSN": "postgresql:///nobody?host=/nowhere"})
    assert (done.exit_code, said in done.output) == (code, True)


def test_without_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(migrate, env={"PULSE_DSN": None, "PULSE_CONFIG": None})
    assert (done.exit_code, "no database is named" in done.output) == (2, True)


def test_a_database_that_is_away_has_refused_nothing() -> None:
    """Its error stays what it is: others may be tried again, and this one says so by its exit code."""
    done = CliRunner().invoke(migrate, env={"PULSE_DSN": "postgresql:///nobody?host=/nowhere"})
    assert isinstance(done.exception, UnavailableError)
