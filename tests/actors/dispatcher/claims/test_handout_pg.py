"""Passes of the claim loop, one at a time: each claimed job ends at a worker, whatever comes between."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from pulse.errors import UnavailableError
from pulse.store.operators.policies import LivePolicy
from pulse.store.rows import Head, Level
from pulse.store.store import Store
from pulse_actors.dispatcher.claims.cursors import FIRST, LEVELS_MAX
from pulse_actors.dispatcher.workers.policies import TopicPolicies
from pulse_actors.dispatcher.workers.records import HeldJob, RegisteredWorker
from tests.support.store.helpers import TOPIC, Patch, Sql, forge, history, holding, read
from tests.support.store.recovery_kit import PAST, Bench, lost, pairs_of, rows_of, wire_of

pytestmark = pytest.mark.heavy

Interruption = Callable[[], Awaitable[None]]


def leave(bench: Bench, worker: RegisteredWorker) -> Interruption:
    async def gone() -> None:
        bench.registry.leave(worker)

    return gone


def cancel(bench: Bench, identity: bytes) -> Interruption:
    async def canceled() -> None:
        found = await bench.store.cancel([identity])
        bench.claims.handout.forget((job.id, job.attempt) for job in found if job.worker is not None)

    return canceled


@pytest.fixture
def bench(store: Store, connection: Sql, monkeypatch: Patch) -> Bench:
    return Bench(store, connection, monkeypatch)


async def state(connection: Sql, identity: bytes) -> tuple[str, str | None, int, int]:
    row = await read(connection, identity)
    return row["status"], row["locked_by"], row["attempts"], row["uncharged"]


async def test_a_pass_hands_out_what_is_due(bench: Bench, connection: Sql) -> None:
    worker = bench.join("w", capacity=2)
    low, high, middle = [await bench.waiting(priority=priority) for priority in (1, 3, 2)]
    assert await bench.claims.loop.pass_once() is True
    assert pairs_of(worker) == [(high, 1), (middle, 1)]
    assert set(worker.held) == set(pairs_of(worker))
    assert wire_of(worker).pushed == len(wire_of(worker).sent)
    assert await bench.claims.loop.pass_once() is False
    assert [(await read(connection, one))["locked_by"] for one in (low, high, middle)] == [None, "w", "w"]


@pytest.mark.parametrize("when", ["claim", "move"])
async def test_a_claim_for_a_worker_that_leaves_meanwhile_is_given_back_uncharged(
    bench: Bench, connection: Sql, when: str
) -> None:
    if when == "move":
        bench.join("wrong", names=["m"], capacity=20)
    worker = bench.join("right", capacity=1)
    job = await bench.waiting()
    bench.after(when, leave(bench, worker))
    await bench.claims.loop.pass_once()
    assert pairs_of(worker) == []
    assert await state(connection, job) == ("PENDING", None, 1, 1)
    assert (await read(connection, job))["last_error"] is None


@pytest.mark.parametrize("when", ["claim", "move"])
async def test_a_claim_whose_answer_was_lost_is_given_back_and_made_again(
    bench: Bench, connection: Sql, when: str
) -> None:
    if when == "move":
        bench.join("wrong", names=["m"], capacity=20)
    worker = bench.join("w", capacity=1, topics=[TOPIC] if when == "claim" else ["u", TOPIC])
    held = await forge(connection, "RUNNING", locked_by="w")
    worker.held[held, 1] = HeldJob("n", TOPIC)
    worker.capacity = 2
    job = await bench.waiting()
    bench.after(when, lost)
    with pytest.raises(UnavailableError, match="nothing was changed"):
        await bench.claims.loop.pass_once()
    assert (await state(connection, job))[0] == "RUNNING"
    assert pairs_of(worker) == []
    await bench.claims.loop.pass_once()
    assert pairs_of(worker) == [(job, 2)]
    assert await state(connection, job) == ("RUNNING", "w", 2, 1)
    assert [one["outcome"] for one in await history(connection, job)] == ["released"]
    assert await state(connection, held) == ("RUNNING", "w", 1, 0)


@pytest.mark.parametrize("when", ["claim", "move", "extend"])
async def test_what_is_canceled_while_it_is_claimed_is_not_handed_out(bench: Bench, connection: Sql, when: str) -> None:
    if when == "move":
        bench.join("wrong", names=["m"], capacity=20)
    elif when == "extend":
        bench.registry.policies = TopicPolicies({TOPIC: LivePolicy(lease_s=90.0)}, 30.0)
    worker = bench.join("right", capacity=2)
    canceled, other = await bench.waiting(), await bench.waiting()
    bench.after(when, cancel(bench, canceled))
    await bench.claims.loop.pass_once()
    assert pairs_of(worker) == [(other, 1)]
    assert (await state(connection, canceled))[0] == "CANCELED"


async def test_long_args_are_spread_over_frames(bench: Bench, connection: Sql) -> None:
    """No frame grows far beyond a megabyte; the order is kept across frames."""
    worker = bench.join("w", capacity=9)
    args = '{"a":"' + "x" * 400_000 + '"}'
    jobs = [await bench.waiting(args=args, priority=-number) for number in range(9)]
    await bench.claims.loop.pass_once()
    assert pairs_of(worker) == [(job, 1) for job in jobs]
    assert len(wire_of(worker).bodies("assign")) == 5
    assert (worker.jobs.assigns, {held.assign for held in worker.held.values()}) == (5, {5})


async def test_what_a_worker_does_not_list_is_given_back(bench: Bench, connection: Sql) -> None:
    """At hello the listed attempts stay, its others are given back, those of other workers are left alone."""
    listed, older, unlisted, foreign = [
        await forge(connection, "RUNNING", locked_by=worker, attempts=attempts)
        for worker, attempts in (("w", 1), ("w", 2), ("w", 1), ("v", 1))
    ]
    kept = await bench.claims.in_doubt.give_back_unlisted("w", {(listed, 1), (older, 1), (foreign, 1)})
    assert kept == {(listed, 1): ("n", TOPIC, None, None)}
    assert await state(connection, listed) == ("RUNNING", "w", 1, 0)
    assert await state(connection, older) == ("RETRYING", None, 2, 1)
    assert await state(connection, unlisted) == ("PENDING", None, 1, 1)
    assert await state(connection, foreign) == ("RUNNING", "v", 1, 0)


async def test_a_full_claim_that_fails_has_its_cost(bench: Bench, monkeypatch: Patch) -> None:
    bench.join("w")
    costs: list[float] = []
    monkeypatch.setattr(bench.claims.signal.cursors, "full_done", lambda begin, end: costs.append(end - begin))
    bench.after("claim", lost)
    with pytest.raises(UnavailableError, match="nothing was changed"):
        await bench.claims.loop.pass_once()
    assert len(costs) == 1
    assert costs[0] > 0


async def test_what_looking_everywhere_costs(bench: Bench, monkeypatch: Patch) -> None:
    clock = itertools.count()
    times = SimpleNamespace(monotonic=lambda: float(next(clock)), time=lambda: 0.0)
    for module in ("loop", "handout"):
        monkeypatch.setattr(f"pulse_actors.dispatcher.claims.{module}.time", times)
    costs: list[float] = []
    monkeypatch.setattr(bench.claims.signal.cursors, "full_done", lambda begin, end: costs.append(end - begin))
    many = [f"t{number}" for number in range(30)]
    for topics in ([TOPIC], [TOPIC, "u"], many):
        bench.join(topics[-1], topics=topics)
        bench.claims.signal.wake()
        await bench.claims.loop.pass_once()
    bench.claims.signal.cursors.learn(Level("t3", 0))
    bench.claims.signal.wake()
    await bench.claims.loop.pass_once()
    assert costs == [2.0, 4.0, 5.0, 5.0]  # a claim looks at the clock twice, a survey once


async def test_doubts_about_a_row_that_somebody_has_locked(bench: Bench, connection: Sql, dsn: str) -> None:
    """It is checked again; all others are settled, and claims go on."""
    worker = bench.join("w")
    locked, free = [await forge(connection, "RUNNING", locked_by="w") for _ in range(2)]
    job = await bench.waiting()
    bench.claims.in_doubt.doubt("w")
    async with holding(dsn, "SELECT FROM pulse.jobs WHERE id = $1 FOR UPDATE", locked.hex()):
        await bench.claims.loop.pass_once()
        assert (job, 1) in pairs_of(worker)
        assert (free, 2) in pairs_of(worker)
    await bench.claims.loop.pass_once()
    assert (locked, 2) in pairs_of(worker)


async def test_many_topics_are_served_in_turn(bench: Bench, connection: Sql, monkeypatch: Patch) -> None:
    """With too much work in each of them, none gets more than the others."""
    monkeypatch.setattr("pulse_actors.dispatcher.claims.loop.SURVEY", 7)
    monkeypatch.setattr("pulse_actors.dispatcher.claims.cursors.SURVEY", 7)
    topics = [f"t{number:02}" for number in range(30)]
    for topic in topics:
        for number in range(4):
            await forge(connection, topic=topic, next_run_at=PAST + timedelta(seconds=number))
    await forge(connection, topic="t07", priority=3, next_run_at=PAST)
    await forge(connection, topic="unserved", next_run_at=PAST)
    await forge(connection, topic="t00", priority=9)  # years from now
    worker = bench.join("w", capacity=0, topics=topics)
    while len(rows_of(worker)) < 1 + 3 * len(topics):
        bench.claims.signal.cursors._full_s = float("-inf")
        worker.capacity = len(rows_of(worker)) + 1
        await bench.claims.loop.pass_once()
    served = Counter(job[3] for job in rows_of(worker))
    assert "t07" in {job[3] for job in rows_of(worker)[:3]}  # as soon as its higher priority was met with
    served["t07"] -= 1
    assert served.keys() == set(topics)
    assert {*bench.claims.signal.cursors._positions} == {Level("t07", 3), *(Level(topic, 0) for topic in topics)}
    assert max(served.values()) - min(served.values()) <= 2  # some were found before the others


async def test_many_topics_with_little_work(bench: Bench, connection: Sql) -> None:
    """Passes go on until every topic with work has had its turn, and name no empty one."""
    topics = [f"t{number:03}" for number in range(LEVELS_MAX + 50)]
    worker = bench.join("w", capacity=1000, topics=topics)
    for topic in topics:
        await forge(connection, topic=topic, next_run_at=PAST)
    assert await bench.claims.loop.pass_once() is True
    assert len(rows_of(worker)) == LEVELS_MAX
    assert await bench.claims.loop.pass_once() is False
    assert len(rows_of(worker)) == len(topics)
    assert bench.claims.signal.cursors.starts(topics) == []


async def test_a_claim_that_ended_because_of_its_size(bench: Bench, connection: Sql) -> None:
    """More is left than it brought: another one follows, though it did not bring all it could."""
    bench.join("w", capacity=100)
    args = '{"a":"' + "x" * 900_000 + '"}'
    for number in range(12):
        await bench.waiting(args=args, priority=-number)
    assert await bench.claims.loop.pass_once() is True
    assert await bench.claims.loop.pass_once() is False


async def test_a_claim_of_a_topic_that_ages_is_repeated(bench: Bench, connection: Sql) -> None:
    """Until nothing comes: another host's locks may have kept others out of it. Not of other topics."""
    for topic, again in ((TOPIC, True), ("u", False)):
        bench.registry.policies = TopicPolicies({TOPIC: LivePolicy(ageing_s=5.0)})
        worker = bench.join("w", capacity=10, topics=[topic])
        await bench.waiting(topic=topic)
        bench.claims.signal.wake()
        bench.claims.signal.cursors._full_s = float("-inf")
        assert await bench.claims.loop.pass_once() is again
        assert await bench.claims.loop.pass_once() is False
        bench.registry.leave(worker)


