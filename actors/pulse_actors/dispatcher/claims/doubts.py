"""
What a worker may hold by the database without having been told of it: looked into before the next claim.

The answer of a claim may be lost, and the claim of a dispatcher that was killed may be committed after it. What such a
claim has taken is RUNNING, and nobody runs it: it is given back, charged to nobody.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import anyio
import structlog

from pulse.store.rows import Ending, EndingKind, Fence, Level, Running
from pulse.store.store import Store
from pulse_actors.dispatcher.workers.registry import DOUBTFUL_BEATS, HeldJob, Pair, RegisteredWorker, WorkerRegistry
from pulse_actors.shared.row_writes import write_merged

log = structlog.get_logger()


class InDoubtClaims(ABC):
    """
    A part of the claims.

    Args:
        store: The database.
        registry: What workers were told of.

    Attributes:
        lock: Held while jobs are between the database and the book. A worker's hello waits for it, so that it never
            takes a claim that is under way for one that was lost.
        learned: Hears what a worker holds that it was never told of.
    """

    def __init__(self, store: Store, registry: WorkerRegistry) -> None:
        self._store = store
        self._registry = registry
        self.lock = anyio.Lock()
        self._in_doubt: set[str] = set()  # a claim may have taken jobs for them whose answer was lost
        self._doubted: set[str] = set()  # the claim of a dispatcher before this one may have
        self.learned: Callable[[RegisteredWorker, list[tuple[Pair, HeldJob]]], None] = nobody

    @abstractmethod
    def wake_level(self, level: Level, delay_s: float = 0.0, *, due_s: float | None = None) -> None:
        """There is something to claim at *level*."""

    def doubt(self, identity: str) -> None:
        """What this worker holds by the database may be more than it was ever told: look before the next claim."""
        self._doubted.add(identity)  # without waking the loop: a thousand idle workers would wake it all the time

    async def give_back_unknown(self, worker: RegisteredWorker) -> None:
        """Give back what *worker* holds by the database alone, connected or not."""
        async with self.lock:
            await self.give_back_unlisted(worker.identity, self._registry.reporting.union(worker.held))

    async def give_back_unlisted(self, identity: str, listed: set[Pair]) -> dict[Pair, Running]:
        """
        Give back, uncharged, every RUNNING row of *identity* that its worker does not list; call it with the lock.

        Returns:
            What the worker does hold.
        """
        running = await self._store.running_of(identity)
        self._doubted |= await self._give_back([Fence(*pair, identity) for pair in running if pair not in listed])
        return {pair: job for pair, job in running.items() if pair in listed}

    async def _settle_doubts(self) -> None:
        """Give back what a claim may have taken whose answer was lost."""
        asked = self._in_doubt | self._doubted
        doubted = [one for one in map(self._registry.get, asked) if one is not None]
        # What it holds now: some of it may be completed by the time the answer is read, and is not given back then.
        listed_of = {worker.identity: self._registry.reporting.union(worker.held) for worker in doubted}
        held = await self._store.leases_of([*listed_of])
        unlisted: list[Fence] = []
        for worker in doubted:
            if worker.identity in self._in_doubt:
                worker.doubtful_beats = DOUBTFUL_BEATS  # what was lost may commit after this look
            found = held.get(worker.identity, {})
            unlisted += [Fence(*pair, worker.identity) for pair in found if pair not in listed_of[worker.identity]]
            running = {pair: Running(*lease[:3]) for pair, lease in found.items()}
            self.learned(worker, self._registry.learn(worker, running))
        stuck = await self._give_back(unlisted)
        self._in_doubt -= asked
        self._doubted = (self._doubted - asked) | stuck

    async def _give_back(self, unlisted: Sequence[Fence]) -> set[str]:
        """Give these back; whose rows could not be written."""

        async def together(some: Sequence[Ending]) -> None:
            for ended in await self._store.end(some):
                self.wake_level(Level(ended.topic, ended.priority), ended.delay_s)

        if not unlisted:
            return set()
        endings = [Ending(*fence, EndingKind.RELEASED) for fence in unlisted]
        left = await write_merged(self._store, endings, together)
        log.info("claims_given_back", workers=sorted({fence.worker for fence in unlisted}), count=len(unlisted))
        return {one.row.worker for one in left}


def nobody(*_told: object) -> None:
    """Whom nobody has put in: nothing is to be done of what is told."""
