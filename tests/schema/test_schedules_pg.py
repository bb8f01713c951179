"""The functions for schedules that SQL may call: what they make, change and refuse."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from datetime import UTC, datetime
from typing import Any, Final

import asyncpg
import pytest

from pulse.protocol import HandlerInfo
from pulse.store.store import Store
from pulse_actors.runtime.actor import Turn
from pulse_actors.scheduler.actor import Scheduler
from tests.support.store.helpers import Sql, count, found_of
from tests.support.waiting import until_blocked


async def made(connection: Sql, call: str) -> uuid.UUID:
    found = await connection.fetchval(f"SELECT {call}")
    return uuid.UUID(bytes=found.bytes)


async def row_of(connection: Sql, identity: uuid.UUID) -> dict[str, Any]:
    row = found_of(await connection.fetchrow("SELECT * FROM pulse.schedules WHERE id = $1", str(identity)))
    return dict(row)


@pytest.mark.parametrize(("rule", "columns"), [
    ("cron => '@daily'", {"kind": "cron", "cron": "@daily", "timezone": "UTC"}),
    ("cron => '0 3 * * *', timezone => 'Europe/Berlin'", {"kind": "cron", "timezone": "Europe/Berlin"}),
    ("every_s => 0.5, jitter_s => 0.5", {"kind": "every", "every_s": 0.5, "jitter_s": 0.5}),
    ("run_at => now()", {"kind": "at", "cron": None, "timezone": None}),
    (
        "every_s => 5, unique_key => 'k', unique_until => 'start', on_conflict => 'replace', group_key => 'g'",
        {"unique_key": "k", "unique_until": "start", "on_conflict": "replace", "group_key": "g"},
    ),
    (
        (
            "every_s => 5, args => '{\"a\": 1}', topic => 't', priority => 3, max_attempts => 2, timeout_s => 1.5, "
            "catch_up => 'all', overlap => 'queue', id => '0190163d-8694-739b-aea5-966c26f8ad92', "
            "starts_at => '2030-01-01Z', ends_at => '2040-01-01Z'"
        ),
        {
            "args": '{"a": 1}', "topic": "t", "priority": 3, "max_attempts": 2, "timeout_s": 1.5,
            "catch_up": "all", "overlap": "queue", "starts_at": datetime(2030, 1, 1, tzinfo=UTC),
            "ends_at": datetime(2040, 1, 1, tzinfo=UTC), "id": uuid.UUID("0190163d-8694-739b-aea5-966c26f8ad92"),
        },
    ),
])  # fmt: skip
async def test_create(connection: Sql, rule: str, columns: dict[str, Any]) -> None:
    row = await row_of(connection, await made(connection, f"pulse.create_schedule('n', {rule})"))
    assert {name: row[name] for name in columns} == columns
    assert (row["name"], row["next_run_at"], row["reckon"]) == ("n", None, True)


async def test_null_is_the_default(connection: Sql) -> None:
    options = ("priority", "jitter_s", "catch_up", "overlap", "timezone")
    given = ", ".join(f"{option} => NULL" for option in options)
    row = await row_of(connection, await made(connection, f"pulse.create_schedule('n', cron => '@daily', {given})"))
    assert tuple(row[option] for option in options) == (0, 0.0, "latest", "allow", "UTC")


async def test_update(store: Store, connection: Sql) -> None:
    """What is not given stays; only a new rule resets the cursor, and then the scheduler computes it anew."""
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


async def changed(connection: Sql, identity: uuid.UUID, changes: Any) -> dict[str, Any]:
    call = "SELECT pulse.set_schedule($1, $2)"
    assert await connection.fetchval(call, str(identity), None if changes is None else json.dumps(changes))
    return await row_of(connection, identity)


EACH: Final[list[tuple[str, Any, Any]]] = [
    ("args", '{"a": 1}', "{}"), ("topic", "t", None), ("priority", 3, 0), ("max_attempts", 2, None),
    ("timeout_s", 1.5, None), ("starts_at", datetime(2030, 1, 1, tzinfo=UTC), None),
    ("ends_at", datetime(2040, 1, 1, 0, 0, 0, 1, tzinfo=UTC), None), ("jitter_s", 0.25, 0.0),
    ("catch_up", "all", "latest"), ("overlap", "queue", "allow"), ("timezone", "Europe/Berlin", "UTC"),
    ("unique_key", "k", None), ("group_key", "g", None),
]  # fmt: skip
MOVED: Final = {"next_run_at", "following_run_at", "due_at", "reckon"}  # where when it occurs is another
ALSO: Final = {"timezone": MOVED, "starts_at": MOVED, "ends_at": MOVED, "jitter_s": {"due_at", "reckon"}}


async def settled(connection: Sql, rule: str) -> uuid.UUID:
    identity = await made(connection, f"pulse.create_schedule('n', {rule})")
    await connection.execute(
        "UPDATE pulse.schedules SET next_run_at = '2035-01-01Z', following_run_at = '2035-01-02Z', reckon = false"
        " WHERE id = $1",
        str(identity),
    )
    return identity


@pytest.mark.parametrize(("option", "given", "unset"), EACH)
async def test_set(connection: Sql, option: str, given: Any, unset: Any) -> None:
    """A value sets one option, null makes it as if it had never been given, and all others stay."""
    identity = await settled(connection, "cron => '@daily'")
    value = json.loads(given) if option == "args" else given.isoformat() if isinstance(given, datetime) else given
    before = await row_of(connection, identity)
    row = await changed(connection, identity, {option: value})
    assert row[option] == given
    assert {name for name in row if row[name] != before[name]} == {option, "revision"} | ALSO.get(option, set())
    assert (await changed(connection, identity, {"name": "m"}))[option] == given
    row = await changed(connection, identity, {option: None})
    assert (row[option], row["name"], row["revision"]) == (unset, "m", 3)


@pytest.mark.parametrize(("option", "given", "unset"), EACH)
async def test_update_sets_each(connection: Sql, option: str, given: Any, unset: Any) -> None:
    identity = await settled(connection, "cron => '@daily'")
    assert (await row_of(connection, identity))[option] == unset
    assert await connection.fetchval(f"SELECT pulse.update_schedule($1, {option} => $2)", str(identity), given)
    assert (await row_of(connection, identity))[option] == given


async def test_an_update_of_nothing(connection: Sql) -> None:
    identity = await settled(connection, "cron => '@daily'")
    before = await row_of(connection, identity)
    assert await connection.fetchval("SELECT pulse.update_schedule($1)", str(identity))
    assert await row_of(connection, identity) == {**before, "revision": 1}


@pytest.mark.parametrize(("rule", "changes"), [
    ("cron => '@daily'", {"cron": "@hourly"}),
    ("every_s => 60", {"every_s": 61}),
    ("run_at => '2030-01-01Z'", {"run_at": "2031-01-01T00:00:00Z"}),
])  # fmt: skip
async def test_another_rule_begins_anew(connection: Sql, rule: str, changes: dict[str, Any]) -> None:
    identity = await settled(connection, rule)
    row = await changed(connection, identity, changes)
    assert (row["next_run_at"], row["following_run_at"], row["reckon"]) == (None, None, True)
    await connection.execute("UPDATE pulse.schedules SET next_run_at = '2035-01-01Z', reckon = false")
    row = await changed(connection, identity, changes)
    assert (row["next_run_at"], row["reckon"]) == (datetime(2035, 1, 1, tzinfo=UTC), False)


async def test_what_is_to_be_reckoned_stays_so(connection: Sql) -> None:
    """Another change does not hide the scheduler's task, and gives a stuck schedule another chance."""
    fresh = await made(connection, "pulse.create_schedule('n', cron => '@daily')")
    assert (await changed(connection, fresh, {"priority": 1}))["reckon"]
    stuck = await settled(connection, "cron => '@daily'")
    await connection.execute("UPDATE pulse.schedules SET error = 'why' WHERE id = $1", str(stuck))
    row = await changed(connection, stuck, {"priority": 1})
    assert (row["error"], row["reckon"]) == (None, True)


