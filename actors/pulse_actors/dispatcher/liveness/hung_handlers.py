"""
Kills the process of a handler that does not end in time although its worker has cancelled it.

After ``timeout_s``, or ``stall_s`` without progress, a worker takes the handler's stack and cancels it. But a plain
function in a thread cannot be cancelled, a coroutine may refuse, and C code may hold the interpreter. So the dispatcher
waits a little longer, and then: the worker gets no more jobs; its pool parent takes the stacks; jobs that have not
started are recalled; its other handlers get a bounded time to finish; then the process is killed. The hung attempt is
charged, with the stack as evidence; all others that the process held are given back, uncharged.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

import anyio
import anyio.abc
import structlog

from pulse import protocol
from pulse.store.rows import EndingKind
from pulse_actors.dispatcher.liveness.process_watch import ProcessWatch
from pulse_actors.dispatcher.liveness.stack_requests import StackRequests
from pulse_actors.dispatcher.workers.deadlines import HandlerDeadline, HandlerDeadlines
from pulse_actors.dispatcher.workers.records import ForcedEnding, Pair, RegisteredWorker
from pulse_actors.dispatcher.workers.registry import WorkerRegistry

SIBLINGS_S: Final = 5.0  # for other handlers of a process that will be killed
LOOK_S: Final = 0.05  # between two checks whether they have ended

log = structlog.get_logger()


class HungHandlers:
    """Handles handlers that have passed their limit."""

    def __init__(
        self, registry: WorkerRegistry, deadlines: HandlerDeadlines, process_watch: ProcessWatch, stacks: StackRequests
    ) -> None:
        self._registry = registry
        self._deadlines = deadlines
        self._process_watch = process_watch
        self._stacks = stacks
        self._closing: set[int] = set()  # ids of RegisteredWorker: after another hello it is a new one

    async def run(self) -> None:
        """Watch the limits until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                now_s = time.monotonic()
                while (due := self._deadlines.passed(now_s)) is not None:
                    self._due(due, now_s, tasks)
                await self._deadlines.wait(now_s)

    def _running(self, worker: RegisteredWorker) -> set[Pair]:
        return worker.held.keys() - self._registry.reporting

    def _due(self, due: HandlerDeadline, now_s: float, tasks: anyio.abc.TaskGroup) -> None:
        if not self._deadlines.is_running(due) or self._deadlines.is_put_off(due, now_s):
            return
        if id(due.worker) in self._closing:  # another handler of it hangs, too: both are handled together
            due.worker.jobs.forced_endings[due.pair] = _forced_ending(due, None)
            return
        self._closing.add(id(due.worker))
        tasks.start_soon(self._close, due)

    async def _close(self, due: HandlerDeadline) -> None:
        worker = due.worker
        worker.begin_closing()
        try:
            log.warning("handler_overdue", worker=worker.identity, handler=due.held.name, kind=due.kind.value)
            shown = await self._stacks.take(worker, due.pair)
            worker.jobs.forced_endings[due.pair] = _forced_ending(due, None if shown is None else shown.stack)
            await self._empty(worker)
            hanging = {
                pair
                for pair in worker.jobs.forced_endings.keys() & self._running(worker)
                if not worker.held[pair].ended
            }
            if hanging:
                self._process_watch.kill(worker, f"{len(hanging)} handlers hang")
                await self._process_watch.wait_buried(worker)
            else:
                worker.jobs.forced_endings.clear()
        finally:
            worker.end_closing()
            self._closing.discard(id(worker))

    async def _empty(self, worker: RegisteredWorker) -> None:
        """Recall jobs that have not started, and let the other handlers finish, within a bounded time."""
        waiting = [pair for pair, held in worker.held.items() if not held.started]
        if waiting:
            worker.link.send("stop", None, {"jobs": [(*pair, "recall") for pair in waiting]})
        with anyio.move_on_after(SIBLINGS_S):
            while not worker.jobs.forced_endings.keys() >= self._running(worker):  # noqa: ASYNC110 - rare and short
                await anyio.sleep(LOOK_S)


def note_beat(worker: RegisteredWorker, beats: Sequence[protocol.Beat], assigns: int | None, now_s: float) -> None:
    """A heartbeat of *worker* itself lists all that it holds of the frames that it had read; None: it counts none."""
    worker.contact.beat(now_s)
    listed = {(beat.id, beat.attempt) for beat in beats}
    for pair, held in worker.held.items():
        if pair in listed:
            held.unlisted = 0
        elif assigns is None or assigns >= held.assign:
            held.unlisted += 1
    note_progress(worker, beats, now_s)


def note_ended(worker: RegisteredWorker, pairs: Iterable[Pair]) -> None:
    """*worker* has reported how these ended, and must repeat it later: none of them runs any more."""
    for pair in pairs:
        held = worker.held.get(pair)
        if held is not None:
            held.ended = True


def note_progress(worker: RegisteredWorker, beats: Iterable[protocol.Beat], now_s: float) -> None:
    """Handlers of *worker* have reported progress, or saved a checkpoint."""
    for beat in beats:
        held = worker.held.get((beat.id, beat.attempt)) if beat.text is not None else None
        if held is not None:
            held.progress_s = now_s


def _forced_ending(due: HandlerDeadline, stack: str | None) -> ForcedEnding:
    if due.kind is EndingKind.TIMEOUT:
        text = f"timed out after {due.held.timeout_s:g} s"
    else:
        text = f"stalled: no progress for {due.held.stall_s:g} s"
    return ForcedEnding(due.kind, f"{text}; it did not end when it was cancelled, so its process was killed", stack)
