"""Submitting through the store: policy is resolved once, ids are identities, order of submit is order of run."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime
from typing import Any, Final

import pytest

from pulse.errors import ConflictError, StatementError
from pulse.protocol import HandlerInfo, SubmittedJob
from pulse.store import arguments
from pulse.store.rows import Firing, NewSchedule, Wake, to_us
from pulse.store.statements import STATEMENTS
from pulse.store.store import Store
from tests.support.store.helpers import LEASE_S, NOW, TOPIC, Row, Sql, at, count, forge, found_of, job, new_id, read

LEVELS: Final = ("job", "handler", "topic", "server")
WAYS: Final = ("first", "each by itself", "again", "for workers of other topics", "SQL", "SQL, many", "fire", "trigger")
POLICY: Final[dict[str, dict[str, Any]]] = {
    "job": {"max_attempts": 11, "timeout_s": 1.5}, "handler": {"max_attempts": 12, "timeout_s": 2.5},
    "topic": {"max_attempts": 13, "timeout_s": 3.5}, "server": {"max_attempts": 14, "timeout_s": 4.5},
}  # fmt: skip


async def _submit(store: Store, way: str, jobs: list[SubmittedJob], now: datetime | None = None) -> list[Wake]:
    if way == "first":
        return await store.submit(jobs, now=now)
    if way == "each by itself":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(arguments, "MOST_KINDS", 0)
            return await store.submit(jobs, now=now)
    if way == "again":
        return await store.submit_again(jobs, now=now)
    claims, woken = await store.submit_and_claim(jobs, ["other"], ["w"], [0] * len(jobs), LEASE_S, now=now)
    assert claims == []
    return woken


async def _set_policy(store: Store, connection: Sql, levels: tuple[str, ...]) -> dict[str, Any]:
    """Set different values on each of *levels*; returns the fields of the job."""
    if "handler" in levels:
        await store.note_handlers({"n": HandlerInfo(**POLICY["handler"])})
    sql = """INSERT INTO pulse.topics VALUES ($1, $2, 3, $3)
             ON CONFLICT (topic) DO UPDATE SET max_attempts = $2, timeout_s = $3"""
    for topic, level in ((TOPIC, "topic"), ("", "server")):
        if level in levels:
            await connection.execute(sql, topic, POLICY[level]["max_attempts"], POLICY[level]["timeout_s"])
    return POLICY["job"] if "job" in levels else {}


async def _made(store: Store, connection: Sql, way: str, **fields: Any) -> Row:
    one = job(**fields)
    identity, wanted = one.id or b"", (one.name, one.topic, one.max_attempts, one.timeout_s)
    if way == "SQL":
        sql = "SELECT pulse.submit($1, topic => $2, max_attempts => $3, timeout_s => $4, id => $5)"
        await connection.execute(sql, *wanted, identity.hex())
    elif way == "SQL, many":
        named = zip(("name", "topic", "max_attempts", "timeout_s"), wanted, strict=True)
        await connection.execute("SELECT pulse.submit_many($1)", json.dumps([{**dict(named), "id": identity.hex()}]))
    elif way in {"fire", "trigger"}:
        schedule = NewSchedule(new_id(), one.name, "every", "{}", NOW, topic=one.topic, every_s=60.0)
        schedule = dataclasses.replace(schedule, max_attempts=one.max_attempts, timeout_s=one.timeout_s)
        await store.schedules.create(schedule)
        if way == "fire":
            await store.schedules.fire([Firing(schedule.id, to_us(NOW), None, to_us(NOW))])
        else:
            await store.schedules.trigger(schedule.id, identity)
        sql = "SELECT uuid_send(id) FROM pulse.jobs WHERE schedule_id = $1"
        identity = await connection.fetchval(sql, schedule.id.hex())
    else:
        await _submit(store, way, [one])
    return await read(connection, identity)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("first", range(4), ids=LEVELS)
async def test_policy_is_resolved(store: Store, connection: Sql, first: int, way: str) -> None:
    found = await _made(store, connection, way, **await _set_policy(store, connection, LEVELS[first:]))
    assert {name: found[name] for name in ("max_attempts", "timeout_s")} == POLICY[LEVELS[first]]


@pytest.mark.parametrize("way", WAYS)
async def test_topic_is_resolved(store: Store, connection: Sql, way: str) -> None:
    """The job's, else the handler's, else `default`; the policy is the resolved topic's."""
    await store.note_handlers({"known": HandlerInfo(topic="its own")})
    await connection.execute("INSERT INTO pulse.topics VALUES ('its own', 7, 3, 7.5), ('default', 8, 3, 8.5)")
    jobs: list[dict[str, Any]] = [
        {"name": "known"},
        {"name": "known", "topic": None},
        {"name": "unknown", "topic": None},
    ]
    found = [await _made(store, connection, way, **one) for one in jobs]
    assert [(row["topic"], row["max_attempts"], row["timeout_s"]) for row in found] == [
        (TOPIC, 5, None),
        ("its own", 7, 7.5),
        ("default", 8, 8.5),
    ]


