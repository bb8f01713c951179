"""A job with a corrupt value: it is set aside, its readable parts are shown, and it can be deleted."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest
from asyncpg.pgproto.pgproto import UUID

from pulse.errors import StatementError
from pulse.protocol import ById, JobsList, JobsWithDependents
from pulse.store.reading.damaged_jobs import _is_read, legible_job, legible_jobs
from pulse.store.recovery.set_aside import SetAside, Suspect
from pulse.store.rows import Level
from pulse.store.store import Store
from pulse_actors.dispatcher.context import RequestContext
from pulse_actors.dispatcher.requests.jobs import cancel_jobs, delete_jobs, get_job, list_jobs, retry_jobs, why_job
from tests.actors.dispatcher.net.test_session_pg import Lobby
from tests.support.store.helpers import NOW, TERMINAL, TOPIC, Sql, forge, found_of, holding, new_id, read

TOAST = "SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = 'pulse.jobs'::regclass"
KIND = 'UPDATE pg_class SET relkind = $2::text::"char" WHERE oid = $1::regclass'
ASIDE = "SELECT job_id, next_try_at::text, tries, sqlstate, statement, error FROM pulse.set_aside"
SET_ASIDE = "INSERT INTO pulse.set_aside (job_id, sqlstate, statement, error) VALUES ($1, 'P0001', 'claim_jobs', 'no')"
LOST = "chunk number"  # which is missing, or comes where another one should


@pytest.fixture
def context(store: Store, connection: Sql) -> RequestContext:
    return RequestContext(Lobby(store, connection).services())


@pytest.fixture
async def args_are_read(connection: Sql) -> AsyncGenerator[None]:
    """Each write reads the args, as a trigger of the owner's may."""
    await connection.execute("ALTER TABLE pulse.jobs ADD CONSTRAINT args_are_read CHECK (args::text <> '') NOT VALID")
    yield
    await connection.execute("ALTER TABLE pulse.jobs DROP CONSTRAINT args_are_read")


async def corrupt(connection: Sql, status: str = "PENDING", **columns: Any) -> bytes:
    """A job whose args are gone, as on a bad disk: their TOAST rows are deleted."""
    job = await forge(connection, status, args=json.dumps({"text": secrets.token_hex(20_000)}), **columns)
    toast = await connection.fetchval(TOAST)
    for kind, statement in (
        ("r", f"DELETE FROM {toast}"),
        ("t", "VACUUM pulse.jobs"),
    ):  # nobody may write to what is called a t
        await connection.execute(KIND, toast, kind)
        await connection.execute(statement)
    with pytest.raises(asyncpg.DataCorruptedError, match=LOST):
        await read(connection, job)
    return job


async def aside(connection: Sql) -> list[tuple[Any, ...]]:
    return [(row[0].bytes, *list(row)[1:5], LOST in row["error"]) for row in await connection.fetch(ASIDE)]


async def reasons(context: RequestContext, job: bytes) -> Any:
    return (await why_job(context, ById(job)))["reasons"]


@pytest.mark.parametrize("status", ["PENDING", "RETRYING", "RUNNING"])
async def test_what_cannot_be_read_can_be_canceled(context: RequestContext, connection: Sql, status: str) -> None:
    job = await corrupt(connection, status)
    assert await cancel_jobs(context, JobsWithDependents([job])) == {"done": [job], "refused": []}