async def test_one_of_two_is_set(connection: Sql) -> None:
    first, second = [await settled(connection, f"every_s => 60, priority => {priority}") for priority in (1, 2)]
    for one, another in ((second, first), (first, second)):
        before = await row_of(connection, another)
        mine = await row_of(connection, one)
        row = await changed(connection, one, {"topic": f"t{one}"})
        assert row == {**mine, "topic": f"t{one}", "revision": 1}
        assert await row_of(connection, another) == before


async def test_two_changes_at_once(connection: Sql, dsn: str) -> None:
    identity = await settled(connection, "every_s => 60")
    other, watcher = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    async with connection.transaction():
        await changed(connection, identity, {"topic": "t"})
        changing = asyncio.create_task(
            other.fetchval("SELECT pulse.set_schedule($1, $2)", str(identity), '{"priority": 3}')
        )
        await until_blocked(watcher, by=connection.get_server_pid())
    assert await changing
    row = await row_of(connection, identity)
    assert (row["topic"], row["priority"], row["revision"]) == ("t", 3, 2)
    for one in (other, watcher):
        await one.close(timeout=5)


async def test_set_when(connection: Sql) -> None:
    """One kind replaces the other, with all its own options."""
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
    rules: tuple[tuple[dict[str, Any], str], ...] = (({"cron": "@daily"}, "cron"), ({"every_s": 60}, "every"))
    for rule, kind in rules:
        row = await changed(connection, identity, {"run_at": "2035-01-31T12:00:00Z"})
        assert (row["kind"], row["run_at"]) == ("at", datetime(2035, 1, 31, 12, tzinfo=UTC))
        row = await changed(connection, identity, rule)
        assert (row["kind"], row["run_at"]) == (kind, None)
    assert not await connection.fetchval("SELECT pulse.set_schedule(gen_random_uuid(), '{}')")


