"""Jobs that find a free worker when they are submitted: they begin at once, in one statement."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import anyio
import pytest
from msgspec import structs

from pulse.errors import StatementError, UnavailableError
from pulse.protocol import HandlerInfo, SubmittedJob
from pulse.store.rows import Claim, Level, Wake
from pulse.store.store import Store
from pulse_actors.dispatcher.claims.cursors import FEW_TOPICS
from pulse_actors.dispatcher.claims.handout import ASSIGN_CHARS
from pulse_actors.dispatcher.workers.records import HeldJob
from tests.support.store.helpers import LEASE_S, NOW, TOPIC, Patch, Sql, at, count, forge, found_of, history, job, read
from tests.support.store.recovery_kit import DEADLINE_S, PAST, Bench, pairs_of, running
from tests.support.store.refusing_kit import refusing
from tests.support.waiting import until_async

# The statement.


async def insert(store: Store, jobs: list[SubmittedJob], *, topic: str = TOPIC) -> tuple[list[Claim], list[Wake]]:
    seats = [place % 2 for place in range(len(jobs))]
    return await store.submit_and_claim(jobs, [topic], ["w0", "w1"], seats, LEASE_S, now=NOW)


async def test_a_job_is_handed_out_as_by_a_claim(store: Store, connection: Sql) -> None:
    """The answer and the row are those of a submit and a claim."""
    jobs = [job(args='{ "b":1,"a":[1.0]}', priority=7, timeout_s=3.5, max_attempts=2), job(name="m")]
    twins = [
        SubmittedJob(**{**{name: getattr(one, name) for name in one.__struct_fields__}, "id": os.urandom(16)})
        for one in jobs
    ]
    claims, woken = await insert(store, jobs)
    await store.submit(twins, now=NOW)
    expected = await store.claim([TOPIC], ["w0", "w1"], [0, 1], LEASE_S, now=at(0.000001))
    assert woken == []
    assert [one.id for one in claims] == [one.id for one in jobs]
    ids = dict(zip((one.id for one in twins), (one.id or b"" for one in jobs), strict=True))
    assert claims == [structs.replace(one, id=ids[one.id]) for one in expected]
    for one, twin in zip(jobs, twins, strict=True):
        row, other = [await read(connection, which.id or b"") for which in (one, twin)]
        moments = {"started_at": row["next_run_at"], "lease_until": at(LEASE_S)}  # none before it is due
        assert {**row, "id": None} == {**other, "id": None, **moments}


async def test_the_clock_is_the_databases(store: Store, connection: Sql) -> None:
    one = job()
    await store.submit_and_claim([one], [TOPIC], ["w"], [0], LEASE_S)
    row = await read(connection, one.id or b"")
    assert (row["lease_until"] - row["started_at"]).total_seconds() == pytest.approx(LEASE_S, abs=0.1)
    assert row["next_run_at"] <= row["started_at"]


@pytest.mark.parametrize(("paused", "until", "runs"), [
    (TOPIC, None, False), ("", None, False), ("other", None, True), (TOPIC, at(1), False), ("", NOW, True),
    (None, None, True),
])  # fmt: skip
async def test_a_pause(store: Store, connection: Sql, paused: str | None, until: datetime | None, runs: bool) -> None:
    """A paused job waits, and the answer lists it as work to claim; after the end of the pause (None) it does not."""
    one = job(priority=3)
    await store.gate.pause(TOPIC if paused is None else paused, None, now=at(-5))
    if paused is None:
        await store.gate.resume(TOPIC)
    await connection.execute("UPDATE pulse.dispatch_control SET paused_until = $2 WHERE topic = $1", paused, until)
    claims, woken = await insert(store, [one])
    assert [claim.id for claim in claims] == ([one.id] if runs else [])
    assert woken == ([] if runs else [Wake(TOPIC, 3, NOW.timestamp(), 1)])
    row = await read(connection, one.id or b"")
    assert (row["status"], row["started_at"] is not None) == (("RUNNING", True) if runs else ("PENDING", False))


async def test_a_topic_that_they_do_not_serve(store: Store, connection: Sql) -> None:
    """The resolved topic counts, the handler's, too; the others of the same submit run."""
    await store.note_handlers({"moved": HandlerInfo(topic="other"), "here": HandlerInfo(topic=TOPIC)})
    away, here = job(name="moved", topic=None), job(name="here", topic=None)
    claims, woken = await insert(store, [away, here])
    assert [(claim.id, claim.worker) for claim in claims] == [(here.id, 1)]
    assert woken == [Wake("other", 0, NOW.timestamp(), 1)]
    assert (await read(connection, away.id or b""))["locked_by"] is None


async def test_a_job_of_a_group(store: Store, connection: Sql) -> None:
    """It waits for a claim that knows of groups; the answer names its level. The others of the same submit run."""
    grouped, plain = job(group_key="g", priority=3), job()
    claims, woken = await insert(store, [grouped, plain])
    assert [claim.id for claim in claims] == [plain.id]
    assert woken == [Wake(TOPIC, 3, NOW.timestamp(), 1, "g")]
    row = await read(connection, grouped.id or b"")
    assert (row["status"], row["attempts"], row["group_key"]) == ("PENDING", 0, "g")


