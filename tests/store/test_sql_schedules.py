"""The functions for schedules that SQL may call: what they make, change and refuse."""

from __future__ import annotations

import json
import time
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from pulse.store.store import Store
from pulse_actors.runtime import Turn
from pulse_actors.scheduler import Scheduler
from tests.store.helpers import count

if TYPE_CHECKING:
    from asyncpg import Connection, Record

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]


async def made(connection: Connection[Record], call: str) -> uuid.UUID:
    """What the call returns: an id."""
    found = await connection.fetchval(f"SELECT {call}")
    return uuid.UUID(bytes=found.bytes)


async def row_of(connection: Connection[Record], identity: uuid.UUID) -> dict[str, Any]:
    """All columns of one schedule."""
    row = await connection.fetchrow("SELECT * FROM pulse.schedules WHERE id = $1", str(identity))
    assert row is not None
    return dict(row)


@pytest.mark.parametrize(
    ("rule", "columns"),
    [
        ("cron => '@daily'", {"kind": "cron", "cron": "@daily", "timezone": "UTC"}),
        ("cron => '0 3 * * *', timezone => 'Europe/Berlin'", {"kind": "cron", "timezone": "Europe/Berlin"}),
        ("every_s => 0.5, jitter_s => 0.5", {"kind": "every", "every_s": 0.5, "jitter_s": 0.5}),
        ("run_at => now()", {"kind": "at", "cron": None, "timezone": None}),
        (
            (
                "every_s => 5, args => '{\"a\": 1}', topic => 't', priority => 3, max_attempts => 2, timeout_s => 1.5, "
                "catch_up => 'all', overlap => 'queue', id => '0190163d-8694-739b-aea5-966c26f8ad92'"
            ),
            {
                "args": '{"a": 1}',
                "topic": "t",
                "priority": 3,
                "max_attempts": 2,
                "timeout_s": 1.5,
                "catch_up": "all",
                "overlap": "queue",
                "id": uuid.UUID("0190163d-8694-739b-aea5-966c26f8ad92"),
            },
        ),
    ],
)
async def test_create(connection: Connection[Record], rule: str, columns: dict[str, Any]) -> None:
    """A schedule is stored as it was given; the scheduler is to reckon its first occurrence."""
    identity = await made(connection, f"pulse.create_schedule('n', {rule})")
    row = await row_of(connection, identity)
    assert {name: row[name] for name in columns} == columns
    assert (row["name"], row["next_run_at"], row["reckon"]) == ("n", None, True)


async def test_update(store: Store, connection: Connection[Record]) -> None:
    """What is not given stays; the cursor goes only with a change of when it occurs, and then it is reckoned anew."""
    identity = await made(connection, "pulse.create_schedule('n', every_s => 60)")
    await connection.execute("UPDATE pulse.schedules SET next_run_at = now(), following_run_at = now(), reckon = false")
    before = await row_of(connection, identity)
    call = f"SELECT pulse.update_schedule('{identity}', "
    assert await connection.fetchval(f"{call} priority => 5, overlap => 'skip', every_s => 60)")
    row = await row_of(connection, identity)
    assert {name for name in row if row[name] != before[name]} == {"priority", "overlap", "revision"}
    assert row["revision"] == before["revision"] + 1
    assert await connection.fetchval(f"{call} cron => '0 3 * * *', timezone => 'Europe/Berlin')")
    row = await row_of(connection, identity)
    assert (row["kind"], row["every_s"], row["timezone"], row["priority"]) == ("cron", None, "Europe/Berlin", 5)
    assert (row["next_run_at"], row["following_run_at"], row["reckon"]) == (None, None, True)
    assert await connection.fetchval(f"{call} cron => '0 4 * * *')")
    assert (await row_of(connection, identity))["timezone"] == "Europe/Berlin"
    assert not await connection.fetchval("SELECT pulse.update_schedule(gen_random_uuid(), priority => 1)")
    del store


async def changed(connection: Connection[Record], identity: uuid.UUID, changes: Any) -> dict[str, Any]:
    """What `pulse.set_schedule` makes of a schedule."""
    call = "SELECT pulse.set_schedule($1, $2)"
    assert await connection.fetchval(call, str(identity), None if changes is None else json.dumps(changes))
    return await row_of(connection, identity)


@pytest.mark.parametrize(
    ("option", "given", "unset"),
    [
        ("args", '{"a": 1}', "{}"),
        ("topic", "t", None),
        ("priority", 3, 0),
        ("max_attempts", 2, None),
        ("timeout_s", 1.5, None),
        ("starts_at", datetime(2030, 1, 1, tzinfo=UTC), None),
        ("ends_at", datetime(2040, 1, 1, 0, 0, 0, 1, tzinfo=UTC), None),
        ("jitter_s", 0.25, 0.0),
        ("catch_up", "all", "latest"),
        ("overlap", "queue", "allow"),
        ("timezone", "Europe/Berlin", "UTC"),
    ],
)
async def test_set(connection: Connection[Record], option: str, given: Any, unset: Any) -> None:
    """A value sets one option, null makes it as if it had never been given, and all others stay."""
    identity = await made(connection, "pulse.create_schedule('n', cron => '@daily')")
    value = json.loads(given) if option == "args" else given.isoformat() if isinstance(given, datetime) else given
    before = await row_of(connection, identity)
    row = await changed(connection, identity, {option: value})
    assert row[option] == given
    assert {name for name in row if row[name] != before[name]} == {option, "revision"}
    assert (await changed(connection, identity, {"name": "m"}))[option] == given
    row = await changed(connection, identity, {option: None})
    assert (row[option], row["name"], row["revision"]) == (unset, "m", 3)


