"""Claims jobs in the database for workers with room, and sends them."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final, TypeVar

import structlog

from pulse.errors import StatementError, UnavailableError
from pulse.store.failures import refusal_of
from pulse.store.recovery.epochs import WENT_BACK
from pulse.store.rows import Claim, Ending, EndingKind, GroupLevel, Renewal
from pulse.store.store import Store
from pulse.system.failure_log import FailureLog
from pulse_actors.dispatcher.claims.cursors import LevelStart
from pulse_actors.dispatcher.claims.doubts import InDoubtClaims
from pulse_actors.dispatcher.claims.placement import length_of, place
from pulse_actors.dispatcher.claims.work_signal import WorkSignal
from pulse_actors.dispatcher.monitoring.counters import DispatchCounters
from pulse_actors.dispatcher.monitoring.observe import count_handed_out, topic_of
from pulse_actors.dispatcher.monitoring.unhandled_log import UnhandledLog
from pulse_actors.dispatcher.workers.records import Pair
from pulse_actors.dispatcher.workers.registry import ClaimPlan, WorkerRegistry
from pulse_actors.shared import identity as identities
from pulse_actors.shared.failures import failed_attempts

_DUE: Final = attrgetter("due_at", "id")
_PRIORITY: Final = attrgetter("priority")
ASSIGN_CHARS: Final = 1024 * 1024  # in one frame; a worker starts the first job while the next frame arrives
ISOLATE_AT_CRASHES: Final = 2  # one crash may be a neighbour's fault; after two the job runs where it kills no other
_PREVIOUS: Final = ("outcome", "reason", "worker", "progress")  # as claim_jobs returns them
UNENDED: Final = frozenset({"canceled", "lease_expired"})  # outcomes after which the handler may still run

Answer = TypeVar("Answer")

log = structlog.get_logger()


class ClaimRefusedError(Exception):
    """
    The database refuses a claim.

    Args:
        refusal: Why.
        error: The store's error.
        is_sure: False: such errors also occur when nothing is wrong with the claim.
    """

    def __init__(self, refusal: StatementError, error: UnavailableError, *, is_sure: bool) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.error = error
        self.is_sure = is_sure


class Handout:
    """
    Moves jobs from the database to workers.

    Args:
        signal: Learns of jobs that could not be handed out.
        host: This host, whose processes can be seen and killed; None: leases only.
        failures: Learns of jobs that cannot be sent.

    Attributes:
        lease_s: Length of a lease, unless the topic has a longer one.
    """

    def __init__(
        self,
        store: Store,
        registry: WorkerRegistry,
        signal: WorkSignal,
        *,
        in_doubt: InDoubtClaims,
        host: identities.Host | None,
        lease_s: float,
        counters: DispatchCounters,
        failures: FailureLog,
    ) -> None:
        self._store, self._limited = store, store.limited
        self._registry = registry
        self._signal = signal
        self._in_doubt = in_doubt
        self._host = host
        self.lease_s = lease_s
        self._counters = counters
        self._failures = failures
        self._canceled: set[Pair] = set()
        self._unhandled = UnhandledLog(registry)

    def forget(self, pairs: Iterable[Pair]) -> None:
        """These were canceled: if the claim under way brings one of them, it is not handed out."""
        self._canceled.update(pairs)

    def begin(self, plan: ClaimPlan) -> None:
        """A claim for *plan* begins: its workers are in doubt until it has failed or is in the registry."""
        self._in_doubt.expect(plan.workers)
        self._canceled.clear()

    async def claim_these(
        self, plan: ClaimPlan, starts: Sequence[tuple[GroupLevel, float]], only: Sequence[bytes]
    ) -> bool:
        """
        Claim only these jobs, even if they are set aside; returns whether any was. Call it while ``claiming``.

        Args:
            plan: Has a seat for each.
            starts: Where they wait, and from when (Unix seconds).
            only: Their ids.

        Raises:
            ClaimRefusedError: The database refuses to hand them out.
            UnavailableError: It is away.
        """
        seats = plan.seats[: len(only)]
        if any(self._signal.is_in_turn(level) for level, _ in starts):
            in_turn = self._limited.claim(starts, plan.workers, seats, self.lease_s, only=only)
            claims, _ = await self.fetch(plan, in_turn)
        else:
            levels = [LevelStart(level.topic, level.priority, from_s) for level, from_s in starts]
            answer = self._store.claim(plan.topics, plan.workers, seats, self.lease_s, levels=levels, only=only)
            claims = await self.fetch(plan, answer)
        await self.take(plan, claims)
        return bool(claims)

    async def fetch(self, plan: ClaimPlan, claim: Awaitable[Answer]) -> Answer:
        """Claim without handing out. A refused claim leaves no job held; after any other error that is unknown."""
        self.begin(plan)
        began_s = time.monotonic()
        try:
            return await claim
        except StatementError as error:
            await self._take_back(plan, error)
            raise ClaimRefusedError(error, error, is_sure=True) from error
        except UnavailableError as error:
            refusal = refusal_of(error, time.monotonic() - began_s)
            if refusal is None:
                raise
            await self._in_doubt.settle()  # before the next claim, for the same workers, ends them
            raise ClaimRefusedError(refusal, error, is_sure=False) from error

    async def _take_back(self, plan: ClaimPlan, error: StatementError) -> None:
        """Give back jobs of a claim that was committed although its answer cannot be read: no worker receives them."""
        if error.may_be_done:
            workers = [worker for worker in map(self._registry.get, plan.workers) if worker is not None]
            listed = self._registry.listed(*workers)
            held = await self._store.leases_of([worker.identity for worker in workers])
            taken = [
                Ending(*pair, identity, EndingKind.UNASSIGNED)  # no history: it may be tried each second
                for identity, found in held.items()
                for pair in found
                if pair not in listed
            ]
            for ended in await self._store.end(taken):
                self._signal.ended(ended, max(ended.delay_s, 0.001))
        self._in_doubt.confirm(plan.workers)

    def note_silence(self) -> None:
        """A worker that holds jobs and was silent for a lease gets no more jobs until it sends something."""
        for worker in self._registry.note_silence(time.monotonic() - self.lease_s):
            log.warning("worker_silent", worker=worker.identity, held=len(worker.held))

    async def take(self, plan: ClaimPlan, claims: Sequence[Claim]) -> None:
        """Send the jobs that were claimed for *plan* to its workers."""
        await self._lengthen(plan, claims)
        wanted = claims
        if self._canceled:
            wanted = [claim for claim in claims if (claim.id, claim.attempt) not in self._canceled]
        if wanted:
            await self._hand_out(plan, wanted)
        self._in_doubt.confirm(plan.workers)

    async def _lengthen(self, plan: ClaimPlan, claims: Sequence[Claim]) -> None:
        """Extend the leases of topics with longer ones: a claim opens all with the server's."""
        leases = self._registry.policies.leases
        longer = [
            Renewal(claim.id, claim.attempt, plan.workers[claim.worker], progress=None)
            for claim in claims
            if claim.topic in leases
        ]
        if longer:
            await self._store.extend(longer, self.lease_s)

    async def _hand_out(self, plan: ClaimPlan, claims: Sequence[Claim]) -> None:
        running = {claim.id for claim in claims if claim.previous is not None and self._may_run_yet(claim.previous)}
        placement = place(self._registry, plan, claims, running)
        for identity, jobs in placement.assigned.items():
            self._assign(identity, jobs)
        count_handed_out(self._counters, self._registry, placement.assigned)
        if placement.moved:
            heirs = {heir for _, _, heir in placement.moved}
            self._in_doubt.expect(heirs)
            moved = await self._store.move([(fence, heir) for _, fence, heir in placement.moved])
            for claim, _, heir in placement.moved:
                if claim.id in moved and (claim.id, claim.attempt) not in self._canceled:
                    await self._assign_or_return(heir, claim)
            self._in_doubt.confirm(heirs)
        if placement.returned:
            self._unhandled.note(placement.unhandled, time.monotonic())
            returned = await self._store.end(placement.returned)
            self._failures.note(failed_attempts(placement.returned, returned))
            for ended in returned:
                self._signal.ended(ended, max(ended.delay_s, 0.001))

    def _may_run_yet(self, previous: str) -> bool:
        """Whether the attempt before may still run on this host, in a process that is not connected."""
        outcome, error, worker, _ = json.loads(previous)
        if not is_unended(outcome, error) or not isinstance(worker, str) or self._registry.get(worker) is not None:
            return False
        return self._host is not None and identities.is_in_hand(self._host, worker)

    async def _assign_or_return(self, heir: str, claim: Claim) -> None:
        if self._registry.get(heir) is not None:
            self._assign(heir, [claim])
            count_handed_out(self._counters, self._registry, {heir: [claim]})
        else:  # it left while its job was moved to it
            await self._store.end([Ending(claim.id, claim.attempt, heir, kind=EndingKind.UNASSIGNED)])

    def _assign(self, identity: str, claims: list[Claim]) -> None:
        worker = self._registry.get(identity)
        if worker is None:  # cannot be: nothing was awaited since the placement
            return
        claims.sort(key=_DUE)
        claims.sort(key=_PRIORITY, reverse=True)  # stable: the order within a priority stays
        parts = list(assign_frames(claims, self._registry, self.lease_s))
        worker.jobs.sent(len(parts))
        self._registry.hand_over(identity, claims)
        for part in parts:
            worker.link.send("assign", None, {"jobs": part})
        worker.link.push()


