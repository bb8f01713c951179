"""
Handlers that outlast their time although their worker was to cancel them: their process is killed.

At ``timeout_s``, or ``stall_s`` without a word, a worker takes the handler's stack and cancels it. A plain function in
a thread cannot be cancelled, a coroutine may refuse, and C code may hold the whole interpreter. So for each started
attempt that has such a limit the dispatcher waits a little longer, and then: no more jobs for that worker; its stacks
are taken, through its pool parent; what it has not started is recalled; other handlers of it that are running may
finish, for a bounded time; then the process is killed. The attempt that hung is charged, with the stack as evidence;
whatever else was lost with the process is given back, charged to nobody.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, cast

import anyio
import anyio.abc
import structlog

from pulse import protocol
from pulse.store.rows import EndingKind
from pulse_actors.dispatcher.liveness.process_watch import ProcessWatch
from pulse_actors.dispatcher.liveness.stack_requests import StackRequests
from pulse_actors.dispatcher.workers.registry import ForcedEnding, HeldJob, Pair, RegisteredWorker, WorkerRegistry

SLACK_S: Final = 2.0  # a worker that kills a process of one job itself reports it in time
BEGIN_S: Final = 30.0  # for a process of one job to be made: only from then on its time runs
SIBLINGS_S: Final = 5.0  # for other handlers of a process that is to be killed
LOOK_S: Final = 0.05  # between two looks whether they have ended
KEEP_ENTRIES: Final = 1024  # from then on those that have ended are dropped whenever the heap has doubled

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, order=True)
class _Due:
    at_s: float
    number: int
    worker: RegisteredWorker
    pair: Pair
    held: HeldJob
    kind: EndingKind


class HungHandlers:
    """
    The limits of everything that runs, and what follows when one is passed.

    Args:
        registry: Knows which results wait to be written.
        process_watch: Kills, and buries.
        stacks: Shows where a handler hangs.
        obey_s: For a worker to end a handler that has passed its limit.
        heartbeat_s: How late news of progress may be.
    """

    def __init__(
        self,
        registry: WorkerRegistry,
        process_watch: ProcessWatch,
        stacks: StackRequests,
        *,
        obey_s: float,
        heartbeat_s: float,
    ) -> None:
        self._registry = registry
        self._process_watch = process_watch
        self._stacks = stacks
        self._grace_s = obey_s + SLACK_S
        self._late_s = 2 * heartbeat_s
        self._heap: list[_Due] = []
        self._count = 0
        self._sweep_at = KEEP_ENTRIES
        self._changed = anyio.Event()
        self._closing: set[int] = set()  # ids of Worker: one that says hello again is another

    def started(self, worker: RegisteredWorker, bounded: Iterable[tuple[Pair, HeldJob]]) -> None:
        """Handlers of *worker* were called that must end in time, or tell progress."""
        if not worker.watched:
            return  # its process cannot be killed from here
        now_s = time.monotonic()
        for pair, held in bounded:
            held.progress_s = now_s
            if held.timeout_s is not None:
                at_s = now_s + held.timeout_s + self._grace_s + (BEGIN_S if held.apart else 0.0)
                self._add(at_s, worker, pair, held, EndingKind.TIMEOUT)
            if held.stall_s is not None:
                self._add(self._stalled_at_s(held), worker, pair, held, EndingKind.STALLED)

    def _stalled_at_s(self, held: HeldJob) -> float:
        return held.progress_s + cast("float", held.stall_s) + self._grace_s + self._late_s

    def _add(self, at_s: float, worker: RegisteredWorker, pair: Pair, held: HeldJob, kind: EndingKind) -> None:
        if len(self._heap) >= self._sweep_at:
            self._sweep()
        self._count += 1
        heapq.heappush(self._heap, _Due(at_s, self._count, worker, pair, held, kind))
        if self._heap[0].number == self._count:
            self._changed.set()

    def _sweep(self) -> None:
        """Keep of each limit of what runs one entry: a worker may say again and again that a handler was called."""
        running = sorted(filter(self._is_running, self._heap), reverse=True)
        earliest = {(due.worker.identity, due.pair, due.kind): due for due in running}
        self._heap = sorted(earliest.values())  # which is a heap
        self._sweep_at = max(KEEP_ENTRIES, 2 * len(self._heap))

    async def run(self) -> None:
        """Watch the limits until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                now_s = time.monotonic()
                while self._heap and self._heap[0].at_s <= now_s:
                    self._due(heapq.heappop(self._heap), now_s, tasks)
                with anyio.move_on_after(self._heap[0].at_s - now_s if self._heap else None):
                    await self._changed.wait()
                self._changed = anyio.Event()

    def _is_running(self, due: _Due) -> bool:
        """Whether it runs, in a process that did not say hello again: then it is watched anew."""
        worker = due.worker
        if due.pair in self._registry.reporting:  # it has ended, and the database has not taken that yet
            return False
        if due.held.ended:
            return False
        return worker.held.get(due.pair) is due.held and self._process_watch.watched(worker.identity) is worker

    def _running(self, worker: RegisteredWorker) -> set[Pair]:
        return worker.held.keys() - self._registry.reporting

    def _due(self, due: _Due, now_s: float, tasks: anyio.abc.TaskGroup) -> None:
        if not self._is_running(due):
            return
        if due.kind is EndingKind.STALLED and self._stalled_at_s(due.held) > now_s:
            self._add(self._stalled_at_s(due.held), due.worker, due.pair, due.held, due.kind)
            return
        if id(due.worker) in self._closing:  # another one of its handlers hangs, too: it is judged with it
            due.worker.forced_endings[due.pair] = _forced_ending(due, None)
            return
        self._closing.add(id(due.worker))
        tasks.start_soon(self._close, due)

    async def _close(self, due: _Due) -> None:
        worker = due.worker
        worker.closing = True
        try:
            log.warning("handler_overdue", worker=worker.identity, handler=due.held.name, kind=due.kind.value)
            shown = await self._stacks.take(worker, due.pair)
            worker.forced_endings[due.pair] = _forced_ending(due, None if shown is None else shown.stack)
            await self._empty(worker)
            hanging = {
                pair for pair in worker.forced_endings.keys() & self._running(worker) if not worker.held[pair].ended
            }
            if hanging:
                self._process_watch.kill(worker, f"{len(hanging)} handlers hang")
                await self._process_watch.wait_buried(worker)
            else:
                worker.forced_endings.clear()
        finally:
            worker.closing = False
            self._closing.discard(id(worker))

    async def _empty(self, worker: RegisteredWorker) -> None:
        """Recall what has not started, and let the handlers that do not hang finish, if they do so soon."""
        waiting = [pair for pair, held in worker.held.items() if not held.started]
        if waiting:
            worker.link.send("stop", None, {"jobs": [(*pair, "recall") for pair in waiting]})
        with anyio.move_on_after(SIBLINGS_S):
            while not worker.forced_endings.keys() >= self._running(worker):  # noqa: ASYNC110 - for once in a long time
                await anyio.sleep(LOOK_S)


