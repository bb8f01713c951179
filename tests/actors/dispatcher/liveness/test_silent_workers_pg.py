"""Real processes that fall silent: whose leases the dispatcher renews, which it asks and kills, and what lapses."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import anyio
import pytest
from anyio.abc import TaskGroup
from structlog.testing import capture_logs

from pulse.errors import UnavailableError
from pulse.store.operators.policies import LivePolicy
from pulse.store.store import Store
from pulse.system import processes
from pulse_actors.dispatcher.liveness import silent_workers as looking
from pulse_actors.dispatcher.liveness.silent_workers import SilentWorkers
from pulse_actors.dispatcher.workers.policies import TopicPolicies
from pulse_actors.dispatcher.workers.records import RegisteredWorker
from pulse_actors.dispatcher.writes.unwritten import UnwrittenLeases
from tests.support.store.helpers import TOPIC, Patch, Sql, found_of, history, holding
from tests.support.store.recovery_kit import (
    DEADLINE_S,
    HOST,
    LEASE_S,
    Floor,
    Process,
    ago,
    floor,
    identity_of,
    new_worker,
    process,
)
from tests.support.waiting import is_alive, until_async

pytestmark = pytest.mark.heavy

LONG_S: Final = 600.0  # no test waits for it
SHORT_S: Final = 0.05
WHILE_S: Final = 5.0  # to be asked for; twenty looks are taken meanwhile


class Room(Floor):
    """A floor with the watch over silent workers; *signals*: what it sent to them."""

    def __init__(self, store: Store, connection: Sql) -> None:
        super().__init__(store, connection)
        self.silence = self.watcher(LEASE_S)
        self.silence._awake_s = time.monotonic() - LONG_S
        self.signals: list[signal.Signals] = []
        send = self.deaths.signal

        def signalled(worker: RegisteredWorker, number: signal.Signals) -> bool:
            self.signals.append(number)
            return send(worker, number)

        self.deaths.signal = signalled  # type: ignore[method-assign]

    def watcher(self, lease_s: float) -> SilentWorkers:
        unwritten = UnwrittenLeases(self.store, self.registry, lease_s=lease_s)
        return SilentWorkers(
            *(self.store, self.registry, self.claims.in_doubt, self.deaths, self.results, HOST),
            unwritten=unwritten,
            lease_s=lease_s,
        )

    def silent(self, pid: int, silent_s: float = LEASE_S) -> RegisteredWorker:
        worker = new_worker(identity_of(pid), pid)
        worker.contact.beaten_s = worker.contact.extended_s = time.monotonic() - silent_s
        return self.watch(worker)

    async def until_done(self) -> None:
        await until_async(lambda: not self.silence._being_killed, "nobody is being killed")

    async def lease_s(self, job: bytes) -> float:
        until: datetime = (await self.read(job))["lease_until"]
        return (until - datetime.now(UTC)) / timedelta(seconds=1)


@pytest.fixture
async def at(store: Store, connection: Sql, monkeypatch: Patch) -> AsyncIterator[Room]:
    monkeypatch.setattr(looking, "ASK_S", SHORT_S)
    monkeypatch.setattr(looking, "TERM_S", SHORT_S)
    async with floor(Room(store, connection)) as made:
        yield made


@pytest.fixture
async def tasks() -> AsyncIterator[TaskGroup]:
    async with anyio.create_task_group() as made:
        yield made
        made.cancel_scope.cancel()


@pytest.fixture
def deaf() -> Iterator[Process]:
    with process("sh", "-c", "trap '' TERM; echo; exec sleep 600") as made:
        assert made.stdout is not None
        made.stdout.readline()
        yield made


async def look(at: Room, tasks: TaskGroup) -> None:
    await at.silence._look(time.monotonic(), tasks)


@pytest.mark.parametrize(("silent", "is_renewed"), [(0.5, False), (0.8, True)])
async def test_who_has_missed_beats_is_renewed(
    at: Room, tasks: TaskGroup, living: Process, silent: float, *, is_renewed: bool
) -> None:
    """So that no watchdog ends a running attempt; one that a beating worker does not list must be able to lapse."""
    job = await at.running(at.silent(living.pid, silent * LEASE_S), lease_until=ago(-5))
    await look(at, tasks)
    left_s = await at.lease_s(job)
    assert (left_s < 5, left_s > LEASE_S - 5) == (not is_renewed, is_renewed)
    assert not at.silence._being_killed


async def test_who_is_silent_for_a_lease_is_killed(at: Room, tasks: TaskGroup, deaf: Process) -> None:
    """A question, SIGTERM, SIGKILL; then its started attempts are over, and the others are given back."""
    worker = at.silent(deaf.pid)
    job, queued = await at.running(worker), await at.running(worker, started=False)
    await look(at, tasks)
    assert await at.lease_s(job) > 0
    await at.until_done()
    assert at.signals == [signal.SIGTERM, signal.SIGKILL]
    assert deaf.wait(DEADLINE_S) == -signal.SIGKILL
    await at.wait_buried(worker)
    (entry,) = await history(at.connection, job)
    assert (entry["outcome"], entry["error"]) == ("lease_expired", "worker lease expired")
    assert (await at.read(job))["uncharged"] == 0
    assert [entry["outcome"] for entry in await history(at.connection, queued)] == ["released"]


async def test_a_process_is_killed_once(at: Room, tasks: TaskGroup, monkeypatch: Patch, living: Process) -> None:
    monkeypatch.setattr(looking, "ASK_S", LONG_S)
    with capture_logs() as logs:
        await at.running(at.silent(living.pid))
        for _ in range(3):
            await look(at, tasks)
            await anyio.wait_all_tasks_blocked()
    assert [entry["event"] for entry in logs].count("worker_silent_too_long") == 1


async def test_a_process_that_does_not_die_is_waited_for(
    at: Room, tasks: TaskGroup, monkeypatch: Patch, deaf: Process
) -> None:
    """One that hangs in the kernel is not signalled again and again."""
    killed = anyio.Event()
    monkeypatch.setattr(at.deaths, "kill", lambda _worker, _why: killed.set())
    with capture_logs() as logs:
        await at.running(at.silent(deaf.pid))
        await look(at, tasks)
        with anyio.fail_after(DEADLINE_S):
            await killed.wait()
        for _ in range(3):
            await anyio.wait_all_tasks_blocked()
            await look(at, tasks)
    assert [entry["event"] for entry in logs].count("worker_silent_too_long") == 1


async def test_who_holds_nothing_need_not_beat(at: Room, tasks: TaskGroup, living: Process) -> None:
    at.silent(living.pid, LONG_S)
    await look(at, tasks)
    assert not at.silence._being_killed
    assert is_alive(living.pid)


async def test_a_longer_lease_of_a_topic_lets_its_worker_live(at: Room, tasks: TaskGroup, living: Process) -> None:
    at.registry.policies = TopicPolicies({TOPIC: LivePolicy(lease_s=2 * LONG_S)})
    await at.running(at.silent(living.pid))
    await look(at, tasks)
    assert not at.silence._being_killed


@pytest.mark.parametrize("ends", [False, True])
async def test_who_answers_is_not_told_to_end(
    at: Room, tasks: TaskGroup, monkeypatch: Patch, living: Process, *, ends: bool
) -> None:
    """A heartbeat stops the ladder before its first signal; a process that has gone is not its business."""
    monkeypatch.setattr(looking, "ASK_S", WHILE_S)
    worker = at.silent(living.pid)
    await at.running(worker)
    await look(at, tasks)
    await anyio.wait_all_tasks_blocked()
    assert at.silence._being_killed
    if ends:
        living.kill()
    else:
        worker.contact.beaten_s = time.monotonic()
    await at.until_done()
    assert at.signals == []


async def test_who_answers_late_is_not_killed(at: Room, tasks: TaskGroup, monkeypatch: Patch, deaf: Process) -> None:
    """A heartbeat after SIGTERM counts; a later death has other reasons."""
    monkeypatch.setattr(looking, "TERM_S", LONG_S)
    worker = at.silent(deaf.pid)
    await at.running(worker)
    await look(at, tasks)
    await until_async(lambda: signal.SIGTERM in at.signals, "SIGTERM")
    assert worker.jobs.forced_endings
    worker.contact.beaten_s = time.monotonic()
    await at.until_done()
    assert at.signals == [signal.SIGTERM]
    assert worker.jobs.forced_endings == {}


async def test_who_is_stopped_is_not_waited_for(
    at: Room, tasks: TaskGroup, monkeypatch: Patch, living: Process
) -> None:
    monkeypatch.setattr(looking, "ASK_S", LONG_S)
    monkeypatch.setattr(looking, "TERM_S", LONG_S)
    os.kill(living.pid, signal.SIGSTOP)
    await until_async(lambda: processes.state(living.pid) == "T", "it is stopped")
    worker = at.silent(living.pid)
    await at.running(worker)
    await look(at, tasks)
    await at.until_done()
    assert at.signals == [signal.SIGTERM, signal.SIGKILL]


async def test_what_a_speaking_worker_does_not_list_lapses(at: Room, living: Process) -> None:
    worker = at.silent(living.pid, 0.0)
    lapsed, lasting, reported = [await at.running(worker, lease_until=ago(by)) for by in (1, -30, 1)]
    for held in worker.held.values():
        held.unlisted = 2
    at.registry.reporting.add((reported, 1))
    await at.silence.lapsed([worker.identity])
    assert (await at.wait(lapsed, status="RETRYING"))["last_error"] == "worker lease expired"
    assert [(await at.read(job))["status"] for job in (lasting, reported)] == ["RUNNING"] * 2


@pytest.mark.parametrize(
    ("silent_s", "lapsed_s", "unlisted"),
    [(0.0, 1.0, 1), (LEASE_S, 1.0, 2), (0.0, -LEASE_S, 2)],
    ids=["may not have been read of", "of who cannot beat", "extended meanwhile"],
)
async def test_what_may_run_does_not_lapse(
    at: Room, living: Process, silent_s: float, lapsed_s: float, unlisted: int
) -> None:
    worker = at.silent(living.pid, silent_s)
    job = await at.running(worker, lease_until=ago(lapsed_s))
    worker.held[job, 1].unlisted = unlisted
    await at.silence.lapsed([worker.identity])
    await at.results.batcher.wait_idle()
    assert (await at.read(job))["status"] == "RUNNING"
    assert worker.held.keys() == {(job, 1)}


async def test_what_a_speaking_worker_was_never_given(at: Room, living: Process) -> None:
    """A row under its name that it does not hold is checked before the next claim, and given back then."""
    worker = at.silent(living.pid, 0.0)
    job = await at.row(worker.identity, lease_until=ago(1))
    await at.silence.lapsed([worker.identity])
    await at.claims.loop.pass_once()
    row = await at.read(job)
    assert (row["uncharged"], row["last_error"]) == (1, None)


@pytest.mark.parametrize("is_connected", [True, False])
async def test_what_has_lapsed_for_a_living_worker_is_free(at: Room, living: Process, *, is_connected: bool) -> None:
    worker = at.silent(living.pid, 0.0)
    if not is_connected:
        at.registry.leave(worker)
    job = await at.running(worker, lease_until=ago(1))
    worker.held[job, 1].unlisted = 2
    await at.silence.lapsed([worker.identity])
    if is_connected:
        assert at.registry.running_in_hand([job]) == {job}  # not before: it would be given back beside
    await at.wait(job, status="RETRYING")
    if is_connected:
        await until_async(lambda: not worker.held, "it holds nothing")


async def test_who_is_connected_is_no_stranger(at: Room, living: Process) -> None:
    worker = new_worker(identity_of(living.pid), living.pid)
    at.registry.join(worker)
    await at.silence.lapsed([worker.identity])
    assert at.deaths.in_hand() == []


async def test_a_stranger_is_watched_and_renewed(at: Room, living: Process) -> None:
    """A living process without a connection gets a lease's time; a dead one is left to the watchdog."""
    job = await at.row(identity_of(living.pid), lease_until=ago(1))
    await at.silence.lapsed([identity_of(2**22 + 1), identity_of(living.pid)])
    assert at.deaths.watched(identity_of(living.pid)) is not None
    assert await at.lease_s(job) > LEASE_S - 5


