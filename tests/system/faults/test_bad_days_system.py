"""Bad days of a DBA, a disk, a kernel limit and a library, on one system under load: none of them takes it down."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg
import pytest

import pulse
from pulse.common.ids import uuid7
from pulse.system.restart_policy import Intensity
from tests.chaos.database import Own, Sql
from tests.support.systems.epoch_kit import Load, beside, starts, twice
from tests.support.systems.system_kit import SHORT_LEASE, Pool, Whole, measured
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.patient, pytest.mark.rest]

MAX_RESTARTS: Final = Intensity().max_restarts
END: Final = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'pulse %'"
NOTHING: Final = "CREATE FUNCTION public.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"


@dataclass(frozen=True, slots=True)
class Day:
    whole: Whole
    database: Own
    pool: Pool
    load: Load
    sql: Sql

    def do(self, *statements: str, database: str = "postgres") -> None:
        dsn = urlsplit(self.database.dsn)._replace(path=f"/{database}").geturl()

        async def done() -> None:
            connection = await asyncpg.connect(dsn)
            try:
                for statement in statements:
                    await connection.execute(statement)
            finally:
                await connection.close(timeout=5)

        asyncio.run(done())

    def submit(self, name: str, count: int = 1, **how: object) -> list[UUID]:
        with pulse.Client(self.whole.path) as client:
            return [client.submit(name, **how) for _ in range(count)]  # type: ignore[arg-type] # as it comes

    def refused(self) -> str:
        before = len(self.load.refused)
        return until(lambda: self.load.refused[before:], "a submit is refused")[-1]

    def begun(self, count: int = 20) -> None:
        before = len(starts(self.whole))
        until(lambda: len(starts(self.whole)) > before + count, "jobs run")

    def finding(self, check: str) -> tuple[str, str]:
        told = json.loads(self.whole.command("doctor", "--json", "--dsn", self.database.dsn).stdout)
        return next((one["state"], one["text"]) for one in told["checks"] if one["name"] == check)


@pytest.fixture(scope="module")
def running() -> Iterator[Day]:
    with beside({"fsync": "off"}, **SHORT_LEASE, PULSE_RETENTION_S="1") as (whole, database, sql):
        pool = whole.pool("--processes", "2", "--concurrency", "3", app="tests.support.apps.bad_app:app")
        with Load(whole) as load:
            yield Day(whole, database, pool, load, sql)


@pytest.fixture
def day(running: Day) -> Iterator[Day]:
    """The system, at full speed, and so again afterwards, with the processes that it had."""
    running.begun(10)
    assert running.whole.process is not None
    before = running.whole.process.pid, len(running.whole.log("actor_failed"))
    yield running
    healed_s, job = time.monotonic(), uuid7()

    def runs() -> bool:
        with contextlib.suppress(pulse.PulseError), pulse.Client(running.whole.path, timeout_s=1.0) as client:
            client.submit("nap", {"seconds": 0.0}, id=job)
        return bool(running.whole.entries(job, "end"))

    until(runs, "a job runs again")
    measured("until a job runs", time.monotonic() - healed_s)
    assert running.whole.process.poll() is None
    assert before == (running.whole.process.pid, len(running.whole.log("actor_failed")))
    assert twice(running.whole) == []


def test_columns_come_and_go(day: Day) -> None:
    """Prepared plans survive a column that a DBA adds, or drops."""
    pids = day.whole.pids()
    for _ in range(3):
        day.do("ALTER TABLE pulse.jobs ADD COLUMN mine text DEFAULT 'x'")
        day.begun()
        day.do("ALTER TABLE pulse.jobs DROP COLUMN mine")
        day.begun()
    assert day.whole.pids() == pids


def test_a_role_that_is_read_only(day: Day) -> None:
    """The server waits; no process ends."""
    pids = day.whole.pids()
    day.do("ALTER ROLE pulse SET default_transaction_read_only = on", END)
    try:
        until(lambda: "read-only" in day.refused(), "it is told")
        until(lambda: day.whole.log("leases_doubted"), "reports wait, too")
    finally:
        day.do("SET transaction_read_only = off", "SET default_transaction_read_only = off",
               "ALTER ROLE pulse RESET default_transaction_read_only")  # fmt: skip
    assert day.whole.pids() == pids


def test_a_database_that_is_renamed(day: Day) -> None:
    """It is away until it has its name again, though the server says that there is none."""
    pids = day.whole.pids()

    def rename(old: str, new: str) -> None:
        def renamed() -> bool:
            end = END.replace("application_name LIKE 'pulse %'", f"datname = '{old}'")
            with contextlib.suppress(asyncpg.ObjectInUseError):
                day.do(end, f"ALTER DATABASE {old} RENAME TO {new}", database="template1")
                return True
            return False

        until(renamed, "nobody uses it")

    rename("postgres", "gone")
    try:
        until(lambda: 'database "postgres" does not exist' in day.refused(), "it is told")
    finally:
        rename("gone", "postgres")
    assert day.whole.pids() == pids


def test_a_trigger_that_drops_rows(day: Day) -> None:
    """No job is acknowledged that does not exist, and the doctor names the trigger."""
    day.do(NOTHING, "CREATE TRIGGER nothing BEFORE INSERT ON pulse.jobs FOR EACH ROW EXECUTE FUNCTION public.nothing()")
    try:
        until(lambda: "without an error" in day.refused(), "it is told")
        before = len(day.load.acked)
        assert day.finding("additions") == (
            "warning",
            "trigger nothing is on pulse.jobs, and not pulse's: it can refuse rows, or drop them without a word",
        )
        assert len(day.load.acked) == before
    finally:
        day.do("DROP FUNCTION public.nothing CASCADE")


def test_a_constraint_that_no_job_may_run_by(day: Day) -> None:
    """Waiting jobs are set aside, since each claim has few places, and all run after its end."""
    jobs = day.submit("nap", 20, args={"seconds": 0.0}, delay_s=3600)
    day.do("ALTER TABLE pulse.jobs ADD CONSTRAINT mine CHECK (status <> 'RUNNING') NOT VALID")
    try:
        day.sql.rows("UPDATE pulse.jobs SET next_run_at = clock_timestamp() WHERE id = ANY ($1)", jobs)
        until(lambda: len(day.whole.log("job_set_aside")) >= len(jobs), "all are set aside")
    finally:
        healed_s = time.monotonic()  # before: they run as soon as it is committed
        day.do("ALTER TABLE pulse.jobs DROP CONSTRAINT mine")
    for job in jobs:
        assert day.whole.wait_entry(job, "end", attempt=1).at_s > healed_s
    until(lambda: day.sql.value("SELECT count(*) FROM pulse.set_aside") == 0, "nothing is set aside")
    measured("until all that was set aside is run", time.monotonic() - healed_s)


def test_a_constraint_that_no_result_may_be_written_by(day: Day) -> None:
    """Results are kept and written at its end: no job runs again for it, none is a dead letter."""
    day.do("ALTER TABLE pulse.jobs ADD CONSTRAINT mine CHECK (status <> 'COMPLETED') NOT VALID")
    try:
        until(lambda: day.whole.log("report_refused", sqlstate="23514"), "it is told")
        held = [entry.job for entry in day.whole.entries(event="end")][-3:]
    finally:
        day.do("ALTER TABLE pulse.jobs DROP CONSTRAINT mine")
    day.begun(30)
    ran = {(entry.job, entry.attempt) for entry in day.whole.entries() if entry.job in held}
    assert len(ran) == len(set(held)), "a full worker may have given one back before"
    assert day.sql.value("SELECT count(*) FROM pulse.attempts WHERE error LIKE '%not storable%'") == 0


def test_a_foreign_key_onto_the_jobs(day: Day) -> None:
    """Referenced jobs are kept beyond their retention; others are deleted, and the doctor names the key."""
    newest = "SELECT id FROM pulse.jobs WHERE status = 'COMPLETED' ORDER BY completed_at DESC LIMIT 3 FOR KEY SHARE"
    day.do("CREATE TABLE public.mine (job uuid REFERENCES pulse.jobs)", f"INSERT INTO public.mine {newest}")
    try:
        marked = day.sql.value("SELECT max(submitted_at) FROM pulse.jobs")
        left = "SELECT count(*) FROM pulse.jobs WHERE submitted_at <= $1 AND id NOT IN (SELECT job FROM public.mine)"
        until(lambda: day.sql.value(left, marked) == 0, "all others are deleted", 20.0)
        assert day.finding("additions")[1].startswith("reference of mine leads to pulse.jobs")
        assert day.whole.log("statement_refused", sqlstate="23503")
    finally:
        day.do("DROP TABLE public.mine")


def test_a_session_limit_of_the_server(day: Day) -> None:
    """Sessions that end in the middle of each statement are made anew, and nothing is lost."""
    if day.sql.value("SELECT count(*) FROM pg_settings WHERE name = 'transaction_timeout'") == 0:
        pytest.skip("transaction_timeout takes PostgreSQL 17")
    file = day.database.data_dir / "postgresql.auto.conf"
    before = file.read_text("utf-8")

    def reload(text: str) -> None:
        file.write_text(text, "utf-8")
        os.kill(int((day.database.data_dir / "postmaster.pid").read_text("utf-8").split()[0]), signal.SIGHUP)

    reload(f"{before}transaction_timeout = 1\n")
    try:
        until(lambda: "transaction timeout" in day.refused(), "it is told")
    finally:
        reload(before)


def test_a_state_directory_that_is_removed(day: Day) -> None:
    """The witness is kept in memory alone, with a warning, and all goes on."""
    directory = day.whole.directory / "state"
    shutil.rmtree(directory)
    try:
        until(lambda: "warning  memory: " in day.whole.command("ctl", "status").stdout, "it is told")
        day.begun()
    finally:
        directory.mkdir(mode=0o700)


def test_a_pool_without_descriptors(day: Day) -> None:
    """A parent that cannot open a file keeps its workers, and starts the others when it can again."""
    limits = resource.prlimit(day.pool.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(day.pool.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        gone, stays = day.pool.workers()
        os.kill(gone, signal.SIGKILL)
        until(lambda: "cannot be started: [Errno 24]" in day.pool.said, "it is told")
        assert day.pool.workers() == [stays]
        day.begun()
    finally:
        resource.prlimit(day.pool.pid, resource.RLIMIT_NOFILE, limits)
    until(lambda: len(day.pool.workers()) == 2, "both are there again", 20.0)


def test_a_supervisor_without_descriptors(day: Day) -> None:
    assert day.whole.process is not None
    supervisor, dispatcher = day.whole.process.pid, day.whole.pids()["dispatcher"]
    limits = resource.prlimit(supervisor, resource.RLIMIT_NOFILE)
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        os.kill(dispatcher, signal.SIGKILL)
        until(lambda: len(day.whole.log("child_waiting", name="dispatcher")) > MAX_RESTARTS + 1, "it is told")
    finally:
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, limits)
    day.begun()


@pytest.mark.parametrize(
    "names",
    [("close-everything",), ("cancel-all-tasks",), ("ignore-children", "stop-the-clock", "leave-the-directory")],
)
def test_a_library(day: Day, names: tuple[str, ...]) -> None:
    """Whatever it does to its process, other jobs run, isolated ones, too, and no neighbour is a dead letter."""
    before = Counter(entry.event for entry in day.whole.entries())
    jobs = [job for name in names for job in day.submit(name, 2, max_attempts=2)]
    for job in (*jobs, *day.submit("apart", 2)):
        found = until(lambda one=job: _ended(day, one), f"{names} end", 20.0)  # type: ignore[misc]
        assert found == "COMPLETED" or job in jobs
    day.begun()
    assert Counter(entry.event for entry in day.whole.entries()) > before


def _ended(day: Day, job: UUID) -> str:
    """How it ended; '': it did not, or is deleted."""
    rows = day.sql.rows("SELECT status::text FROM pulse.jobs WHERE id = $1", job)
    if not rows:
        return "COMPLETED"  # dead letters are kept
    return rows[0][0] if rows[0][0] in {"COMPLETED", "DEAD_LETTERED"} else ""


def test_a_truncated_table(day: Day) -> None:
    """Its jobs are lost, as intended; nothing else is, and running handlers end without a trace."""
    pids = day.whole.pids()
    day.do("TRUNCATE pulse.jobs CASCADE")
    day.begun(30)
    assert day.whole.pids() == pids


def test_a_runtime_directory_that_is_removed(day: Day) -> None:
    """One log line says what to do; connected peers go on."""
    kept = day.whole.directory / "kept"
    day.whole.runtime_dir.rename(kept)
    try:
        told = until(lambda: day.whole.log("socket_name_lost"), "it is told")
        assert "restart pulse-supervisor" in told[0]["message"]
        day.begun()
        assert day.whole.log("socket_name_put_back") == []
    finally:
        kept.rename(day.whole.runtime_dir)
    assert len(day.whole.log("socket_name_lost")) == 2


def test_nothing_was_lost(day: Day) -> None:
    """Each job that was acknowledged since the table was truncated has run, and ended."""
    before = len(day.load.acked)
    until(lambda: len(day.load.acked) > before + 20, "jobs are taken")
    for job in day.load.acked[before : before + 20]:
        day.whole.wait_entry(job, "end")
