"""Turns of scheduler and pause actor, called by hand on a real database, and what all actors do."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from unittest.mock import AsyncMock

import anyio
import pytest
import structlog
from anyio.abc import SocketStream

from pulse.common.ids import uuid7
from pulse.config import Settings
from pulse.errors import ConfigError, UnavailableError
from pulse.protocol.bus import HintEvent
from pulse.store.connections.pool import Target
from pulse.store.failures import IN_VAIN
from pulse.store.rows import NewSchedule
from pulse.store.store import Store
from pulse.system.failure_log import FailureLog
from pulse_actors.pause import LIMITS, REFRESH_S, Pause, _gate_hint
from pulse_actors.runtime import actor as acting
from pulse_actors.runtime.actor import Actor, Runtime, Turn, TurnResult
from pulse_actors.runtime.bus import Bus, Hint
from pulse_actors.scheduler import actor as scheduling
from pulse_actors.scheduler.actor import LOOK_S, Scheduler
from pulse_actors.shared.identity import Host
from pulse_actors.watchdog.actor import Watchdog
from pulse_actors.watchdog.sweep_guard import SweepGuard
from tests.support.confidential import confidential
from tests.support.store.helpers import Patch, Sql, count, found_of
from tests.support.waiting import until_async

pytestmark = pytest.mark.heavy

SECRET: Final = confidential("s3cret-word", "password of a DSN")
POLICIES: Final = Hint("dispatcher", "policies changed")
READY: Final = (Hint("dispatcher", "ready"),)


def ago(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


async def turn(actor: Actor) -> TurnResult:
    return await actor.turn(Turn(time.monotonic()))


def new_watchdog(store: Store) -> Watchdog:
    guard = SweepGuard(lease_s=30.0, heartbeat_s=10.0, sweep_s=10.0)
    return Watchdog(
        store, Host("here", "boot", 1), 10.0, guard, failures=FailureLog(structlog.get_logger()), sees_deaths=True
    )


async def schedule(store: Store, **fields: Any) -> bytes:
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


async def test_the_scheduler_sleeps_to_the_next_due_time(store: Store) -> None:
    await schedule(store, next_run_at=ago(-0.5))
    result = await turn(Scheduler(store))
    assert result.hints == ()
    assert 0 < result.next_s <= 0.5


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
    """An impossible rule or a lost time zone: it waits as it is and says why; the others fire."""
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


@contextlib.asynccontextmanager
async def refusing_topic(connection: Sql) -> AsyncIterator[None]:
    await connection.execute(
        """
        CREATE FUNCTION mine_refuse() RETURNS trigger LANGUAGE plpgsql AS $body$
        BEGIN IF new.topic = 'bad' THEN RAISE EXCEPTION 'not with me'; END IF; RETURN new; END $body$;
        CREATE TRIGGER mine BEFORE INSERT ON pulse.jobs FOR EACH ROW EXECUTE FUNCTION mine_refuse()"""
    )
    try:
        yield
    finally:
        await connection.execute("DROP FUNCTION mine_refuse CASCADE")


async def due_of(connection: Sql) -> dict[str, int]:
    rows = await connection.fetch("SELECT topic, count(*) FROM pulse.schedules WHERE due_at <= now() GROUP BY topic")
    return {row["topic"]: row["count"] for row in rows}


@pytest.mark.rest
@pytest.mark.parametrize("limit", [500, 3])
async def test_schedules_that_are_refused_stop_no_others(
    store: Store, connection: Sql, monkeypatch: Patch, limit: int
) -> None:
    monkeypatch.setattr(scheduling, "FIRE_LIMIT", limit)
    for _ in range(2 * IN_VAIN + 1):
        await schedule(store, topic="bad", next_run_at=ago(10))
    await schedule(store, topic="good")
    actor = Scheduler(store)
    async with refusing_topic(connection):
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
    assert await turn(actor) == TurnResult(LOOK_S, READY)
    assert await due_of(connection) == {}


async def test_few_are_tried_where_each_is_refused(store: Store, connection: Sql, monkeypatch: Patch) -> None:
    """It may be about none of them, and each try is an error in the database's log."""
    for _ in range(10 * IN_VAIN):
        await schedule(store, topic="bad")
    fire = AsyncMock(wraps=store.schedules.fire)
    async with refusing_topic(connection):
        monkeypatch.setattr(store.schedules, "fire", fire)
        await turn(Scheduler(store))
    assert [len(call.args[0]) for call in fire.await_args_list].count(1) == IN_VAIN


async def test_what_is_refused_keeps_nobody_from_being_reckoned(store: Store, connection: Sql) -> None:
    await schedule(store, topic="bad")
    new = await connection.fetchval("SELECT pulse.create_schedule(name => 'n', cron => '0 0 * * *')")
    async with refusing_topic(connection):
        await turn(Scheduler(store))
    assert await cursor_of(connection, new.bytes) is not None


