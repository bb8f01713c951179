"""Two queues in one database, in two schemas, one of them with a hostile name: they are alike, and share nothing."""

from __future__ import annotations

import asyncio
import functools
import os
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

import asyncpg
import pytest

from pulse.errors import SchemaError, UnavailableError
from pulse.ops.doctor.finding import Finding, State
from pulse.ops.doctor.verdicts import CheckContext, judge
from pulse.security.schema_name import DEFAULT, derived, quoted
from pulse.store.admin import checks, schema
from pulse.store.admin.checks import Examination, connected, install_audit, remove_audit
from pulse.store.admin.doctor import QUESTIONS, expected_indexes, look
from pulse.store.admin.roles import make_roles, names_of, roles_script, standing
from pulse.store.admin.schema import SCHEMA_VERSION
from pulse.store.admin.upgrade import runner
from pulse.store.admin.upgrade.plan import UPGRADE
from pulse.store.admin.upgrade.runner import upgrade
from pulse.store.connections.pool import Target, connect
from pulse.store.connections.rendering import CHANNELS, rendered
from pulse.store.connections.session import Session
from pulse.store.operators.gate import GATE_CHANNEL
from pulse.store.operators.schedules import SCHEDULES_CHANNEL
from pulse.store.statements import STATEMENTS
from pulse.store.store import WORK_CHANNEL, Store
from pulse_actors.runtime.pg_listen import listen
from tests.support.admin.roles_kit import forget
from tests.support.admin.upgrade_kit import catalogue, make_upgrades, step
from tests.support.hostile import HOSTILE
from tests.support.servers.postgres import Postgres
from tests.support.store.helpers import Patch, job
from tests.support.store.recovery_kit import running
from tests.support.waiting import until_async, until_blocked

DEADLINE_S: Final = 30.0
_NAMES: Final = (DEFAULT, HOSTILE)
_ADD: Final = step("add", "ALTER TABLE pulse.jobs ADD region text", table="pulse.jobs", lock="ACCESS EXCLUSIVE")
_JOBS: Final = "SELECT count(*) FROM pulse.jobs"


@dataclass(frozen=True, slots=True)
class Queue:
    """One of the two: its store, and a session whose SQL is rendered for its schema."""

    target: Target
    store: Store
    sql: Session


@pytest.fixture(scope="module")
def shared_dsn(server: Postgres) -> Iterator[str]:
    with server.database(installed=False) as made:
        yield made


@pytest.fixture
async def queues(shared_dsn: str) -> AsyncIterator[list[Queue]]:
    made = [await _queue(shared_dsn, name) for name in _NAMES]
    yield made
    for one in made:
        one.store.close()
        await one.sql.close(timeout=5)


async def _queue(dsn: str, name: str) -> Queue:
    target = Target(dsn, "pulse-tests", name)
    store = Store(target, hot=1, queries=1)
    await store.prepare()
    sql = await connect(target, {})
    await sql.execute("TRUNCATE pulse.jobs; DELETE FROM pulse.schedules; DELETE FROM pulse.audit")
    return Queue(target, store, sql)


async def test_they_are_the_same(queues: list[Queue]) -> None:
    """Tables, columns, constraints, indexes, functions and triggers differ in the schema's name only."""
    ours, theirs = [[line for line in await catalogue(one.sql) if "installed_at" not in line] for one in queues]
    assert len(ours) > 500
    assert sorted(map(_for_default, theirs)) == sorted(ours)
    assert [await one.store.prepare() for one in queues] == [SCHEMA_VERSION] * 2


def _for_default(line: str) -> str:
    """A line of the catalogue of HOSTILE, as the default schema has it."""
    name = quoted(HOSTILE)
    line = line.replace(" E'" + name.replace("'", "''").replace("\\", "\\\\"), "'pulse").replace(name, DEFAULT)
    for word in CHANNELS:
        line = line.replace(derived(word, HOSTILE), word)
    return line


async def test_every_statement_can_be_prepared(queues: list[Queue]) -> None:
    """The server finds all that it names; also those of the doctor, and of the checks with an audit."""
    for one in queues:
        await install_audit(one.target)
        for statement in (*STATEMENTS.values(), *QUESTIONS.values(), *checks._STATEMENTS.values()):
            try:
                await one.sql.prepare(rendered(statement.sql, one.target.schema))
            except asyncpg.PostgresError as error:
                raise AssertionError(statement.name) from error
        assert await remove_audit(one.target)


async def test_each_has_its_own_jobs(queues: list[Queue]) -> None:
    """The same id is another job; claims of one do not see the jobs of the other."""
    ours, theirs = queues
    for one in queues:
        await one.store.submit([job(id=b"j" * 16, topic="t")])
    [claim] = await theirs.store.claim(["t"], ["w"], [0], 30.0)
    status = "SELECT status::text FROM pulse.jobs"
    assert [await one.sql.fetchval(status) for one in queues] == ["PENDING", "RUNNING"]
    assert (claim.attempt, await theirs.store.claim(["t"], ["w"], [0], 30.0)) == (1, [])
    assert len(await ours.store.claim(["t"], ["w"], [0], 30.0)) == 1


