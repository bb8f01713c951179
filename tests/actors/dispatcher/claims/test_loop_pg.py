"""The claim loop by its parts: when it claims, from where, and what it must not hand out."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final, cast

import anyio
import asyncpg
import pytest
from msgspec import structs
from structlog.testing import capture_logs

from pulse.errors import StatementError, StatementTimeoutError, UnavailableError
from pulse.store.connections.pool import Target
from pulse.store.operators.policies import LivePolicy
from pulse.store.recovery.epochs import WENT_BACK
from pulse.store.recovery.set_aside import Suspect
from pulse.store.rows import Claim, GroupLevel, Head, Level
from pulse.store.store import Store
from pulse_actors.dispatcher.claims import handout
from pulse_actors.dispatcher.claims import loop as claiming
from pulse_actors.dispatcher.claims.cursors import PRIORITIES, LevelStart
from pulse_actors.dispatcher.claims.handout import _extra, _parts
from pulse_actors.dispatcher.claims.work_signal import FAR_S
from pulse_actors.dispatcher.workers.policies import TopicPolicies
from pulse_actors.dispatcher.workers.records import DOUBTFUL_BEATS, HeldJob
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.runtime.actor import Backoff
from tests.support.store import recovery_kit
from tests.support.store.claim_parts import claim_parts
from tests.support.store.helpers import TOPIC, Patch, Sql, forge, read
from tests.support.store.recovery_kit import DEADLINE_S, HOST, PAST, identity_of, jobs_of, new_worker, rows_of, running
from tests.support.waiting import until_async

pytestmark = pytest.mark.heavy

LEVEL: Final = Level(TOPIC, 3)
CLAIM: Final = Claim(bytes(16), 1, "n", TOPIC, "{}", None, 0, 0.0, 0, 0)


class Bench(recovery_kit.Bench):
    """One that remembers the *levels* of its claims: None for a full one."""

    def __init__(self, store: Store, connection: Sql, monkeypatch: Patch) -> None:
        super().__init__(store, connection, monkeypatch)
        self.levels: list[object] = []
        claim = store.claim

        async def recorded(*args: Any, levels: object = None, **more: Any) -> list[Claim]:
            self.levels.append(levels)
            return await claim(*args, levels=levels, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(store, "claim", recorded)

    def rest(self) -> None:
        now_s = time.monotonic()
        self.claims.signal.cursors.full_begins()
        self.claims.signal.cursors.full_done(now_s, now_s)

    @property
    def due(self) -> list[Level | GroupLevel | None]:
        """The levels of the known later due times."""
        return [level for _, _, level in sorted(self.claims.signal._due._heap)]

    @property
    def wants_full(self) -> bool:
        return self.claims.signal.cursors.is_full_due(time.monotonic())

    async def pauses(self) -> bool:
        over = anyio.Event()

        async def pause() -> None:
            await self.claims.loop._pause()
            over.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pause)
            for _ in range(10):
                await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        return not over.is_set()


@pytest.fixture
def bench(store: Store, connection: Sql, monkeypatch: Patch) -> Bench:
    return Bench(store, connection, monkeypatch)


async def test_a_wake(bench: Bench) -> None:
    """Now: a claim is made; a full one where no level is named. Later: when it is due. Much later: by the poll."""
    signal = bench.claims.signal
    for wake in (signal.wake, signal.wake_recent):
        bench.rest()
        wanted = bench.wants_full
        wake()
        assert (wanted, bench.wants_full) == (False, True)
    bench.rest()
    for delay_s in (5.0, FAR_S):
        signal.wake_recent(delay_s)
        signal.wake_level(LEVEL, delay_s)
    assert bench.due == [None, LEVEL]
    assert signal.cursors.starts([TOPIC]) == []
    signal.wake_level(LEVEL)
    assert [start.priority for start in signal.cursors.starts([TOPIC])] == [3]
    assert not bench.wants_full


async def test_what_became_due_during_a_claim(bench: Bench) -> None:
    """The claim may have missed it: the next one follows at once, and later work stays."""
    bench.rest()
    now_s = time.monotonic()
    later: list[tuple[Level | None, float]] = [(LEVEL, -2), (None, -1), (None, 100)]
    for level, delay_s in later:
        bench.claims.signal._due.add(level, delay_s, now_s)
    assert not await bench.pauses()
    assert bench.wants_full
    assert [start.priority for start in bench.claims.signal.cursors.starts([TOPIC])] == [3]
    assert bench.due == [None]
    bench.claims.signal._due.add(LEVEL, -1, now_s)
    assert not await bench.pauses()
    assert bench.due == [None]


async def test_what_is_due_later_is_waited_for(bench: Bench, monkeypatch: Patch) -> None:
    """The loop sleeps exactly until then, without room and without polls."""
    monkeypatch.setattr(claiming, "DOUBT_S", 60.0)
    bench.rest()
    bench.claims.signal._due.add(None, 100, time.monotonic())
    assert await bench.pauses()
    bench.claims.signal._due.add(None, 0.05, time.monotonic())
    with anyio.fail_after(DEADLINE_S):
        await bench.claims.loop._pause()


async def test_without_room_nobody_polls(bench: Bench) -> None:
    """A full claim that is wanted waits until somebody has room, and dispatch is open."""
    bench.claims.signal.wake()
    bench.claims.signal._event = anyio.Event()
    assert await bench.pauses()
    bench.join()
    assert not await bench.pauses()
    bench.registry.closed = True
    assert await bench.pauses()
    bench.registry.closed = False
    for worker in bench.registry.workers():
        worker.capacity = 0
    assert await bench.pauses()


async def test_a_full_claim_is_followed_by_another(bench: Bench) -> None:
    jobs = [await bench.waiting(next_run_at=PAST + timedelta(seconds=number)) for number in range(3)]
    bench.claims.loop._batch = 1
    worker, rests = bench.join(), anyio.Event()

    async def rest() -> None:
        rests.set()
        await anyio.sleep_forever()

    bench.monkeypatch.setattr(bench.claims.loop, "_pause", rest)
    async with running(bench.claims.loop.run):
        with anyio.fail_after(DEADLINE_S):
            await rests.wait()
    assert jobs_of(worker) == jobs


async def test_an_outage_is_logged_now_and_then(monkeypatch: Patch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        away = Store(Target(f"postgresql://pulse@127.0.0.1:{probe.getsockname()[1]}/pulse", "pulse-tests"))
    pauses: list[float] = []

    def counted(_self: Backoff) -> float:
        pauses.append(0.0)
        return 0.0

    monkeypatch.setattr(Backoff, "next_s", counted)
    registry = WorkerRegistry()
    registry.join(new_worker("w"))
    claims = claim_parts(away, registry, HOST, lease_s=30.0, poll_s=60.0, batch=500)
    with capture_logs() as logs:
        async with running(claims.loop.run):
            await until_async(lambda: len(pauses) >= 4, "some tries")
    away.close()
    assert [entry["event"] for entry in logs].count("database_away") == 1


def break_topic(bench: Bench) -> None:
    """From now on nothing of TOPIC can be read: neither claimed, nor read one by one."""
    claim, claimable = bench.store.claim, bench.store.aside.claimable
    broken = StatementError("invalid page", sqlstate="XX001", statement="claim_jobs")

    async def broken_claim(topics: Sequence[str], *args: Any, levels: Any = None, **more: Any) -> list[Claim]:
        if TOPIC in topics or TOPIC in {level[0] for level in levels or ()}:
            raise broken
        return await claim(topics, *args, levels=levels, **more)

    async def broken_look(topics: Sequence[str], *args: Any) -> list[Suspect]:
        if TOPIC in topics:
            raise broken
        return await claimable(topics, *args)

    bench.monkeypatch.setattr(bench.store, "claim", broken_claim)
    bench.monkeypatch.setattr(bench.store.aside, "claimable", broken_look)


async def test_topics_that_are_claimed_together_go_on(bench: Bench) -> None:
    """One worker serves them all, and has room: the topics without a broken job are handed out."""
    worker = bench.join(capacity=9, topics=(TOPIC, "u", "v"))
    soon = datetime.now(UTC)
    await bench.waiting(next_run_at=soon)
    others = [await bench.waiting(topic=topic, next_run_at=soon) for topic in "uvuv"]
    break_topic(bench)
    for _ in range(4):
        bench.claims.signal.cursors._full_s = float("-inf")
        await bench.claims.loop.pass_once()
    assert sorted(jobs_of(worker)) == sorted(others)
    assert [t for t in worker.facts.topics if bench.claims.quarantine.is_quarantined(t, time.monotonic())] == [TOPIC]


async def test_nothing_is_looked_for_until_a_topic_can_be_read_again(bench: Bench) -> None:
    """Only that topic has a worker with room: the loop waits, for other reasons too."""
    worker = bench.join()
    bench.claims.quarantine.failed(worker.facts.topics, time.monotonic(), lasts=True)
    bench.claims.signal.cursors.want_full()
    assert await bench.claims.loop.pass_once() is False
    assert bench.claims.signal.cursors._wanted
    assert await bench.pauses()
    bench.claims.quarantine.succeeded(worker.facts.topics, full=True)
    assert not await bench.pauses()
    worker.facts = replace(worker.facts, topics=())
    assert await bench.pauses()


async def test_topics_that_are_claimed_apart_share_the_room(bench: Bench) -> None:
    """After the claim of the first one has taken all of it nothing is claimed for the other."""
    worker = bench.join(capacity=1, topics=("a", "b"))
    for topic in worker.facts.topics:
        await bench.waiting(topic=topic)
    bench.claims.quarantine.failed(worker.facts.topics, time.monotonic(), lasts=True)
    await bench.claims.loop.pass_once()
    assert len(jobs_of(worker)) == len(bench.levels) == 1
    assert bench.claims.signal.cursors._wanted, "it was the full claim that would have found its old jobs"


async def test_a_full_claim_that_failed_is_made_up_for(bench: Bench) -> None:
    """However long it took: old work is at levels that nobody knows."""
    worker, now_s = bench.join(), time.monotonic()
    bench.claims.quarantine.failed(worker.facts.topics, now_s - 11, lasts=True, full=True)
    bench.claims.signal.cursors.full_begins()
    bench.claims.signal.cursors.full_done(now_s - 40, now_s - 35)
    assert not bench.wants_full
    await bench.pauses()
    assert bench.wants_full


async def test_a_job_that_cannot_be_read_in_time(bench: Bench) -> None:
    """Others go on, and it is tried again soon, then later; but a wait for a lock blames no job."""
    worker, other = bench.join(), bench.join("v", topics=("u",))
    soon = datetime.now(UTC)
    await bench.waiting(next_run_at=soon)
    elsewhere = await bench.waiting(topic="u", next_run_at=soon)
    claim = bench.store.claim
    causes: list[asyncpg.PostgresError] = [asyncpg.QueryCanceledError("statement timeout")] * 2
    failed = bench.claims.quarantine

    async def unreadable(topics: Sequence[str], *args: Any, **more: Any) -> list[Claim]:
        if TOPIC in topics:
            raise StatementTimeoutError("a statement waited too long") from (
                causes or [asyncpg.LockNotAvailableError()]
            ).pop()
        return await claim(topics, *args, **more)

    bench.monkeypatch.setattr(bench.store, "claim", unreadable)
    with capture_logs() as logs:
        await bench.claims.loop.pass_once()  # a full one
        assert (jobs_of(worker), jobs_of(other)) == ([], [elsewhere])
        assert bench.due == [None]
        assert len(failed._full) == 1
        bench.rest()
        failed._pauses = {frozenset({TOPIC}): (0.0, 0.5, False)}
        bench.claims.signal.wake_level(Level(TOPIC, 0))
        await bench.claims.loop.pass_once()
    assert [entry["topics"] for entry in logs if entry["event"] == "claim_failed"] == [(TOPIC,)] * 2
    assert [pause_s for _, pause_s, _ in failed._pauses.values()] == [1.0]
    assert len(failed._full) == 1
    failed._pauses.clear()
    bench.claims.signal.wake_level(Level(TOPIC, 0))
    with pytest.raises(StatementTimeoutError, match="waited too long"):
        await bench.claims.loop.pass_once()

    failed._pauses = {frozenset({TOPIC}): (0.0, 0.5, False)}
    bench.monkeypatch.setattr(bench.store, "claim", claim)
    bench.claims.signal.wake()
    await bench.claims.loop.pass_once()
    assert jobs_of(worker) != []
    assert failed._pauses == {}


async def test_the_first_claim_is_full_and_the_next_is_not(bench: Bench) -> None:
    """A full claim counts from its end; what it found is known, and claimed from there."""
    await bench.waiting(priority=3)
    bench.join()
    assert await bench.claims.loop.pass_once() is False
    assert not bench.claims.signal.cursors.is_full_due(time.monotonic() + 1.0)
    bench.rest()  # it may have been dear, on a busy machine
    bench.claims.signal.wake_level(LEVEL)
    assert await bench.claims.loop.pass_once() is False
    first, second = bench.levels
    assert first is None
    assert isinstance(second, list)
    ((_, priority, from_s),) = cast("list[LevelStart]", second)
    assert priority == 3
    assert from_s is not None


async def test_a_full_claim_that_fills_its_seats_makes_known_what_it_did_not_reach(bench: Bench) -> None:
    """Other topics and priorities, whose jobs were inserted without a notification; but not what is due later."""
    topics = [TOPIC, "b", "c"]
    later = datetime.now(UTC) + timedelta(hours=1)
    for topic, priority in (("b", 0), ("c", 7), ("c", -7), ("unserved", 9)):
        await bench.waiting(topic=topic, priority=priority)
    await bench.waiting(topic="c", priority=-9, next_run_at=later)
    bench.join(capacity=1, topics=topics)
    assert await bench.claims.loop.pass_once() is True
    known = bench.claims.signal.cursors.starts(topics)
    assert bench.levels == [None]
    assert [(start.topic, start.priority) for start in known] == [("c", 7), ("b", 0), ("c", -7)]


async def test_to_look_behind_a_full_claim_has_its_cost(bench: Bench) -> None:
    """It counts with the claim; after one of known levels nobody looks."""
    costs, now_s, find_levels = list[float](), [0.0], bench.store.find_levels
    bench.monkeypatch.setattr(bench.claims.signal.cursors, "full_done", lambda begin, end: costs.append(end - begin))
    bench.monkeypatch.setattr(
        "pulse_actors.dispatcher.claims.loop.time", SimpleNamespace(monotonic=lambda: now_s[0], time=lambda: 0.0)
    )

    async def slow(after: Level, most: int, *, topics: Sequence[str]) -> list[Head]:
        now_s[0] += 3.0
        return await find_levels(after, most, topics=topics)

    bench.monkeypatch.setattr(bench.store, "find_levels", slow)
    for _ in range(3):
        await bench.waiting()
    worker = bench.join(capacity=1)
    assert await bench.claims.loop.pass_once() is True
    assert costs == [3.0]
    bench.claims.signal.cursors._full_s = now_s[0]
    worker.capacity = 2
    assert await bench.claims.loop.pass_once() is True
    assert len(jobs_of(worker)) == 2
    assert (costs, now_s) == ([3.0], [3.0])


async def test_where_full_claims_are_dear_windows_find_the_rest(bench: Bench) -> None:
    """Behind the cursor, or at an unknown level; then only known levels are claimed."""
    worker, now_s = bench.join(), time.monotonic()
    bench.claims.signal.cursors.learn(Level(TOPIC, 3), time.time())
    bench.claims.signal.cursors.full_begins()
    bench.claims.signal.cursors.full_done(now_s - 1, now_s)
    recent = datetime.fromtimestamp(time.time() - 30, UTC)
    late, elsewhere = [await forge(bench.connection, priority=priority, next_run_at=recent) for priority in (3, -7)]
    bench.claims.signal.wake_recent()
    assert await bench.claims.loop.pass_once() is False
    assert jobs_of(worker) == [late, elsewhere]
    bench.claims.signal.wake_level(LEVEL)
    assert await bench.claims.loop.pass_once() is False
    window, known = bench.levels
    assert isinstance(window, list)
    assert isinstance(known, list)
    assert len(window) == len(PRIORITIES)
    assert [start.priority for start in known] == [3, -7]
    assert not bench.claims.signal.cursors._recent


async def test_a_window_that_fails_has_its_cost(bench: Bench) -> None:
    """Else it would be repeated in every pass, and nothing else be claimed."""
    bench.join()
    now_s = time.monotonic()
    bench.claims.signal.cursors.full_done(now_s - 1, now_s)

    async def fail() -> None:
        raise UnavailableError("away")

    bench.after("claim", fail)
    with pytest.raises(UnavailableError, match="away"):
        await bench.claims.loop.pass_once()
    assert bench.claims.signal.cursors.window_due(time.monotonic()) is None


async def test_who_comes_to_topics_that_others_serve_wants_no_full_claim(bench: Bench) -> None:
    """Their jobs are known, or found by windows; those of an unserved topic may have waited for long."""
    now_s = time.monotonic()
    for name, wanted in (("first", True), ("second", False)):
        worker = bench.join(name)
        bench.claims.signal.cursors.full_begins()
        bench.claims.signal.cursors.full_done(now_s - 1, now_s)
        bench.claims.signal.came(worker)
        assert (bench.claims.signal.cursors._wanted, bench.claims.signal.cursors._recent) == (wanted, not wanted)


async def test_who_adds_nothing_to_a_loop_at_rest_does_not_wake_it(bench: Bench) -> None:
    """Else each of thousands of workers that connect would cost a claim."""
    signal = bench.claims.signal
    bench.join("first")
    async with running(bench.claims.loop.run):
        await until_async(lambda: signal.is_at_rest, "the loop rests")
        signal.came(bench.join("second"))
        assert signal.is_at_rest
        signal.came(bench.join("third", topics=("u",)))
        assert not signal.is_at_rest


async def test_where_nothing_waits_nothing_is_claimed(bench: Bench) -> None:
    """A free slot costs no statement; news of work are claimed for workers of that topic alone."""
    worker, _ = bench.join(), bench.join("v", topics=("u",))
    first = await bench.waiting()
    await bench.waiting(topic="u")
    await bench.claims.loop.pass_once()
    bench.rest()  # it may have been dear, on a busy machine
    await bench.claims.loop.pass_once()
    bench.levels.clear()
    await bench.claims.loop.pass_once()
    assert bench.levels == []
    second = await bench.waiting()
    bench.claims.signal.wake_level(Level(TOPIC, 0), due_s=PAST.timestamp())
    for _ in range(2):
        await bench.claims.loop.pass_once()
    assert jobs_of(worker) == [first, second]
    assert len(bench.levels) == 1


async def test_dispatch_that_closes_while_a_claim_waits_for_its_turn(bench: Bench) -> None:
    job = await bench.waiting()
    bench.join()
    where = bench.claims.loop._starts

    def closes(*args: Any, **more: Any) -> list[LevelStart] | None:
        bench.registry.closed = True
        return where(*args, **more)

    bench.monkeypatch.setattr(bench.claims.loop, "_starts", closes)
    assert await bench.claims.loop.pass_once() is False
    assert bench.registry.closed
    assert bench.levels == []
    assert (await read(bench.connection, job))["attempts"] == 0


async def test_a_job_that_is_taken_away_while_it_is_passed_on_is_not_handed_out(bench: Bench) -> None:
    bench.join("wrong", names=["m"], capacity=20)
    heir = bench.join("right", capacity=1)
    taken, other = [await bench.waiting(priority=priority) for priority in (2, 1)]
    sql = "UPDATE pulse.jobs SET attempts = 2, locked_by = 'somebody' WHERE id = $1"
    heir.capacity = 2
    bench.after("claim", lambda: bench.connection.execute(sql, taken.hex()))
    await bench.claims.loop.pass_once()
    assert jobs_of(heir) == [other]


async def test_a_job_whose_canceled_attempt_runs_yet(bench: Bench) -> None:
    """A process of this host that is not connected may be running it: the claim is put back, uncharged."""
    worker, job = bench.join(), await bench.waiting(attempts=1, uncharged=1)
    sql = (
        "INSERT INTO pulse.attempts (job_id, attempt, outcome, worker, started_at, ended_at)"
        " VALUES ($1, 1, 'canceled', $2, now(), now())"
    )
    await bench.connection.execute(sql, job.hex(), identity_of(os.getpid()))
    await bench.claims.loop.pass_once()
    assert jobs_of(worker) == []
    row = await read(bench.connection, job)
    assert (row["status"], row["attempts"], row["uncharged"]) == ("PENDING", 2, 2)


def previous(outcome: str, worker: object, error: str = "why") -> str:
    return json.dumps([outcome, error, worker, None])


async def test_which_attempts_may_run_yet(bench: Bench) -> None:
    """Those that were ended without their process, in one of this host that lives and is not connected."""
    living, dead = identity_of(os.getpid()), identity_of(2**22 + 1)
    for outcome in ("canceled", "lease_expired"):
        assert bench.claims.handout._may_run_yet(previous(outcome, living))
        assert not bench.claims.handout._may_run_yet(previous(outcome, dead))
        assert not bench.claims.handout._may_run_yet(previous(outcome, None))
    assert not bench.claims.handout._may_run_yet(previous("crashed", living))
    assert not bench.claims.handout._may_run_yet(previous("released", living))
    assert bench.claims.handout._may_run_yet(previous("released", living, WENT_BACK))
    by_leases = claim_parts(bench.store, bench.registry, None, lease_s=30.0, poll_s=60.0, batch=500)
    assert not by_leases.handout._may_run_yet(previous("canceled", living))
    bench.join(living)
    assert not bench.claims.handout._may_run_yet(previous("canceled", living))  # it has said what it holds


async def test_doubts_about_somebody_who_has_left(bench: Bench) -> None:
    """No attempt of a worker that cannot be asked is given back, and the doubt is over."""
    job = await forge(bench.connection, "RUNNING", locked_by="gone")
    bench.claims.in_doubt.doubt("gone")
    await bench.claims.loop.pass_once()
    assert (await read(bench.connection, job))["status"] == "RUNNING"
    assert bench.claims.in_doubt._doubted == set()


async def test_a_lost_claim_may_commit_later(bench: Bench) -> None:
    """After a claim whose answer was lost, heartbeats are checked again; a hello is so anyway."""
    worker = bench.join()
    worker.contact.doubtful_beats = 0
    bench.claims.in_doubt.doubt("w")
    await bench.claims.loop.pass_once()
    assert worker.contact.doubtful_beats == 0
    bench.claims.in_doubt._in_doubt.add("w")
    await bench.claims.loop.pass_once()
    assert worker.contact.doubtful_beats == DOUBTFUL_BEATS
    assert bench.claims.in_doubt._in_doubt == set()


async def test_what_is_completed_during_a_doubt_is_not_given_back(bench: Bench) -> None:
    """The database's answer is a moment old: what the worker held then must not be given back."""
    worker = bench.join()
    held, reporting = [await forge(bench.connection, "RUNNING", locked_by="w") for _ in range(2)]
    worker.held[held, 1] = HeldJob("n", TOPIC)
    bench.registry.reporting.add((reporting, 1))

    async def complete() -> None:
        worker.held.clear()
        bench.registry.reporting.clear()

    bench.after("leases_of", complete)
    bench.claims.in_doubt.doubt("w")
    with capture_logs() as logs:
        await bench.claims.loop.pass_once()
    assert logs == []