@pytest.mark.parametrize("way", WAYS[:4])
async def test_each_job_of_a_call_has_its_own_policy(store: Store, connection: Sql, way: str) -> None:
    """Handlers and topics are looked up once for all jobs of one name and topic; what a job itself says goes before."""
    await store.note_handlers({"known": HandlerInfo(topic="its own")})
    await connection.execute("INSERT INTO pulse.topics VALUES ('its own', 7, 3, 7.5), ('default', 8, 3, 8.5)")
    jobs = [
        job(name="known", topic=None), job(name="n", topic=None), job(name="known"), job(name="n"),
        job(name="n", topic=None, max_attempts=2, timeout_s=2.5), job(name="known", topic=None),
    ]  # fmt: skip
    await _submit(store, way, jobs)
    found = [await read(connection, one.id or b"") for one in jobs]
    assert [(row["name"], row["topic"], row["max_attempts"], row["timeout_s"]) for row in found] == [
        ("known", "its own", 7, 7.5), ("n", "default", 8, 8.5), ("known", TOPIC, 5, None), ("n", TOPIC, 5, None),
        ("n", "default", 2, 2.5), ("known", "its own", 7, 7.5),
    ]  # fmt: skip


def test_jobs_of_many_kinds_are_looked_up_one_by_one() -> None:
    """To count off the places of thousands of kinds takes longer than to look them up."""
    jobs = [job(name=f"n{number}") for number in range(arguments.MOST_KINDS + 1)]
    statements = [arguments.submit_call(some, None)[0] for some in (jobs[1:], jobs)]
    assert statements == [STATEMENTS["submit_alike"].sql, STATEMENTS["submit_jobs"].sql]


@pytest.mark.parametrize("way", WAYS[:3])
async def test_when_it_is_due(store: Store, connection: Sql, way: str) -> None:
    """run_at wins over delay_s, delay_s counts from now, and the n-th job of one call is due n microseconds later."""
    jobs = [
        job(), job(delay_s=60.0), job(run_at=at(-5).timestamp()), job(run_at=at(7200).timestamp(), delay_s=1.0),
        job(),
    ]  # fmt: skip
    await _submit(store, way, jobs, NOW)
    due = [(await read(connection, one.id or b""))["next_run_at"] for one in jobs]
    assert due == [NOW, at(60.000001), at(-4.999998), at(7200.000003), at(0.000004)]