@pytest.mark.usefixtures("args_are_read")
@pytest.mark.parametrize("status", ["PENDING", "RETRYING", "RUNNING"])
async def test_what_cannot_be_canceled_is_set_aside(context: RequestContext, connection: Sql, status: str) -> None:
    """Others of the same request are canceled; the answer, the audit and `why` name this one, and the reason."""
    job = await corrupt(connection, status)
    others = [await forge(connection) for _ in range(4)]
    answer = await cancel_jobs(context, JobsWithDependents([*others[:2], job, *others[2:]]))
    assert answer == {"done": others, "refused": [[job, "set_aside"]]}
    expected = (job, "infinity", 1, "XX001", "cancel_jobs", True)
    assert await aside(connection) == [expected]
    assert await connection.fetchval("SELECT status::text FROM pulse.jobs WHERE id = $1", job.hex()) == status
    noted = await connection.fetch("SELECT action, job_id, detail FROM pulse.audit WHERE action = 'jobs.set_aside'")
    assert [(row["job_id"].bytes, json.loads(row["detail"])) for row in noted] == [(job, {"sqlstate": "XX001"})]
    await cancel_jobs(context, JobsWithDependents([job]))
    assert await aside(connection) == [(*expected[:2], 2, *expected[3:])]
    (reason,) = await reasons(context, job)
    assert (reason["code"], reason["details"]["sqlstate"], reason["details"]["for_good"]) == (
        "set_aside",
        "XX001",
        True,
    )
    assert "the database refuses cancel_jobs: " in reason["text"]
    assert LOST in reason["text"]
    assert "(SQLSTATE XX001)" in reason["text"]
    assert "again" not in reason["text"]


@pytest.mark.usefixtures("args_are_read")
async def test_what_is_set_aside_by_itself_is_tried_again(context: RequestContext, connection: Sql) -> None:
    """`why` says so; an operator's cancel ends that."""
    job = await corrupt(connection)
    await connection.execute(SET_ASIDE, job.hex())
    (reason,) = await reasons(context, job)
    assert reason["text"].endswith("the database refuses claim_jobs: no (SQLSTATE P0001). It is tried again by itself.")
    await cancel_jobs(context, JobsWithDependents([job]))
    assert await aside(connection) == [(job, "infinity", 2, "XX001", "cancel_jobs", True)]


async def test_what_has_ended_is_why_it_does_not_run(context: RequestContext, connection: Sql) -> None:
    job = await corrupt(connection, "CANCELED")
    await connection.execute(SET_ASIDE, job.hex())
    assert [one["code"] for one in await reasons(context, job)] == ["ended"]


@pytest.mark.parametrize("status", ["PENDING", "RETRYING", "RUNNING", *TERMINAL])
async def test_what_is_set_aside_can_be_deleted(context: RequestContext, connection: Sql, status: str) -> None:
    """In any status, without reading its args; nothing of it is left, and other jobs' places aside stay."""
    job, other = await corrupt(connection, status), await forge(connection)
    for one in (job, other):
        await connection.execute(SET_ASIDE, one.hex())
        await connection.execute(
            "INSERT INTO pulse.attempts (job_id, attempt, outcome) VALUES ($1, 7, 'error')", one.hex()
        )
    assert await delete_jobs(context, JobsWithDependents([job])) == {"done": [job], "refused": []}
    assert [row["id"].bytes for row in await connection.fetch("SELECT id FROM pulse.jobs")] == [other]
    assert [one[0] for one in await aside(connection)] == [other]
    assert [row["job_id"].bytes for row in await connection.fetch("SELECT job_id FROM pulse.attempts")] == [other]
    assert await connection.fetchval("SELECT job_id FROM pulse.audit WHERE action = 'jobs.delete'") is not None


@pytest.mark.parametrize("status", ["PENDING", "DEAD_LETTERED"])
async def test_what_can_be_changed_again_is_set_aside_no_more(
    context: RequestContext, connection: Sql, status: str
) -> None:
    """Also a job that an operator set aside: a cancel or retry works again; other jobs' places aside stay."""
    job, other = await forge(connection, status), await forge(connection)
    for one in (job, other):
        await connection.execute(SET_ASIDE, one.hex())
    await connection.execute("UPDATE pulse.set_aside SET next_try_at = 'infinity'")
    change = cancel_jobs if status == "PENDING" else retry_jobs
    assert await change(context, JobsWithDependents([job])) == {"done": [job], "refused": []}
    assert [one[0] for one in await aside(connection)] == [other]


async def test_what_is_not_set_aside_is_not_deleted(context: RequestContext, connection: Sql) -> None:
    job = await corrupt(connection)
    assert await delete_jobs(context, JobsWithDependents([job])) == {
        "done": [],
        "refused": [[job, "invalid_transition"]],
    }


