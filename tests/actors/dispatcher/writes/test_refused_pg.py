"""Whatever the database answers, no process ends, other jobs go on, and a refused one comes back by itself."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import UUID

import anyio
import asyncpg
import pytest
import structlog
from structlog.testing import capture_logs

from pulse.errors import StatementError, UnavailableError
from pulse.protocol import Beat, Result
from pulse.store import failures
from pulse.store.failures import CONSTRAINTS, IN_VAIN, STUBBORN, UNIQUE_VIOLATION
from pulse.store.store import Store
from pulse.system.failure_log import FailureLog
from pulse_actors.dispatcher.claims import refused_jobs
from pulse_actors.dispatcher.writes import report as results
from pulse_actors.dispatcher.writes.heartbeat import HeartbeatWriter, PendingHeartbeat
from pulse_actors.dispatcher.writes.report_rows import PendingReport
from pulse_actors.dispatcher.writes.submit import PendingSubmit
from pulse_actors.runtime import actor
from pulse_actors.runtime.actor import Backoff
from pulse_actors.watchdog import expiry
from tests.support.store.helpers import TOPIC, Patch, Sql, forge, job, read
from tests.support.store.recovery_kit import DEADLINE_S, HOST, LEASE_S, Floor, Wire, new_worker, running, wire_of
from tests.support.store.refusing_kit import refusing, spoil, sqlstates
from tests.support.waiting import until_async

if TYPE_CHECKING:
    from pulse_actors.dispatcher.workers.records import RegisteredWorker

pytestmark = pytest.mark.heavy

DEAD: Final = "SELECT count(*) FROM pulse.jobs WHERE status = 'DEAD_LETTERED'"
STATES: Final = sqlstates()
PAST: Final = datetime(2020, 1, 1, tzinfo=UTC)
until = partial(until_async, within_s=60.0)  # of many statements that are refused, on a busy machine
WAITED: Final = frozenset({"55P03", "57014"})  # a claim that had to wait, or took too long, blames no job
RUNNING: Final = "SELECT count(*) FROM pulse.jobs WHERE status = 'RUNNING'"


class Counter(Floor):
    """All loops of a dispatcher that write, with a worker, on the test's database."""

    def __init__(self, store: Store, connection: Sql) -> None:
        super().__init__(store, connection)
        self.worker: RegisteredWorker = new_worker("w", capacity=1000)
        self.registry.join(self.worker)
        self.leases = HeartbeatWriter(store, self.registry, HOST, self.claims.counters, lease_s=LEASE_S)
        self.submits = self.claims.submits
        self.client = Wire()

    def open(self) -> contextlib.AbstractAsyncContextManager[None]:
        return running(
            self.claims.loop.run, self.claims.refused_jobs.run, self.results.run, self.leases.batcher.run,
            self.leases.checkpoints.run, self.submits.batcher.run,
        )  # fmt: skip

    def assigned(self) -> set[bytes]:
        return {one[0] for body in wire_of(self.worker).bodies("assign") for one in body["jobs"]}

    def report(self, *results: Result) -> None:
        for one in results:
            self.results.accept(PendingReport(self.worker, 1, [one], [one.pair]))

    def beat(self, *jobs: bytes, text: str | None = None) -> None:
        """The worker beats for these; with *text*: saves that."""
        batcher = self.leases.batcher if text is None else self.leases.checkpoints
        beats = [Beat(one, 1, text) for one in jobs]
        batcher.put(PendingHeartbeat(self.client, 1, 0, self.worker.identity, None, beats, 0.0))

    async def is_status(self, status: str, *jobs: bytes) -> bool:
        return all([(await self.read(one))["status"] == status for one in jobs])


