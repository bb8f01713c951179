"""Leases of living workers that cannot be written: when all sweeps must wait for them, and when not."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Final

import asyncpg
import pytest
from structlog.testing import capture_logs

from pulse.errors import StatementError, StatementTimeoutError, UnavailableError
from pulse.store.failures import IN_VAIN
from pulse.store.rows import Completion, Renewal
from pulse.store.store import Store
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.dispatcher.writes import unwritten as unwriting
from pulse_actors.dispatcher.writes.unwritten import DOUBTED_SHARE, UnwrittenLeases
from pulse_actors.runtime.actor import Backoff
from pulse_actors.shared.row_writes import UnwrittenRow, write_merged
from tests.support.store.helpers import WORKER, Patch, Sql, forge, holding, read
from tests.support.store.recovery_kit import LEASE_S, running
from tests.support.waiting import until_async

pytestmark = pytest.mark.heavy

LATE_S: Final = DOUBTED_SHARE * LEASE_S
BY_ID: Final = attrgetter("id")


class Clock:
    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s


class Ledge:
    def __init__(self, store: Store, connection: Sql, dsn: str, clock: Clock, job: bytes) -> None:
        self.store, self.connection, self.dsn, self.clock, self.job = store, connection, dsn, clock, job
        self.registry = WorkerRegistry()
        self.unwritten = UnwrittenLeases(store, self.registry, lease_s=LEASE_S)

    async def beat(self) -> bool:
        try:
            return bool(await self.unwritten.extend([Renewal(self.job, 1, "w", None)]))
        except (UnavailableError, asyncpg.PostgresError):
            return False

    async def look(self) -> None:
        await self.unwritten.look(Backoff())

    async def progress_s(self) -> float:
        """How long no attempt may be reaped from now on; below zero: no limit was set."""
        until, now = await self.connection.fetchrow(  # type: ignore[misc] # pyright: ignore[reportGeneralTypeIssues]
            "SELECT nullif(wait_until, '-infinity'), clock_timestamp() FROM pulse.sweep_mark"
        )
        return -1.0 if until is None else (until - now) / timedelta(seconds=1)

    async def is_marked(self) -> bool:
        return await self.progress_s() >= 0

    async def is_told(self) -> bool:
        """Whether all sweeps wait for a lease."""
        await self.look()
        return LEASE_S - 5 < await self.progress_s() <= LEASE_S

    def locked(self, *statements: str) -> contextlib.AbstractAsyncContextManager[None]:
        return holding(self.dsn, "; ".join(statements))


ROW: Final = "SELECT FROM pulse.jobs FOR UPDATE"


@pytest.fixture
async def ledge(store: Store, connection: Sql, dsn: str, monkeypatch: Patch) -> Ledge:
    clock = Clock()
    monkeypatch.setattr(unwriting, "time", clock)
    monkeypatch.setattr(unwriting, "AGAIN_S", 0.0)
    until = datetime.now().astimezone() + timedelta(seconds=LEASE_S)
    job = await forge(connection, "RUNNING", locked_by="w", lease_until=until)
    return Ledge(store, connection, dsn, clock, job)


async def test_a_row_that_is_locked_for_a_moment(ledge: Ledge) -> None:
    async with ledge.locked(ROW):
        assert not await ledge.beat()
    assert not await ledge.is_told()


@pytest.mark.rest
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


@pytest.mark.parametrize("error", [UnavailableError("no answer within 10 s"), asyncpg.InternalServerError("odd")])
async def test_a_statement_that_takes_long(ledge: Ledge, monkeypatch: Patch, error: Exception) -> None:
    """Its time counts from its begin: the next one may come too late. Its error may be of any kind."""

    async def slow(*_: object) -> None:
        ledge.clock.ahead_s += LATE_S
        raise error

    monkeypatch.setattr(ledge.store, "extend", slow)
    await ledge.beat()
    assert await ledge.is_told()


async def test_a_lease_that_was_extended_in_between_begins_anew(ledge: Ledge) -> None:
    async with ledge.locked(ROW):
        await ledge.beat()
    assert await ledge.beat()
    ledge.clock.ahead_s += LATE_S
    async with ledge.locked(ROW):
        await ledge.beat()
    assert not await ledge.is_told()


async def test_what_failed_a_lease_ago_is_forgotten(ledge: Ledge) -> None:
    async with ledge.locked(ROW):
        await ledge.beat()
        ledge.clock.ahead_s += LEASE_S
        await ledge.beat()
    assert not await ledge.is_told()


async def test_a_report_that_waits(ledge: Ledge) -> None:
    """Its job has ended, so no beat covers it; but a reaped lease would run it again."""
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


@pytest.mark.rest
async def test_what_cannot_be_told_is_told_later(ledge: Ledge) -> None:
    """As soon as the row can be written; until then no mark can be made either."""
    async with ledge.locked(ROW, "LOCK TABLE pulse.sweep_mark IN ACCESS EXCLUSIVE MODE"):
        await ledge.beat()
        ledge.clock.ahead_s += LATE_S
        await ledge.beat()
        await ledge.look()
    assert await ledge.is_told()


async def test_it_is_told_at_once_and_again(ledge: Ledge, monkeypatch: Patch) -> None:
    """A heartbeat that fails too late marks at once; the log says so now and then."""
    monkeypatch.setattr(unwriting, "LOOK", 1000.0)
    with capture_logs() as logs:
        async with running(ledge.unwritten.run), ledge.locked(ROW):
            await ledge.beat()
            ledge.clock.ahead_s += LATE_S
            for _ in range(2):
                await ledge.beat()
                await until_async(ledge.is_marked, "it is told")
                await ledge.connection.execute("UPDATE pulse.sweep_mark SET wait_until = '-infinity'")
    entries = [entry for entry in logs if entry["event"] == "leases_doubted"]
    assert [(entry["heartbeats"], entry["reports"]) for entry in entries] == [(1, 0)]


async def test_reports_are_looked_at_by_themselves(ledge: Ledge, monkeypatch: Patch) -> None:
    monkeypatch.setattr(unwriting, "LOOK", 0.0001)
    ledge.registry.reporting.add((ledge.job, 1))
    await ledge.look()
    ledge.clock.ahead_s += LATE_S
    async with running(ledge.unwritten.run):
        await until_async(ledge.is_marked, "it is told")


# Merged statements: what keeps one row from being written keeps no other row from it.


async def never(row: Completion | Renewal, error: StatementError) -> None:
    raise AssertionError((row, error))


async def test_a_locked_row_waits_alone(store: Store, connection: Sql, dsn: str) -> None:
    ids = [await forge(connection, "RUNNING") for _ in range(5)]
    rows = [Completion(one, 1, WORKER, None) for one in ids]
    done: set[tuple[bytes, int]] = set()

    async def together(some: Sequence[Completion]) -> None:
        done.update(await store.complete(some))

    async with holding(dsn, "SELECT FROM pulse.jobs WHERE id = $1 FOR UPDATE", ids[2].hex()):
        locked = await write_merged(store, rows, together, never)
        assert locked == [UnwrittenRow(rows[2])]
        assert done == {(one, 1) for one in ids if one != ids[2]}
    assert await write_merged(store, [one.row for one in locked], together, never) == []
    assert [(await read(connection, one))["status"] for one in ids] == ["COMPLETED"] * 5


async def test_a_statement_that_takes_too_long_is_halved(store: Store, connection: Sql) -> None:
    ids = [await forge(connection, "RUNNING") for _ in range(6)]
    sizes: list[int] = []

    async def together(some: Sequence[Completion]) -> None:
        sizes.append(len(some))
        if len(some) > 2:
            raise StatementTimeoutError
        await store.complete(some)

    assert await write_merged(store, [Completion(one, 1, WORKER, None) for one in ids], together, never) == []
    assert sizes == [6, 3, 1, 2, 3, 1, 2]
    assert [(await read(connection, one))["status"] for one in ids] == ["COMPLETED"] * 6


async def test_one_row_that_takes_too_long_is_left(store: Store) -> None:
    row, tries = Completion(bytes(16), 1, WORKER, None), list[int]()

    async def together(some: Sequence[Completion]) -> None:
        tries.append(len(some))
        raise StatementTimeoutError

    assert await write_merged(store, [row], together, never) == [UnwrittenRow(row)]
    assert tries == [1]


def refusal(*, is_value: bool = False) -> StatementError:
    return StatementError("no", sqlstate="XX001", statement="complete_jobs", is_value=is_value)


async def test_what_is_refused_is_found(store: Store) -> None:
    """By halves, until it is alone; a value that cannot be stored is handled, all others are left with their reason."""
    rows = [Completion(bytes([place]) * 16, 1, WORKER, None) for place in range(16)]
    bad = {rows[3]: refusal(), rows[9]: refusal(is_value=True), rows[12]: refusal(is_value=True)}
    written: list[Completion] = []
    dealt_with: list[Completion] = []

    async def together(some: Sequence[Completion]) -> None:
        for one in some:
            if one in bad:
                raise bad[one]
        written.extend(some)

    async def alone(row: Completion, error: StatementError) -> None:
        assert error is bad[row]
        if row == rows[12]:
            raise refusal()
        dealt_with.append(row)

    left = await write_merged(store, rows, together, alone)
    assert sorted((one.row for one in left), key=BY_ID) == [rows[3], rows[12]]
    assert all(one.error is not None for one in left)
    assert (sorted(written, key=BY_ID), dealt_with) == ([one for one in rows if one not in bad], [rows[9]])


async def test_whatever_row_it_is(store: Store) -> None:
    """Where each single row is refused, and none was written, no row is to blame: all are tried later."""
    rows = [Completion(place.to_bytes(16), 1, WORKER, None) for place in range(1000)]
    tries: list[int] = []

    async def together(some: Sequence[Completion]) -> None:
        tries.append(len(some))
        raise refusal()

    with pytest.raises(StatementError, match="no"):
        await write_merged(store, rows, together, never)
    assert tries.count(1) == IN_VAIN
    assert len(tries) <= 3 * IN_VAIN


async def test_those_that_are_refused_stand_beside_each_other(store: Store) -> None:
    rows = [Completion(place.to_bytes(16), 1, WORKER, None) for place in range(100)]
    written: list[Completion] = []

    async def together(some: Sequence[Completion]) -> None:
        if not {*some}.isdisjoint(rows[:80]):
            raise refusal()
        written.extend(some)

    left = await write_merged(store, rows, together, never)
    assert sorted((one.row for one in left), key=BY_ID) == rows[:80]
    assert sorted(written, key=BY_ID) == rows[80:]


async def test_a_part_that_hears_away(store: Store) -> None:
    """Behind a refused part, "away" from a server that answered is a refusal, too; without an answer it is not."""
    rows = [Completion(place.to_bytes(16), 1, WORKER, None) for place in range(4)]
    causes: list[Exception] = [refusal(), told("terminating"), told("again")]

    async def together(some: Sequence[Completion]) -> None:
        if rows[0] in some and causes:
            cause = causes.pop(0)
            raise cause if isinstance(cause, StatementError) else UnavailableError("away") from cause

    left = await write_merged(store, rows, together, never)
    assert [(one.row, one.error and one.error.sqlstate) for one in left] == [(rows[0], "57P01")]
    causes = [UnavailableError("away"), told("terminating")]
    for _ in range(2):  # nothing was refused before
        with pytest.raises(UnavailableError, match="away"):
            await write_merged(store, rows, together, never)
    for unsaid in (OSError("gone"), told("closed", severity=None), told("starting", statement=None)):
        causes = [refusal(), unsaid]
        with pytest.raises(UnavailableError, match="away"):
            await write_merged(store, rows, together, never)


def told(
    reason: str, *, severity: str | None = "FATAL", statement: str | None = "complete_jobs"
) -> asyncpg.PostgresError:
    """A server's error of a statement, or of a connect; one of the driver has no severity."""
    error = asyncpg.AdminShutdownError(reason)
    vars(error).update({"severity": severity, **({"statement": statement} if statement else {})})
    return error


async def test_a_lock_is_told_from_an_outage(store: Store, connection: Sql, dsn: str) -> None:
    """A statement that waits too long for a lock raises StatementTimeoutError; a missing row counts as lockable."""
    job, gone = await forge(connection, "RUNNING"), b"\0" * 16
    async with holding(dsn, ROW):
        with pytest.raises(StatementTimeoutError, match="lock timeout"):
            await store.extend([Renewal(job, 1, WORKER, None)], LEASE_S)
        other = await forge(connection)
        assert await store.lockable([job, other, gone]) == {other, gone}
    assert await store.lockable([job, gone]) == {job, gone}