@pytest.mark.parametrize("way", WAYS[:3])
async def test_what_to_wake(store: Store, way: str) -> None:
    """
    The answer names each level that got work, once, with how much, and when it is due; later work wakes nobody.

    Each group has levels of its own.
    """
    jobs = [
        job(topic="a", priority=1), job(topic="a", priority=9), job(topic="a", priority=9),
        job(topic="a", priority=50, delay_s=60.0), job(topic="b", priority=-3, run_at=at(0.5).timestamp()),
        job(topic="c", delay_s=1.5), job(topic="a", priority=9, group_key="g"),
    ]  # fmt: skip
    woken = await _submit(store, way, jobs, NOW)
    assert sorted(woken, key=lambda one: (one[:2], one.group_key or "")) == [
        Wake("a", 1, NOW.timestamp(), 1), Wake("a", 9, at(0.000001).timestamp(), 2),
        Wake("a", 9, at(0.000006).timestamp(), 1, "g"), Wake("a", 50, None, 1),
        Wake("b", -3, at(0.500004).timestamp(), 1), Wake("c", 0, None, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("way", WAYS[:4])
async def test_group_and_span_are_stored(store: Store, connection: Sql, way: str) -> None:
    jobs = [job(group_key="g"), job(), job(traceparent=f"00-{1:032x}-{1:016x}-01")]
    await _submit(store, way, jobs)
    stored = "SELECT group_key, traceparent FROM pulse.jobs WHERE id = $1::text::uuid"
    found = [await connection.fetchrow(stored, (one.id or b"").hex()) for one in jobs]
    assert [tuple(found_of(one)) for one in found] == [(one.group_key, one.traceparent) for one in jobs]


@pytest.mark.parametrize("way", WAYS[:2])
async def test_an_id_that_exists_refuses_the_whole_submit(store: Store, connection: Sql, way: str) -> None:
    known = job()
    await store.submit([known])
    with pytest.raises(StatementError, match="duplicate key value"):
        await _submit(store, way, [job(), known, job()])
    assert await count(connection) == 1


async def test_a_repeated_submit_inserts_what_is_missing(store: Store, connection: Sql) -> None:
    done = await forge(connection, "COMPLETED", result='"x"', attempts=2)
    await forge(connection, name="m", topic="u")
    before = await read(connection, done)
    jobs = [job(), job(id=done), job()]
    assert await store.submit_again(jobs, now=NOW) == [Wake(TOPIC, 0, NOW.timestamp(), 2)]
    assert await count(connection) == 4
    assert await read(connection, done) == before
    assert await store.submit_again(jobs, now=NOW) == []
    assert await count(connection) == 4


async def test_args_are_compared_as_json(store: Store, connection: Sql) -> None:
    known = await forge(connection, args='{"a": 1, "b": 2}')
    await store.submit_again([job(id=known, args='{"b":2,"a":1}')])
    assert await count(connection) == 1


async def test_the_same_job_twice_in_a_repeated_submit(store: Store, connection: Sql) -> None:
    """The same id with the same content twice is one job; with another content it is a conflict."""
    one = job()
    await store.submit_again([one, one])
    assert await count(connection) == 1
    other = new_id()
    with pytest.raises(ConflictError, match="exists already"):
        await store.submit_again([job(id=other), job(id=other, name="m")])
    assert await count(connection) == 1


@pytest.mark.parametrize("different", [{"name": "m"}, {"topic": "u"}, {"topic": None}, {"args": '{"a": 1}'}], ids=str)
async def test_another_job_under_the_same_id_is_a_conflict(
    store: Store, connection: Sql, different: dict[str, Any]
) -> None:
    known = await forge(connection)
    before = await read(connection, known)
    with pytest.raises(ConflictError, match=str(before["id"])):
        await store.submit_again([job(), job(id=known, **different)])
    assert await count(connection) == 1
    assert await read(connection, known) == before


async def test_other_policy_under_the_same_id_is_no_conflict(store: Store, connection: Sql) -> None:
    """Priority, due time, budgets and group do not make another job: the first submit's stay."""
    known = await forge(connection)
    before = await read(connection, known)
    await store.submit_again([job(id=known, priority=5, delay_s=5.0, max_attempts=9, timeout_s=9.0, group_key="g")])
    assert await read(connection, known) == before


async def test_a_topic_that_the_handler_names_is_the_same_job(store: Store, connection: Sql) -> None:
    """A topic left out is compared as it would be resolved."""
    await store.note_handlers({"n": HandlerInfo(topic=TOPIC)})
    known = await forge(connection)
    await store.submit_again([job(id=known, topic=None)])
    assert await count(connection) == 1
