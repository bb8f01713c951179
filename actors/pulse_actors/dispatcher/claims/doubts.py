"""
Jobs that a worker holds by the database without having received them: looked for before the next claim.

The answer of a claim may be lost, and the claim of a killed dispatcher may commit after its end. Jobs of such a claim
are RUNNING while no worker runs them: they are given back, uncharged.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager

import anyio
import structlog

from pulse.store.rows import Ending, EndingKind, Fence, Running
from pulse.store.store import Store
from pulse_actors.dispatcher.claims.work_signal import WorkSignal
from pulse_actors.dispatcher.workers.deadlines import HandlerDeadlines
from pulse_actors.dispatcher.workers.records import Pair, RegisteredWorker
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.shared.row_writes import write_merged

log = structlog.get_logger()


class InDoubtClaims:
    """
    Claims that may or may not have been committed.

    Args:
        deadlines: Limits of handlers that started; None: no process is killed here.
    """

    def __init__(
        self, store: Store, registry: WorkerRegistry, signal: WorkSignal, deadlines: HandlerDeadlines | None = None
    ) -> None:
        self._store = store
        self._registry = registry
        self._signal = signal
        self._deadlines = deadlines
        # Held while jobs are between the database and the registry. Taken at once if it is free: else each claim would
        # wait for all that the dispatcher has to do meanwhile, and PostgreSQL for the claim.
        self._lock = anyio.Lock(fast_acquire=True)
        self._in_doubt: set[str] = set()  # workers of a claim whose answer was lost: it may have taken jobs for them
        self._doubted: set[str] = set()  # the claim of an earlier dispatcher may have

    def claiming(self) -> AbstractAsyncContextManager[None]:
        """Held while claimed jobs are on their way into the registry: one claim at a time."""
        return self._lock

    def no_claim_under_way(self) -> AbstractAsyncContextManager[None]:
        """Held while a worker's jobs are compared with the database: a claim under way would look like a lost one."""
        return self._lock

    async def wait_handed_over(self) -> None:
        """Return when the jobs of the current claim are in the registry."""
        async with self._lock:
            pass

    @property
    def is_claiming(self) -> bool:
        """Whether a claim is under way."""
        return self._lock.locked()

    def expect(self, workers: Iterable[str]) -> None:
        """A claim for these workers begins: until ``confirm``, it may have taken jobs for them."""
        self._in_doubt.update(workers)

    def confirm(self, workers: Iterable[str]) -> None:
        """The claim for these workers has failed for certain, or is in the registry."""
        self._in_doubt.difference_update(workers)

    @property
    def is_unconfirmed(self) -> bool:
        """Whether the answer of a claim was lost."""
        return bool(self._in_doubt)

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to look into."""
        return not self._in_doubt and not self._doubted

    def doubt(self, identity: str) -> None:
        """By the database this worker may hold more than it received: look before the next claim."""
        self._doubted.add(identity)  # without waking the loop: a thousand idle workers would wake it all the time

    async def give_back_unknown(self, worker: RegisteredWorker) -> None:
        """Give back jobs that *worker* holds only by the database, connected or not."""
        async with self._lock:
            await self.give_back_unlisted(worker.identity, self._registry.listed(worker))

    async def give_back_unlisted(self, identity: str, listed: set[Pair]) -> dict[Pair, Running]:
        """
        Give back, uncharged, every RUNNING row of *identity* that its worker does not list, while no claim is
        under way.

        Returns:
            What the worker really holds.
        """
        running = await self._store.running_of(identity)
        self._doubted |= await self._give_back([Fence(*pair, identity) for pair in running if pair not in listed])
        return {pair: job for pair, job in running.items() if pair in listed}

    async def settle(self) -> None:
        """Give back jobs of claims whose answer was lost."""
        asked = self._in_doubt | self._doubted
        doubted = [one for one in map(self._registry.get, asked) if one is not None]
        # Read before: jobs that complete by the time the answer arrives must not be given back.
        listed_of = {worker.identity: self._registry.listed(worker) for worker in doubted}
        held = await self._store.leases_of([*listed_of])
        unlisted: list[Fence] = []
        for worker in doubted:
            if worker.identity in self._in_doubt:
                worker.contact.doubt()  # the lost claim may commit after this look
            found = held.get(worker.identity, {})
            unlisted += [Fence(*pair, worker.identity) for pair in found if pair not in listed_of[worker.identity]]
            bounded = self._registry.learn(worker, {pair: Running(*lease[:-1]) for pair, lease in found.items()})
            if self._deadlines is not None:
                self._deadlines.started(worker, bounded, time.monotonic())
        stuck = await self._give_back(unlisted)
        self._in_doubt -= asked
        self._doubted = (self._doubted - asked) | stuck

    async def _give_back(self, unlisted: Sequence[Fence]) -> set[str]:
        """Give these back; returns workers whose rows could not be written."""

        async def together(some: Sequence[Ending]) -> None:
            for ended in await self._store.end(some):
                self._signal.ended(ended)

        if not unlisted:
            return set()
        endings = [Ending(*fence, EndingKind.RELEASED) for fence in unlisted]
        left = await write_merged(self._store, endings, together)
        log.info("claims_given_back", workers=sorted({fence.worker for fence in unlisted}), count=len(unlisted))
        return {one.row.worker for one in left}
