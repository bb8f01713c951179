"""The checker: a real history is clean, and each invariant notices when it is broken by hand."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from typing import Final
from uuid import UUID

import asyncpg
import pytest

from pulse.common.ids import uuid7
from pulse.errors import ConflictError, NotFoundError, PulseError, SchemaError, UnavailableError
from pulse.job import TRANSITIONS
from pulse.store.admin import checks
from pulse.store.admin.checks import AUDIT, TABLES, Check, CheckResult, Examination, install_audit, remove_audit
from pulse.store.connections.pool import Target
from pulse.store.recovery.epochs import Held
from pulse.store.rows import Ending, EndingKind, Fence
from pulse.store.store import Store
from pulse.system import processes
from tests.plugins.databases import EMPTY, Shared
from tests.support.admin.check_kit import GUARDS, LIVES, RECORD, ROWS, Wrong, live, live_all
from tests.support.store.epoch_kit import raised
from tests.support.store.helpers import Patch, Sql, claim, fence, forge, found_of, job

EVERY: Final = (*TABLES, *AUDIT)
BY_NAME: Final = {one.name: one for one in EVERY}


@pytest.fixture(scope="module")
async def ids(module_shared: Shared) -> dict[str, str]:
    await module_shared.connection.execute(EMPTY)
    await install_audit(Target(module_shared.dsn, "pulse-tests"))
    return await live_all(module_shared.store)


@pytest.fixture
async def rows(module_shared: Shared, ids: dict[str, str]) -> AsyncIterator[Sql]:
    connection = module_shared.connection
    changes = connection.transaction()
    await connection.execute("UPDATE pulse.sweep_mark SET swept_at = clock_timestamp()")
    await changes.start()
    yield connection
    await changes.rollback()


def examination(dsn: str = "", *, audit: bool = True, grace_s: float = 60.0, timeout_s: float = 30.0) -> Examination:
    return Examination(Target(dsn, "pulse check"), audit=audit, grace_s=grace_s, timeout_s=timeout_s, examples=3)


async def examine(connection: Sql, name: str, grace_s: float = 60.0) -> CheckResult:
    return await examination(grace_s=grace_s).examine(connection, BY_NAME[name])


async def unguarded(connection: Sql) -> None:
    found = await connection.fetch(
        "SELECT CASE WHEN conrelid = 0 THEN format('DOMAIN %s', contypid::regtype) ELSE 'TABLE pulse.jobs' END, conname"
        " FROM pg_constraint WHERE conname LIKE 'jobs%' AND contype = 'c' AND connamespace = 'pulse'::regnamespace"
    )
    for home, name in found:
        await connection.execute(f"ALTER {home} DROP CONSTRAINT {name}")


@pytest.mark.parametrize("check", EVERY, ids=lambda one: one.name)
async def test_a_clean_history(rows: Sql, check: Check) -> None:
    finding = await examine(rows, check.name)
    assert (finding.state, finding.examples) == ("ok", ())


async def test_every_kind_of_move_is_in_it(rows: Sql) -> None:
    """The clean history has each transition and each outcome but those of expiry."""
    made = await rows.fetch(
        "SELECT DISTINCT old_status, new_status FROM pulse_audit.changes WHERE old_status <> new_status"
    )
    legal = {(source.value, target.value) for source, targets in TRANSITIONS.items() for target in targets}
    expired = {("PENDING", "DEAD_LETTERED"), ("RETRYING", "DEAD_LETTERED"), ("RETRYING", "CANCELED")}
    assert {tuple(row) for row in made} | expired | {("CANCELED", "PENDING")} == legal
    outcomes = await rows.fetch("SELECT DISTINCT outcome FROM pulse.attempts")
    assert {row["outcome"] for row in outcomes} == {*EndingKind, "canceled", "completed"} - {"unassigned", "silent"}


@pytest.mark.parametrize("wrong", [*GUARDS, *ROWS, *RECORD], ids=str)
async def test_a_violation_is_noticed(rows: Sql, ids: dict[str, str], wrong: Wrong) -> None:
    """Each way to break an invariant is reported once, with job and reason."""
    if wrong.check not in {"guards", "anchors"}:
        await unguarded(rows)
    await rows.execute(wrong.sql.format(**ids))
    finding = await examine(rows, wrong.check)
    assert (finding.state, finding.violations) == ("violated", 1), finding
    [example] = finding.examples
    assert example.id == ids.get(wrong.who, wrong.who)
    assert wrong.says in example.detail


def test_every_check_has_a_violation() -> None:
    tried = {wrong.check for wrong in (*GUARDS, *ROWS, *RECORD)}
    assert {one.name for one in EVERY} - tried == {"sessions", "dead-processes"}  # tested below
    assert len(BY_NAME) == len(EVERY)


async def test_a_schedule_under_the_id_of_another(rows: Sql, ids: dict[str, str]) -> None:
    """A schedule that was deleted and declared anew has no duty to earlier occurrences."""
    await rows.execute(
        "UPDATE pulse.schedules SET created_at = next_run_at, last_run_at = last_run_at - interval '1 s', "
        "next_run_at = next_run_at - interval '1 s' WHERE id = $1",
        UUID(ids["schedule"]),
    )
    assert (await examine(rows, "occurrences")).state == "ok"


@pytest.mark.parametrize("deleted", [
    "INSERT INTO pulse.audit (action, jobs, at) SELECT 'jobs.delete', 1, last_run_at FROM pulse.schedules",
    "DELETE FROM pulse.jobs WHERE schedule_id = '{schedule}' AND status = 'COMPLETED'",
], ids=["by an operator", "by age"])  # fmt: skip
async def test_a_last_job_that_was_deleted(rows: Sql, ids: dict[str, str], deleted: str) -> None:
    """The job of a last occurrence may be missing after a delete, or when all that ended with it is gone, too."""
    await rows.execute(
        "DELETE FROM pulse.jobs j USING pulse.schedules s "
        f"WHERE s.id = '{ids['schedule']}' AND j.schedule_id = s.id AND j.occurrence = s.last_run_at"
    )
    await rows.execute(deleted.format(**ids))
    assert (await examine(rows, "occurrences")).state == "ok"


@pytest.mark.parametrize("pauses", ["(0.5, '', true)", "(2, 'other', true)", "(2, '', true), (0.1, '', false)"])
async def test_a_claim_beside_a_pause(rows: Sql, ids: dict[str, str], pauses: str) -> None:
    """A claim just as the pause was committed, on another topic, or after its end is no violation."""
    await rows.execute("UPDATE pulse_audit.changes SET began = began - interval '1 h'")
    await rows.execute(
        "INSERT INTO pulse_audit.gates (at, topic, paused) "
        f"SELECT now() - v.ago * interval '1 s', v.topic, v.paused FROM (VALUES {pauses}) AS v(ago, topic, paused)"
    )
    await unguarded(rows)
    await rows.execute("UPDATE pulse.jobs SET status = 'RUNNING', attempts = 1 WHERE id = $1", ids["pending"])
    assert (await examine(rows, "gate")).state == "ok"


@pytest.mark.parametrize(("was_set", "state"), [
    ("INSERT INTO pulse.topics (topic, backoff) SELECT topic, 'fixed:9' FROM pulse.jobs WHERE id = '{}'", "ok"),
    ("UPDATE pulse.topics SET backoff = 'fixed:9' WHERE topic = ''", "ok"),
    ("INSERT INTO pulse.handlers (name, backoff) SELECT name, 'fixed:9' FROM pulse.jobs WHERE id = '{}'", "ok"),
    ("INSERT INTO pulse.topics (topic, backoff) VALUES ('another', 'fixed:9')", "violated"),
])  # fmt: skip
async def test_a_back_off_that_was_unset(rows: Sql, ids: dict[str, str], was_set: str, state: str) -> None:
    """The wait of a failed try is unknown where another back-off may have been in force."""
    await rows.execute(was_set.format(ids["retrying"]))
    await rows.execute("UPDATE pulse.topics SET backoff = NULL; UPDATE pulse.handlers SET backoff = NULL")
    await rows.execute(
        "UPDATE pulse_audit.changes SET new_next_run_at = old_next_run_at + interval '1 h' "
        "WHERE id = $1 AND new_status = 'RETRYING'",
        ids["retrying"],
    )
    assert (await examine(rows, "back-off")).state == state


async def test_all_violations_are_counted(rows: Sql) -> None:
    await unguarded(rows)
    await rows.execute("UPDATE pulse.jobs SET locked_by = 'w', lease_until = now()")
    finding = await examine(rows, "leases")
    assert (finding.violations, len(finding.examples)) == (len(LIVES) + 7 - 1, 3)  # all but the one that runs


@pytest.mark.parametrize("name", ["lapsed", "late-schedules", "dead-processes"])
async def test_nobody_is_blamed_without_a_watchdog(rows: Sql, name: str) -> None:
    """Rows that only a watchdog could repair are skipped, with a note, where none has swept lately."""
    await rows.execute("UPDATE pulse.jobs SET lease_until = '2000-01-01' WHERE status = 'RUNNING'")
    await rows.execute("UPDATE pulse.sweep_mark SET swept_at = clock_timestamp() - interval '100 s'")
    finding = await examine(rows, name)
    assert (finding.state, finding.reason) == ("skipped", "no watchdog has swept for 100 s")
    await rows.execute("DELETE FROM pulse.sweep_mark")
    assert (await examine(rows, name)).reason == "no watchdog has ever swept"
    assert not finding.is_bad


async def test_grace(rows: Sql, ids: dict[str, str]) -> None:
    await rows.execute(
        "UPDATE pulse.jobs SET lease_until = clock_timestamp() - interval '10 s' WHERE id = $1", ids["running"]
    )
    assert (await examine(rows, "lapsed", grace_s=20.0)).state == "ok"
    assert (await examine(rows, "lapsed", grace_s=5.0)).state == "violated"


def identity(pid: int, start: int, **other: str) -> str:
    parts = {"host": "h", "boot": processes.boot_id()[:16], "pidns": str(processes.pid_namespace()), **other}
    return "/".join([*parts.values(), f"{pid}.{start}", "name"])


def pid_of_the_dead() -> int:
    with subprocess.Popen(["true"]) as process:
        return process.pid


async def test_dead_processes(rows: Sql, monkeypatch: Patch) -> None:
    """Jobs of a dead process of this host are reported; not those of a living one, or one that cannot be seen."""
    monkeypatch.setattr(checks, "BURIAL_S", 0.2)
    gone = pid_of_the_dead()
    own = processes.own_pid()
    start = processes.start_time(own)
    for holder in (
        identity(own, start),
        identity(gone, 1, boot="0123456789abcdef"),
        identity(gone, 1, pidns="1"),
        "tcp/user/session",
        "h/b/x/nonsense/name",
    ):
        await forge(rows, "RUNNING", locked_by=holder)
    assert (await examine(rows, "dead-processes")).state == "ok"
    buried = [await forge(rows, "RUNNING", locked_by=identity(gone, 1)) for _ in range(2)]
    reused = await forge(rows, "RUNNING", locked_by=identity(own, start + 1))
    finding = await examine(rows, "dead-processes")
    assert (finding.state, finding.violations) == ("violated", 3)
    assert {example.id for example in finding.examples} == {str(UUID(bytes=one)) for one in (*buried, reused)}


async def test_what_is_given_back_meanwhile(module_shared: Shared, monkeypatch: Patch) -> None:
    monkeypatch.setattr(checks, "BURIAL_S", 10.0)
    connection = module_shared.connection
    identity_ = await forge(connection, "RUNNING", locked_by=identity(processes.own_pid(), 1))
    other = await asyncpg.connect(module_shared.dsn)
    looking = asyncio.ensure_future(examine(other, "dead-processes"))
    try:
        done, _ = await asyncio.wait([looking], timeout=0.3)
        assert not done
        await connection.execute("DELETE FROM pulse.jobs WHERE id = $1", identity_.hex())
        assert (await looking).state == "ok"
    finally:
        looking.cancel()
        await other.close(timeout=5)
        await connection.execute("DELETE FROM pulse_audit.changes WHERE id = $1", identity_.hex())


async def test_idle_sessions(module_shared: Shared, monkeypatch: Patch) -> None:
    """A session of pulse that is idle in a transaction is reported; another's, or one at work, is not."""
    monkeypatch.setattr(checks, "IDLE_S", 0.0)
    for name, state in (("other", "ok"), ("pulse x", "violated")):
        sitting = await asyncpg.connect(module_shared.dsn, server_settings={"application_name": name})
        await sitting.execute("BEGIN")
        assert (await examine(module_shared.connection, "sessions")).state == state
        await sitting.close(timeout=5)


