"""The system under fire: a supervisor, its database, worker pools, and all that a fault or a load needs of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from uuid import UUID

import pulse
from pulse.common.ids import uuid7
from pulse.job import Job
from pulse.store.admin.checks import CheckResult, Examination
from pulse.store.connections.pool import Target
from pulse.system import processes
from pulse_actors.shared.identity import parse
from tests.chaos import verdict
from tests.chaos.database import Database, Embedded, Sql, own_database
from tests.chaos.load import ledger
from tests.chaos.load.ledger import Ledger
from tests.chaos.verdict import Row, Verdict
from tests.support.systems.system import short_directory
from tests.support.systems.system_kit import ACTORS, Pool, Whole, place
from tests.support.waiting import until

APP: Final = "tests.chaos.load.app:app"
# A lease is a tenth of the default, so that nobody has to wait for it.
SETTINGS: Final = {
    "PULSE_LEASE_S": "3", "PULSE_HEARTBEAT_S": "1", "PULSE_SWEEP_S": "1", "PULSE_DRAIN_S": "3", "PULSE_OBEY_S": "1",
    "PULSE_LOG_LEVEL": "info",
}  # fmt: skip
LEASE_S: Final = float(SETTINGS["PULSE_LEASE_S"])
SWEEP_S: Final = float(SETTINGS["PULSE_SWEEP_S"])
WAIT_S: Final = 30.0  # for what takes a second on a quiet machine
DRAIN_S: Final = 60.0
CLIENT_S: Final = 5.0
GRACE_S: Final = 15.0  # of a lapsed lease: the lease, one more after an outage, and sweeps
CHECK_S: Final = 60.0

_WAITING: Final = "SELECT count(*) FROM pulse.jobs WHERE status IN ('PENDING', 'RETRYING', 'RUNNING')"
_STUCK: Final = """
    SELECT to_jsonb(j) - '{args,result,progress,checkpoint}'::text[] AS row FROM pulse.jobs j
    WHERE status IN ('PENDING', 'RETRYING', 'RUNNING') ORDER BY submitted_at LIMIT 5"""
_JOBS: Final = """
    SELECT id, status::text AS status, attempts, name, schedule_id IS NOT NULL AS is_scheduled,
        CASE WHEN jsonb_typeof(result) = 'object' THEN (result->>'attempt')::int END AS told_by
    FROM pulse.jobs"""
_CLAIMS: Final = (
    "SELECT id, new_attempts FROM pulse_audit.changes"
    " WHERE new_status = 'RUNNING' AND old_status IS DISTINCT FROM 'RUNNING'"
)
_REVIVED: Final = """
    SELECT id, old_attempts FROM pulse_audit.changes
    WHERE new_status = 'PENDING' AND old_status IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELED')"""


@dataclass(frozen=True, slots=True)
class Report:
    findings: Sequence[CheckResult]
    verdict: Verdict

    @property
    def wrong(self) -> list[str]:
        """What does not hold, with examples."""
        bad = [one for one in self.findings if one.state != "ok"]
        found = [
            f"{one.check.name} ({one.check.what}): {one.state}, {one.violations}: {one.reason or list(one.examples)}"
            for one in bad
        ]
        return found + [f"{rule}: {len(some)}: {list(some[:5])}" for rule, some in self.verdict.wrong.items()]


