"""The turns of watchdog, scheduler and pause, called by hand on a real database."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from unittest.mock import AsyncMock, patch

import anyio
import pytest
from anyio.abc import SocketStream

from pulse.common.ids import uuid7
from pulse.config import Settings
from pulse.errors import ConfigError, UnavailableError
from pulse.protocol.bus import HintEvent
from pulse.store.connections.pool import Target
from pulse.store.failures import IN_VAIN
from pulse.store.rows import NewSchedule
from pulse.store.store import Store
from pulse.system import processes
from pulse_actors.pause import REFRESH_S, Pause
from pulse_actors.runtime.actor import Actor, Runtime, Turn, TurnResult
from pulse_actors.runtime.bus import Bus, Hint
from pulse_actors.scheduler import actor as scheduling
from pulse_actors.scheduler.actor import LOOK_S, Scheduler
from pulse_actors.shared.identity import Host, Peer, compose, this_host
from pulse_actors.watchdog import actor as watching
from pulse_actors.watchdog.actor import Watchdog
from pulse_actors.watchdog.sweep_guard import SweepGuard
from tests.support.confidential import confidential
from tests.support.store.helpers import Patch, Sql, count, forge, found_of, history, read

pytestmark = pytest.mark.heavy

SECRET: Final = confidential("s3cret-word", "password of a DSN")
SWEEP_S: Final = 10.0
HOST: Final = Host("here", "boot", 1)
POLICIES: Final = Hint("dispatcher", "policies changed")
READY: Final = (Hint("dispatcher", "ready"),)


def ready_in_1_s(reaped: int) -> tuple[Hint, ...]:
    return (Hint("dispatcher", "ready", {"delays_s": [1.0], "reaped": reaped}),)


def ago(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


async def turn(actor: Actor) -> TurnResult:
    return await actor.turn(Turn(time.monotonic()))


def new_watchdog(store: Store, host: Host = HOST, *, sees_deaths: bool = True) -> Watchdog:
    guard = SweepGuard(lease_s=30.0, heartbeat_s=10.0, sweep_s=SWEEP_S)
    return Watchdog(store, host, SWEEP_S, guard, sees_deaths=sees_deaths)


async def watchdog(store: Store, host: Host = HOST, *, sees_deaths: bool = True) -> Watchdog:
    """One that is ready to sweep: the sweep before its first is just over."""
    await store.mark_sweep(15.0, 30.0)
    actor = new_watchdog(store, host, sees_deaths=sees_deaths)
    await actor.prime(boot=True)
    return actor


async def schedule(store: Store, **fields: Any) -> bytes:
    """A schedule that became due a second ago; its id."""
    cursor = fields.pop("next_run_at", ago(1))
    new = {"id": uuid7().bytes, "name": "n", "kind": "every", "args": '{"a": 1}', "every_s": 3600.0, **fields}
    assert await store.schedules.create(NewSchedule(next_run_at=cursor, **new))
    identity: bytes = new["id"]
    return identity


async def cursor_of(connection: Sql, identity: bytes) -> datetime | None:
    found: datetime | None = await connection.fetchval(
        "SELECT next_run_at FROM pulse.schedules WHERE id = $1", identity.hex()
    )
    return found


async def test_a_lapsed_lease_is_ended_through_the_retry_path(store: Store, connection: Sql) -> None:
    lapsed = await forge(connection, "RUNNING", lease_until=ago(0.1))
    assert await turn(await watchdog(store)) == TurnResult(SWEEP_S, ready_in_1_s(1))
    row = await read(connection, lapsed)
    assert (row["status"], row["last_error"], row["attempts"], row["uncharged"]) == (
        "RETRYING",
        "worker lease expired",
        1,
        0,
    )
    assert row["locked_by"] is None
    assert [(one["outcome"], one["error"]) for one in await history(connection, lapsed)] == [
        ("lease_expired", "worker lease expired")
    ]


async def test_more_than_one_statement_can_take(store: Store, connection: Sql, monkeypatch: Patch) -> None:
    monkeypatch.setattr(watching, "SWEEP_LIMIT", 3)
    for _ in range(10):
        await forge(connection, "RUNNING", lease_until=ago(1))
    held = await forge(connection, "RUNNING", lease_until=ago(-30))
    assert await turn(await watchdog(store)) == TurnResult(SWEEP_S, ready_in_1_s(10))
    assert await connection.fetchval("SELECT count(*) FROM pulse.jobs WHERE status = 'RETRYING'") == 10
    assert (await read(connection, held))["status"] == "RUNNING"


async def test_a_long_sweep_is_cut_into_turns(store: Store, connection: Sql, monkeypatch: Patch) -> None:
    """A turn that has lasted long enough ends with work left, and the next one follows at once."""
    monkeypatch.setattr(watching, "SWEEP_LIMIT", 3)
    monkeypatch.setattr(watching, "TURN_S", -1.0)
    for _ in range(4):
        await forge(connection, "RUNNING", lease_until=ago(1))
    actor = await watchdog(store)
    assert await turn(actor) == TurnResult(0.0, ready_in_1_s(3))
    assert await turn(actor) == TurnResult(SWEEP_S, ready_in_1_s(1))
    assert await turn(actor) == TurnResult(SWEEP_S)


async def test_a_watchdog_says_that_its_host_is_here(store: Store, connection: Sql) -> None:
    actor = await watchdog(store)
    first = await connection.fetchval("SELECT seen_at FROM pulse.hosts WHERE (host, boot, pidns) = ('here', 'boot', 1)")
    await turn(actor)
    assert await connection.fetchval("SELECT seen_at FROM pulse.hosts") > first


async def test_what_a_living_process_of_this_host_holds_is_spared(
    store: Store, connection: Sql, monkeypatch: Patch
) -> None:
    """Its process can be killed first, and that is not the watchdog's part; of all others only the lease is known."""
    monkeypatch.setattr(watching, "SWEEP_LIMIT", 2)
    host = this_host(None)
    peer = Peer(os.getpid(), os.getuid(), 0, processes.start_time(os.getpid()), host.pidns)
    living = compose(host, peer, "w")
    others = [
        compose(host, replace(peer, start_time=1), "w"),  # a process that had this pid before
        compose(replace(host, boot="another"), peer, "w"),
        compose(replace(host, id="another"), peer, "w"),
        compose(host, replace(peer, pidns=1), "w"),
        "something else",
    ]
    spared = [await forge(connection, "RUNNING", lease_until=ago(9), locked_by=living) for _ in range(3)]
    lapsed = [await forge(connection, "RUNNING", lease_until=ago(1), locked_by=other) for other in others]
    await turn(await watchdog(store, host))
    assert [(await read(connection, one))["status"] for one in spared] == ["RUNNING"] * 3
    assert [(await read(connection, one))["status"] for one in lapsed] == ["RETRYING"] * 5
    await turn(await watchdog(store, host, sees_deaths=False))
    assert [(await read(connection, one))["status"] for one in spared] == ["RETRYING"] * 3


