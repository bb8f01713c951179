"""Operators' requests: cancel, retry, pause, resume; and what servers and workers write about themselves."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta
from typing import Final

import pytest
import structlog

from pulse.protocol import HandlerInfo
from pulse.store.operators.gate import GATE_CHANNEL, Expired
from pulse.store.operators.jobs import RestartedJob
from pulse.store.rows import Canceled, Completion, Wake
from pulse.store.store import Store
from pulse_actors.pause import REFRESH_S, Pause
from pulse_actors.runtime.actor import Turn
from pulse_actors.runtime.bus import Hint
from tests.support.store.helpers import (
    LEASE_S,
    NOW,
    STATUSES,
    TERMINAL,
    TOPIC,
    WORKER,
    Sql,
    at,
    changes,
    claim,
    fence,
    forge,
    history,
    new_id,
    read,
    remember,
)
from tests.support.waiting import until_blocked

ACTIVE: Final = ("PENDING", "RETRYING", "RUNNING")
OPEN: Final = {"reason": None, "paused_at": None, "paused_by": None, "paused_until": None}


@pytest.mark.parametrize("status", ACTIVE)
async def test_cancel(store: Store, connection: Sql, status: str) -> None:
    """An unfinished job is canceled in any state; its budgets, progress and last error stay."""
    identity = await forge(connection, status, progress='"half"', last_error="before")
    before = await read(connection, identity)
    running = status == "RUNNING"
    assert await store.cancel([identity], now=at(3)) == [
        Canceled(identity, before["attempts"], WORKER if running else None)
    ]
    lease = {"locked_by": None, "lease_until": None} if running else {}
    assert changes(before, await read(connection, identity)) == {"status": "CANCELED", "completed_at": at(3), **lease}
    rows = await history(connection, identity)
    assert [
        (row["attempt"], row["outcome"], row["worker"], row["started_at"], row["ended_at"], row["progress"])
        for row in rows
    ] == ([(1, "canceled", WORKER, NOW, at(3), '"half"')] if running else [])


async def test_each_that_is_canceled_is_told_once(store: Store, connection: Sql) -> None:
    jobs = [await forge(connection, "RUNNING", attempts=attempt) for attempt in (1, 2)]
    told = [Canceled(jobs[0], 1, WORKER), Canceled(jobs[1], 2, WORKER)]
    assert sorted(await store.cancel(jobs, now=at(3))) == told


@pytest.mark.parametrize("status", TERMINAL)
async def test_a_finished_job_is_not_canceled(store: Store, connection: Sql, status: str) -> None:
    """Cancelling a finished or unknown job changes nothing, also beside one that is canceled."""
    identity, other, not_asked = [await forge(connection, one) for one in (status, "PENDING", "PENDING")]
    before = await read(connection, identity), await read(connection, not_asked)
    assert [one.id for one in await store.cancel([identity, new_id(), other])] == [other]
    assert (await read(connection, identity), await read(connection, not_asked)) == before
    assert await history(connection, identity) == []


async def test_cancel_keeps_history(store: Store, connection: Sql) -> None:
    identity = await forge(connection, "RUNNING")
    await remember(connection, identity, "expired")
    assert len(await store.cancel([identity])) == 1
    assert [row["outcome"] for row in await history(connection, identity)] == ["expired"]


@pytest.mark.parametrize("status", TERMINAL)
async def test_retry(store: Store, connection: Sql, status: str) -> None:
    """A finished job starts again with fresh budgets, due now; attempts goes on, and the traces of its end are gone."""
    identity = await forge(
        connection, status, attempts=5, uncharged=2, crashes=3, result='"x"', progress='"half"', checkpoint="7",
        last_error="boom", priority=4,
    )  # fmt: skip
    before = await read(connection, identity)
    had_completed = status == "COMPLETED"
    found = {identity: RestartedJob(Wake(TOPIC, 4, at(7).timestamp()), had_completed)}
    assert await store.retry([identity], now=at(7)) == found
    assert changes(before, await read(connection, identity)) == {
        "status": "PENDING", "uncharged": 5, "crashes": 0, "next_run_at": at(7), "completed_at": None, "result": None,
        "progress": None, "checkpoint": None,
    }  # fmt: skip
    assert [one["outcome"] for one in await history(connection, identity)] == ["completed"] * had_completed
    assert [one.attempt for one in await claim(store, seconds=7)] == [6]


@pytest.mark.parametrize("status", TERMINAL)
async def test_a_retry_keeps_finished_steps(store: Store, connection: Sql, status: str) -> None:
    """Else the effects of a dead letter would happen twice. The handler's own checkpoint may be why it failed."""
    stored = {"$steps": {"charge": 1}, "checkpoint": 7}
    identity = await forge(connection, status, checkpoint=json.dumps(stored))
    await store.retry([identity], now=at(7))
    text = (await read(connection, identity))["checkpoint"]
    assert (text and json.loads(text)) == (None if status == "COMPLETED" else {"$steps": {"charge": 1}})


