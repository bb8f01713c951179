"""Upgrades of a queue that Citus keeps: what goes where, what a move in between does, and that jobs run meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import asyncpg
import pytest
from structlog.testing import capture_logs

from pulse.errors import PulseError, SchemaError, UnavailableError
from pulse.store.admin.schema import RELEASES, SCHEMA_VERSION
from pulse.store.admin.upgrade import runner
from pulse.store.admin.upgrade.plan import UPGRADE, plan
from pulse.store.admin.upgrade.runner import upgrade
from pulse.store.connections import citus
from pulse.store.connections.citus import CITUS
from pulse.store.connections.pool import Target, connect
from pulse.store.connections.rendering import rendered
from pulse.store.statements import schema_sql
from pulse.store.store import Store
from pulse_actors.runtime.schema import see_to_schema
from tests.citus.cluster import JOBS, Cluster, cluster, dsn_of, goes_on, queue, session, system, why_not
from tests.citus.made_up import ADD, ANEW, COLOURS, FORMS, MADE_UP, MORE, NEXT, REGIONS, TYPE, filled, works
from tests.support.admin.upgrade_kit import make_upgrades, step
from tests.support.store.helpers import Patch, Sql
from tests.support.systems.epoch_kit import SETTINGS, Load, is_sound, more
from tests.support.systems.releases import STEPS, next_release, next_schema
from tests.support.systems.system_kit import place, run
from tests.support.waiting import until_async

pytestmark = [
    pytest.mark.process, pytest.mark.postgres, pytest.mark.rest, pytest.mark.patient,
    pytest.mark.skipif(why_not() is not None, reason=f"not packaged: Citus: {why_not()}"),
]  # fmt: skip
DEADLINE_S: Final = 60.0
TRIES: Final = 3
FREE_S: Final = 1.0  # for a statement that waits for no lock, on a busy machine
_WAITS: Final = "SELECT bool_or(clock_timestamp() - waitstart > interval '1 s') FROM pg_locks WHERE NOT granted"


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


async def test_all_kinds_of_steps(nodes: Cluster, monkeypatch: Patch, tmp_path: Path) -> None:
    """On the node that has the rows, and on the one to which they are moved afterwards."""
    target = Target(nodes.dsn(), "tests", "all % kinds")
    async with queue(nodes, target.schema) as early:
        await filled(early, 1500)
        make_upgrades(monkeypatch, tmp_path, STEPS.read_text("utf-8") + MORE + step("forms", FORMS * 2))
        sizes = {one.step.name: one.rows is not None for one in (await plan(early)).steps}
        assert sizes["add-region"]
        assert sizes["widen"]
        said: list[str] = []
        assert await upgrade(target, said.append) == SCHEMA_VERSION
        assert len([line for line in said if line.startswith(f"version {NEXT}, step ")]) == 15
        await works(early)
        assert await early.fetchval("SELECT count(*) FROM pulse.jobs WHERE region = 'here'") == 1500
        assert await early.fetchval("SELECT to_regclass('pulse.schema_steps')") is None
        on_shard = "SELECT c.relkind FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE tgname = $1"
        assert await early.fetchval(on_shard, "regions_changed") == b"r"
        assert await upgrade(target) == NEXT
    await nodes.move(target.schema)
    monkeypatch.setattr(citus, "schema_sql", lambda: next_schema(schema_sql(), MADE_UP) + ANEW)
    late = await connect(target, {}, statements=0)
    await works(late)
    assert {*(await late.fetchrow("SELECT * FROM pulse.regions") or {}).keys()} == {"name", "colour", "spare"}
    late.terminate()


async def test_a_move_ends_an_upgrade_which_begins_again(nodes: Cluster, monkeypatch: Patch, tmp_path: Path) -> None:
    """The functions that it had made are on the node that the queue has left."""
    target = Target(nodes.dsn(), "tests", "chased")
    add = "ALTER TABLE pulse.topics ADD COLUMN IF NOT EXISTS more int"
    locks = step("locks", add, table="pulse.topics", lock="ACCESS EXCLUSIVE")
    async with queue(nodes, "chased"):
        home, _ = await nodes.home("chased")
        steps = TYPE + step("table", REGIONS) + step("count", COLOURS) + locks + step("last", "SELECT 1")
        make_upgrades(monkeypatch, tmp_path, steps)
        said: list[str] = []
        async with session(home) as holder, holder.transaction():
            await holder.execute("LOCK TABLE chased.topics IN ACCESS SHARE MODE")
            going = asyncio.create_task(upgrade(target, said.append))
            await until_async(lambda: any("waits" in one for one in said) or going.done(), "it waits", DEADLINE_S)
            await nodes.move("chased", "block_writes")
        with pytest.raises(UnavailableError, match=r'moved the queue "chased" to another node .* run pulse mig'):
            await going
    assert await upgrade(target) == SCHEMA_VERSION  # the views here are of the version before
    late = await connect(target, {})
    assert await late.fetchval("SELECT pulse.colours()") == 0
    late.terminate()


@pytest.mark.parametrize("method", ["_batch", "_finish"])
async def test_a_move_under_a_batch_or_the_last_note(
    nodes: Cluster, monkeypatch: Patch, tmp_path: Path, method: str
) -> None:
    """What writes to the rows is refused on the node that the queue has left."""
    target = Target(nodes.dsn(), "tests", f"chased{method}")
    make_upgrades(monkeypatch, tmp_path, STEPS.read_text("utf-8"))
    real = getattr(runner.Upgrade, method)

    async def moved(*args: object) -> object:
        await nodes.move(target.schema, "block_writes")
        if method == "_finish":
            async with session(nodes.coordinator) as admin:
                await until_async(
                    partial(admin.execute, "CALL citus_cleanup_orphaned_resources()"), "old tables are dropped"
                )
        return await real(*args)

    async with queue(nodes, target.schema):
        with monkeypatch.context() as chased:
            chased.setattr(runner.Upgrade, method, moved)
            with pytest.raises(UnavailableError, match=r"moved the queue .* while it was upgraded: run pulse migrate"):
                await upgrade(target)
        assert await upgrade(target) == SCHEMA_VERSION


async def test_what_is_left_of_an_interrupted_index_is_removed(
    nodes: Cluster, monkeypatch: Patch, tmp_path: Path
) -> None:
    target = Target(nodes.dsn(), "tests", "twice")
    index = "CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS names ON pulse.jobs (name)"
    async with queue(nodes, "twice") as connection:
        await filled(connection, 2)
        make_upgrades(monkeypatch, tmp_path, step("index", index, kind="concurrent"))
        for _ in range(2):
            with pytest.raises(PulseError, match="could not create unique index"):
                await upgrade(target)
        await connection.execute("DELETE FROM pulse.jobs")
        await upgrade(target)
        await filled(connection, 1)
        with pytest.raises(asyncpg.UniqueViolationError):
            await filled(connection, 1)


async def test_a_command_that_would_be_misread_is_refused(nodes: Cluster, monkeypatch: Patch, tmp_path: Path) -> None:
    target = Target(nodes.dsn(), "tests", "misread")
    make_upgrades(monkeypatch, tmp_path, step("only", "SELECT 1; ALTER TABLE ONLY pulse.jobs ADD COLUMN a int"))
    async with queue(nodes, "misread") as connection:
        with pytest.raises(SchemaError, match="a queue on Citus cannot take this form of a command"):
            await upgrade(target)
        assert await connection.fetchval("SELECT count(*) FROM pulse.schema_version") == 1


async def test_others_do_not_wait_behind_an_upgrade(nodes: Cluster, monkeypatch: Patch, tmp_path: Path) -> None:
    """While a vacuum has the table that the upgrade needs, or a session has it, or the view alone."""
    target = Target(nodes.dsn(), "tests", "free")
    make_upgrades(monkeypatch, tmp_path, ADD)
    monkeypatch.setattr(runner, "TOLD_EVERY_S", 0.2)
    async with queue(nodes, "free") as free:
        home, _ = await nodes.home("free")
        shard = f"pulse_rows.jobs_{(await citus.shards_of(free))['jobs']}"
        async with session(home, statement_cache_size=0) as holder:
            await holder.execute(CITUS["stay_local"].sql)
            for sql, waits in (
                (f"LOCK TABLE {shard} IN SHARE UPDATE EXCLUSIVE MODE", _waits_long),
                (f"LOCK TABLE {shard} IN ACCESS SHARE MODE", _tries_again),
                ("CREATE TEMP VIEW other AS SELECT FROM pulse.jobs", _tries_again),
            ):
                said: list[str] = []
                held = holder.transaction()
                await held.start()
                await holder.execute(rendered(sql, "free"))
                going = asyncio.create_task(upgrade(target, said.append))
                async with asyncio.timeout(DEADLINE_S):
                    while not await waits(holder, said):
                        async with asyncio.timeout(FREE_S):
                            await filled(free, 1)
                assert not going.done()
                going.cancel()
                await asyncio.gather(going, return_exceptions=True)
                await held.rollback()
        assert await upgrade(target) == SCHEMA_VERSION


async def test_slow_connections_among_the_nodes_take_no_time_of_a_step(
    nodes: Cluster, monkeypatch: Patch, tmp_path: Path
) -> None:
    """The coordinator connects to them for its first command: in the time limit of a step it never would."""
    make_upgrades(monkeypatch, tmp_path, ADD)
    monkeypatch.setattr(runner, "PATIENCE_S", 0.0)
    async with queue(nodes, "slow"), contextlib.AsyncExitStack() as stack:
        for node in nodes.nodes:
            admin = await stack.enter_async_context(session(node))
            await admin.execute("ALTER SYSTEM SET pre_auth_delay = 1")
            stack.push_async_callback(admin.execute, "SELECT pg_reload_conf()")
            stack.push_async_callback(admin.execute, "ALTER SYSTEM RESET pre_auth_delay")
            await admin.execute("SELECT pg_reload_conf()")
        assert await upgrade(Target(nodes.dsn(), "tests", "slow")) == SCHEMA_VERSION


async def _waits_long(holder: Sql, _said: list[str]) -> bool:
    """PostgreSQL ends a vacuum for those who wait for a second, which is longer than others may have to wait."""
    return bool(await holder.fetchval(_WAITS))


async def _tries_again(_holder: Sql, said: list[str]) -> bool:
    return sum("waits" in one for one in said) > TRIES


async def test_notes_of_an_upgrade_end_with_a_move(nodes: Cluster, monkeypatch: Patch, tmp_path: Path) -> None:
    """Those on a node to which the queue comes back, where the release before makes its functions again."""
    target = Target(nodes.dsn(), "tests", "noted")
    monkeypatch.setattr(citus, "schema_sql", lambda: schema_sql() + OLD)
    async with queue(nodes, "noted") as connection:
        later = step("drop", "DROP FUNCTION IF EXISTS pulse.old()") + step("make", OLD.replace("int", "bigint"))
        make_upgrades(monkeypatch, tmp_path, ADD + later + step("faulty", "SELECT 1 / 0", kind="long"))
        with pytest.raises(PulseError, match="division by zero"):
            await upgrade(target)
        assert await connection.fetchval(UPGRADE["upgrade_notes_there"].sql)
    await _there_and_back(nodes, target)
    connection = await connect(target, {})
    assert not await connection.fetchval(UPGRADE["upgrade_notes_there"].sql)
    assert await connection.fetchval("SELECT pg_get_function_result('noted.old()'::regprocedure)") == "integer"
    connection.terminate()


async def test_functions_of_another_version_are_not_in_the_way(
    nodes: Cluster, monkeypatch: Patch, tmp_path: Path
) -> None:
    """A queue comes back to a node after its upgrade: functions there may have other results, or be gone."""
    target = Target(nodes.dsn(), "tests", "back")
    theirs = "CREATE FUNCTION public.theirs() RETURNS uuid LANGUAGE sql BEGIN ATOMIC SELECT pulse.uuid7(); END"
    async with queue(nodes, "back"):
        home, _ = await nodes.home("back")
    async with session(home, statement_cache_size=0) as admin:
        await admin.execute("SET citus.enable_ddl_propagation = off")
        for sql in (theirs, OLD):
            await admin.execute(rendered(sql, "back"))
        await _there_and_back(nodes, target)
        old = "SELECT pg_get_function_result('back.old()'::regprocedure)"
        assert await admin.fetchval(old) == "integer", "the version is the same"
        make_upgrades(monkeypatch, tmp_path, STEPS.read_text("utf-8"))
        await upgrade(target)
        later = next_schema(schema_sql(), MADE_UP) + OLD.replace("int", "bigint")
        monkeypatch.setattr(citus, "schema_sql", lambda: later)
        await _there_and_back(nodes, target)
        assert await admin.fetchval(old) == "bigint"
        assert await admin.fetchval("SELECT public.theirs() IS NOT NULL")


OLD: Final = "CREATE FUNCTION pulse.old() RETURNS int LANGUAGE sql AS 'SELECT 1';\n"


async def _there_and_back(nodes: Cluster, target: Target) -> None:
    for _ in range(2):
        await nodes.move(target.schema, "block_writes")
        connection = await connect(target, {})
        connection.terminate()


async def test_views_are_made_by_the_release_that_the_rows_are_of(nodes: Cluster, monkeypatch: Patch) -> None:
    async with queue(nodes, "of one release"):
        await nodes.move("of one release", "block_writes")
    target = Target(nodes.dsn(), "tests", "of one release")
    own = RELEASES[SCHEMA_VERSION]
    refusal = (
        rf"of version {SCHEMA_VERSION}, this pulse \({MADE_UP}\) makes views of version {NEXT}: "
        f"run pulse migrate of pulse {own}"
    )
    with monkeypatch.context() as later:
        later.setattr(citus, "schema_sql", lambda: next_schema(schema_sql(), MADE_UP))
        with pytest.raises(UnavailableError, match=refusal):
            await connect(target, {})
    assert await upgrade(target) == SCHEMA_VERSION


async def test_a_server_that_cannot_reach_the_coordinator_works_with_the_schema_as_it_is(
    nodes: Cluster, monkeypatch: Patch, tmp_path: Path
) -> None:
    async with queue(nodes, "alone"):
        home, other = await nodes.home("alone")
    make_upgrades(monkeypatch, tmp_path, ADD)
    for dsn, why in (
        (dsn_of(home), "names one host: a queue on Citus needs the coordinator"),
        (dsn_of(home, other), "through the coordinator of Citus: it is none of the hosts"),
    ):
        store = Store(Target(dsn, "tests", "alone"))
        with capture_logs() as lines:
            await see_to_schema(store, boot=True, embedded=False, tells=False)
        store.close()
        assert [why in line.get("error", "") for line in lines] == [True], lines
    store = Store(Target(nodes.dsn(), "tests", "alone"))
    with capture_logs() as lines:
        await see_to_schema(store, boot=True, embedded=False, tells=True)
    store.close()
    assert [line["event"] for line in lines] == ["schema_upgrade"]


def test_a_rolling_upgrade(nodes: Cluster, tmp_path: Path) -> None:
    """Servers of two releases, while the schema is upgraded, and while the queue is moved afterwards."""
    newer = next_release(tmp_path)
    (tmp_path / "schema.sql").write_text(next_schema(schema_sql()), "utf-8")  # for the views after a move
    with (
        system(nodes, "rolling", nodes.nodes[0]) as old,
        place(old.dsn, PULSE_SCHEMA="rolling", PULSE_DSN=old.dsn, PULSE_HOST_ID="new", **SETTINGS, **newer) as new,
    ):
        new.start()
        assert len(new.log("schema_of_another_release")) == 1
        with Load(old) as load:
            more(old, JOBS)
            done = run("pulse.cli.main", ["migrate"], {**new.env, **newer}, cwd=tmp_path, within_s=DEADLINE_S)
            assert done.returncode == 0, done.stderr
            assert done.stdout == f'schema "rolling" upgraded from version {SCHEMA_VERSION} to {NEXT}\n'
            goes_on(old)
            assert load.refused == []
            asyncio.run(nodes.move("rolling"))
            goes_on(old)
        jobs = old.jobs()
        assert {jobs.wait(job).status for job in load.acked} == {"COMPLETED"}
        is_sound(old)