async def test_after_a_gap_nobody_is_reaped(store: Store, connection: Sql) -> None:
    """Where nobody has swept for long, nobody may have been able to beat either."""
    actor = await watchdog(store)
    lapsed = await forge(connection, "RUNNING", lease_until=ago(1))
    await connection.execute("UPDATE pulse.sweep_mark SET swept_at = clock_timestamp() - interval '20 s'")
    for _ in range(2):
        assert await turn(actor) == TurnResult(SWEEP_S)
    await turn(await watchdog(store))  # started anew, or on another host: its own sweeps show no gap
    assert (await read(connection, lapsed))["status"] == "RUNNING"
    await connection.execute("UPDATE pulse.sweep_mark SET wait_until = clock_timestamp()")
    await turn(await watchdog(store))
    assert (await read(connection, lapsed))["status"] == "RETRYING"


async def test_the_scheduler_sleeps_to_the_next_due_time(store: Store) -> None:
    await schedule(store, next_run_at=ago(-0.5))
    result = await turn(Scheduler(store))
    assert result.hints == ()
    assert 0 < result.next_s <= 0.5


async def test_more_schedules_than_one_statement_can_fire(store: Store, connection: Sql, monkeypatch: Patch) -> None:
    monkeypatch.setattr(scheduling, "FIRE_LIMIT", 3)
    for _ in range(10):
        await schedule(store)
    await turn(Scheduler(store))
    assert await count(connection) == 10