async def test_each_run_of_a_job_that_is_retried_is_kept(store: Store, connection: Sql) -> None:
    """While it is completed its row says who ran it; from a retry on its history does, run by run."""
    identity = await forge(connection, "RUNNING", started_at=at(1), progress='"half"')
    for attempt in (1, 2):
        assert await store.complete([Completion(*fence(identity, attempt), "7")], now=at(attempt + 1))
        assert (await read(connection, identity))["ran_by"] == WORKER
        await store.retry([identity], now=at(attempt + 1))
        row = await read(connection, identity)
        assert (row["ran_by"], row["status"]) == (None, "PENDING")
        await claim(store, seconds=attempt + 1)
    runs = await history(connection, identity)
    assert [(one["attempt"], one["worker"], one["outcome"], one["ended_at"], one["progress"]) for one in runs] == [
        (1, WORKER, "completed", at(2), '"half"'), (2, WORKER, "completed", at(3), None)
    ]  # fmt: skip
    assert [one["started_at"] for one in runs] == [at(1), at(2)]


@pytest.mark.parametrize("status", ACTIVE)
async def test_an_active_job_is_not_retried(store: Store, connection: Sql, status: str) -> None:
    identity, other, not_asked = [await forge(connection, one) for one in (status, "CANCELED", "CANCELED")]
    before = await read(connection, identity), await read(connection, not_asked)
    assert set(await store.retry([identity, new_id(), other])) == {other}
    assert (await read(connection, identity), await read(connection, not_asked)) == before


async def test_statuses(store: Store, connection: Sql) -> None:
    made = {await forge(connection, status, attempts=3): (status, 3) for status in STATUSES}
    assert await store.statuses([*made, new_id()]) == made


async def test_pause_and_resume(store: Store) -> None:
    """The gate of the whole and of topics are kept apart; opening one that is open says so."""
    await store.gate.pause("", "deploy", now=NOW)
    await store.gate.pause("a", None, now=at(1))
    assert await store.gate.get() == {
        "paused": True, "reason": "deploy", "paused_at": NOW.timestamp(), "paused_by": None, "paused_until": None,
        "topics": {"a": {"reason": None, "paused_at": at(1).timestamp(), "paused_by": None, "paused_until": None}},
    }  # fmt: skip
    assert [await store.gate.resume(topic) for topic in ("", "", "a", "b")] == [True, False, True, False]
    assert await store.gate.get() == {"paused": False, **OPEN, "topics": {}}


async def test_a_pause_after_a_resume_begins_anew(store: Store) -> None:
    await store.gate.pause("a", "first", now=NOW)
    await store.gate.resume("a")
    await store.gate.pause("a", None, now=at(5))
    assert (await store.gate.get())["topics"] == {"a": {**OPEN, "paused_at": at(5).timestamp()}}


async def test_the_gate_tells_others(store: Store, connection: Sql) -> None:
    """Closing, opening and an end are notified to other hosts, with the topic; a vain opening is not."""
    heard: asyncio.Queue[object] = asyncio.Queue()
    await connection.add_listener(GATE_CHANNEL, lambda *message: heard.put_nowait(message[3]))
    await store.gate.pause("a", None)
    await store.gate.resume("b")
    await store.gate.resume("a")
    await store.gate.pause("", None)
    await store.gate.pause("c", None, for_s=1.0, now=NOW)
    await store.gate.expire(now=at(2))
    assert [await asyncio.wait_for(heard.get(), 5) for _ in range(5)] == ["a", "a", "", "c", "c"]


