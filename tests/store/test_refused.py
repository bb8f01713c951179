"""Whatever the database answers, nobody's process ends, the others go on, and what is refused comes back by itself."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import anyio
import pytest
from structlog.testing import capture_logs

from pulse.errors import StatementError, UnavailableError
from pulse.protocol import Beat, NewJob, Result
from pulse.store import failures
from pulse.store.rows import Completion, Ending, EndingKind
from pulse.store.store import Store
from pulse_actors import runtime
from pulse_actors.dispatcher import bad_jobs, results
from pulse_actors.dispatcher.leases import Beating, Leases
from pulse_actors.dispatcher.results import Reported
from pulse_actors.dispatcher.submits import Submits, Submitted
from pulse_actors.merging import IN_VAIN, write_merged
from tests.store.helpers import TOPIC, forge, job, read
from tests.store.recovery_kit import DEADLINE_S, HOST, LEASE_S, Floor, Wire, new_worker, wire_of
from tests.store.refusing_kit import refusing, sqlstates
from tests.support.waiting import until

if TYPE_CHECKING:
    from asyncpg import Connection, Record
    from pulse_actors.dispatcher.desk import Worker

pytestmark = [pytest.mark.anyio, pytest.mark.postgres, pytest.mark.heavy]

STATES: Final = sqlstates()
PAST: Final = datetime(2020, 1, 1, tzinfo=UTC)
WAITED: Final = frozenset({"55P03", "57014"})  # a claim that had to wait, or took too long, blames no job


class Counter(Floor):
    """All loops of a dispatcher that write, with a worker, on the test's database."""

    def __init__(self, store: Store, connection: Connection[Record]) -> None:
        super().__init__(store, connection)
        self.worker: Worker = new_worker("w", capacity=1000)
        self.desk.join(self.worker)
        self.leases = Leases(store, self.desk, HOST, lease_s=LEASE_S)
        self.submits = Submits(store, self.claims)
        self.client = Wire()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Its loops run meanwhile; each that ends, ends the test."""
        loops: tuple[Callable[[], Awaitable[None]], ...] = (
            self.claims.run,
            self.claims.bad_jobs.run,
            self.results.run,
            self.leases.batcher.run,
            self.leases.checkpoints.run,
            self.submits.batcher.run,
        )
        async with anyio.create_task_group() as tasks:
            for loop in loops:
                tasks.start_soon(loop)
            yield
            tasks.cancel_scope.cancel()

    def assigned(self) -> set[bytes]:
        """The jobs that the worker was given."""
        return {one[0] for body in wire_of(self.worker).bodies("assign") for one in body["jobs"]}

    def report(self, *results: Result) -> None:
        """The worker reports, each in a frame of its own."""
        for one in results:
            self.results.accept(Reported(self.worker, 1, [one], [one.pair]))

    def beat(self, *jobs: bytes, text: str | None = None) -> None:
        """The worker beats for these; with *text*: saves that."""
        batcher = self.leases.batcher if text is None else self.leases.checkpoints
        beats = [Beat(one, 1, text) for one in jobs]
        batcher.put(Beating(self.client, 1, 0, self.worker.identity, None, beats, 0.0))

    async def is_status(self, status: str, *jobs: bytes) -> bool:
        """Whether these have that status."""
        return all([(await self.read(one))["status"] == status for one in jobs])


@pytest.fixture
def counter(store: Store, connection: Connection[Record], monkeypatch: pytest.MonkeyPatch) -> Counter:
    """One that tries again soon: the pauses are measured elsewhere."""
    monkeypatch.setattr(results, "REFUSED_PAUSE_S", 0.05)
    monkeypatch.setattr(bad_jobs, "TRY_S", 0.05)
    monkeypatch.setattr(runtime, "RETRY_MAX_S", 0.05)
    return Counter(store, connection)


async def aside(connection: Connection[Record]) -> dict[bytes, str]:
    """The jobs that are set aside, with what was said of them."""
    rows = await connection.fetch("SELECT uuid_send(job_id) AS id, sqlstate FROM pulse.set_aside")
    return {row["id"]: row["sqlstate"] for row in rows}


@pytest.mark.parametrize("sqlstate", STATES)
async def test_claims(counter: Counter, connection: Connection[Record], sqlstate: str) -> None:
    """A job that is refused is set aside, all others are handed out, and it is, too, as soon as that works."""
    jobs = [await forge(connection, next_run_at=PAST) for _ in range(5)]
    bad = jobs[2]
    async with counter.open():
        async with refusing(connection, sqlstate, "RUNNING", jobs=[bad]):
            counter.claims.wake()

            async def refused_once() -> bool:
                return counter.store.hot.usage.took.count > 0 or bool(counter.claims.barred._pauses)

            async def others() -> bool:
                return counter.assigned() == {*jobs} - {bad}

            if sqlstate not in WAITED:
                await until(others, "the other jobs")
            else:
                await until(refused_once, "a claim that fails")
        counter.claims.wake()
        counter.claims.barred._pauses.clear()

        async def all_of_them() -> bool:
            return counter.assigned() == {*jobs} and not await aside(connection)

        await until(all_of_them, "the job itself")
    assert [(await read(connection, one))["attempts"] for one in jobs] == [1] * 5


@pytest.mark.parametrize("sqlstate", STATES)
async def test_reports(counter: Counter, connection: Connection[Record], sqlstate: str) -> None:
    """Results of others are written; what is refused is kept, and written when it is not any more."""
    good = [await counter.running(counter.worker) for _ in range(4)]
    bad = await counter.running(counter.worker)
    async with counter.open():
        async with refusing(connection, sqlstate, "COMPLETED", "RETRYING", jobs=[bad]):
            counter.report(Result(bad, 1, "ok"), *(Result(one, 1, "ok") for one in good))
            await until(lambda: counter.is_status("COMPLETED", *good), "the others' results")
            assert (bad, 1) in counter.worker.held
        await until(lambda: counter.is_status("RUNNING", bad), "nothing")
        is_value = failures.meaning_of(_error(sqlstate)) is failures.Meaning.VALUE
        await until(lambda: counter.is_status("RETRYING" if is_value else "COMPLETED", bad), "its own result")

        async def is_free() -> bool:
            return not counter.worker.held and not await aside(connection)

        await until(is_free, "its place")


@pytest.mark.parametrize("sqlstate", STATES)
async def test_ends(counter: Counter, connection: Connection[Record], sqlstate: str) -> None:
    """The same of attempts that did not succeed."""
    good = [await counter.running(counter.worker) for _ in range(4)]
    bad = await counter.running(counter.worker)
    async with counter.open():
        async with refusing(connection, sqlstate, "RETRYING", jobs=[bad]):
            counter.report(*(Result(one, 1, "error", "boom") for one in (good[0], bad, *good[1:])))
            await until(lambda: counter.is_status("RETRYING", *good), "the others' ends")
        await until(lambda: counter.is_status("RETRYING", bad), "its own end")


@pytest.mark.parametrize("sqlstate", STATES)
async def test_heartbeats_and_checkpoints(counter: Counter, connection: Connection[Record], sqlstate: str) -> None:
    """Leases of others are extended, their checkpoints kept; what is refused is not lost to its worker."""
    jobs = [await counter.running(counter.worker) for _ in range(4)]
    leases = {one: (await read(connection, one))["lease_until"] for one in jobs}
    async with counter.open(), refusing(connection, sqlstate, "RUNNING", jobs=jobs[:1]):

        async def are_written() -> bool:
            counter.beat(*jobs)
            counter.beat(*jobs, text='{"at": 1}')
            rows = [await read(connection, one) for one in jobs[1:]]
            return all(row["lease_until"] != leases[one] and row["checkpoint"] for one, row in zip(jobs[1:], rows, strict=True))

        await until(are_written, "the others' leases")
    assert all(not body["lost"] for body in counter.client.bodies("beat"))
    assert (await read(connection, jobs[0]))["lease_until"] == leases[jobs[0]]


@pytest.mark.parametrize("sqlstate", STATES)
async def test_submits(counter: Counter, connection: Connection[Record], sqlstate: str) -> None:
    """A request that is refused is answered, with what was said; all others of the same statement are carried out."""
    jobs = [job() for _ in range(5)]
    bad = jobs[2].id
    assert bad is not None
    async with counter.open(), refusing(connection, sqlstate, "PENDING", "RUNNING", jobs=[bad]):
        sent: dict[bytes | None, Wire] = {}

        async def are_answered() -> bool:
            for one in jobs:
                answers = sent[one.id].sent if one.id in sent else [("error", None, {"code": "unavailable"})]
                if answers and (answers[-1][0], answers[-1][2].get("code")) == ("error", "unavailable") and not (
                    one.id == bad and "not with me" in str(answers[-1])
                ):
                    sent[one.id] = Wire()
                    counter.submits.batcher.put(Submitted(sent[one.id], 1, [one]))
            return all(wire.sent and (wire.sent[-1][0] == "ok" or one == bad) for one, wire in sent.items())

        await until(are_answered, "all answers")
        ((kind, _, answer),) = sent[bad].sent
        assert kind == "error"
        assert answer["code"] in {"unavailable", "bad_request", "conflict"}
    assert {row["id"].bytes for row in await connection.fetch("SELECT id FROM pulse.jobs")} == {one.id for one in jobs} - {bad}


def _error(sqlstate: str) -> Exception:
    """An error of the database with that SQLSTATE."""
    import asyncpg

    error = asyncpg.PostgresError("not with me")
    error.sqlstate = sqlstate
    return error