async def test_what_a_refused_claim_took(bench: Bench) -> None:
    """Where its answer cannot be read, unlisted attempts go back without history; else nothing was taken."""
    worker, gone = bench.join(), bench.join("v")
    plan = bench.registry.with_room()[0].plan(10)
    assert set(plan.workers) == {"w", "v"}
    bench.registry.leave(gone)
    held, reporting, taken = [await forge(bench.connection, "RUNNING", locked_by="w") for _ in range(3)]
    of_gone = await forge(bench.connection, "RUNNING", locked_by="v")
    worker.held[held, 1] = HeldJob("n", TOPIC)
    bench.registry.reporting.add((reporting, 1))
    for may_be_done in (False, True):
        bench.claims.in_doubt._in_doubt.update(plan.workers)
        error = StatementError("no", sqlstate="22021", statement="claim_jobs", may_be_done=may_be_done)
        await bench.claims.handout._take_back(plan, error)
        assert bench.claims.in_doubt._in_doubt == set()
        for one in (held, reporting, of_gone):
            assert (await read(bench.connection, one))["status"] == "RUNNING"
        assert (await read(bench.connection, taken))["status"] == ("PENDING" if may_be_done else "RUNNING")
    assert await bench.connection.fetchval("SELECT count(*) FROM pulse.attempts") == 0