async def test_an_error_that_is_nobodys_sets_nobody_aside(context: RequestContext, connection: Sql) -> None:
    """Where the statement fails for any job, the request fails, and no job is to blame."""
    job = await forge(connection)
    await connection.execute("ALTER TABLE pulse.attempts RENAME TO lost")
    try:
        with pytest.raises(StatementError, match="42P01"):
            await cancel_jobs(context, JobsWithDependents([job]))
    finally:
        await connection.execute("ALTER TABLE pulse.lost RENAME TO attempts")
    assert await aside(connection) == []
    assert await connection.fetch("SELECT FROM pulse.audit") == []


async def test_what_can_be_read_is_told(context: RequestContext, connection: Sql) -> None:
    others = [await forge(connection, args='{"a": 1}', progress="1") for _ in range(4)]
    job = await corrupt(connection, "DEAD_LETTERED", progress='"half"')
    await connection.execute("INSERT INTO pulse.attempts (job_id, attempt, outcome) VALUES ($1, 1, 'error')", job.hex())
    await connection.execute(
        "INSERT INTO pulse.attempts (job_id, attempt, outcome) VALUES ($1, 1, 'crashed')", others[0].hex()
    )
    found: Any = (await get_job(context, ById(job)))["job"]
    listed: Any = (await list_jobs(context, JobsList()))["jobs"]
    told = {"id": job, "args": None, "progress": '"half"', "last_error": "boom", "omitted": ["args"]}
    assert {name: found[name] for name in told} == told
    assert [one["outcome"] for one in found["history"]] == ["error"]
    rows = {row["id"]: row for row in listed}
    assert {name: rows[job][name] for name in told} == told
    assert {(rows[one]["args"], "omitted" in rows[one]) for one in others} == {('{"a": 1}', False)}


async def test_what_is_not_there_is_not_told(connection: Sql) -> None:
    """It may go between the failed read and the one of its readable parts."""
    assert await legible_job(connection, UUID(bytes(16))) is None


async def test_who_is_away_is_not_illegible(connection: Sql) -> None:
    """An error that passes says nothing about a value."""
    await connection.execute("SET statement_timeout = 1")

    async def read() -> None:
        await connection.execute("SELECT pg_sleep(60)")

    try:
        with pytest.raises(asyncpg.QueryCanceledError, match="statement timeout"):
            await _is_read(connection, read)
    finally:
        await connection.execute("RESET statement_timeout")


# Jobs that are set aside have their turns, one at a time, and what an operator set aside stays so.


REFUSED = StatementError("not with me", sqlstate="XX001", statement="claim_jobs")
AGAIN = StatementError("nor now", sqlstate="P0001", statement="complete_jobs")


async def rows(connection: Sql) -> dict[bytes, Any]:
    found = await connection.fetch(
        "SELECT *, uuid_send(job_id) AS id, next_try_at = 'infinity' AS for_good FROM pulse.set_aside"
    )
    return {row["id"]: row for row in found}


async def test_what_is_refused_again(store: Store, connection: Sql) -> None:
    job = new_id()
    assert await store.aside.add([(job, REFUSED)], 60.0) == {job}
    first = (await rows(connection))[job]
    other = new_id()
    assert await store.aside.add([(job, AGAIN), (other, AGAIN)], 1.0) == {other}
    again = (await rows(connection))[job]
    assert (again["tries"], again["sqlstate"], again["statement"]) == (2, "P0001", "complete_jobs")
    assert (again["error"], again["since"]) == ("nor now", first["since"])
    assert again["next_try_at"] == first["next_try_at"]


async def test_what_an_operator_set_aside_stays_so(store: Store, connection: Sql) -> None:
    job, other, third = new_id(), new_id(), new_id()
    await store.aside.add([(job, REFUSED), (other, REFUSED)], 0.0)
    await connection.execute("UPDATE pulse.set_aside SET next_try_at = 'infinity' WHERE job_id = $1", job.hex())
    await store.aside.add([(job, AGAIN)], 0.0)
    assert (await rows(connection))[job]["for_good"]
    assert found_of(await store.aside.next(60.0)).id == other
    await store.aside.add([(third, REFUSED)], 0.0)
    await store.aside.readmit([job, other])
    assert {*await rows(connection)} == {job, third}