async def test_handlers(store: Store, connection: Sql) -> None:
    await store.note_handlers(
        {"b": HandlerInfo(topic="x"), "a": HandlerInfo(max_attempts=2, timeout_s=1.5, max_crashes=4, stall_s=0.5)}
    )
    await store.note_handlers({"b": HandlerInfo(topic="y", max_attempts=3)})
    found = await connection.fetch(
        "SELECT name, topic, max_attempts, timeout_s, max_crashes, stall_s FROM pulse.handlers ORDER BY name"
    )
    assert [tuple(row) for row in found] == [("a", None, 2, 1.5, 4, 0.5), ("b", "y", 3, None, None, None)]


@pytest.mark.parametrize(("said", "age", "written"), [
    (HandlerInfo(topic="x"), "0", False), (HandlerInfo(topic="x"), "2 minutes", True),
    (HandlerInfo(topic="y"), "0", True), (HandlerInfo(topic="x", max_attempts=1), "0", True),
    (HandlerInfo(topic="x", timeout_s=1.0), "0", True), (HandlerInfo(topic="x", max_crashes=1), "0", True),
    (HandlerInfo(topic="x", stall_s=1.0), "0", True), (HandlerInfo(topic="x", backoff="fixed:1"), "0", True),
    (HandlerInfo(topic="x", on_dead_letter="d"), "0", True), (HandlerInfo(topic="x", on_crash="c"), "0", True),
], ids=["same", "old", "topic", "attempts", "timeout", "crashes", "stall", "backoff", "dead", "crash"])  # fmt: skip
async def test_unchanged_handlers_are_rarely_written(
    store: Store, connection: Sql, said: HandlerInfo, age: str, written: bool
) -> None:
    """A repeated hello is written at most once a minute; a changed one at once."""
    await store.note_handlers({"n": HandlerInfo(topic="x")})
    await connection.execute("UPDATE pulse.handlers SET seen_at = seen_at - $1::text::interval", age)
    before = await connection.fetchval("SELECT xmin::text FROM pulse.handlers")
    await store.note_handlers({"n": said})
    assert (await connection.fetchval("SELECT xmin::text FROM pulse.handlers") != before) is written


async def test_server_defaults(store: Store, connection: Sql) -> None:
    """The row '' holds the server's defaults; writing the same again writes nothing, and timeout_s is left alone."""
    await connection.execute("UPDATE pulse.topics SET timeout_s = 9")
    seen = []
    for attempts, crashes in ((7, 2), (7, 2), (8, 2), (8, 3)):
        await store.set_server_defaults(attempts, crashes)
        [row] = await connection.fetch(
            "SELECT max_attempts, max_crashes, timeout_s, xmin::text AS version FROM pulse.topics"
        )
        assert (row["max_attempts"], row["max_crashes"], row["timeout_s"]) == (attempts, crashes, 9)
        seen.append(row["version"])
    assert seen[0] == seen[1]
    assert len(set(seen)) == 3


async def test_server_defaults_are_put_back(store: Store, connection: Sql) -> None:
    await connection.execute("DELETE FROM pulse.topics")
    await store.set_server_defaults(7, 2)
    assert [
        tuple(row) for row in await connection.fetch("SELECT topic, max_attempts, max_crashes FROM pulse.topics")
    ] == [("", 7, 2)]


async def test_hosts(store: Store, connection: Sql) -> None:
    await store.note_host("h", "boot1", 1)
    await connection.execute("UPDATE pulse.hosts SET seen_at = seen_at - interval '1 hour'")
    for boot, pidns in (("boot1", 1), ("boot2", 1), ("boot1", 2)):
        await store.note_host("h", boot, pidns)
    sql = "SELECT host, boot, pidns, seen_at > now() - interval '1 minute' FROM pulse.hosts ORDER BY boot, pidns"
    assert [tuple(row) for row in await connection.fetch(sql)] == [
        ("h", "boot1", 1, True),
        ("h", "boot1", 2, True),
        ("h", "boot2", 1, True),
    ]


async def test_boots_of_a_host(store: Store, connection: Sql) -> None:
    """Each boot of this host, in all pid namespaces, with the time since it was last seen."""
    for host, boot, pidns in (("h", "boot1", 1), ("h", "boot1", 2), ("h", "boot2", 1), ("other", "boot3", 1)):
        await store.note_host(host, boot, pidns)
    await connection.execute("UPDATE pulse.hosts SET seen_at = $1::timestamptz - pidns * interval '1 minute'", NOW)
    assert await store.host_boots("h", now=NOW) == {"boot1": 60.0, "boot2": 60.0}
    assert (await store.host_boots("h"))["boot1"] != 60.0


