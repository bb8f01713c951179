"""pulse.submit and pulse.submit_many: the public API in SQL, for any language, inside the caller's own transaction."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final

import asyncpg
import pytest

from pulse.protocol import HandlerInfo
from pulse.store.store import WORK_CHANNEL, Store
from tests.support.store.helpers import TOPIC, Row, Sql, at, claim, count, dropping, forge, new_id, read

BOTH: Final = pytest.mark.parametrize("many", [False, True], ids=["submit", "submit_many"])
BAD_VALUE: Final = "22023"
TRACE: Final = f"00-{32 * 'a'}-{16 * 'b'}-01"


async def submit(connection: Sql, *, many: bool = False, **fields: Any) -> bytes:
    if many:
        [made] = await submit_many(connection, [fields])
        return made
    arguments = ", ".join(f"{name} => {_literal(name, value)}" for name, value in fields.items())
    found: uuid.UUID = await connection.fetchval(f"SELECT pulse.submit({arguments})")
    return found.bytes


async def submit_many(connection: Sql, jobs: object) -> list[bytes]:
    rows = await connection.fetch("SELECT pulse.submit_many($1) AS id", json.dumps(jobs))
    return [row["id"].bytes for row in rows]


def _literal(name: str, value: Any) -> str:
    if value is None:
        return "NULL"
    text = json.dumps(value) if name == "args" else str(value)
    return "'" + text.replace("'", "''") + "'"


@BOTH
async def test_only_a_name(store: Store, connection: Sql, many: bool) -> None:
    """No args, the default topic, priority 0, due now, the server's budgets, a time-ordered id."""
    identity = await submit(connection, many=many, name="n")
    found = await read(connection, identity)
    due = found.pop("next_run_at"), found.pop("submitted_at")
    assert await connection.fetchval("SELECT clock_timestamp() - $1::timestamptz < interval '5 s'", min(due))
    assert uuid.UUID(bytes=identity).version == 7
    assert {name: value for name, value in found.items() if value is not None} == {
        "id": uuid.UUID(bytes=identity), "attempts": 0, "uncharged": 0, "crashes": 0, "max_attempts": 5,
        "status": "PENDING", "priority": 0, "topic": "default", "name": "n", "args": "{}",
    }  # fmt: skip
    assert [one.id for one in await store.claim(["default"], ["w"], [0, 0], 1.0)] == [identity]


@BOTH
async def test_all_that_can_be_said(connection: Sql, many: bool) -> None:
    identity = new_id()
    fields = {
        "name": "n", "args": {"path": "a'b.png"}, "topic": "images", "priority": -100, "run_at": at(5.25).isoformat(),
        "max_attempts": 2, "timeout_s": 0.5, "group_key": 200 * "g", "id": str(uuid.UUID(bytes=identity)),
    }  # fmt: skip
    assert await submit(connection, many=many, **fields) == identity
    expected = {**fields, "args": '{"path": "a\'b.png"}', "run_at": at(5.25), "id": uuid.UUID(bytes=identity)}
    expected["next_run_at"] = expected.pop("run_at")
    found = await read(connection, identity)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("fields", [
    {},
    {"topic": TOPIC, "priority": 7, "max_attempts": 2, "timeout_s": 0.5, "group_key": "g", "traceparent": TRACE},
    {"group_key": "g", "traceparent": TRACE, "unique_key": "k", "unique_until": "start", "priority": 7},
], ids=["plain", "all", "unique"])  # fmt: skip
async def test_a_document_of_one(connection: Sql, fields: Row) -> None:
    """It stores the same row as a single submit; who waits for no job is due by next_run_at alone."""
    times = {"run_at": at(5).isoformat(), "expires_at": at(9).isoformat()}
    rows: list[Row] = []
    for many in (False, True):
        await submit(connection, many=many, name="n", **times, **fields)
        [row] = await connection.fetch("DELETE FROM pulse.jobs RETURNING *")
        rows.append({name: value for name, value in row.items() if name not in {"id", "submitted_at"}})
    assert rows[0] == rows[1]
    expected = {**fields, "next_run_at": at(5), "expires_at": at(9), "run_after": None, "waiting_on": None}
    assert {name: rows[0][name] for name in expected} == expected


