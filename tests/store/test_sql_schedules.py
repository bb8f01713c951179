"""The functions for schedules that SQL may call: what they make, change and refuse."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from pulse.store.store import Store
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
        ("every_s => 5, jitter_s => 6", "jitter_s is 6; at most the interval, 5 s, is allowed"),
        ("every_s => 5, topic => ''", "topic is ''; 1 to 200 characters are allowed"),
        ("every_s => 5, args => '[]'", "args must be a JSON object, not array"),
        ("every_s => 5, priority => 70000", "priority is 70000; -100 to 100 is allowed"),
        ("every_s => 5, max_attempts => 0", "max_attempts is 0; 1 to 10000 is allowed"),
        ("every_s => 5, timeout_s => 'NaN'", "timeout_s is NaN; seconds above 0, at most 1e9, are allowed"),
        ("run_at => 'infinity'", "run_at is infinity; a time of the years 1 to 9999 is allowed"),
        ("every_s => 5, starts_at => '-infinity'", "starts_at is -infinity; a time of the years 1 to 9999 is allowed"),
        ("every_s => 5, ends_at => 'infinity'", "ends_at is infinity; a time of the years 1 to 9999 is allowed"),
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


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("NULL", "name is NULL; 1 to 200 characters are allowed"),
        ("''", "name is ''; 1 to 200 characters are allowed"),
        ("'n', args => NULL", "args must be a JSON object, not NULL"),
    ],
)
async def test_what_every_job_needs(connection: Connection[Record], given: str, message: str) -> None:
    """A schedule without it is refused, in one line as well."""
    with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
        await connection.execute(f"SELECT pulse.create_schedule({given}, every_s => 5)")
    assert refused.value.args[0] == message


async def test_what_does_not_fit_any_more(connection: Connection[Record]) -> None:
    """A change is held against what stays: an interval against the jitter, a jitter against the interval."""
    identity = await made(connection, "pulse.create_schedule('n', every_s => 60, jitter_s => 30)")
    for change, message in (
        ("every_s => 10", "jitter_s is 30; at most the interval, 10 s, is allowed"),
        ("jitter_s => 70", "jitter_s is 70; at most the interval, 60 s, is allowed"),
    ):
        with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
            await connection.execute(f"SELECT pulse.update_schedule('{identity}', {change})")
        assert refused.value.args[0] == message


async def test_more_jitter_is_looked_at(connection: Connection[Record]) -> None:
    """Of a cron only the scheduler knows the interval: it is asked when there is more jitter, not when it is due."""
    identity = await made(connection, "pulse.create_schedule('n', cron => '@hourly', jitter_s => 30)")
    for jitter_s, reckon in ((20, False), (20, False), (4000, True)):
        await connection.execute("UPDATE pulse.schedules SET next_run_at = now(), reckon = false")
        await connection.execute(f"SELECT pulse.update_schedule('{identity}', jitter_s => {jitter_s})")
        row = await row_of(connection, identity)
        assert (row["reckon"], row["next_run_at"] is None) == (reckon, False)


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
