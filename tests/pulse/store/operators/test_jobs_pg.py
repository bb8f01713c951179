"""Operators' changes of jobs, against each other and against claims, and their notes."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import asyncpg
import pytest

from pulse.errors import NotFoundError
from pulse.store.operators import audit
from pulse.store.operators.jobs import ChangedJob
from pulse.store.operators.transaction import Operator
from pulse.store.rows import Wake
from pulse.store.store import Store
from tests.support.store.helpers import (
    LEASE_S,
    NOW,
    STATUSES,
    TERMINAL,
    TOPIC,
    WAITING,
    WORKER,
    Patch,
    Sql,
    at,
    forge,
    found_of,
    read,
    remember,
)

HELD: Final = "9999-12-30 00:00+00"
_NOTE: Final = "INSERT INTO pulse.audit (id, at, action, topic) VALUES ($1, $2, $3, $4)"
ANNA: Final = Operator(1000, "anna", "host", 77, "bob")


async def notes(connection: Sql) -> list[dict[str, Any]]:
    return [dict(row) for row in await connection.fetch("SELECT * FROM pulse.audit ORDER BY id")]


@pytest.mark.parametrize("status", STATUSES)
async def test_delete(store: Store, connection: Sql, status: str) -> None:
    """An ended job is gone, with its history, and nothing else; others stay as they are."""
    job, other = await forge(connection, status), await forge(connection, "COMPLETED")
    for one in (job, other):
        await remember(connection, one)
    assert await store.delete([job]) == ({job} if status in TERMINAL else set())
    left = {other} if status in TERMINAL else {job, other}
    assert {row["id"].bytes for row in await connection.fetch("SELECT id FROM pulse.jobs")} == left
    assert {row["job_id"].bytes for row in await connection.fetch("SELECT job_id FROM pulse.attempts")} == left


async def test_what_is_set_aside_is_deleted_whatever_it_does(store: Store, connection: Sql) -> None:
    """And what is not set aside is not, though it is asked for at the same time."""
    aside, running = await forge(connection, "RUNNING"), await forge(connection, "RUNNING")
    await connection.execute(
        "INSERT INTO pulse.set_aside (job_id, sqlstate, statement, error) VALUES ($1, 'XX001', 'claim_jobs', 'bad')",
        aside.hex(),
    )
    assert await store.delete([aside, running]) == {aside}
    assert (await read(connection, running))["status"] == "RUNNING"


async def test_each_change_is_answered_as_itself(store: Store, connection: Sql) -> None:
    jobs = {await forge(connection, priority=number): number for number in (1, 2, 3)}
    changed = await store.change([*jobs], topic="u", now=at(1))
    assert {job: (one.priority, found_of(one.wake).priority) for job, one in changed.items()} == {
        job: (number, number) for job, number in jobs.items()
    }


@pytest.mark.parametrize("status", STATUSES)
async def test_change(store: Store, connection: Sql, status: str) -> None:
    """A waiting job moves, and is due from now on; other statuses and other ids are left as they are."""
    job, other = await forge(connection, status, priority=3), await forge(connection)
    left = await read(connection, other)
    before = await read(connection, job)
    moved = await store.change([job], topic="u", priority=-5, now=at(9))
    after = await read(connection, job)
    assert await read(connection, other) == left
    if status not in WAITING:
        assert (moved, after) == ({}, before)
        return
    assert {name: after[name] for name in ("topic", "priority", "next_run_at")} == {
        "topic": "u",
        "priority": -5,
        "next_run_at": at(9),
    }
    assert {**after, "topic": TOPIC, "priority": 3, "next_run_at": NOW} == before
    assert moved == {job: ChangedJob(TOPIC, 3, Wake("u", -5, at(9).timestamp()))}


async def test_change_of_one_of_both(store: Store, connection: Sql) -> None:
    """An option that is not named stays; a job that is there already keeps its place."""
    job = await forge(connection, priority=3)
    assert await store.change([job], priority=3, now=at(1)) == {job: ChangedJob(TOPIC, 3, None)}
    assert (await read(connection, job))["next_run_at"] == NOW
    await store.change([job], priority=4, now=at(2))
    await store.change([job], topic="u", now=at(3))
    found = await read(connection, job)
    assert (found["topic"], found["priority"], found["next_run_at"]) == ("u", 4, at(3))


async def test_change_of_what_is_not_due(store: Store, connection: Sql) -> None:
    later = await forge(connection, "RETRYING", next_run_at=at(60))
    held = await forge(connection)
    await connection.execute(
        "UPDATE pulse.jobs SET next_run_at = $2 WHERE id = $1", held.hex(), at(0).replace(year=9999, month=12, day=30)
    )
    await store.change([later, held], priority=9, now=at(1))
    assert (await read(connection, later))["next_run_at"] == at(60)
    assert await connection.fetchval(f"SELECT next_run_at = '{HELD}' FROM pulse.jobs WHERE id = $1", held.hex())


async def test_a_cursor_that_has_passed_finds_what_was_changed(store: Store, connection: Sql) -> None:
    job = await forge(connection, next_run_at=at(-600))
    await store.change([job], priority=7, now=at(0))
    claimed = await store.claim([], [WORKER], [0], LEASE_S, levels=[(TOPIC, 7, at(-1).timestamp())], now=at(1))
    assert [one.id for one in claimed] == [job]


async def test_a_note_is_there_with_what_was_done(store: Store, connection: Sql) -> None:
    job = await forge(connection)
    async with store.acting(ANNA) as acting:
        await acting.cancel([job])
        await acting.note("jobs.cancel", topic="t", schedule=job, job=job, jobs=1, detail={"a": 1})
    (note,) = await notes(connection)
    assert {name: note[name] for name in ("action", "uid", "user_name", "behalf", "host", "pid", "topic", "jobs")} == {
        "action": "jobs.cancel", "uid": 1000, "user_name": "anna", "behalf": "bob", "host": "host", "pid": 77,
        "topic": "t", "jobs": 1,
    }  # fmt: skip
    assert (note["job_id"].bytes, note["schedule_id"].bytes, json.loads(note["detail"])) == (job, job, {"a": 1})


async def test_no_note_without_what_was_done(store: Store, connection: Sql) -> None:
    """A failure is neither done nor noted, and the connection is good for the next."""
    job = await forge(connection)

    async def fail(error: Exception) -> None:
        async with store.acting(ANNA) as acting:
            await acting.cancel([job])
            await acting.note("jobs.cancel")
            raise error

    for error in (NotFoundError("x"), RuntimeError("x")):
        with pytest.raises(type(error), match="x"):
            await fail(error)
    assert (await read(connection, job))["status"] == "PENDING"
    assert await notes(connection) == []


async def test_functions_note_what_they_do(store: Store, connection: Sql) -> None:
    """SQL leaves the same notes, under its role; for a server, under the name that the server gives."""
    schedule = await connection.fetchval("SELECT pulse.create_schedule('n', every_s => 60, args => '{\"secret\": 1}')")
    for sql in (
        "update_schedule($1, priority => 3)",
        "pause_schedule($1)",
        "resume_schedule($1)",
        "trigger_schedule($1)",
    ):
        await connection.execute(f"SELECT pulse.{sql}", schedule)
    await connection.execute("SELECT pulse.delete_schedule($1), pulse.delete_schedule($1)", schedule)
    await connection.execute("SELECT pulse.pause_schedule($1), pulse.resume_schedule($1)", schedule)
    await connection.execute(
        """SELECT pulse.set_topic('t', '{"stall_s": 5}'), pulse.set_topic('t', '{"stall_s": null}')"""
    )
    found = await notes(connection)
    names = ["create", "update", "pause", "resume", "trigger", "delete"]
    assert [one["action"] for one in found] == [*(f"schedules.{name}" for name in names), "topics.set", "topics.unset"]
    role = await connection.fetchval("SELECT session_user")
    assert {(note["uid"], note["user_name"], note["behalf"]) for note in found} == {(None, role, None)}
    assert {note["schedule_id"] for note in found[:6]} == {schedule}
    assert not any("secret" in note["detail"] for note in found)
    assert [note["topic"] for note in found[6:]] == ["t", "t"]
    async with store.acting(ANNA) as acting:
        await acting.topics.set("t", {"stall_s": 5})
    last = (await notes(connection))[-1]
    assert (last["uid"], last["user_name"], json.loads(last["detail"])) == (1000, "anna", {"stall_s": 5})
    await store.topics.set("t", {"stall_s": 6})  # on the same connection
    assert (await notes(connection))[-1]["user_name"] == role


async def test_nobody_forges_a_note(connection: Sql) -> None:
    """A role that may change a schedule cannot act under another name, nor change notes."""
    role = f"shop_{NOW.year}_{connection.get_server_pid()}"
    await connection.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA pulse TO {role}")
    try:
        await connection.execute(f"SET SESSION AUTHORIZATION {role}")
        await connection.execute(
            """SELECT set_config('pulse.operator', '{"uid": 0, "user": "root", "behalf": "x"}', false)"""
        )
        await connection.execute("SELECT pulse.note('x')")
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="permission denied for table audit"):
            await connection.execute("DELETE FROM pulse.audit")
    finally:
        await connection.execute("RESET SESSION AUTHORIZATION; RESET pulse.operator")
        await connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    (note,) = await notes(connection)
    assert (note["uid"], note["user_name"], note["behalf"]) == (None, role, None)


async def test_pages_of_notes(store: Store, connection: Sql) -> None:
    made = (
        (1, 0, "jobs.cancel", None), (2, 1, "jobs.retry", "t"), (3, 2, "jokes.told", "t"), (4, 2, "topics.set", "t"),
    )  # fmt: skip
    for number, second, *what in made:
        await connection.execute(_NOTE, number, at(second), *what)

    async def listed(limit: int = 9, **filters: Any) -> list[object]:
        rows, after = await store.audit.page(limit, now=at(3), **filters)
        for _ in made:
            if after is not None:
                more, after = await store.audit.page(limit, after, now=at(3), **filters)
                rows += more
        return [row["id"] for row in rows]

    assert await listed() == await listed(1) == await listed(2) == [4, 3, 2, 1]
    assert await listed(action="jobs.") == [2, 1]
    assert await listed(action="jobs.retry") == [2]
    assert await listed(action="jobs") == []
    assert await listed(topic="t") == [4, 3, 2]
    assert await listed(since_s=2) == [4, 3, 2]
    assert [await store.audit.forget(2.5, now=at(3)), await listed()] == [1, [4, 3, 2]]


async def test_old_notes_go_in_batches(store: Store, connection: Sql, monkeypatch: Patch, other: Sql) -> None:
    """The oldest first, never one of the limit's age; a note that another server deletes now is left to it."""
    monkeypatch.setattr(audit, "BATCH", 2)
    for number in range(4):
        await connection.execute(_NOTE, number, at(number), "x", None)

    async def left() -> list[int]:
        return [row["id"] for row in await connection.fetch("SELECT id FROM pulse.audit ORDER BY id")]

    assert [await store.audit.forget(1.0, now=at(4)), await left()] == [2, [2, 3]]
    transaction = other.transaction()
    await transaction.start()
    await other.execute("SELECT FROM pulse.audit WHERE id = 2 FOR UPDATE")
    async with asyncio.timeout(2.0):
        assert await store.audit.forget(1.0, now=at(4)) == 0
    await transaction.rollback()
    assert [await store.audit.forget(1.0, now=at(4)), await left()] == [1, [3]]
    assert await store.audit.forget(1.0, now=at(4)) == 0