class Site:
    def __init__(self, whole: Whole, database: Database) -> None:
        self.whole = whole
        self.database = database
        self.sql = Sql(database.dsn)
        self.strikes = 0
        self.pools: list[Pool] = []
        self.ledger = Ledger(whole.directory / "ledger")
        whole.dsn = database.dsn
        whole.env[ledger.VARIABLE] = str(self.ledger.directory)

    def start(self, audit: bool = True) -> None:
        self.whole.start()
        if audit:
            done = self.whole.command("check", "--dsn", self.database.dsn, "--install-audit")
            assert done.returncode == 0, done.stderr

    def close(self) -> None:
        """Let go of the database, and end what handlers left behind."""
        self.sql.close()
        for child in self.children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def children(self) -> list[int]:
        started = {line.pid: line.facts["start"] for line in self.lines("child")}
        return [pid for pid, at in started.items() if processes.start_time(pid) == at and processes.state(pid) != "Z"]

    def pool(self, *words: str, env: Mapping[str, str] | None = None) -> Pool:
        pool = self.whole.pool(*words, app=APP, env=env)
        self.pools.append(pool)
        return pool

    def gate(self) -> Path:
        return self.whole.gate(str(time.monotonic_ns()))

    def workers(self, topic: str = "default") -> list[int]:
        """Pids of the handler processes that are connected and serve *topic*."""
        return [row["pid"] for row in self.whole.connected() if topic in row["topics"]]

    def is_whole(self) -> bool:
        """Whether every actor runs, and every handler process of every pool is connected."""
        try:
            status = self.whole.ask_supervisor("status")
        except (OSError, AssertionError):
            return False
        running = {row["name"] for row in status["actors"] if row["state"] == "running"}
        database = status["database"]
        return (
            running >= set(ACTORS)
            and database is not None
            and database["ok"]
            and all(pool["state"] == "running" for pool in status["pools"])
            and all(pool.process.poll() is not None or self.whole.is_connected(pool) for pool in self.pools)
        )

    # What is asked of it.

    def submit(self, name: str, args: Mapping[str, object] | None = None, **options: object) -> UUID:
        """Submit a job, with its lines in the ledger; waits until it is acknowledged."""
        job = uuid7()
        self.ledger.write("intent", job)

        def is_taken() -> bool:
            with contextlib.suppress(pulse.PulseError), self.client() as client:
                return client.submit(name, args, id=job, **options) == job  # type: ignore[arg-type]
            return False

        until(is_taken, f"{name} is acknowledged", WAIT_S)
        self.ledger.write("acked", job)
        return job

    def client(self) -> pulse.Client:
        return pulse.Client(self.whole.path, timeout_s=CLIENT_S)

    def get(self, job: UUID) -> Job:
        """A job and its history, however long it takes to get an answer."""

        def look() -> Job | None:
            with contextlib.suppress(pulse.PulseError), self.client() as client:
                return client.get(job)
            return None

        found = until(look, f"an answer about {job}", WAIT_S)
        assert found is not None
        return found

    def wait(self, job: UUID, *statuses: str, within_s: float = WAIT_S) -> Job:
        last: list[Job] = []

        def look() -> bool:
            last[:] = [self.get(job)]
            return last[0].status in statuses if statuses else last[0].is_terminal

        try:
            until(look, "", within_s)
        except AssertionError:
            raise AssertionError(f"not {' or '.join(statuses) or 'over'} within {within_s} s: {last}") from None
        return last[0]

    def probe(self, within_s: float = WAIT_S, topic: str = "default") -> float:
        """Seconds until a job that is submitted now is completed."""
        started_s = time.monotonic()
        self.wait(self.submit("short", topic=topic, priority=100), within_s=within_s)
        return time.monotonic() - started_s

    def wait_started(self, job: UUID, attempt: int = 1, within_s: float = WAIT_S) -> ledger.Line:
        """The line of the ledger that says that it runs, in a later attempt if one was given back."""

        def look() -> ledger.Line | None:
            lines = (line for line in self.lines("start") if line.job == job and line.attempt >= attempt)
            return min(lines, key=lambda line: line.attempt, default=None)

        found = until(look, f"the start of attempt {attempt} of {job}, or of a later one", within_s)
        assert found is not None
        return found

    def lines(self, act: str | None = None) -> list[ledger.Line]:
        """The ledger so far, of one act where that is asked."""
        return [line for line in ledger.read(self.ledger.directory) if act in {None, line.act}]

    # How it went.

    def settle(self, within_s: float = WAIT_S) -> float:
        started_s = time.monotonic()
        try:
            until(self.is_whole, "", within_s)
        except AssertionError:
            told = self.whole.ask_supervisor("status"), self.whole.connected()
            raise AssertionError(f"actors, database and workers are not there within {within_s} s: {told}") from None
        return time.monotonic() - started_s

    def drain(self, within_s: float = DRAIN_S) -> None:
        """Wait until nothing is left to do; nobody submits any more, and schedules pause until `fire_again`."""
        self.sql.rows("UPDATE pulse.schedules SET paused = true")
        try:
            until(lambda: self.sql.value(_WAITING) == 0, "", within_s)
        except AssertionError:
            left = [row["row"] for row in self.sql.rows(_STUCK)]
            raise AssertionError(f"not drained within {within_s} s, left: {left}") from None

    def fire_again(self) -> None:
        self.sql.rows("UPDATE pulse.schedules SET paused = false")

    def report(self, *, drained: bool = True) -> Report:
        """Check every invariant now; those of the ledger, which changes meanwhile, only when all is over."""
        findings = asyncio.run(_examine(self.database.dsn))
        told = verdict.judge(self.lines(), self.snapshot())
        return Report(findings, told if drained else replace(told, wrong={}))

    def snapshot(self) -> verdict.Database:
        jobs = {row["id"]: Row(*list(row.values())[1:]) for row in self.sql.rows(_JOBS)}
        history = {
            (UUID(str(job)), attempt): (outcome, worker)
            for job, attempt, outcome, worker in self.sql.rows(
                "SELECT job_id, attempt, outcome, worker FROM pulse.attempts"
            )
        }
        return verdict.Database(
            {UUID(str(job)): row for job, row in jobs.items()},
            {pair: outcome for pair, (outcome, _) in history.items()},
            self._pairs(_CLAIMS),
            self._pairs(_REVIVED),
            {
                pair: (named.pid, named.start_time)
                for pair, (_, worker) in history.items()
                if (named := parse(worker or ""))
            },
            self.strikes,
        )

    def _pairs(self, sql: str) -> frozenset[verdict.Pair]:
        return frozenset((UUID(str(job)), attempt) for job, attempt in self.sql.rows(sql))


async def _examine(dsn: str) -> list[CheckResult]:
    examination = Examination(Target(dsn, "pulse check"), audit=True, grace_s=GRACE_S, timeout_s=CHECK_S, examples=5)
    return [finding async for finding in examination.findings()]


@contextlib.contextmanager
def site(
    *, own: bool = False, own_settings: Mapping[str, str] | None = None, pool: Sequence[str] = (), **settings: str
) -> Iterator[Site]:
    """
    A system in a place of its own, not started yet; nothing of it is left afterwards.

    Args:
        own: Its database is beside it, and can be stopped; else it is the supervisor's own.
        pool: The pool that the supervisor runs itself: ``--processes 1 --concurrency 8``; none: it runs none.
    """
    options = ("--app", APP, *pool) if pool else ()
    with contextlib.ExitStack() as stack:
        database: Database | None = None
        if own:
            directory = stack.enter_context(short_directory(0o711))
            database = stack.enter_context(own_database(directory, own_settings or {}))
        whole = stack.enter_context(
            place(None if database is None else database.given, options, **{**SETTINGS, **settings})
        )
        made = Site(whole, database or Embedded(whole.directory / "state"))
        stack.callback(made.close)
        yield made
