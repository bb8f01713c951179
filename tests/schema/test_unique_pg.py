"""Unique keys: an INSERT takes one, moves let it go, and no move takes one; what a second submit finds."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Final

import asyncpg
import pytest

from pulse.common.ids import uuid7
from pulse.store.store import Store
from tests.support.store.helpers import STATUSES, TOPIC, Row, Sql, at, count, forge, found_of
from tests.support.waiting import until_blocked

BOTH: Final = pytest.mark.parametrize("many", [False, True], ids=["submit", "submit_many"])
KEY: Final = "doc:42"
FORGET: Final = "SELECT setval('pulse.work_notified', 1)"
NOTIFIED: Final = "SELECT last_value FROM pulse.work_notified"
KEYLESS: Final = "unique_until or on_conflict is given; they are allowed with unique_key only"
LIVE: Final = ("PENDING", "RUNNING", "RETRYING")
SEALED: Final = {"$pulse": "one"}
HELD: Final = datetime(9999, 12, 30, tzinfo=UTC)


@pytest.fixture
async def watcher(dsn: str) -> AsyncIterator[Sql]:
    session = await asyncpg.connect(dsn)
    yield session
    await session.close(timeout=5)


async def submit(connection: Sql, *, many: bool = False, key: str | None = KEY, **fields: Any) -> uuid.UUID:
    fields = {"name": "n", "topic": TOPIC, "unique_key": key, **fields}
    if many:
        [made] = await submit_many(connection, fields)
        return made
    names, values = list(fields), [json.dumps(value) if isinstance(value, dict) else value for value in fields.values()]
    places = ", ".join(f"{name} => ${place}" for place, name in enumerate(names, 1))
    found: uuid.UUID = await connection.fetchval(f"SELECT pulse.submit({places})", *values)
    return found


async def submit_many(connection: Sql, *jobs: Row) -> list[uuid.UUID]:
    document = json.dumps([{"name": "n", "topic": TOPIC, **one} for one in jobs])
    return [row["id"] for row in await connection.fetch("SELECT pulse.submit_many($1) AS id", document)]


async def read(connection: Sql, job: uuid.UUID) -> Row:
    return dict(found_of(await connection.fetchrow("SELECT * FROM pulse.jobs WHERE id = $1", job)))


async def found_instead(connection: Sql, job: uuid.UUID, args: Row, on_conflict: str = "skip") -> list[uuid.UUID]:
    """What a new job with the key finds there."""
    asked = "SELECT job_id FROM pulse.unique_holder($1, 'n', $2, $3, now(), NULL, $4, $5)"
    return [row["job_id"] for row in await connection.fetch(asked, job, TOPIC, json.dumps(args), KEY, on_conflict)]


def differences(before: Row, after: Row) -> set[str]:
    return {name for name, value in after.items() if before[name] != value}


async def holder(connection: Sql, status: str, **columns: Any) -> uuid.UUID:
    return uuid.UUID(bytes=await forge(connection, status, unique_key=KEY, **{"unique_until": "end", **columns}))


@BOTH
async def test_skip_keeps_the_job_that_has_the_key(connection: Sql, many: bool) -> None:
    """The id of that job comes back, and nothing of it changes; another key is another job."""
    first = await submit(connection, many=many, args={"a": 1}, group_key="g")
    before = await read(connection, first)
    assert (before["unique_key"], before["unique_until"], before["group_key"]) == (KEY, "end", "g")
    assert await submit(connection, many=many, args={"a": 2}, id=str(uuid7())) == first
    assert await read(connection, first) == before
    assert await submit(connection, many=many, key="doc:43") != first
    assert await submit(connection, many=many, key=None) != first


@pytest.mark.parametrize(("topic", "marked"), [("loud", True), ("silent", None)])
async def test_a_job_that_waits_for_none(connection: Sql, topic: str, marked: bool | None) -> None:
    """It is due at its time, and is marked as a parent only if its own topic publishes."""
    await connection.execute("INSERT INTO pulse.topics (topic, publish) VALUES ('loud', true), ('silent', false)")
    given = "pulse.uuid7(), 'n', $1, '{}', 0, $2, 1, NULL, NULL, NULL, NULL, 'k', NULL, NULL"
    await connection.execute(f"SELECT pulse.insert_unique({given})", topic, at(5))
    row = await connection.fetchrow("SELECT next_run_at, run_after, is_parent FROM pulse.jobs")
    assert tuple(row or ()) == (at(5), None, marked)


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("until", ["start", "end"])
async def test_who_has_a_key(connection: Sql, status: str, until: str) -> None:
    """Until its start: a job that waits for its first try; until its end: any that has not ended."""
    job = await holder(connection, status, unique_until=until)
    has_it = status in LIVE if until == "end" else status == "PENDING"
    assert (await submit(connection) == job) is has_it


async def test_a_job_that_comes_back_to_wait_does_not_take_its_key_again(connection: Sql) -> None:
    """It was tried, so it has let the key go at its start, also where it is PENDING again."""
    job = await holder(connection, "PENDING", unique_until="start", attempts=1, uncharged=1)
    assert await submit(connection) != job


@pytest.mark.parametrize("how", ["skip", "replace"])
async def test_jobs_that_have_given_the_key_away(connection: Sql, how: str) -> None:
    """Older and younger ones are neither found nor replaced."""

    async def givers() -> list[uuid.UUID]:
        return [
            await holder(connection, "PENDING", unique_until=None),
            await holder(connection, "PENDING", unique_until="start", attempts=1, uncharged=1),
            await holder(connection, "RETRYING", unique_until="start"),
            await holder(connection, "CANCELED"),
        ]

    older, job, younger = await givers(), await holder(connection, "PENDING"), await givers()
    before = [await read(connection, one) for one in (*older, *younger)]
    assert await found_instead(connection, uuid7(), {"a": 2}, how) == [job]
    assert [await read(connection, one) for one in (*older, *younger)] == before
    assert (await read(connection, job))["args"] == ("{}" if how == "skip" else '{"a": 2}')


@BOTH
async def test_error_names_key_and_job(connection: Sql, many: bool) -> None:
    job = await submit(connection, many=many)
    with pytest.raises(asyncpg.UniqueViolationError, match=f"^unique key '{KEY}' belongs to job {job}$"):
        await submit(connection, many=many, on_conflict="error")
    assert await count(connection) == 1


@BOTH
@pytest.mark.parametrize("status", ["PENDING", "RETRYING"])
async def test_replace_changes_args_and_times(connection: Sql, many: bool, status: str) -> None:
    """Of a job that waits, in back-off, too; topic, priority and all else stay."""
    job = await holder(connection, status, args='{"a": 1}', expires_at=at(5))
    before = await read(connection, job)
    other: Row = {"topic": "elsewhere", "priority": 9, "max_attempts": 1, "timeout_s": 9.0}
    new: Row = {"args": {"a": 2}, "delay_s": 60.0, "expires_in_s": 600.0, **other}
    assert await submit(connection, many=many, on_conflict="replace", **new) == job
    after = await read(connection, job)
    assert differences(before, after) == {"args", "next_run_at", "expires_at"}
    assert json.loads(after["args"]) == {"a": 2}
    assert (after["expires_at"] - after["next_run_at"]).total_seconds() == pytest.approx(540, abs=1)


@pytest.mark.parametrize("until", ["start", "end"])
async def test_replace_leaves_a_job_that_runs(connection: Sql, until: str) -> None:
    """It is skipped; where its key went at its start, there is a new job."""
    job = await holder(connection, "RUNNING", unique_until=until)
    before = await read(connection, job)
    assert (await submit(connection, on_conflict="replace", args={"a": 2}) == job) is (until == "end")
    assert await read(connection, job) == before


async def test_replace_leaves_the_place_of_a_job_that_is_held_back(connection: Sql) -> None:
    job = await holder(connection, "PENDING", next_run_at=HELD)
    assert await submit(connection, on_conflict="replace", args={"a": 2}) == job
    assert (await read(connection, job))["next_run_at"] == HELD


async def test_replace_of_another_handlers_job(connection: Sql) -> None:
    """Its args are not those of this handler."""
    job = await submit(connection, args={"a": 1})
    said = f"unique key '{KEY}' belongs to job {job} of another handler; only one of the same handler can be replaced"
    with pytest.raises(asyncpg.UniqueViolationError, match=said):
        await submit(connection, name="m", on_conflict="replace", args={"a": 2})
    assert (await read(connection, job))["args"] == '{"a": 1}'
    assert await submit(connection, name="m") == job


@BOTH
async def test_the_same_submit_again(connection: Sql, many: bool) -> None:
    """The same id is the same job, also with args that were replaced since; it does not replace them back."""
    own = str(uuid7())
    job = await submit(connection, many=many, id=own, args={"a": 1}, on_conflict="error")
    await submit(connection, on_conflict="replace", args={"a": 2})
    before = await read(connection, job)
    for how in ("skip", "replace", "error"):
        assert str(await submit(connection, many=many, id=own, args={"a": 1}, on_conflict=how)) == own
    assert await read(connection, job) == before


@pytest.mark.parametrize("different", [{"name": "m"}, {"topic": "u"}, {"key": "k", "args": {"a": 1}}], ids=str)
async def test_another_job_under_the_same_id(connection: Sql, different: Row) -> None:
    job = await submit(connection)
    with pytest.raises(asyncpg.UniqueViolationError, match=f"job {job} exists already with another name, topic or ar"):
        await submit(connection, id=str(job), **different)
    assert await submit(connection, id=str(job), key="k") == job  # the same name, topic and args


@pytest.mark.parametrize(("stored", "given", "is_same"), [
    (SEALED, {"$pulse": "other"}, True), (SEALED, {"a": 1}, False), ({"a": 1}, SEALED, False),
], ids=["both", "stored", "given"])  # fmt: skip
async def test_encrypted_args_under_the_same_id(connection: Sql, stored: Row, given: Row, is_same: bool) -> None:
    """They differ each time they are encrypted: those of both are taken for the same, whatever the key is."""
    job = await submit(connection, key=None, args=stored)
    if is_same:
        assert await found_instead(connection, job, given) == [job]
    else:
        with pytest.raises(asyncpg.UniqueViolationError, match=f"job {job} exists already with another name, topic or"):
            await found_instead(connection, job, given)
    assert json.loads((await read(connection, job))["args"]) == stored


async def test_the_same_key_twice_in_one_call(connection: Sql) -> None:
    """As one after the other: the first is new, the last one's args win with replace; a key that is taken stays so."""
    taken = await submit(connection, key="taken")
    same: Row = {"unique_key": KEY, "on_conflict": "replace"}
    strict: Row = {"unique_key": "new", "on_conflict": "error"}
    jobs = await submit_many(
        connection, {**same, "args": {"a": 1}}, {"unique_key": "taken"}, {}, {**same, "args": {"a": 2}}
    )
    assert (jobs[0], jobs[1]) == (jobs[3], taken)
    assert len(set(jobs)) == await count(connection) == 3
    assert (await read(connection, jobs[0]))["args"] == '{"a": 2}'
    with pytest.raises(asyncpg.UniqueViolationError, match="unique key 'new' belongs to job"):
        await submit_many(connection, {}, strict, strict)
    assert await count(connection) == 3