def note_beat(worker: RegisteredWorker, beats: Sequence[protocol.Beat], assigns: int | None, now_s: float) -> None:
    """A heartbeat of *worker* itself, which lists all that it holds of what it had read: that many frames, or None."""
    worker.beaten_s = now_s
    listed = {(beat.id, beat.attempt) for beat in beats}
    for pair, held in worker.held.items():
        if pair in listed:
            held.unlisted = 0
        elif assigns is None or assigns >= held.assign:
            held.unlisted += 1
    note_progress(worker, beats, now_s)


def note_ended(worker: RegisteredWorker, pairs: Iterable[Pair]) -> None:
    """*worker* has said how these ended, and is to say it again later: none of them runs any more."""
    for pair in pairs:
        held = worker.held.get(pair)
        if held is not None:
            held.ended = True


def note_progress(worker: RegisteredWorker, beats: Iterable[protocol.Beat], now_s: float) -> None:
    """Handlers of *worker* have told progress, or saved a checkpoint."""
    for beat in beats:
        held = worker.held.get((beat.id, beat.attempt)) if beat.text is not None else None
        if held is not None:
            held.progress_s = now_s


def _forced_ending(due: _Due, stack: str | None) -> ForcedEnding:
    if due.kind is EndingKind.TIMEOUT:
        text = f"timed out after {due.held.timeout_s:g} s"
    else:
        text = f"stalled: no progress for {due.held.stall_s:g} s"
    return ForcedEnding(due.kind, f"{text}; it did not end when it was cancelled, so its process was killed", stack)