def is_unended(outcome: str | None, error: str | None) -> bool:
    """Whether an attempt with such an end may still have a running handler."""
    return outcome in UNENDED or error == WENT_BACK


def assign_frames(
    claims: Sequence[Claim], registry: WorkerRegistry, lease_s: float
) -> Iterator[list[tuple[object, ...]]]:
    """
    The frames that assign *claims* to one worker.

    Args:
        claims: In the order in which they start.
        lease_s: Length of a lease, unless the topic has another one.
    """
    leases, stalls_s = registry.policies.leases, {topic: registry.stall_s(topic) for topic in {*map(topic_of, claims)}}
    for part in _parts(claims):
        yield [
            (
                claim.id,
                claim.attempt,
                claim.name,
                claim.topic,
                claim.args,
                claim.timeout_s,
                leases.get(claim.topic, lease_s),
                _extra(claim, stalls_s[claim.topic]),
            )  # as in an Assignment
            for claim in part
        ]


def _parts(claims: Sequence[Claim]) -> Iterator[Sequence[Claim]]:
    start, size = 0, 0
    for index, claim in enumerate(claims):
        size += length_of(claim)
        if size > ASSIGN_CHARS and index > start:
            yield claims[start:index]
            start, size = index, length_of(claim)
    yield claims[start:]


def _extra(claim: Claim, stall_s: float | None = None) -> dict[str, object] | None:
    if claim.attempt == 1 and claim.traceparent is None and claim.occurrence_at is None and stall_s is None:
        return None if claim.group_key is None else {"group_key": claim.group_key}  # nearly every one: None
    extra: dict[str, object] = {} if claim.group_key is None else {"group_key": claim.group_key}
    if claim.traceparent is not None:
        extra["traceparent"] = claim.traceparent
    if stall_s is not None:
        extra["stall_s"] = stall_s
    if claim.uncharged:
        extra["tries"] = claim.attempt - claim.uncharged
    if claim.occurrence_at is not None:
        extra["occurrence"] = claim.occurrence_at
    if claim.previous is not None or claim.checkpoint is not None:
        words = json.loads(claim.previous) if claim.previous is not None else [None] * len(_PREVIOUS)
        extra["previous"] = {**dict(zip(_PREVIOUS, words, strict=True)), "checkpoint": claim.checkpoint}
    if claim.crashes:
        extra["crashes"] = claim.crashes
    if claim.crashes >= ISOLATE_AT_CRASHES:
        extra["isolate"] = True
    return extra or None
