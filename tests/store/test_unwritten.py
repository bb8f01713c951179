"""What cannot be written of workers that were heard: when all sweeps are told of it, and when not."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from datetime import datetime, timedelta
from typing import Final

import anyio
import asyncpg
import pytest
from structlog.testing import capture_logs

from pulse.errors import UnavailableError
from pulse.store.rows import Renewal
from pulse.store.store import Store
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.dispatcher.writes import unwritten as unwriting
from pulse_actors.dispatcher.writes.unwritten import DOUBTED_SHARE, UnwrittenLeases
from pulse_actors.runtime.actor import Backoff
from tests.store.helpers import Patch, Sql, forge
from tests.store.recovery_kit import DEADLINE_S, LEASE_S

pytestmark = pytest.mark.heavy

LATE_S: Final = DOUBTED_SHARE * LEASE_S


class Clock:
    """The monotonic clock, set forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        """Its time."""
        return time.monotonic() + self.ahead_s


class Ledge:
    """One job of a worker, and who extends its lease."""

    def __init__(self, store: Store, connection: Sql, dsn: str, clock: Clock, job: bytes) -> None:
        self.store, self.connection, self.dsn, self.clock, self.job = store, connection, dsn, clock, job
        self.registry = WorkerRegistry()
        self.unwritten = UnwrittenLeases(store, self.registry, lease_s=LEASE_S)

    async def beat(self) -> bool:
        """A heartbeat; whether it was written."""
        try:
            return bool(await self.unwritten.extend([Renewal(self.job, 1, "w", None)]))
        except (UnavailableError, asyncpg.PostgresError):
            return False

    async def look(self) -> None:
        """One look."""
        await self.unwritten.look(Backoff())

    async def progress_s(self) -> float:
        """For how long nobody may reap from now on; below zero: it was not told."""
        until, now = await self.connection.fetchrow(  # type: ignore[misc] # pyright: ignore[reportGeneralTypeIssues]
            "SELECT nullif(wait_until, '-infinity'), clock_timestamp() FROM pulse.sweep_mark"
        )
        return -1.0 if until is None else (until - now) / timedelta(seconds=1)

    async def is_told(self) -> bool:
        """Whether everybody waits for a lease."""
        await self.look()
        return LEASE_S - 5 < await self.progress_s() <= LEASE_S

    @contextlib.asynccontextmanager
    async def locked(self, *statements: str) -> AsyncGenerator[None]:
        """While somebody else holds these locks."""
        other = await asyncpg.connect(self.dsn)
        try:
            async with other.transaction():
                for sql in statements:
                    await other.execute(sql)
                yield
        finally:
            await other.close()


ROW: Final = "SELECT FROM pulse.jobs FOR UPDATE"


@pytest.fixture
async def ledge(store: Store, connection: Sql, dsn: str, monkeypatch: Patch) -> Ledge:
    """One job whose lease is long."""
    clock = Clock()
    monkeypatch.setattr(unwriting, "time", clock)
    monkeypatch.setattr(unwriting, "AGAIN_S", 0.0)
    until = datetime.now().astimezone() + timedelta(seconds=LEASE_S)
    job = await forge(connection, "RUNNING", locked_by="w", lease_until=until)
    return Ledge(store, connection, dsn, clock, job)


async def test_what_can_be_written_is_told_to_nobody(ledge: Ledge) -> None:
    """Where nothing is wrong, sweeps go on."""
    assert await ledge.beat()
    assert not await ledge.is_told()


async def test_a_row_that_is_locked_for_a_moment(ledge: Ledge) -> None:
    """Its lease still runs for long: nobody has to wait."""
    async with ledge.locked(ROW):
        assert not await ledge.beat()
    assert not await ledge.is_told()


@pytest.mark.parametrize(
    "lock", [ROW, "LOCK TABLE pulse.jobs IN SHARE MODE", "LOCK TABLE pulse.jobs IN ACCESS EXCLUSIVE MODE"]
)
async def test_what_stays_locked_is_told(ledge: Ledge, lock: str) -> None:
    """At the heartbeat that finds it locked for a quarter of a lease."""
    async with ledge.locked(lock):
        await ledge.beat()
        ledge.clock.ahead_s += LATE_S
        assert not await ledge.beat()
        assert await ledge.is_told()
        await ledge.connection.execute("UPDATE pulse.sweep_mark SET wait_until = '-infinity'")
        assert not await ledge.is_told()  # once for each that fails
        await ledge.beat()
        assert await ledge.is_told()