@pytest.mark.parametrize(("changes", "message"), [
    (None, "the changes of a schedule must be a JSON object of options, not NULL"),
    ([], "the changes of a schedule must be a JSON object of options, not array"),
    (
        {"paused": True, "topic": "t"},
        (
            'unknown option "paused" of a schedule; allowed are name, cron, timezone, every_s, run_at, args, '
            "topic, priority, max_attempts, timeout_s, starts_at, ends_at, jitter_s, catch_up, overlap, "
            "unique_key, unique_until, on_conflict, group_key"
        ),
    ),
    ({"every_s": None}, "none of cron, every_s and run_at is left; exactly one is allowed"),
    ({"every_s": 5, "cron": "@daily"}, "2 of cron, every_s and run_at are given; at most one is allowed"),
    ({"name": None}, "name is NULL; 1 to 200 characters are allowed"),
    ({"priority": 70000}, "priority is 70000; -100 to 100 is allowed"),
    ({"every_s": 20}, "jitter_s is 30; at most the interval, 20 s, is allowed"),
    ({"timezone": "UTC"}, "timezone is 'UTC'; it is allowed with cron only"),
])  # fmt: skip
async def test_what_cannot_be_set(connection: Sql, changes: Any, message: str) -> None:
    identity = await made(connection, "pulse.create_schedule('n', every_s => 60, jitter_s => 30)")
    before = await row_of(connection, identity)
    with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
        await changed(connection, identity, changes)
    assert refused.value.args[0] == message
    assert await row_of(connection, identity) == before


async def test_a_jitter_that_is_too_long_for_cron(store: Store, connection: Sql) -> None:
    """SQL does not know the interval of an expression: the scheduler refuses it, and goes on once it is corrected."""
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


async def test_pause_resume_delete(connection: Sql) -> None:
    identity, other = [await made(connection, "pulse.create_schedule('n', every_s => 60)") for _ in range(2)]
    for word, paused in (("pause_schedule", True), ("resume_schedule", False)):
        await connection.execute("UPDATE pulse.schedules SET paused = $2 WHERE id = $1", str(other), not paused)
        assert await connection.fetchval(f"SELECT pulse.{word}('{identity}')")
        assert not await connection.fetchval(f"SELECT pulse.{word}(gen_random_uuid())")
        assert (await row_of(connection, identity))["paused"] == paused
        assert (await row_of(connection, other))["paused"] != paused
    assert await connection.fetchval(f"SELECT pulse.delete_schedule('{identity}')")
    assert not await connection.fetchval(f"SELECT pulse.delete_schedule('{identity}')")
    assert await row_of(connection, other)