async def test_a_plain_job_beside_one_with_a_key(connection: Sql) -> None:
    """Repeated, all or some, each is what it was; ids come back in the order of the document."""
    ids = [str(uuid7()) for _ in range(4)]
    await submit(connection, key=None, id=ids[3])
    jobs: list[Row] = [{"id": ids[0]}, {"id": ids[1], "unique_key": KEY}, {"id": ids[2], "args": {"a": 1}}]
    jobs.append({"id": ids[3]})
    for _ in range(2):
        assert list(map(str, await submit_many(connection, *jobs))) == ids
    with pytest.raises(asyncpg.UniqueViolationError, match=f"job {ids[2]} exists already"):
        await submit_many(connection, {"unique_key": "k"}, {"id": ids[2], "args": {"a": 2}})
    rows = [await read(connection, uuid.UUID(one)) for one in ids[:3]]
    assert [(row["next_run_at"] - rows[0]["next_run_at"]).microseconds for row in rows] == [0, 1, 2]


@BOTH
@pytest.mark.parametrize(("fields", "said"), [
    ({"key": ""}, "unique_key is ''; 1 to 500 characters are allowed"),
    ({"key": "x" * 501}, f"unique_key is '{'x' * 50}'; 1 to 500 characters are allowed"),
    ({"unique_until": "never"}, "unique_until is 'never'; allowed are start, end"),
    ({"on_conflict": "panic"}, "on_conflict is 'panic'; allowed are skip, replace, error"),
    ({"key": None, "unique_until": "end"}, KEYLESS),
    ({"key": None, "on_conflict": "skip"}, KEYLESS),
], ids=str)  # fmt: skip
async def test_what_is_refused(connection: Sql, many: bool, fields: Row, said: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError) as caught:
        await submit(connection, many=many, **fields)
    assert str(caught.value) == said


