"""
What a worker may hold by the database without having been told of it: looked into before the next claim.

The answer of a claim may be lost, and the claim of a dispatcher that was killed may be committed after it. What such a
claim has taken is RUNNING, and nobody runs it: it is given back, charged to nobody.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager

import anyio
import structlog

from pulse.store.rows import Ending, EndingKind, Fence, Level, Running
from pulse.store.store import Store
from pulse_actors.dispatcher.claims.work_signal import WorkSignal
from pulse_actors.dispatcher.workers.deadlines import HandlerDeadlines
from pulse_actors.dispatcher.workers.records import Pair, RegisteredWorker
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.shared.row_writes import write_merged

log = structlog.get_logger()


class InDoubtClaims:
    """
    Claims of which it is not known whether they were made.

    Args:
        deadlines: Hears what a worker holds that it was never told of; None: nobody is killed here.
    """

    def __init__(
        self, store: Store, registry: WorkerRegistry, signal: WorkSignal, deadlines: HandlerDeadlines | None = None
    ) -> None:
        self._store = store
        self._registry = registry
        self._signal = signal
        self._deadlines = deadlines
        self._lock = anyio.Lock()  # held while jobs are between the database and the registry
        self._in_doubt: set[str] = set()  # a claim may have taken jobs for them whose answer was lost
        self._doubted: set[str] = set()  # the claim of a dispatcher before this one may have

    def claiming(self) -> AbstractAsyncContextManager[None]:
        """While jobs are on their way from the database into the registry: one claim at a time."""
        return self._lock

    def no_claim_under_way(self) -> AbstractAsyncContextManager[None]:
        """While what a worker holds is compared with the database: else a claim would look like one that was lost."""
        return self._lock

    async def wait_handed_over(self) -> None:
        """Return when what the claim that is under way has taken is in the registry."""
        async with self._lock:
            pass

    @property
    def is_claiming(self) -> bool:
        """Whether a claim is under way."""
        return self._lock.locked()

    def expect(self, workers: Iterable[str]) -> None:
        """A claim for these begins: until it is confirmed, it may have taken jobs for them."""
        self._in_doubt.update(workers)

    def confirm(self, workers: Iterable[str]) -> None:
        """The claim for these is known to have failed, or is in the registry."""
        self._in_doubt.difference_update(workers)

    @property
    def is_unconfirmed(self) -> bool:
        """Whether the answer of a claim was lost."""
        return bool(self._in_doubt)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is to be looked into."""
        return not self._in_doubt and not self._doubted

    def doubt(self, identity: str) -> None:
        """What this worker holds by the database may be more than it was ever told: look before the next claim."""
        self._doubted.add(identity)  # without waking the loop: a thousand idle workers would wake it all the time

    async def give_back_unknown(self, worker: RegisteredWorker) -> None:
        """Give back what *worker* holds by the database alone, connected or not."""
        async with self._lock:
            await self.give_back_unlisted(worker.identity, self._registry.listed(worker))

    async def give_back_unlisted(self, identity: str, listed: set[Pair]) -> dict[Pair, Running]:
        """
        Give back, uncharged, every RUNNING row of *identity* that its worker does not list: while no claim is under
        way.

        Returns:
            What the worker does hold.
        """
        running = await self._store.running_of(identity)
        self._doubted |= await self._give_back([Fence(*pair, identity) for pair in running if pair not in listed])
        return {pair: job for pair, job in running.items() if pair in listed}

    async def settle(self) -> None:
        """Give back what a claim may have taken whose answer was lost."""
        asked = self._in_doubt | self._doubted
        doubted = [one for one in map(self._registry.get, asked) if one is not None]
        # What it holds now: some of it may be completed by the time the answer is read, and is not given back then.
        listed_of = {worker.identity: self._registry.listed(worker) for worker in doubted}
        held = await self._store.leases_of([*listed_of])
        unlisted: list[Fence] = []
        for worker in doubted:
            if worker.identity in self._in_doubt:
                worker.contact.doubt()  # what was lost may commit after this look
            found = held.get(worker.identity, {})
            unlisted += [Fence(*pair, worker.identity) for pair in found if pair not in listed_of[worker.identity]]
            bounded = self._registry.learn(worker, {pair: Running(*lease[:3]) for pair, lease in found.items()})
            if self._deadlines is not None:
                self._deadlines.started(worker, bounded, time.monotonic())
        stuck = await self._give_back(unlisted)
        self._in_doubt -= asked
        self._doubted = (self._doubted - asked) | stuck

    async def _give_back(self, unlisted: Sequence[Fence]) -> set[str]:
        """Give these back; whose rows could not be written."""

        async def together(some: Sequence[Ending]) -> None:
            for ended in await self._store.end(some):
                self._signal.wake_level(Level(ended.topic, ended.priority), ended.delay_s)

        if not unlisted:
            return set()
        endings = [Ending(*fence, EndingKind.RELEASED) for fence in unlisted]
        left = await write_merged(self._store, endings, together)
        log.info("claims_given_back", workers=sorted({fence.worker for fence in unlisted}), count=len(unlisted))
        return {one.row.worker for one in left}