async def test_each_has_its_own_options(store: Store, connection: Sql) -> None:
    """Those of its handler and topic, whatever others have; and the server's where these say nothing."""
    numbers = range(2, 7)
    await store.note_handlers({f"n{one}": HandlerInfo(topic=f"t{one}", max_attempts=one) for one in numbers})
    await connection.execute(
        "DELETE FROM pulse.topics;"
        "INSERT INTO pulse.topics (topic, timeout_s) SELECT 't' || n, n FROM generate_series(2, 6) AS n;"
        "INSERT INTO pulse.topics (topic, max_attempts, max_crashes) VALUES ('', 9, 3)"  # the last that is found
    )
    jobs: list[Row] = [*({"name": f"n{one}"} for one in numbers), {"name": "unknown"}]
    made = [*await submit_many(connection, jobs), *[await submit(connection, **one) for one in jobs]]
    rows = [await read(connection, one) for one in made]
    expected = [*((f"t{one}", one, float(one)) for one in numbers), ("default", 9, None)]
    assert [(row["topic"], row["max_attempts"], row["timeout_s"]) for row in rows] == 2 * expected


@BOTH
async def test_a_delay(connection: Sql, many: bool) -> None:
    found = await read(connection, await submit(connection, many=many, name="n", delay_s=60))
    assert (found["next_run_at"] - found["submitted_at"]).total_seconds() == pytest.approx(60, abs=1)


@BOTH
async def test_the_same_submit_twice(connection: Sql, many: bool) -> None:
    """The same id with the same name, topic and args is the same job, in any state and with any other options."""
    identity = await forge(connection, "COMPLETED", args='{"a": 1, "b": 2}')
    before = await read(connection, identity)
    same: Row = {"name": "n", "topic": TOPIC, "args": {"b": 2, "a": 1}, "id": str(uuid.UUID(bytes=identity))}
    assert await submit(connection, many=many, **same) == identity
    assert await submit(connection, many=many, **same, priority=5, max_attempts=1, group_key="g") == identity
    assert await read(connection, identity) == before
    assert await count(connection) == 1


@BOTH
@pytest.mark.parametrize("different", [{"name": "m"}, {"topic": "u"}, {"topic": None}, {"args": {"a": 1}}], ids=str)
async def test_another_job_under_the_same_id(connection: Sql, many: bool, different: Row) -> None:
    identity = str(uuid.UUID(bytes=await forge(connection)))
    fields = {"name": "n", "topic": TOPIC, "id": identity, **different}
    with pytest.raises(
        asyncpg.UniqueViolationError, match=f"job {identity} exists already with another name, topic or args"
    ):
        await submit(connection, many=many, **fields)


@pytest.mark.parametrize("function", ["is_stored", "is_stored_unseen"])
async def test_what_is_the_same_job(connection: Sql, function: str) -> None:
    """All four are the same, of one job; of encrypted args only that both are."""
    plain, sealed = [await forge(connection, args=args) for args in ('{"a": 1}', '{"$pulse": "one"}')]
    for is_same, identity, *rest in (
        (True, plain, "n", TOPIC, '{"a": 1}'), (True, sealed, "n", TOPIC, '{"$pulse": "other"}'),
        (False, sealed, "n", TOPIC, '{"a": 1}'), (False, new_id(), "n", TOPIC, '{"a": 1}'),
        (False, plain, "m", TOPIC, '{"a": 1}'), (False, plain, "n", "u", '{"a": 1}'),
        (False, plain, "n", TOPIC, '{"a": 2}'), (False, plain, "n", TOPIC, '{"$pulse": "one"}'),
    ):  # fmt: skip
        found = await connection.fetchval(f"SELECT pulse.{function}($1, $2, $3, $4)", uuid.UUID(bytes=identity), *rest)
        assert found is is_same, rest


@pytest.mark.parametrize("right", [
    "SELECT (id, name, topic, args) ON pulse.jobs", "EXECUTE ON FUNCTION pulse.is_stored_unseen",
], ids=["reads", "submits"])  # fmt: skip
async def test_who_may_ask_for_the_same_job(connection: Sql, right: str) -> None:
    """Who may read jobs, by its own rights; and who may not, by a function that has its owner's."""
    identity, role = await forge(connection), f"t{os.getpid()}_asks"
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA pulse TO {role}; GRANT {right} TO {role}")
        await connection.execute(f"SET LOCAL ROLE {role}")
        assert await connection.fetchval("SELECT pulse.is_stored($1, 'n', $2, '{}')", identity.hex(), TOPIC)
    finally:
        await transaction.rollback()