@pytest.mark.parametrize("how", ["skip", "replace", "error"])
@pytest.mark.parametrize("commits", [True, False], ids=["committed", "rolled back"])
async def test_two_submits_at_once(connection: Sql, other: Sql, watcher: Sql, how: str, commits: bool) -> None:
    """The second waits for the first one's transaction, and judges by what became of it."""
    transaction = connection.transaction()
    await transaction.start()
    first = await submit(connection, args={"a": 1})
    second = asyncio.create_task(submit(other, args={"a": 2}, on_conflict=how))
    await until_blocked(watcher, by=connection.get_server_pid())
    await (transaction.commit() if commits else transaction.rollback())
    if commits and how == "error":
        with pytest.raises(asyncpg.UniqueViolationError, match=f"belongs to job {first}"):
            await second
    else:
        assert (await second == first) is commits
    [row] = await connection.fetch("SELECT args FROM pulse.jobs")
    assert row["args"] == ('{"a": 1}' if commits and how != "replace" else '{"a": 2}')


@pytest.mark.parametrize(("move", "is_same"), [
    ("status = 'RUNNING', attempts = 1, started_at = now(), lease_until = now(), locked_by = 'w'", ["end"]),
    ("status = 'CANCELED', completed_at = now()", []),
    ("priority = 5", ["start", "end"]),
], ids=["claimed", "canceled", "changed"])  # fmt: skip
@pytest.mark.parametrize("until", ["start", "end"])
@pytest.mark.parametrize("how", ["skip", "replace"])
async def test_a_submit_while_the_holder_moves(
    connection: Sql, other: Sql, watcher: Sql, move: str, is_same: list[str], until: str, how: str
) -> None:
    """It judges by where the job is afterwards: a key that was let go is its own, and no job that runs is changed."""
    job = await holder(connection, "PENDING", unique_until=until, args='{"a": 1}')
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(f"UPDATE pulse.jobs SET {move}")
    second = asyncio.create_task(submit(other, args={"a": 2}, on_conflict=how))
    await until_blocked(watcher, by=connection.get_server_pid())
    await transaction.commit()
    assert (await second == job) is (until in is_same)
    replaced = how == "replace" and move == "priority = 5"
    assert (await read(connection, job))["args"] == ('{"a": 2}' if replaced else '{"a": 1}')


