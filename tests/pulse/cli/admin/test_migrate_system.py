"""``pulse migrate`` as a whole process, against a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from pulse.cli.admin.migrate import what_was_done
from tests.support.commandline.cli import environment, run
from tests.support.servers.postgres import Postgres

pytestmark = [pytest.mark.process, pytest.mark.postgres]


@pytest.fixture
def empty(server: Postgres) -> Iterator[str]:
    with server.database(installed=False) as dsn:
        yield dsn


@pytest.mark.rest
def test_the_schema_is_installed_once(empty: str) -> None:
    first = run(["migrate", "--dsn", empty], environment())
    second = run(["migrate"], environment(PULSE_DSN=empty))
    assert (first.code, first.err) == (0, "")
    assert first.out.startswith("schema pulse installed, version ")
    assert (second.code, second.err) == (0, "")
    assert second.out.startswith("schema pulse is at version ")
    assert second.out.endswith(": nothing to do\n")


def test_an_upgrade_is_told() -> None:
    assert what_was_done(1, 2) == "schema pulse upgraded from version 1 to 2"


@pytest.mark.rest
def test_the_config_file_names_the_database(empty: str, tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    file.write_text(f'dsn = "{empty}"\n')
    assert run(["migrate", "--config", str(file)], environment()).out.startswith("schema pulse installed")
    file.rename(tmp_path / "pulse.toml")
    assert "nothing to do" in run(["migrate"], environment(), cwd=tmp_path).out


@pytest.mark.parametrize(("dsn", "message"), [
    ("not a dsn", "--dsn is 'not a dsn': a postgresql:// URL"),
    ("postgresql://u:s3cret-word@127.0.0.1:1/x", "the database postgresql://u:***@127.0.0.1:1/x does not answer: "),
])  # fmt: skip
def test_a_wrong_dsn_is_one_line(dsn: str, message: str) -> None:
    done = run(["migrate", "--dsn", dsn], environment())
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert message in done.err
    assert "s3cret" not in done.err


@pytest.mark.rest
def test_a_database_without_citus_is_one_line_and_stays_empty(empty: str) -> None:
    host = parse_qs(urlsplit(empty).query)["host"][0]
    done = run(["migrate", "--citus", "--dsn", empty.replace(f"host={host}", f"host={host},{host}")], environment())
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "has no extension citus" in done.err
    assert "installed" in run(["migrate", "--dsn", empty], environment()).out


def test_citus_is_more_than_one_host() -> None:
    done = run(["migrate", "--citus", "--dsn", "postgresql://u@127.0.0.1:1/x"], environment())
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert "PULSE_DSN postgresql://u@127.0.0.1:1/x names one host: a queue on Citus needs the coordinator" in done.err


def test_a_missing_database_is_one_line(empty: str) -> None:
    done = run(["migrate", "--dsn", empty.replace("/pulse_test_", "/no_such_")], environment())
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "does not exist" in done.err


def test_the_sql_of_the_roles_is_printed(tmp_path: Path) -> None:
    """For a superuser who trusts nobody else: it needs no database."""
    done = run(["migrate", "--roles", "--roles-prefix", "shop_", "--print"], environment(tmp_path))
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith(' TO "shop_read";\n\nCOMMIT;\n')