@pytest.mark.usefixtures("own_database")
async def test_a_trigger_that_raises(ledge: Ledge) -> None:
    """Whatever the database's words are: the worker was heard, and its lease is not extended."""
    await ledge.connection.execute(
        "CREATE FUNCTION pulse.no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;"
        "CREATE TRIGGER no BEFORE UPDATE ON pulse.jobs FOR EACH ROW EXECUTE FUNCTION pulse.no()"
    )
    await ledge.beat()
    ledge.clock.ahead_s += LATE_S
    assert not await ledge.beat()
    assert await ledge.is_told()


async def test_a_statement_that_takes_long(ledge: Ledge, monkeypatch: Patch) -> None:
    """Its time counts from its begin: the next one may come too late."""

    async def slow(*_: object) -> None:
        ledge.clock.ahead_s += LATE_S
        raise UnavailableError("no answer within 10 s")

    monkeypatch.setattr(ledge.store, "extend", slow)
    await ledge.beat()
    assert await ledge.is_told()


async def test_what_was_extended_again(ledge: Ledge) -> None:
    """A lease that was extended in between begins anew."""
    async with ledge.locked(ROW):
        await ledge.beat()
    assert await ledge.beat()
    ledge.clock.ahead_s += LATE_S
    async with ledge.locked(ROW):
        await ledge.beat()
    assert not await ledge.is_told()


async def test_what_failed_long_ago(ledge: Ledge) -> None:
    """A job that has ended since is forgotten when nothing fails for a lease."""
    async with ledge.locked(ROW):
        await ledge.beat()
        ledge.clock.ahead_s += LEASE_S
        await ledge.beat()
    assert not await ledge.is_told()


async def test_a_report_that_waits(ledge: Ledge) -> None:
    """Its job has ended, so nobody beats for it; but who takes its lease for lapsed runs it again."""
    ledge.registry.reporting.add((ledge.job, 1))
    assert not await ledge.is_told()
    ledge.clock.ahead_s += LATE_S
    assert await ledge.is_told()


async def test_a_report_that_was_written(ledge: Ledge) -> None:
    """Others that have waited less tell nothing."""
    ledge.registry.reporting.add((ledge.job, 1))
    await ledge.look()
    ledge.clock.ahead_s += LATE_S
    ledge.registry.reporting.clear()
    ledge.registry.reporting.add((ledge.job, 2))
    assert not await ledge.is_told()


async def test_what_cannot_be_told_is_told_later(ledge: Ledge) -> None:
    """As soon as the row can be written; until then no mark can be made either."""
    async with ledge.locked(ROW, "LOCK TABLE pulse.sweep_mark IN ACCESS EXCLUSIVE MODE"):
        await ledge.beat()
        ledge.clock.ahead_s += LATE_S
        await ledge.beat()
        await ledge.look()
    assert await ledge.is_told()


async def test_it_is_told_at_once_and_again(ledge: Ledge, monkeypatch: Patch) -> None:
    """A heartbeat that fails too late waits for no look; the log says so now and then."""
    monkeypatch.setattr(unwriting, "LOOK", 1000.0)
    with capture_logs() as logs:
        async with anyio.create_task_group() as tasks, ledge.locked(ROW):
            tasks.start_soon(ledge.unwritten.run)
            await ledge.beat()
            ledge.clock.ahead_s += LATE_S
            for _ in range(2):
                await ledge.beat()
                with anyio.fail_after(DEADLINE_S):
                    while await ledge.progress_s() < 0:
                        await anyio.lowlevel.checkpoint()
                await ledge.connection.execute("UPDATE pulse.sweep_mark SET wait_until = '-infinity'")
            tasks.cancel_scope.cancel()
    entries = [entry for entry in logs if entry["event"] == "leases_doubted"]
    assert [(entry["heartbeats"], entry["reports"]) for entry in entries] == [(1, 0)]


async def test_reports_are_looked_at_by_themselves(ledge: Ledge, monkeypatch: Patch) -> None:
    """Nobody rings for them."""
    monkeypatch.setattr(unwriting, "LOOK", 0.0001)
    ledge.registry.reporting.add((ledge.job, 1))
    await ledge.look()
    ledge.clock.ahead_s += LATE_S
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ledge.unwritten.run)
        with anyio.fail_after(DEADLINE_S):
            while await ledge.progress_s() < 0:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
