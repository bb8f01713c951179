"""Claims under limits and of groups by the claim loop: who gets a turn, what is left out, and what wakes it again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import anyio
import pytest

from pulse.errors import StatementError
from pulse.protocol.messages import Result
from pulse.store.limit_claims import Blocked
from pulse.store.rows import Claim, Ending, EndingKind, GroupLevel, Level
from pulse.store.store import Store
from pulse_actors.dispatcher.claims.group_turns import GroupStart
from pulse_actors.dispatcher.claims.loop import ClaimLoop
from pulse_actors.dispatcher.workers.records import RegisteredWorker
from pulse_actors.dispatcher.writes.report import ReportWriter
from pulse_actors.dispatcher.writes.report_rows import PendingReport
from tests.support.store import recovery_kit
from tests.support.store.helpers import TOPIC, Patch, Sql
from tests.support.store.recovery_kit import rows_of

LIMIT: Final = "api"


class Bench(recovery_kit.Bench):
    """One that remembers what its claims under limits have named and found."""

    def __init__(self, store: Store, connection: Sql, monkeypatch: Patch) -> None:
        super().__init__(store, connection, monkeypatch)
        self.named: list[list[GroupLevel]] = []
        self.blocked: list[list[Blocked]] = []
        claim = store.limited.claim

        async def recorded(levels: Sequence[GroupStart], *args: Any, **more: Any) -> Any:
            claims, blocked = await claim(levels, *args, **more)
            self.named.append([level for level, _ in levels])
            self.blocked.append(blocked)
            return claims, blocked

        monkeypatch.setattr(store.limited, "claim", recorded)
        self.turns = self.claims.signal.turns
        self.loop: ClaimLoop = self.claims.loop
        self.results = ReportWriter(
            store, self.registry, self.claims.signal, self.claims.counters, failures=self.claims.failures
        )

    async def limit(self, name: str = TOPIC, group: str | None = None, **policy: Any) -> None:
        await self.store.limits.set(name, policy, group=group)
        self.claims.signal.set_limits(await self.store.limited.topics())

    def rest(self) -> None:
        """All levels are known: no claim has to look everywhere."""
        now_s = time.monotonic()
        self.claims.signal.cursors.full_begins()
        self.claims.signal.cursors.full_done(now_s, now_s)
        self.turns.survey_begins()
        self.turns.surveyed([], (), now_s, now_s)

    async def claim_all(self) -> None:
        """Passes until there is nothing more to claim now; the last of them have looked everywhere."""
        for _ in range(20):
            if not await self.loop.pass_once() and time.monotonic() < self.turns.survey_at_s:
                return
        pytest.fail("the claim loop does not come to rest")

    def got(self, worker: RegisteredWorker) -> list[bytes]:
        return [row[0] for row in rows_of(worker)]

    async def groups_of(self, jobs: Sequence[bytes]) -> list[str]:
        query = "SELECT group_key FROM pulse.jobs WHERE id = $1"
        return [await self.connection.fetchval(query, UUID(bytes=job)) for job in jobs]

    async def complete(self, worker: RegisteredWorker, job: bytes) -> None:
        pair = next(pair for pair in worker.held if pair[0] == job)
        report = PendingReport(worker, None, [Result(*pair, "ok")], [pair])
        self.results.accept(report)
        await self.results._write([report])

    async def end(self, worker: RegisteredWorker, job: bytes, kind: EndingKind, **more: Any) -> None:
        pair = next(pair for pair in worker.held if pair[0] == job)
        for ended in await self.store.end([Ending(*pair, worker.identity, kind, **more)]):
            self.claims.signal.ended(ended)
        self.registry.free(worker, [pair])


@pytest.fixture
def bench(store: Store, connection: Sql, monkeypatch: Patch) -> Bench:
    return Bench(store, connection, monkeypatch)


async def test_groups_take_turns(bench: Bench) -> None:
    """A group with many jobs that are due for longer gets no more than one with few."""
    worker = bench.join(capacity=6)
    for number in range(10):
        await bench.waiting(group_key="hot", next_run_at=datetime(2020, 1, 1, 0, 0, number, tzinfo=UTC))
    for _ in range(2):
        await bench.waiting(group_key="a", next_run_at=datetime(2021, 1, 1, tzinfo=UTC))
        await bench.waiting(group_key="b", next_run_at=datetime(2021, 1, 1, tzinfo=UTC))
    await bench.claim_all()
    assert Counter(await bench.groups_of(bench.got(worker))) == {"hot": 2, "a": 2, "b": 2}


async def test_groups_beyond_one_claim_get_the_next_turns(bench: Bench) -> None:
    bench.monkeypatch.setattr("pulse_actors.dispatcher.claims.group_turns.LEVELS_MAX", 2)
    worker = bench.join(capacity=2)
    for group in "abcd":
        for _ in range(2):
            await bench.waiting(group_key=group)
    await bench.claim_all()
    first = bench.got(worker)
    for job in first:
        await bench.complete(worker, job)
    await bench.claim_all()
    assert sorted(await bench.groups_of(bench.got(worker))) == ["a", "b", "c", "d"]


async def test_plain_jobs_and_groups_share_a_worker(bench: Bench) -> None:
    """Jobs of the highest priority are first, whether they have a group or not."""
    worker = bench.join(capacity=2)
    high: list[bytes] = []
    for priority in (1, 5):
        high = [await bench.waiting(priority=priority), await bench.waiting(group_key="a", priority=priority)]
        for level in (Level(TOPIC, priority), GroupLevel(TOPIC, "a", priority)):
            bench.claims.signal.wake_level(level, due_s=0.0)
    bench.rest()
    await bench.claim_all()
    assert sorted(bench.got(worker)) == sorted(high)


async def test_a_claim_that_looks_everywhere_leaves_groups_to_the_next(bench: Bench) -> None:
    worker = bench.join()
    plain, of_group = await bench.waiting(), await bench.waiting(group_key="a")
    bench.claims.signal.wake_level(GroupLevel(TOPIC, "a", 0), due_s=0.0)
    assert await bench.loop.pass_once()
    assert (bench.got(worker), bench.named) == ([plain], [])
    await bench.claim_all()
    assert bench.got(worker) == [plain, of_group]


async def test_what_stands_behind_the_levels_of_a_limit_is_claimed_next(bench: Bench) -> None:
    """A claim ends its reading at twice as many jobs as seats, of which the limit may let one start."""
    worker = bench.join(capacity=2, topics=(TOPIC, "other"))
    await bench.limit(concurrency=1)
    bench.rest()
    for priority in range(5, 1, -1):
        await bench.waiting(priority=priority)
        bench.claims.signal.wake_level(Level(TOPIC, priority), due_s=0.0)
    behind = await bench.waiting(topic="other")
    bench.claims.signal.wake_level(Level("other", 0), due_s=0.0)
    await bench.loop.pass_once()
    assert behind not in bench.got(worker)
    await bench.claim_all()
    assert bench.got(worker)[1:] == [behind]


async def test_no_more_run_than_the_limit_allows_and_each_end_lets_one_start(bench: Bench) -> None:
    worker = bench.join(capacity=10)
    await bench.limit(concurrency=2)
    jobs = [await bench.waiting() for _ in range(5)]
    await bench.claim_all()
    assert len(bench.got(worker)) == 2
    claims = len(bench.named)
    await bench.claim_all()
    assert len(bench.named) == claims  # what is full is left alone
    await bench.complete(worker, bench.got(worker)[0])
    await bench.claim_all()
    await bench.end(worker, bench.got(worker)[1], EndingKind.ERROR, delay_s=3600.0)
    await bench.claim_all()
    assert sorted(bench.got(worker)) == sorted(jobs[:4])
    assert len(worker.held) == 2


async def test_a_dead_letter_wakes_the_loop(bench: Bench) -> None:
    """It does not run again, but others may take its slot."""
    worker = bench.join()
    await bench.limit(concurrency=1)
    await bench.waiting()
    await bench.claim_all()
    bench.claims.signal._event = anyio.Event()
    await bench.end(worker, bench.got(worker)[0], EndingKind.DISCARDED, error="gone")
    assert bench.claims.signal._event.is_set()


async def test_a_full_group_is_left_out_until_one_of_its_jobs_ends(bench: Bench) -> None:
    worker = bench.join(capacity=10)
    await bench.limit(group_concurrency=1)
    for _ in range(3):
        await bench.waiting(group_key="a")
    await bench.waiting(group_key="b")
    await bench.claim_all()
    assert sorted(await bench.groups_of(bench.got(worker))) == ["a", "b"]
    [first] = [job for job in bench.got(worker) if await bench.groups_of([job]) == ["a"]]
    bench.named.clear()
    await bench.complete(worker, first)
    await bench.claim_all()
    assert len(bench.got(worker)) == 3
    assert {level.group for named in bench.named for level in named} == {"a"}


async def test_a_token_that_is_due_wakes_the_loop(bench: Bench) -> None:
    worker = bench.join(capacity=10)
    await bench.limit(rate=10.0, burst=1)
    for _ in range(2):
        await bench.waiting()
    await bench.claim_all()
    assert len(bench.got(worker)) == 1
    [blocked] = bench.blocked[-1]
    assert (blocked.verdict, blocked.of_limit) == ("rate", True)
    assert 0 < bench.claims.loop._pause_s(time.monotonic()) <= 0.1
    bench.turns._open_due(time.monotonic() + 0.2)
    bench.named.clear()
    await bench.loop.pass_once()
    assert len(bench.named) == 1


async def test_a_busy_limit_is_tried_again_at_once(bench: Bench, store: Store) -> None:
    worker = bench.join()
    await bench.limit(concurrency=5)
    await bench.waiting()
    async with store.query.connection() as other, other.transaction():
        await other.execute("SELECT FROM pulse.limits WHERE group_key = '' FOR UPDATE")
        for _ in range(3):
            await bench.loop.pass_once()
        assert {one.verdict for found in bench.blocked for one in found} == {"busy"}
        assert bench.claims.loop._pause_s(time.monotonic()) <= 0.002
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pulse_actors.dispatcher.claims.group_turns.BUSY_S", 0.0)
        bench.turns._open_due(time.monotonic() + 1.0)
        await bench.claim_all()
    assert len(bench.got(worker)) == 1


async def test_a_limit_that_is_set_or_gone_counts_at_once(bench: Bench) -> None:
    worker = bench.join(capacity=10)
    await bench.limit(concurrency=1)
    for _ in range(4):
        await bench.waiting()
    await bench.claim_all()
    assert len(bench.got(worker)) == 1
    await bench.limit(concurrency=2)
    await bench.claim_all()
    assert len(bench.got(worker)) == 2
    await bench.store.limits.unset(TOPIC)  # its notification is lost: a survey notices
    bench.turns._surveyed_s = 0.0
    bench.turns.want_survey()
    await bench.claim_all()
    assert len(bench.got(worker)) == 4


async def test_a_sequence_goes_on_where_it_was(bench: Bench) -> None:
    """A retry keeps its place, and nothing behind it starts before it is over."""
    worker = bench.join(capacity=10)
    await bench.limit(sequence="continue")
    jobs = [
        await bench.waiting(group_key="a", next_run_at=datetime(2020, 1, 1, tzinfo=UTC) + timedelta(seconds=number))
        for number in range(3)
    ]
    await bench.claim_all()
    assert bench.got(worker) == jobs[:1]
    await bench.end(worker, jobs[0], EndingKind.ERROR, delay_s=0.0)
    await bench.claim_all()
    assert bench.got(worker) == [jobs[0], jobs[0]]
    for job in jobs:
        await bench.complete(worker, job)
        await bench.claim_all()
    assert bench.got(worker) == [jobs[0], *jobs]


async def test_slots_that_no_job_here_takes_are_told_to_other_hosts(bench: Bench) -> None:
    told: list[None] = []
    bench.monkeypatch.setattr(bench.claims.cross_host, "work", lambda: told.append(None))
    worker = bench.join()
    await bench.limit(concurrency=1)
    for _ in range(2):
        await bench.waiting()
    await bench.claim_all()
    told.clear()
    await bench.complete(worker, bench.got(worker)[0])
    await bench.claim_all()
    assert not told  # the next job took it
    await bench.complete(worker, bench.got(worker)[1])
    await bench.claim_all()
    assert told == [None]


async def test_a_group_with_a_refused_job_goes_on(bench: Bench, connection: Sql) -> None:
    """The bad job is found, and set aside; the others are claimed, under the same limit."""
    worker = bench.join(capacity=10)
    await bench.limit(group_concurrency=5)
    good = [await bench.waiting(group_key="a") for _ in range(2)]
    bad = await bench.waiting(group_key="a", next_run_at=datetime(2019, 1, 1, tzinfo=UTC))
    claim = bench.store.limited.claim
    broken = StatementError("invalid page", sqlstate="XX001", statement="claim_limited")

    async def refused(levels: Any, *args: Any, only: Any = None, **more: Any) -> tuple[list[Claim], list[Blocked]]:
        if (only is None and not await connection.fetchval("SELECT count(*) FROM pulse.set_aside")) or bad in (
            only or ()
        ):
            raise broken
        return await claim(levels, *args, only=only, **more)

    bench.monkeypatch.setattr(bench.store.limited, "claim", refused)
    await bench.claim_all()
    assert sorted(bench.got(worker)) == sorted(good)
    assert [row["job_id"].bytes for row in await connection.fetch("SELECT job_id FROM pulse.set_aside")] == [bad]
    await connection.execute("UPDATE pulse.set_aside SET next_try_at = now()")
    bench.monkeypatch.setattr(bench.store.limited, "claim", claim)
    assert await bench.claims.refused_jobs.try_next()
    assert bench.got(worker)[-1] == bad
