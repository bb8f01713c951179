"""pulse.sql, ctx.transaction and pulse.testing in a schema with a hostile name, by every driver."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import django.conf  # type: ignore[import-untyped]
import pytest
from django.test import override_settings  # type: ignore[import-untyped]

import pulse
from pulse.app.transactions.fence import AttemptFence
from pulse.app.transactions.transaction import Transaction
from pulse.errors import ConfigError, NobodyAnswersError, SchemaError, StaleAttemptError
from pulse.sql.database import FallbackDatabase
from pulse.sql.document import document_of
from pulse.store.connections.session import Session
from pulse.testing import run_submitted, run_submitted_async, submitted, submitted_async
from tests.pulse.sql.connections import KINDS, peer, waiting
from tests.support.hostile import HOSTILE, hostile_database, session_in
from tests.support.servers.client_flavors import FLAVORS, using
from tests.support.servers.fake_dispatcher import RuntimeDir
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import WORKER, Patch, forge

pytestmark = [pytest.mark.postgres, pytest.mark.anyio]

each_driver = pytest.mark.parametrize("kind", list(KINDS))
app = pulse.App()


@app.handler("double")
def double(number: int) -> int:
    return 2 * number


@pytest.fixture(scope="module")
def server(newest_server: Postgres) -> Postgres:
    """The drivers are tested; the statements are tested on every PostgreSQL."""
    return newest_server


@pytest.fixture(scope="module")
def database(server: Postgres) -> Iterator[str]:
    with hostile_database(server) as made:
        yield made


@pytest.fixture
async def sql(database: str) -> AsyncIterator[Session]:
    async with session_in(database, HOSTILE) as made:
        await made.execute("TRUNCATE pulse.jobs, pulse.signals")
        yield made


@each_driver
async def test_submits_and_signals(kind: str, database: str, sql: Session) -> None:
    """One, many, with a unique key, and a signal; without the name there is no schema."""
    async with peer(kind, database) as mine:
        async with mine.begin():
            one = await mine.submit("one", schema=HOSTILE)
            await mine.submit_many([{"name": "two"}], schema=HOSTILE)
            kept = await mine.submit("three", unique="k", schema=HOSTILE)
            assert await mine.submit("three", unique="k", schema=HOSTILE) == kept
            assert await mine.signal(one, "go", {"n": 1}, schema=HOSTILE)
        with pytest.raises(ConfigError, match=r"^schema is 'pg_x': 1 to 63 bytes "):
            await mine.submit("four", schema="pg_x")
        with pytest.raises(SchemaError, match="pulse migrate"):
            await mine.submit("four")
    names = [row["name"] for row in await sql.fetch("SELECT name FROM pulse.jobs ORDER BY submitted_at, name")]
    assert names == ["one", "two", "three"]
    assert json.loads(await sql.fetchval("SELECT payload FROM pulse.signals")) == {"n": 1}


@each_driver
async def test_a_transaction_of_an_attempt(kind: str, database: str, sql: Session) -> None:
    """It completes the job there, by the name that the server told the worker; a stale one is refused."""
    async with peer(kind, database) as mine:
        for attempt, completes in ((1, False), (1, True), (2, True)):
            job = await forge(sql, "RUNNING")
            fence = AttemptFence(WORKER, schema=HOSTILE)
            block: Any = Transaction((uuid.UUID(bytes=job), attempt), fence, mine.connection, completes=completes)
            try:
                async with block if mine.is_async else waiting(block):
                    pass
            except StaleAttemptError:
                assert attempt == 2
            status = await sql.fetchval("SELECT status::text FROM pulse.jobs WHERE id = $1", job.hex())
            assert status == ("COMPLETED" if (attempt, completes) == (1, True) else "RUNNING")


@each_driver
async def test_jobs_of_a_test(kind: str, database: str, monkeypatch: Patch, sql: Session) -> None:
    """Those of the schema that the environment names are seen and run; as are submits."""
    monkeypatch.setenv("PULSE_SCHEMA", HOSTILE)
    async with peer(kind, database) as mine, mine.begin():
        await mine.submit(pulse.call(double, 21))
        if mine.is_async:
            (ran,) = await run_submitted_async(mine.connection, app)
            (seen,) = await submitted_async(mine.connection, double)
        else:
            (ran,) = run_submitted(mine.connection, app)
            (seen,) = submitted(mine.connection, double)
        assert (ran.result, seen.result) == (42, 42)
    assert await sql.fetchval("SELECT status::text FROM pulse.jobs") == "COMPLETED"


@pytest.mark.parametrize("only", ["psycopg", "asyncpg"])
def test_the_database_that_a_client_falls_back_to(only: str, database: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == only or None)
    there = FallbackDatabase(database, 10.0, HOSTILE)
    body = {"jobs": [{"id": uuid.uuid4().bytes, "name": f"by {only}", "args": "{}", "unique": only}]}
    assert there.submit(document_of(body), asks=True)
    there.close()
    elsewhere = FallbackDatabase(database, 10.0, "elsewhere")
    with pytest.raises((SchemaError, NobodyAnswersError)):
        elsewhere.submit(document_of(body))
    elsewhere.close()


@pytest.mark.parametrize("flavor", FLAVORS)
def test_a_client_falls_back_to_the_schema_of_its_environment(flavor: str, database: str, monkeypatch: Patch) -> None:
    monkeypatch.setenv("PULSE_SCHEMA", HOSTILE)
    with RuntimeDir() as directory:
        (job_id,) = using(flavor, directory.path / "pulse.sock", lambda client: client.submit("n"), when_down=database)
    assert isinstance(job_id, uuid.UUID)
    monkeypatch.setenv("PULSE_SCHEMA", "pg_x")
    with pytest.raises(ConfigError, match=r"^PULSE_SCHEMA is 'pg_x': "):
        pulse.Client("/nowhere", when_down=database)


async def test_a_project_of_django(database: str, sql: Session) -> None:
    """The key SCHEMA is where its submits go; and it is handed on to workers."""
    assert django.conf.settings.configured
    from pulse.contrib.django import signal, submit
    from pulse.contrib.django.checks import check_schema
    from pulse.contrib.django.settings import read_settings

    async with peer("Django", database):
        with override_settings(PULSE={"SCHEMA": HOSTILE}):
            assert signal(submit("n"), "go")
            assert check_schema(["default"]) == []
        assert [one.id for one in check_schema(["default"])] == ["pulse.W002"]
    assert await sql.fetchval("SELECT name FROM pulse.jobs") == "n"
    found, problems = read_settings({"SCHEMA": HOSTILE}, ["default"])
    assert (found.environment, problems) == ({"PULSE_SCHEMA": HOSTILE}, [])
    (problem,) = read_settings({"SCHEMA": "pg_x"}, ["default"])[1]
    assert problem.startswith("PULSE: PULSE_SCHEMA is 'pg_x': ")