async def test_what_takes_too_long(module_shared: Shared, ids: dict[str, str]) -> None:
    """A check that does not end in time is named, and the others go on."""
    locker = await asyncpg.connect(module_shared.dsn)
    async with locker.transaction():
        await locker.execute("LOCK TABLE pulse.attempts")
        found = {
            finding.check.name: finding
            async for finding in examination(module_shared.dsn, audit=False, timeout_s=0.2).findings()
        }
    await locker.close(timeout=5)
    assert found["history"].state == "unfinished"
    assert found["history"].is_bad
    assert found["leases"].state == "ok"
    assert list(found) == [check.name for check in TABLES]


async def test_what_cannot_be_looked_at(module_shared: Shared) -> None:
    """That is no want of time: nothing else of this database can be trusted either."""
    connection = module_shared.connection
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("ALTER TABLE pulse.attempts RENAME TO other")
    with pytest.raises(asyncpg.UndefinedTableError):
        await examine(connection, "history")
    await transaction.rollback()


async def test_the_whole(module_shared: Shared, ids: dict[str, str]) -> None:
    await module_shared.connection.execute("UPDATE pulse.sweep_mark SET swept_at = clock_timestamp()")
    found = [finding async for finding in examination(module_shared.dsn).findings()]
    assert [(finding.check, finding.state) for finding in found] == [(check, "ok") for check in EVERY]