async def test_a_dispatcher_that_was_stopped_blames_nobody(
    at: Room, tasks: TaskGroup, monkeypatch: Patch, living: Process
) -> None:
    """Its workers' words are still unread: each gets a lease to be heard again."""

    class Clock:
        ahead_s = 0.0

        @classmethod
        def monotonic(cls) -> float:
            return time.monotonic() + cls.ahead_s

    monkeypatch.setattr(looking, "time", Clock)
    looks: list[float] = []
    monkeypatch.setattr(at.deaths, "note_oom_kills", lambda: looks.append(Clock.monotonic()))
    silence = at.watcher(2.0)
    worker = at.silent(living.pid, 0.0)
    worker.contact.beaten_s = time.monotonic() + LONG_S  # as far as this test is concerned it beats
    await at.running(worker)
    tasks.start_soon(silence.run, [])
    await until_async(lambda: len(looks) >= 2, "two looks")
    Clock.ahead_s = 2 * LONG_S
    before = len(looks)
    await until_async(lambda: len(looks) >= before + 3, "three more looks")
    assert not silence._being_killed
    assert at.signals == []


async def test_the_living_of_the_start_are_watched(at: Room, tasks: TaskGroup, living: Process) -> None:
    await at.row(identity_of(living.pid))
    tasks.start_soon(at.silence.run, [identity_of(living.pid)])
    await until_async(lambda: at.deaths.watched(identity_of(living.pid)) is not None, "it is watched")