async def test_where_a_worker_lists_all_that_it_holds_nothing_is_said(bench: Bench) -> None:
    job = await forge(bench.connection, "RUNNING", locked_by="w")
    with capture_logs() as logs:
        assert set(await bench.claims.in_doubt.give_back_unlisted("w", {(job, 1)})) == {(job, 1)}
    assert logs == []


def test_a_frame_holds_one_job_at_least(monkeypatch: Patch) -> None:
    monkeypatch.setattr(handout, "ASSIGN_CHARS", 10)
    long, short = structs.replace(CLAIM, args="x" * 11), structs.replace(CLAIM, args="x" * 5)
    assert list(_parts([long, long, short, short, short])) == [[long], [long], [short, short], [short]]


@pytest.mark.parametrize(("fields", "extra"), [
    ({}, None),
    ({"occurrence_at": 0.0}, {"occurrence": 0.0}),
    ({"attempt": 2}, None),
    ({"attempt": 2, "occurrence_at": 0.0}, {"occurrence": 0.0}),
    ({"attempt": 2, "crashes": 1}, {"crashes": 1}),
    ({"attempt": 3, "crashes": 2}, {"crashes": 2, "isolate": True}),
    (
        {"attempt": 2, "checkpoint": "{}"},
        {"previous": {"outcome": None, "reason": None, "worker": None, "progress": None, "checkpoint": "{}"}},
    ),
    (
        {"attempt": 2, "previous": '["error", "why", "w", 1]'},
        {"previous": {"outcome": "error", "reason": "why", "worker": "w", "progress": 1, "checkpoint": None}},
    ),
    ({"attempt": 5, "uncharged": 2}, {"tries": 3}),
    ({"group_key": "g"}, {"group_key": "g"}),
    ({"group_key": "g", "occurrence_at": 0.0}, {"group_key": "g", "occurrence": 0.0}),
])  # fmt: skip
def test_what_a_job_is_told_beside_its_args(fields: dict[str, Any], extra: object) -> None:
    assert _extra(structs.replace(CLAIM, **fields)) == extra


