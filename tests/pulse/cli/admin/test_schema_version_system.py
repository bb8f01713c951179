"""A database of a development version, or of one that is too new: every program says so in one useful line."""

from __future__ import annotations

from collections.abc import Iterator

import asyncpg
import pytest

from pulse.store.admin.schema import SCHEMA_VERSION
from tests.support.admin.upgrade_kit import DEVELOPMENT
from tests.support.commandline.cli import environment, run
from tests.support.servers.postgres import Postgres
from tests.support.systems.system import short_directory
from tests.support.systems.system_kit import clean_environment
from tests.support.systems.system_kit import run as run_program

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.anyio]


@pytest.fixture
def empty(newest_server: Postgres) -> Iterator[str]:
    with newest_server.database(installed=False) as dsn:
        yield dsn


@pytest.mark.rest
async def test_it_is_refused_until_its_schema_is_dropped(empty: str) -> None:
    connection = await asyncpg.connect(empty)
    await connection.execute(DEVELOPMENT.format(10))
    with short_directory() as directory:
        env = clean_environment(PULSE_DSN=empty, PULSE_RUNTIME_DIR=str(directory / "run"), PULSE_LOG_LEVEL="critical")
        started = run_program("pulse_supervisor.main", [], env)
    migrated, checked = (run([word, "--dsn", empty], environment()) for word in ("migrate", "check"))
    said = {text.partition(": ")[2] for text in (started.stderr, migrated.err, checked.err)}
    assert (started.returncode, migrated.code, checked.code, len(said)) == (1, 1, 1, 1), said
    (line,) = said
    assert "a development version of pulse, which was never released, made the schema pulse (as version 10)" in line
    assert line.count("\n") == 1
    assert await connection.fetchval("SELECT to_regclass('pulse.jobs')") is None
    assert "DROP SCHEMA pulse CASCADE and run pulse migrate" in line
    await connection.execute("DROP SCHEMA pulse CASCADE")
    await connection.close(timeout=5)
    assert run(["migrate", "--dsn", empty], environment()).out == "schema pulse installed, version 1\n"


@pytest.mark.rest
async def test_a_server_refuses_a_schema_that_is_two_versions_newer(empty: str) -> None:
    """By one line that says what to do, as `pulse migrate` does."""
    run(["migrate", "--dsn", empty], environment())
    connection = await asyncpg.connect(empty)
    await connection.execute("INSERT INTO pulse.schema_version VALUES ($1, 'newer')", SCHEMA_VERSION + 2)
    await connection.close(timeout=5)
    with short_directory() as directory:
        env = clean_environment(PULSE_DSN=empty, PULSE_RUNTIME_DIR=str(directory / "run"), PULSE_LOG_LEVEL="critical")
        started = run_program("pulse_supervisor.main", [], env)
    migrated = run(["migrate", "--dsn", empty], environment())
    assert (started.returncode, migrated.code) == (1, 1)
    for line in (started.stderr, migrated.err):
        assert line.count("\n") == 1, line
        assert f"works with {SCHEMA_VERSION} to {SCHEMA_VERSION + 1}: upgrade pulse" in line
