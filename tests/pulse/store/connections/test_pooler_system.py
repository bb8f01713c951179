"""A pooler instead of the database: each start says so at once, in one line, with what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast
from uuid import UUID

import asyncpg
import pytest
from anyio.lowlevel import checkpoint

from pulse.config import Settings
from pulse.errors import SchemaError, UnavailableError
from pulse.store.admin import doctor
from pulse.store.admin.checks import READING, connected
from pulse.store.connections import pooler
from pulse.store.connections.pool import HOT_SETTINGS, SERVER_SETTINGS, Target, connect
from pulse.store.connections.pooler import PoolerError, refuse_pooler
from pulse_actors.runtime.actor import Runtime
from tests.support.checking.markdown import DOCS, blocks, section
from tests.support.commandline.cli import environment, run
from tests.support.servers.bouncer import bouncer, bouncer_of, program_of
from tests.support.servers.postgres import Postgres
from tests.support.systems.system import short_directory
from tests.support.systems.system_kit import SHORT_LEASE, clean_environment, place
from tests.support.systems.system_kit import run as run_program

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.anyio, pytest.mark.patient, pytest.mark.rest]

IGNORED = ", ".join({**SERVER_SETTINGS, **HOT_SETTINGS})
SET = "; ".join(f"SET {name} = {value}" for name, value in {**SERVER_SETTINGS, **HOT_SETTINGS}.items())
AS_ASKED = f"connect_query='{SET}'"  # so that each session has what pulse asks for, although it is not passed on
ANOTHER = "gives each transaction another session"
DROPS = "drops the settings of a session (enable_bitmapscan, enable_hashjoin, enable_mergejoin, enable_seqscan, "
POOLERS = [
    ("transaction", "", "", ANOTHER),
    ("statement", "", "", ANOTHER),
    ("transaction", "", IGNORED, ANOTHER),
    ("transaction", AS_ASKED, IGNORED, ANOTHER),
    ("session", "", IGNORED, DROPS),
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
        assert ("take them out of ignore_startup_parameters" if what == DROPS else "or a pool in session mode") in line
    assert "installed" in run(["migrate", "--dsn", empty], environment()).out


async def test_a_pooler_that_drops_settings_is_refused(empty: str) -> None:
    with bouncer(empty, "session", ignored=IGNORED) as dsn, pytest.raises(PoolerError, match="drops the settings of a"):
        await refuse_pooler(Target(dsn, "test"))


async def test_those_who_look_at_the_same_time_see_it(empty: str) -> None:
    """Actors start together: where one borrows a session in between, another one's look finds nothing."""
    mode, database, ignored, what = POOLERS[3]
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


@pytest.fixture
def recipe() -> str:
    (found,) = blocks(section((DOCS / "operating.md").read_text("utf-8"), "Behind PgBouncer"), "ini")
    return found


def test_a_server_and_sql_submits_by_the_recipe_of_the_page(empty: str, recipe: str) -> None:
    """
    The server works through the session pool, and SQL submits through that of transactions.

    A dispatcher that is killed leaves nothing behind in the pool that its successor would trip over.
    """
    with bouncer_of(recipe, empty) as pools, place(pools["pulse"], **SHORT_LEASE) as whole:
        whole.start()
        whole.pool()
        jobs: list[UUID] = [whole.jobs().submit("mark", {"n": number}) for number in range(5)]
        whole.dsn = pools["shop"]  # of the test's own statements
        jobs += asyncio.run(submitted(pools["shop"]))
        killed = whole.kill_actor("dispatcher")
        whole.wait_actor("dispatcher", not_pid=killed)
        jobs += asyncio.run(submitted(pools["shop"]))
        client = whole.jobs()
        for job in jobs:  # the one that was killed may have claimed some: their second attempts end
            client.wait(job)
        assert whole.log("database_away") == []
        assert asyncio.run(settings_left(pools["shop"])) == {("0", "on")}