async def test_long_firing_is_cut_into_turns(store: Store, connection: Sql, monkeypatch: Patch) -> None:
    monkeypatch.setattr(scheduling, "FIRE_LIMIT", 3)
    for _ in range(4):
        await schedule(store)
    actor = Scheduler(store)
    clock = iter([0.0, scheduling.TURN_S + 0.1])
    monkeypatch.setattr(scheduling, "monotonic", lambda: next(clock))
    result = await actor.turn(Turn(0.0))
    assert await count(connection) == 3
    assert result.next_s < 0.1
    monkeypatch.undo()
    await turn(actor)
    assert await count(connection) == 4


@pytest.mark.parametrize(("cron", "zone"), [("a b c d e", "UTC"), ("* * * * *", "Mars/Base")])
@pytest.mark.parametrize("seconds", [2, -60])
async def test_a_schedule_that_cannot_be_followed_stops_nobody_else(
    store: Store, connection: Sql, monkeypatch: Patch, cron: str, zone: str, seconds: int
) -> None:
    """A rule that SQL or a lost time zone made impossible waits as it is and says why; the others fire."""
    monkeypatch.setattr(scheduling, "FIRE_LIMIT", 1)
    cursor = ago(seconds)
    stuck = await schedule(store, kind="cron", every_s=None, cron=cron, timezone=zone, next_run_at=cursor)
    await schedule(store, next_run_at=ago(1))
    actor = Scheduler(store)
    assert await turn(actor) == TurnResult(LOOK_S, READY)
    assert await count(connection) == 1
    assert await cursor_of(connection, stuck) == cursor
    found = found_of(await store.schedules.get(stuck))
    assert str(found["error"]).startswith("timezone is" if zone != "UTC" else "cron is")
    await connection.execute("UPDATE pulse.schedules SET cron = '0 0 * * *', timezone = 'UTC' WHERE error IS NOT NULL")
    await actor.prime(boot=False)
    await turn(actor)
    assert await count(connection) == 1 + (seconds > 0)


async def refuse_topic(connection: Sql) -> None:
    await connection.execute(
        """
        CREATE FUNCTION mine_refuse() RETURNS trigger LANGUAGE plpgsql AS $body$
        BEGIN IF new.topic = 'bad' THEN RAISE EXCEPTION 'not with me'; END IF; RETURN new; END $body$;
        CREATE TRIGGER mine BEFORE INSERT ON pulse.jobs FOR EACH ROW EXECUTE FUNCTION mine_refuse()"""
    )


async def heal_topic(connection: Sql) -> None:
    await connection.execute("DROP FUNCTION IF EXISTS mine_refuse CASCADE")


async def due_of(connection: Sql) -> dict[str, int]:
    rows = await connection.fetch("SELECT topic, count(*) FROM pulse.schedules WHERE due_at <= now() GROUP BY topic")
    return {row["topic"]: row["count"] for row in rows}


@pytest.mark.parametrize("limit", [500, 3])
async def test_schedules_that_are_refused_stop_no_others(
    store: Store, connection: Sql, monkeypatch: Patch, limit: int
) -> None:
    """However many they are, and for how long; each of them has its turn again, and fires when it can."""
    monkeypatch.setattr(scheduling, "FIRE_LIMIT", limit)
    for _ in range(2 * IN_VAIN + 1):
        await schedule(store, topic="bad", next_run_at=ago(10))
    await schedule(store, topic="good")
    actor = Scheduler(store)
    await refuse_topic(connection)
    try:
        turns = [await turn(actor) for _ in range(2 * IN_VAIN)]
        assert turns.count(TurnResult(LOOK_S, READY)) == 1
        assert turns.count(TurnResult(LOOK_S)) == len(turns) - 1
        assert await due_of(connection) == {"bad": 2 * IN_VAIN + 1}
        await schedule(store, topic="good")
        assert await turn(actor) == TurnResult(LOOK_S, READY)  # the others are known by now
        last = await connection.fetchval("SELECT id FROM pulse.schedules WHERE topic = 'bad' ORDER BY id DESC LIMIT 1")
        await connection.execute("UPDATE pulse.schedules SET topic = 'good' WHERE id = $1", last)
        for _ in range(2 * IN_VAIN + 1):
            await turn(actor)
        assert await due_of(connection) == {"bad": 2 * IN_VAIN}
    finally:
        await heal_topic(connection)
    assert await turn(actor) == TurnResult(LOOK_S, READY)
    assert await due_of(connection) == {}


