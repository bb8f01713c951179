"""``pulse.store.store.Store`` on the simulated database; the docstrings are there."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

import trio

from pulse.protocol import HandlerInfo, SubmittedJob
from pulse.store.admin.schema import SCHEMA_VERSION
from pulse.store.connections.session import HeldCommit
from pulse.store.failures import Failing
from pulse.store.limit_claims import Blocked, GroupHead
from pulse.store.operators.jobs import ChangedJob, RestartedJob
from pulse.store.operators.policies import LivePolicy
from pulse.store.operators.transaction import Operator
from pulse.store.reading.counts import Depths
from pulse.store.reading.limits import LimitUsage
from pulse.store.recovery.epochs import UNWITNESSED, ClaimWitness, Witnessed
from pulse.store.recovery.timelines import Timelines
from pulse.store.rows import (
    Canceled,
    Claim,
    Completion,
    Ended,
    Ending,
    ExpiredJob,
    Fence,
    Forgotten,
    GroupLevel,
    Head,
    Leased,
    Level,
    Renewal,
    Running,
    Wake,
)
from tests.simulation.rows.database import Database
from tests.simulation.rows.epochs import FakeEpochs
from tests.simulation.rows.workflows import FakeDependencies, FakeSignals, FakeSubmits
from tests.support.store.limit_rows import Start

LONG: Final = 0.2  # of the claims under limits
LONG_S: Final = 0.2
Pair = tuple[bytes, int]


def _ids(rows: Sequence[Fence | Completion | Ending | Renewal]) -> list[bytes]:
    return [row.id for row in rows]


class NothingAside:
    """``pulse.store.recovery.set_aside.SetAsideStore`` of a database that refuses no single job."""

    async def next(self, _pause_s: float) -> None:
        """It is nobody's turn."""


class FakeLimits:
    """``pulse.store.limit_claims.LimitClaims``, and of ``LimitStore`` what the watchdog does."""

    def __init__(self, database: Database, knowledge: Callable[[], ClaimWitness | None]) -> None:
        self._database = database
        self._knowledge = knowledge

    async def claim(
        self,
        levels: Sequence[Start],
        workers: Sequence[str],
        seats: Sequence[int],
        lease_s: float,
        *,
        most: int | None = None,
        ageing_s: Mapping[str, float] | None = None,
    ) -> tuple[list[Claim], list[Blocked]]:
        """It sees the limits as they are when it begins: until it takes jobs, another claim may have ended."""
        assert not ageing_s
        database, knowledge = self._database, self._knowledge()
        rows, witnessed = database.rows, UNWITNESSED if knowledge is None else knowledge.witnessed
        locked, seen, chance = database.locked, rows.limits.look(rows), database.world.chance
        if chance.random() < LONG:
            await trio.sleep(chance.uniform(0.0, LONG_S))

        def act() -> tuple[list[Claim], list[Blocked]]:
            if not rows.ledger.knows(witnessed, database.server):
                return [], []
            return rows.claim_limited(
                levels, workers, seats, lease_s, database.now(), seen=seen, most=most, locked=locked
            )

        claims, blocked = await database.do("claim", act)
        for verdict in sorted({one.verdict for one in blocked}):
            database.world.judge.count(verdict)
        if knowledge is not None and claims:
            await knowledge.claimed(claims)
        return claims, blocked

    async def topics(self) -> dict[str, str]:
        limits = self._database.rows.limits
        return await self._database.do("topics", limits.topics) if limits.by_name else {}

    async def find_levels(self, after: GroupLevel, limit: int) -> list[GroupHead]:
        rows, now = self._database.rows, self._database.now
        if not rows.limits.by_name:
            return []  # then no job has a group: see ``scenario``
        return await self._database.do("find_levels", lambda: rows.limits.heads(rows, after, limit, now()))

    async def forget_buckets(self) -> int:
        """Groups have no rate."""
        return 0


