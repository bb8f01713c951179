"""
Calls handlers of this process: async ones in tasks of the loop, plain ones in threads.

Two ways to start a handler share everything else. On asyncio there are lanes, which cost a tenth of a task group with a
cancel scope, for each job; on trio there is a task group.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections import deque
from collections.abc import Coroutine, Generator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import anyio
from anyio.abc import TaskGroup, TaskStatus
from anyio.to_thread import run_sync

from pulse.app.context import CURRENT
from pulse.app.handler import Handler
from pulse.app.hooks.middleware import Layers, wrapped
from pulse.app.outcome import RELEASED, Outcome
from pulse.app.tracing import Tracing
from pulse.common.waiting import WakeupEvent
from pulse.logs import LOGGED
from pulse.worker.execution.attempt import Attempt, arguments_for
from pulse.worker.execution.batch import BatchCall, Called, called_by
from pulse.worker.execution.failure_hooks import counts, tell_failure
from pulse.worker.execution.link import AttemptLink, AttemptOwner

__all__ = ["Runner", "RunnerOwner", "call_plain", "interrupt", "is_failure", "make_runner"]

SLICE_S: Final = 0.01  # then results are sent and frames are read before more handlers are called


class RunnerOwner(AttemptOwner, Protocol):
    """The owner of a runner."""

    def ended(self, attempt: Attempt, ending: Outcome) -> None:
        """The handler has really ended."""

    def raised(self, error: BaseException) -> None:
        """It failed with that; called within its context, before ``ended``."""


class Runner(Protocol):
    """Starts handlers."""

    def start(self, called: Called) -> None:
        """Call its handler soon; ``RunnerOwner.ended`` follows exactly once for each attempt."""


def make_runner(
    owner: RunnerOwner,
    group: TaskGroup,
    concurrency: int,
    tracing: Tracing | None = None,
    values: Mapping[Any, Any] | None = None,
) -> Runner:
    """
    The runner for the event loop that is running.

    Args:
        group: Outlives every handler.
        values: Those of the app's lifespans, by type.
    """
    caller = _Caller(owner, anyio.CapacityLimiter(concurrency), tracing=tracing, values=values or {})
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _GroupRunner(caller, group)
    return _AsyncioRunner(caller, loop)


def interrupt(attempt: Attempt) -> None:
    """
    End the handler of a stopped attempt.

    An isolated one is asked, and killed if it does not end. One that waits in the loop is cancelled. One in a thread
    can only look at ``ctx.cancelled``: a thread cannot be killed without the process. A batch goes on until all that
    are in it are stopped.
    """
    called = called_by(attempt)
    if isinstance(called, BatchCall) and not called.is_stopped:
        return
    if called.begun and called.task is not None and not called.in_thread:
        called.task.cancel()


class _AsyncioRunner:
    """
    Lanes: a lane is a bare task that calls one handler after the other until one of them waits for something.

    That handler keeps the task, and the others go on in a new one. So a handler that never waits needs no task of its
    own, which would double its cost; one that waits has a task of its own, as it may expect. Each runs in a context of
    its own.
    """

    def __init__(self, caller: _Caller, loop: asyncio.AbstractEventLoop) -> None:
        self._call = caller.call
        self._create_task = loop.create_task
        self._queue: deque[Called] = deque()
        self._lane: asyncio.Task[None] | None = None  # about to begin; the loop holds it only weakly

    def start(self, called: Called) -> None:
        self._queue.append(called)
        if self._lane is None:
            self._lane = self._create_task(self._run_lane())

    async def _run_lane(self) -> None:
        rest = self._run_some()
        if rest is not None:
            await rest

    def _run_some(self) -> _BegunCall | None:
        """Call handlers; returns the rest of the first one that waits for something."""
        lane, queue = self._lane, self._queue
        assert lane is not None  # noqa: S101 - it runs this
        until_s = time.monotonic() + SLICE_S
        try:
            while queue:
                called = queue.popleft()
                call, context = self._call(called), contextvars.copy_context()
                try:
                    waits_for = context.run(call.send, None)
                except StopIteration:
                    pass  # it has ended
                else:
                    called.task = _LaneCall(lane, call)
                    return _BegunCall(call, context, waits_for)
                if lane.cancelling() or time.monotonic() > until_s:
                    break  # a handler has cancelled itself, which must not reach the next; or others wait for a turn
        finally:
            self._lane = self._create_task(self._run_lane()) if queue else None
        return None


class _LaneCall:
    """A call that waits in a lane; it looks like a task, and until it has ended the lane has no other call."""

    __slots__ = ("_call", "_lane")

    def __init__(self, lane: asyncio.Task[None], call: Coroutine[Any, Any, None]) -> None:
        self._lane = lane
        self._call = call

    def cancel(self) -> None:
        self._lane.cancel()

    def get_coro(self) -> object:
        return self._call


class _BegunCall:
    """The rest of a call that has begun, to be awaited in its own context."""

    __slots__ = ("_call", "_context", "_waits_for")

    def __init__(self, call: Coroutine[Any, Any, None], context: contextvars.Context, waits_for: object) -> None:
        self._call = call
        self._context = context
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        run, call, waits_for = self._context.run, self._call, self._waits_for
        try:
            while True:
                try:
                    value = yield waits_for
                except BaseException as error:  # noqa: BLE001 - any exception is the handler's
                    waits_for = run(call.throw, error)
                else:
                    waits_for = run(call.send, value)
        except StopIteration:
            return


class _GroupRunner:
    """
    Tasks of a task group, each in a cancel scope.

    They are started one after the other: trio runs tasks that became ready together in its own order, but jobs must
    start in the order in which they came.
    """

    def __init__(self, caller: _Caller, group: TaskGroup) -> None:
        self._caller = caller
        self._group = group
        self._queue: deque[Called] = deque()
        self._wakeup = WakeupEvent()
        group.start_soon(self._start_queued)

    def start(self, called: Called) -> None:
        self._queue.append(called)
        self._wakeup.wake()

    async def _start_queued(self) -> None:
        while True:
            await self._wakeup.wait()
            while self._queue:
                await self._group.start(self._call_in_scope, self._queue.popleft())

    async def _call_in_scope(self, called: Called, *, task_status: TaskStatus[None]) -> None:
        with anyio.CancelScope() as scope:
            call = self._caller.call(called)
            called.task = _ScopedCall(scope, call)
            task_status.started()
            await call  # begins before any task that waits for `started` goes on


class _ScopedCall:
    """A call in a cancel scope; it looks like a task."""

    def __init__(self, scope: anyio.CancelScope, coroutine: Coroutine[Any, Any, None]) -> None:
        self._scope = scope
        self._coroutine = coroutine

    def cancel(self) -> None:
        self._scope.cancel()

    def get_coro(self) -> object:
        return self._coroutine


class _Caller:
    """Calls a handler; never raises."""

    def __init__(
        self,
        owner: RunnerOwner,
        threads: anyio.CapacityLimiter,
        tracing: Tracing | None,
        values: Mapping[Any, Any],
    ) -> None:
        self._owner = owner
        self._tracing = tracing
        self._link = partial(AttemptLink, owner)
        self._threads = threads
        self._values = values

    async def call(self, called: Called) -> None:
        if isinstance(called, BatchCall):
            await self._call_batch(called)
            return
        attempt, handler = called, called.handler
        if attempt.stopped is not None or handler is None:
            self._owner.ended(attempt, RELEASED)  # stopped between its naming and its call
            return
        attempt.begin(self._link)
        tracing = self._tracing
        span = None if tracing is None else tracing.begin(attempt.job)
        try:
            arguments = arguments_for(attempt, handler, self._values)
            if handler.layers is not None:
                value = await self._call_in_layers(attempt, handler, handler.layers, arguments)
            elif handler.is_async:
                value = await handler.function(**arguments)
            else:
                attempt.await_thread()
                value = await run_sync(call_in_thread, attempt, handler, arguments, limiter=self._threads)
        except BaseException as error:  # noqa: BLE001 - also SystemExit or a cancellation ends only this job
            value = error
        ending = attempt.ending(value)
        if isinstance(value, BaseException) and is_failure(ending, value):
            self._owner.raised(value)
        if handler.on_failure and counts(ending):
            await tell_failure(attempt, handler, ending, value, self._threads)
        if tracing is not None:
            tracing.end(span, ending)
        self._owner.ended(attempt, ending)

    async def _call_batch(self, batch: BatchCall) -> None:
        """As ``call``: one call for all, and for each its outcome."""
        handler = batch.attempts[0].handler
        assert handler is not None  # noqa: S101 - else it would be in no batch
        begun = batch.begin(self._link)
        _note_size(begun)
        tracing = self._tracing
        spans = tracing.begin_batch([one.job for one in begun]) if tracing is not None and begun else None
        value: object = None
        arguments = batch.arguments(handler, self._values)
        if arguments is not None:
            try:
                value = await self._call_for_all(batch, handler, arguments)
            except BaseException as error:  # noqa: BLE001 - as in call
                value = error
        ended = [(one, one.ending(own), own) for one, own in batch.results(value)]
        self._log_failures(ended, value)
        if handler.on_failure:
            await self._tell_failures(handler, [one for one in ended if counts(one[1])])
        if spans is not None:
            spans.end({one.pair: ending for one, ending, _ in ended})
        for one, ending, _ in ended:
            self._owner.ended(one, ending)

    async def _call_for_all(self, batch: BatchCall, handler: Handler, arguments: dict[str, Any]) -> object:
        if handler.layers is not None:
            return await self._call_in_layers(batch, handler, handler.layers, arguments)
        if handler.is_async:
            return await handler.function(**arguments)
        return await self._await_thread(batch, handler, arguments)

    def _log_failures(self, ended: Sequence[tuple[Attempt, Outcome, object]], raised: object) -> None:
        """What was raised for all is logged once."""
        told = False
        for attempt, ending, value in ended:
            if isinstance(value, BaseException) and is_failure(ending, value) and not (told and value is raised):
                told = told or value is raised
                LOGGED.set(attempt.job)
                self._owner.raised(value)

    async def _tell_failures(self, handler: Handler, failed: Sequence[tuple[Attempt, Outcome, object]]) -> None:
        """All at once, so that together they take no longer than one may."""
        with contextlib.suppress(BaseException), anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for one in failed:
                    group.start_soon(self._tell_failure, handler, *one)

    async def _tell_failure(self, handler: Handler, attempt: Attempt, ending: Outcome, value: object) -> None:
        LOGGED.set(attempt.job)
        CURRENT.set(attempt)
        await tell_failure(attempt, handler, ending, value, self._threads)

    async def _call_in_layers(
        self, called: Called, handler: Handler, layers: Layers, arguments: dict[str, Any]
    ) -> object:
        if handler.is_async:
            call = partial(handler.function, **arguments)
        else:
            call = partial(self._await_thread, called, handler, arguments)
        return await wrapped(call, called.context, layers.in_loop)()

    async def _await_thread(self, called: Called, handler: Handler, arguments: dict[str, Any]) -> object:
        called.await_thread()
        value = await run_sync(call_in_thread, called, handler, arguments, limiter=self._threads)
        called.leave_thread()
        if isinstance(value, BaseException):
            raise value
        return value


def _note_size(begun: Sequence[Attempt]) -> None:
    """Lines that a batch logs name its first job: they also say how many there are."""
    if len(begun) > 1:
        import structlog  # not above: pulse.logs comes first

        structlog.contextvars.bind_contextvars(batch=len(begun))


def call_in_thread(called: Called, handler: Handler, arguments: dict[str, Any]) -> object:
    """In a thread; it must not raise, since SystemExit and StopIteration mean other things outside."""
    called.enter_thread()
    try:
        return call_plain(called, handler, arguments)
    except BaseException as error:  # noqa: BLE001 - as in _Caller.call
        return error


def call_plain(called: Called, handler: Handler, arguments: dict[str, Any]) -> object:
    """
    Call a plain handler inside its plain middleware.

    Raises:
        BaseException: What the outermost one lets through.
    """
    if handler.layers is None:
        return handler.function(**arguments)
    return wrapped(partial(handler.function, **arguments), called.context, handler.layers.in_thread)()


def is_failure(ending: Outcome, error: BaseException) -> bool:
    """Whether a handler's exception is worth a traceback: no outcome that it requested, and no interruption."""
    return ending.outcome == "error" and not isinstance(error, asyncio.CancelledError)