async def test_progress_of_retention(store: Store) -> None:
    told: list[dict[str, Any]] = []
    for walked, gone, begins, ends in (
        (5, 1, True, False),
        (4, 2, False, True),
        (7, 4, True, False),
        (1, 0, False, False),
        (2, 2, True, True),
    ):
        await store.audit.note_retention(walked, gone, begins=begins, ends=ends)
        found = found_of(await store.audit.retention())
        told.append(found)
    names = ("walked", "gone", "last_walked", "last_gone", "total_gone")
    assert [told[1][name] for name in names] == [9, 3, 9, 3, 3]
    assert [told[2][name] for name in names] == [7, 4, 9, 3, 7]
    assert [told[4][name] for name in names] == [2, 2, 2, 2, 9]
    first, second, third, step, fourth = told
    assert [one["last_walked"] for one in (first, second, third)] == [0, 9, 9]
    assert (first["ended_at"], first["last_began_at"]) == (None, None)
    assert (second["began_at"], second["last_began_at"]) == (first["began_at"], first["began_at"])
    assert third["began_at"] > second["ended_at"] > first["stepped_at"]
    assert (third["ended_at"], third["last_began_at"]) == (second["ended_at"], first["began_at"])
    assert (step["walked"], step["began_at"], step["last_began_at"]) == (8, third["began_at"], first["began_at"])
    assert fourth["last_began_at"] > third["began_at"]
