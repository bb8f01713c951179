"""Claims under limits of the simulation's database, against PostgreSQL."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import pytest

from pulse.protocol import SubmittedJob
from pulse.store.limit_claims import Blocked
from pulse.store.rows import Claim, Completion, Ending, EndingKind, GroupLevel, Level
from pulse.store.store import Store
from tests.plugins.databases import EMPTY
from tests.support.store.helpers import LEASE_S, NOW, at, job, new_id
from tests.support.store.limit_rows import Limit, Start
from tests.support.store.rows import Rows

if TYPE_CHECKING:
    from datetime import datetime

    from asyncpg import Connection, Record

pytestmark = [pytest.mark.postgres, pytest.mark.anyio, pytest.mark.usefixtures("own_database")]

TOPICS: Final = ("a", "b", "free")
GROUPS: Final = (None, "g", "h")
WORKERS: Final = ("w0", "w1")
STEPS: Final = 50
OPERATIONS: Final = ("submit", "claim", "claim", "plain_claim", "submit_and_claim", "end", "end", "look", "wait")
ENDS: Final = (None, EndingKind.ERROR, EndingKind.RELEASED, EndingKind.SNOOZED)
_ROWS: Final = """
    SELECT uuid_send(id) AS id, status::text, attempts, locked_by, next_run_at, group_key,
        CASE WHEN status = 'RUNNING' THEN counted_by END AS counted_by
    FROM pulse.jobs ORDER BY id"""


class Histories:
    """A real store and the model, with the same jobs and limits."""

    def __init__(self, store: Store, connection: Connection[Record], seed: int) -> None:
        self.store = store
        self.connection = connection
        self.chance = random.Random(seed)
        self.rows = Rows()
        self.now_s = 0.0
        self.verdicts: set[str] = set()

    @property
    def now(self) -> datetime:
        return at(self.now_s)

    async def begin(self) -> None:
        chance, limits = self.chance, self.rows.limits
        name, limits.of_topic = chance.choice([("a", {}), ("both", {"a": "both", "b": "both"})])
        limit = Limit(chance.choice((None, 1, 3)), chance.choice((None, 1)), chance.choice((None, 0.5, 2.5)))
        limits.by_name[name] = limit
        options = {"concurrency": limit.concurrency, "rate": limit.rate, "group_concurrency": limit.group_concurrency}
        await self.store.limits.set(name, options)
        for topic, its in limits.of_topic.items():
            await self.connection.execute("INSERT INTO pulse.topics (topic, limit_name) VALUES ($1, $2)", topic, its)
        assert await self.store.limited.topics() == limits.topics()

    def _jobs(self) -> list[SubmittedJob]:
        chance = self.chance
        return [
            job(
                id=new_id(), topic=chance.choice(TOPICS), group_key=chance.choice(GROUPS),
                priority=chance.choice((0, 1)), delay_s=chance.choice((None, None, 1.0)),
            )
            for _ in range(chance.randrange(1, 4))
        ]  # fmt: skip

    async def do_submit(self) -> tuple[object, object]:
        jobs = self._jobs()
        return set(await self.store.submit(jobs, now=self.now)), set(self.rows.submit(jobs, self.now))

    async def do_submit_and_claim(self) -> tuple[object, object]:
        jobs = [job(id=new_id(), topic=self.chance.choice(TOPICS), group_key=self.chance.choice(GROUPS))]
        real = await self.store.submit_and_claim(jobs, TOPICS, WORKERS, [1], LEASE_S, now=self.now)
        said = self.rows.submit_and_claim(jobs, TOPICS, WORKERS, [1], LEASE_S, self.now)
        return (_plain(real[0]), real[1]), (_plain(said[0]), said[1])

    async def do_plain_claim(self) -> tuple[object, object]:
        """Of those that are due at the same time it may take any."""
        candidates = self.rows.claimable(TOPICS, self.now)
        keys = {one: key for key, one in candidates}
        real = await self.store.claim(TOPICS, WORKERS, [0, 1], LEASE_S, now=self.now)
        taken = sorted(keys[one.id] for one in real)
        said = self.rows.take([one.id for one in real], WORKERS, [0, 1], LEASE_S, self.now)
        return (_plain(real), taken), (_plain(said), [key for key, _ in candidates[:2]])

    async def do_claim(self) -> tuple[object, object]:
        chance = self.chance
        starts: list[Start] = [
            (GroupLevel(topic, group, priority), chance.choice((0.0, None)))
            for topic in TOPICS
            for group in GROUPS
            for priority in (1, 0)
        ]
        chance.shuffle(starts)
        starts = starts[: chance.choice((3, 18))]
        seats, most = [chance.randrange(2) for _ in range(chance.randrange(1, 5))], chance.choice((None, 1, 2))
        real = await self.store.limited.claim(starts, WORKERS, seats, LEASE_S, most=most, now=self.now)
        said = self.rows.claim_limited(starts, WORKERS, seats, LEASE_S, self.now, most=most)
        assert not self.rows.limits.exceeded(self.rows)
        self.verdicts.update(one.verdict for one in said[1])
        return (_plain(real[0]), real[1]), (_plain(said[0]), said[1])

    async def do_end(self) -> tuple[object, object]:
        running = self.rows.running()
        if not running:
            return None, None
        row, kind = self.chance.choice(running), self.chance.choice(ENDS)
        holder = (row.id, row.attempts, row.locked_by or "")
        if kind is None:
            done = [Completion(*holder, None)]
            return await self.store.complete(done, now=self.now), self.rows.complete(done, self.now)
        ends = [Ending(*holder, kind, None if kind is EndingKind.SNOOZED else "why", 1.0)]
        return await self.store.end(ends, now=self.now), self.rows.end(ends, self.now)

    async def do_look(self) -> tuple[object, object]:
        """What a survey finds."""
        after, most = GroupLevel("a", "g", 0), self.chance.choice((1, 9))
        store, rows, first = self.store, self.rows, Level("a", 1)
        topics = self.chance.choice((None, TOPICS[:1], TOPICS))
        groups = await store.limited.find_levels(after, most, now=self.now)
        plain = await store.find_levels(first, 9, topics=topics, now=self.now)
        expected = rows.find_levels(first, 9, self.now, topics=topics)
        if topics is not None:
            plain.sort()
        return (groups, plain), (rows.limits.heads(rows, after, most, self.now), expected)

    async def do_wait(self) -> tuple[object, object]:
        self.now_s += self.chance.choice((0.25, 1.0, 7.0))
        return None, None

    async def step(self) -> None:
        what = self.chance.choice(OPERATIONS)
        real, said = await getattr(self, f"do_{what}")()
        assert (what, real) == (what, said)
        assert [tuple(row) for row in await self.connection.fetch(_ROWS)] == [
            (
                row.id, row.status, row.attempts, row.locked_by, row.next_run_at, row.group_key,
                row.counted_by if row.status == "RUNNING" else None,
            )
            for _, row in sorted(self.rows.jobs.items())
        ]  # fmt: skip


def _plain(claims: list[Claim]) -> list[tuple[object, ...]]:
    return sorted((one.id, one.attempt, one.worker, one.topic, one.group_key, one.priority) for one in claims)


@pytest.mark.rest
async def test_claims_under_limits(store: Store, connection: Connection[Record]) -> None:
    verdicts: set[str] = set()
    for seed in range(8):
        await connection.execute(EMPTY)
        histories = Histories(store, connection, seed)
        await histories.begin()
        for _ in range(STEPS):
            await histories.step()
        verdicts |= histories.verdicts
    assert verdicts == {"full", "rate"}


async def test_under_a_limit_where_another_claim_has_ended_since_nothing_is_taken() -> None:
    """What else it names is claimed. Two connections show the same of PostgreSQL, in test_limit_races_pg.py."""
    rows = Rows()
    rows.limits.by_name["a"] = Limit(concurrency=5)
    rows.submit([job(id=new_id(), topic=topic) for topic in ("a", "a", "b")], NOW)
    starts: list[Start] = [(GroupLevel(topic, None, 0), 0.0) for topic in "ab"]
    seen = rows.limits.look(rows)
    first, _ = rows.claim_limited(starts[:1], WORKERS, [0], LEASE_S, at(1))
    second, blocked = rows.claim_limited(starts, WORKERS, [0, 0, 0], LEASE_S, at(1), seen=seen)
    assert [one.topic for one in (*first, *second)] == ["a", "b"]
    assert blocked == [Blocked(GroupLevel("a", None, 0), "busy", None, of_limit=True)]