async def test_it_writes_nothing(module_shared: Shared, ids: dict[str, str]) -> None:
    exam = examination(module_shared.dsn, audit=False)
    async for _ in exam.findings():
        pass
    with pytest.raises(PulseError, match="read-only"):
        async with checks.connected(Target(module_shared.dsn, "pulse check"), checks.READING) as connection:
            await connection.execute("DELETE FROM pulse.jobs")


@pytest.mark.usefixtures("own_database")
async def test_audit_comes_and_goes(dsn: str, connection: Sql, store: Store) -> None:
    """Once installed, it records all that follows; removed, it leaves nothing."""
    target = Target(dsn, "pulse-tests")
    triggers = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'pulse.jobs'::regclass"
    ours = await connection.fetchval(triggers)
    assert not await remove_audit(target)
    with pytest.raises(NotFoundError, match="--install-audit"):
        await anext(examination(dsn).findings())
    await live_all(store)
    await connection.execute(EMPTY)
    [held] = await claim_one(store, "before")
    await install_audit(target)
    with pytest.raises(ConflictError, match="already"):
        await install_audit(target)
    await store.end([Ending(*fence(held), EndingKind.ERROR, "why")])
    await live_all(store)
    assert {finding.state async for finding in examination(dsn).findings()} == {"ok"}
    assert await remove_audit(target)
    assert await connection.fetchval(triggers) == ours
    await live(store, "completed")


