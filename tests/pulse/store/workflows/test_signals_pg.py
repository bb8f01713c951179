"""Signals: a job that waits for one is due when it comes, whatever the order of the transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

import asyncpg
import pytest

from pulse.errors import ConflictError, NotFoundError, StatementError
from pulse.store.arguments import ending_columns
from pulse.store.rows import Ending, EndingKind
from pulse.store.statements import STATEMENTS
from pulse.store.store import Store
from tests.support.store.helpers import WORKER, Sql, heard_until, holding
from tests.support.waiting import until_blocked

RUN: Final = f"""
    UPDATE pulse.jobs
    SET status = 'RUNNING', attempts = attempts + 1, started_at = now(), lease_until = now(), locked_by = '{WORKER}'
    WHERE id = $1"""
LONG_S: Final = 3600.0


async def submitted(connection: Sql, **columns: str) -> UUID:
    job: UUID = await connection.fetchval("SELECT pulse.submit('n')")
    for column, value in columns.items():
        await connection.execute(f"UPDATE pulse.jobs SET {column} = {value} WHERE id = $1", job)
    return job


async def end(connection: Sql, job: UUID, awaited: str | None = None, seen: int | None = None, **how: Any) -> float:
    """End its attempt; returns in how many seconds it is due, by the answer of the statement."""
    attempt = await connection.fetchval("SELECT attempts FROM pulse.jobs WHERE id = $1", job)
    ending = Ending(job.bytes, attempt, WORKER, **{"kind": EndingKind.SNOOZED, "delay_s": LONG_S, **how})
    ending = ending._replace(awaits=None if awaited is None else (awaited, seen or 0))
    [row] = await connection.fetch(STATEMENTS["end_attempts"].sql, *ending_columns([ending]), None)
    delay_s: float = row["delay_s"]
    return delay_s


async def waiting(connection: Sql, signal: str = "approval", **columns: str) -> UUID:
    """A job whose handler waits for a signal."""
    job = await submitted(connection)
    await connection.execute(RUN, job)
    for column, value in columns.items():
        await connection.execute(f"UPDATE pulse.jobs SET {column} = {value} WHERE id = $1", job)
    assert await end(connection, job, signal, 0) == LONG_S
    return job


async def send(connection: Sql, job: UUID, name: str = "approval", payload: str | None = None, **more: str) -> bool:
    words = "".join(f", {key} => ${place}" for place, key in enumerate(more, 4))
    is_new: bool = await connection.fetchval(
        f"SELECT pulse.signal($1, $2, $3{words})", job, name, payload, *more.values()
    )
    return is_new


async def state(connection: Sql, job: UUID) -> tuple[str, bool, str | None, int | None]:
    """Its status, whether it is due, the signal that it waits for, and how many were sent to it."""
    columns = "status::text, greatest(next_run_at, run_after) <= clock_timestamp(), awaited_signal, signals"
    return tuple(await connection.fetchrow(f"SELECT {columns} FROM pulse.jobs WHERE id = $1", job) or ())


async def test_a_signal_makes_the_job_due(connection: Sql) -> None:
    job = await waiting(connection)
    assert await state(connection, job) == ("PENDING", False, "approval", None)
    assert await send(connection, job, "something else")
    assert await state(connection, job) == ("PENDING", False, "approval", 1)
    assert await send(connection, job)
    assert await state(connection, job) == ("PENDING", True, None, 2)


async def test_a_job_that_is_due_stays_where_it_is(connection: Sql) -> None:
    """Its wait is over, and it is about to start."""
    job = await waiting(connection)
    await connection.execute("UPDATE pulse.jobs SET next_run_at = now() - interval '5 s' WHERE id = $1", job)
    await send(connection, job)
    stays = "next_run_at < now() - interval '4 s' AND run_after IS NULL"
    assert await connection.fetchval(f"SELECT {stays} FROM pulse.jobs WHERE id = $1", job)


@pytest.mark.parametrize("position", ["next_run_at", "next_run_at + interval '1 h'"])
async def test_a_job_of_a_sequence_keeps_its_place(connection: Sql, position: str) -> None:
    job = await waiting(connection, group_key="'g'", run_after="next_run_at")
    await connection.execute(f"UPDATE pulse.jobs SET next_run_at = {position} WHERE id = $1", job)
    place = "SELECT next_run_at, run_after > clock_timestamp() FROM pulse.jobs WHERE id = $1"
    before = await connection.fetchrow(place, job)
    await send(connection, job, "something else")
    assert before == await connection.fetchrow(place, job)
    await send(connection, job)
    after = "SELECT next_run_at, run_after <= clock_timestamp() FROM pulse.jobs WHERE id = $1"
    assert before == await connection.fetchrow(after, job)
    assert before is not None
    assert before[1] is True
    await connection.execute(RUN, job)
    assert await end(connection, job, "approval", 0) == 0.0
    assert await connection.fetchval("SELECT run_after <= clock_timestamp() FROM pulse.jobs WHERE id = $1", job)


async def test_a_signal_that_came_before_the_wait(connection: Sql) -> None:
    """The handler had looked, and seen fewer: then its job is due at once. It had seen it, and waits for another."""
    job = await submitted(connection)
    await connection.execute(RUN, job)
    await send(connection, job)
    assert (await state(connection, job))[0] == "RUNNING"
    assert await end(connection, job, "approval", 0) == 0.0
    assert (await state(connection, job))[1:] == (True, None, 1)
    await connection.execute(RUN, job)
    assert await end(connection, job, "approval", 1) == LONG_S
    assert (await state(connection, job))[1:] == (False, "approval", 1)


async def test_a_job_that_was_tried_before_waits_too(connection: Sql) -> None:
    """An attempt that failed makes it RETRYING ever after, also while it waits."""
    job = await submitted(connection)
    await connection.execute(RUN, job)
    await end(connection, job, kind=EndingKind.ERROR)
    await connection.execute(RUN, job)
    await end(connection, job, "approval", 0)
    await send(connection, job)
    assert await state(connection, job) == ("RETRYING", True, None, 1)


@pytest.mark.parametrize("kind", [EndingKind.ERROR, EndingKind.SNOOZED, EndingKind.RELEASED])
async def test_a_job_that_waits_for_nothing_is_left_alone(connection: Sql, kind: EndingKind) -> None:
    """Its attempt after the wait ended otherwise."""
    job = await waiting(connection)
    await connection.execute(RUN, job)
    await end(connection, job, kind=kind)
    await send(connection, job)
    assert (await state(connection, job))[1:] == (False, None, 1)


async def test_a_job_that_runs_is_left_alone(connection: Sql) -> None:
    """Though it waited for the signal before."""
    job = await waiting(connection)
    await connection.execute(RUN, job)
    due = await connection.fetchval("SELECT next_run_at FROM pulse.jobs WHERE id = $1", job)
    await send(connection, job)
    assert (await state(connection, job))[0] == "RUNNING"
    assert await connection.fetchval("SELECT next_run_at FROM pulse.jobs WHERE id = $1", job) == due


async def test_the_same_key_is_the_same_signal(connection: Sql) -> None:
    job, other = await submitted(connection), await submitted(connection)
    assert [await send(connection, job, key="k") for _ in range(2)] == [True, False]
    assert await send(connection, job, "payment", key="k")
    assert await send(connection, other, key="k")
    assert [await send(connection, job) for _ in range(2)] == [True, True]
    assert (await state(connection, job))[3] == 4
    await connection.execute("UPDATE pulse.jobs SET status = 'CANCELED', completed_at = now() WHERE id = $1", job)
    assert not await send(connection, job, key="k")  # the answer to the first one may have been lost


async def test_the_same_key_at_the_same_time(connection: Sql, dsn: str) -> None:
    job = await submitted(connection)
    other = await asyncpg.connect(dsn)
    try:
        transaction = other.transaction()
        await transaction.start()
        assert await send(other, job, key="k")
        task = asyncio.create_task(send(connection, job, key="k"))
        watch = await asyncpg.connect(dsn)
        try:
            await until_blocked(watch, by=other.get_server_pid())
        finally:
            await watch.close(timeout=5)
        await transaction.commit()
        assert not await task
    finally:
        await other.close(timeout=5)
    assert (await state(connection, job))[3] == 1


_OVER: Final = {"completed_at": "now()"}
_REFUSED: Final = asyncpg.IntegrityConstraintViolationError
WRONG: Final[Mapping[str, tuple[Mapping[str, str], type[asyncpg.PostgresError], str]]] = {
    "completed": ({**_OVER, "status": "'COMPLETED'"}, _REFUSED, "is COMPLETED; one that"),
    "canceled": ({**_OVER, "status": "'CANCELED'"}, _REFUSED, "is CANCELED; one that"),
    "too many": ({"signals": "10000"}, asyncpg.InvalidParameterValueError, "has had 10000 signals; at most 10000"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
async def test_a_job_that_takes_no_signal(connection: Sql, case: str) -> None:
    columns, kind, said = WRONG[case]
    text = ", ".join(f"{name} = {value}" for name, value in columns.items())
    job = await submitted(connection)
    await connection.execute(f"UPDATE pulse.jobs SET {text} WHERE id = $1", job)
    with pytest.raises(kind, match=said):
        await send(connection, job)
    assert await connection.fetchval("SELECT count(*) FROM pulse.signals") == 0


async def test_a_dead_letter_takes_one(connection: Sql) -> None:
    """It may be tried again."""
    job = await submitted(connection)
    await connection.execute(
        "UPDATE pulse.jobs SET status = 'DEAD_LETTERED', completed_at = now(), last_error = 'x' WHERE id = $1", job
    )
    assert await send(connection, job)


@pytest.mark.parametrize(("values", "said"), [
    ((UUID(int=7), "n", None, None), "there is no job"),
    ((None, None, None, None), "name of a signal is NULL; 1 to 200 characters are allowed"),
    ((None, "", None, None), "has 0 characters; 1 to 200 are allowed"),
    ((None, "x" * 201, None, None), "has 201 characters; 1 to 200 are allowed"),
    ((None, "n", None, ""), 'key of signal "n" has 0 characters'),
    ((None, "n", None, "x" * 201), 'key of signal "n" has 201 characters'),
    ((None, "n", '"' + "x" * 65_535 + '"', None), 'payload of signal "n" has 65537 bytes; at most 65536 are allowed'),
    ((None, "x" * 200, '"' + "x" * 65_534 + '"', "x" * 200), None),
])  # fmt: skip
async def test_what_is_wrong(connection: Sql, values: tuple[Any, ...], said: str | None) -> None:
    job, *rest = values
    given = (job or await submitted(connection), *rest)
    if said is None:
        assert await connection.fetchval("SELECT pulse.signal($1, $2, $3, $4)", *given)
        return
    with pytest.raises((asyncpg.InvalidParameterValueError, asyncpg.ForeignKeyViolationError), match=said):
        await connection.fetchval("SELECT pulse.signal($1, $2, $3, $4)", *given)


@pytest.mark.parametrize("commits", ["before the attempt ends", "afterwards"])
async def test_a_signal_in_a_transaction_of_its_sender(connection: Sql, dsn: str, commits: str) -> None:
    """The handler cannot see it when it looks; whenever the sender commits, the job is due."""
    job = await submitted(connection)
    await connection.execute(RUN, job)
    async with holding(dsn, "SELECT pulse.signal($1, 'approval')", job):
        if commits == "afterwards":
            assert await end(connection, job, "approval", 0) == LONG_S
    if commits != "afterwards":
        assert await end(connection, job, "approval", 0) == 0.0
    assert (await state(connection, job))[:2] == ("PENDING", True)


async def test_the_end_of_the_attempt_waits_for_a_commit(connection: Sql, dsn: str) -> None:
    """The statement that ends it began before the signal was there, and sees it all the same."""
    job = await submitted(connection)
    await connection.execute(RUN, job)
    other, watch = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    try:
        transaction = other.transaction()
        await transaction.start()
        await send(other, job)
        await other.execute("SET CONSTRAINTS ALL IMMEDIATE")  # as the commit does
        task = asyncio.create_task(end(connection, job, "approval", 0))
        await until_blocked(watch, by=other.get_server_pid())
        await transaction.commit()
        assert await task == 0.0
    finally:
        await other.close(timeout=5)
        await watch.close(timeout=5)
    assert (await state(connection, job))[:2] == ("PENDING", True)


@pytest.mark.parametrize("commits", [True, False])
async def test_the_commit_waits_for_the_end_of_the_attempt(connection: Sql, dsn: str, commits: bool) -> None:
    job = await submitted(connection)
    await connection.execute(RUN, job)
    ender, sender = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    try:
        transaction = ender.transaction()
        await transaction.start()
        await end(ender, job, "approval", 0)
        task = asyncio.create_task(send(sender, job))
        await until_blocked(connection, by=ender.get_server_pid())
        await (transaction.commit() if commits else transaction.rollback())
        await task
    finally:
        await ender.close(timeout=5)
        await sender.close(timeout=5)
    if not commits:
        assert await end(connection, job, "approval", 0) == 0.0
    assert (await state(connection, job))[:2] == ("PENDING", True)


async def test_a_handler_keeps_its_lease_while_the_sender_is_in_a_transaction(connection: Sql, dsn: str) -> None:
    """The row is locked by the commit alone."""
    job = await submitted(connection)
    await connection.execute(RUN, job)
    async with holding(dsn, "SELECT pulse.signal($1, 'approval')", job):
        await connection.execute("SELECT FROM pulse.jobs WHERE id = $1 FOR UPDATE NOWAIT", job)


@pytest.mark.parametrize("order", ["sent", "open", "committing"])
async def test_signals_go_with_their_job(connection: Sql, dsn: str, order: str) -> None:
    """Sent before; in a transaction that is open when the job is deleted; or while it is being deleted."""
    job, other = await submitted(connection), await submitted(connection)
    await send(connection, other)
    delete = "DELETE FROM pulse.jobs WHERE id = $1"
    if order == "sent":
        await send(connection, job)
        await connection.execute(delete, job)
    elif order == "open":
        async with holding(dsn, "SELECT pulse.signal($1, 'approval')", job):
            await connection.execute(delete, job)
    else:
        sender = await asyncpg.connect(dsn)
        try:
            async with holding(dsn, delete, job):
                task = asyncio.create_task(send(sender, job))
                deleting = "SELECT pid FROM pg_stat_activity WHERE query = $1 AND pid <> pg_backend_pid()"
                await until_blocked(connection, by=await connection.fetchval(deleting, delete))
            await task
        finally:
            await sender.close(timeout=5)
    assert await connection.fetchval("SELECT array_agg(DISTINCT job_id) FROM pulse.signals") == [other]


@pytest.mark.parametrize("is_off", [False, True])
async def test_servers_hear_of_a_job_that_is_due(connection: Sql, dsn: str, is_off: bool) -> None:
    """And of no other; not at all where the session has turned that off."""
    heard: asyncio.Queue[str] = asyncio.Queue()
    listener = await asyncpg.connect(dsn)
    try:
        await listener.add_listener("pulse_work", lambda *args: heard.put_nowait(args[3]))
        job = await waiting(connection)
        if is_off:
            await connection.execute("SET pulse.notify = off")
        await connection.execute("SELECT pg_notify('pulse_work', 'begin')")
        for name in ("something else", "approval"):
            await send(connection, job, name)
            await connection.execute("SELECT pg_notify('pulse_work', $1)", name)
        said = await heard_until("approval", heard)
    finally:
        await listener.close(timeout=5)
    assert said[said.index("begin") + 1 :] == ["something else", *([] if is_off else ["released"]), "approval"]


async def test_signals_come_one_after_the_other(connection: Sql, store: Store) -> None:
    """In the order in which they were sent; those that the handler has had are left out."""
    job = await submitted(connection)
    for number in range(3):
        await send(connection, job, payload=str(number))
        await send(connection, job, "something else")
    had: list[Any] = []
    payloads: list[object] = []
    for _ in range(4):
        found = await store.signals.next(job.bytes, "approval", had)
        assert found is not None
        assert found["sent"] == 6
        signal: Any = found["signal"]
        payloads.append(None if signal is None else signal["payload"])
        had += [] if signal is None else [signal["id"]]
    assert payloads == ["0", "1", "2", None]
    assert [one["payload"] for one in await store.signals.of_job(job.bytes, 5)] == ["0", None, "1", None, "2"]
    assert await store.signals.next(bytes(16), "approval", []) is None


async def test_the_attempt_after_a_wait_hears_how_it_ended(connection: Sql, store: Store) -> None:
    """It is over, unless a signal has ended it, or the wait was for another one."""
    job = await waiting(connection)
    await connection.execute(RUN, job)
    for name, is_over in (("approval", True), ("payment", False)):
        found = await store.signals.next(job.bytes, name, [])
        assert found is not None
        assert found["is_over"] is is_over
    assert await end(connection, job, "approval", 0) == LONG_S
    await send(connection, job)
    await connection.execute(RUN, job)
    found = await store.signals.next(job.bytes, "approval", [])
    assert found is not None
    assert not found["is_over"]


@pytest.mark.parametrize("end_of_it", ["cancel_jobs", "expire_jobs"])
async def test_a_retry_by_an_operator_ends_no_wait(connection: Sql, store: Store, end_of_it: str) -> None:
    """The next attempt waits on: its job is due, and not because the time of the wait is over."""
    job = await waiting(connection)
    if end_of_it == "expire_jobs":
        await connection.execute("UPDATE pulse.jobs SET expires_at = now() - interval '1 s' WHERE id = $1", job)
    await connection.execute(STATEMENTS[end_of_it].sql, *((10,) if end_of_it == "expire_jobs" else ([job],)), None)
    await connection.execute(STATEMENTS["retry_jobs"].sql, [job], None)
    assert (await state(connection, job))[:3] == ("PENDING", True, None)
    await connection.execute(RUN, job)
    found = await store.signals.next(job.bytes, "approval", [])
    assert found is not None
    assert not found["is_over"]


@pytest.mark.parametrize("how", ["next_run_at = now()", "group_key = NULL", "group_key = 'g'"])
async def test_what_may_run_elsewhere_is_not_woken(connection: Sql, store: Store, how: str) -> None:
    """A job that was put off since the database went back; then it is due, however long it was to wait."""
    job = await waiting(connection)
    await connection.execute(f"UPDATE pulse.jobs SET {how} WHERE id = $1", job)
    await store.epochs.put_off([job.bytes], 600.0)
    await send(connection, job)
    assert (await state(connection, job))[:3] == ("PENDING", False, None)
    due_at = await connection.fetchval("SELECT greatest(next_run_at, run_after) FROM pulse.jobs WHERE id = $1", job)
    assert due_at < await connection.fetchval("SELECT now() + interval '601 s'")


async def test_too_many_in_one_transaction(connection: Sql) -> None:
    job = await submitted(connection, signals="9999")
    with pytest.raises(asyncpg.InvalidParameterValueError, match="has had 10000 signals; at most 10000 are allowed"):
        await connection.execute("SELECT pulse.signal($1, 'n') FROM generate_series(1, 2)", job)
    assert (await state(connection, job))[3] == 9999


async def test_trigger_functions_are_for_the_schema_alone(connection: Sql) -> None:
    """They have their owner's rights: from a table of one's own they would delete and wake jobs of others."""
    rows = await connection.fetch("""
        SELECT proname, has_function_privilege('public', oid, 'EXECUTE') AS is_public
        FROM pg_proc WHERE pronamespace = 'pulse'::regnamespace AND prosecdef AND prorettype = 'trigger'::regtype""")
    assert {row["proname"]: row["is_public"] for row in rows} == dict.fromkeys(
        ("deliver_signal", "forget_linked", "join_parent"), False
    )


async def test_what_people_see_is_bounded(connection: Sql, store: Store) -> None:
    """An answer about a job has room for 48 KiB of payloads beside it, and for so many signals."""
    job = await submitted(connection)
    for number in range(4):
        await send(connection, job, f"s{number}", '"' + "x" * (10_000 if number == 1 else 30_000) + '"')
    found = await store.signals.of_job(job.bytes, 3)
    assert [(one["signal"], one["payload"] is not None) for one in found] == [("s0", True), ("s1", True), ("s2", False)]


async def test_until_when_a_job_of_a_sequence_waits(connection: Sql, store: Store) -> None:
    """Not its place, but the end of the wait."""
    job = await waiting(connection, group_key="'g'", run_after="next_run_at")
    found, end = await store.reads.job(job.bytes), "SELECT date_part('epoch', run_after) FROM pulse.jobs WHERE id = $1"
    assert found is not None
    assert found["next_run_at"] == await connection.fetchval(end, job)
    assert found["awaited_signal"] == "approval"
    await connection.execute("UPDATE pulse.jobs SET next_run_at = now(), run_after = now() WHERE id = $1", job)
    found = await store.reads.job(job.bytes)
    assert found is not None
    assert found["awaited_signal"] is None  # the time is over


async def test_errors_of_the_store(connection: Sql, store: Store) -> None:
    job = await submitted(connection)
    assert await store.signals.send(job.bytes, "n", "{}", "k")
    assert not await store.signals.send(job.bytes, "n", "{}", "k")
    for change, kind, said in (
        ("signals = 10000", StatementError, '^signal "n": job .* has had 10000 signals; at most 10000 are allowed$'),
        ("status = 'COMPLETED', completed_at = now()", ConflictError, "is COMPLETED; one that has not ended"),
    ):
        await connection.execute(f"UPDATE pulse.jobs SET {change} WHERE id = $1", job)
        with pytest.raises(kind, match=said):
            await store.signals.send(job.bytes, "n", "{}", None)
    with pytest.raises(NotFoundError, match=f"there is no job {UUID(int=1)}"):
        await store.signals.send(UUID(int=1).bytes, "n", "{}", None)
