"""
One attempt of a handler, in the caller's own thread or task, with the worker's decoding, middleware and outcomes.

A plain handler that a plain test runs has the thread of the test: its connections, its patches and its debugger.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, TypeAlias

import anyio
from anyio.to_thread import run_sync

from pulse.app.context import CURRENT
from pulse.app.handler import Handler
from pulse.app.hooks.middleware import wrapped
from pulse.app.hooks.registry import Hooks
from pulse.app.outcome import Outcome
from pulse.app.transactions.fence import FencePhase
from pulse.app.workflows.receipt import plain
from pulse.app.workflows.steps import Asleep
from pulse.client.records import job_page
from pulse.client.sealing import open_answer
from pulse.errors import InlineError
from pulse.job import Job
from pulse.logs import LOGGED
from pulse.testing.memory import WORKER, MemoryJob, MemoryQueue
from pulse.worker.execution.attempt import Attempt, arguments_for
from pulse.worker.execution.batch import BatchCall, Called
from pulse.worker.execution.failure_hooks import counts, tell_failure
from pulse.worker.execution.runner import call_in_thread, call_plain

__all__ = ["InlineRunner"]

Claimed: TypeAlias = "Sequence[tuple[MemoryJob, Attempt]]"
Ending: TypeAlias = "tuple[Attempt, Outcome, object]"
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

    def run(self, *jobs: MemoryJob) -> None:
        """
        Run one attempt of a job, or one call for several; what must be awaited gets an event loop of its own.

        Raises:
            InlineError: No handler of the app has its name, it waits for this very job, or an event loop runs here
                already.
        """
        handler = self._handler(*jobs)
        needs_loop = self._needs_loop(handler)
        if (needs_loop or handler.on_failure) and _is_in_loop():
            raise InlineError(f"{handler.name} is async, and an event loop runs here: use the method that is awaited")
        claimed = self._claimed(jobs)
        if not claimed:
            return
        called = _called(claimed, handler)
        with self._begun(called, claimed):
            if needs_loop:
                value = anyio.run(self._call, called, handler, _call_directly, backend=self._backend)
            else:
                value = self._call_plain(called, handler)
            endings = _endings(called, value)
            if handler.on_failure:
                for attempt, outcome, own in _failures(endings):
                    anyio.run(_tell_failure, attempt, handler, outcome, own, backend=self._backend)
        self._end(claimed, endings)

    async def run_async(self, *jobs: MemoryJob) -> None:
        """``run`` in the event loop that runs; a plain handler runs in a thread, as in a worker."""
        handler = self._handler(*jobs)
        claimed = self._claimed(jobs)
        if not claimed:
            return
        called = _called(claimed, handler)
        with self._begun(called, claimed):
            value = await self._call(called, handler, _call_in_thread)
            endings = _endings(called, value)
            if handler.on_failure:
                for attempt, outcome, own in _failures(endings):
                    await _tell_failure(attempt, handler, outcome, own)
        self._end(claimed, endings)

    def _handler(self, job: MemoryJob, *others: MemoryJob) -> Handler:
        handler = self._queue.handler(job)
        if handler is None:
            raise InlineError(f"the app has no handler named {job.info.name!r}")
        if any(one.attempt is not None for one in (job, *others)):
            raise InlineError(f"{handler.name} waits for a job that waits for it")
        return handler

    def _parents(self, job: MemoryJob) -> Sequence[Job]:
        page, handler = job_page(self._queue.parents(job)), self._queue.handler(job)
        return page.jobs if handler is None or handler.codec is None else open_answer(handler.codec, page).jobs

    @contextlib.contextmanager
    def _begun(self, called: Called, claimed: Claimed) -> Generator[None]:
        """What runs in here belongs to the attempt, or to the batch; what runs afterwards does not."""
        recordings = {attempt: job.recording for job, attempt in claimed}
        tokens = CURRENT.set(called), LOGGED.set(claimed[0][1].job)
        try:
            called.begin(recordings.__getitem__)
            for job, attempt in claimed:
                fence = attempt.fence_for(WORKER, _keep_nothing, partial(_holds, job, attempt))
                now_s = max(self._queue.now_s(), job.info.next_run_at or 0.0)  # a job that is run before it is due
                job.recording.begin(fence, self._parents(job), attempt.codec, now_s)
            yield
        finally:
            CURRENT.reset(tokens[0])
            LOGGED.reset(tokens[1])

    def _claimed(self, jobs: Iterable[MemoryJob]) -> Claimed:
        found = [(job, self._queue.claim(job)) for job in jobs]
        return [(job, attempt) for job, attempt in found if attempt is not None]

    def _needs_loop(self, handler: Handler) -> bool:
        is_wrapped = handler.layers is not None and bool(handler.layers.in_loop)
        return handler.is_async or is_wrapped or bool(self._missing(handler))

    def _missing(self, handler: Handler) -> set[Any]:
        """The types of which it gets a value that the test has not given."""
        return set(handler.provided.values()) - self.values.keys()

    def _call_plain(self, called: Called, handler: Handler) -> object:
        """What it returned or raised. Ctrl-C, and what pytest raises to end a test, are for neither."""
        try:
            arguments = _arguments(called, handler, self.values)
            return None if arguments is None else call_plain(called, handler, arguments)
        except (Exception, SystemExit, Asleep) as error:  # noqa: BLE001 - any is the handler's
            return error

    async def _call(self, called: Called, handler: Handler, call: Any) -> object:  # noqa: ANN401 - one of those below
        value: object = asyncio.CancelledError()  # if the handler lets its cancellation through
        try:
            async with AsyncExitStack() as stack:
                values = {**self.values, **await self._opened(handler, stack)}
                attempts = _attempts(called)
                with anyio.move_on_after(attempts[0].job.timeout_s) as scope:
                    called.runs_in(_ScopedTask(scope))
                    value = await _caught(called, handler, values, call)
                if scope.cancel_called:
                    for attempt in attempts:
                        attempt.stop("timeout")
        except (Exception, SystemExit, Asleep) as error:  # noqa: BLE001 - of a lifespan
            value = error
        return value

    async def _opened(self, handler: Handler, stack: AsyncExitStack) -> Mapping[Any, Any]:
        missing = self._missing(handler)
        return {
            one.kind: await stack.enter_async_context(contextlib.asynccontextmanager(one.function)())
            for one in self._lifespans
            if one.kind in missing
        }

    def _end(self, claimed: Claimed, endings: Iterable[Ending]) -> None:
        jobs = {attempt: job for job, attempt in claimed}
        for attempt, outcome, value in endings:
            self._queue.end(jobs[attempt], attempt, outcome, value if isinstance(value, BaseException) else None)


def _called(claimed: Claimed, handler: Handler) -> Called:
    attempts = [attempt for _, attempt in claimed]
    return attempts[0] if handler.batch is None else BatchCall(attempts)


def _attempts(called: Called) -> Sequence[Attempt]:
    return called.attempts if isinstance(called, BatchCall) else [called]


def _holds(job: MemoryJob, attempt: Attempt) -> bool:
    return job.attempt is attempt


def _arguments(called: Called, handler: Handler, values: Mapping[Any, Any]) -> dict[str, Any] | None:
    """The arguments for the handler; None: no job of a batch has args that fit."""
    if isinstance(called, BatchCall):
        return called.arguments(handler, values)
    return arguments_for(called, handler, values)


def _endings(called: Called, value: object) -> list[Ending]:
    results = called.results(value) if isinstance(called, BatchCall) else [(called, value)]
    return [(attempt, _ending(attempt, own), own) for attempt, own in results]


def _failures(endings: Iterable[Ending]) -> list[Ending]:
    return [one for one in endings if counts(one[1])]


def _keep_nothing(_attempt: Attempt, _phase: FencePhase) -> None:
    """The fence itself knows how far its transaction has come."""


def _ending(attempt: Attempt, value: object) -> Outcome:
    """The outcome; the result of a fenced transaction, which the database would have, is in its fence."""
    outcome = attempt.ending(value)
    if attempt.fence is not None and attempt.is_completed:
        return Outcome(outcome.outcome, attempt.fence.result)
    return outcome


async def _caught(called: Called, handler: Handler, values: Mapping[Any, Any], plain: Any) -> object:  # noqa: ANN401
    try:
        arguments = _arguments(called, handler, values)
        if arguments is None:
            return None
        call: Any = partial(handler.function if handler.is_async else partial(plain, called, handler), **arguments)
        if handler.layers is not None:
            call = wrapped(call, called.context, handler.layers.in_loop)
        return await call()
    except (Exception, SystemExit, Asleep) as error:  # noqa: BLE001 - as in _call_plain
        return error


async def _call_directly(called: Called, handler: Handler, **arguments: object) -> object:
    with plain():
        return call_plain(called, handler, arguments)


async def _call_in_thread(called: Called, handler: Handler, **arguments: object) -> object:
    value = await run_sync(call_in_thread, called, handler, arguments)
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