async def test_sweeps_are_marked(store: Store) -> None:
    """Each sweep hears how long ago the one before began, and what the database's clock says."""
    await store.mark_sweep(15.0, 30.0, now=NOW)
    assert await store.mark_sweep(15.0, 30.0, now=NOW + timedelta(seconds=2.5)) == (2.5, NOW.timestamp() + 2.5, 27.5)
    gap_s, now_s, _ = await store.mark_sweep(15.0, 30.0)
    assert now_s == pytest.approx(NOW.timestamp() + 2.5 + gap_s)
    assert (await store.mark_sweep(15.0, 30.0))[0] < 60.0 < abs(gap_s)


async def test_a_wait_is_no_longer_than_it_was_to_be(store: Store) -> None:
    """A clock that was ahead when a gap was seen, and set back since, makes no wait longer."""
    ahead = NOW + timedelta(days=1)
    await store.mark_sweep(15.0, 30.0, now=NOW)
    assert (await store.mark_sweep(15.0, 30.0, now=ahead))[2] == 30.0
    assert (await store.mark_sweep(15.0, 30.0, now=NOW))[2] == 30.0
    assert (await store.mark_sweep(15.0, 30.0, now=NOW + timedelta(seconds=10)))[2] == 20.0


async def test_a_mark_that_is_gone(store: Store, connection: Sql) -> None:
    await connection.execute("DELETE FROM pulse.sweep_mark")
    assert (await store.mark_sweep(15.0, 30.0))[0] == float("inf")
    await connection.execute("INSERT INTO pulse.sweep_mark DEFAULT VALUES")


async def test_doubted_leases(store: Store) -> None:
    """Every sweep hears how long it must wait; a shorter doubt makes no wait shorter."""
    await store.mark_sweep(1e9, 0.0, now=NOW)
    await store.doubt_leases(20.0, now=NOW)
    await store.doubt_leases(5.0, now=NOW)
    assert (await store.mark_sweep(15.0, 30.0, now=NOW + timedelta(seconds=5)))[2] == 15.0
    assert (await store.mark_sweep(20.0, 30.0, now=NOW + timedelta(seconds=21)))[2] == 0.0


async def test_two_sweeps_at_once(store: Store, connection: Sql) -> None:
    await store.mark_sweep(15.0, 30.0, now=NOW)
    async with connection.transaction():
        await connection.execute("UPDATE pulse.sweep_mark SET swept_at = $1", NOW + timedelta(seconds=5))
        second = asyncio.create_task(store.mark_sweep(15.0, 30.0, now=NOW + timedelta(seconds=6)))
        async with store.query.connection() as watcher:
            await until_blocked(watcher, by=connection.get_server_pid())
    assert (await second)[0] == 1.0


# Pauses that end by themselves: by the claim's own look at the clock, and cleared and told by the pause actor.


@pytest.mark.parametrize("topic", ["", TOPIC])
@pytest.mark.parametrize("levels", [None, [(TOPIC, 0, NOW.timestamp())]], ids=["full", "known levels"])
@pytest.mark.parametrize("how", ["for", "until"])
async def test_a_pause_ends_by_itself(
    store: Store, connection: Sql, topic: str, levels: list[tuple[str, int, float | None]] | None, how: str
) -> None:
    """Nothing is claimed before its time is over, by the database's clock; then all is, cleared or not."""
    job = await forge(connection)
    if how == "for":
        await store.gate.pause(topic, "why", for_s=10.0, now=NOW)
    else:
        await store.gate.pause(topic, "why", until_s=at(10).timestamp(), now=NOW)
    for seconds, claimed in ((0, []), (9.999, []), (10, [job])):
        gate, left_s = await store.gate.look(now=at(seconds))
        assert (gate["paused"] or gate["topics"] != {}) is (claimed == [])
        assert left_s == (None if claimed else pytest.approx(10 - seconds))
        found = await store.claim([TOPIC], [WORKER], [0], LEASE_S, levels=levels, now=at(seconds))
        assert [one.id for one in found] == claimed


