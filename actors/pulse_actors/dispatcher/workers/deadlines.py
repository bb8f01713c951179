"""
When each running handler must have ended, or reported progress: a heap of monotonic times. Pure.

A worker cancels a handler at ``timeout_s``, or after ``stall_s`` without progress; the deadline here is a little later,
to give the worker time. What happens then: see ``liveness.hung_handlers``.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, cast

import anyio

from pulse.store.rows import EndingKind
from pulse_actors.dispatcher.workers.records import HeldJob, Pair, RegisteredWorker
from pulse_actors.dispatcher.workers.registry import WorkerRegistry

SLACK_S: Final = 2.0  # a worker that kills the process of an isolated job reports it in time
BEGIN_S: Final = 30.0  # for the process of an isolated job to start: only then its time runs
KEEP_ENTRIES: Final = 1024  # from this size on ended entries are dropped whenever the heap has doubled


@dataclass(frozen=True, slots=True, order=True)
class HandlerDeadline:
    """One deadline; *kind*: how the attempt ends when it has passed."""

    at_s: float
    number: int
    worker: RegisteredWorker
    pair: Pair
    held: HeldJob
    kind: EndingKind


class HandlerDeadlines:
    """
    The deadlines of all running handlers.

    Args:
        obey_s: Time for a worker to end a handler that has passed its limit.
        heartbeat_s: By how much a progress report may be late.
    """

    def __init__(self, registry: WorkerRegistry, *, obey_s: float, heartbeat_s: float) -> None:
        self._registry = registry
        self._grace_s = obey_s + SLACK_S
        self._late_s = 2 * heartbeat_s
        self._heap: list[HandlerDeadline] = []
        self._count = 0
        self._sweep_at = KEEP_ENTRIES
        self._changed = anyio.Event()

    def started(self, worker: RegisteredWorker, bounded: Iterable[tuple[Pair, HeldJob]], now_s: float) -> None:
        """*worker* called handlers that must end in time, or report progress."""
        if not worker.watched:
            return  # its process cannot be killed from here
        for pair, held in bounded:
            held.progress_s = now_s
            if held.timeout_s is not None:
                at_s = now_s + held.timeout_s + self._grace_s + (BEGIN_S if held.apart else 0.0)
                self._add(at_s, worker, pair, held, EndingKind.TIMEOUT)
            if held.stall_s is not None:
                self._add(self._stalled_at_s(held), worker, pair, held, EndingKind.STALLED)

    def is_put_off(self, due: HandlerDeadline, now_s: float) -> bool:
        """Whether a handler has reported progress since; then its deadline is put off."""
        if due.kind is not EndingKind.STALLED or self._stalled_at_s(due.held) <= now_s:
            return False
        self._add(self._stalled_at_s(due.held), due.worker, due.pair, due.held, due.kind)
        return True

    def passed(self, now_s: float) -> HandlerDeadline | None:
        """Remove and return the earliest deadline that has passed; None: none has."""
        return heapq.heappop(self._heap) if self._heap and self._heap[0].at_s <= now_s else None

    async def wait(self, now_s: float) -> None:
        """Return when the next deadline has passed, or an earlier one was added."""
        with anyio.move_on_after(self._heap[0].at_s - now_s if self._heap else None):
            await self._changed.wait()
        self._changed = anyio.Event()

    def is_running(self, due: HandlerDeadline) -> bool:
        """Whether its handler runs, in a worker that did not say hello again: that one gets new deadlines."""
        worker = due.worker
        if due.pair in self._registry.reporting:  # it has ended, and the database has not stored that yet
            return False
        if due.held.ended:
            return False
        return worker.held.get(due.pair) is due.held and self._registry.find(worker.identity) is worker

    def _stalled_at_s(self, held: HeldJob) -> float:
        return held.progress_s + cast("float", held.stall_s) + self._grace_s + self._late_s

    def _add(self, at_s: float, worker: RegisteredWorker, pair: Pair, held: HeldJob, kind: EndingKind) -> None:
        if len(self._heap) >= self._sweep_at:
            self._sweep()
        self._count += 1
        heapq.heappush(self._heap, HandlerDeadline(at_s, self._count, worker, pair=pair, held=held, kind=kind))
        if self._heap[0].number == self._count:
            self._changed.set()

    def _sweep(self) -> None:
        """Keep one entry per limit of each running handler: a worker may report a call many times."""
        running = sorted(filter(self.is_running, self._heap), reverse=True)
        earliest = {(due.worker.identity, due.pair, due.kind): due for due in running}
        self._heap = sorted(earliest.values())  # a sorted list is a heap
        self._sweep_at = max(KEEP_ENTRIES, 2 * len(self._heap))
