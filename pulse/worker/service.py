"""The life of a handler process: connect, work, reconnect with all that it holds, drain, end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from pulse.app.app import App
from pulse.app.outcome import Outcome
from pulse.app.tracing import for_attempts
from pulse.app.transactions.fence import FencePhase
from pulse.app.workflows.receipt import Receipt
from pulse.common.waiting import WakeupEvent
from pulse.protocol import Drain
from pulse.security.schema_name import DEFAULT
from pulse.system import log_sink, processes
from pulse.system.failure_log import FailedAttempt, FailureLog, Log
from pulse.worker.execution import stacks
from pulse.worker.execution.attempt import HUNG, Attempt, Pair, StopReason
from pulse.worker.execution.batch import BatchCall
from pulse.worker.execution.deadlines import Deadlines
from pulse.worker.execution.runner import Runner, interrupt, make_runner
from pulse.worker.execution.server_reader import ServerReader
from pulse.worker.execution.wakeup import SAME_SIGNAL_S, Signals, Waker, exit_now
from pulse.worker.isolation.manager import Cells
from pulse.worker.isolation.run import CellRun
from pulse.worker.options import HostOptions
from pulse.worker.session.connection import Connection
from pulse.worker.session.declarations import declarations_of
from pulse.worker.session.ledger import Ledger
from pulse.worker.session.prefetch import PERIOD_S, Prefetch
from pulse.worker.session.reconnect import Dialer, WorkerRefusedError
from pulse.worker.status_pipe import Kind, NoteWriter

__all__ = ["REFUSED", "Service"]

OBEY_S: Final = 2.0  # for cancelled handlers to end, after the drain; the parent kills one second later
REFUSED: Final = 78  # exit code: this process cannot work, nor could another one
LEASE_LOOKS: Final = 6  # per lease: how often to check whether it has passed unanswered
STABLE_S: Final = 5.0  # a connection that lasted this long was a good one


class Service:
    """
    One handler process.

    Args:
        notes: Notes to the pool parent.
        values: Those of the app's lifespans, by type.
    """

    def __init__(
        self, options: HostOptions, app: App, notes: NoteWriter, log: Log, values: Mapping[Any, Any] | None = None
    ) -> None:
        self._options = options
        self._handlers = app.handlers
        self._declarations = declarations_of(app, options.pool)
        self._notes = notes
        self._log = log
        self._failures = FailureLog(log)
        self.reader = ServerReader(options.pool.socket, app.codec)
        self._ledger = Ledger(app.handlers, options.pool.concurrency)
        self._prefetch = Prefetch(options.pool.concurrency)
        self._tracing = for_attempts()
        self._values = values
        self._told = 0  # the capacity that the server knows
        self._finished = 0  # since the last look
        self._pace_changed = WakeupEvent()
        self._deadlines = Deadlines()
        self._dialer = Dialer(options.pool.socket, self._hello, log)
        self._connection: Connection | None = None
        self._session: bytes | None = None
        self.identity: str | None = None  # by the server; it stays the same when the worker connects again
        self.schema = DEFAULT  # likewise
        self._waker = Waker()
        self._signals = Signals(self._waker, same_within_s=SAME_SIGNAL_S, at_once=exit_now)
        self._loop_thread = threading.get_ident()
        self._lease_s = 0.0
        self._confirmed_s = time.monotonic()
        self._lease_passed = False
        self._is_restart = False  # the server said that it drains, and is back soon
        self._exit_code = 0
        self._deadline_changed = WakeupEvent()
        self._has_batches = any(one.batch is not None for one in self._handlers.values())
        self._batch_changed = WakeupEvent()
        self._empty = anyio.Event()
        self._over = anyio.Event()

    async def run(self) -> int:
        """Work until it must end; returns the exit code."""
        self._signals.install()
        async with anyio.create_task_group() as group:
            self._group: TaskGroup = group
            concurrency = self._options.pool.concurrency
            self._runner: Runner = make_runner(self, group, concurrency, self._tracing, self._values)
            self._cells = Cells(self, group, self._options, log=self._log, tracing=self._tracing)
            for work in (
                self._stay_connected,
                self._watch_deadlines,
                self._watch_batches,
                self._watch_leases,
                self._watch_waker,
                self._keep_pace,
                self._failures.run,
            ):
                group.start_soon(work)
            await self._over.wait()
            if self._ledger.running:
                self._failures.settle()
                log_sink.last_words()
                os._exit(self._exit_code)  # threads cannot be stopped; what they hold is given back after their end
            group.cancel_scope.cancel()
        return self._exit_code

    # Called by runners.

    def ended(self, attempt: Attempt, ending: Outcome) -> None:
        """The handler has really ended."""
        self._ledger.ended(attempt, ending)
        self._finished += 1
        if self._finished == 1:
            self._pace_changed.wake()
        if attempt.batch is not None:
            self._tell_capacity()
        if self._connection is not None:
            self._connection.wake()

    def raised(self, error: BaseException) -> None:
        """A handler failed with that."""
        self._failures.raised(error)

    def ended_apart(self, attempt: Attempt, ending: Outcome, used: Mapping[str, object]) -> None:
        """The same for an isolated attempt, whose process has ended, too."""
        self._ledger.ended_apart(attempt, ending, used)
        self._wake()

    def begun(self, attempt: Attempt) -> None:
        """The handler is called now: its time counts."""
        if self._deadlines.watch(attempt, time.monotonic()):
            self._deadline_changed.wake()

    def lease_lost(self, attempt: Attempt) -> bool:
        """Whether the attempt no longer holds its job, or its lease has passed unanswered."""
        return attempt.lost or (self._lease_passed and attempt.lease_until_s < time.monotonic())

    def fenced(self, attempt: Attempt, phase: FencePhase) -> None:
        """A fenced transaction of the handler has come that far: the attempt knows."""

    def progressed(self, attempt: Attempt, text: str) -> None:
        """The handler reported progress."""
        attempt.progress, attempt.told_s = text, time.monotonic()
        self._soon()

    def checkpointed(self, attempt: Attempt, text: str, receipt: Receipt | None = None) -> None:
        """The handler saved a checkpoint; *receipt* is settled when the server has it."""
        attempt.told_s = time.monotonic()
        self._ledger.checkpoints.save(attempt, text, receipt)
        self._soon()

    # Called by the cells.

    def waits_for_cells(self) -> bool:
        """Whether attempts wait for cells."""
        return self._ledger.waits_for_cells()

    def cells_ready(self) -> None:
        """Cells can be made from now on."""
        self._ledger.cells_ready()
        self._wake()

    def cells_gone(self) -> None:
        """No cells can be made at the moment."""
        self._ledger.cells_gone()

    def cells_failed(self, reason: str) -> None:
        """No cells can be made: attempts that wait for one fail."""
        self._ledger.cells_failed(reason)
        self._wake()

    # Called by the connection.

    def about_to_start(self) -> None:
        """Attempts may be taken to be started: without leases they may run elsewhere, and are given back."""
        if self._is_late(now_s := time.monotonic()):
            given_back = self._ledger.give_back_lapsed(now_s, self._confirmed_s)
            if given_back:
                self._log.warning("leases_passed", given_back=given_back, running=self._ledger.running)

    def _is_late(self, now_s: float) -> bool:
        """Whether no heartbeat was answered for a lease."""
        return bool(self._lease_s) and now_s > self._confirmed_s + self._lease_s

    def start(self, attempts: list[Attempt]) -> None:
        """Call these handlers: the server has their names."""
        for attempt in attempts:
            attempt.named = True
            if attempt.isolated:
                self._cells.start(attempt)
                continue
            batch = attempt.batch
            if batch is None:
                self._runner.start(attempt)
            elif batch.attempts[0] is attempt:
                self._runner.start(batch)
            if attempt.job.timeout_s is not None or attempt.stall_s is not None:
                self.begun(attempt)
        self._look_at_batches()

    def assigned(self) -> None:
        """Attempts have arrived; more than slots may have been sent before this process slowed down."""
        self._look_at_batches()
        if self._ledger.is_full:
            self._pace_changed.wake()
        if self._ledger.waits_for_cells():
            self._cells.make()

    def stop(self, pair: Pair, reason: StopReason) -> None:
        """Stop one attempt."""
        stack = self._stack_of(pair) if reason in HUNG else None  # first: a handler that checks ends at once
        attempt = self._ledger.stop(pair, reason)
        if attempt is not None:
            attempt.keep_stack(stack)
            if reason in HUNG and attempt.batch is not None:
                self._stop_rest(attempt.batch, reason, stack)
            interrupt(attempt)
        self._wake()

    def _stop_rest(self, batch: BatchCall, reason: StopReason, stack: str | None) -> None:
        """A limit that one job of a batch passes ends the call, and so all of them."""
        for one in batch.attempts:
            if self._ledger.stop(one.pair, reason) is not None:
                one.keep_stack(stack)

    def changed(self) -> None:
        """Attempts are no longer held."""
        if self._ledger.draining and not self._ledger.held:
            self._empty.set()

    def failed(self, attempts: list[FailedAttempt]) -> None:
        """The server has written that these failed, and which jobs are dead letters now."""
        self._failures.note(attempts)

    def beat_answered(self, sent_s: float) -> None:
        """The server extended the leases as of *sent_s*, monotonic."""
        self._confirmed_s = max(self._confirmed_s, sent_s)
        self._lease_passed = False
        self._notes.write(Kind.BEAT)

    def drain(self, order: Drain) -> None:
        """The server sends no more jobs; without ``reconnect`` the process must end."""
        self._log.info("worker_told_to_drain", reconnect=order.reconnect, replace=order.replace, held=self._ledger.held)
        self._is_restart = order.reconnect
        if not order.reconnect:
            self._notes.write(Kind.REPLACED if order.replace else Kind.DRAINED)
            self._start_draining()

    def look(self, pair: Pair, answer: Callable[[str | None, int | None], None]) -> None:
        """Report the stacks of a handler, from another process if it is isolated; the answer may come later."""
        attempt = self._ledger.started_attempt(pair)
        if attempt is None:
            answer(None, None)
        elif isinstance(attempt.task, CellRun):
            self._group.start_soon(self._look_into, attempt.task, answer)
        else:
            answer(attempt.stack or stacks.where_is(attempt), None)

    # Tasks.

    async def _look_into(self, cell: CellRun, answer: Callable[[str | None, int | None], None]) -> None:
        answer(await cell.where(), cell.pid)

    async def _stay_connected(self) -> None:
        while True:
            try:
                stream, welcome = await self._dialer.dial()
            except WorkerRefusedError as error:
                self._notes.write(Kind.REFUSED, f"pulse: {error.message}".encode("utf-8", "replace"))
                self._leave(REFUSED)
                return
            if welcome.session is not None:
                self._session = welcome.session
                self._notes.write(Kind.SESSION, welcome.session)
            self.identity, self.schema = welcome.worker, welcome.schema
            self._lease_s = welcome.lease_s
            since_s = time.monotonic()
            self._log.info("connected_to_server", server=welcome.server, held=self._ledger.held)
            self._connection = Connection(
                stream, welcome, self._ledger, owner=self, log=self._log, declarations=self._declarations.requests
            )
            self._is_restart = False
            self._tell_capacity()  # it may have changed since the hello
            cause = await self._connection.run()
            self._connection = None
            if time.monotonic() - since_s >= STABLE_S:
                self._dialer.proved_good()
            if self._is_restart:
                self._log.info("connection_lost", cause=cause.message, held=self._ledger.held)
            else:
                self._log.warning("connection_lost", cause=cause.message, held=self._ledger.held)
            await self._dialer.pause()

    async def _keep_pace(self) -> None:
        """Hold as many jobs ahead as finish in a moment; jobs that wait behind long ones are given back."""
        while True:
            await self._pace_changed.wait()
            finished = 1
            while finished or not self._prefetch.is_settled:
                await anyio.sleep(PERIOD_S)
                finished, self._finished = self._finished, 0
                if not finished and self._ledger.give_back_waiting():
                    self._wake()
                self._prefetch.look(finished)
                self._tell_capacity()

    def _capacity(self) -> int:
        return 0 if self._ledger.draining else self._prefetch.capacity + self._ledger.room_for_batches

    def _tell_capacity(self) -> None:
        """Send the capacity, if the server has another one; without a connection the next hello does it."""
        capacity = self._capacity()
        if self._connection is not None and capacity != self._told:
            self._told = capacity
            self._connection.send_capacity(capacity)

    async def _watch_deadlines(self) -> None:
        while True:
            next_s = self._deadlines.next_s()
            with anyio.move_on_after(None if next_s is None else next_s - time.monotonic()):
                await self._deadline_changed.wait()
            for attempt, limit in self._deadlines.due(time.monotonic()):
                self.stop(attempt.pair, limit)

    def _look_at_batches(self) -> None:
        """Batches fill, or have begun: so many more jobs may come, and the next is ready at another time."""
        if self._has_batches:
            self._tell_capacity()
            batches = self._ledger.batches
            if batches.filling:
                self._batch_changed.wake()
            if self._ledger.is_full:  # what was sent to fill a batch, and is for other handlers, goes back
                self._pace_changed.wake()

    async def _watch_batches(self) -> None:
        batches = self._ledger.batches
        while self._has_batches:
            next_s = batches.next_s()
            with anyio.move_on_after(None if next_s is None else next_s - time.monotonic()):
                await self._batch_changed.wait()
            if batches.look(time.monotonic()):
                self._wake()

    async def _watch_leases(self) -> None:
        """
        Find out that the lease has passed without an answer.

        Twice in a row, with a pause: if a handler has blocked the loop, there was no answer because no heartbeat was
        sent, and the parent has sent them meanwhile.
        """
        late = False
        while True:
            await anyio.sleep((self._lease_s or 1.0) / LEASE_LOOKS)
            was_late, late = late, self._is_late(time.monotonic())
            had_passed, self._lease_passed = self._lease_passed, late and was_late
            if self._lease_passed and not had_passed and self._ledger.running:
                self._log.warning("leases_passed", given_back=0, running=self._ledger.running)
            self._cells.look_at_leases()

    async def _watch_waker(self) -> None:
        while True:
            await self._waker.wait()
            if self._signals.count:
                self._start_draining()
            if self._connection is not None:
                self._connection.progressed()
                self._connection.wake()

    def _start_draining(self) -> None:
        if self._ledger.draining:
            return
        self._log.info("worker_draining", running=self._ledger.running, held=self._ledger.held)
        self._ledger.drain()
        self._tell_capacity()
        self.changed()
        self._group.start_soon(self._drain)

    async def _drain(self) -> None:
        with anyio.move_on_after(self._options.pool.drain_s):
            await self._empty.wait()
        if self._ledger.held:
            for attempt in self._ledger.started():
                self.stop(attempt.pair, "drain")
            with anyio.move_on_after(OBEY_S):
                await self._empty.wait()
        if self._ledger.held:
            self._log.warning(
                "worker_left_behind", running=self._ledger.running, unreported=self._ledger.held - self._ledger.running
            )
        self._leave(processes.UNFINISHED if self._ledger.held else 0)

    def _leave(self, exit_code: int) -> None:
        self._exit_code = exit_code
        self._over.set()

    def _stack_of(self, pair: Pair) -> str | None:
        """The stack of a running handler of this process; for cells the cell's run takes it."""
        attempt = self._ledger.running_attempt(pair)
        return None if attempt is None or attempt.isolated else stacks.where_is(attempt)

    def _wake(self) -> None:
        if self._connection is not None:
            self._connection.wake()

    def _soon(self) -> None:
        """From any thread: wake the connection."""
        connection = self._connection
        if connection is None:
            return
        if threading.get_ident() == self._loop_thread:
            connection.progressed()
            connection.wake()
        else:
            self._waker.wake()

    def _hello(self) -> Mapping[str, object]:
        self._told = self._capacity()
        body: dict[str, object] = {
            "protocol": 1,
            "role": "worker",
            "worker": self._options.name,
            "topics": self._declarations.topics,
            "names": sorted(self._declarations.handlers),
            "handlers": self._declarations.handlers,
            "capacity": self._told,
            "concurrency": self._prefetch.concurrency,
            "running": self._ledger.running_list(),
        }
        if self._session is not None:
            body["session"] = self._session
        return body