async def test_each_hears_only_its_own_notifications(queues: list[Queue]) -> None:
    """Work, gate and schedules, by all that tells of them: the other one's listener hears nothing of it."""
    heard: list[asyncio.Queue[tuple[str, str]]] = []
    async with asyncio.timeout(DEADLINE_S):
        began = asyncio.Queue[None]()
        listeners = []
        for one in queues:
            found = asyncio.Queue[tuple[str, str]]()
            channels = {name: functools.partial(_put, found, name) for name in sorted(CHANNELS)}
            listeners.append(running(functools.partial(listen, one.target, channels, lambda: began.put_nowait(None))))
            heard.append(found)
        async with listeners[0], listeners[1]:
            for _ in queues:
                await began.get()
            for own, other in ((0, 1), (1, 0)):
                sql = queues[own].sql
                await sql.execute("SELECT pulse.submit('n')")
                assert await heard[own].get() == (WORK_CHANNEL, "")
                await sql.execute("""SELECT pulse.set_topic('t', '{"timeout_s": 5}')""")
                assert await heard[own].get() == (GATE_CHANNEL, "topics")
                await sql.execute("SELECT pulse.create_schedule('n', every_s => 3600)")
                assert await heard[own].get() == (SCHEDULES_CHANNEL, "")
                await queues[own].store.notify_work("me")
                assert await heard[own].get() == (WORK_CHANNEL, "me")
                await queues[other].store.notify_work("mark")  # sent later: what the other heard before is there
                assert await heard[other].get() == (WORK_CHANNEL, "mark")


def _put(heard: asyncio.Queue[tuple[str, str]], channel: str, text: str) -> None:
    heard.put_nowait((channel, text))


async def test_each_has_an_audit_of_its_own(queues: list[Queue]) -> None:
    """Installed, written and removed for one schema; the checks of both hold."""
    ours, theirs = queues
    await install_audit(theirs.target)
    for one in queues:
        await one.sql.execute("SELECT pulse.submit('n')")
    assert await theirs.sql.fetchval("SELECT count(*) FROM pulse_audit.changes") == 1
    await install_audit(ours.target)
    for one in queues:
        examination = Examination(one.target, audit=True, grace_s=60.0, timeout_s=30.0, examples=3)
        assert [found async for found in examination.findings() if found.is_bad] == []
    assert [await remove_audit(ours.target) for _ in range(2)] == [True, False]
    assert await theirs.sql.fetchval("SELECT count(*) FROM pulse_audit.changes") == 1
    assert await remove_audit(theirs.target)


async def test_the_doctor_examines_the_one_that_is_meant(queues: list[Queue]) -> None:
    """Both are well; a fault of one is found there, by its name, and not in the other."""
    index = await queues[1].sql.fetchval("SELECT pg_get_indexdef('pulse.idx_jobs_expiry'::regclass)")
    await queues[1].sql.execute("DROP INDEX pulse.idx_jobs_expiry")
    ours, theirs = [await _examined(one.target) for one in queues]
    await queues[1].sql.execute(index)
    looked = ("schema", "rights", "indexes", "additions", "tables")
    assert [name for name in looked if ours[name].state is State.WRONG] == []
    assert [name for name in looked if theirs[name].state is State.WRONG] == ["indexes"]
    assert f"REINDEX INDEX CONCURRENTLY {quoted(HOSTILE)}.NAME;" in theirs["indexes"].advice[0]
    assert [found["schema"].text for found in (ours, theirs)] == [
        f"the schema {quoted(name)} is at version {SCHEMA_VERSION}" for name in _NAMES
    ]


async def _examined(target: Target) -> dict[str, Finding]:
    seen = await look(target.dsn, DEADLINE_S, target.schema)
    known = CheckContext(expected=expected_indexes(), schema=quoted(target.schema))
    return {finding.check: finding for finding in judge(seen, known, grace_s=60.0)}


async def test_each_has_roles_of_its_own(queues: list[Queue], shared_dsn: str) -> None:
    """One by the command, one by the SQL that it prints; a server of one may do nothing in the other."""
    prefixes = [f"s{os.getpid()}_{number}_" for number in range(2)]
    ours, theirs = queues
    admin = await asyncpg.connect(shared_dsn)
    try:
        assert (await make_roles(ours.sql, prefixes[0])).roles == tuple(names_of(prefixes[0]))
        await admin.execute(roles_script(prefixes[1], HOSTILE))
        assert [(await standing(one.sql)).prefix for one in queues] == prefixes
        await _serves_only(ours.sql, prefixes[0], other=prefixes[1])
        await _serves_only(theirs.sql, prefixes[1], other=prefixes[0])
    finally:
        for prefix in prefixes:
            await forget(admin, prefix)
        await admin.close(timeout=5)