async def test_a_topic_of_its_own_rules(bench: Bench, monkeypatch: Patch) -> None:
    """A lease longer than the server's holds from the claim on, and is sent; so is a stall of the topic."""
    worker = bench.join(topics=("own", "other"))
    bench.registry.policies = TopicPolicies({"own": LivePolicy(lease_s=90.0, stall_s=5.0)}, 30.0)
    await bench.store.topics.set("own", {"lease_s": 90.0})
    own, other = [await bench.waiting(topic=topic) for topic in ("own", "other")]
    again = await bench.waiting(topic="other", attempts=1, uncharged=1)
    await bench.claims.loop.pass_once()
    told = {job[0]: (job[6], job[7]) for job in rows_of(worker)}
    assert told == {own: (90.0, {"stall_s": 5.0}), other: (30.0, None), again: (30.0, {"tries": 1})}
    leases = {one: (await read(bench.connection, one)) for one in (own, other)}
    for one, length_s in ((own, 90), (other, 30)):
        row = leases[one]
        assert (row["lease_until"] - row["started_at"]).total_seconds() == pytest.approx(length_s, abs=1)
    monkeypatch.setattr(bench.store, "extend", None)
    third = await bench.waiting(topic="other")
    bench.claims.signal.wake()
    await bench.claims.loop.pass_once()
    assert third in jobs_of(worker)


async def test_what_has_waited_for_long_enough_goes_before_what_ranks_higher(bench: Bench) -> None:
    worker = bench.join(capacity=1)
    old, _new = await bench.waiting(priority=0), await bench.waiting(priority=5, next_run_at=datetime.now(UTC))
    bench.registry.policies = TopicPolicies({TOPIC: LivePolicy(ageing_s=0.001)})
    await bench.claims.loop.pass_once()
    assert jobs_of(worker) == [old]


async def test_a_claim_whose_seat_runs_it_is_neither_passed_on_nor_put_back(bench: Bench, monkeypatch: Patch) -> None:
    worker, job = bench.join(), await bench.waiting()
    monkeypatch.setattr(bench.store, "move", None)
    monkeypatch.setattr(bench.store, "end", None)
    await bench.claims.loop.pass_once()
    assert jobs_of(worker) == [job]