async def test_what_has_expired(store: Store, connection: Sql) -> None:
    """It waits for the watchdog; what expires later runs."""
    over, later, soon = job(expires_at=NOW.timestamp()), job(expires_at=at(1).timestamp()), job(expires_in_s=0.5)
    claims, _ = await insert(store, [over, later, soon])
    assert [claim.id for claim in claims] == [later.id, soon.id]
    expiries = [
        await connection.fetchval("SELECT expires_at FROM pulse.jobs WHERE id = $1", (one.id or b"").hex())
        for one in (over, later, soon)
    ]
    assert expiries == [NOW, at(1), at(0.5)]


@pytest.fixture
def bench(store: Store, connection: Sql, monkeypatch: Patch) -> Bench:
    made = Bench(store, connection, monkeypatch, batch=50)
    made.claims.signal._is_waiting = True
    return made


async def test_a_job_that_finds_a_free_worker(bench: Bench, connection: Sql) -> None:
    worker, one = bench.join(), job()
    assert await bench.claims.submits.submit([one]) == []
    assert pairs_of(worker) == [(one.id, 1)]
    assert set(worker.held) == {(one.id, 1)}
    assert (await read(connection, one.id or b""))["locked_by"] == "w"
    assert bench.claims.in_doubt._in_doubt == set()
    assert not bench.claims.signal._event.is_set()


async def test_jobs_are_spread_over_those_who_serve_their_topics(bench: Bench) -> None:
    first, second, other = bench.join("a"), bench.join("b"), bench.join("c", topics=("u",))
    await bench.claims.submits.submit([job(), job(), job()])
    assert sorted(len(one.held) for one in (first, second)) == [1, 2]
    await bench.claims.submits.submit([job(topic="u")])
    assert len(other.held) == 1


def fall_silent(bench: Bench) -> None:
    worker = found_of(bench.registry.get("w"))
    worker.held[bytes(16), 1], worker.contact.heard_s = HeldJob("n", TOPIC), time.monotonic() - 31.0


MANY_TOPICS: Final = (*(f"t{n}" for n in range(FEW_TOPICS)), TOPIC)
UNFIT: Final[dict[str, tuple[list[dict[str, Any]], Callable[[Bench], object]]]] = {
    "while claims are made": ([{}], lambda bench: setattr(bench.claims.signal, "_is_waiting", False)),
    "while a claim is called for": ([{}], lambda bench: bench.claims.signal.wake()),
    "while somebody is in doubt": ([{}], lambda bench: bench.claims.in_doubt._in_doubt.add("x")),
    "while somebody else is": ([{}], lambda bench: bench.claims.in_doubt.doubt("x")),
    "when dispatch is closed": ([{}], lambda bench: setattr(bench.registry, "closed", True)),
    "when the worker has fallen silent": ([{}], fall_silent),
    "more than a claim takes": ([{}] * 3, lambda bench: setattr(bench.claims.submits, "_batch", 2)),
    "more than they have room for": ([{}] * 11, lambda _: None),
    "due later": ([{}, {"delay_s": 60.0}], lambda _: None),
    "due at a time": ([{}, {"run_at": time.time() + 60.0}], lambda _: None),
    "of a topic that nobody serves": ([{}, {"topic": "u"}], lambda _: None),
    "with long args": ([{"args": f'{{"a": "{"x" * (ASSIGN_CHARS // 2)}"}}'}] * 2, lambda _: None),
    "for workers of many topics": ([{}], lambda bench: bench.join(topics=MANY_TOPICS)),
}


@pytest.mark.parametrize("unfit", UNFIT)
async def test_what_waits_for_its_claim(bench: Bench, connection: Sql, unfit: str) -> None:
    """All others are inserted as always, and no statement tries to hand them out."""
    worker, (fields, happens) = bench.join(), UNFIT[unfit]
    happens(bench)
    bench.monkeypatch.setattr(bench.store, "submit_and_claim", None)
    jobs = [job(**one) for one in fields]
    assert await bench.claims.submits.submit(jobs) != []
    assert pairs_of(worker) == []
    assert await connection.fetchval("SELECT bool_and(status = 'PENDING') FROM pulse.jobs") is True
    assert await count(connection) == len(jobs)


async def test_a_submit_does_not_wait_for_a_claim(bench: Bench, connection: Sql) -> None:
    """While claimed jobs are on their way to the registry, it is a plain insert."""
    bench.join()
    async with bench.claims.in_doubt._lock:
        with anyio.fail_after(DEADLINE_S):
            await bench.claims.submits.submit([job()])
    assert await connection.fetchval("SELECT status::text FROM pulse.jobs") == "PENDING"


