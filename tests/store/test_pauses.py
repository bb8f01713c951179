"""Pauses that end by themselves: by the claim's own look at the clock, and cleared and told by the pause actor."""

from __future__ import annotations

import asyncio
import time

import pytest
import structlog

from pulse.store.operators.gate import GATE_CHANNEL, Expired
from pulse.store.store import Store
from pulse_actors.pause import REFRESH_S, Pause
from pulse_actors.runtime.actor import Turn
from pulse_actors.runtime.bus import Hint
from tests.store.helpers import LEASE_S, NOW, TOPIC, WORKER, Sql, at, forge


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


async def test_the_newest_says_who_and_until_when(store: Store) -> None:
    """A second pause keeps since when, and replaces by whom and until when, also by: without an end."""
    for seconds, who, for_s in ((0, "uid 1 (a)", 10.0), (1, "uid 2 (b)", 60.0), (2, None, None)):
        await store.gate.pause("", "why", who=who, for_s=for_s, now=at(seconds))
        gate, _ = await store.gate.look(now=at(seconds))
        until = None if for_s is None else at(seconds + for_s).timestamp()
        expected = {"reason": "why", "paused_at": NOW.timestamp(), "paused_by": who, "paused_until": until}
        assert gate == {"paused": True, **expected, "topics": {}}


async def test_a_pause_after_one_that_ended_begins_anew(store: Store) -> None:
    """What ended by itself lends neither its time nor its reason to the next one, cleared or not."""
    await store.gate.pause("", "first", for_s=10.0, now=NOW)
    await store.gate.pause("", None, now=at(10))
    gate, _ = await store.gate.look(now=at(11))
    assert (gate["paused_at"], gate["reason"], gate["paused_until"]) == (at(10).timestamp(), None, None)


async def test_what_is_cleared(store: Store, connection: Sql) -> None:
    """Those whose time is over, and what they said of themselves; no other."""
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


async def test_one_that_is_prolonged_meanwhile_stays(store: Store, connection: Sql) -> None:
    """Whoever prolongs a pause at the moment at which it is to be cleared is not overruled."""
    await store.gate.pause("a", "x", for_s=1.0, now=NOW)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("UPDATE pulse.dispatch_control SET paused_until = $1 WHERE topic = 'a'", at(60))
    clearing = asyncio.create_task(store.gate.expire(now=at(2)))
    await asyncio.sleep(0)
    await transaction.commit()
    assert await clearing == []


async def test_its_end_is_told(store: Store, connection: Sql) -> None:
    """Other hosts hear of it."""
    heard: asyncio.Queue[object] = asyncio.Queue()
    await store.gate.pause("a", None, for_s=1.0, now=NOW)
    await connection.add_listener(GATE_CHANNEL, lambda *message: heard.put_nowait(message[3]))
    await store.gate.expire(now=at(2))
    assert await asyncio.wait_for(heard.get(), 5) == "a"


async def test_the_pause_actor_clears_and_tells(store: Store, connection: Sql) -> None:
    """It looks when the next pause is over, clears it, says so in the log, and wakes the dispatcher."""
    actor = Pause(store)
    await actor.prime(boot=True)
    await store.gate.pause("", "why", who="me", for_s=0.5)
    told = await actor.turn(Turn(time.monotonic()))
    assert 0 < told.next_s <= 0.5 < REFRESH_S
    await connection.execute(
        "UPDATE pulse.dispatch_control SET paused_until = now() - interval '1 second' WHERE paused"
    )
    with structlog.testing.capture_logs() as logs:
        told = await actor.turn(Turn(time.monotonic()))
    assert Hint("dispatcher", "gate changed") in told.hints
    assert [one for one in logs if one["event"] == "pause_expired"] == [
        {"event": "pause_expired", "log_level": "info", "topic": "", "reason": "why", "paused_by": "me"}
    ]
    assert await connection.fetchval("SELECT count(*) FROM pulse.dispatch_control WHERE paused") == 0


async def test_a_plain_update_opens_and_closes(store: Store, connection: Sql) -> None:
    """What SQL opens without a word of who and until when has neither left: the next pause lasts."""
    await store.gate.pause("a", "x", who="me", for_s=1.0, now=NOW)
    await connection.execute("UPDATE pulse.dispatch_control SET paused = false, paused_at = NULL WHERE paused")
    await connection.execute("UPDATE pulse.dispatch_control SET paused = true, paused_at = now() WHERE topic = 'a'")
    gate, left_s = await store.gate.look(now=at(5))
    assert isinstance(gate["topics"], dict)
    assert [(one["paused_by"], one["paused_until"]) for one in gate["topics"].values()] == [(None, None)]
    assert left_s is None