async def test_what_was_held_and_has_ended_stays_as_it_is(connection: Sql) -> None:
    """A schedule that is deleted takes the jobs with it that wait for an earlier one, not those that were canceled."""
    identity = await made(connection, "pulse.create_schedule('n', every_s => 60)")
    held, ended = [await made(connection, f"pulse.trigger_schedule('{identity}')") for _ in range(2)]
    await connection.execute("UPDATE pulse.jobs SET next_run_at = '9999-12-30 00:00+00'")
    await connection.execute(
        "UPDATE pulse.jobs SET status = 'CANCELED', completed_at = '2020-01-01Z' WHERE id = $1", str(ended)
    )
    await connection.fetchval(f"SELECT pulse.delete_schedule('{identity}')")
    years = {row["id"]: row["completed_at"].year for row in await connection.fetch("SELECT * FROM pulse.jobs")}
    assert years[ended] == 2020 < years[held]


async def test_a_triggered_job_has_the_options_of_its_schedule(store: Store, connection: Sql) -> None:
    """And, where that says nothing, those of its handler."""
    await store.note_handlers({"n": HandlerInfo(topic="its own", max_attempts=7, timeout_s=7.0)})
    for options, expected in (
        ("", ("its own", 7, 7.0, None)),
        (", topic => 't', max_attempts => 2, timeout_s => 3, group_key => 'g'", ("t", 2, 3.0, "g")),
    ):
        identity = await made(connection, f"pulse.create_schedule('n', every_s => 60{options})")
        job = await made(connection, f"pulse.trigger_schedule('{identity}')")
        row = found_of(await connection.fetchrow("SELECT * FROM pulse.jobs WHERE id = $1", str(job)))
        assert (row["topic"], row["max_attempts"], row["timeout_s"], row["group_key"]) == expected


async def test_trigger_is_of_one(connection: Sql) -> None:
    first, second = [await made(connection, f"pulse.create_schedule('{n}', every_s => 60)") for n in "ab"]
    for identity in (second, first):
        job = await made(connection, f"pulse.trigger_schedule('{identity}')")
        assert await connection.fetchval("SELECT schedule_id FROM pulse.jobs WHERE id = $1", str(job)) == identity


async def test_a_trigger_is_told(connection: Sql, other: Sql) -> None:
    heard: list[object] = []
    await other.add_listener("pulse_work", lambda *words: heard.append(words))
    identity = await made(connection, "pulse.create_schedule('n', every_s => 60)")
    await connection.execute("SELECT setval('pulse.work_notified', 1)")
    await made(connection, f"pulse.trigger_schedule('{identity}')")
    await other.execute("SELECT 1")
    assert len(heard) == 1


async def test_trigger(connection: Sql) -> None:
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


BAD: Final = [
    (
        "cron => '* * * *'",
        "cron is '* * * *'; five fields are allowed (minute hour day month weekday), or six with seconds first",
    ),
    (
        "cron => '@daily', timezone => 'Mars/Base'",
        "timezone is 'Mars/Base'; an IANA name such as Europe/Berlin is allowed",
    ),
    ("every_s => 5, timezone => 'UTC'", "timezone is 'UTC'; it is allowed with cron only"),
    ("every_s => 5, timezone => 'Mars/Base'", "timezone is 'Mars/Base'; it is allowed with cron only"),
    ("every_s => -5", "every_s is -5; 0.1 to 1e9 s is allowed"),
    ("every_s => 2e9", "every_s is 2000000000; 0.1 to 1e9 s is allowed"),
    ("every_s => 1e6, jitter_s => 86401", "jitter_s is 86401; 0 to 86400 s is allowed"),
    ("every_s => 5, jitter_s => -1", "jitter_s is -1; 0 to 86400 s is allowed"),
    ("every_s => 5, jitter_s => 6", "jitter_s is 6; at most the interval, 5 s, is allowed"),
    ("every_s => 5, topic => ''", "topic is ''; 1 to 200 characters are allowed"),
    ("every_s => 5, group_key => '*'", "group_key is '*'; 1 to 200 characters are allowed, but not * alone"),
    ("every_s => 5, args => '[]'", "args must be a JSON object, not array"),
    ("every_s => 5, priority => 70000", "priority is 70000; -100 to 100 is allowed"),
    ("every_s => 5, max_attempts => 0", "max_attempts is 0; 1 to 10000 is allowed"),
    ("every_s => 5, timeout_s => 0", "timeout_s is 0; seconds above 0, at most 1e9, are allowed"),
    ("every_s => 5, timeout_s => 'NaN'", "timeout_s is NaN; seconds above 0, at most 1e9, are allowed"),
    ("run_at => 'infinity'", "run_at is infinity; a time of the years 1 to 9999 is allowed"),
    ("every_s => 5, starts_at => '-infinity'", "starts_at is -infinity; a time of the years 1 to 9999 is allowed"),
    ("every_s => 5, ends_at => 'infinity'", "ends_at is infinity; a time of the years 1 to 9999 is allowed"),
    ("every_s => 5, jitter_s => 5.5", "jitter_s is 5.5; at most the interval, 5 s, is allowed"),
    ("every_s => 5, catch_up => 'none'", "catch_up is 'none'; allowed are skip, latest, all"),
    ("every_s => 5, overlap => 'none'", "overlap is 'none'; allowed are allow, skip, queue, cancel"),
    ("run_at => now(), ends_at => now()", "starts_at or ends_at is given; they are allowed with cron and every_s only"),
    (
        "every_s => 5, starts_at => '2030-01-02Z', ends_at => '2030-01-01Z'",
        (
            "ends_at is 2030-01-01 00:00:00+00, before starts_at, 2030-01-02 00:00:00+00; "
            "a time from starts_at on is allowed"
        ),
    ),
]
_RULES: Final = "of cron, every_s and run_at are given"


