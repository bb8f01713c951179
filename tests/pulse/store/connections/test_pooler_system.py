"""A pooler instead of the database: each start says so at once, in one line, with what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import asyncpg
import pytest

from pulse.config import Settings
from pulse.errors import SchemaError, UnavailableError
from pulse.store.admin import doctor
from pulse.store.connections.pool import SERVER_SETTINGS, Target, connect
from pulse.store.connections.pooler import PoolerError, refuse_pooler
from pulse_actors.runtime.actor import Runtime
from tests.support.commandline.cli import environment, run
from tests.support.servers.bouncer import bouncer
from tests.support.servers.postgres import Postgres
from tests.support.systems.system import short_directory
from tests.support.systems.system_kit import clean_environment
from tests.support.systems.system_kit import run as run_program

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.anyio, pytest.mark.patient, pytest.mark.rest]

IGNORED = ", ".join(SERVER_SETTINGS)
SET = "; ".join(f"SET {name} = {value}" for name, value in SERVER_SETTINGS.items())
AS_ASKED = f"connect_query='{SET}'"  # so that each session has what pulse asks for, although it is not passed on
REFUSES = "refuses the settings of a session (unsupported startup parameter: "
LIMITS = "idle_in_transaction_session_timeout, lock_timeout, search_path, statement_timeout"
DROPS = f"drops the settings of a session ({LIMITS})"
POOLERS = [
    ("transaction", "", "", REFUSES),
    ("session", "", "", REFUSES),
    ("transaction", "", IGNORED, DROPS),
    ("session", "", IGNORED, DROPS),
    ("transaction", AS_ASKED, IGNORED, "gives each transaction another session"),
]
LOGIN = """
CREATE FUNCTION public.shorten() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM set_config('statement_timeout', '7777', false); END $$;
CREATE EVENT TRIGGER shorten ON login EXECUTE FUNCTION public.shorten();
"""


@pytest.fixture
def empty(newest_server: Postgres) -> Iterator[str]:
    with newest_server.database(installed=False) as dsn:
        yield dsn


@pytest.mark.parametrize(("mode", "database", "ignored", "what"), POOLERS, ids=range(len(POOLERS)))
def test_a_pooler_is_told_at_start(empty: str, mode: str, database: str, ignored: str, what: str) -> None:
    """The supervisor ends with 78 and one line that names it, `pulse migrate` with 1; nothing is installed."""
    with bouncer(empty, mode, database=database, ignored=ignored) as dsn, short_directory() as directory:
        env = clean_environment(PULSE_DSN=dsn, PULSE_RUNTIME_DIR=str(directory / "run"), PULSE_LOG_LEVEL="critical")
        started = run_program("pulse_supervisor.main", [], env)
        migrated = run(["migrate", "--dsn", dsn], environment())
    for code, line in ((started.returncode, started.stderr), (migrated.code - 1 + 78, migrated.err)):
        assert (code, line.count("\n")) == (78, 1), line
        assert "a pooler such as PgBouncer answers for the database" in line
        assert what in line
        assert "let PULSE_DSN name PostgreSQL itself" in line
    assert "installed" in run(["migrate", "--dsn", empty], environment()).out


async def test_those_who_look_at_the_same_time_see_it(empty: str) -> None:
    """Actors start together: where one borrows a session in between, another one's look finds nothing."""
    mode, database, ignored, what = POOLERS[-1]
    with bouncer(empty, mode, database=database, ignored=ignored) as dsn:
        for _ in range(20):
            looks = [refuse_pooler(Target(dsn, "test")) for _ in range(4)]
            for seen in await asyncio.gather(*looks, return_exceptions=True):
                assert isinstance(seen, PoolerError)
                assert what in seen.message


async def test_what_sets_sessions_otherwise_is_no_pooler(newest_server: Postgres, empty: str) -> None:
    """A DBA's trigger may change each session when it begins: no advice about poolers would help."""
    if newest_server.major < 17:
        pytest.skip("PostgreSQL 17 is the first that has triggers on login")
    connection = await asyncpg.connect(empty)
    await connection.execute(LOGIN)
    await connection.close()
    session = await connect(Target(empty, "test"), {})
    assert await session.fetchval("SHOW statement_timeout") == "7777ms"
    session.terminate()
    await refuse_pooler(Target(empty, "test"))


class Pooled:
    async def check_sessions(self) -> None:
        raise PoolerError

    async def prepare(self, *, install: bool = True) -> int:
        raise SchemaError


async def test_only_the_first_start_looks_for_a_pooler() -> None:
    """An actor that restarts is in use already: a pooler that came later does not end everything."""
    for boot, error in ((True, PoolerError), (False, SchemaError)):
        runtime = Runtime("pause", cast("Any", None), Settings(), cast("Any", Pooled()), boot=boot)
        with pytest.raises(error):
            await runtime.prime(cast("Any", None))


async def test_a_distant_pooler_that_keeps_sessions_is_let_be(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any round-trip time: each query has its own limit."""
    monkeypatch.setattr(doctor, "_PROBES", 1000)
    with bouncer(empty, "session", database=AS_ASKED, ignored=IGNORED) as dsn:
        await refuse_pooler(Target(dsn, "test"))


async def test_a_pooler_that_keeps_sessions_is_let_be(empty: str) -> None:
    """Each session keeps its own settings: nothing is wrong with that."""
    with bouncer(empty, "session", database=AS_ASKED, ignored=IGNORED) as dsn:
        await refuse_pooler(Target(dsn, "test"))


async def test_nobody_who_is_away_is_a_pooler() -> None:
    with pytest.raises(UnavailableError, match="does not answer"):
        await refuse_pooler(Target("postgresql://u@127.0.0.1:1/x", "test"))