async def test_few_are_tried_where_each_is_refused(store: Store, connection: Sql) -> None:
    """It may be about none of them, and each try is an error in the database's log."""
    for _ in range(10 * IN_VAIN):
        await schedule(store, topic="bad")
    fire = AsyncMock(wraps=store.schedules.fire)
    await refuse_topic(connection)
    try:
        with patch.object(store.schedules, "fire", fire):
            await turn(Scheduler(store))
    finally:
        await heal_topic(connection)
    assert [len(call.args[0]) for call in fire.await_args_list].count(1) == IN_VAIN


async def test_what_is_refused_keeps_nobody_from_being_reckoned(store: Store, connection: Sql) -> None:
    await schedule(store, topic="bad")
    new = await connection.fetchval("SELECT pulse.create_schedule(name => 'n', cron => '0 0 * * *')")
    await refuse_topic(connection)
    try:
        await turn(Scheduler(store))
    finally:
        await heal_topic(connection)
    assert await cursor_of(connection, new.bytes) is not None


async def test_the_gate_is_told_when_it_changes(store: Store) -> None:
    """The dispatcher hears of a pause and of a resume, of each topic and of the whole, once each."""
    actor = Pause(store)
    await actor.prime(boot=True)
    quiet, told = TurnResult(REFRESH_S), TurnResult(REFRESH_S, (Hint("dispatcher", "gate changed"),))
    await turn(actor)
    assert await turn(actor) == quiet
    for topic in ("", "t"):
        await store.gate.pause(topic, "why")
        assert await turn(actor) == told
        assert await turn(actor) == quiet
    for topic in ("", "t"):
        await store.gate.resume(topic)
        assert await turn(actor) == told
        assert await turn(actor) == quiet


async def test_what_others_tell_of_work_is_passed_on(store: Store, monkeypatch: Patch) -> None:
    """At once, and without a look at the gate, which is read once a second however much is told."""
    actor = Pause(store)
    await actor.prime(boot=True)
    reads: list[float] = []
    look = store.gate.look

    async def counted() -> tuple[dict[str, object], float | None]:
        reads.append(time.monotonic())
        return await look()

    monkeypatch.setattr(store.gate, "look", counted)
    told, passed = Hint("pause", HintEvent.WORK, {"from": "x"}), Hint("dispatcher", HintEvent.WORK, {"from": "x"})
    await store.gate.pause("t", "why")
    turns = [
        await actor.turn(Turn(now_s, inbox))
        for now_s, inbox in (
            (10.0, (told,)),
            (10.25, (told, told)),
            (10.5, (told, Hint("pause", "gate changed"))),
            (10.75, ()),
            (11.5, (told,)),
            (11.75, (told,)),
            (12.75, (told,)),
        )
    ]
    changed = Hint("dispatcher", "gate changed")
    assert turns == [
        TurnResult(REFRESH_S, (passed, changed, POLICIES)),
        TurnResult(0.75, (passed, passed)),
        TurnResult(REFRESH_S, (passed,)),
        TurnResult(REFRESH_S),
        TurnResult(0.25, (passed,)),
        TurnResult(REFRESH_S, (passed,)),
        TurnResult(REFRESH_S, (passed,)),
    ]
    assert len(reads) == 5