@BOTH
async def test_a_topic_left_out_is_compared_as_resolved(store: Store, connection: Sql, many: bool) -> None:
    """By its own handler, whichever function stored it."""
    others = {f"m{number}": HandlerInfo(topic=f"u{number}") for number in range(3)}
    await store.note_handlers({**others, "n": HandlerInfo(topic=TOPIC)})
    identity = await submit(connection, many=not many, name="n")
    assert await submit(connection, many=many, name="n", id=str(uuid.UUID(bytes=identity))) == identity


@BOTH
async def test_in_the_callers_transaction(store: Store, connection: Sql, many: bool) -> None:
    transaction = connection.transaction()
    await transaction.start()
    await submit(connection, many=many, name="n", topic=TOPIC, run_at=at(-9).isoformat())
    assert await claim(store) == []
    await transaction.rollback()
    assert await count(connection) == 0
    async with connection.transaction():
        identity = await submit(connection, many=many, name="n", topic=TOPIC, run_at=at(-9).isoformat())
    assert [one.id for one in await claim(store)] == [identity]


REFUSED: Final = [
    ({"name": None}, "name is NULL; 1 to 200 characters are allowed"),
    ({"name": ""}, "name is ''; 1 to 200 characters are allowed"),
    ({"name": "x" * 201}, f"name is '{'x' * 50}'; 1 to 200 characters are allowed"),
    ({"name": "n", "args": []}, "args must be a JSON object, not array"),
    ({"name": "n", "args": None}, "args must be a JSON object, not NULL"),
    ({"name": "n", "priority": 101}, "priority is 101; -100 to 100 is allowed"),
    ({"name": "n", "delay_s": 1, "run_at": "2030-01-01"}, "run_at and delay_s are both given; one of them is allowed"),
    ({"name": "n", "delay_s": -1}, "delay_s is -1; seconds from 0 to 1e9 are allowed"),
    ({"name": "n", "delay_s": 2e9}, "delay_s is 2000000000; seconds from 0 to 1e9 are allowed"),
    ({"name": "n", "priority": -101}, "priority is -101; -100 to 100 is allowed"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=str)
async def test_what_submit_refuses(connection: Sql, fields: Row, message: str) -> None:
    with pytest.raises(asyncpg.PostgresError) as caught:
        await submit(connection, **fields)
    assert (caught.value.sqlstate, str(caught.value).split("\n")[0]) == (BAD_VALUE, message)


@BOTH
@pytest.mark.parametrize("group", ["", "*", "x" * 201], ids=["empty", "star", "long"])
async def test_what_is_no_group(connection: Sql, many: bool, group: str) -> None:
    with pytest.raises(asyncpg.PostgresError) as caught:
        await submit(connection, many=many, name="n", group_key=group)
    message = f"group_key is '{group[:50]}'; 1 to 200 characters are allowed, but not * alone"
    assert (caught.value.sqlstate, str(caught.value)) == (BAD_VALUE, message)
    assert await submit(connection, many=many, name="n", group_key=None)


async def test_no_priority_is_the_default(connection: Sql) -> None:
    found = await read(connection, await submit(connection, name="n", priority=None, run_at=None, topic=None))
    assert (found["priority"], found["topic"]) == (0, "default")


@pytest.mark.parametrize(("jobs", "message"), [
    (None, "jobs must be a JSON array of objects, not null"),
    ({}, "jobs must be a JSON array of objects, not object"),
    ([{"name": "n"}, 1], "jobs must be a JSON array of objects, and one of them is of type number"),
    (["n"], "jobs must be a JSON array of objects, and one of them is of type string"),
    (
        [{"name": "n", "delay": 1}],
        (
            'unknown key "delay" in a job; allowed are '
            "name, args, topic, priority, run_at, max_attempts, timeout_s, id, expires_at, expires_in_s, "
            "traceparent, delay_s, group_key, unique_key, unique_until, on_conflict, after, on_failure"
        ),
    ),
    ([{"name": "n", "delay_s": 1, "run_at": "2030-1-1"}], "run_at and delay_s are both given; one of them is allowed"),
    ([{"name": "n", "delay_s": -1}], "delay_s is -1; seconds from 0 to 1e9 are allowed"),
    ([{"name": "n", "expires_in_s": 0}], "expires_in_s is 0; seconds above 0, at most 1e9, are allowed"),
    ([{"name": "n", "expires_in_s": 2e9}], "expires_in_s is 2000000000; seconds above 0, at most 1e9, are allowed"),
    ([{"name": "n", "delay_s": 1}, {"name": "n", "delay_s": -1}], "delay_s is -1; seconds from 0 to 1e9 are allowed"),
    (
        [{"name": "n", "traceparent": TRACE}, {"name": "n", "traceparent": "00"}],
        "traceparent is '00'; one of W3C Trace Context is allowed",
    ),
    (
        [{"name": "n", "group_key": "g"}, {"name": "n", "group_key": "*"}],
        "group_key is '*'; 1 to 200 characters are allowed, but not * alone",
    ),
    (
        [{"name": "n", "after": []}, {"name": "n", "after": 5}],
        "after is 5; an array of up to 10000 ids of jobs is allowed",
    ),
    (
        [{"name": "n", "unique_key": "k"}, {"name": "n", "unique_key": ""}],
        "unique_key is ''; 1 to 500 characters are allowed",
    ),
], ids=str)  # fmt: skip
async def test_what_submit_many_refuses(connection: Sql, jobs: object, message: str) -> None:
    """One bad job is enough, wherever it is; a job that is there stays alone."""
    await submit(connection, name="n")
    with pytest.raises(asyncpg.PostgresError) as caught:
        await submit_many(connection, jobs)
    assert (caught.value.sqlstate, str(caught.value)) == (BAD_VALUE, message)
    assert await count(connection) == 1
    with pytest.raises(asyncpg.PostgresError, match="not NULL"):
        await connection.fetch("SELECT pulse.submit_many(NULL)")


@pytest.mark.parametrize("bad", [{}, {"name": ""}, {"name": "n", "args": 1}, {"name": "n", "priority": 101}], ids=str)
async def test_all_or_none(connection: Sql, bad: Row) -> None:
    with pytest.raises(asyncpg.IntegrityConstraintViolationError, match=r"check constraint|not-null constraint"):
        await submit_many(connection, [{"name": "n"}, bad, {"name": "n"}])
    assert await count(connection) == 0


async def test_a_document_that_was_half_there(connection: Sql) -> None:
    """Ids that are there stay, the others are inserted, and all come back in the order of the document."""
    known = str(uuid.UUID(bytes=await forge(connection)))
    new = str(uuid.uuid4())
    jobs = [{"name": "n", "topic": TOPIC, "id": new}, {"name": "n", "topic": TOPIC, "id": known}]
    for _ in range(2):
        assert await submit_many(connection, jobs) == [uuid.UUID(new).bytes, uuid.UUID(known).bytes]
    assert await count(connection) == 2


async def test_a_conflict_among_jobs_without_an_id(connection: Sql) -> None:
    """They cannot be there already, and hide none that is."""
    known = str(uuid.UUID(bytes=await submit(connection, name="n")))
    jobs: list[Row] = [{"name": "n"}, {"name": "n", "id": known, "args": {"a": 1}}, {"name": "n"}]
    with pytest.raises(asyncpg.UniqueViolationError, match=f"job {known} exists already"):
        await submit_many(connection, jobs)
    assert await count(connection) == 1


def _after(job: uuid.UUID, *, many: bool) -> Row:
    return {"after": [str(job)] if many else f"{{{job}}}"}


@BOTH
async def test_a_repeated_submit_whose_parent_is_gone(connection: Sql, many: bool) -> None:
    """It has waited for it, and is the same job."""
    parent = uuid.UUID(bytes=await submit(connection, name="n"))
    fields = {"name": "n", "id": str(uuid.uuid4()), **_after(parent, many=many)}
    made = await submit(connection, many=many, **fields)
    await connection.execute("DELETE FROM pulse.jobs WHERE id = $1", parent)
    assert await submit(connection, many=many, **fields) == made


@BOTH
async def test_a_job_that_is_there_waits_for_nothing_more(connection: Sql, many: bool) -> None:
    """So it does not matter whether that exists."""
    made = await submit(connection, name="n", unique_key="k")
    fields = {"name": "n", "unique_key": "k", "on_conflict": "replace", **_after(uuid.uuid4(), many=many)}
    assert await submit(connection, many=many, **fields) == made


@BOTH
async def test_a_trigger_that_drops_jobs(connection: Sql, many: bool) -> None:
    async with dropping(connection):
        with pytest.raises(asyncpg.UniqueViolationError, match="with another name, topic or args"):
            await submit(connection, many=many, name="n")


async def test_an_empty_document(connection: Sql) -> None:
    assert await submit_many(connection, []) == []


@pytest.mark.parametrize("analysed", [False, True])
@pytest.mark.usefixtures("own_database")
async def test_order_of_a_document(store: Store, connection: Sql, analysed: bool) -> None:
    """
    The n-th job is due n microseconds after the first, and the ids come back in order, whatever the plan is.

    One that was submitted before is due before all of them.
    """
    if analysed:
        await store.note_handlers({f"n{number}": HandlerInfo() for number in range(100)})
        await connection.execute("ANALYZE pulse.handlers, pulse.topics")
    earlier = await submit(connection, name="n", topic=TOPIC)
    made = await submit_many(connection, [{"name": f"n{number % 7}", "topic": TOPIC} for number in range(40)])
    due = [(await read(connection, identity))["next_run_at"] for identity in made]
    assert [(moment - due[0]).microseconds for moment in due] == list(range(40))
    claimed = await store.claim([TOPIC], ["w"], [0] * 41, 1.0)
    assert [one.id for one in sorted(claimed, key=lambda one: one.due_at)] == [earlier, *made]


async def test_order_of_a_document_at_one_time(connection: Sql) -> None:
    made = await submit_many(connection, [{"name": "n", "run_at": at(5).isoformat()} for _ in range(3)])
    assert [(await read(connection, one))["next_run_at"] for one in made] == [at(5), at(5.000001), at(5.000002)]


NOTIFIED: Final = "SELECT last_value FROM pulse.work_notified"
FORGET: Final = "SELECT setval('pulse.work_notified', 1)"


async def heard_of(connection: Sql, *deeds: Callable[[], Awaitable[object]]) -> list[int]:
    heard: asyncio.Queue[str] = asyncio.Queue()

    def hear(*message: object) -> None:
        heard.put_nowait(str(message[3]))

    await connection.add_listener(WORK_CHANNEL, hear)
    found: list[int] = []
    for deed in deeds:
        await deed()
        await connection.execute(f"NOTIFY {WORK_CHANNEL}, 'mark'")
        texts: list[str] = []
        while (text := await asyncio.wait_for(heard.get(), 10)) != "mark":
            texts.append(text)
        assert set(texts) <= {""}
        found.append(len(texts))
    await connection.remove_listener(WORK_CHANNEL, hear)
    return found


@BOTH
async def test_workers_are_woken(connection: Sql, many: bool) -> None:
    """A new job notifies all dispatchers; neither a repeated one nor one that is rolled back does."""
    identity = uuid.uuid4()

    async def put() -> None:
        await connection.execute(FORGET)
        await submit(connection, many=many, name="n", id=str(identity))

    async def rolled_back() -> None:
        await connection.execute(FORGET)
        transaction = connection.transaction()
        await transaction.start()
        await submit(connection, many=many, name="n")
        await transaction.rollback()

    assert await heard_of(connection, put, put, rolled_back, put) == [1, 0, 0, 0]


async def test_workers_are_woken_once_in_a_while(connection: Sql) -> None:
    """At most twenty times a second, for all sessions together; also with the clock set back, or the setting off."""
    now_ms = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

    def after(last_ms: str, before: str = "SELECT") -> Callable[[], Awaitable[object]]:
        async def deed() -> None:
            await connection.execute(f"{before}; SELECT setval('pulse.work_notified', {last_ms})")
            await connection.execute("SELECT pulse.submit(name => 'n'); RESET pulse.notify")

        return deed

    async def twice() -> None:
        async with connection.transaction():
            await connection.execute(FORGET)
            await connection.execute("SELECT pulse.submit(name => 'n'), pulse.notify_work()")

    off = "SET pulse.notify = off"
    assert await heard_of(
        connection, after("1"), after(f"{now_ms} - 1000"), after(f"{now_ms} + 1000"), twice, after("1", off),
        after("1", "SET pulse.notify = on"),
    ) == [1, 1, 1, 1, 0, 1]  # fmt: skip
    async with connection.transaction():
        for last_ms, is_told in ((f"{now_ms} - 1000", True), (f"{now_ms} - 10", False)):
            last = await connection.fetchval(f"SELECT setval('pulse.work_notified', {last_ms})")
            await connection.execute("SELECT pulse.notify_work()")
            assert (await connection.fetchval(NOTIFIED) > last) is is_told
