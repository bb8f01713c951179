"""
The store: one short method per statement, typed rows in and out. SQL and decisions are in the statements.

Four kinds of connections: ``hot`` for what opens and closes attempts (its plans do not depend on statistics), ``beats``
for heartbeats (which need not wait for the disk), ``query`` for everything that lists or changes rarely, and
``counting`` for how many jobs wait (which gives up soon).

Every method raises UnavailableError when the database is away. Then the statement may or may not be committed, and may
be repeated: the fence, the id or the cursor makes the second time a no-op.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import starmap
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from pulse.common.dsn import database_of
from pulse.store.admin.doctor import FindingStore
from pulse.store.admin.schema import ensure_schema
from pulse.store.arguments import (
    completion_columns,
    ending_columns,
    fence_columns,
    job_columns,
    label_columns,
    level_columns,
    pair_columns,
    submit_call,
    submitted_rows,
    uuids,
)
from pulse.store.connections.pool import BEAT_SETTINGS, COUNT_SETTINGS, HOT_SETTINGS, Pool, Target
from pulse.store.connections.pooler import refuse_pooler
from pulse.store.connections.session import HeldCommit
from pulse.store.failures import Failing
from pulse.store.limit_claims import LimitClaims
from pulse.store.operators.audit import AuditStore
from pulse.store.operators.dependencies import DependencyStore
from pulse.store.operators.gate import GateStore
from pulse.store.operators.jobs import Connections, Operations
from pulse.store.operators.limits import LimitStore
from pulse.store.operators.outbox import OutboxStore
from pulse.store.operators.policies import Defaults, TopicStore
from pulse.store.operators.schedules import ScheduleStore
from pulse.store.operators.signals import SignalStore
from pulse.store.operators.transaction import Acting, Operator, acting
from pulse.store.operators.unique import UNIQUE_CONNECTIONS, UniqueSubmits
from pulse.store.reading.counts import DepthStore
from pulse.store.reading.endings import EndingReader
from pulse.store.reading.error_groups import ErrorGroups
from pulse.store.reading.filter_counts import FilterCounts
from pulse.store.reading.jobs import JobReader
from pulse.store.reading.limits import LimitReader
from pulse.store.reading.listing import Listing
from pulse.store.reading.prefixes import PrefixSearch
from pulse.store.recovery.epochs import UNWITNESSED, ClaimWitness, EpochStore, Witnessed
from pulse.store.recovery.set_aside import SetAsideStore
from pulse.store.recovery.sweeps import Sweeps
from pulse.store.recovery.timelines import Timelines
from pulse.store.rows import (
    Claim,
    Completion,
    Ended,
    Ending,
    Fence,
    Head,
    Leased,
    Level,
    Renewal,
    Running,
    Wake,
    ended_row,
    running_row,
)
from pulse.store.statements import STATEMENTS

if TYPE_CHECKING:
    from asyncpg import Connection, Record

    from pulse.protocol import SubmittedJob

_by_id = attrgetter("id")


def _sql(name: str) -> str:
    return STATEMENTS[name].sql


_CLAIM: Final = _sql("claim_jobs")
_SUBMIT_AND_CLAIM: Final = _sql("submit_and_claim")
_COMPLETE: Final = _sql("complete_jobs")
_END: Final = _sql("end_attempts")
_EXTEND: Final = _sql("extend_leases")
WORK_CHANNEL: Final = "pulse_work"  # NOTIFY of notify_work, and of SQL submits with no text
_WARM: Final = 2  # connections: one claims, one writes; the server may not allow more


async def _complete(connection: Connection[Record], ordered: Sequence[Completion], now: datetime | None) -> int:
    """How many of these attempts were completed; those that others wait for in a statement of their own."""
    arguments = *completion_columns(ordered), now
    done = int((await connection.execute(_COMPLETE, *arguments)).removeprefix("UPDATE "))
    if done != len(ordered):
        done += await connection.fetchval(_sql("complete_parents"), *arguments)
    return done


class Store(Operations, Defaults, Sweeps):
    """
    The database of one process.

    Args:
        target: Where it is.
        hot: Connections for claims, results and submits.
        queries: Connections for everything else.
        proved: The credentials are known to work: if they are refused, the database counts as away.

    Attributes:
        pools: All its connections, by the name of their kind.
        failing: The statements that it refuses.
        timelines: The timelines of the servers that were seen.
    """

    def __init__(self, target: Target, *, hot: int = 4, queries: int = 2, proved: bool = False) -> None:
        self.failing, self.timelines = Failing(), Timelines(database_of(target.dsn))
        pool = partial(Pool, target, failing=self.failing, timelines=self.timelines, proved=proved)
        self.hot = pool(size=hot, settings=HOT_SETTINGS)
        self.beats = pool(size=1, settings=BEAT_SETTINGS)
        self.query = pool(size=queries)
        self.counting = pool(size=1, settings=COUNT_SETTINGS)
        self.unique = UniqueSubmits(pool(size=UNIQUE_CONNECTIONS, settings=HOT_SETTINGS))
        self.pools = {
            "hot": self.hot, "beats": self.beats, "query": self.query, "counting": self.counting,
            "unique": self.unique.pool,
        }  # fmt: skip
        self._knowledge: ClaimWitness | None = None  # what the dispatcher has seen of the database
        self.epochs = EpochStore(self.hot)
        self.aside = SetAsideStore(self.hot)
        self.limited = LimitClaims(self.hot, lambda: self._knowledge)
        self.depths = DepthStore(self.counting)
        self.limit_reads = LimitReader(self.counting)
        self.findings = FindingStore(self.counting, target.schema)
        self.endings = EndingReader(self.hot)
        self.reads = JobReader(self.query)
        self.gate = GateStore(self.query)
        self.schedules = ScheduleStore(self.query)
        self.topics = TopicStore(self.query)
        self.limits = LimitStore(self.query)
        self.dependencies = DependencyStore(self.query)
        self.signals, self.outbox = SignalStore(self.query), OutboxStore(self.query)
        self.error_groups = ErrorGroups(self.query)
        self.filter_counts = FilterCounts(self.query)
        self.listing, self.prefixes = Listing(self.query), PrefixSearch(self.query)
        self.audit = AuditStore(self.query)

    @property
    def lender(self) -> Connections:
        """Requests of people do not wait behind statements for workers."""
        return self.query

    async def check_sessions(self) -> None:
        """Raise PoolerError if a pooler changes the sessions."""
        await refuse_pooler(self.query.target)

    async def prepare(self, *, install: bool = True) -> int:
        """Install the schema, or look whether pulse works with the one there; the version that was found (0: none)."""
        async with self.query.connection(deadline_s=60.0) as connection:
            return await ensure_schema(connection, install=install)

    async def warm(self) -> None:
        """Run the hot statements without rows, so that they are planned: that takes 20 ms a connection."""
        async with contextlib.AsyncExitStack() as taken:
            for _ in range(_WARM):
                connection = await taken.enter_async_context(self.hot.connection())
                await connection.fetch(_CLAIM, [], 0, [], [], 1.0, *[None] * 4, *UNWITNESSED, None, None)
                for sql, arrays in ((_COMPLETE, 2), (_END, 10)):  # behind the fence
                    await connection.fetch(sql, *fence_columns([]), *(() for _ in range(arrays)), None)
                await connection.fetch(*submit_call([], None))
                columns = *job_columns([], due=True), (), (), 1.0, (), ()
                await connection.fetch(_SUBMIT_AND_CLAIM, *columns, *UNWITNESSED, None)

    def close(self) -> None:
        """Drop all connections."""
        for pool in self.pools.values():
            pool.close()

    def trust(self, knowledge: ClaimWitness | None) -> None:
        """Claim only while the database has all that *knowledge* has seen of it; None: claim without this check."""
        self._knowledge = knowledge

    def acting(self, operator: Operator) -> contextlib.AbstractAsyncContextManager[Acting]:
        """A transaction for the changes of *operator* and their audit entries."""
        return acting(self.query, operator)

    async def submit(self, jobs: Sequence[SubmittedJob], *, now: datetime | None = None) -> list[Wake]:
        """
        Insert *jobs*, each of which has an id; all or none.

        Raises:
            StatementError: A job cannot be stored; UNIQUE_VIOLATION: an id exists, ask again by ``submit_again``.
        """
        async with self.hot.connection() as connection:
            rows = await connection.fetch(*submit_call(jobs, now))
        return [Wake(*row) for row in rows]

    async def submit_and_claim(
        self,
        jobs: Sequence[SubmittedJob],
        topics: Sequence[str],
        workers: Sequence[str],
        seats: Sequence[int],
        lease_s: float,
        *,
        now: datetime | None = None,
    ) -> tuple[list[Claim], list[Wake]]:
        """
        Insert *jobs*, which are due and have an id, and hand out at once those that a claim could take; all or none.

        Args:
            jobs: No more than there are seats.
            topics: As for ``claim``.
            workers: The workers that get them.
            seats: Of the first, second ... job: index into *workers*.
            lease_s: Length of the leases.
            now: Instead of the database's clock.

        Returns:
            What was handed out, and the levels that have jobs to claim now.

        Raises:
            StatementError: A job cannot be stored; UNIQUE_VIOLATION: an id exists, ask again by ``submit_again``.
        """
        used = [workers[seat] for seat in seats[: len(jobs)]]
        async with self.hot.connection() as connection:
            columns = (*job_columns(jobs, due=True), used, topics, lease_s, *label_columns(jobs))
            rows = await connection.fetch(_SUBMIT_AND_CLAIM, *columns, *self._witnessed, now)
        claims, woken = submitted_rows(rows, dict(zip(used, seats, strict=False)))
        await self._claimed(claims)
        return claims, woken

    async def submit_again(self, jobs: Sequence[SubmittedJob], *, now: datetime | None = None) -> list[Wake]:
        """
        Insert those of *jobs* that are not there yet; all or none.

        Raises:
            ConflictError: An id belongs to a job with another name, topic or args, or occurs twice in *jobs*.
        """
        return await self.unique.submit_again(jobs, now=now)

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
        now: datetime | None = None,
    ) -> list[Claim]:
        """
        Claim up to ``len(seats)`` due jobs.

        Args:
            topics: In the order in which equal priorities are served.
            workers: The workers that may get jobs.
            seats: For the first, second ... job: index into *workers*.
            lease_s: Length of the leases.
            levels: Topics and priorities, in the order in which they are served, each with the due time (Unix seconds)
                to begin at, None: the last seconds; None: a full claim, of all levels from their start.
            ageing_s: Of the topics that age: how many seconds of waiting are worth one priority.
            only: These jobs alone, also where they are set aside; None: any that is not.
            now: Instead of the database's clock.
        """
        ages: list[float | None] = []
        if ageing_s:
            ages = [ageing_s.get(topic) for topic in (topics if levels is None else (level[0] for level in levels))]
        if levels is not None:
            topics = []  # they may be thousands
        one_based = [seat + 1 for seat in seats] if len(workers) > 1 else []
        async with self.hot.connection() as connection:
            rows = await connection.fetch(
                _CLAIM, topics, len(seats), workers, one_based, lease_s, *level_columns(levels),
                ages if any(ages) else None, *self._witnessed, None if only is None else uuids(only), now,
            )  # fmt: skip
        claims = list(starmap(Claim, rows))
        await self._claimed(claims)
        return claims

    @property
    def _witnessed(self) -> Witnessed:
        return UNWITNESSED if self._knowledge is None else self._knowledge.witnessed

    async def _claimed(self, claims: Sequence[Claim]) -> None:
        if self._knowledge is not None and claims:
            await self._knowledge.claimed(claims)

    async def find_levels(
        self, after: Level, limit: int, *, topics: Sequence[str] | None = None, now: datetime | None = None
    ) -> list[Head]:
        """The levels after *after* that have waiting jobs, in the order of the index; or those of *topics*."""
        async with self.hot.connection() as connection:
            rows = await connection.fetch(_sql("find_levels"), *after, limit, topics, now)
        return [Head(Level(topic, priority), *rest) for topic, priority, *rest in rows]

    async def move(self, claims: Sequence[tuple[Fence, str]]) -> set[bytes]:
        """Move claims to other workers; returns the ids that were moved."""
        ordered = sorted(claims, key=lambda claim: claim[0].id)
        fences = [fence for fence, _ in ordered]
        async with self.hot.connection() as connection:
            rows = await connection.fetch(_sql("move_claims"), *fence_columns(fences), [heir for _, heir in ordered])
        return {row["id"] for row in rows}

    async def complete(
        self, completions: Sequence[Completion], *, keep: bool = True, now: datetime | None = None
    ) -> set[tuple[bytes, int]]:
        """
        Close attempts as COMPLETED.

        Args:
            completions: The attempts and their results.
            keep: False: the jobs are deleted.
            now: Instead of the database's clock.

        Returns:
            The attempts that are COMPLETED, by this report or an earlier copy of it. The others were stale, or deleted.
        """
        ordered = sorted(completions, key=_by_id)
        if self._knowledge is not None and not keep:
            self._knowledge.forgets((one.id, one.attempt) for one in completions)
        async with self.hot.connection() as connection:
            if keep:
                done = await _complete(connection, ordered, now)
            else:
                done = await connection.fetchval(_sql("complete_and_forget"), *fence_columns(ordered))
                if done != len(ordered):  # handlers have completed some, or other jobs wait for them
                    await connection.fetchval(_sql("forget_completed"), *fence_columns(ordered))
                    await _complete(connection, ordered, now)
        found = {(one.id, one.attempt) for one in completions}
        if done != len(found):
            fences = [*found]
            found = await self.completed_already(fences, of_parents=not keep)
            if not keep:
                there = await self.named([job for job, _ in fences])
                found |= {fence for fence in fences if fence[0] not in there}
        if self._knowledge is not None:
            self._knowledge.completed(found)
        return found

    async def completed_already(
        self, fences: Sequence[tuple[bytes, int]], *, of_parents: bool = False
    ) -> set[tuple[bytes, int]]:
        """Which of these attempts completed their jobs; *of_parents*: only of jobs that others wait for."""
        async with self.hot.connection() as connection:
            rows = await connection.fetch(_sql("completed_at_attempt"), *pair_columns(fences))
        return {(row["id"], row["attempts"]) for row in rows if row["is_parent"] or not of_parents}

    async def end(
        self,
        endings: Sequence[Ending],
        *,
        commit: HeldCommit | None = None,
        now: datetime | None = None,
    ) -> list[Ended]:
        """
        End attempts without success.

        Args:
            endings: How they ended.
            commit: Holds the commit back until the worker's processes are gone.
            now: The time; None: the database's.

        Returns:
            The result of each; a missing one was stale.
        """
        ordered = sorted(endings, key=_by_id)
        columns = *ending_columns(ordered), now
        async with self.hot.connection() as connection:
            if commit is None:
                rows = await connection.fetch(_END, *columns)
            else:
                async with connection.transaction():
                    commit.sent.set()  # set before any task that waits for `sent` continues
                    rows = await connection.fetch(_END, *columns)
                    await commit.may_commit.wait()
        return [ended_row(row) for row in rows]

    async def lockable(self, ids: Sequence[bytes]) -> set[bytes]:
        """Which of these jobs no other transaction has locked."""
        async with self.hot.connection() as connection:
            rows = await connection.fetch(_sql("lockable_jobs"), uuids(sorted(ids)))
        return {row["id"] for row in rows}

    async def extend(
        self, renewals: Sequence[Renewal], lease_s: float, *, now: datetime | None = None
    ) -> set[tuple[bytes, int]]:
        """Extend leases; returns the attempts whose lease was extended. The worker has lost a missing one."""
        ordered = sorted(renewals, key=_by_id)
        progress = [renewal.progress for renewal in ordered]
        async with self.beats.connection() as connection:
            rows = await connection.fetch(_EXTEND, *fence_columns(ordered), progress, lease_s, now)
        return {(row["id"], row["attempts"]) for row in rows}

    async def checkpoint(self, checkpoints: Sequence[Renewal]) -> set[tuple[bytes, int]]:
        """Store checkpoints (JSON text in ``progress``); returns the attempts that still hold their jobs."""
        ordered = sorted(checkpoints, key=_by_id)
        async with self.hot.connection() as connection:
            rows = await connection.fetch(
                _sql("save_checkpoints"), *fence_columns(ordered), [one.progress for one in ordered]
            )
        return {(row["id"], row["attempts"]) for row in rows}

    async def running_of(self, worker: str) -> dict[tuple[bytes, int], Running]:
        """The jobs that *worker* holds by the database, by attempt."""
        async with self.hot.connection() as connection:
            rows = await connection.fetch(_sql("running_of_worker"), worker)
        return {(identity, attempt): running_row(*rest) for identity, attempt, *rest in rows}

    async def leases_of(
        self, workers: Sequence[str], *, now: datetime | None = None
    ) -> dict[str, dict[tuple[bytes, int], Leased]]:
        """The same for several workers, with how long each lease still runs; workers that hold nothing are missing."""
        async with self.hot.connection() as connection:
            rows = await connection.fetch(_sql("leases_of_workers"), workers, now)
        found: dict[str, dict[tuple[bytes, int], Leased]] = {}
        for worker, identity, attempt, *rest, left_s in rows:
            found.setdefault(worker, {})[identity, attempt] = Leased(*running_row(*rest), left_s)
        return found

    async def named(self, ids: Sequence[bytes]) -> dict[bytes, Running]:
        """Name, topic and timeout of these jobs, whether they run or not."""
        async with self.hot.connection() as connection:
            rows = await connection.fetch(_sql("jobs_named"), uuids(ids))
        return {identity: running_row(*rest) for identity, *rest in rows}

    async def running_workers(self) -> list[str]:
        """Every worker that holds a lease."""
        async with self.hot.connection() as connection:
            rows = await connection.fetch(_sql("running_workers"))
        return [row["worker"] for row in rows]

    async def notify_work(self, sender: str) -> None:
        """Notify all listeners that there is work; the *sender* recognises its own notifications by its name."""
        async with self.query.connection() as connection:
            await connection.execute(_sql("notify_work"), sender)