async def test_what_was_told_while_nobody_listened_is_looked_for(store: Store, monkeypatch: Patch) -> None:
    """Once for each time that listening begins, wherever the work may be, and however long the database is away."""
    actor = Pause(store)
    await actor.prime(boot=True)
    await turn(actor)
    listening = Hint("pause", HintEvent.LISTENING)
    told = await actor.turn(Turn(10.0, (listening, Hint("pause", HintEvent.WORK, {"from": "x"}), listening)))
    assert told.hints == (Hint("dispatcher", HintEvent.WORK, {"from": "x"}), Hint("dispatcher", HintEvent.LISTENING))
    assert not (await turn(actor)).hints
    with monkeypatch.context() as patched:
        patched.setattr(store.topics, "live", AsyncMock(side_effect=UnavailableError("away")))
        with pytest.raises(UnavailableError, match="away"):
            await actor.turn(Turn(11.0, (listening,)))
    assert (await turn(actor)).hints == (Hint("dispatcher", HintEvent.LISTENING),)
    assert not (await turn(actor)).hints


async def test_a_gate_that_was_closed_before_is_known_after_priming(store: Store) -> None:
    """What was paused before the start is no news; its opening is."""
    await store.gate.pause("", "upgrade")
    actor = Pause(store)
    await actor.prime(boot=True)
    assert await turn(actor) == TurnResult(REFRESH_S, (POLICIES,))
    await store.gate.resume("")
    assert (await turn(actor)).hints == (Hint("dispatcher", "gate changed"),)


async def test_policies_are_told_when_they_change(store: Store) -> None:
    """The dispatcher hears once at the start, since a change may have come before, and then of each change."""
    actor = Pause(store)
    await actor.prime(boot=True)
    quiet, told = TurnResult(REFRESH_S), TurnResult(REFRESH_S, (POLICIES,))
    assert [await turn(actor) for _ in range(2)] == [told, quiet]
    await store.topics.set("t", {"stall_s": 5.0})
    assert [await turn(actor) for _ in range(2)] == [told, quiet]
    await store.topics.set("t", {"stall_s": None, "backoff": "fixed:1"})  # that one is in no memory
    assert [await turn(actor) for _ in range(2)] == [told, quiet]
    await store.topics.set("t", {"backoff": "fixed:2"})
    assert await turn(actor) == quiet


async def test_status_shows_gate_and_database(store: Store) -> None:
    await store.gate.pause("t", "why")
    status = await Pause(store).status()
    assert status["gate"] == await store.gate.get()
    for actor in (Pause(store), Scheduler(store), new_watchdog(store)):
        database = (await actor.status())["database"]
        assert isinstance(database, dict)
        assert database["ok"] is True


@pytest.fixture
def nowhere() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"postgresql://pulse:{SECRET}@127.0.0.1:{probe.getsockname()[1]}/pulse"


@pytest.mark.parametrize("make", [Pause, Scheduler, new_watchdog])
async def test_priming_refuses_while_the_database_is_away(make: type[Pause], nowhere: str) -> None:
    away = Store(Target(nowhere, "pulse-tests"))
    with pytest.raises(UnavailableError) as refused:
        await make(away).prime(boot=True)
    assert "127.0.0.1" in refused.value.message
    assert SECRET not in refused.value.message
    away.close()


class Failing:
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def prime(self, *, boot: bool) -> None:
        """Nothing is needed."""

    async def turn(self, turn: Turn) -> TurnResult:
        del turn
        return TurnResult(60.0)

    async def status(self) -> dict[str, object]:
        raise self._error


@pytest.mark.parametrize("error", [UnavailableError("away"), ConfigError("refused")], ids=["away", "refused"])
async def test_a_status_that_fails_ends_nobody(store: Store, error: Exception) -> None:
    """Whatever the database says to a question for status is told in the answer, and the actor goes on listening."""
    here, there = socket.socketpair()
    async with await SocketStream.from_socket(here) as near, await SocketStream.from_socket(there) as far:
        runtime, supervisor = Runtime("failing", Bus(near), Settings(), store, boot=True), Bus(far)
        frames = supervisor.frames()
        await runtime.prime(Failing(error))
        assert (await anext(frames)).kind == "ready"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.listen, tasks.cancel_scope)
            for number in (1, 2):
                await supervisor.send("status", number, {})
                answer = await anext(frames)
                assert (answer.kind, answer.request) == ("ok", number)
                assert answer.body["database"] == {"ok": False, "dsn": store.query.target.shown, "error": str(error)}
            tasks.cancel_scope.cancel()
