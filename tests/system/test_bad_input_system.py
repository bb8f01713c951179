"""A supervisor that cannot use its database or app says so in one clear line."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.confidential import confidential
from tests.support.servers.postgres import GIVEN_DSN, PASSWORD_ROLE
from tests.support.systems.system import short_directory
from tests.support.systems.system_kit import clean_environment, run

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]

SECRET = confidential("geh31m-and-wrong", "password of a DSN")


def refused(dsn: str, *words: str) -> list[str]:
    with short_directory() as directory:
        env = clean_environment(PULSE_LOG_FORMAT="json", PULSE_RUNTIME_DIR=str(directory / "run"), PULSE_DSN=dsn)
        done = run("pulse_supervisor.main", words, env, cwd=Path("/"))
    assert done.returncode == 1, done.stderr
    assert SECRET not in done.stdout + done.stderr
    return [line for line in done.stderr.splitlines() if not line.startswith("{")]


def test_an_app_that_is_none(dsn: str) -> None:
    (line,) = refused(dsn, "--app", "nosuch:app")
    assert line.startswith("pulse-supervisor: cannot load 'nosuch:app': no module 'nosuch' here ")


def test_a_database_that_is_not_there(dsn: str) -> None:
    (line,) = refused(changed_dsn(dsn, database="nosuchdb", password=SECRET))
    assert re.fullmatch(
        r'pulse-supervisor: PULSE_DSN postgresql://.*\*\*\*.*: database "nosuchdb" does not exist', line
    )


@pytest.mark.skipif(GIVEN_DSN in os.environ, reason="how a given server lets users in is not known")
def test_a_password_that_is_wrong(dsn: str) -> None:
    (line,) = refused(changed_dsn(dsn, user=PASSWORD_ROLE, password=SECRET))
    failed = f'password authentication failed for user "{PASSWORD_ROLE}"'
    assert re.fullmatch(rf"pulse-supervisor: PULSE_DSN postgresql://.*: {failed}", line)


def changed_dsn(dsn: str, *, password: str, database: str | None = None, user: str | None = None) -> str:
    """*dsn* with other parts, as a URL with the host in its query."""
    split = urlsplit(dsn)
    query = {key: values[0] for key, values in parse_qs(split.query).items()}
    query |= {"host": query.get("host") or split.hostname or "", "password": password}
    if user is not None or "user" not in query:
        query["user"] = user or split.username or ""
    words = "&".join(f"{key}={value}" for key, value in query.items() if value)
    return f"postgresql:///{database or split.path.lstrip('/')}?{words}"