async def test_set_when(connection: Connection[Record]) -> None:
    """One kind takes the place of the other, which is unset with all that was its own."""
    identity = await made(connection, "pulse.create_schedule('n', cron => '@daily', timezone => 'Europe/Berlin')")
    when = ("kind", "cron", "timezone", "every_s")
    for changes, expected in (
        ({"cron": "@hourly"}, ("cron", "@hourly", "Europe/Berlin", None)),
        ({"every_s": 60, "cron": None}, ("every", None, None, 60.0)),
        ({"cron": "@daily"}, ("cron", "@daily", "UTC", None)),
        ({"timezone": "Asia/Tokyo"}, ("cron", "@daily", "Asia/Tokyo", None)),
        ({"every_s": None}, ("cron", "@daily", "Asia/Tokyo", None)),
        ({"cron": "@weekly", "timezone": None}, ("cron", "@weekly", "UTC", None)),
    ):
        row = await changed(connection, identity, changes)
        assert tuple(row[name] for name in when) == expected
    row = await changed(connection, identity, {"run_at": "2035-01-31T12:00:00Z"})
    assert (row["kind"], row["run_at"]) == ("at", datetime(2035, 1, 31, 12, tzinfo=UTC))
    assert not await connection.fetchval("SELECT pulse.set_schedule(gen_random_uuid(), '{}')")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (None, "the changes of a schedule must be a JSON object of options, not NULL"),
        ([], "the changes of a schedule must be a JSON object of options, not array"),
        (
            {"paused": True, "topic": "t"},
            (
                'unknown option "paused" of a schedule; allowed are name, cron, timezone, every_s, run_at, args, '
                "topic, priority, max_attempts, timeout_s, starts_at, ends_at, jitter_s, catch_up, overlap"
            ),
        ),
        ({"every_s": None}, "none of cron, every_s and run_at is left; exactly one is allowed"),
        ({"every_s": 5, "cron": "@daily"}, "2 of cron, every_s and run_at are given; at most one is allowed"),
        ({"name": None}, "name is null; 1 to 200 characters are allowed"),
        ({"every_s": 20}, "jitter_s is 30; at most the interval, 20 s, is allowed"),
        ({"timezone": "UTC"}, "timezone is 'UTC'; it is allowed with cron only"),
    ],
)
async def test_what_cannot_be_set(connection: Connection[Record], changes: Any, message: str) -> None:
    """One line that says what is allowed, and nothing is changed."""
    identity = await made(connection, "pulse.create_schedule('n', every_s => 60, jitter_s => 30)")
    before = await row_of(connection, identity)
    with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
        await changed(connection, identity, changes)
    assert refused.value.args[0] == message
    assert await row_of(connection, identity) == before


async def test_a_jitter_that_is_too_long_for_cron(store: Store, connection: Connection[Record]) -> None:
    """SQL does not know the interval of an expression: the scheduler says so, and goes on once it is put right."""
    identity = await made(connection, "pulse.create_schedule('n', cron => '* * * * *', jitter_s => 60)")
    scheduler = Scheduler(store)
    await scheduler.turn(Turn(time.monotonic()))
    assert (await row_of(connection, identity))["error"] is None
    await changed(connection, identity, {"jitter_s": 61})
    await scheduler.turn(Turn(time.monotonic()))
    row = await row_of(connection, identity)
    assert (row["error"], row["reckon"]) == ("jitter_s is 61; at most the interval, 60 s, is allowed", False)
    assert await store.schedules.due(10, now=row["due_at"]) == []
    await changed(connection, identity, {"jitter_s": None})
    await scheduler.turn(Turn(time.monotonic()))
    row = await row_of(connection, identity)
    assert (row["error"], row["reckon"]) == (None, False)
    assert len(await store.schedules.due(10, now=row["due_at"])) == 1


async def test_pause_resume_delete(connection: Connection[Record]) -> None:
    """Each does what it says to one schedule, and tells whether there was one."""
    identity, other = [await made(connection, "pulse.create_schedule('n', every_s => 60)") for _ in range(2)]
    for word, paused in (("pause", True), ("resume", False)):
        await connection.execute("UPDATE pulse.schedules SET paused = $2 WHERE id = $1", str(other), not paused)
        assert await connection.fetchval(f"SELECT pulse.{word}_schedule('{identity}')")
        assert not await connection.fetchval(f"SELECT pulse.{word}_schedule(gen_random_uuid())")
        assert (await row_of(connection, identity))["paused"] == paused
        assert (await row_of(connection, other))["paused"] != paused
    assert await connection.fetchval(f"SELECT pulse.delete_schedule('{identity}')")
    assert not await connection.fetchval(f"SELECT pulse.delete_schedule('{identity}')")
    assert await row_of(connection, other)