@pytest.mark.parametrize("error", [
    UnavailableError("lost"),
    StatementError("unreadable", sqlstate="22021", statement="submit_and_claim", may_be_done=True),
], ids=str)  # fmt: skip
async def test_an_answer_that_is_lost_or_cannot_be_read(bench: Bench, connection: Sql, error: Exception) -> None:
    """It may be done: the submit fails, and the job is handed out once more, uncharged."""
    worker, one = bench.join(), job()

    async def fail() -> None:
        raise error

    bench.after("submit_and_claim", fail)
    with pytest.raises(type(error), match=str(error)):
        await bench.claims.submits.submit([one])
    assert bench.claims.in_doubt._in_doubt == {worker.identity}
    assert bench.claims.signal._event.is_set()
    await bench.claims.loop.pass_once()
    assert pairs_of(worker) == [(one.id, 2)]
    assert [row["outcome"] for row in await history(connection, one.id or b"")] == ["released"]


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_job_that_cannot_be_stored(bench: Bench, connection: Sql, *, is_known: bool) -> None:
    """Its client gets the reason; nothing was done, so there is no doubt."""
    bench.join()
    one = job(id=await forge(connection)) if is_known else job()
    async with refusing(connection, {} if is_known else {one.id or b"": "P0001"}, "PENDING", "RUNNING"):
        with pytest.raises(StatementError, match="duplicate key value" if is_known else "not with me"):
            await bench.claims.submits.submit([one])
    assert bench.claims.in_doubt._in_doubt == set()
    assert not bench.claims.signal._event.is_set()
    assert not bench.claims.in_doubt._lock.locked()


@pytest.mark.parametrize("sqlstate", ["P0001", "23514"])
async def test_a_job_that_cannot_be_handed_out(bench: Bench, connection: Sql, sqlstate: str) -> None:
    """It is accepted, as with busy workers: its claim reports the error, and sets it aside."""
    worker, one = bench.join(), job()
    one_id = one.id or b""

    async def store_alone(jobs: Sequence[SubmittedJob]) -> list[Wake]:
        assert not bench.claims.in_doubt._lock.locked()
        assert bench.claims.in_doubt._in_doubt == set()
        return await submit(jobs)

    submit = bench.store.submit
    bench.monkeypatch.setattr(bench.store, "submit", store_alone)
    async with refusing(connection, {one_id: sqlstate}, "RUNNING"):
        assert [(wake.topic, wake.jobs) for wake in (await bench.claims.submits.submit([one]))] == [(TOPIC, 1)]
        assert (await read(connection, one_id))["status"] == "PENDING"
        await bench.claims.loop.pass_once()
        assert [row["sqlstate"] for row in await connection.fetch("SELECT sqlstate FROM pulse.set_aside")] == [sqlstate]
    assert worker.held == {}
    assert bench.claims.in_doubt._in_doubt == set()


async def test_a_cancel_of_another_time(bench: Bench) -> None:
    """What was canceled during an earlier claim says nothing of this one."""
    worker, one = bench.join(), job()
    bench.claims.handout.forget([(one.id or b"", 1)])
    await bench.claims.submits.submit([one])
    assert pairs_of(worker) == [(one.id, 1)]


async def test_a_pass_waits_for_the_room_that_is_left(bench: Bench, connection: Sql) -> None:
    """A claim beside it would count on room that the submit is about to take."""
    worker, one, waiting = bench.join(capacity=1), job(), await forge(connection, next_run_at=PAST)
    async with anyio.create_task_group() as tasks:

        async def claim() -> None:
            tasks.start_soon(bench.claims.loop.pass_once)
            for _ in range(10):
                await anyio.lowlevel.checkpoint()

        bench.after("submit_and_claim", claim)
        await bench.claims.submits.submit([one])
    assert pairs_of(worker) == [(one.id, 1)]
    row = await read(connection, waiting)
    assert (row["status"], row["attempts"]) == ("PENDING", 0)


async def test_when_claims_are_at_rest(bench: Bench) -> None:
    """When all known work was claimed, and a worker has room."""
    bench.claims.signal._is_waiting = False
    seen: list[bool] = []
    claim = bench.store.claim

    async def watched(*args: Any, **more: Any) -> list[Claim]:
        seen.append(bench.claims.signal._is_waiting)
        return await claim(*args, **more)

    bench.monkeypatch.setattr(bench.store, "claim", watched)
    async with running(bench.claims.loop.run):
        await until_async(lambda: bench.claims.signal._event.statistics().tasks_waiting == 1, "nobody has room")
        assert not bench.claims.signal._is_waiting
        worker = bench.join(capacity=1)
        bench.claims.signal.look_again()
        await until_async(lambda: bench.claims.signal._is_waiting, "all is claimed")
        await bench.claims.submits.submit([job()])
        assert len(worker.held) == 1
        worker.held.clear()
        bench.claims.signal.wake_level(Level(TOPIC, 0))
        await until_async(lambda: len(seen) == 2, "another claim")
        assert seen == [False, False]
