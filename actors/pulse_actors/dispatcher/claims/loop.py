"""Claims jobs for workers with room, and hands them over."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Final

import anyio
import structlog

from pulse.errors import ContestedError, StatementError, UnavailableError
from pulse.protocol import NewJob
from pulse.store.failures import UNIQUE_VIOLATION, ran_too_long, refusal_of, refuse_swallowed
from pulse.store.recovery.epochs import WENT_BACK
from pulse.store.rows import Claim, Ending, EndingKind, Level, Renewal, Wake
from pulse.store.store import Store
from pulse_actors.dispatcher.claims.assign_frames import ASSIGN_CHARS, frames
from pulse_actors.dispatcher.claims.cursors import FEW_TOPICS, LEVELS_MAX, SURVEY, Cursors, LevelStart
from pulse_actors.dispatcher.claims.doubts import InDoubtClaims, nobody
from pulse_actors.dispatcher.claims.due_times import DueTimes
from pulse_actors.dispatcher.claims.quarantine import Quarantine
from pulse_actors.dispatcher.claims.refused_jobs import ClaimRefusedError, RefusedJobs
from pulse_actors.dispatcher.monitoring.observe import count_assigned, count_submitted
from pulse_actors.dispatcher.workers.registry import ClaimPlan, Pair, RegisteredWorker, WorkerRegistry, length_of
from pulse_actors.runtime.actor import Backoff
from pulse_actors.shared import identity as identities
from pulse_actors.shared.json_size import excess

SHORT_CHARS: Final = 2000  # what a claim counts for short args, in bytes; it ends after 8 MiB ...
PART_CHARS: Final = 2 * 1024 * 1024  # ... which may be so many characters: such a claim may have left something
_DUE: Final = attrgetter("due_at", "id")
_PRIORITY: Final = attrgetter("priority")
UNENDED: Final = frozenset({"canceled", "lease_expired"})  # outcomes of attempts whose handlers may not have ended
DOUBT_S: Final = 1.0  # until a doubt is looked into where nobody has room, so that no claim would be made

log = structlog.get_logger()


class ClaimLoop(InDoubtClaims):
    """
    The claim loop.

    Args:
        store: The database.
        registry: Who has room.
        host: This host, whose processes can be seen and killed; None: leases only.
        lease_s: Length of a lease.
        poll_s: Longest pause between two claims while somebody has room.
        batch: Most jobs of one claim.

    Attributes:
        lease_s: Length of a lease, where its topic has no longer one.
        poll_s: As above.
    """

    def __init__(
        self,
        store: Store,
        registry: WorkerRegistry,
        host: identities.Host | None,
        *,
        lease_s: float,
        poll_s: float,
        batch: int,
    ) -> None:
        super().__init__(store, registry)
        self._host = host
        self.lease_s = lease_s
        self.poll_s = poll_s
        self._batch = batch
        self._is_at_rest = False  # all that is known was claimed, and somebody has room
        self._wake = anyio.Event()
        self._cursors = Cursors(poll_s)
        self._due = DueTimes()
        self._canceled: set[Pair] = set()
        self.quarantine = Quarantine()
        self.refused_jobs = RefusedJobs(store, registry, self)
        self.work_left: Callable[[Iterable[str]], None] = nobody

    def wake(self) -> None:
        """There may be something to claim, nobody knows where, and since when."""
        self._cursors.want_full()
        self._wake.set()

    def came(self, worker: RegisteredWorker) -> None:
        """A worker has come: topics that nobody else here serves may have jobs that are long due."""
        served = {topic for one in self._registry.workers() if one is not worker for topic in one.topics}
        if served.issuperset(worker.topics):
            self.wake_recent()
        else:
            self.wake()

    def wake_recent(self, delay_s: float = 0.0) -> None:
        """Something is due now or in *delay_s*, nobody knows at which level."""
        if delay_s <= 0:
            self._cursors.want_recent()
            self._wake.set()
        elif self._due.add(None, delay_s, time.monotonic()):
            self._wake.set()  # the loop reckons its pause anew

    def wake_level(self, level: Level, delay_s: float = 0.0, *, due_s: float | None = None) -> None:
        """
        There is something to claim at *level*, now or in *delay_s*.

        Args:
            level: Where.
            delay_s: In how many seconds.
            due_s: When it is due, Unix seconds, where that is known; it may lie long before now.
        """
        if delay_s <= 0:
            self._cursors.learn(level, due_s)
            self._wake.set()
            self.work_left((level.topic,))
        elif self._due.add(level, delay_s, time.monotonic()):
            self._wake.set()

    def room(self) -> None:
        """Somebody may have room again."""
        self._wake.set()

    def forget(self, pairs: Iterable[Pair]) -> None:
        """These were canceled: should the claim that is under way bring one of them, it is not handed out."""
        self._canceled.update(pairs)

    async def run(self) -> None:
        """Claim until cancelled."""
        backoff = Backoff()
        while True:
            try:
                more = await self.pass_once()
            except UnavailableError as error:
                await anyio.sleep(backoff.failed(error, "claim"))
                continue
            backoff.reset()
            if not more:
                await self._pause()

    async def _pause(self) -> None:
        now_s = time.monotonic()
        passed = self._due.passed(now_s)
        if self.quarantine.has_missed(now_s):
            self._cursors.want_full()
        for level in passed:
            if level is None:
                self._cursors.want_recent()
            else:
                self._cursors.learn(level)
        if passed:  # it became due during the last claim, which may have missed it
            return
        has_room = not self._registry.closed and any(
            worker.credit and worker.topics and not self.quarantine.holds(worker.topics, now_s)
            for worker in self._registry.workers()
        )
        pause_s = self._cursors.pause_s(now_s) if has_room else DOUBT_S
        pause_s = self._due.cut(pause_s, now_s)
        self._is_at_rest = has_room
        with anyio.move_on_after(pause_s):
            await self._wake.wait()
        self._is_at_rest = False
        self._wake = anyio.Event()

    async def pass_once(self) -> bool:
        """One claim for each set of topics; whether one of them brought all it could, so that more may be waiting."""
        async with self.lock:  # who holds it may be taking the room that is there
            if self._in_doubt or self._doubted:
                await self._settle_doubts()
        self._note_silence()
        began_s = time.monotonic()
        plans = [plan for plan in self._registry.plan(self._batch) if not self.quarantine.holds(plan.topics, began_s)]
        full = bool(plans) and self._cursors.is_full_due(began_s)
        window = self._cursors.window_due(began_s) if plans and not full else None
        if full:
            self._cursors.full_begins()
        elif window is not None:
            self._cursors.window_begins()
        is_done, cost_s = False, 0.0
        unbelieved: list[UnavailableError] = []
        try:
            more, cost_s = await self._claim_all(plans, window, unbelieved, full=full)
            is_done = True
        finally:
            ended_s = time.monotonic()
            # One that took too long has its cost, too: meanwhile what is known can be claimed.
            since_s = ended_s - cost_s if is_done else began_s
            if full:
                self._cursors.full_done(since_s, ended_s)
                if unbelieved or not is_done:
                    self._cursors.want_full()
            if window is not None:
                self._cursors.window_done(window, since_s, ended_s)
        if unbelieved:
            raise unbelieved[0]
        return more

    async def _claim_all(
        self, plans: Sequence[ClaimPlan], window: int | None, unbelieved: list[UnavailableError], *, full: bool
    ) -> tuple[bool, float]:
        """
        Claim for each plan; what one of them heard and is not believed yet keeps no other from it.

        Returns:
            Whether more may be waiting, and what it cost to look for it where nobody has told of any, seconds.
        """
        more, cost_s = False, 0.0
        if full and any(len(plan.topics) > FEW_TOPICS for plan in plans):
            cost_s = await self._survey()
        plan_again = partial(self._registry.plan, self._batch, again=True)
        for plan in self.quarantine.divided(plans, plan_again, time.monotonic()):
            starts, version = self._starts(plan, window, full=full), self._cursors.begin(time.monotonic())
            if starts == []:
                continue
            async with self.lock:
                if self._registry.closed:
                    return False, cost_s
                is_more, took_s = await self._claim_readable(plan, starts, version, unbelieved)
            more |= is_more
            if starts is None or window is not None:
                cost_s += took_s
        return more, cost_s

    def _starts(self, plan: ClaimPlan, window: int | None, *, full: bool) -> list[LevelStart] | None:
        """Where the claim of *plan* begins; None: at the start of everything."""
        if full and len(plan.topics) <= FEW_TOPICS:
            return None
        if window is None:
            if len(plan.topics) <= FEW_TOPICS and self._cursors.is_empty(plan.topics, time.monotonic()):
                return []
            return self._cursors.starts(plan.topics, self._registry.policies.ageing_s, time.time())
        return self._cursors.window(plan.topics, window, time.time())

    async def _survey(self) -> float:
        """Look for levels that nobody has told of, the next ones; seconds that it took."""
        began_s = time.monotonic()
        heads = await self._store.find_levels(self._cursors.survey_from(), SURVEY)
        served = {topic for worker in self._registry.workers() for topic in worker.topics}
        for head in heads:
            if head.is_due and head.level.topic in served:
                self._cursors.found(head.level, head.due_at)
        self._cursors.surveyed([head.level for head in heads])
        return time.monotonic() - began_s

    async def _claim_readable(
        self, plan: ClaimPlan, starts: list[LevelStart] | None, version: int, unbelieved: list[UnavailableError]
    ) -> tuple[bool, float]:
        """
        Claim; where the database refuses one of the jobs, the others; else leave its topics alone for a while.

        Returns:
            Whether more may be waiting, and what the claim cost, seconds: a refusal tells nothing of that.
        """
        began_s, is_full = time.monotonic(), starts is None
        try:
            claims = await self._fetch(plan, plan.seats, starts, ageing_s=self._registry.policies.ageing_s)
        except ClaimRefusedError as error:
            if not error.is_sure and not self.quarantine.is_refused(plan.topics, full=is_full):
                unbelieved.append(error.error)
                return False, 0.0
            if await self.refused_jobs.search(plan, starts):
                self._cursors.want_full()  # this one was it, and the search has seen the first of it
                return True, 0.0
            self._bar(plan, error.error, lasts=True, full=is_full)
            return False, 0.0
        except ContestedError as error:
            if not ran_too_long(error):
                raise
            self._bar(plan, error, lasts=False, full=is_full)
            return False, time.monotonic() - began_s
        self.quarantine.succeeded(plan.topics, full=is_full)
        more = await self._claimed(plan, starts, version, claims)
        return more, time.monotonic() - began_s

    def _bar(self, plan: ClaimPlan, error: UnavailableError, *, lasts: bool, full: bool) -> None:
        log.error("claim_failed", topics=plan.topics[:FEW_TOPICS], error=error.message)
        self.wake_recent(self.quarantine.failed(plan.topics, time.monotonic(), lasts=lasts, full=full))

    async def claim_these(self, plan: ClaimPlan, starts: Sequence[LevelStart], only: Sequence[bytes]) -> bool:
        """
        Claim these jobs alone, also such as are set aside; whether one was. Call it with the lock.

        Raises:
            ClaimRefusedError: The database refuses to hand them out.
            UnavailableError: It is away.
        """
        claims = await self._fetch(plan, plan.seats[: len(only)], starts, only=only)
        await self._take(plan, claims)
        return bool(claims)

    async def _fetch(
        self,
        plan: ClaimPlan,
        seats: Sequence[int],
        starts: Sequence[LevelStart] | None,
        *,
        ageing_s: Mapping[str, float] | None = None,
        only: Sequence[bytes] | None = None,
    ) -> list[Claim]:
        """Claim, and no more: of what is refused nobody holds anything; of all else that fails that is not known."""
        self._in_doubt.update(plan.workers)  # until the claim is known to have failed, or is in the book
        self._canceled.clear()
        began_s = time.monotonic()
        try:
            return await self._store.claim(
                plan.topics, plan.workers, seats, self.lease_s, levels=starts, ageing_s=ageing_s, only=only
            )
        except StatementError as error:
            await self._take_back(plan, error)
            raise ClaimRefusedError(error, error, is_sure=True) from error
        except UnavailableError as error:
            refusal = refusal_of(error, time.monotonic() - began_s)
            if refusal is None:
                raise
            await self._settle_doubts()  # before the next claim for the same workers ends them
            raise ClaimRefusedError(refusal, error, is_sure=False) from error

    async def _claimed(
        self, plan: ClaimPlan, starts: list[LevelStart] | None, version: int, claims: Sequence[Claim]
    ) -> bool:
        """Hand out what a claim has brought; whether there may be more."""
        ageing_s = self._registry.policies.ageing_s
        more = len(claims) == len(plan.seats) or sum(map(_weight, claims)) > PART_CHARS
        self._cursors.claimed(claims, more=more)
        await self._take(plan, claims)
        if more:
            self.work_left(plan.topics)
            return True
        if claims and ageing_s and not ageing_s.keys().isdisjoint(plan.topics):
            return True  # what another host has locked meanwhile counted as work: look again
        self._cursors.exhausted(plan.topics if starts is None else starts, version)
        self._cursors.emptied(plan.topics)
        return starts is not None and len(plan.topics) > FEW_TOPICS and len(starts) == LEVELS_MAX  # there may be others

    async def _take_back(self, plan: ClaimPlan, error: StatementError) -> None:
        """What a refused claim took although it was refused: its answer cannot be read, so no worker will see it."""
        if error.may_be_done:
            workers = [worker for worker in map(self._registry.get, plan.workers) if worker is not None]
            listed = self._registry.reporting.union(*(worker.held for worker in workers))
            held = await self._store.leases_of([worker.identity for worker in workers])
            taken = [
                Ending(*pair, identity, EndingKind.UNASSIGNED)  # no history: a job that stays so is tried each second
                for identity, found in held.items()
                for pair in found
                if pair not in listed
            ]
            for ended in await self._store.end(taken):
                self.wake_level(Level(ended.topic, ended.priority), max(ended.delay_s, 0.001))
        self._in_doubt.difference_update(plan.workers)

    async def submit(self, jobs: Sequence[NewJob]) -> list[Wake]:
        """
        Insert *jobs*, all or none; where workers wait for such as they are, hand them out in the same statement.

        Returns:
            The levels at which there is something to claim now.

        Raises:
            UnavailableError: The database is away.
            StatementError: As of ``Store.submit``.
        """
        if not self._may_hand_out(jobs):
            return await self._submit(jobs)
        async with self.lock:
            plan = self._plan_for(jobs)
            if plan is None:
                return await self._submit(jobs)
            try:
                woken = await self._submit_and_claim(plan, jobs)
            finally:
                if self._in_doubt:
                    self._wake.set()  # to settle it
        return await self._submit(jobs) if woken is None else woken  # without the lock: nothing is handed out

    async def _submit(self, jobs: Sequence[NewJob]) -> list[Wake]:
        woken = await self._store.submit(jobs)
        count_submitted(self._registry.counters, woken)
        refuse_swallowed(len(jobs), sum(wake.jobs for wake in woken))
        return woken

    def _may_hand_out(self, jobs: Sequence[NewJob]) -> bool:
        """Whether jobs like these may begin before anything else does: nothing waits that is known."""
        if not self._is_at_rest or self._wake.is_set() or self.lock.locked() or self._in_doubt or self._doubted:
            return False
        if len(jobs) > self._batch or any(job.run_at is not None or job.delay_s for job in jobs):
            return False
        return all(excess(job.args, ASSIGN_CHARS // len(jobs)) is None for job in jobs)

    def _plan_for(self, jobs: Sequence[NewJob]) -> ClaimPlan | None:
        self._note_silence()
        topics = {job.topic for job in jobs if job.topic is not None}
        for plan in self._registry.plan(len(jobs)):
            if len(plan.seats) == len(jobs) and len(plan.topics) <= FEW_TOPICS and topics.issubset(plan.topics):
                return plan
        return None

    async def _submit_and_claim(self, plan: ClaimPlan, jobs: Sequence[NewJob]) -> list[Wake] | None:
        """As ``submit``; None: the database refuses it. It may take the jobs, where a claim sets aside what is bad."""
        self._in_doubt.update(plan.workers)  # as for a claim
        self._canceled.clear()
        try:
            claims, woken = await self._store.submit_and_claim(
                jobs, plan.topics, plan.workers, plan.seats, self.lease_s
            )
        except StatementError as error:
            if error.may_be_done:
                raise
            self._in_doubt.difference_update(plan.workers)  # nothing was done
            if error.sqlstate == UNIQUE_VIOLATION:  # it does not take them either
                raise
            return None
        count_submitted(self._registry.counters, woken, claims)
        await self._take(plan, claims)
        refuse_swallowed(len(jobs), len(claims) + len(woken))
        return woken

    async def _take(self, plan: ClaimPlan, claims: Sequence[Claim]) -> None:
        """What was claimed for *plan* goes to its workers."""
        await self._lengthen(plan, claims)
        wanted = [claim for claim in claims if (claim.id, claim.attempt) not in self._canceled]
        if wanted:
            await self._hand_out(plan, wanted)
        self._in_doubt.difference_update(plan.workers)

    def _note_silence(self) -> None:
        for worker in self._registry.note_silence(time.monotonic() - self.lease_s):
            log.warning("worker_silent", worker=worker.identity, held=len(worker.held))

    async def _lengthen(self, plan: ClaimPlan, claims: Sequence[Claim]) -> None:
        """Leases of topics that have longer ones of their own: a claim opens all with the server's."""
        leases = self._registry.policies.leases
        longer = [
            Renewal(claim.id, claim.attempt, plan.workers[claim.worker], None)
            for claim in claims
            if claim.topic in leases
        ]
        if longer:
            await self._store.extend(longer, self.lease_s)

    async def _hand_out(self, plan: ClaimPlan, claims: Sequence[Claim]) -> None:
        running = {claim.id for claim in claims if claim.previous is not None and self._may_run_yet(claim.previous)}
        placement = self._registry.place(plan, claims, running)
        for identity, jobs in placement.assigned.items():
            self._assign(identity, jobs)
        if placement.moved:
            heirs = {heir for _, _, heir in placement.moved}
            self._in_doubt.update(heirs)
            moved = await self._store.move([(fence, heir) for _, fence, heir in placement.moved])
            for claim, _, heir in placement.moved:
                if claim.id in moved and (claim.id, claim.attempt) not in self._canceled:
                    await self._assign_or_return(heir, claim)
            self._in_doubt.difference_update(heirs)
        if placement.returned:
            for ended in await self._store.end(placement.returned):
                self.wake_level(Level(ended.topic, ended.priority), max(ended.delay_s, 0.001))

    def _may_run_yet(self, previous: str) -> bool:
        """Whether the attempt before may run on this host yet, in a process that is not connected."""
        outcome, error, worker, _ = json.loads(previous)
        if not is_unended(outcome, error) or not isinstance(worker, str) or self._registry.get(worker) is not None:
            return False
        return self._host is not None and identities.is_in_hand(self._host, worker)

    async def _assign_or_return(self, heir: str, claim: Claim) -> None:
        if self._registry.get(heir) is not None:
            self._assign(heir, [claim])
        else:  # it left while its job was passed on to it
            await self._store.end([Ending(claim.id, claim.attempt, heir, EndingKind.UNASSIGNED)])

    def _assign(self, identity: str, claims: list[Claim]) -> None:
        worker = self._registry.get(identity)
        if worker is None:  # cannot be: nothing was awaited since the placement
            return
        claims.sort(key=_DUE)
        claims.sort(key=_PRIORITY, reverse=True)  # the order within a priority stays
        parts = list(frames(claims, self._registry.policies, self.lease_s))
        worker.assigns += len(parts)
        self._registry.hand_over(identity, claims)
        count_assigned(self._registry.counters, worker, claims)
        for part in parts:
            worker.link.send("assign", None, {"jobs": part})


def is_unended(outcome: str | None, error: str | None) -> bool:
    """Whether the handler of an attempt that ended so may not have ended."""
    return outcome in UNENDED or error == WENT_BACK


def _weight(claim: Claim) -> int:
    return max(SHORT_CHARS, length_of(claim))
