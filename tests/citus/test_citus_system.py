"""Queues on Citus: where their rows are, what moves them, and what must hold meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sized
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import pytest

from pulse.common.ids import uuid7
from pulse.errors import ConfigError, SchemaError, UnavailableError
from pulse.protocol import SubmittedJob
from pulse.store.admin.schema import ensure_schema
from pulse.store.admin.upgrade.plan import UPGRADE
from pulse.store.connections import citus, citus_installation
from pulse.store.connections.citus import CITUS, stay_with_rows
from pulse.store.connections.citus_installation import distribute
from pulse.store.connections.citus_schema import commands
from pulse.store.connections.pool import Target, connect
from pulse.store.connections.rendering import rendered
from pulse.store.statements import STATEMENTS, schema_sql
from pulse.store.store import Store
from pulse_actors.runtime.pg_listen import LOOK_S, listen
from tests.citus.cluster import GO_ON_S, JOBS, Cluster, Node, cluster, dsn_of, goes_on, queue, session, system, why_not
from tests.support.checking.planning import refused
from tests.support.systems.epoch_kit import Load, is_sound, more, starts
from tests.support.systems.system_kit import Whole
from tests.support.waiting import until, until_async, until_blocked

if TYPE_CHECKING:
    from asyncpg import Connection, Record


pytestmark = [
    pytest.mark.process, pytest.mark.postgres, pytest.mark.rest, pytest.mark.patient,
    pytest.mark.skipif(why_not() is not None, reason=f"not packaged: Citus: {why_not()}"),
]  # fmt: skip
NEEDS_A_TABLE: Final = {"sample_waiting"}  # by TABLESAMPLE: the depths of a queue with very many waiting jobs
_FENCE: Final = "SELECT pulse.check_attempt(pulse.uuid7(), 1, 'nobody')"
_SUBMIT: Final = "SELECT pulse.submit('nap')"
SHORT_S: Final = 1.0
_WAITING: Final = "SELECT pid FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


async def test_the_planner_of_citus_refuses_what_pulse_needs(nodes: Cluster) -> None:
    """Should it take everything one day, then views are not needed any more."""
    async with session(nodes.coordinator, statement_cache_size=0) as connection:
        await connection.execute("SET citus.enable_schema_based_sharding = on; SET citus.enable_unsafe_triggers = on")
        for command in commands(schema_sql()):
            await connection.execute(rendered(command, "whole"))
        why = await refused(connection, "whole")
        await connection.execute("DROP SCHEMA whole CASCADE")
    assert len(why) > len(STATEMENTS) / 5
    assert "VOLATILE" in why["complete_jobs"], why
    assert "STABLE" in why["end_attempts"], why
    assert "recursive" in why["claim_jobs"], why


async def test_postgresql_plans_the_statements_where_the_rows_are(nodes: Cluster) -> None:
    async with queue(nodes, "planned") as connection:
        assert (await refused(connection, "planned")).keys() == NEEDS_A_TABLE


async def test_a_node_without_the_rows_is_not_used(nodes: Cluster) -> None:
    async with queue(nodes, "placed"):
        home, other = await nodes.home("placed")
    for node in (other, nodes.coordinator):
        with pytest.raises(UnavailableError, match=f"Citus has it on 127.0.0.1:{home.port}"):
            await connect(
                Target(f"{nodes.dsn(node).split(',')[0]},127.0.0.1:{nodes.coordinator.port}/pulse", "tests", "placed"),
                {},
            )


async def test_a_role_without_a_right_to_the_rows_is_a_fault_of_the_settings(nodes: Cluster) -> None:
    """Not an outage, which would be waited for: on a node that has the views, and on one where they would be made."""
    async with queue(nodes, "closed"), session(nodes.coordinator) as admin:
        await admin.execute("CREATE ROLE stranger LOGIN")
        stranger = Target(nodes.dsn().replace("pulse@", "stranger@"), "tests", "closed")
        for is_attached in (True, False):
            home, _ = await nodes.home("closed")
            refusal = (
                f'role "stranger" may not use the rows of the queue "closed" on .*:{home.port}/pulse: they belong to '
                '"pulse"; on the coordinator of Citus: GRANT "pulse" TO "stranger"'
            )
            with pytest.raises(ConfigError, match=refusal):
                await connect(stranger, {})
            if is_attached:
                await nodes.move("closed", "block_writes")
        schemas = f'"closed", {rendered("pulse_rows", "closed")}'
        await admin.execute(f"GRANT USAGE ON SCHEMA {schemas} TO stranger")
        with pytest.raises(ConfigError, match="may not use the rows"):
            await connect(stranger, {})
        await admin.execute('GRANT "pulse" TO "stranger"')
        (await connect(stranger, {})).terminate()
        await admin.execute('REVOKE "pulse" FROM "stranger"')
        (await connect(stranger, {})).terminate()  # it may read what it is granted


async def test_nothing_is_installed_beside_the_rows_of_another_node(nodes: Cluster) -> None:
    async with queue(nodes, "beside"):
        _, other = await nodes.home("beside")
    lone = await connect(Target(dsn_of(other), "tests", "beside"), {})
    with pytest.raises(
        SchemaError, match='Citus keeps the queue "beside", and its views are not here: PULSE_DSN has to'
    ):
        await ensure_schema(lone)
    lone.terminate()


async def test_a_queue_of_one_node_is_not_distributed(nodes: Cluster) -> None:
    async with session(nodes.coordinator) as connection:
        await connection.execute("SET ROLE pulse")
        for command in commands(schema_sql()):
            await connection.execute(rendered(command, "alone"))
    with pytest.raises(ConfigError, match='"alone" is a queue of this node alone'):
        await distribute(Target(nodes.dsn(), "tests", "alone"))


async def test_no_node_but_the_coordinator_makes_tables(nodes: Cluster) -> None:
    with pytest.raises(UnavailableError, match="through the coordinator"):
        await distribute(Target(dsn_of(*nodes.nodes), "tests", "nowhere"))


async def test_a_standby_of_the_coordinator_makes_no_tables(nodes: Cluster) -> None:
    with nodes.standby() as standby:
        assert await distribute(Target(dsn_of(standby, nodes.coordinator), "tests", "made by the primary"))


async def test_without_citus_there_is_one_error(nodes: Cluster) -> None:
    bare = dsn_of(nodes.coordinator, *nodes.nodes, database="postgres")
    with pytest.raises(ConfigError, match="has no extension citus"):
        await distribute(Target(bare, "tests", "nowhere"))


async def test_a_move_and_a_write_to_all_tables_do_not_wait_for_each_other(nodes: Cluster) -> None:
    """Citus has one lock for all shards of a queue; with one for each shard this would be a deadlock."""
    async with queue(nodes, "woven") as early:
        home, _ = await nodes.home("woven")
        shards = sorted(await early.fetch(CITUS["shards"].sql), key=lambda row: row["shard"])  # as a move locks them
        *others, first = [f"DELETE FROM pulse.{row['name']}" for row in shards]
        async with session(home) as watcher:
            async with early.transaction():
                await early.execute(first)
                move = asyncio.create_task(nodes.move("woven", "block_writes"))
                await until_blocked(watcher, by=early.get_server_pid())
                for sql in others:
                    await early.execute(sql)
            await move


@pytest.mark.parametrize("mode", ["force_logical", "block_writes"])
async def test_a_write_is_moved_too_or_refused(nodes: Cluster, mode: str) -> None:
    schema = f"guarded_{mode}"
    target = Target(nodes.dsn(), "tests", schema)
    async with queue(nodes, schema) as early:
        home, _ = await nodes.home(schema)
        blind = await connect(target, {}, limits={})  # its snapshot is from before the move, which it does not see
        await blind.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pulse.jobs")
        async with session(home) as watcher:
            writing = early.transaction()
            await writing.start()
            await early.execute(_SUBMIT)
            move = asyncio.create_task(nodes.move(schema, mode))
            await until_blocked(watcher, by=early.get_server_pid())
        await writing.commit()
        await move
        with pytest.raises(asyncpg.FeatureNotSupportedError, match="READ COMMITTED transactions only"):
            await blind.execute(_SUBMIT)
        blind.terminate()
        for sql in (_SUBMIT, "DELETE FROM pulse.jobs WHERE name = 'nobody'", _FENCE):
            with pytest.raises(asyncpg.ReadOnlySQLTransactionError, match="moved"):
                await early.execute(sql)
    late = await asyncio.gather(*(connect(target, {}) for _ in range(4)))
    await late[0].execute(_SUBMIT)
    for connection in late:  # one of them has made the views
        assert await connection.fetchval("SELECT count(*) FROM pulse.jobs") == 2
        connection.terminate()


@contextlib.asynccontextmanager
async def _migrating(node: Node, schema: str) -> AsyncIterator[Connection[Record]]:
    """A session that keeps others from making views or tables of a queue."""
    async with session(node) as holder:
        assert await holder.fetchval(rendered(UPGRADE["upgrade_lock"].sql, schema))
        yield holder


async def test_rows_that_move_on_while_their_views_wait_are_not_shown(
    nodes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(citus, "LOCK_TIMEOUT", "1min")  # a move may take longer than a start should wait
    monkeypatch.setattr(citus, "DEADLINE_S", 60.0)
    async with queue(nodes, "hasty"):
        home, other = await nodes.home("hasty")
    await nodes.move("hasty")
    async with _migrating(other, "hasty") as holder:
        joining = asyncio.create_task(connect(Target(dsn_of(other, nodes.coordinator), "tests", "hasty"), {}))
        await until_blocked(holder, by=holder.get_server_pid())
        await nodes.move("hasty")
    with pytest.raises(UnavailableError, match=f"not on .*:{other.port}/pulse: Citus has it on 127.0.0.1:{home.port}"):
        await joining


async def test_a_node_is_home_since_it_was_asked(nodes: Cluster) -> None:
    """Not since its answer: a move, and the refusal of a write on another connection, may come between the two."""
    async with queue(nodes, "dated") as connection:
        home, _ = await nodes.home("dated")
        async with session(home) as holder:
            async with holder.transaction():
                await holder.execute("LOCK TABLE pg_dist_placement IN ACCESS EXCLUSIVE MODE")
                looking = asyncio.create_task(stay_with_rows(connection, "here"))
                await until_blocked(holder, by=holder.get_server_pid())
                not_yet_s = time.monotonic()
            await looking
        assert connection.home_since_s is not None
        assert connection.home_since_s < not_yet_s


async def _joins(nodes: Cluster, schema: str) -> Node:
    """The node whose next connection makes the views."""
    async with queue(nodes, schema):
        _, other = await nodes.home(schema)
    await nodes.move(schema)
    return other


async def _installs(nodes: Cluster, _schema: str) -> Node:
    return nodes.coordinator


@pytest.mark.parametrize(("module", "where", "call"), [
    (citus, _joins, partial(connect, settings={})), (citus_installation, _installs, distribute),
], ids=["views", "tables"])  # fmt: skip
async def test_a_node_that_falls_silent_is_not_waited_for(
    nodes: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    where: Callable[[Cluster, str], Awaitable[Node]],
    call: Callable[[Target], Coroutine[Any, Any, object]],
) -> None:
    """Not for its answer, and not for a rollback."""
    schema = f"silent {module.__name__}"
    node = await where(nodes, schema)
    monkeypatch.setattr(module, "DEADLINE_S", SHORT_S)
    async with _migrating(node, schema) as holder:
        waiting = asyncio.create_task(call(Target(dsn_of(node, node), "tests", schema)))
        await until_blocked(holder, by=holder.get_server_pid())
        stopped = [row["pid"] for row in await holder.fetch(_WAITING, holder.get_server_pid())]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(GO_ON_S):
                with pytest.raises(UnavailableError, match="no answer within"):
                    await waiting
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)


async def test_the_pools_of_a_process_leave_the_old_node_together(nodes: Cluster) -> None:
    """What one pool is refused, another one does not read from tables that Citus will drop."""
    async with queue(nodes, "left"):
        store = Store(Target(nodes.dsn(), "tests", "left"))
        count = "SELECT count(*) FROM pulse.jobs"
        async with store.query.connection() as reading, store.hot.connection() as writing:
            assert await reading.fetchval(count) == 0
            assert await writing.fetchval(count) == 0
        await nodes.move("left")
        with pytest.raises(UnavailableError, match="moved"):
            await store.submit([SubmittedJob("nap", id=uuid7().bytes)])
        await store.submit([SubmittedJob("nap", id=uuid7().bytes)])
        async with store.query.connection() as reading:
            assert await reading.fetchval(count) == 1
        store.close()


async def test_notifications_come_from_the_node_that_has_the_rows(nodes: Cluster) -> None:
    target = Target(nodes.dsn(), "tests", "heard")
    heard, began = list[str](), list[float]()
    async with queue(nodes, "heard"):
        listening = asyncio.create_task(
            listen(target, {"pulse_work": heard.append}, lambda: began.append(time.monotonic()))
        )
        for times in (1, 2):
            await until_async(partial(_has, began, times), "it listens", 2 * LOOK_S)
            home = await connect(target, {})
            await home.execute(_SUBMIT)
            home.terminate()
            await until_async(partial(_has, heard, times), "the submit is heard")
            await nodes.move("heard")
        listening.cancel()


def _has(found: Sized, count: int) -> bool:
    return len(found) == count


def _told(whole: Whole, *words: str) -> str:
    done = whole.command(*words)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def test_queues_are_moved_and_nodes_die_while_jobs_run(nodes: Cluster) -> None:
    """Two supervisors through different nodes: nothing that was acknowledged is lost, no attempt runs twice."""
    with contextlib.ExitStack() as stack:
        wholes = [
            stack.enter_context(system(nodes, schema, first))
            for schema, first in zip(("orders", "mail"), nodes.nodes, strict=True)
        ]
        with Load(wholes[0]) as orders, Load(wholes[1]) as mail:
            for whole in wholes:
                more(whole, JOBS)
            for mode in ("force_logical", "block_writes"):
                asyncio.run(nodes.move("orders", mode))
                goes_on(wholes[0])
                goes_on(wholes[1])
            home, _ = asyncio.run(nodes.home("orders"))
            home.kill()
            until(lambda: "is away" in " ".join(orders.refused), "the supervisor notices", GO_ON_S)
            home.start()
            for whole in wholes:
                goes_on(whole)
        for whole, load in zip(wholes, (orders, mail), strict=True):
            jobs = whole.jobs()
            assert {jobs.wait(job).status for job in load.acked} == {"COMPLETED"}
            is_sound(whole)


def test_what_people_do_works(nodes: Cluster) -> None:
    with system(nodes, "people", nodes.coordinator) as whole:
        whole.pool("--processes", "1")
        jobs = whole.jobs()
        done = jobs.submit("nap", {"seconds": 0}, unique="k")
        child = jobs.submit("nap", {"seconds": 0}, after=[done])
        assert jobs.wait(child).attempts == 1
        late = jobs.submit("nap", {"seconds": 0}, delay_s=60.0)
        for words in (
            ("jobs", "why", str(late)), ("jobs", "cancel", str(late)), ("jobs", "retry", str(late)),
            ("dispatch", "pause", "--reason", "a test"), ("dispatch", "resume"),
            ("schedules", "create", "nap", "--every", "1s", "--args", '{"seconds": 0}'),
            ("jobs", "list", "--status", "COMPLETED"), ("audit",),
        ):  # fmt: skip
            _told(whole, "ctl", *words)
        jobs.wait(late)
        until(lambda: len(starts(whole)) > 4, "the schedule fires")
        states = {one["name"]: one["state"] for one in json.loads(_told(whole, "check", "--json"))["checks"]}
        assert states.pop("guards") == "skipped"
        assert set(states.values()) == {"ok"}, states
        checks = json.loads(whole.command("doctor", "--json").stdout)["checks"]
        bad = {one["name"]: one["text"] for one in checks if one["state"] not in {"ok", "skipped"}}
        assert bad.keys() == {"settings"}, bad  # fsync is off
        assert {"clusters", "indexes"} <= {one["name"] for one in checks if one["state"] == "skipped"}
