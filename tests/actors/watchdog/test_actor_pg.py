"""What a sweep tells the dispatcher, where it ends, and what it says of itself."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from structlog.testing import capture_logs

from pulse.errors import StatementTimeoutError
from pulse.store.store import Store
from pulse.system import processes
from pulse_actors.runtime.actor import Turn, TurnResult
from pulse_actors.runtime.bus import Hint
from pulse_actors.shared.identity import Peer, compose, this_host
from pulse_actors.watchdog import actor as watching
from pulse_actors.watchdog.actor import Watchdog
from pulse_actors.watchdog.sweep_guard import SweepGuard
from tests.support.store.helpers import Patch, Sql, forge, holding, read

pytestmark = pytest.mark.heavy

SWEEP_S: Final = 10.0
HOST: Final = this_host("here")
LAPSED: Final = datetime.now(UTC) - timedelta(seconds=1)


@pytest.fixture
async def watchdog(store: Store) -> Watchdog:
    await store.mark_sweep(15.0, 30.0)
    made = Watchdog(store, HOST, SWEEP_S, SweepGuard(lease_s=30.0, heartbeat_s=10.0, sweep_s=SWEEP_S), sees_deaths=True)
    await made.prime(boot=True)
    return made


async def turn(watchdog: Watchdog) -> TurnResult:
    return await watchdog.turn(Turn(time.monotonic()))


async def test_the_dispatcher_is_told_whom_the_sweep_has_spared(watchdog: Watchdog, connection: Sql) -> None:
    """It looks after the processes of this host; who let a lease lapse is named to it, once each."""
    pid = os.getpid()
    living = compose(HOST, Peer(pid, 0, 0, processes.start_time(pid), HOST.pidns), "w")
    for _ in range(2):
        await forge(connection, "RUNNING", lease_until=LAPSED, locked_by=living)
    assert (await turn(watchdog)).hints == (Hint("dispatcher", "lapsed", {"workers": [living]}),)


async def test_a_dead_letter_wakes_nobody_later(watchdog: Watchdog, connection: Sql) -> None:
    await forge(connection, "RUNNING", lease_until=LAPSED, max_attempts=1)
    assert (await turn(watchdog)).hints == (Hint("dispatcher", "ready", {"delays_s": [], "reaped": 1}),)


async def test_a_row_that_somebody_has_locked_is_left_to_the_next_sweep(
    watchdog: Watchdog, connection: Sql, dsn: str, monkeypatch: Patch
) -> None:
    """A full statement of rows that cannot be ended now is no reason to repeat it."""
    monkeypatch.setattr(watching, "SWEEP_LIMIT", 1)
    locked = await forge(connection, "RUNNING", lease_until=LAPSED)
    async with holding(dsn, "SELECT FROM pulse.jobs WHERE id = $1 FOR UPDATE", locked.hex()):
        assert await turn(watchdog) == TurnResult(SWEEP_S)
    await turn(watchdog)
    assert (await read(connection, locked))["status"] == "RETRYING"


async def test_a_full_statement_that_was_the_last_one(
    watchdog: Watchdog, store: Store, connection: Sql, monkeypatch: Patch
) -> None:
    """As many statements as bring rows, and one more only where the last one was full."""
    monkeypatch.setattr(watching, "SWEEP_LIMIT", 3)
    asked: list[int] = []
    lapsed = store.lapsed

    async def counted(limit: int, *, spared: list[str], now: datetime) -> object:
        asked.append(limit)
        return await lapsed(limit, spared=spared, now=now)

    monkeypatch.setattr(store, "lapsed", counted)
    for _ in range(4):
        await forge(connection, "RUNNING", lease_until=LAPSED)
    await turn(watchdog)
    assert asked == [3, 3]


async def test_a_sweep_that_waits_says_why(watchdog: Watchdog, connection: Sql) -> None:
    await connection.execute("UPDATE pulse.sweep_mark SET swept_at = clock_timestamp() - interval '20 s'")
    with capture_logs() as logs:
        await turn(watchdog)
    (entry,) = [one for one in logs if one["event"] == "sweeps_wait"]
    assert entry["reason"].startswith("the last sweep was 20.")


async def test_no_sweep_begins_while_nobody_can_beat(watchdog: Watchdog, connection: Sql, dsn: str) -> None:
    """CREATE INDEX lets everybody read and nobody extend a lease: a mark would say that somebody could."""
    before = await connection.fetchval("SELECT swept_at FROM pulse.sweep_mark")
    async with holding(dsn, "LOCK TABLE pulse.jobs IN SHARE MODE"):
        with pytest.raises(StatementTimeoutError, match="lock timeout"):
            await turn(watchdog)
    assert await connection.fetchval("SELECT swept_at FROM pulse.sweep_mark") == before
    await turn(watchdog)
    assert await connection.fetchval("SELECT swept_at FROM pulse.sweep_mark") > before


async def test_what_somebody_doubts_is_not_reaped(watchdog: Watchdog, store: Store, connection: Sql) -> None:
    """On whatever host: a dispatcher that cannot write heartbeats keeps every sweep from believing leases."""
    lapsed = await forge(connection, "RUNNING", lease_until=LAPSED)
    await store.doubt_leases(30.0)
    await turn(watchdog)
    assert (await read(connection, lapsed))["status"] == "RUNNING"


async def test_a_sweep_that_does_not_wait_says_nothing(watchdog: Watchdog) -> None:
    with capture_logs() as logs:
        assert await turn(watchdog) == TurnResult(SWEEP_S)
    assert logs == []