async def test_levels_are_found_by_a_loose_scan(store: Store, connection: Sql) -> None:
    """Topic by topic, highest priority first, each with its first job that waits; part by part, and no other jobs."""
    now = datetime(2021, 1, 1, tzinfo=UTC)
    for topic, priority, after_s in (("b", 0, 5), ("b", 0, 1), ("b", 7, 9), ("a", -3, 2), ("c", 0, -1)):
        await forge(connection, topic=topic, priority=priority, next_run_at=now + timedelta(seconds=after_s))
    for status in ("RUNNING", "COMPLETED", "CANCELED", "DEAD_LETTERED"):
        await forge(connection, status, topic="z", next_run_at=PAST)
    await forge(connection, "RETRYING", topic="d", next_run_at=now)
    at_s = now.timestamp()
    found = await store.find_levels(FIRST, 10, now=now)
    assert found == [
        Head(Level("a", -3), at_s + 2, False), Head(Level("b", 7), at_s + 9, False),
        Head(Level("b", 0), at_s + 1, False), Head(Level("c", 0), at_s - 1, True), Head(Level("d", 0), at_s, True),
    ]  # fmt: skip
    assert await store.find_levels(FIRST, 2, now=now) == found[:2]
    assert await store.find_levels(found[1].level, 10, now=now) == found[2:]
    of_topics = await store.find_levels(Level("", 101), 10, topics=["b", "a"], now=now)
    assert sorted(of_topics) == found[:1] + sorted(found[1:3])
    assert await store.find_levels(Level("", 101), 1, topics=["b"], now=now) == found[1:2]
    assert await store.find_levels(Level("", 7), 9, topics=["b"], now=now) == found[2:3]
    assert await store.find_levels(found[-1].level, 10) == []
    assert (await store.find_levels(FIRST, 1))[0].is_due