async def test_a_snapshot_of_before(connection: Sql, other: Sql) -> None:
    """REPEATABLE READ cannot see the job that has the key: it fails, and does not try without an end."""
    transaction = other.transaction(isolation="repeatable_read")
    await transaction.start()
    await count(other)
    await submit(connection)
    with pytest.raises(asyncpg.SerializationError):
        await submit(other)
    await transaction.rollback()


@pytest.mark.usefixtures("own_database")
async def test_an_insert_that_is_swallowed(connection: Sql) -> None:
    """A trigger of somebody else's, which drops the row: an error, and no search without an end."""
    await connection.execute(
        "CREATE FUNCTION public.drop_it() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        "CREATE TRIGGER a BEFORE INSERT ON pulse.jobs FOR EACH ROW EXECUTE FUNCTION public.drop_it()"
    )
    with pytest.raises(asyncpg.PostgresError, match="a trigger or a rule that is not pulse's drops it"):
        await submit(connection)


@pytest.mark.usefixtures("own_database")
async def test_a_key_that_goes_between_two_looks(connection: Sql) -> None:
    """The INSERT has met the job that has it, which has ended before it is looked at: the key is free, and taken."""
    job = await submit(connection)
    made: str = await connection.fetchval("SELECT pg_get_functiondef('pulse.unique_holder'::regproc)")
    ends_it = "BEGIN UPDATE pulse.jobs SET status = 'CANCELED', completed_at = now(); END"
    await connection.execute(f"{made.partition('LANGUAGE')[0]} LANGUAGE plpgsql AS $$ {ends_it} $$")
    other = await submit(connection, on_conflict="error")
    assert (await read(connection, other))["status"] == "PENDING"
    assert other != job


@BOTH
@pytest.mark.parametrize(("how", "delay_s", "is_told"), [
    ("skip", 0, False), ("replace", 0, True), ("new", 0, True),
])  # fmt: skip
async def test_dispatchers_are_notified(connection: Sql, many: bool, how: str, delay_s: int, is_told: bool) -> None:
    """Of a job that is new or was replaced, and may be due now; not of one that is as it was."""
    if how != "new":
        await submit(connection, delay_s=3600)
    await connection.execute(FORGET)
    await submit(connection, many=many, on_conflict="skip" if how == "new" else how, delay_s=delay_s)
    assert (await connection.fetchval(NOTIFIED) > 1) is is_told


async def test_keys_in_any_order(connection: Sql, other: Sql, watcher: Sql) -> None:
    """A call takes its keys in their own order: so two of them wait for each other, but never in a circle."""
    transaction = connection.transaction()
    await transaction.start()
    await submit(connection, key="b")
    task = asyncio.create_task(submit_many(other, {"unique_key": "c"}, {"unique_key": "b"}, {"unique_key": "a"}))
    await until_blocked(watcher, by=connection.get_server_pid())
    await submit(connection, key="c")  # nobody has it yet
    await transaction.commit()
    assert len(await task) == await count(watcher) == 3


async def test_an_operators_retry_takes_no_key(store: Store, connection: Sql) -> None:
    """Another job may have it: nothing conflicts, and the retried one keeps nothing away."""
    ended = [await holder(connection, status) for status in ("COMPLETED", "DEAD_LETTERED", "CANCELED")]
    job = await submit(connection)
    assert len(await store.retry([one.bytes for one in ended])) == 3
    assert await submit(connection) == job
    await connection.execute("DELETE FROM pulse.jobs WHERE id = $1", job)
    assert await submit(connection) not in ended
    rows = [await read(connection, one) for one in ended]
    assert {(row["status"], row["unique_key"], row["unique_until"]) for row in rows} == {("PENDING", KEY, None)}
