"""
The ledger: all attempts that a handler process holds, and what must still be reported of them. Pure: no IO, no clock.

An attempt is held from its ``assign`` until the ``reported`` that answers its result. In between it is queued, then
started, then its result waits to be sent, then it is in an unanswered report; when the connection breaks, results of
unanswered reports wait again. Each result is sent until it is answered, once per connection; so the server may get one
twice, and its fence makes the second one harmless.

Nothing starts before the server has been sent its name: after the death of this process, attempts that were not named
are given back uncharged. So ``take_startable`` and the writing of ``started`` belong together, and ``put_back`` undoes
the first when the second failed.

Isolated attempts wait aside until cells can be made: they are not named before, since from then on their handlers' time
counts. Attempts of handlers that take batches wait for others of theirs (``batch_queue``), and start together: a batch
takes one place, like a single attempt. Batches and other attempts take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from pulse.app.handler import Handler
from pulse.app.outcome import RELEASED, Detail, Outcome
from pulse.protocol import Assignment
from pulse.system.failure_log import FailedAttempt
from pulse.worker.execution.attempt import HUNG, Attempt, Pair, Phase, StopReason, runs_alone, wants_isolation
from pulse.worker.execution.batch import put_alone
from pulse.worker.session.batch_queue import BatchQueue
from pulse.worker.session.checkpoints import Checkpoints
from pulse.worker.session.heartbeat import HeartbeatBody

__all__ = ["Ledger"]

WireResult: TypeAlias = "tuple[bytes, int, str, Detail] | tuple[bytes, int, str, Detail, dict[str, object]]"
OVERHEAD_BYTES: Final = 96  # bytes of a result on the wire beside its text: id, numbers, names, keys
_PLAIN_RESULT: Final = 4  # elements; a fifth one is extra
_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})
_FAILURES: Final = {"error": "error", "retry": "retry", "discard": "discarded", "crash": "crashed"}  # in pulse.attempts


class Ledger:
    """
    Bookkeeping of one handler process.

    Args:
        handlers: By name.
        concurrency: Handlers that run at once.
    """

    def __init__(self, handlers: Mapping[str, Handler], concurrency: int) -> None:
        self._handlers = dict(handlers)
        self._concurrency = concurrency
        self._held: dict[Pair, Attempt] = {}
        self._queue: deque[Attempt] = deque()
        self._aside: deque[Attempt] = deque()  # they wait until cells can be made
        self._cells_ready = False
        self._running = 0
        self._beyond = 0  # attempts in running batches beside their first ones
        self._reserved = 0  # places of batches that fill
        self._is_turn_of_batches = True
        self.batches: Final = BatchQueue()
        self._results: list[WireResult] = []
        self._suspects: list[WireResult] = []  # results of a refused report: each is sent alone, to find the bad one
        self._under_way: dict[int, list[WireResult]] = {}
        self._unsaved: dict[Pair, WireResult] = {}  # results that wait for their checkpoints
        self.checkpoints: Final = Checkpoints()
        self.draining = False

    @property
    def held(self) -> int:
        """How many attempts are held."""
        return len(self._held)

    @property
    def running(self) -> int:
        """How many handlers run."""
        return self._running

    @property
    def is_full(self) -> bool:
        """Whether as many handlers run as may, with the batches that fill."""
        return self._running + self._reserved >= self._concurrency

    @property
    def room_for_batches(self) -> int:
        """How many jobs to hold beyond the number of handlers: those in batches, and those that may still join one."""
        if self._running >= self._concurrency:
            return self._beyond
        batches = self.batches.filling
        return self._beyond + sum(one.size - 1 for one in batches.values())  # one has a place anyway

    def waits_for_cells(self) -> bool:
        """Whether attempts wait until cells can be made."""
        return any(attempt.phase == Phase.QUEUED for attempt in self._aside)

    def assign(self, jobs: Sequence[Assignment], now_s: float) -> None:
        """Add jobs; those that cannot run here get their results at once."""
        for job in jobs:
            pair = (job.id, job.attempt)
            if pair in self._held:
                continue
            handler = self._handlers.get(job.name)
            attempt = self._held[pair] = Attempt(job, handler, now_s)
            if handler is None:
                self._finish(attempt, Outcome("error", f'this worker has no handler named "{job.name}"'))
            elif self.draining:
                self._finish(attempt, RELEASED)
            elif handler.isolate or (job.extra is not None and wants_isolation(job.extra)):
                attempt.isolated = True
                (self._queue if self._cells_ready else self._aside).append(attempt)
            elif handler.batch is not None and not runs_alone(attempt):
                self.batches.add(attempt, handler, now_s)
            else:
                if handler.batch is not None:
                    put_alone(attempt)
                self._queue.append(attempt)

    def cells_ready(self) -> None:
        """Cells can be made: attempts that waited for them go on, ahead of later ones."""
        self._cells_ready = True
        self._queue.extendleft(reversed(self._aside))
        self._aside.clear()

    def cells_gone(self) -> None:
        """No cells can be made at the moment."""
        self._cells_ready = False
        self._aside.extend(attempt for attempt in self._queue if attempt.isolated)
        self._queue = deque(attempt for attempt in self._queue if not attempt.isolated)

    def cells_failed(self, reason: str) -> None:
        """No cells can be made: attempts that wait for one fail."""
        aside, self._aside = self._aside, deque()
        for attempt in aside:
            if attempt.phase == Phase.QUEUED:
                self._finish(attempt, Outcome("error", f"no process could be started for it: {reason}"))

    def take_startable(self) -> list[Attempt]:
        """
        The attempts to start now, in the order in which they arrived; from here on they count as running.

        A batch that fills has its place already: otherwise jobs that come later, to fill it, could take that.
        """
        taken: list[Attempt] = []
        queue, batches = self._queue, self.batches.filling
        reserved, is_turn_of_batches = 0, self._is_turn_of_batches
        while self._running + reserved < self._concurrency:
            if len(batches) > reserved and (is_turn_of_batches or not queue):
                is_turn_of_batches = False
                found = self._start_batch()
                taken += found
                reserved += not found
            elif queue:
                attempt = queue.popleft()
                if attempt.phase == Phase.QUEUED:
                    attempt.phase = Phase.STARTED
                    self._running += 1
                    taken.append(attempt)
                    is_turn_of_batches = self._is_turn_of_batches = True
            else:
                break
        self._reserved = reserved
        return taken

    def put_back(self, attempts: Sequence[Attempt]) -> None:
        """Undo ``take_startable``: the server was not reached."""
        for attempt in reversed(attempts):
            self._leave(attempt)
            attempt.phase = Phase.QUEUED
            if attempt.stopped is not None or self.draining:
                self._finish(attempt, RELEASED)
            elif attempt.batch is None or attempt.handler is None:
                self._queue.appendleft(attempt)
            elif runs_alone(attempt):
                put_alone(attempt)
                self._queue.appendleft(attempt)
            else:
                self.batches.put_back(attempt, attempt.handler)

    def ended(self, attempt: Attempt, ending: Outcome) -> None:
        """The handler of a started attempt has really ended."""
        self._leave(attempt)
        self._finish(attempt, ending)

    def _start_batch(self) -> Sequence[Attempt]:
        batch = self.batches.take()
        if batch is None:
            return ()
        for attempt in batch.attempts:
            attempt.start()
        self._is_turn_of_batches = False
        self._running += 1
        self._beyond += len(batch.attempts) - 1
        return batch.attempts

    def _leave(self, attempt: Attempt) -> None:
        """It does not run any more; the last one of a batch frees its place."""
        batch = attempt.batch
        if batch is None:
            self._running -= 1
        elif batch.leave():
            self._running -= 1
            self._beyond -= len(batch.attempts) - 1

    def ended_apart(self, attempt: Attempt, ending: Outcome, used: Mapping[str, object]) -> None:
        """The same for an isolated attempt; *used*: more fields of ``extra``."""
        self._running -= 1
        self._finish_with_extra(attempt, ending, used)

    def stop(self, pair: Pair, reason: StopReason) -> Attempt | None:
        """
        Stop one attempt.

        Returns:
            The attempt if its handler must be interrupted; None: nothing to do (any more).
        """
        attempt = self._held.get(pair)
        if attempt is None:
            return None
        if reason == "lost":
            if attempt.fence is not None and attempt.fence.phase:
                return None  # it has completed its job itself, or is about to
            attempt.lost = True
        match attempt.phase:
            case Phase.QUEUED:
                self._give_back(attempt)
            case Phase.STARTED if attempt.stopped is None:
                attempt.stopped = reason
                return attempt
            case _:
                pass
        return None

    def started_attempt(self, pair: Pair) -> Attempt | None:
        """The attempt, if its handler runs, stopped or not."""
        attempt = self._held.get(pair)
        return attempt if attempt is not None and attempt.phase == Phase.STARTED else None

    def running_attempt(self, pair: Pair) -> Attempt | None:
        """The attempt, if its handler runs and was not stopped."""
        attempt = self.started_attempt(pair)
        return attempt if attempt is not None and attempt.stopped is None else None

    def recall(self, pair: Pair) -> None:
        """Give one attempt back if it has not started."""
        attempt = self._held.get(pair)
        if attempt is not None and attempt.phase == Phase.QUEUED:
            self._give_back(attempt)

    def _give_back(self, attempt: Attempt) -> None:
        self.batches.forget(attempt)
        self._finish(attempt, RELEASED)

    def give_back_waiting(self) -> bool:
        """Give back waiting attempts while all slots are taken: another process may have one; whether any was."""
        waiting = [attempt for attempt in self._queue if attempt.phase == Phase.QUEUED]
        if not self.is_full:
            return False
        self._queue.clear()
        if self._running >= self._concurrency:
            waiting += self.batches.clear()
        for attempt in waiting:
            self._finish(attempt, RELEASED)
        return bool(waiting)

    def give_back_lapsed(self, now_s: float, confirmed_s: float) -> int:
        """Give back waiting attempts whose leases have passed: they may run elsewhere; how many (monotonic times)."""
        waiting = [attempt for attempt in self._held.values() if attempt.phase == Phase.QUEUED]
        lapsed = [one for one in waiting if now_s > max(one.lease_until_s, confirmed_s + one.job.lease_s)]
        for attempt in lapsed:
            self._give_back(attempt)
        return len(lapsed)

    def drain(self) -> None:
        """Start nothing any more: give back waiting attempts, and any that still arrive."""
        self.draining = True
        queue, self._queue, self._aside = [*self._aside, *self._queue, *self.batches.clear()], deque(), deque()
        for attempt in queue:
            if attempt.phase == Phase.QUEUED:
                self._finish(attempt, RELEASED)

    def started(self) -> list[Attempt]:
        """The attempts whose handlers run."""
        return [attempt for attempt in self._held.values() if attempt.phase == Phase.STARTED]

    def running_list(self) -> list[Pair]:
        """The list of held attempts for hello."""
        return list(self._held)

    def named(self) -> list[Attempt]:
        """Attempts that were reported as started: a restarted server gets them again."""
        return [attempt for attempt in self._held.values() if attempt.named]

    def beat_sheet(self, now_s: float) -> HeartbeatBody:
        """The contents of a heartbeat now."""
        sheet = HeartbeatBody(now_s)
        for attempt in self._held.values():
            sheet.add(attempt)
        return sheet

    def take_checkpoints(self, number: int, max_bytes: int) -> list[tuple[bytes, int, str]]:
        """The checkpoints for frame *number*, as many as fit into *max_bytes*; empty when there are none."""
        return self.checkpoints.take(number, max_bytes) if self.checkpoints.new else []

    def checkpoints_answered(self, number: int, *, kept: bool = True, dropped: Collection[Pair] = ()) -> None:
        """The server has those of frame *number*, but for *dropped* ones; those that are not *kept* are sent again."""
        some = self.checkpoints
        self._saved(some.answered(number, dropped) if kept else some.refused(number, passing=True))

    def _saved(self, attempts: Iterable[Attempt]) -> None:
        """The checkpoints of these are settled: their results may be sent."""
        for attempt in attempts:
            result = self._unsaved.pop(attempt.pair, None)
            if result is not None:
                self._results.append(result)

    def take_report(self, number: int, max_bytes: int) -> list[WireResult]:
        """
        The results for report *number*, as many as fit into *max_bytes*; empty when there are none.

        Call it until it is empty; the results stay taken until ``reported``, ``refused`` or ``disconnected``.
        """
        taken = [self._suspects.pop()] if self._suspects else self._take_results(max_bytes)
        if taken:
            self._under_way[number] = taken
        return taken

    def reported(self, number: int) -> list[FailedAttempt]:
        """
        The server has report *number*; stale results free their slots like any other.

        Returns:
            The failures among its results, stale ones too.
        """
        failed: list[FailedAttempt] = []
        for result in self._under_way.pop(number, ()):
            attempt = self._held.pop(result[:2], None)
            if result[2] != "ok" and attempt is not None and result[2] in _FAILURES:
                failed.append(_failed(attempt, result))
        return failed

    def refused(self, number: int, *, passing: bool) -> list[Pair]:
        """
        The server refused frame *number*, of a report or of checkpoints.

        Args:
            number: Of the frame.
            passing: The cause is temporary: send the same again later.

        Returns:
            Attempts whose result cannot be stored: it was refused alone. They are no longer held.
        """
        self._saved(self.checkpoints.refused(number, passing=passing))
        results = self._under_way.pop(number, [])
        if passing:
            self._results[:0] = results
        elif len(results) > 1:
            self._suspects += results
        else:
            return [pair for result in results if self._held.pop(pair := result[:2], None)]
        return []

    def disconnected(self) -> None:
        """The connection is lost: unanswered results wait again, the oldest first."""
        self.checkpoints.disconnected()
        under_way, self._under_way = self._under_way, {}
        self._results[:0] = [result for number in sorted(under_way) for result in under_way[number]]

    def _finish(self, attempt: Attempt, ending: Outcome) -> None:
        attempt.phase = Phase.ENDED
        attempt.task = None
        if attempt.progress is None and attempt.stopped is None and attempt.checkpoint is None:  # nearly every one
            job = attempt.job
            self._results.append((job.id, job.attempt, ending.outcome, ending.detail))
        else:
            self._finish_with_extra(attempt, ending)

    def _finish_with_extra(self, attempt: Attempt, ending: Outcome, used: Mapping[str, object] = _NOTHING) -> None:
        attempt.phase = Phase.ENDED
        attempt.task = None
        result: WireResult = (*attempt.pair, ending.outcome, ending.detail)
        extra = dict(used)
        if attempt.progress is not attempt.progress_sent:
            extra["progress"] = attempt.progress  # no heartbeat will send it any more
        if attempt.stopped is not None:
            extra["stopped"] = attempt.stopped
        if attempt.stack is not None:
            extra["stack"] = attempt.stack
        if extra:
            result = (*attempt.pair, ending.outcome, ending.detail, extra)
        if attempt.is_saved:
            self._results.append(result)
        else:
            self._unsaved[attempt.pair] = result

    def _take_results(self, max_bytes: int) -> list[WireResult]:
        results = self._results
        room = max_bytes - OVERHEAD_BYTES
        for count, result in enumerate(results):
            room -= OVERHEAD_BYTES if result[3] is None and len(result) == _PLAIN_RESULT else _size_of(result)
            if room < 0:
                if count == 0:
                    return [_cut_down(results.pop(0), max_bytes)]
                self._results = results[count:]
                return results[:count]
        self._results = []
        return results


def _failed(attempt: Attempt, result: WireResult) -> FailedAttempt:
    """A failure, under the outcome that the server gives it."""
    job, outcome, detail = attempt.job, _FAILURES[result[2]], result[3]
    if outcome == "error" and attempt.stopped in HUNG:
        outcome = attempt.stopped
    texts = detail if isinstance(detail, tuple) else (detail,)
    error = next((text for text in texts if isinstance(text, str)), "")
    return FailedAttempt(job.id, job.name, job.topic, attempt=job.attempt, outcome=outcome, error=error, is_dead=False)


def _size_of(result: WireResult) -> int:
    """A close upper bound of its bytes on the wire."""
    detail = result[3]
    size = OVERHEAD_BYTES
    if isinstance(detail, str):
        size += len(detail) if detail.isascii() else len(detail.encode())
    elif isinstance(detail, tuple):
        size += sum(map(_size_of_text, detail))
    if len(result) == _PLAIN_RESULT:
        return size
    return size + OVERHEAD_BYTES + sum(map(_size_of_text, result[4].values()))


def _cut_down(result: WireResult, max_bytes: int) -> WireResult:
    """A result that fits into a frame of *max_bytes*: without its stack, or else an error that it is too large."""
    job_id, attempt, outcome, detail = result[:4]
    if len(result) != _PLAIN_RESULT and "stack" in result[4]:
        extra = {key: value for key, value in result[4].items() if key != "stack"}
        without: WireResult = (job_id, attempt, outcome, detail, extra)
        if _size_of(without) + OVERHEAD_BYTES <= max_bytes:
            return without
    text = f"{'result' if outcome == 'ok' else outcome} of about {_size_of(result)} bytes; a frame holds {max_bytes}"
    return (job_id, attempt, "error", f"too large: {text}")


def _size_of_text(part: object) -> int:
    if not isinstance(part, str):
        return 0
    return len(part) if part.isascii() else len(part.encode())