@pytest.mark.usefixtures("own_database")
async def test_a_job_under_the_id_of_one_that_was_deleted(dsn: str, store: Store) -> None:
    """Its attempts count from 1 again; the deleted job's do not matter."""
    await install_audit(Target(dsn, "pulse-tests"))
    [held] = await claim_one(store, "t")
    await store.end([Ending(*fence(held), EndingKind.ERROR, "why")])
    await store.cancel([held])
    assert await store.delete([held]) == {held}
    await store.submit([job(id=held, topic="t")])
    assert [one.attempt for one in await claim(store, 1, topic="t", seconds=2e6)] == [1]
    assert {finding.state async for finding in examination(dsn).findings()} == {"ok"}


@pytest.mark.usefixtures("own_database")
async def test_claims_of_a_new_epoch(dsn: str, connection: Sql, store: Store) -> None:
    """Above its floor they are valid, also those of a submit; another jump is not."""
    await connection.execute("UPDATE pulse.sweep_mark SET swept_at = clock_timestamp()")
    await install_audit(Target(dsn, "pulse-tests"))
    [held] = await claim_one(store, "t")
    lost = uuid7().bytes
    await store.submit([job(id=lost, topic="later", delay_s=3600.0)])
    known = Held([fence(held).worker], [Fence(lost, 1, fence(held).worker)], 1.0)
    assert await raised(store, 2, held=known) == (2, 1000)
    assert [one.attempt for one in await claim(store, 1, topic="t", seconds=2e6)] == [1001]
    claims, _ = await store.submit_and_claim([job(topic="t")], ["t"], ["w"], [0], 30.0)
    assert [one.attempt for one in claims] == [1001]
    for held_yet in (fence(held, 1001), fence(claims[0].id, 1001, "w")):
        await store.end([Ending(*held_yet, EndingKind.ERROR, "why")])
    assert [finding.check.name async for finding in examination(dsn).findings() if finding.state != "ok"] == []
    run = "status = 'RUNNING', locked_by = 'w', lease_until = now()"
    await connection.execute(
        f"UPDATE pulse.jobs SET {run}, attempts = 3001, uncharged = 2999 WHERE id = $1", UUID(bytes=held)
    )
    await connection.execute(
        f"UPDATE pulse.jobs SET {run}, attempts = 1002, uncharged = 1001 WHERE id = $1", UUID(bytes=claims[0].id)
    )
    wrong = {finding.check.name async for finding in examination(dsn).findings() if finding.state != "ok"}
    assert wrong >= {"tokens", "charges"}