async def test_what_a_worker_that_is_not_connected_was_never_given(at: Room, living: Process) -> None:
    """A claim whose answer was lost as its worker went: nobody holds it, and its process may live for long."""
    worker = at.silent(living.pid)
    at.registry.leave(worker)
    held, reported = await at.running(worker), await at.running(worker)
    job = await at.row(worker.identity)
    at.registry.free(worker, [(reported, 1)])
    at.registry.reporting.add((reported, 1))
    await at.silence.lapsed([worker.identity])
    row = await at.read(job)
    assert (row["status"], row["uncharged"], row["last_error"]) == ("PENDING", 1, None)
    assert at.claims.signal.cursors.starts([TOPIC])  # it may be claimed again
    assert [(await at.read(one))["status"] for one in (held, reported)] == ["RUNNING"] * 2


async def stranger(at: Room, pid: int) -> RegisteredWorker:
    await at.silence.lapsed([identity_of(pid)])
    found = found_of(at.deaths.watched(identity_of(pid)))
    found.contact.beaten_s -= LEASE_S
    return found


@pytest.mark.parametrize("lease_s", [50, LEASE_S - 5])
async def test_a_stranger_for_whom_somebody_else_beats(
    at: Room, tasks: TaskGroup, lease_s: float, living: Process, monkeypatch: Patch
) -> None:
    """It works for another supervisor of this host, which may have shorter leases and moves its lease."""
    monkeypatch.setattr(looking, "ASK_S", LONG_S)
    await at.row(identity_of(living.pid))
    worker = await stranger(at, living.pid)
    await look(at, tasks)  # an attempt that nobody extends: the ladder begins
    assert at.silence._being_killed
    at.silence._being_killed.clear()
    await at.connection.execute("UPDATE pulse.jobs SET lease_until = now() + $1 * interval '1 s'", lease_s)
    before_s = time.monotonic()
    await look(at, tasks)
    assert worker.contact.beaten_s >= before_s
    assert not at.silence._being_killed
    assert is_alive(living.pid)


