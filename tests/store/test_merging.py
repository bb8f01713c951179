"""Merged statements: what keeps one row from being written keeps no other row from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import asyncpg
import pytest

from pulse.errors import StatementError, StatementTimeoutError, UnavailableError
from pulse.store.failures import IN_VAIN
from pulse.store.rows import Completion, Renewal
from pulse.store.store import Store
from pulse_actors.shared.row_writes import UnwrittenRow, write_merged
from tests.store.helpers import LEASE_S, NOW, TOPIC, WORKER, forge, read

if TYPE_CHECKING:
    from asyncpg import Connection, Record

pytestmark = [pytest.mark.anyio, pytest.mark.postgres, pytest.mark.heavy]


async def never(row: Completion | Renewal, error: StatementError) -> None:
    """No row of these tests is bad."""
    raise AssertionError((row, error))


async def test_a_locked_row_waits_alone(store: Store, connection: Connection[Record], dsn: str) -> None:
    """While somebody holds a lock on one job, the others of the same statement are completed without it."""
    ids = [await forge(connection, "RUNNING") for _ in range(5)]
    rows = [Completion(one, 1, WORKER, None) for one in ids]
    done: set[tuple[bytes, int]] = set()

    async def together(some: Sequence[Completion]) -> None:
        done.update(await store.complete(some))

    stranger = await asyncpg.connect(dsn)
    try:
        async with stranger.transaction():
            await stranger.execute("SELECT FROM pulse.jobs WHERE id = encode($1, 'hex')::uuid FOR UPDATE", ids[2])
            locked = await write_merged(store, rows, together, never)
            assert locked == [UnwrittenRow(rows[2])]
            assert done == {(one, 1) for one in ids if one != ids[2]}
        assert await write_merged(store, [one.row for one in locked], together, never) == []
    finally:
        await stranger.close()
    assert [(await read(connection, one))["status"] for one in ids] == ["COMPLETED"] * 5


async def test_a_locked_row_does_not_stop_heartbeats(store: Store, connection: Connection[Record], dsn: str) -> None:
    """The leases of the other jobs are extended, and the locked one is told from a lost one."""
    ids = [await forge(connection, "RUNNING") for _ in range(3)]
    extended: set[tuple[bytes, int]] = set()

    async def together(some: Sequence[Renewal]) -> None:
        extended.update(await store.extend(some, LEASE_S))

    stranger = await asyncpg.connect(dsn)
    try:
        async with stranger.transaction():
            await stranger.execute("SELECT FROM pulse.jobs WHERE id = encode($1, 'hex')::uuid FOR UPDATE", ids[0])
            locked = await write_merged(store, [Renewal(one, 1, WORKER, None) for one in ids], together, never)
    finally:
        await stranger.close()
    assert [one.row.id for one in locked] == [ids[0]]
    assert extended == {(ids[1], 1), (ids[2], 1)}


async def test_a_statement_that_takes_too_long_is_halved(store: Store, connection: Connection[Record]) -> None:
    """Where no row is locked, a statement over its time is written in parts."""
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


def refusal(*, is_value: bool = False) -> StatementError:
    """What the database says of one row."""
    return StatementError("no", sqlstate="XX001", statement="complete_jobs", is_value=is_value)


async def test_what_is_refused_is_found(store: Store) -> None:
    """By halves, until it is alone; a value that cannot be stored is dealt with, all else is left with its reason."""
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
    assert sorted(one.row for one in left) == [rows[3], rows[12]]
    assert all(one.error is not None for one in left)
    assert (sorted(written), dealt_with) == ([one for one in rows if one not in bad], [rows[9]])


async def test_whatever_row_it_is(store: Store) -> None:
    """Where each row by itself is refused, and none was written, it is not about rows: the whole is tried later."""
    rows = [Completion(place.to_bytes(16), 1, WORKER, None) for place in range(1000)]
    tries: list[int] = []

    async def together(some: Sequence[Completion]) -> None:
        tries.append(len(some))
        raise refusal()

    with pytest.raises(StatementError):
        await write_merged(store, rows, together, never)
    assert tries.count(1) == IN_VAIN
    assert len(tries) <= 3 * IN_VAIN


async def test_those_that_are_refused_stand_beside_each_other(store: Store) -> None:
    """However many they are, and wherever: the others are written."""
    rows = [Completion(place.to_bytes(16), 1, WORKER, None) for place in range(100)]
    written: list[Completion] = []

    async def together(some: Sequence[Completion]) -> None:
        if not {*some}.isdisjoint(rows[:80]):
            raise refusal()
        written.extend(some)

    left = await write_merged(store, rows, together, never)
    assert sorted(one.row for one in left) == rows[:80]
    assert sorted(written) == rows[80:]


async def test_a_part_that_hears_away(store: Store) -> None:
    """Where a part was refused, "away" from a server that answered is a refusal, too; without an answer it is not."""
    rows = [Completion(place.to_bytes(16), 1, WORKER, None) for place in range(4)]
    causes: list[Exception] = [
        refusal(),
        told("terminating"),
        told("again"),
    ]

    async def together(some: Sequence[Completion]) -> None:
        if rows[0] in some and causes:
            cause = causes.pop(0)
            raise cause if isinstance(cause, StatementError) else UnavailableError("away") from cause

    left = await write_merged(store, rows, together, never)
    assert [(one.row, one.error and one.error.sqlstate) for one in left] == [(rows[0], "57P01")]
    causes = [UnavailableError("away"), told("terminating")]
    for _ in range(2):  # nothing was refused before
        with pytest.raises(UnavailableError):
            await write_merged(store, rows, together, never)
    for unsaid in (OSError("gone"), told("closed", severity=None), told("starting", statement=None)):
        causes = [refusal(), unsaid]
        with pytest.raises(UnavailableError):
            await write_merged(store, rows, together, never)


def told(
    reason: str, *, severity: str | None = "FATAL", statement: str | None = "complete_jobs"
) -> asyncpg.PostgresError:
    """What the server says of a statement, or when it is connected to; what the driver says itself has no severity."""
    error = asyncpg.AdminShutdownError(reason)
    vars(error).update({"severity": severity, **({"statement": statement} if statement else {})})
    return error


async def test_a_lock_is_told_from_an_outage(store: Store, connection: Connection[Record], dsn: str) -> None:
    """A statement that waits too long for a lock raises ContestedError; a row that is gone counts as lockable."""
    job, gone = await forge(connection, "RUNNING"), b"\0" * 16
    stranger = await asyncpg.connect(dsn)
    try:
        async with stranger.transaction():
            await stranger.execute("SELECT FROM pulse.jobs FOR UPDATE")
            with pytest.raises(StatementTimeoutError):
                await store.extend([Renewal(job, 1, WORKER, None)], LEASE_S)
            assert await store.lockable([job, gone]) == {gone}
        assert await store.lockable([job, gone]) == {job, gone}
    finally:
        await stranger.close()


async def test_a_claim_ends_after_so_many_bytes(store: Store, connection: Connection[Record]) -> None:
    """Jobs with long args are claimed a few at a time, small ones in full batches; the first always."""
    for number in range(6):
        await forge(connection, args='{"pad": "%s"}' % ("x" * 3_000_000), priority=number)
    assert len(await store.claim([TOPIC], [WORKER], [0] * 6, LEASE_S, now=NOW)) == 3
    for _ in range(60):
        await forge(connection, priority=50)
    assert len(await store.claim([TOPIC], [WORKER], [0] * 60, LEASE_S, now=NOW)) == 60