async def claim_one(store: Store, topic: str) -> list[bytes]:
    await store.submit([job(topic=topic)])
    return [one.id for one in await claim(store, 1, topic=topic, seconds=1e6)]


@pytest.mark.usefixtures("own_database")
async def test_heartbeats_are_not_written_down(dsn: str, connection: Sql) -> None:
    """A change of only lease, progress and checkpoint costs the audit nothing."""
    await install_audit(Target(dsn, "pulse-tests"))
    held = await forge(connection, "RUNNING")
    before = await connection.fetchval("SELECT count(*) FROM pulse_audit.changes")
    await connection.execute("UPDATE pulse.jobs SET lease_until = now(), progress = '1', checkpoint = '2'")
    assert await connection.fetchval("SELECT count(*) FROM pulse_audit.changes") == before
    await connection.execute("UPDATE pulse.jobs SET locked_by = 'w9' WHERE id = $1", held.hex())
    assert await connection.fetchval("SELECT count(*) FROM pulse_audit.changes") == before + 1


@pytest.mark.usefixtures("own_database")
async def test_another_schema(dsn: str, connection: Sql) -> None:
    """A database without pulse's schema, or with another version of it, is refused in a line."""
    await connection.execute("INSERT INTO pulse.schema_version VALUES (99, 'newer')")
    with pytest.raises(SchemaError, match="version 99"):
        await anext(examination(dsn).findings())
    await connection.execute("DROP SCHEMA pulse CASCADE")
    with pytest.raises(SchemaError, match="not installed"):
        await anext(examination(dsn).findings())


async def test_the_guards_are_those_of_the_schema(connection: Sql) -> None:
    statement = found_of(BY_NAME["guards"].statement)
    keys = await connection.fetch(
        "SELECT conname FROM pg_constraint WHERE connamespace = 'pulse'::regnamespace AND contype <> 'n'"
    )
    indexes = await connection.fetch(
        "SELECT indexname FROM pg_indexes WHERE schemaname = 'pulse' AND indexname LIKE 'idx%'"
    )
    triggers = await connection.fetch(
        "SELECT tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
        "WHERE c.relnamespace = 'pulse'::regnamespace AND NOT t.tgisinternal AND tgname NOT LIKE 'pulse_audit%'"
    )
    functions = await connection.fetch(
        "SELECT DISTINCT proname FROM pg_proc WHERE pronamespace = 'pulse'::regnamespace"
    )
    for row in (*keys, *indexes, *triggers, *functions):
        assert f"'{row[0]}'" in statement.sql
    assert statement.sql.count("('constraint'") == len(keys)
    assert statement.sql.count("('index'") == len(indexes)
    assert statement.sql.count("('trigger'") == len(triggers)
    assert statement.sql.count("('function'") == len(functions)


def test_the_moves_are_those_of_the_table() -> None:
    statement = found_of(BY_NAME["moves"].statement)
    legal = {(source.value, target.value) for source, targets in TRANSITIONS.items() for target in targets}
    for source, target in {*legal, ("", "PENDING"), ("", "RUNNING")}:
        assert f"('{source}', '{target}')" in statement.sql
    assert statement.sql.count("', '") == len(legal) + 2


async def test_a_database_that_goes_away(dsn: str) -> None:
    with pytest.raises(UnavailableError, match="is away: bye"):
        async with checks.connected(Target(dsn, "pulse check"), {}):
            raise asyncpg.AdminShutdownError("bye")


async def test_what_the_database_refuses(dsn: str) -> None:
    with pytest.raises(PulseError, match="the database refused: division by zero"):
        async with checks.connected(Target(dsn, "pulse check"), {}) as connection:
            await connection.execute("SELECT 1 / 0")