async def test_what_a_stranger_holds_is_asked_anew(at: Room, tasks: TaskGroup, living: Process) -> None:
    first = await at.row(identity_of(living.pid))
    worker = await stranger(at, living.pid)
    kept = worker.held[first, 1]
    second = await at.row(identity_of(living.pid), lease_until=ago(-LEASE_S))
    await look(at, tasks)
    assert worker.held.keys() == {(first, 1), (second, 1)}
    assert worker.held[first, 1] is kept
    assert worker.held[second, 1].started
    await at.connection.execute(
        "UPDATE pulse.jobs SET status = 'COMPLETED', locked_by = NULL, lease_until = NULL, "
        "completed_at = now() WHERE id = $1",
        first.hex(),
    )
    await look(at, tasks)
    assert worker.held.keys() == {(second, 1)}


async def test_a_stranger_that_holds_nothing_any_more(at: Room, tasks: TaskGroup, living: Process) -> None:
    await at.row(identity_of(living.pid))
    await stranger(at, living.pid)
    await at.connection.execute("DELETE FROM pulse.jobs")
    await look(at, tasks)
    await until_async(lambda: at.deaths.watched(identity_of(living.pid)) is None, "it is not watched")
    assert (at.registry.strangers, at.deaths.in_hand(), at.signals) == ({}, [], [])
    assert not at.silence._being_killed
    await at.row(identity_of(living.pid))
    await at.silence.lapsed([identity_of(living.pid)])
    assert at.deaths.watched(identity_of(living.pid)) is not None


