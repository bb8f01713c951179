"""The simulation's database against the real one, in what the model behind it and its own test do not have."""

from __future__ import annotations

import hashlib
import json
import random
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import pytest

from pulse.protocol import SubmittedJob
from pulse.store.rows import Claim, Completion, Ending, EndingKind
from pulse.store.store import Store
from tests.simulation.rows.rows import Rows
from tests.support.store.helpers import LEASE_S, NOW

pytestmark = [pytest.mark.postgres, pytest.mark.anyio, pytest.mark.usefixtures("own_database")]

TOPICS: Final = ("a", "b")
WORKERS: Final = ("w0", "w1", "w2")
KINDS: Final = (EndingKind.ERROR, EndingKind.CRASHED, EndingKind.RELEASED, EndingKind.UNASSIGNED, EndingKind.DISCARDED)
STEPS: Final = 60
OPERATIONS: Final = (
    "submit",
    "submit and claim",
    "again",
    "claim",
    "claim",
    "claim from",
    "complete",
    "end",
    "end",
    "cancel",
    "retry",
    "delete",
    "change",
    "change",
)


class Twins:
    """A real store and the simulated one, to which the same is done."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store = store
        self.rows = Rows(swept_at=NOW)
        self.chance = random.Random(seed)
        self.seed = seed
        self.now: datetime = NOW
        self.made = 0

    def some_job(self) -> bytes:
        """One of those that there are, or one that is not there."""
        return self.chance.choice([*self.rows.jobs, b"\0" * 16])

    def new(self) -> SubmittedJob:
        """A job to be submitted."""
        self.made += 1
        identity = hashlib.blake2b(f"{self.seed} {self.made}".encode(), digest_size=16).digest()
        words: dict[str, Any] = {"topic": self.chance.choice(TOPICS), "priority": self.chance.randrange(2)}
        return SubmittedJob(
            "n", id=identity, delay_s=self.chance.choice((0.0, 0.5, 5.0)), timeout_s=7.0, max_attempts=3, **words
        )

    async def step(self, operation: str) -> None:
        """Do something, and hear the same from both."""
        self.now += timedelta(seconds=self.chance.uniform(0.1, 12.0))
        said, expected = await getattr(self, f"do_{operation.replace(' ', '_')}")()
        assert said == expected, operation

    async def do_submit(self) -> tuple[object, object]:
        """New jobs."""
        jobs = [self.new()]
        return await self.store.submit(jobs, now=self.now), self.rows.submit(jobs, self.now)

    async def do_submit_and_claim(self) -> tuple[object, object]:
        """New jobs, some of which are handed out at once."""
        first = self.new()
        jobs = [msgspec.structs.replace(first, delay_s=None)]
        topics, seats = self.chance.sample(TOPICS, 1), [self.chance.randrange(3)]
        claims, woken = await self.store.submit_and_claim(jobs, topics, WORKERS, seats, LEASE_S, now=self.now)
        expected, due = self.rows.submit_and_claim(jobs, topics, WORKERS, seats, LEASE_S, self.now)
        return ([*map(_plain, claims)], woken), ([*map(_plain, expected)], due)

    async def do_again(self) -> tuple[object, object]:
        """A submit whose answer was lost, perhaps."""
        jobs = [self.new()]
        if self.chance.random() < 0.5:
            await self.store.submit(jobs, now=self.now)
            self.rows.submit(jobs, self.now)
        return await self.store.submit_again(jobs, now=self.now), self.rows.submit_again(jobs, self.now)

    async def do_claim(self) -> tuple[object, object]:
        """A full claim."""
        return await self._claim(None)

    async def do_claim_from(self) -> tuple[object, object]:
        """A claim that knows the levels, and where to begin."""
        begins = [None, (self.now - timedelta(seconds=self.chance.uniform(0.0, 30.0))).timestamp()]
        levels = [(topic, priority, self.chance.choice(begins)) for topic in TOPICS for priority in (0, 1)]
        self.chance.shuffle(levels)
        return await self._claim(levels[: self.chance.randrange(1, 5)])

    async def _claim(self, levels: list[tuple[str, int, float | None]] | None) -> tuple[object, object]:
        topics = self.chance.sample(TOPICS, 2)
        seats = [self.chance.randrange(3) for _ in range(self.chance.randrange(1, 4))]
        claimed = await self.store.claim(topics, WORKERS, seats, LEASE_S, levels=levels, now=self.now)
        expected = self.rows.claim(topics, WORKERS, seats, LEASE_S, self.now, levels=levels)
        return sorted(map(_plain, claimed)), sorted(map(_plain, expected))

    async def do_complete(self) -> tuple[object, object]:
        """A success."""
        row = self.rows.jobs[self.chance.choice(list(self.rows.jobs))]
        done = [Completion(row.id, max(row.attempts, 1), row.locked_by or "nobody", None)]
        return await self.store.complete(done, now=self.now), self.rows.complete(done, self.now)

    async def do_end(self) -> tuple[object, object]:
        """An end of another kind."""
        row = self.rows.jobs[self.chance.choice(list(self.rows.jobs))]
        ending = Ending(row.id, max(row.attempts, 1), row.locked_by or "nobody", self.chance.choice(KINDS), "boom")
        return await self.store.end([ending], now=self.now), self.rows.end([ending], self.now)

    async def do_cancel(self) -> tuple[object, object]:
        """An operator cancels."""
        chosen = [self.chance.choice(list(self.rows.jobs))]
        return await self.store.cancel(chosen, now=self.now), self.rows.cancel(chosen, self.now)

    async def do_retry(self) -> tuple[object, object]:
        """An operator retries."""
        chosen = [self.chance.choice(list(self.rows.jobs))]
        return set(await self.store.retry(chosen, now=self.now)), self.rows.retry(chosen, self.now)

    async def do_delete(self) -> tuple[object, object]:
        """An operator deletes."""
        chosen = [self.chance.choice(list(self.rows.jobs))] if len(self.rows.jobs) > 1 else []
        return await self.store.delete(chosen), self.rows.delete(chosen)

    async def do_change(self) -> tuple[object, object]:
        """An operator moves what waits."""
        chosen = [self.chance.choice(list(self.rows.jobs))]
        topic, priority = self.chance.choice((None, *TOPICS)), self.chance.choice((None, 0, 1))
        said = await self.store.change(chosen, topic=topic, priority=priority, now=self.now)
        return said, self.rows.moved(chosen, topic, priority, self.now)

    async def look(self) -> None:
        """Ask both whatever can be asked."""
        ids = [self.some_job(), self.some_job()]
        spared = self.chance.sample(WORKERS, self.chance.randrange(3))
        lapsed = await self.store.lapsed(100, spared=spared, now=self.now)
        assert lapsed == self.rows.lapsed_except(100, spared, self.now)
        oldest = [await self.store.lapsed(2, spared=spared, now=self.now), self.rows.lapsed_except(2, spared, self.now)]
        first, second = (sorted(str(self.rows.jobs[one.id].started_at) for one in found) for found in oldest)
        assert first == second  # of attempts that began together, any
        for worker in WORKERS:
            assert await self.store.running_of(worker) == self.rows.running_of(worker)
        assert await self.store.leases_of(WORKERS, now=self.now) == self.rows.leases_of(WORKERS, self.now)
        assert sorted(await self.store.running_workers()) == self.rows.running_workers()
        assert await self.store.statuses(ids) == self.rows.statuses(ids)
        assert await self.store.named(ids) == self.rows.named(ids)
        assert await self.store.reads.last_workers(ids) == self.rows.last_workers(ids)

    async def sweep(self) -> None:
        """Both are swept, and their leases doubted; the gap before the first sweep is that since the table was made."""
        if self.chance.random() < 0.3:
            wait_s = self.chance.choice((1.0, LEASE_S))
            await self.store.doubt_leases(wait_s, now=self.now)
            self.rows.doubt_leases(wait_s, self.now)
        gap_s = self.chance.choice((5.0, 20.0))
        said = await self.store.mark_sweep(gap_s, LEASE_S, now=self.now)
        assert said == pytest.approx(self.rows.mark_sweep(gap_s, LEASE_S, self.now))


def _plain(claim: Claim) -> tuple[object, ...]:
    """A claim, for comparison."""
    previous = None if claim.previous is None else tuple(json.loads(claim.previous))
    numbers = (claim.attempt, claim.worker, claim.uncharged, claim.crashes, claim.priority, round(claim.due_at, 6))
    return (claim.id, *numbers, claim.name, claim.topic, claim.timeout_s, claim.checkpoint, str(previous))


@pytest.mark.parametrize("seed", range(12))
async def test_both_databases_say_the_same(store: Store, seed: int) -> None:
    """Whatever was done before, the simulated database answers as PostgreSQL does."""
    twins = Twins(store, seed)
    await twins.store.mark_sweep(1e9, 0.0, now=NOW)
    await twins.step("submit")
    for _ in range(STEPS):
        await twins.step(twins.chance.choice(OPERATIONS))
        await twins.look()
        await twins.sweep()