async def _serves_only(sql: Session, mine: str, *, other: str) -> None:
    await sql.execute(f"SET ROLE {mine}server")
    assert await sql.fetchval(_JOBS) == 0
    assert await sql.fetchval("SELECT pulse.submit('n') IS NOT NULL")
    await sql.execute(f"SET ROLE {other}server")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await sql.fetchval(_JOBS)
    await sql.execute("RESET ROLE")


async def test_an_upgrade_of_one_keeps_nobody_from_the_other(empty_dsn: str, monkeypatch: Patch) -> None:
    """The other one is installed and upgraded meanwhile."""
    monkeypatch.setattr(schema, "LOCK_TIMEOUT_S", 1)
    theirs = Target(empty_dsn, "pulse-tests", HOSTILE)
    async with connected(Target(empty_dsn, "pulse-tests"), {}) as ours, connected(theirs, {}) as session:
        assert await ours.fetchval(UPGRADE["upgrade_lock"].sql)
        assert await upgrade(theirs) == 0
        assert await session.fetchval(UPGRADE["upgrade_lock"].sql)


async def test_roles_of_both_are_made_one_after_the_other(empty_dsn: str) -> None:
    """With one prefix they are the same roles: who comes second waits, and finds them."""
    prefix = f"b{os.getpid()}_"
    targets = [Target(empty_dsn, "pulse-tests", name) for name in _NAMES]
    assert [await upgrade(target) for target in targets] == [0, 0]
    async with connected(targets[0], {}) as ours, connected(targets[1], {}) as theirs, connected(targets[0], {}) as sql:
        try:
            async with ours.transaction():
                assert (await make_roles(ours, prefix)).roles == tuple(names_of(prefix))
                waiting = asyncio.create_task(make_roles(theirs, prefix))
                await until_blocked(sql, by=ours.get_server_pid())
            assert (await waiting).roles == ()
        finally:
            await forget(sql, prefix)


async def test_messages_name_the_one_that_is_meant(empty_dsn: str, monkeypatch: Patch, tmp_path: Path) -> None:
    """The table or the upgrade that it waits for, epochs that somebody has deleted, a version that is too new."""
    target, name = Target(empty_dsn, "pulse-tests", HOSTILE), re.escape(quoted(HOSTILE))
    store = Store(target, hot=1, queries=1)
    assert await upgrade(target) == 0
    monkeypatch.setattr(runner, "PATIENCE_S", 0.0)
    monkeypatch.setattr(runner, "OTHERS_S", 0.0)
    async with connected(target, {}) as sql:
        with monkeypatch.context() as later:
            make_upgrades(later, tmp_path, _ADD)
            async with sql.transaction():
                await sql.execute("LOCK TABLE pulse.jobs IN ACCESS SHARE MODE")
                with pytest.raises(UnavailableError, match=rf"did not get {name}\.jobs within"):
                    await upgrade(target, alone=True)
            await until_async(lambda: sql.fetchval(UPGRADE["upgrade_lock"].sql), "the session that gave up is gone")
            with pytest.raises(UnavailableError, match=f"another upgrade of the schema {name} has been"):
                await upgrade(target)
        await sql.execute("DELETE FROM pulse.epochs")
        with pytest.raises(UnavailableError, match=rf"^{name}\.epochs is empty"):
            await store.epochs.look(UUID(int=1), None, 1.0)
        await sql.execute("INSERT INTO pulse.schema_version VALUES ($1, 'newer')", SCHEMA_VERSION + 2)
        with pytest.raises(SchemaError, match=f"the schema {name} is at version {SCHEMA_VERSION + 2}; "):
            await store.prepare()
    store.close()


async def test_a_schema_that_is_somebody_elses(empty_dsn: str) -> None:
    """One with tables is left as it is; an empty one is taken. Messages name the schema that is meant."""
    admin = await asyncpg.connect(empty_dsn)
    await admin.execute("CREATE SCHEMA shop; CREATE TABLE shop.orders (); CREATE SCHEMA empty")
    for name, found in (("shop", None), ("empty", 0)):
        store = Store(Target(empty_dsn, "pulse-tests", name), hot=1, queries=1)
        with pytest.raises(UnavailableError, match=f'^the schema "{name}" is not there; '):
            await store.prepare(install=False)
        if found is None:
            with pytest.raises(SchemaError, match=r'^the schema "shop" is not empty \(it has orders\), '):
                await store.prepare()
        else:
            assert await store.prepare() == found
        store.close()
    tables = "SELECT count(*) FROM pg_class WHERE relnamespace = $1::text::regnamespace AND relkind = 'r'"
    assert await admin.fetchval(tables, "shop") == 1
    assert await admin.fetchval(tables, "empty") > 10
    await admin.close(timeout=5)