async def test_strangers_while_the_database_is_away(
    at: Room, tasks: TaskGroup, monkeypatch: Patch, living: Process
) -> None:
    """Their beats cannot be seen: they are not killed, nor at its return. Others are."""

    async def away(_workers: object) -> None:
        raise UnavailableError("away")

    monkeypatch.setattr(looking, "ASK_S", LONG_S)
    with process() as known:
        await at.row(identity_of(living.pid))
        await stranger(at, living.pid)
        silent = at.silent(known.pid)
        await at.running(silent)
        with monkeypatch.context() as patched:
            patched.setattr(at.store, "leases_of", away)
            await look(at, tasks)
        await look(at, tasks)
        assert at.silence._being_killed == {silent.identity}


@pytest.mark.parametrize("is_away", [True, False])
async def test_strangers_while_nobody_can_write(
    at: Room, tasks: TaskGroup, monkeypatch: Patch, living: Process, dsn: str, *, is_away: bool
) -> None:
    """Their leases do not move although others may beat for them, also during CREATE INDEX: that proves nothing."""

    async def away(*_: object) -> None:
        raise UnavailableError("away")

    await at.row(identity_of(living.pid))
    worker = await stranger(at, living.pid)
    worker.contact.beaten_s += 0.2 * LEASE_S
    worker.contact.extended_s = worker.contact.beaten_s
    if is_away:
        monkeypatch.setattr(at.store, "extend", away)
    async with holding(dsn, "SELECT" if is_away else "LOCK TABLE pulse.jobs IN SHARE MODE"):
        before_s = time.monotonic()
        with capture_logs() as logs:
            for _ in range(3 if is_away else 1):
                await look(at, tasks)
    assert [line["step"] for line in logs if line["event"] == "database_away"] == (["renew"] if is_away else [])
    assert worker.contact.beaten_s >= before_s
    assert not at.silence._being_killed


async def test_a_row_that_somebody_has_locked(at: Room, tasks: TaskGroup, dsn: str, living: Process) -> None:
    worker = at.silent(living.pid, 0.8 * LEASE_S)
    locked, free = [await at.running(worker, lease_until=ago(-5)) for _ in range(2)]
    async with holding(dsn, "SELECT FROM pulse.jobs WHERE id = $1 FOR UPDATE", locked.hex()):
        await look(at, tasks)
        assert await at.lease_s(free) > LEASE_S - 5


async def test_who_dies_of_sigterm_has_let_its_lease_lapse(
    at: Room, tasks: TaskGroup, monkeypatch: Patch, living: Process
) -> None:
    monkeypatch.setattr(looking, "TERM_S", LONG_S)
    worker = at.silent(living.pid)
    job, queued = await at.running(worker), await at.running(worker, started=False)
    await look(at, tasks)
    await at.until_done()
    assert at.signals == [signal.SIGTERM]
    row = await at.wait(job, status="RETRYING")
    assert (row["crashes"], row["last_error"]) == (0, "worker lease expired")
    await at.wait(queued, status="PENDING")


async def test_renewals_from_here_are_no_beats(at: Room, tasks: TaskGroup, living: Process) -> None:
    job = await at.row(identity_of(living.pid))
    worker = await stranger(at, living.pid)
    worker.contact.beaten_s = beaten_s = time.monotonic() - 0.8 * LEASE_S
    worker.contact.until_s = time.monotonic() + 10
    await at.connection.execute("UPDATE pulse.jobs SET lease_until = now() + interval '10 s'")
    await look(at, tasks)
    assert await at.lease_s(job) > LEASE_S - 5
    await look(at, tasks)
    assert worker.contact.beaten_s == beaten_s
