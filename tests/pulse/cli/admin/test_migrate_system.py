"""``pulse migrate`` as a whole process, against a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pulse.cli.admin.migrate import what_was_done
from tests.support.commandline.cli import environment, run
from tests.support.servers.postgres import Postgres

pytestmark = [pytest.mark.process, pytest.mark.postgres]


@pytest.fixture
def empty(server: Postgres) -> Iterator[str]:
    """A database without pulse's schema."""
    with server.database(installed=False) as dsn:
        yield dsn


def test_the_schema_is_installed_once(empty: str) -> None:
    """The first call installs, the second finds nothing to do, and both say so in a line."""
    first = run(["migrate", "--dsn", empty], environment())
    second = run(["migrate"], environment(PULSE_DSN=empty))
    assert (first.code, first.err) == (0, "")
    assert first.out.startswith("schema pulse installed, version ")
    assert (second.code, second.err) == (0, "")
    assert second.out.startswith("schema pulse is at version ")
    assert second.out.endswith(": nothing to do\n")


def test_an_upgrade_is_told() -> None:
    """What was there before, and what is there now."""
    assert what_was_done(1, 2) == "schema pulse upgraded from version 1 to 2"


def test_the_config_file_names_the_database(empty: str, tmp_path: Path) -> None:
    """dsn in pulse.toml here, or in the file that --config names, is used."""
    file = tmp_path / "other.toml"
    file.write_text(f'dsn = "{empty}"\n')
    assert run(["migrate", "--config", str(file)], environment()).out.startswith("schema pulse installed")
    file.rename(tmp_path / "pulse.toml")
    assert "nothing to do" in run(["migrate"], environment(), cwd=tmp_path).out


@pytest.mark.parametrize(
    ("dsn", "message"),
    [
        ("not a dsn", "--dsn is 'not a dsn': a postgresql:// URL"),
        ("postgresql://u:s3cret-word@127.0.0.1:1/x", "the database postgresql://u:***@127.0.0.1:1/x does not answer: "),
    ],
)
def test_a_wrong_dsn_is_one_line(dsn: str, message: str) -> None:
    """A DSN that is none, or behind which nobody answers, ends with 1 and a line without the password."""
    done = run(["migrate", "--dsn", dsn], environment())
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert message in done.err
    assert "s3cret" not in done.err


def test_a_missing_database_is_one_line(empty: str) -> None:
    """A database that is not there is told in a line."""
    done = run(["migrate", "--dsn", empty.replace("/pulse_test_", "/no_such_")], environment())
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "does not exist" in done.err