async def primed(store: Store) -> Pause:
    actor = Pause(store)
    await actor.prime(boot=True)
    return actor


async def test_the_gate_is_told_when_it_changes(store: Store) -> None:
    actor = await primed(store)
    quiet, told = TurnResult(REFRESH_S), TurnResult(REFRESH_S, (Hint("dispatcher", "gate changed"),))
    await turn(actor)
    assert await turn(actor) == quiet
    for change in (
        store.gate.pause("", "why"),
        store.gate.pause("t", "why"),
        store.gate.resume(""),
        store.gate.resume("t"),
    ):
        await change
        assert [await turn(actor) for _ in range(2)] == [told, quiet]


async def test_what_others_tell_of_work_is_passed_on(store: Store, monkeypatch: Patch) -> None:
    """At once, and without a look at the gate, which is read once a second at most."""
    actor = await primed(store)
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
            (10.0, (told,)), (10.25, (told, told)), (10.5, (told, Hint("pause", "gate changed"))), (10.75, ()),
            (11.5, (told,)), (11.75, (told,)), (12.75, (told,)),
        )
    ]  # fmt: skip
    changed = Hint("dispatcher", "gate changed")
    assert turns == [
        TurnResult(REFRESH_S, (passed, changed, POLICIES)), TurnResult(0.75, (passed, passed)),
        TurnResult(REFRESH_S, (passed,)), TurnResult(REFRESH_S), TurnResult(0.25, (passed,)),
        TurnResult(REFRESH_S, (passed,)), TurnResult(REFRESH_S, (passed,)),
    ]  # fmt: skip
    assert len(reads) == 5


async def test_a_limit_that_changed_is_told_as_policies(store: Store) -> None:
    actor = await primed(store)
    await turn(actor)
    assert (await actor.turn(Turn(10.0, (_gate_hint(LIMITS),)))).hints == (POLICIES,)
    assert not (await actor.turn(Turn(11.0, (_gate_hint("t"),)))).hints


async def test_what_was_told_while_nobody_listened_is_looked_for(store: Store, monkeypatch: Patch) -> None:
    actor = await primed(store)
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
    """A pause from before the start is no news; its end is."""
    await store.gate.pause("", "upgrade")
    actor = await primed(store)
    assert await turn(actor) == TurnResult(REFRESH_S, (POLICIES,))
    await store.gate.resume("")
    assert (await turn(actor)).hints == (Hint("dispatcher", "gate changed"),)


async def test_policies_are_told_when_they_change(store: Store) -> None:
    """The dispatcher hears once at the start, since a change may have come before, and then of each change."""
    actor = await primed(store)
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
    assert (await Pause(store).status())["gate"] == await store.gate.get()
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


@pytest.mark.parametrize("embedded", [True, False])
async def test_the_supervisor_hears_of_an_upgrade(store: Store, monkeypatch: Patch, *, embedded: bool) -> None:
    """As long as it lasts, of the database that this server alone upgrades."""
    here, there = socket.socketpair()
    is_over, upgrades = anyio.Event(), list[object]()
    monkeypatch.setattr(acting, "see_to_schema", lambda *_, **__: is_over.wait())
    async with await SocketStream.from_socket(here) as near, await SocketStream.from_socket(there) as far:
        runtime = Runtime(acting.DISPATCHER, Bus(near), Settings(), store, boot=True, embedded=embedded)
        supervisor = Bus(far)
        frames = supervisor.frames()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.listen, tasks.cancel_scope)
            tasks.start_soon(runtime.prime, AsyncMock())
            await until_async(lambda: runtime.pulse.upgrades is embedded, "the upgrade has begun")
            for number in (1, 2):
                await supervisor.send("ping", number, {})
                upgrades.append((await anext(frames)).body.get("upgrades", False))
                is_over.set()
                assert number == 2 or (await anext(frames)).kind == "ready"
            tasks.cancel_scope.cancel()
    assert upgrades == [embedded, False]


@pytest.mark.parametrize("error", [UnavailableError("away"), ConfigError("refused")], ids=["away", "refused"])
async def test_a_status_that_fails_ends_nobody(store: Store, error: Exception) -> None:
    """The answer has the database's error, and the actor goes on listening."""
    here, there = socket.socketpair()
    async with await SocketStream.from_socket(here) as near, await SocketStream.from_socket(there) as far:
        runtime, supervisor = Runtime("failing", Bus(near), Settings(), store, boot=True), Bus(far)
        frames = supervisor.frames()
        await runtime.prime(AsyncMock(status=AsyncMock(side_effect=error)))
        assert (await anext(frames)).kind == "ready"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.listen, tasks.cancel_scope)
            for number in (1, 2):
                await supervisor.send("status", number, {})
                answer = await anext(frames)
                assert (answer.kind, answer.request) == ("ok", number)
                told = {"dsn": store.query.target.shown, "schema": "pulse", "error": str(error)}
                assert answer.body["database"] == {"ok": False, **told}
            tasks.cancel_scope.cancel()
