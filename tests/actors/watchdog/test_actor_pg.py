"""What a sweep ends, and what it tells the dispatcher."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import pytest
import structlog
from structlog.testing import capture_logs

from pulse.errors import StatementTimeoutError, UnavailableError
from pulse.store.rows import Ended, Ending
from pulse.store.store import Store
from pulse.system import processes
from pulse.system.failure_log import FailureLog
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


def ready_in_1_s(reaped: int) -> tuple[Hint, ...]:
    return (Hint("dispatcher", "ready", {"delays_s": [1.0], "reaped": reaped}),)


async def ready(store: Store, *, sees_deaths: bool = True) -> Watchdog:
    await store.mark_sweep(15.0, 30.0)
    made = unprimed(store, sees_deaths=sees_deaths)
    await made.prime(boot=True)
    return made


def unprimed(store: Store, *, sees_deaths: bool = True) -> Watchdog:
    guard = SweepGuard(lease_s=30.0, heartbeat_s=10.0, sweep_s=SWEEP_S)
    return Watchdog(store, HOST, SWEEP_S, guard, failures=FailureLog(structlog.get_logger()), sees_deaths=sees_deaths)


@pytest.fixture
async def watchdog(store: Store) -> Watchdog:
    return await ready(store)


async def turn(watchdog: Watchdog) -> TurnResult:
    return await watchdog.turn(Turn(time.monotonic()))


async def test_a_lapsed_lease_is_ended(watchdog: Watchdog, connection: Sql) -> None:
    lapsed = await forge(connection, "RUNNING", lease_until=LAPSED)
    assert await turn(watchdog) == TurnResult(SWEEP_S, ready_in_1_s(1))
    row = await read(connection, lapsed)
    assert (row["status"], row["last_error"], row["locked_by"]) == ("RETRYING", "worker lease expired", None)
    assert (row["attempts"], row["uncharged"]) == (1, 0)


async def test_a_long_sweep_is_cut_into_turns(watchdog: Watchdog, connection: Sql, monkeypatch: Patch) -> None:
    """A turn that has lasted long enough ends with work left, and the next one follows at once."""
    monkeypatch.setattr(watching, "SWEEP_LIMIT", 3)
    monkeypatch.setattr(watching, "TURN_S", -1.0)
    for _ in range(4):
        await forge(connection, "RUNNING", lease_until=LAPSED)
    assert await turn(watchdog) == TurnResult(0.0, ready_in_1_s(3))
    assert await turn(watchdog) == TurnResult(SWEEP_S, ready_in_1_s(1))
    assert await turn(watchdog) == TurnResult(SWEEP_S)


async def test_a_watchdog_says_that_its_host_is_here(watchdog: Watchdog, connection: Sql) -> None:
    first = await connection.fetchval("SELECT seen_at FROM pulse.hosts WHERE host = 'here'")
    await turn(watchdog)
    assert await connection.fetchval("SELECT seen_at FROM pulse.hosts") > first


async def test_what_a_living_process_of_this_host_holds_is_spared(
    watchdog: Watchdog, store: Store, connection: Sql, monkeypatch: Patch
) -> None:
    """The dispatcher can kill its process first; others have only their leases."""
    monkeypatch.setattr(watching, "SWEEP_LIMIT", 2)
    peer = Peer(os.getpid(), os.getuid(), 0, processes.start_time(os.getpid()), HOST.pidns)
    living = compose(HOST, peer, "w")
    others = [
        compose(HOST, replace(peer, start_time=1), "w"),  # a process that had this pid before
        compose(replace(HOST, boot="another"), peer, "w"),
        compose(replace(HOST, id="another"), peer, "w"),
        compose(HOST, replace(peer, pidns=1), "w"),
        "something else",
    ]
    spared = [await forge(connection, "RUNNING", lease_until=LAPSED, locked_by=living) for _ in range(3)]
    lapsed = [await forge(connection, "RUNNING", lease_until=LAPSED, locked_by=other) for other in others]
    told = (await turn(watchdog)).hints
    assert [hint for hint in told if hint.event == "lapsed"] == [Hint("dispatcher", "lapsed", {"workers": [living]})]
    assert [(await read(connection, one))["status"] for one in spared] == ["RUNNING"] * 3
    assert [(await read(connection, one))["status"] for one in lapsed] == ["RETRYING"] * 5
    await turn(await ready(store, sees_deaths=False))
    assert [(await read(connection, one))["status"] for one in spared] == ["RETRYING"] * 3


async def test_after_a_gap_nobody_is_reaped(watchdog: Watchdog, store: Store, connection: Sql) -> None:
    """After a long time without sweeps, beats may have been impossible, too; the log says so once."""
    lapsed = await forge(connection, "RUNNING", lease_until=LAPSED)
    await connection.execute("UPDATE pulse.sweep_mark SET swept_at = clock_timestamp() - interval '20 s'")
    with capture_logs() as logs:
        for _ in range(2):
            assert await turn(watchdog) == TurnResult(SWEEP_S)
    (entry,) = [one for one in logs if one["event"] == "sweeps_wait"]
    assert entry["reason"].startswith("the last sweep was 20.")
    assert entry["log_level"] == "warning"
    await turn(await ready(store))  # started anew, or on another host: its own sweeps show no gap
    assert (await read(connection, lapsed))["status"] == "RUNNING"
    await connection.execute("UPDATE pulse.sweep_mark SET wait_until = clock_timestamp()")
    await turn(await ready(store))
    assert (await read(connection, lapsed))["status"] == "RETRYING"


async def test_a_start_after_a_gap_is_no_warning(store: Store, connection: Sql) -> None:
    """Nobody swept while the server was stopped."""
    await store.mark_sweep(15.0, 30.0)
    await connection.execute("UPDATE pulse.sweep_mark SET swept_at = clock_timestamp() - interval '20 s'")
    with capture_logs() as logs:
        await unprimed(store).prime(boot=True)
    assert [(one["event"], one["log_level"]) for one in logs] == [("sweeps_wait", "info")]


async def test_a_dead_letter_wakes_nobody_later(watchdog: Watchdog, connection: Sql) -> None:
    await forge(connection, "RUNNING", lease_until=LAPSED, max_attempts=1)
    assert (await turn(watchdog)).hints == (Hint("dispatcher", "ready", {"delays_s": [], "reaped": 1}),)


async def test_a_row_that_somebody_has_locked_is_left_to_the_next_sweep(
    watchdog: Watchdog, connection: Sql, dsn: str, monkeypatch: Patch
) -> None:
    """Locked rows that fill a statement are no reason to repeat it."""
    monkeypatch.setattr(watching, "SWEEP_LIMIT", 1)
    locked = await forge(connection, "RUNNING", lease_until=LAPSED)
    async with holding(dsn, "SELECT FROM pulse.jobs WHERE id = $1 FOR UPDATE", locked.hex()):
        assert await turn(watchdog) == TurnResult(SWEEP_S)
    await turn(watchdog)
    assert (await read(connection, locked))["status"] == "RETRYING"


async def test_a_full_statement_that_was_the_last_one(
    watchdog: Watchdog, store: Store, connection: Sql, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(watching, "SWEEP_LIMIT", 3)
    asked: list[int] = []
    lapsed = store.lapsed

    async def counted(limit: int, *, spared: list[str], now: datetime) -> object:
        asked.append(limit)
        return await lapsed(limit, spared=spared, now=now)

    monkeypatch.setattr(store, "lapsed", counted)
    for _ in range(4):
        await forge(connection, "RUNNING", lease_until=LAPSED)
    assert (await turn(watchdog)).hints == ready_in_1_s(4)
    assert asked == [3, 3]


async def test_no_sweep_begins_while_nobody_can_beat(watchdog: Watchdog, connection: Sql, dsn: str) -> None:
    """CREATE INDEX allows reads and blocks beats: a mark would say that leases are current."""
    before = await connection.fetchval("SELECT swept_at FROM pulse.sweep_mark")
    async with holding(dsn, "LOCK TABLE pulse.jobs IN SHARE MODE"):
        with pytest.raises(StatementTimeoutError, match="lock timeout"):
            await turn(watchdog)
    assert await connection.fetchval("SELECT swept_at FROM pulse.sweep_mark") == before
    await turn(watchdog)
    assert await connection.fetchval("SELECT swept_at FROM pulse.sweep_mark") > before


async def test_what_somebody_doubts_is_not_reaped(watchdog: Watchdog, store: Store, connection: Sql) -> None:
    """On any host: a dispatcher that cannot write heartbeats stops every sweep."""
    lapsed = await forge(connection, "RUNNING", lease_until=LAPSED)
    await store.doubt_leases(30.0)
    await turn(watchdog)
    assert (await read(connection, lapsed))["status"] == "RUNNING"


async def test_a_sweep_that_does_not_wait_says_nothing(watchdog: Watchdog) -> None:
    with capture_logs() as logs:
        assert await turn(watchdog) == TurnResult(SWEEP_S)
    assert logs == []


async def test_what_was_ended_is_logged_though_the_answer_was_lost(
    watchdog: Watchdog, store: Store, connection: Sql, monkeypatch: Patch
) -> None:
    end = Store.end

    async def lose(self: Store, some: Sequence[Ending], **options: Any) -> list[Ended]:
        await end(self, some, **options)
        raise UnavailableError("the connection is gone")

    dead = await forge(connection, "RUNNING", lease_until=LAPSED, max_attempts=1)
    with capture_logs() as logged:
        with monkeypatch.context() as losing:
            losing.setattr(Store, "end", lose)
            with pytest.raises(UnavailableError):
                await turn(watchdog)
        assert [line["event"] for line in logged] == []
        await turn(watchdog)
        await turn(watchdog)
    (line,) = [line for line in logged if line["event"] == "job_dead_lettered"]
    assert (line["id"], line["outcome"]) == (str(UUID(bytes=dead)), "lease_expired")