@contextlib.asynccontextmanager
async def open_while_refused(
    counter: Counter, connection: Sql, refused: Mapping[bytes, str] | str, *statuses: str
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Its loops run, and found the cause when they began; the yielded function removes it."""
    async with contextlib.AsyncExitStack() as cause:
        await cause.enter_async_context(refusing(connection, refused, *statuses))
        async with counter.open():
            counter.claims.signal.wake()
            yield cause.aclose


@pytest.fixture
def counter(store: Store, connection: Sql, monkeypatch: Patch) -> Counter:
    monkeypatch.setattr(results, "REFUSED_PAUSE_S", 0.05)
    monkeypatch.setattr(refused_jobs, "TRY_S", 0.05)
    monkeypatch.setattr(actor, "RETRY_MAX_S", 0.05)
    return Counter(store, connection)


async def aside(connection: Sql) -> dict[bytes, str]:
    rows = await connection.fetch("SELECT uuid_send(job_id) AS id, sqlstate FROM pulse.set_aside")
    return {row["id"]: row["sqlstate"] for row in rows}


async def is_aside(connection: Sql, expected: Mapping[bytes, str]) -> bool:
    return await aside(connection) == expected


async def until_assigned(counter: Counter, jobs: Collection[bytes], left: Mapping[bytes, str] | None = None) -> None:
    """Exactly these jobs have been handed out; exactly *left* are set aside."""

    async def are_assigned() -> bool:
        return counter.assigned() == {*jobs} and await aside(counter.connection) == (left or {})

    await until(are_assigned, "the jobs")


@pytest.mark.rest
async def test_claims(counter: Counter, connection: Sql) -> None:
    """Refused jobs are set aside, all others are handed out, and they are, too, as soon as that works."""
    jobs = [await forge(connection, next_run_at=PAST) for _ in range(2 * len(STATES))]
    bad = dict(zip(jobs[1::2], STATES, strict=True))
    async with open_while_refused(counter, connection, bad, "RUNNING") as heal:
        await until_assigned(counter, {*jobs} - {*bad}, bad)
        await heal()
        await until_assigned(counter, jobs)
    assert [(await read(connection, one))["attempts"] for one in jobs] == [1] * len(jobs)


@pytest.mark.parametrize("is_first", [True, False])
async def test_what_is_not_believed(counter: Counter, connection: Sql, *, is_first: bool) -> None:
    """The error is logged, and later claims are slower, the next one full; other topics keep their pace."""
    bad, good = (TOPIC, "others") if is_first else ("others", TOPIC)
    worker = new_worker("other")
    worker.facts = replace(worker.facts, topics=("others",))
    counter.registry.join(worker)
    refused = await forge(connection, topic=bad, next_run_at=PAST)
    async with refusing(connection, {refused: "08006"}, "RUNNING"):
        for _ in range(STUBBORN - 1):
            other = await forge(connection, topic=good, next_run_at=PAST)
            with pytest.raises(UnavailableError, match="is away: not with me"):
                await counter.claims.loop.pass_once()
            assert (await read(connection, other))["status"] == "RUNNING"
            assert counter.claims.signal.cursors._wanted
            counter.claims.signal.cursors._full_s = float("-inf")  # it may have been dear, on a busy machine
        assert await aside(connection) == {}
        await counter.claims.loop.pass_once()
    assert await aside(connection) == {refused: "08006"}


async def test_what_is_said_of_a_claim_that_was_made(counter: Counter, connection: Sql, monkeypatch: Patch) -> None:
    """A backend may end just behind the commit: its claim goes back before the next one."""
    job = await forge(connection, next_run_at=PAST)
    claim = counter.store.claim

    async def told(*args: Any, **options: Any) -> Any:
        await claim(*args, **options)
        cause = asyncpg.AdminShutdownError("the transaction has already committed locally")
        vars(cause).update(severity="FATAL", statement="claim_jobs")
        raise UnavailableError("away") from cause

    monkeypatch.setattr(counter.store, "claim", told)
    with pytest.raises(UnavailableError, match="away"):
        await counter.claims.loop.pass_once()
    row = await read(connection, job)
    assert (row["status"], row["attempts"], row["uncharged"]) == ("PENDING", 1, 1)


async def test_what_a_search_finds_before_a_lock(counter: Counter, connection: Sql, monkeypatch: Patch) -> None:
    """It is set aside, though the search cannot go on."""
    jobs = [await forge(connection, next_run_at=PAST + timedelta(seconds=place)) for place in range(4)]

    async def interrupted(*_args: Any) -> None:
        raise UnavailableError("locked")

    async with refusing(connection, {jobs[0]: "XX001"}, "RUNNING"):
        with monkeypatch.context() as patch:
            patch.setattr(refused_jobs._RefusedSearch, "is_about_none", interrupted)
            with pytest.raises(UnavailableError, match="locked"):
                await counter.claims.loop.pass_once()
    assert await aside(connection) == {jobs[0]: "XX001"}


@pytest.mark.rest
@pytest.mark.parametrize("is_one", [True, False])
async def test_a_search_has_no_cost(counter: Counter, connection: Sql, monkeypatch: Patch, *, is_one: bool) -> None:
    """It does not count as a full claim: the next ones would be rare, for no reason."""
    costs: list[float] = []
    monkeypatch.setattr(counter.claims.signal.cursors, "full_done", lambda begin, end: costs.append(end - begin))
    jobs = [await forge(connection, next_run_at=PAST) for _ in range(2 * IN_VAIN)]
    refused: Mapping[bytes, str] | str = {jobs[0]: "XX001"} if is_one else "XX001"
    async with refusing(connection, refused, "RUNNING"):
        assert await counter.claims.loop.pass_once() == is_one
    assert costs == [pytest.approx(0.0, abs=1e-6)]


@pytest.mark.parametrize("is_left", [False, True])
async def test_a_name_that_cannot_be_read(counter: Counter, connection: Sql, store: Store, *, is_left: bool) -> None:
    """Its claim is done, with an unreadable answer: it goes back, the others are handed out, and no loop ends."""
    jobs = [await forge(connection, next_run_at=PAST) for _ in range(9)]
    bad = jobs[4]
    await spoil(connection, bad)
    if is_left:  # by a dispatcher before this one, which died of it
        with pytest.raises(StatementError, match="answers to claim_jobs cannot be read"):
            await store.claim([TOPIC], [counter.worker.identity], [0] * 9, LEASE_S)
        assert (await connection.fetchval(RUNNING)) == len(jobs)
        counter.claims.in_doubt.doubt(counter.worker.identity)
    with capture_logs() as logs:
        async with counter.open():
            counter.claims.signal.wake()
            await until_assigned(counter, {*jobs} - {bad}, {bad: "22021"})
            await until(lambda: connection.fetchval("SELECT tries > 3 FROM pulse.set_aside"), "some more tries")
            assert await connection.fetchval("SELECT count(*) FROM pulse.attempts") == is_left * len(jobs)
            later = await forge(connection, next_run_at=PAST)
            counter.claims.signal.wake()
            await until(lambda: later in counter.assigned(), "a job that comes later")
            await connection.execute("UPDATE pulse.jobs SET name = 'n' WHERE id = $1", bad.hex())
            await until_assigned(counter, [*jobs, later])
    assert [one["job"] for one in logs if one["event"] == "job_set_aside"] == [str(UUID(bytes=bad))]
    assert await connection.fetchval("SELECT attempts - uncharged FROM pulse.jobs WHERE id = $1", bad.hex()) == 1


async def test_what_is_let_go_with_another(counter: Counter, connection: Sql) -> None:
    """It is claimed at once, though the claims have passed it over, and look everywhere once a minute."""
    jobs = [await forge(connection, next_run_at=PAST) for _ in range(3)]
    refusal = StatementError("no", sqlstate="XX001", statement="claim_jobs")
    await counter.store.aside.add([(one, refusal) for one in jobs], 0.0)
    await counter.claims.loop.pass_once()
    assert counter.assigned() == set()
    await counter.claims.refused_jobs.try_next()

    async def all_of_them() -> bool:
        await counter.claims.loop.pass_once()
        return counter.assigned() == {*jobs}

    await until_async(all_of_them, "all of them", within_s=10.0)


async def test_a_bad_job_that_one_place_waits_for(counter: Counter, connection: Sql) -> None:
    """The slot goes to another one, so that only the first is set aside; the claim is repeated for those behind."""
    counter.worker.capacity = 1
    jobs = [await forge(connection, next_run_at=PAST + timedelta(seconds=place)) for place in range(3)]
    async with refusing(connection, {jobs[0]: "XX001"}, "RUNNING"):
        assert await counter.claims.loop.pass_once()
        assert counter.assigned() == {jobs[1]}
        assert counter.claims.quarantine._pauses == {}
        counter.worker.capacity = 2
        await counter.claims.loop.pass_once()
    assert counter.assigned() == {*jobs[1:]}


async def test_many_jobs_that_one_place_waits_for(counter: Counter, connection: Sql, monkeypatch: Patch) -> None:
    """Where each of them is refused, only a bounded number is set aside, for any number of slots."""
    monkeypatch.setattr(refused_jobs, "MOST_BLAMED", 1)
    counter.worker.capacity = 1
    jobs = [await forge(connection, next_run_at=PAST) for _ in range(20)]
    async with open_while_refused(counter, connection, "XX001", "RUNNING") as heal:
        await until(lambda: bool(counter.claims.quarantine._pauses), "claims that fail")
        assert len(await aside(connection)) in {1, 2}
        await heal()
        counter.claims.quarantine._pauses.clear()
        counter.worker.capacity = 100

        async def all_of_them() -> bool:
            counter.claims.signal.wake()
            return counter.assigned() == {*jobs}

        await until(all_of_them, "the jobs")


async def test_what_is_set_aside_is_told_once(counter: Counter, connection: Sql, monkeypatch: Patch) -> None:
    """And nothing is logged of jobs that stay, since too many do."""
    monkeypatch.setattr(refused_jobs, "MOST_BLAMED", 4)
    for _ in range(30):
        await forge(connection, next_run_at=PAST)
    with capture_logs() as logs:
        async with open_while_refused(counter, connection, "P0001", "RUNNING"):

            async def are_searched() -> bool:
                counter.claims.quarantine._pauses.clear()
                counter.claims.signal.wake()
                return [one["event"] for one in logs].count("claim_failed") > 2

            await until(are_searched, "searches")
            known = await aside(connection)
    told = [one["job"] for one in logs if one["event"] == "job_set_aside"]
    assert sorted(told) == sorted(str(UUID(bytes=one)) for one in known)
    assert len(known) == IN_VAIN  # of the first search


@pytest.mark.parametrize("sqlstate", sorted(WAITED))
async def test_a_claim_that_waits(counter: Counter, connection: Sql, monkeypatch: Patch, sqlstate: str) -> None:
    """A lock or a timeout blames no job; the claim is made as soon as that works."""
    monkeypatch.setattr(failures, "AT_ONCE_S", 0.0)
    soon = datetime.now(UTC)
    jobs = [await forge(connection, next_run_at=soon) for _ in range(3)]
    tries, claim = 0, counter.store.claim

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal tries
        tries += 1
        return await claim(*args, **options)

    async def are_refused() -> bool:
        counter.claims.quarantine._pauses.clear()
        counter.claims.signal.wake()
        return tries > 2 * STUBBORN

    monkeypatch.setattr(counter.store, "claim", counted)
    async with open_while_refused(counter, connection, {jobs[1]: sqlstate}, "RUNNING") as heal:
        await until(are_refused, "claims")
        await heal()
        counter.claims.quarantine._pauses.clear()
        counter.claims.signal.wake()
        await until_assigned(counter, jobs)


@pytest.mark.rest
@pytest.mark.parametrize(("outcome", "status"), [("ok", "COMPLETED"), ("error", "RETRYING")])
async def test_reports(counter: Counter, connection: Sql, outcome: Literal["ok", "error"], status: str) -> None:
    """Results of others are written; a refused one is kept, and written when that works."""
    counter.registry.closed = True  # none is handed out again
    good = [await counter.running(counter.worker) for _ in STATES]
    bad = {await counter.running(counter.worker): sqlstate for sqlstate in STATES}
    values = [  # those are taken for bad results
        one
        for one, sqlstate in bad.items()
        if outcome == "ok" and is_value(sqlstate) and not sqlstate.startswith(CONSTRAINTS)
    ]
    detail = None if outcome == "ok" else "boom"
    async with counter.open():
        async with refusing(connection, bad, status):
            for one, other in zip(good, bad, strict=True):
                counter.report(Result(one, 1, outcome, detail), Result(other, 1, outcome, detail))
            await until(lambda: counter.is_status(status, *good), "the others' results")
            await until(lambda: counter.is_status("RETRYING", *values), "what cannot be stored")
            kept = {*bad} - {*values}
            assert {pair[0] for pair in counter.worker.held} >= kept
            assert await counter.is_status("RUNNING", *kept)
        await until(lambda: counter.is_status(status, *kept), "their own results")
        await until(lambda: not counter.worker.held, "their places")
        await until(lambda: is_aside(connection, {}), "their marks")


async def test_a_report_that_is_refused_stays_aside(counter: Counter, connection: Sql, monkeypatch: Patch) -> None:
    """It is logged once, is visible as long as it lasts, and waits longer than for a lock."""
    monkeypatch.setattr(results, "LOCKED_PAUSE_S", 0.0)
    monkeypatch.setattr(results, "REFUSED_PAUSE_S", 0.2)
    job, other = await counter.running(counter.worker), await counter.running(counter.worker)
    with capture_logs() as logs:
        async with counter.open():
            async with refusing(connection, {job: "P0001"}, "COMPLETED"):
                counter.report(Result(job, 1, "ok"))
                await until(lambda: connection.fetchval("SELECT max(tries) > 1 FROM pulse.set_aside"), "the second try")
                counter.report(Result(other, 1, "ok"))
                await until(lambda: counter.is_status("COMPLETED", other), "another report")
                assert await aside(connection) == {job: "P0001"}
                await until(lambda: counter.worker.held.keys() == {(job, 1)}, "the other one is freed")
                lost = anyio.Event()

                async def lose(*_args: Any) -> None:
                    lost.set()
                    raise UnavailableError

                with pytest.MonkeyPatch.context() as patch, anyio.fail_after(DEADLINE_S):
                    patch.setattr(counter.store.aside, "add", lose)
                    await lost.wait()
            await until(lambda: counter.is_status("COMPLETED", job), "the report")
            await until(lambda: is_aside(connection, {}), "its mark")
    events = [entry["event"] for entry in logs]
    assert (events.count("report_refused"), events.count("rows_locked")) == (1, 0)


@pytest.mark.parametrize("together", [True, False])
async def test_many_refused_reports(counter: Counter, connection: Sql, together: bool) -> None:
    """They delay no other: neither later ones, nor the next in the same flush."""
    bad = {await counter.running(counter.worker): "P0001" for _ in range(3 * IN_VAIN)}
    good = await counter.running(counter.worker)
    counter.registry.closed = True
    async with open_while_refused(counter, connection, bad, "COMPLETED") as heal:
        counter.report(*(Result(one, 1, "ok") for one in bad))
        if not together:
            await until(lambda: has_failed(counter, "complete_jobs"), "their refusal")
        counter.report(Result(good, 1, "ok"))
        await until(lambda: counter.is_status("COMPLETED", good), "the other one")
        await heal()
        await until(lambda: counter.is_status("COMPLETED", *bad), "they themselves")


async def has_failed(counter: Counter, statement: str) -> bool:
    return statement in {one.statement for one in counter.store.failing.now()}


async def test_nobody_waits_for_a_refused_report(counter: Counter, connection: Sql) -> None:
    """It may be refused for days: no sweep waits for it, and its lease is kept; others are doubted as before."""
    bad, later = [await counter.running(counter.worker, lease_until=PAST) for _ in range(2)]
    async with open_while_refused(counter, connection, {bad: "P0001"}, "COMPLETED") as heal:
        counter.report(Result(bad, 1, "ok"))
        await until(lambda: is_aside(connection, {bad: "P0001"}), "its mark")
        counter.registry.reporting.add((later, 1))
        await counter.leases.unwritten.look(Backoff())
        assert [(await counter.read(one))["lease_until"] > PAST for one in (bad, later)] == [True, False]
        assert counter.leases.unwritten._reports_s.keys() == {(later, 1)}
        await heal()
        await until(lambda: counter.is_status("COMPLETED", bad), "its end")
    assert counter.registry.refused == {}


async def late(connection: Sql, number: int) -> list[bytes]:
    ends = [PAST + timedelta(seconds=1 + second) for second in range(number)]
    return [await forge(connection, next_run_at=PAST, expires_at=end) for end in ends]


@contextlib.asynccontextmanager
async def expiring(counter: Counter) -> AsyncIterator[None]:
    async with counter.open(), running(partial(expiry.expire, counter.store, FailureLog(structlog.get_logger()))):
        yield


async def test_what_expires_while_it_is_set_aside_is_a_dead_letter(counter: Counter, connection: Sql) -> None:
    counter.worker.capacity = 0
    [one] = await late(connection, 1)
    await counter.store.aside.add([(one, StatementError("no", sqlstate="P0001", statement="claim_jobs"))], 0.0)
    async with expiring(counter):
        await until(lambda: counter.is_status("DEAD_LETTERED", one), "its end")
    assert await aside(connection) == {}


@pytest.mark.rest
async def test_late_jobs_that_are_refused(counter: Counter, connection: Sql, monkeypatch: Patch) -> None:
    """Those behind them are dead letters soon, and they themselves as soon as that works."""
    monkeypatch.setattr(expiry, "LOOK_S", 0.5)
    monkeypatch.setattr(expiry, "LATER_S", 2.0)
    jobs = await late(connection, 4 * IN_VAIN)
    bad = dict.fromkeys(jobs[: 3 * IN_VAIN], "P0001")
    async with refusing(connection, bad, "DEAD_LETTERED"), expiring(counter):
        await until(lambda: counter.is_status("DEAD_LETTERED", *jobs[len(bad) :]), "the others")
        assert await connection.fetchval("SELECT count(*) FROM pulse.jobs WHERE status = 'PENDING'") == len(bad)
        await connection.execute("DROP TRIGGER mine ON pulse.jobs")
        await until(lambda: counter.is_status("DEAD_LETTERED", *jobs), "all of them")


async def test_each_late_job_is_refused(store: Store, connection: Sql, monkeypatch: Any) -> None:
    """It may be about none of them: a bounded number is set aside, and the database gets the blame."""
    monkeypatch.setattr(expiry, "MOST_BLAMED", 2 * IN_VAIN)
    monkeypatch.setattr(actor, "QUIET_S", 0.0)
    monkeypatch.setattr(actor, "RETRY_MAX_S", 0.05)
    jobs = await late(connection, 4 * IN_VAIN)
    tries = 0
    expire = store.expire

    async def counted(limit: int) -> list[Any]:
        nonlocal tries
        tries += 1
        return await expire(limit)

    monkeypatch.setattr(store, "expire", counted)
    with capture_logs() as logs:
        expiring = partial(expiry.expire, store, FailureLog(structlog.get_logger()))
        async with refusing(connection, "P0001", "DEAD_LETTERED"), running(expiring):
            await until(lambda: tries > 5 * IN_VAIN, "many tries")
            assert len(await aside(connection)) == 2 * IN_VAIN
            await connection.execute("DROP TRIGGER mine ON pulse.jobs")

            async def others() -> bool:
                return bool(await connection.fetchval(DEAD) == len(jobs) - 2 * IN_VAIN)

            await until(others, "the others")
    assert {entry["step"] for entry in logs if "step" in entry} == {"expiry"}


async def test_what_was_refused_something_else(store: Store, connection: Sql) -> None:
    """It is let go without a pause before the next, by the caller that was refused and tries again."""
    counter = Counter(store, connection)
    for _ in range(2):
        one = await forge(connection, next_run_at=datetime.now(UTC) + timedelta(hours=1))
        await store.aside.add([(one, StatementError("no", sqlstate="P0001", statement="expire_jobs"))], 0.0)
    assert [await counter.claims.refused_jobs.try_next() for _ in range(3)] == [True, True, False]
    assert await aside(connection) == {}


async def test_what_no_worker_takes_is_not_tried(counter: Counter, connection: Sql) -> None:
    """It stays set aside: another host may have workers of its topic."""
    job = await forge(connection, topic="nobody's", next_run_at=PAST)
    await counter.store.aside.add([(job, StatementError("no", sqlstate="P0001", statement="claim_jobs"))], 0.0)
    assert not await counter.claims.refused_jobs.try_next()
    assert await aside(connection) == {job: "P0001"}


async def test_what_is_reported_is_nobodys_turn(counter: Counter, connection: Sql) -> None:
    """Of a running job the report may be refused: that stays so. A job that was handed out meanwhile is let go."""
    reported, handed_out = [await counter.running(counter.worker) for _ in range(2)]
    for one, statement in ((reported, "complete_jobs"), (handed_out, "claim_jobs")):
        await counter.store.aside.add([(one, StatementError("no", sqlstate="P0001", statement=statement))], 0.0)
    assert [await counter.claims.refused_jobs.try_next() for _ in range(3)] == [False, True, False]
    assert await aside(connection) == {reported: "P0001"}


@pytest.mark.rest
async def test_heartbeats_and_checkpoints(counter: Counter, connection: Sql) -> None:
    """Leases of others are extended, their checkpoints kept; a refused one is not lost to its worker."""
    good = [await counter.running(counter.worker) for _ in STATES]
    bad = {await counter.running(counter.worker): sqlstate for sqlstate in STATES}
    jobs = [one for both in zip(good, bad, strict=True) for one in both]
    leases = {one: (await read(connection, one))["lease_until"] for one in jobs}
    async with counter.open(), refusing(connection, bad, "RUNNING"):

        async def are_written() -> bool:
            if not len(counter.leases.batcher):
                counter.beat(*jobs)
                counter.beat(*jobs, text='{"at": 1}')
            rows = [await read(connection, one) for one in good]
            return all(row["lease_until"] != leases[row["id"].bytes] and row["checkpoint"] for row in rows)

        await until(are_written, "the others' leases")
        assert {(await read(connection, one))["lease_until"] == leases[one] for one in bad} == {True}
    assert all(not body["lost"] for body in counter.client.bodies("beat"))


@pytest.mark.rest
async def test_submits(counter: Counter, connection: Sql) -> None:
    """A refused request gets the database's words; all others of the same statement are carried out."""
    jobs = [job() for _ in range(2 * len(STATES))]
    ids = [one.id or b"" for one in jobs]
    bad = dict(zip(ids[1::2], STATES, strict=True))
    expected = {state: code_of(state) for state in STATES}
    sent: dict[bytes, Wire] = {}

    def codes() -> dict[str, str]:
        """The code of each refused request."""
        return {bad[one]: sent[one].sent[-1][2].get("code", "") for one in bad}

    def ask_again() -> None:
        """As clients do after "unavailable"."""
        for one, identity in zip(jobs, ids, strict=True):
            wire = sent.get(identity)
            code = "" if wire is None or not wire.sent else wire.sent[-1][2].get("code", "")
            if wire is None or (code == "unavailable" and code_of(bad.get(identity, UNIQUE_VIOLATION)) != code):
                sent[identity] = Wire()
                counter.submits.batcher.put(PendingSubmit(sent[identity], 1, [one]))

    async with counter.open(), refusing(connection, bad, "PENDING", "RUNNING"):

        async def are_answered() -> bool:
            ask_again()
            kinds = {one: wire.sent[-1][0] if wire.sent else "" for one, wire in sent.items()}
            return kinds == {one: "error" if one in bad else "ok" for one in ids} and codes() == expected

        await until(are_answered, "all answers")
    stored = {row["id"].bytes for row in await connection.fetch("SELECT id FROM pulse.jobs")}
    assert stored == {*ids} - {*bad}


async def test_requests_that_were_not_tried_alone(counter: Counter, connection: Sql) -> None:
    """They may be good ones behind many bad ones: their clients try again, and succeed then."""
    bad, good = [job() for _ in range(36)], [job() for _ in range(4)]
    every = [*bad[:31], good[0], *bad[31:33], good[1], *bad[33:], *good[2:]]
    sent: dict[bytes, Wire] = {}

    def ask() -> bool:
        """As clients do: send all without a final answer; whether there was any."""
        these = [one for one in every if code_in(sent.get(one.id or b"")) == "unavailable"]
        for one in these:
            sent[one.id or b""] = Wire()
            counter.submits.batcher.put(PendingSubmit(sent[one.id or b""], 1, [one]))
        return bool(these)

    async def are_answered() -> bool:
        return all(wire.sent for wire in sent.values())

    async with counter.open(), refusing(connection, {one.id or b"": "P0001" for one in bad}, "PENDING", "RUNNING"):
        while ask():
            await until(are_answered, "all answers")
    assert {sent[one.id or b""].sent[-1][0] for one in good} == {"ok"}
    assert {sent[one.id or b""].sent[-1][2]["code"] for one in bad} == {"bad_request"}


async def test_every_row_is_refused(counter: Counter, connection: Sql, monkeypatch: Patch) -> None:
    """Nothing is lost, and all goes on at once when the cause has gone."""
    monkeypatch.setattr(results, "REFUSED_PAUSE_S", 1.0)  # twenty reports that try all the time hold up the claims
    waiting = [await forge(connection, next_run_at=PAST) for _ in range(20)]
    done = [await counter.running(counter.worker) for _ in range(20)]
    async with open_while_refused(counter, connection, "42P10", "RUNNING", "COMPLETED") as heal:
        counter.report(*(Result(one, 1, "ok") for one in done))

        async def are_failing() -> bool:
            failing = {one.statement for one in counter.store.failing.now()}
            return failing >= {"claim_jobs", "complete_jobs"}

        await until(are_failing, "both statements")
        await heal()
        counter.claims.quarantine._pauses.clear()

        async def all_of_them() -> bool:
            return counter.assigned() == {*waiting} and await counter.is_status("COMPLETED", *done)

        await until(all_of_them, "everything")
    assert {"claim_jobs", "complete_jobs"}.isdisjoint(one.statement for one in counter.store.failing.now())


def code_in(wire: Wire | None) -> str:
    """The last answer; of an unsent one: the code that makes clients try again."""
    return "unavailable" if wire is None else wire.sent[-1][2].get("code", "")


def code_of(sqlstate: str) -> str:
    """The code of the answer."""
    if sqlstate == UNIQUE_VIOLATION:
        return "conflict"
    return "bad_request" if is_value(sqlstate) or sqlstate.startswith("P0") else "unavailable"


def is_value(sqlstate: str) -> bool:
    """Whether that code blames the value."""
    error = asyncpg.PostgresError("not with me")
    vars(error)["sqlstate"] = sqlstate
    return failures.meaning_of(error) is failures.Meaning.VALUE