async def test_trigger(connection: Connection[Record]) -> None:
    """It returns the id of a job, a new one at each call, and NULL where there is no schedule."""
    identity = await made(connection, "pulse.create_schedule('n', every_s => 60)")
    ids = {await made(connection, f"pulse.trigger_schedule('{identity}')") for _ in range(2)}
    assert await count(connection) == len(ids) == 2
    assert await connection.fetchval("SELECT pulse.trigger_schedule(gen_random_uuid())") is None
    other = await connection.fetchval("SELECT pulse.submit('n')")
    with pytest.raises(asyncpg.UniqueViolationError, match="exists already, and is not of this schedule"):
        await connection.fetchval(f"SELECT pulse.trigger_schedule('{identity}', $1)", other)
    mine = await connection.fetchval("SELECT id FROM pulse.jobs WHERE schedule_id IS NOT NULL LIMIT 1")
    assert await connection.fetchval(f"SELECT pulse.trigger_schedule('{identity}', $1)", mine) == mine


@pytest.mark.parametrize("word", ["create_schedule('n', ", "update_schedule('{}', "])
@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            "cron => '* * * *'",
            "cron is '* * * *'; five fields are allowed (minute hour day month weekday), or six with seconds first",
        ),
        (
            "cron => '@daily', timezone => 'Mars/Base'",
            "timezone is 'Mars/Base'; an IANA name such as Europe/Berlin is allowed",
        ),
        ("every_s => 5, timezone => 'UTC'", "timezone is 'UTC'; it is allowed with cron only"),
        ("every_s => -5", "every_s is -5; 0.1 to 1e9 s is allowed"),
        ("every_s => 5, jitter_s => -1", "jitter_s is -1; 0 to 86400 s is allowed"),
        ("every_s => 5, jitter_s => 5.5", "jitter_s is 5.5; at most the interval, 5 s, is allowed"),
        ("every_s => 5, catch_up => 'none'", "catch_up is 'none'; allowed are skip, latest, all"),
        ("every_s => 5, overlap => 'none'", "overlap is 'none'; allowed are allow, skip, queue, cancel"),
        (
            "run_at => now(), ends_at => now()",
            "starts_at or ends_at is given; they are allowed with cron and every_s only",
        ),
        (
            "every_s => 5, starts_at => '2030-01-02Z', ends_at => '2030-01-01Z'",
            (
                "ends_at is 2030-01-01 00:00:00+00, before starts_at, 2030-01-02 00:00:00+00; "
                "a time from starts_at on is allowed"
            ),
        ),
    ],
)
async def test_bad_input(connection: Connection[Record], word: str, rule: str, message: str) -> None:
    """One line that names the thing, the value and what is allowed; and nothing is stored or changed."""
    identity = await made(connection, "pulse.create_schedule('n', every_s => 60)")
    before = await row_of(connection, identity)
    await connection.execute("SET timezone = 'UTC'")
    with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
        await connection.execute(f"SELECT pulse.{word.format(identity)}{rule})")
    assert refused.value.args[0] == message
    assert await row_of(connection, identity) == before
    assert await connection.fetchval("SELECT count(*) FROM pulse.schedules") == 1


@pytest.mark.parametrize("rule", ["", ", every_s => 5, cron => '@daily'"])
async def test_one_rule(connection: Connection[Record], rule: str) -> None:
    """Exactly one of the kinds is given, and at most one is changed to."""
    with pytest.raises(asyncpg.InvalidParameterValueError, match="are given; exactly one is allowed"):
        await connection.execute(f"SELECT pulse.create_schedule('n'{rule})")
    identity = await made(connection, "pulse.create_schedule('n', every_s => 60)")
    if rule:
        with pytest.raises(
            asyncpg.InvalidParameterValueError, match="2 of cron, every_s and run_at are given; at most one"
        ):
            await connection.execute(f"SELECT pulse.update_schedule('{identity}'{rule})")


async def test_what_is_made_is_told(connection: Connection[Record], dsn: str) -> None:
    """Whoever listens hears of a schedule that was made, changed or resumed."""
    heard: list[object] = []
    listener = await asyncpg.connect(dsn)
    await listener.add_listener("pulse_schedules", lambda *words: heard.append(words))
    identity = await made(connection, "pulse.create_schedule('n', every_s => 60)")
    for number, call in enumerate(
        (f"update_schedule('{identity}', priority => 1)", f"resume_schedule('{identity}')"), 1
    ):
        await listener.execute("SELECT 1")
        assert len(heard) == number
        await connection.execute(f"SELECT pulse.{call}")
    await listener.execute("SELECT 1")
    assert len(heard) == 3
    await listener.close(timeout=5)