async def test_a_second_pause(store: Store) -> None:
    """It keeps the begin, and the reason if it has none; its author and end are its own."""
    for seconds, reason, kept, who, for_s in (
        (0, "first", "first", "uid 1 (a)", 10.0),
        (1, None, "first", "uid 2 (b)", 60.0),
        (2, "third", "third", None, None),
    ):
        await store.gate.pause("", reason, who=who, for_s=for_s, now=at(seconds))
        gate, _ = await store.gate.look(now=at(seconds))
        until = None if for_s is None else at(seconds + for_s).timestamp()
        expected = {"reason": kept, "paused_at": NOW.timestamp(), "paused_by": who, "paused_until": until}
        assert gate == {"paused": True, **expected, "topics": {}}


async def test_a_pause_after_one_that_ended_begins_anew(store: Store) -> None:
    """An ended pause leaves neither time nor reason to the next one, cleared or not."""
    await store.gate.pause("", "first", for_s=10.0, now=NOW)
    await store.gate.pause("", None, now=at(10))
    gate, _ = await store.gate.look(now=at(11))
    assert (gate["paused_at"], gate["reason"], gate["paused_until"]) == (at(10).timestamp(), None, None)


async def test_what_is_cleared(store: Store, connection: Sql) -> None:
    """Pauses whose time is over, with their reasons; no other."""
    await store.gate.pause("a", "x", who="me", for_s=1.0, now=NOW)
    await store.gate.pause("b", "y", for_s=2.0, now=NOW)
    await store.gate.pause("c", "z", now=NOW)
    assert await store.gate.expire(now=at(0.999)) == []
    assert await store.gate.expire(now=at(1)) == [Expired("a", "x", "me")]
    assert await store.gate.expire(now=at(1)) == []
    rows = await connection.fetch("SELECT topic FROM pulse.dispatch_control WHERE paused ORDER BY topic")
    assert [row["topic"] for row in rows] == ["b", "c"]
    row = await connection.fetchrow("SELECT * FROM pulse.dispatch_control WHERE topic = 'a'")
    assert tuple(row or ()) == ("a", False, None, None, None, None)


async def test_several_are_cleared_each_as_itself(store: Store) -> None:
    for topic in ("a", "b"):
        await store.gate.pause(topic, f"why {topic}", for_s=1.0, now=NOW)
    assert {one[:2] for one in await store.gate.expire(now=at(2))} == {("a", "why a"), ("b", "why b")}


async def test_one_that_is_prolonged_meanwhile_stays(store: Store, connection: Sql, other: Sql) -> None:
    await store.gate.pause("a", "x", for_s=1.0, now=NOW)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("UPDATE pulse.dispatch_control SET paused_until = $1 WHERE topic = 'a'", at(60))
    clearing = asyncio.create_task(store.gate.expire(now=at(2)))
    await until_blocked(other, by=connection.get_server_pid())
    await transaction.commit()
    assert await clearing == []


async def test_the_pause_actor_clears_and_tells(store: Store, connection: Sql) -> None:
    """It wakes when the next pause is over, clears it, logs that, and wakes the dispatcher."""
    actor = Pause(store)
    await actor.prime(boot=True)
    await store.gate.pause("", "why", who="me", for_s=0.5)
    told = await actor.turn(Turn(time.monotonic()))
    assert 0 < told.next_s <= 0.5 < REFRESH_S
    await connection.execute("UPDATE pulse.dispatch_control SET paused_until = now() - interval '1 s' WHERE paused")
    with structlog.testing.capture_logs() as logs:
        told = await actor.turn(Turn(time.monotonic()))
    assert Hint("dispatcher", "gate changed") in told.hints
    assert [one for one in logs if one["event"] == "pause_expired"] == [
        {"event": "pause_expired", "log_level": "info", "topic": "", "reason": "why", "paused_by": "me"}
    ]
    assert await connection.fetchval("SELECT count(*) FROM pulse.dispatch_control WHERE paused") == 0


async def test_a_plain_update_opens_and_closes(store: Store, connection: Sql) -> None:
    """SQL that opens without author and end leaves neither: the next pause lasts."""
    await store.gate.pause("a", "x", who="me", for_s=1.0, now=NOW)
    await connection.execute("UPDATE pulse.dispatch_control SET paused = false, paused_at = NULL WHERE paused")
    await connection.execute("UPDATE pulse.dispatch_control SET paused = true, paused_at = now() WHERE topic = 'a'")
    gate, left_s = await store.gate.look(now=at(5))
    assert isinstance(gate["topics"], dict)
    assert [(one["paused_by"], one["paused_until"]) for one in gate["topics"].values()] == [(None, None)]
    assert left_s is None
