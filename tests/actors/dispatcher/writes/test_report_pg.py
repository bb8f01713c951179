"""Reports and obituaries on their way to the database: stale, locked, and kept until their answers."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import MutableMapping, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec
import pytest
from structlog.testing import capture_logs

from pulse.errors import StatementError, UnavailableError
from pulse.protocol import Result
from pulse.store.connections.pool import SERVER_SETTINGS, Target
from pulse.store.failures import IN_VAIN
from pulse.store.rows import Ended, Ending, EndingKind, GroupLevel, Level
from pulse.store.store import Store
from pulse_actors.dispatcher.workers.records import HeldJob, RegisteredWorker
from pulse_actors.dispatcher.writes import report as writing
from pulse_actors.dispatcher.writes.report import ReportWriter
from pulse_actors.dispatcher.writes.report_rows import Obituary, PendingReport
from pulse_actors.runtime.actor import Backoff
from tests.support.store.helpers import TOPIC, Patch, Sql, forge, history, holding, read
from tests.support.store.recovery_kit import Floor, new_worker, running, wire_of
from tests.support.store.refusing_kit import refusing
from tests.support.waiting import until_async

pytestmark = pytest.mark.heavy

MANY: Final = 10  # turns of the loop
LOCK_TIMEOUT_S: Final = float(SERVER_SETTINGS["lock_timeout"]) / 1000


class Tray(Floor):
    """A floor with a worker, and without loops: a test writes what has come."""

    def __init__(self, store: Store, connection: Sql, dsn: str) -> None:
        super().__init__(store, connection)
        self.worker = new_worker("w")
        self.registry.join(self.worker)
        self.dsn = dsn
        self.woken: list[tuple[Level | GroupLevel, float]] = []
        self.dues_s: list[float | None] = []
        self.claims.signal.wake_level = self._woken  # type: ignore[method-assign]

    def _woken(self, level: Level | GroupLevel, delay_s: float = 0.0, *, due_s: float | None = None) -> None:
        self.woken.append((level, delay_s))
        self.dues_s.append(due_s)

    async def held(self, **columns: Any) -> bytes:
        return await self.running(self.worker, **columns)

    def report(self, number: int, *results: Result, worker: RegisteredWorker | None = None) -> None:
        self.results.accept(PendingReport(worker or self.worker, number, results, [one.pair for one in results]))

    def die(self, *endings: Ending) -> None:
        self.results.batcher.put(Obituary(endings))

    async def write(self) -> None:
        await self.results._write(self.results.batcher._take())

    async def write_again(self) -> None:
        await self.results._bring_back()
        await self.write()

    def answers(self, worker: RegisteredWorker | None = None) -> list[tuple[int | None, list[Any]]]:
        """The answered reports, with their stale attempts."""
        return [(number, body["stale"]) for _, number, body in wire_of(worker or self.worker).sent]

    def locked(self, job: bytes) -> contextlib.AbstractAsyncContextManager[None]:
        return holding(self.dsn, "SELECT FROM pulse.jobs WHERE id = $1 FOR UPDATE", job.hex())


@pytest.fixture
def tray(store: Store, connection: Sql, dsn: str, monkeypatch: Patch) -> Tray:
    monkeypatch.setattr(writing, "LOCKED_PAUSE_S", 0.0)
    return Tray(store, connection, dsn)


def ok(job: bytes, attempt: int = 1) -> Result:
    return Result(job, attempt, "ok")


def error(job: bytes, attempt: int = 1) -> Result:
    return Result(job, attempt, "error", "boom")


async def test_what_is_stale_is_told(tray: Tray) -> None:
    """Exactly the unwritten attempts; the registry keeps none of them."""
    done, failed, foreign = await tray.held(), await tray.held(), await forge(tray.connection, "RUNNING")
    tray.worker.held[foreign, 1] = HeldJob("n", TOPIC)
    with capture_logs() as logs:
        tray.report(1, ok(done, 2), ok(done), error(failed), ok(foreign))
        assert tray.registry.reporting == {(done, 2), (done, 1), (failed, 1), (foreign, 1)}
        await tray.write()
    assert tray.answers() == [(1, [(done, 2), (foreign, 1)])]
    assert tray.worker.held == {}
    assert tray.registry.reporting == set()
    assert [entry["count"] for entry in logs if entry["event"] == "results_stale"] == [2]
    assert (await read(tray.connection, done))["status"] == "COMPLETED"
    assert (await read(tray.connection, foreign))["status"] == "RUNNING"


async def test_a_success_that_comes_again_is_not_stale(tray: Tray) -> None:
    """The answer to the first one may have been lost."""
    job = await tray.held()
    for number in (1, 2):
        tray.report(number, ok(job))
        await tray.write()
    assert tray.answers() == [(1, []), (2, [])]


async def test_a_locked_row_holds_up_its_own_report_alone(tray: Tray) -> None:
    """Others are answered; it is answered when it is written, with what was written before."""
    first, locked, other = await tray.held(), await tray.held(), await tray.held()
    async with tray.locked(locked):
        tray.report(1, error(first), ok(locked))
        tray.report(2, ok(other))
        with capture_logs() as logs:
            await tray.write()
        assert tray.answers() == [(2, [])]
        assert [entry["count"] for entry in logs if entry["event"] == "rows_locked"] == [1]
        assert set(tray.worker.held) == {(first, 1), (locked, 1)}
        await tray.write_again()
        assert tray.answers() == [(2, [])]
    await tray.write_again()
    assert tray.answers() == [(2, []), (1, [])]
    assert tray.worker.held == {}
    assert tray.results._kept == set()
    assert tray.results._deferred == []


async def test_a_lock_is_waited_for_once(tray: Tray) -> None:
    """While a row is known to be locked, no report waits for it, nor for another locked row."""
    first, second, third = await tray.held(), await tray.held(), await tray.held()
    done, failed = await tray.held(), await tray.held()
    async with tray.locked(first), tray.locked(second), tray.locked(third):
        tray.report(1, ok(first))
        await tray.write()
        began_s = time.monotonic()
        tray.report(2, ok(second), ok(done))
        tray.report(3, error(third), error(failed))
        tray.report(4, ok(await tray.held()))
        await tray.write()
        await tray.write_again()
        assert time.monotonic() - began_s < LOCK_TIMEOUT_S
        assert tray.answers() == [(4, [])]
        assert [(await read(tray.connection, job))["status"] for job in (done, failed)] == ["COMPLETED", "RETRYING"]
    await tray.write_again()
    assert sorted(tray.answers()) == [(1, []), (2, []), (3, []), (4, [])]


async def test_what_is_locked_is_looked_at_again(tray: Tray) -> None:
    """Until it is free, also after a failed look."""
    job = await tray.held()
    lockable, asked = tray.store.lockable, list[bool]()

    async def away(ids: Sequence[bytes]) -> set[bytes]:
        asked.append(True)
        if len(asked) == MANY:  # the first one is asked by the statement that met the lock
            raise UnavailableError
        return await lockable(ids)

    tray.store.lockable = away  # type: ignore[method-assign]
    async with running(tray.results.run):
        async with tray.locked(job):
            tray.report(1, ok(job))
            await until_async(lambda: len(asked) > MANY, "many looks")
        await until_async(lambda: bool(tray.answers()), "the answer")
    assert tray.answers() == [(1, [])]


async def test_who_cannot_be_asked_what_is_locked(tray: Tray, monkeypatch: Patch) -> None:
    """Then it is tried."""
    job, locked = await tray.held(), await tray.held()
    async with tray.locked(locked):
        tray.report(1, ok(locked))
        await tray.write()

    async def away(_ids: Sequence[bytes]) -> set[bytes]:
        raise UnavailableError

    monkeypatch.setattr(tray.store, "lockable", away)
    tray.report(2, ok(job))
    await tray.write()
    assert tray.answers() == [(2, [])]
    with pytest.raises(UnavailableError, match="nothing was changed"):
        await tray.results._bring_back()
    assert len(tray.results._deferred) == 1


async def test_an_obituary_of_a_locked_row_is_written_later(tray: Tray) -> None:
    job = await tray.held()
    async with tray.locked(job):
        tray.die(Ending(job, 1, "w", EndingKind.CRASHED, "why"))
        await tray.write()
        assert len(tray.results._deferred) == 1
    await tray.write_again()
    assert (await read(tray.connection, job))["last_error"] == "why"
    assert tray.answers() == []


async def test_a_worker_that_said_how_it_ended_did_not_crash(tray: Tray) -> None:
    """A result that has arrived counts, not the obituary behind it."""
    job, other = await tray.held(), await tray.held()
    tray.report(1, error(job))
    await tray.results._write([Obituary([Ending(one, 1, "w", EndingKind.CRASHED, "why") for one in (job, other)])])
    await tray.write()
    assert [entry["outcome"] for entry in await history(tray.connection, job)] == ["error"]
    assert [entry["outcome"] for entry in await history(tray.connection, other)] == ["crashed"]
    assert tray.answers() == [(1, [])]


async def test_a_dead_letter_is_nothing_to_claim(tray: Tray) -> None:
    again, dead = await tray.held(), await tray.held(max_attempts=1)
    tray.report(1, error(again), error(dead))
    await tray.write()
    assert tray.woken == [(Level(TOPIC, 0), 1.0)]
    assert tray.dues_s == [(await read(tray.connection, again))["next_run_at"].timestamp()]


def failures(logs: Sequence[MutableMapping[str, Any]]) -> list[tuple[str, str, str]]:
    """The lines about failures: event, job, outcome."""
    return [(one["event"], one["id"], one["outcome"]) for one in logs if one["event"].startswith("job_")]


async def test_the_answer_names_dead_letters_for_their_worker_to_log(tray: Tray) -> None:
    """Also one that is given long after the row was written; then the next answers name none."""
    again, dead, locked = await tray.held(), await tray.held(max_attempts=1), await tray.held()
    with capture_logs() as logs:
        async with tray.locked(locked):
            tray.report(1, error(again), error(dead), ok(locked))
            await tray.write()
        await tray.write_again()
        tray.report(2, error(await tray.held()))
        await tray.write()
    assert wire_of(tray.worker).bodies("reported") == [{"stale": [], "dead": [(dead, 1)]}, {"stale": []}]
    assert failures(logs) == []
    assert tray.results._untold == {}


async def test_the_server_logs_what_no_worker_will(tray: Tray) -> None:
    """A result that it refuses, a worker that was buried, or one that is gone when its answer is ready."""
    big, crashed, gone = [await tray.held(max_attempts=1) for _ in range(3)]
    absent = new_worker("absent")
    absent.link.close()
    await tray.connection.execute("UPDATE pulse.jobs SET locked_by = 'absent' WHERE id = $1", gone.hex())
    with capture_logs() as logs:
        tray.report(1, Result(big, 1, "ok", "NaN"))
        tray.die(
            Ending(crashed, 1, "w", EndingKind.SILENT, "why"), Ending(await tray.held(), 1, "w", EndingKind.RELEASED)
        )
        tray.report(2, error(gone), worker=absent)
        await tray.write()
    ends = {str(UUID(bytes=big)): "error", str(UUID(bytes=crashed)): "lease_expired", str(UUID(bytes=gone)): "error"}
    assert sorted(failures(logs)) == sorted(("job_dead_lettered", job, outcome) for job, outcome in ends.items())
    assert wire_of(tray.worker).bodies("reported") == [{"stale": []}]


async def test_a_worker_may_die_before_it_reads_which_jobs_are_dead(tray: Tray, monkeypatch: Patch) -> None:
    """What its last answers named is logged here: better twice than never. Not of others, nor what was sent before."""
    other, drained = new_worker("other"), new_worker("drained")
    drained.drain(reconnect=False)
    jobs = [await tray.held(max_attempts=1) for _ in range(3)]
    for number, (job, worker) in enumerate(zip(jobs, (tray.worker, other, drained), strict=True)):
        identity = worker.identity
        await tray.connection.execute("UPDATE pulse.jobs SET locked_by = $2 WHERE id = $1", job.hex(), identity)
        tray.report(number, error(job), worker=worker)
    await tray.write()
    with capture_logs() as logs:
        tray.results.parted(tray.worker)
        tray.results.parted(drained)
        assert failures(logs) == [("job_dead_lettered", str(UUID(bytes=jobs[0])), "error")]
        monkeypatch.setattr(writing, "READ_S", -1.0)
        tray.results.parted(other)
    assert len(failures(logs)) == 1


async def test_a_dead_letter_is_logged_though_the_answer_of_its_commit_was_lost(tray: Tray, monkeypatch: Patch) -> None:
    """Of a report by its worker, which hears of it in the answer; of a worker that died, by the server."""
    failed, crashed = await tray.held(max_attempts=1), await tray.held(max_attempts=1)
    end, lost = Store.end, list[Sequence[Ending]]()

    async def end_unheard(self: Store, endings: Sequence[Ending], **more: Any) -> list[Ended]:
        ended = await end(self, endings, **more)
        if not lost:
            lost.append(endings)
            raise UnavailableError("the connection broke")
        return ended

    monkeypatch.setattr(Store, "end", end_unheard)
    monkeypatch.setattr(Backoff, "next_s", lambda _self: 0.0)
    tray.report(1, error(failed))
    tray.die(Ending(crashed, 1, tray.worker.identity, EndingKind.SILENT, "why"))
    with capture_logs() as logs:
        await tray.write()
    assert len(lost[0]) == 2
    assert wire_of(tray.worker).bodies("reported") == [{"stale": [], "dead": [(failed, 1)]}]
    assert failures(logs) == [("job_dead_lettered", str(UUID(bytes=crashed)), "lease_expired")]


@pytest.mark.parametrize("outcome", ["ok", "error"])
async def test_progress_that_cannot_be_stored_costs_nothing_else(tray: Tray, outcome: str) -> None:
    job = await tray.held()
    tray.report(1, msgspec.convert((job, 1, outcome, '"x"', {"progress": "NaN"}), Result))
    await tray.write()
    row = await read(tray.connection, job)
    assert (row["status"], row["progress"]) == ("COMPLETED" if outcome == "ok" else "RETRYING", None)
    assert row["last_error"] == (None if outcome == "ok" else '"x"')


async def test_a_result_that_cannot_be_stored_is_an_error(tray: Tray) -> None:
    """With the reason, and alone: its neighbours are completed."""
    bad, good = await tray.held(), await tray.held()
    tray.report(1, Result(bad, 1, "ok", "NaN"), ok(good))
    await tray.write()
    row = await read(tray.connection, bad)
    assert row["status"] == "RETRYING"
    assert row["last_error"].startswith("result is not storable: ")
    assert (await read(tray.connection, good))["status"] == "COMPLETED"


async def test_progress_and_the_rest_cannot_be_stored(tray: Tray, monkeypatch: Patch) -> None:
    """Neither progress nor text of an end: it is kept without both; a refusal for other reasons is kept back."""
    job = await tray.held()
    bad = Ending(job, 1, tray.worker.identity, EndingKind.ERROR, "boom\0", progress='"\\u0000"')
    tray.die(bad)
    await tray.write()
    row = await read(tray.connection, job)
    assert (row["status"], row["last_error"], row["progress"]) == ("RETRYING", "error text is not storable", None)
    other = await tray.held()
    end = tray.store.end

    async def refused(endings: Sequence[Ending], **more: Any) -> list[Any]:
        if endings[0].progress is None:
            raise StatementError("not with me", sqlstate="P0001", statement="end_attempts")
        return await end(endings, **more)

    monkeypatch.setattr(tray.store, "end", refused)
    tray.die(Ending(other, 1, tray.worker.identity, EndingKind.ERROR, "boom", progress='"\\u0000"'))
    await tray.write()
    assert (await read(tray.connection, other))["status"] == "RUNNING"
    assert [one.left for one in tray.results._deferred] == [{other}]


async def test_an_outage_is_logged_now_and_then(monkeypatch: Patch, tray: Tray) -> None:
    """A result waits for the database as long as it takes, and says so now and then."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        away = Store(Target(f"postgresql://pulse@127.0.0.1:{probe.getsockname()[1]}/pulse", "pulse-tests"))
    tries: list[float] = []

    def counted(_self: Backoff) -> float:
        tries.append(0.0)
        return 0.0

    monkeypatch.setattr(Backoff, "next_s", counted)
    results = ReportWriter(away, tray.registry, tray.claims.signal, tray.claims.counters, failures=tray.claims.failures)
    results.accept(PendingReport(tray.worker, 1, [ok(bytes(16))], [(bytes(16), 1)]))
    with capture_logs() as logs:
        async with running(results.run):
            await until_async(lambda: len(tries) >= 4, "some tries")
    away.close()
    assert [entry["event"] for entry in logs].count("database_away") == 1
    assert tray.answers() == []


async def test_so_many_are_refused_that_good_ones_may_wait_behind_them(
    tray: Tray, connection: Sql, monkeypatch: Patch
) -> None:
    """Then they are mixed, until all are written: each has its turn."""
    mixed: list[int] = []
    monkeypatch.setattr(random, "shuffle", lambda rows: mixed.append(len(rows)))
    monkeypatch.setattr(writing, "REFUSED_PAUSE_S", 0.0)
    jobs = [await tray.held() for _ in range(IN_VAIN + 1)]
    async with refusing(connection, "P0001", "COMPLETED"):
        tray.report(1, *(Result(one, 1, "ok", None) for one in jobs))
        await tray.write()
        assert mixed == []
        await tray.write_again()
    assert mixed == [len(jobs), 0]  # successes and failures
    await tray.write_again()
    assert tray.answers() == [(1, [])]
    tray.report(2, Result(jobs[0], 1, "ok", None))
    await tray.write()
    assert len(mixed) == 4