async def test_statements_that_a_driver_prepares_go_through_transactions(empty: str, recipe: str) -> None:
    """From 1.21 on, in whichever session a client gets. Pulse itself is refused all the same."""
    program_of(needed=(1, 21))
    run(["migrate", "--dsn", empty], environment())
    with bouncer_of(recipe, empty) as pools:
        one, other = [await asyncpg.connect(pools["shop"]) for _ in range(2)]
        submit = await one.prepare("SELECT pulse.submit(name => 'mark')")
        jobs = {await submit.fetchval()}
        async with other.transaction():  # takes the only session there is, with the statement
            await other.fetchval("SELECT 1")
            jobs.add(await submit.fetchval())
        assert len(jobs) == 2
        with pytest.raises(PoolerError, match=ANOTHER):
            await refuse_pooler(Target(pools["shop"], "test"))
        for client in (one, other):
            client.terminate()


async def submitted(dsn: str) -> list[UUID]:
    """Jobs of two sessions at once, each job in a transaction of its own."""
    sessions = [await asyncpg.connect(dsn, statement_cache_size=0) for _ in range(2)]
    made = [
        UUID(str(await session.fetchval("SELECT pulse.submit(name => 'mark', args => '{\"n\": 9}')")))
        for _ in range(5)
        for session in sessions
    ]
    for session in sessions:
        session.terminate()
    await checkpoint()
    return made


async def settings_left(dsn: str) -> set[tuple[str, str]]:
    """Settings that clients of the other pool find."""
    session = await asyncpg.connect(dsn, statement_cache_size=0)
    row = await session.fetchrow("SELECT current_setting('statement_timeout'), current_setting('enable_seqscan')")
    session.terminate()
    await checkpoint()
    return {tuple(row or ())}


async def test_the_session_has_the_settings_that_pulse_asks_for(empty: str, recipe: str) -> None:
    with bouncer_of(recipe, empty) as pools:
        session = await connect(Target(pools["pulse"], "test"), HOT_SETTINGS, owns_session=True)
        for name, value in {"enable_seqscan": "off", "statement_timeout": "5s", "lock_timeout": "2s"}.items():
            assert await session.fetchval(f"SHOW {name}") == value
        session.terminate()
        await refuse_pooler(Target(pools["pulse"], "test"))
        with pytest.raises(PoolerError, match=ANOTHER):
            await refuse_pooler(Target(pools["shop"], "test"))


async def test_a_session_that_others_share_is_left_as_it_is(empty: str, recipe: str) -> None:
    """`pulse check` does not look for poolers: its settings would be those of an application."""
    with bouncer_of(recipe, empty) as pools:
        with pytest.raises(UnavailableError, match="unsupported startup parameter"):
            async with connected(Target(pools["shop"], "test"), READING):
                pass
        application = await connect(Target(pools["shop"], "test"), {}, limits={}, statements=0)
        assert await application.fetchval("SHOW default_transaction_read_only") == "off"
        application.terminate()


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
    with bouncer(empty, "session") as dsn:
        await refuse_pooler(Target(dsn, "test"))


async def test_a_pooler_that_keeps_sessions_is_let_be(empty: str) -> None:
    """It refuses settings at the start of a session; each session keeps those that are set in it."""
    with bouncer(empty, "session") as dsn:
        await refuse_pooler(Target(dsn, "test"))


async def test_a_pool_without_room_does_not_answer(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the client, and lets its first query wait."""
    monkeypatch.setattr(pooler, "STATEMENT_DEADLINE_S", 0.5)
    with bouncer(empty, "session", database="pool_size=1") as dsn:
        other = await asyncpg.connect(dsn)
        assert await other.fetchval("SELECT 1") == 1
        with pytest.raises(UnavailableError, match=r"does not answer a query; is a pool full\?"):
            await refuse_pooler(Target(dsn, "test"))
        other.terminate()


async def test_nobody_who_is_away_is_a_pooler() -> None:
    with pytest.raises(UnavailableError, match="does not answer"):
        await refuse_pooler(Target("postgresql://u@127.0.0.1:1/x", "test"))
