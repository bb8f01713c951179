"""
One attempt of a handler, in the caller's own thread or task, with the worker's decoding, middleware and outcomes.

A plain handler that a plain test runs has the thread of the test: its connections, its patches and its debugger.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

import anyio
from anyio.to_thread import run_sync

from pulse.app.context import CURRENT
from pulse.app.handler import Handler
from pulse.app.hooks.middleware import wrapped
from pulse.app.hooks.registry import Hooks
from pulse.app.outcome import Outcome
from pulse.app.transactions.fence import FencePhase
from pulse.errors import InlineError
from pulse.logs import LOGGED
from pulse.testing.memory import WORKER, MemoryJob, MemoryQueue
from pulse.worker.execution.attempt import Attempt, arguments_for
from pulse.worker.execution.failure_hooks import counts, tell_failure
from pulse.worker.execution.runner import call_in_thread, call_plain

__all__ = ["InlineRunner"]

_THREADS: Final = 10  # for plain hooks


class InlineRunner:
    """
    Runs attempts of jobs in memory.

    Args:
        queue: The jobs.
        hooks: Those of the app. What it does at the start and the end of a process is left out.
        backend: ``asyncio`` or ``trio``, where the caller has no event loop and one is needed.

    Attributes:
        values: What handlers get by type; of a type that is missing the app's lifespan makes one for each attempt.
    """

    def __init__(self, queue: MemoryQueue, hooks: Hooks, backend: str) -> None:
        self._queue = queue
        self._lifespans = hooks.lifespans
        self._backend = backend
        self.values: dict[Any, Any] = {}

    def run(self, job: MemoryJob) -> None:
        """
        Run one attempt of *job*; what must be awaited gets an event loop of its own.

        Raises:
            InlineError: No handler of the app has its name, it waits for this very job, or an event loop runs here
                already.
        """
        handler = self._handler(job)
        needs_loop = self._needs_loop(handler)
        if (needs_loop or handler.on_failure) and _is_in_loop():
            raise InlineError(f"{handler.name} is async, and an event loop runs here: use the method that is awaited")
        attempt = self._queue.claim(job)
        if attempt is None:
            return
        with _begun(attempt, job):
            if needs_loop:
                value = anyio.run(self._call, attempt, handler, _call_directly, backend=self._backend)
            else:
                value = self._call_plain(attempt, handler)
            outcome = _ending(attempt, value)
            if handler.on_failure and counts(outcome):
                anyio.run(_tell_failure, attempt, handler, outcome, value, backend=self._backend)
        self._end(job, attempt, outcome, value)

    async def run_async(self, job: MemoryJob) -> None:
        """``run`` in the event loop that runs; a plain handler runs in a thread, as in a worker."""
        handler = self._handler(job)
        attempt = self._queue.claim(job)
        if attempt is None:
            return
        with _begun(attempt, job):
            value = await self._call(attempt, handler, _call_in_thread)
            outcome = _ending(attempt, value)
            if handler.on_failure and counts(outcome):
                await _tell_failure(attempt, handler, outcome, value)
        self._end(job, attempt, outcome, value)

    def _handler(self, job: MemoryJob) -> Handler:
        handler = self._queue.handler(job)
        if handler is None:
            raise InlineError(f"the app has no handler named {job.info.name!r}")
        if job.attempt is not None:
            raise InlineError(f"{handler.name} waits for a job that waits for it")
        return handler

    def _needs_loop(self, handler: Handler) -> bool:
        is_wrapped = handler.layers is not None and bool(handler.layers.in_loop)
        return handler.is_async or is_wrapped or bool(self._missing(handler))

    def _missing(self, handler: Handler) -> set[Any]:
        """The types of which it gets a value that the test has not given."""
        return set(handler.provided.values()) - self.values.keys()

    def _call_plain(self, attempt: Attempt, handler: Handler) -> object:
        """What it returned or raised. Ctrl-C, and what pytest raises to end a test, are for neither."""
        try:
            return call_plain(attempt, handler, arguments_for(attempt, handler, self.values))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - any is the handler's
            return error

    async def _call(self, attempt: Attempt, handler: Handler, call: Any) -> object:  # noqa: ANN401 - one of those below
        value: object = asyncio.CancelledError()  # if the handler lets its cancellation through
        try:
            async with AsyncExitStack() as stack:
                values = {**self.values, **await self._opened(handler, stack)}
                with anyio.move_on_after(attempt.job.timeout_s) as scope:
                    attempt.runs_in(_ScopedTask(scope))
                    value = await _caught(attempt, handler, values, call)
                if scope.cancel_called:
                    attempt.stop("timeout")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - of a lifespan
            value = error
        return value

    async def _opened(self, handler: Handler, stack: AsyncExitStack) -> Mapping[Any, Any]:
        missing = self._missing(handler)
        return {
            one.kind: await stack.enter_async_context(contextlib.asynccontextmanager(one.function)())
            for one in self._lifespans
            if one.kind in missing
        }

    def _end(self, job: MemoryJob, attempt: Attempt, outcome: Outcome, value: object) -> None:
        self._queue.end(job, attempt, outcome, value if isinstance(value, BaseException) else None)


@contextlib.contextmanager
def _begun(attempt: Attempt, job: MemoryJob) -> Generator[None]:
    """What runs in here belongs to the attempt, what runs afterwards does not."""
    tokens = CURRENT.set(attempt), LOGGED.set(attempt.job)
    try:
        attempt.begin(lambda _: job.recording)
        job.recording.begin(attempt.fence_for(WORKER, _keep_nothing, lambda: job.attempt is attempt))
        yield
    finally:
        CURRENT.reset(tokens[0])
        LOGGED.reset(tokens[1])


def _keep_nothing(_attempt: Attempt, _phase: FencePhase) -> None:
    """The fence itself knows how far its transaction has come."""


def _ending(attempt: Attempt, value: object) -> Outcome:
    """The outcome; the result of a fenced transaction, which the database would have, is in its fence."""
    outcome = attempt.ending(value)
    if attempt.fence is not None and attempt.is_completed:
        return Outcome(outcome.outcome, attempt.fence.result)
    return outcome


async def _caught(attempt: Attempt, handler: Handler, values: Mapping[Any, Any], plain: Any) -> object:  # noqa: ANN401
    try:
        arguments = arguments_for(attempt, handler, values)
        call: Any = partial(handler.function if handler.is_async else partial(plain, attempt, handler), **arguments)
        if handler.layers is not None:
            call = wrapped(call, attempt.context, handler.layers.in_loop)
        return await call()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - as in _call_plain
        return error


async def _call_directly(attempt: Attempt, handler: Handler, **arguments: object) -> object:
    return call_plain(attempt, handler, arguments)


async def _call_in_thread(attempt: Attempt, handler: Handler, **arguments: object) -> object:
    value = await run_sync(call_in_thread, attempt, handler, arguments)
    if isinstance(value, BaseException):
        raise value
    return value


async def _tell_failure(attempt: Attempt, handler: Handler, outcome: Outcome, value: object) -> None:
    await tell_failure(attempt, handler, outcome, value, anyio.CapacityLimiter(_THREADS))


class _ScopedTask:
    """A cancel scope that looks like a task."""

    def __init__(self, scope: anyio.CancelScope) -> None:
        self._scope = scope

    def cancel(self) -> None:
        self._scope.cancel()

    def get_coro(self) -> object:
        return None


def _is_in_loop() -> bool:
    try:
        anyio.get_cancelled_exc_class()
    except RuntimeError:
        return False
    return True
