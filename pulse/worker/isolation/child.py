"""
A cell: a process that runs one handler once. The zygote forks it, with the app loaded and no other threads.

It is a small handler process. The same code calls an async handler, on an event loop of its own; a plain one is called
directly, and sees that it must end only when it looks. Frames of the handler go to the handler process at once. After
its result the cell ends at once, without waiting for threads and exit hooks of the handler.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
import traceback
from pathlib import Path
from typing import Final, NoReturn

import anyio
import structlog

from pulse.app.app import App
from pulse.app.handler import Handler
from pulse.app.hooks.lifespan import StartupError, running
from pulse.app.outcome import Outcome
from pulse.app.tracing import for_cell
from pulse.app.transactions.fence import FencePhase
from pulse.app.workflows.receipt import Receipt
from pulse.security.schema_name import DEFAULT
from pulse.system import log_sink, processes
from pulse.worker.execution import stacks
from pulse.worker.execution.attempt import HUNG, Attempt, Phase, arguments_for
from pulse.worker.execution.batch import BatchCall
from pulse.worker.execution.failure_hooks import log_hook
from pulse.worker.execution.link import AttemptLink
from pulse.worker.execution.runner import call_plain, interrupt, is_failure, make_runner
from pulse.worker.execution.server_reader import ServerReader
from pulse.worker.isolation.messages import (
    Begun,
    CellCheckpoint,
    CellFence,
    CellJob,
    CellProgress,
    CellReader,
    CellResult,
    CellSaved,
    CellStack,
    Interrupt,
    Lease,
    ToCell,
    frame,
    to_cell,
)
from pulse.worker.isolation.rlimits import limited
from pulse.worker.options import Backend, PoolOptions, loop_options

__all__ = ["run"]

log = structlog.get_logger("pulse.worker")
BROKEN: Final = 70  # exit code: the cell itself failed
_RECEIVE_BYTES: Final = 256 * 1024
_LAST_WORDS_S: Final = 0.1  # the next attempt may wait for this slot
_OOM_SCORE: Final = Path("/proc/self/oom_score_adj")
_OOM_MORE: Final = 200  # of 1000: when memory runs out, the kernel kills one job rather than processes that run many
_OOM_MOST: Final = 1000


def run(app: App, pool: PoolOptions, channel_fd: int, stack_fd: int, zygote_pid: int) -> NoReturn:
    """Run one job; ends the process."""
    code = BROKEN
    try:
        processes.die_with_parent(zygote_pid, signal.SIGKILL)
        os.setpgid(0, 0)  # a handler that kills its group kills only its own; the zygote ends the rest
        _go_first()
        stacks.listen(stack_fd)
        CellProcess(app, pool, socket.socket(fileno=channel_fd), stack_fd=stack_fd).run()
    except SystemExit:
        pass  # the zygote has died meanwhile
    except BaseException:  # noqa: BLE001 - nothing may return into the zygote's loop
        traceback.print_exc()
    finally:
        _leave(code)


def _go_first() -> None:
    with contextlib.suppress(OSError, ValueError):
        _OOM_SCORE.write_text(str(min(_OOM_MOST, int(_OOM_SCORE.read_text()) + _OOM_MORE)))


def _leave(code: int) -> NoReturn:
    log_sink.last_words(_LAST_WORDS_S)
    os._exit(code)


class CellProcess:
    """
    The process of one handler; also the ``RunnerOwner`` for it.

    Args:
        pool: Options of the pool: the event loop of async handlers, and the server.
        channel: To the handler process.
        stack_fd: Where this process writes its stacks.
    """

    def __init__(self, app: App, pool: PoolOptions, channel: socket.socket, stack_fd: int) -> None:
        self._app = app
        self._backend: Backend = pool.backend
        self.reader = ServerReader(pool.socket, app.codec)  # this process asks the server itself
        self._channel = channel
        self._stack_fd = stack_fd
        self._pid = os.getpid()
        self._reader: CellReader[ToCell] = CellReader(to_cell)
        self._sending = threading.Lock()  # threads of the handler may report progress
        self._reading = threading.Lock()
        self._receipts: dict[int, Receipt] = {}  # of checkpoints that the server may not have yet
        self._lease_lost = False
        self.identity: str | None = None
        self.schema = DEFAULT
        self._tracing = for_cell()
        self._lives_on = False  # for what the app wants called at the end

    def run(self) -> None:
        """Receive the job, call its handler, send the outcome; ends the process."""
        (work, *orders) = self._receive_first()
        if not isinstance(work, CellJob):
            raise TypeError(f"the first message is no work: {work!r:.100}")
        self.identity, self.schema = work.worker, work.schema
        handler = limited(self._app.handlers[work.job.name], self._stack_fd)
        attempt = self._attempt = Attempt(work.job, handler, time.monotonic())
        attempt.phase = Phase.STARTED
        for order in orders:
            self._obey(order)
        if handler.is_async or self._needs_loop(handler):
            anyio.run(self._call_in_loop, handler, backend=self._backend, backend_options=loop_options(self._backend))
        else:
            self._call_directly(handler)

    def _needs_loop(self, handler: Handler) -> bool:
        """Whether something is called around a plain handler that may be async, or is limited in time."""
        hooks = self._app.hooks
        is_wrapped = handler.layers is not None and bool(handler.layers.in_loop)
        has_hooks = any((handler.provided, handler.on_failure, hooks.on_startup, hooks.on_shutdown))
        return is_wrapped or has_hooks or handler.batch is not None

    # The owner of the runner.

    def ended(self, attempt: Attempt, ending: Outcome) -> None:  # noqa: ARG002 - there is but one
        """The handler has really ended, and so does the process, within a second."""
        self._send(frame(CellResult(ending.outcome, ending.detail)))
        if not self._lives_on:
            _leave(0)
        self._over.set()

    def raised(self, error: BaseException) -> None:
        """Log the traceback: without a limit, since a process for each job is limit enough."""
        log.warning("handler_failed", exc_info=error)

    def lease_lost(self, attempt: Attempt) -> bool:
        """Whether the attempt no longer holds its job, or its lease has passed unanswered."""
        return attempt.lost or self._lease_lost

    def fenced(self, attempt: Attempt, phase: FencePhase) -> None:  # noqa: ARG002 - there is but one
        """A fenced transaction of the handler has come that far."""
        self._send(frame(CellFence(phase)))

    def progressed(self, attempt: Attempt, text: str) -> None:
        """The handler reported progress."""
        attempt.keep_progress(text)
        self._send(frame(CellProgress(text)))

    def checkpointed(self, attempt: Attempt, text: str, receipt: Receipt | None = None) -> None:  # noqa: ARG002
        """The handler saved a checkpoint; *receipt* is settled when the server has it."""
        number = None if receipt is None else id(receipt)
        if receipt is not None:
            self._receipts[id(receipt)] = receipt
        self._send(frame(CellCheckpoint(text, number)))

    # The rest.

    def look(self) -> None:
        """Handle what has arrived, without waiting for more."""
        if not self._reading.acquire(blocking=False):
            return  # another thread is at it
        try:
            self._read()
        finally:
            self._reading.release()

    def listen(self, receipt: Receipt) -> None:
        """Handle what arrives until *receipt* is settled, where no loop does that."""
        with self._reading:
            while not receipt.is_settled:
                self._poll(select.POLLIN)
                self._read()

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = self._channel.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
            if not data:
                _leave(BROKEN)  # nobody would receive the result
            for order in self._reader.feed(data):
                self._obey(order)

    async def _call_in_loop(self, handler: Handler) -> None:
        self._over: anyio.Event = anyio.Event()
        hooks = self._app.hooks
        async with anyio.create_task_group() as group:
            group.start_soon(self._listen)
            try:
                async with running(hooks, log_hook, only=set(handler.provided.values())) as values:
                    self._lives_on = bool(handler.provided or hooks.on_shutdown)
                    runner = make_runner(self, group, 1, self._tracing, values)
                    self._send(frame(Begun()))
                    runner.start(self._attempt if handler.batch is None else BatchCall([self._attempt]))
                    await self._over.wait()
            except StartupError as error:
                self._not_started(error)
            _leave(0)

    async def _listen(self) -> None:
        while True:
            await anyio.wait_readable(self._channel)
            self.look()

    def _not_started(self, error: StartupError) -> None:
        """The attempt fails with what was raised."""
        cause = error.__cause__ or error
        log.warning("startup_failed", hook=str(error), exc_info=cause)
        self.ended(self._attempt, self._attempt.ending(cause))

    def _call_directly(self, handler: Handler) -> None:
        attempt = self._attempt
        self._send(frame(Begun()))
        attempt.begin(self._make_link)
        if self._tracing is not None:
            self._tracing.begin(attempt.job)
        try:
            ending = attempt.ending(call_plain(attempt, handler, arguments_for(attempt, handler, {})))
        except BaseException as error:  # noqa: BLE001 - also SystemExit ends only this job
            self.look()  # it may be the end that was asked for
            ending = attempt.ending(error)
            if is_failure(ending, error):
                self.raised(error)
        if self._tracing is not None:
            self._tracing.end(None, ending)
        self.ended(attempt, ending)

    def _make_link(self, attempt: Attempt) -> _PlainLink:
        return _PlainLink(self, attempt)

    def _receive_first(self) -> list[ToCell]:
        while True:
            data = self._channel.recv(_RECEIVE_BYTES)
            if not data:
                _leave(0)  # the handler process is gone
            messages = self._reader.feed(data)
            if messages:
                return messages

    def _obey(self, order: ToCell) -> None:
        attempt = self._attempt
        match order:
            case Lease():
                self._lease_lost = order.lost
            case Interrupt() if attempt.stopped is None:
                attempt.stopped = order.reason
                attempt.lost = attempt.lost or order.reason == "lost"
                if order.reason in HUNG and (where := stacks.waits_at(attempt)):
                    self._send(frame(CellStack(where)))
                interrupt(attempt)
            case CellSaved():
                receipt = self._receipts.pop(order.number, None)
                if receipt is not None:
                    receipt.settle(order.kept)
            case _:
                pass

    def _send(self, data: bytes) -> None:
        """Returns when the kernel has the data: so it is sent even if the next step kills this process."""
        if os.getpid() != self._pid:
            os._exit(BROKEN)  # a fork made by the handler has returned from it: only one process may send a result
        try:
            with self._sending:
                left = memoryview(data)
                while left:
                    left = left[self._send_some(left) :]
        except ConnectionError:
            _leave(BROKEN)  # nobody receives it any more
        except OSError:
            traceback.print_exc()
            _leave(BROKEN)  # the handler has closed a descriptor that is not its own

    def _send_some(self, data: memoryview) -> int:
        try:
            return self._channel.send(data)
        except BlockingIOError:  # libuv makes every descriptor that it polls non-blocking
            self._poll(select.POLLOUT)
            return 0

    def _poll(self, event: int) -> None:
        poll = select.poll()
        poll.register(self._channel, event)
        poll.poll()


class _PlainLink(AttemptLink):
    """Connects a plain handler's context to the handler process: it looks at frames only when called."""

    def __init__(self, cell: CellProcess, attempt: Attempt) -> None:
        super().__init__(cell, attempt)
        self._cell = cell

    @property
    def lease_lost(self) -> bool:
        """Whether this attempt no longer holds the job."""
        self._cell.look()
        return super().lease_lost

    @property
    def cancelled(self) -> bool:
        """Whether the handler must end."""
        self._cell.look()
        return super().cancelled

    def save(self, text: str) -> Receipt:
        """The same; the receipt says when the server has it."""
        receipt = Receipt(self._cell.listen)
        self._cell.checkpointed(self._attempt, text, receipt)
        return receipt