class FakeStore:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._rows = database.rows
        self._do = database.do
        self._now = database.now
        self.endings = self  # that an end was written before is for the log alone, which nobody reads here
        self.reads = self  # of all that is read there, the dispatcher's own work needs ``last_workers`` alone
        self.topics = self  # of policies, what is kept in memory
        self.depths = self
        self.limit_reads = self
        self.gate = self  # never asked: nobody pauses here
        self.unique = FakeSubmits(database)
        self.findings = self
        self.epochs = FakeEpochs(database)
        self.timelines = Timelines()
        self.failing = Failing()
        self.aside = NothingAside()
        self.dependencies, self.signals = FakeDependencies(database), FakeSignals(database)
        self._held: dict[bytes, bool] = {}  # of those that were retried
        self._knowledge: ClaimWitness | None = None
        self.limited = self.limits = FakeLimits(database, lambda: self._knowledge)
        self.audit = self  # only how far retention has got is written there

    def trust(self, knowledge: ClaimWitness | None) -> None:
        """Claim only while *knowledge* of the database is true."""
        self._knowledge = knowledge

    @contextlib.asynccontextmanager
    async def acting(self, _operator: Operator) -> AsyncGenerator[FakeStore]:
        yield self

    async def note(self, action: str, **_told: object) -> None:
        """Of what operators did nobody reads here."""

    async def note_retention(self, _walked: int, _gone: int, *, begins: bool, ends: bool) -> None:
        """Of that nobody reads here either."""

    async def check_sessions(self) -> None:
        """Nothing is in between."""

    async def prepare(self, *, install: bool = True) -> int:
        return await self._do("prepare", lambda: SCHEMA_VERSION)

    async def read(self, _most: int, _names: Sequence[str]) -> Depths:
        return await self._do("read", lambda: Depths((), is_exact=True, now_s=self._now().timestamp()))

    async def usage(self, _most: int) -> tuple[list[LimitUsage], int]:
        """There are no limits."""
        return await self._do("usage", lambda: (list[LimitUsage](), 0))

    async def ask(self, question: str) -> None:
        """Nor asks what is wrong."""

    async def warm(self) -> None:
        await self._do("warm", lambda: None)

    async def forget(
        self, first: bytes = b"", window: int = 0, _keep_s: float = 0.0, _keep_dead_s: float = 0.0
    ) -> Forgotten:
        """A world lasts for minutes: nothing is old enough, neither jobs nor notes."""

        def look() -> Forgotten:
            walked = sorted(one for one in self._rows.jobs if one >= first)[:window]
            return Forgotten(True, len(walked), 0, *(walked[-1], walked[0]) if walked else (None, None))

        return await self._do("forget", look)

    async def notify_work(self, _sender: str) -> None:
        await self._do("notify_work", lambda: None)

    async def submit(self, jobs: Sequence[SubmittedJob]) -> list[Wake]:
        return await self._do("submit", lambda: self._rows.submit(jobs, self._now()))

    async def submit_and_claim(
        self,
        jobs: Sequence[SubmittedJob],
        topics: Sequence[str],
        workers: Sequence[str],
        seats: Sequence[int],
        lease_s: float,
    ) -> tuple[list[Claim], list[Wake]]:
        known = self._witnessed

        def act() -> tuple[list[Claim], list[Wake]]:
            open_topics = topics if self._is_known(known) else ()
            return self._rows.submit_and_claim(jobs, open_topics, workers, seats, lease_s, self._now())

        claims, woken = await self._do("submit_and_claim", act)
        await self._claimed(claims)
        return claims, woken

    @property
    def _witnessed(self) -> Witnessed:
        return UNWITNESSED if self._knowledge is None else self._knowledge.witnessed

    def _is_known(self, known: Witnessed) -> bool:
        return self._rows.ledger.knows(known, self._database.server)

    async def _claimed(self, claims: Sequence[Claim]) -> None:
        if self._knowledge is not None and claims:
            await self._knowledge.claimed(claims)

    async def submit_again(self, jobs: Sequence[SubmittedJob]) -> list[Wake]:
        return await self._do("submit_again", lambda: self._rows.submit_again(jobs, self._now()))

    async def claim(
        self,
        topics: Sequence[str],
        workers: Sequence[str],
        seats: Sequence[int],
        lease_s: float,
        *,
        levels: Sequence[tuple[str, int, float | None]] | None = None,
        ageing_s: Mapping[str, float] | None = None,
        only: Sequence[bytes] | None = None,
    ) -> list[Claim]:
        assert not ageing_s
        assert only is None
        locked, known = self._database.locked, self._witnessed

        def act() -> list[Claim]:
            if not self._is_known(known):
                return []
            return self._rows.claim(topics, workers, seats, lease_s, self._now(), levels=levels, locked=locked)

        claims = await self._do("claim", act)
        await self._claimed(claims)
        return claims

    async def find_levels(self, after: Level, limit: int, *, topics: Sequence[str] | None = None) -> list[Head]:
        return await self._do("find_levels", lambda: self._rows.find_levels(after, limit, self._now(), topics=topics))

    async def move(self, claims: Sequence[tuple[Fence, str]]) -> set[bytes]:
        def act() -> set[bytes]:
            return {one for fence, heir in claims for one in self._rows.move(fence, heir)}

        return await self._do("move", act, [fence.id for fence, _ in claims])

    async def complete(self, completions: Sequence[Completion], *, keep: bool = True) -> set[Pair]:
        if self._knowledge is not None and not keep:
            self._knowledge.forgets((one.id, one.attempt) for one in completions)
        done = await self._do("complete", lambda: self._rows.complete(completions, self._now()), _ids(completions))
        if self._knowledge is not None:
            self._knowledge.completed(done)
        return done

    async def completed_already(self, fences: Sequence[Pair]) -> set[Pair]:
        def act() -> set[Pair]:
            rows = {one: self._rows.jobs[one[0]] for one in fences if one[0] in self._rows.jobs}
            return {one for one, row in rows.items() if (row.status, row.attempts) == ("COMPLETED", one[1])}

        return await self._do("completed_already", act)

    async def end(
        self, endings: Sequence[Ending], *, commit: HeldCommit | None = None, now: datetime | None = None
    ) -> list[Ended]:
        if commit is not None:
            commit.sent.set()
            await commit.may_commit.wait()
        ordered = list(endings)
        if len({(one.id, one.attempt) for one in ordered}) < len(ordered):
            self._database.world.chance.shuffle(ordered)  # of several for one row PostgreSQL takes any
        return await self._do("end", lambda: self._rows.end(ordered, now or self._now()), _ids(endings))

    async def written(self, _endings: Sequence[Ending]) -> list[Ended]:
        return []

    async def lockable(self, ids: Sequence[bytes]) -> set[bytes]:
        return await self._do("lockable", lambda: set(ids) - self._database.locked)

    async def extend(self, renewals: Sequence[Renewal], lease_s: float) -> set[Pair]:
        return await self._do("extend", lambda: self._rows.extend(renewals, lease_s, self._now()), _ids(renewals))

    async def checkpoint(self, checkpoints: Sequence[Renewal]) -> set[Pair]:
        return await self._do("checkpoint", lambda: self._rows.save(checkpoints), _ids(checkpoints))

    async def lapsed(self, limit: int, *, spared: Sequence[str] = (), now: datetime | None = None) -> list[Fence]:
        return await self._do("lapsed", lambda: self._rows.lapsed_except(limit, spared, now or self._now()))

    async def running_of(self, worker: str) -> dict[Pair, Running]:
        return await self._do("running_of", lambda: self._rows.running_of(worker))

    async def leases_of(self, workers: Sequence[str]) -> dict[str, dict[Pair, Leased]]:
        return await self._do("leases_of", lambda: self._rows.leases_of(workers, self._now()))

    async def named(self, ids: Sequence[bytes]) -> dict[bytes, Running]:
        return await self._do("named", lambda: self._rows.named(ids))

    async def running_workers(self) -> list[str]:
        return await self._do("running_workers", self._rows.running_workers)

    async def cancel(self, ids: Sequence[bytes]) -> list[Canceled]:
        return await self._do("cancel", lambda: self._rows.cancel(ids, self._now()), ids)

    async def lift(self, ids: Sequence[bytes]) -> None:
        """Nothing is set aside."""

    async def retry(self, ids: Sequence[bytes]) -> dict[bytes, RestartedJob]:
        """With ``wait_again``, which is in the same transaction."""

        def act() -> dict[bytes, RestartedJob]:
            completed = {one for one, row in self._rows.jobs.items() if row.status == "COMPLETED"}
            rows = [self._rows.jobs[one] for one in sorted(self._rows.retry(ids, self._now()))]
            self._held |= self._rows.wait_again(row.id for row in rows)
            return {
                row.id: RestartedJob(
                    Wake(row.topic, row.priority, row.next_run_at.timestamp(), group_key=row.group_key),
                    had_completed=row.id in completed,
                    has_relatives=row.is_parent or row.waiting_on is not None,
                )
                for row in rows
            }

        return await self._do("retry", act, ids)

    async def wait_again(self, retried: Sequence[bytes], _prevented: Sequence[bytes]) -> dict[bytes, bool]:
        return {one: self._held.pop(one) for one in retried}

    async def delete(self, ids: Sequence[bytes]) -> set[bytes]:
        return await self._do("delete", lambda: self._rows.delete(ids), ids)

    async def change(
        self, ids: Sequence[bytes], *, topic: str | None = None, priority: int | None = None
    ) -> dict[bytes, ChangedJob]:
        def act() -> dict[bytes, ChangedJob]:
            return self._rows.moved(ids, topic, priority, self._now())

        return await self._do("change", act, ids)

    async def statuses(self, ids: Sequence[bytes]) -> dict[bytes, tuple[str, int]]:
        return await self._do("statuses", lambda: self._rows.statuses(ids))

    async def last_workers(self, ids: Sequence[bytes]) -> dict[bytes, str]:
        return await self._do("last_workers", lambda: self._rows.last_workers(ids))

    async def note_handlers(self, handlers: dict[str, HandlerInfo]) -> None:
        await self._do("note_handlers", lambda: self._rows.handlers.update(handlers))

    async def set_server_defaults(self, _max_attempts: int, _max_crashes: int, _backoff: str) -> None:
        await self._do("set_server_defaults", lambda: None)

    async def live(self) -> dict[str, LivePolicy]:
        """No topic has a policy, and no random number is used."""
        return {}

    async def expire(self, _limit: int) -> list[ExpiredJob]:
        """No job may expire."""
        return []

    async def host_boots(self, host: str) -> dict[str, float]:
        return await self._do("host_boots", lambda: self._rows.host_boots(host, self._now()))

    async def mark_sweep(self, gap_s: float, wait_s: float) -> tuple[float, float, float]:
        return await self._do("mark_sweep", lambda: self._rows.mark_sweep(gap_s, wait_s, self._now()))

    async def doubt_leases(self, wait_s: float) -> None:
        await self._do("doubt_leases", lambda: self._rows.doubt_leases(wait_s, self._now()))

    async def note_host(self, host: str, boot: str, pidns: int) -> None:
        await self._do("note_host", lambda: self._rows.hosts.__setitem__((host, boot, pidns), self._now()))