@pytest.mark.parametrize(("call", "message"), [
    *(
        (f"{word}, {rule})", message)
        for word in ("create_schedule('n'", "update_schedule('{0}'")
        for rule, message in BAD
    ),
    ("create_schedule(NULL, every_s => 5)", "name is NULL; 1 to 200 characters are allowed"),
    ("create_schedule('', every_s => 5)", "name is ''; 1 to 200 characters are allowed"),
    ("create_schedule('n', every_s => 5, args => NULL)", "args must be a JSON object, not NULL"),
    ("create_schedule('n')", f"0 {_RULES}; exactly one is allowed"),
    ("create_schedule('n', every_s => 5, cron => '@daily')", f"2 {_RULES}; exactly one is allowed"),
    ("update_schedule('{0}', every_s => 5, cron => '@daily')", f"2 {_RULES}; at most one is allowed"),
    # A change is held against what stays.
    ("update_schedule('{1}', every_s => 10)", "jitter_s is 30; at most the interval, 10 s, is allowed"),
    ("update_schedule('{1}', jitter_s => 70)", "jitter_s is 70; at most the interval, 60 s, is allowed"),
])  # fmt: skip
async def test_what_is_refused(connection: Sql, call: str, message: str) -> None:
    """One line that names the thing, the value and what is allowed; and nothing is stored or changed."""
    rules = ("every_s => 60", "every_s => 60, jitter_s => 30")
    schedules = [await made(connection, f"pulse.create_schedule('n', {rule})") for rule in rules]
    before = [await row_of(connection, one) for one in schedules]
    await connection.execute("SET timezone = 'UTC'")
    with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
        await connection.execute(f"SELECT pulse.{call.format(*schedules)}")
    assert refused.value.args[0] == message
    assert [await row_of(connection, one) for one in schedules] == before
    assert await connection.fetchval("SELECT count(*) FROM pulse.schedules") == 2


async def test_more_jitter_is_looked_at(connection: Sql) -> None:
    """Only the scheduler knows the interval of a cron: it checks when jitter grows, not when the schedule is due."""
    identity = await made(connection, "pulse.create_schedule('n', cron => '@hourly', jitter_s => 30)")
    for jitter_s, reckon in ((20, False), (20, False), (4000, True)):
        await connection.execute("UPDATE pulse.schedules SET next_run_at = now(), reckon = false")
        await connection.execute(f"SELECT pulse.update_schedule('{identity}', jitter_s => {jitter_s})")
        row = await row_of(connection, identity)
        assert (row["reckon"], row["next_run_at"] is None) == (reckon, False)


async def test_what_is_made_is_told(connection: Sql, other: Sql) -> None:
    heard: list[object] = []
    await other.add_listener("pulse_schedules", lambda *words: heard.append(words))
    identity = await made(connection, "pulse.create_schedule('n', every_s => 60)")
    for number, call in enumerate(
        (f"update_schedule('{identity}', priority => 1)", f"resume_schedule('{identity}')"), 1
    ):
        await other.execute("SELECT 1")
        assert len(heard) == number
        await connection.execute(f"SELECT pulse.{call}")
    await other.execute("SELECT 1")
    assert len(heard) == 3