async def test_what_is_refused_for_another_reason_stays_aside(store: Store, connection: Sql) -> None:
    """A cause that has gone readmits the jobs that it kept from being claimed, and no others."""
    jobs = [new_id() for _ in range(4)]
    for job, sqlstate, statement in zip(
        jobs,
        ("XX001", "P0001", "XX001", "XX001"),
        ("claim_jobs", "claim_jobs", "complete_jobs", "claim_jobs"),
        strict=True,
    ):
        await connection.execute(
            "INSERT INTO pulse.set_aside (job_id, sqlstate, statement, error) VALUES ($1, $2, $3, 'no')",
            job.hex(), sqlstate, statement,
        )  # fmt: skip
    await connection.execute("UPDATE pulse.set_aside SET next_try_at = 'infinity' WHERE job_id = $1", jobs[3].hex())
    await store.aside.readmit_like("XX001")
    assert {*await rows(connection)} == {*jobs[1:]}


async def test_each_has_its_turn(store: Store, connection: Sql) -> None:
    """The longest waiting one, by itself; two servers try different ones."""
    jobs = [await forge(connection) for _ in range(3)]
    for job in jobs:
        await store.aside.add([(job, REFUSED)], 0.0)
    turns = [await store.aside.next(60.0) for _ in range(4)]
    assert turns == [
        *(
            SetAside(job, Suspect(job, Level(TOPIC, 0), NOW.timestamp()), "claim_jobs", "XX001", "PENDING")
            for job in jobs
        ),
        None,
    ]
    assert [row["tries"] for row in (await rows(connection)).values()] == [2, 2, 2]


async def test_what_has_expired(store: Store, connection: Sql) -> None:
    """No claim waits for it, and it differs from jobs that may still be claimed."""
    late, other = await forge(connection), await forge(connection, expires_at=datetime(2999, 1, 1, tzinfo=UTC))
    await connection.execute("UPDATE pulse.jobs SET expires_at = now() WHERE id = $1", late.hex())
    for job in (late, other):
        await store.aside.add([(job, REFUSED)], 0.0)
    assert await store.aside.next(60.0) == SetAside(late, None, "claim_jobs", "XX001", "PENDING")
    assert found_of(await store.aside.next(60.0)).suspect is not None


async def test_one_that_another_server_tries_is_passed_over(store: Store, connection: Sql, dsn: str) -> None:
    first, second = await forge(connection, "RUNNING"), new_id()
    for job in (first, second):
        await store.aside.add([(job, REFUSED)], 0.0)
    async with holding(dsn, "SELECT FROM pulse.set_aside WHERE job_id = $1 FOR UPDATE", first.hex()):
        assert await store.aside.next(60.0) == SetAside(second, None, "claim_jobs", "XX001", None)
    assert await store.aside.next(60.0) == SetAside(first, None, "claim_jobs", "XX001", "RUNNING")


async def test_what_has_the_same_cause(store: Store, connection: Sql) -> None:
    """It is let go with the one that can be handed out; not after an operator's word or a refused report."""
    like, mine, other, report = (new_id() for _ in range(4))
    reported = StatementError("no", sqlstate="XX001", statement="complete_jobs")
    await store.aside.add([(like, REFUSED), (mine, REFUSED), (other, AGAIN), (report, reported)], 0.0)
    await connection.execute("UPDATE pulse.set_aside SET next_try_at = 'infinity' WHERE job_id = $1", mine.hex())
    await store.aside.readmit_like("XX001")
    assert {*await rows(connection)} == {mine, other, report}


async def test_no_more_are_set_aside_than_may_be(store: Store, connection: Sql) -> None:
    first, second = new_id(), new_id()
    assert await store.aside.add([(first, REFUSED)], 0.0, 1) == {first}
    assert await store.aside.add([(second, REFUSED)], 0.0, 1) == set()
    assert [*await rows(connection)] == [first]


async def test_of_no_jobs_none_is_read(connection: Sql) -> None:
    assert await legible_jobs(connection, [], "no_statement") == []
