"""
One attempt of a handler, in the caller's own thread or task, with the worker's decoding and its table of outcomes.

A plain handler that a plain test runs has the thread of the test: its connections, its patches and its debugger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import anyio
from anyio.to_thread import run_sync

from pulse.app.handler import Handler
from pulse.errors import InlineError
from pulse.testing.memory import MemoryJob, MemoryQueue
from pulse.worker.execution.attempt import Attempt
from pulse.worker.execution.runner import arguments_for

__all__ = ["run_attempt", "run_attempt_async"]


def run_attempt(queue: MemoryQueue, job: MemoryJob, backend: str) -> None:
    """
    Run one attempt of *job*; an async handler gets an event loop of its own.

    Args:
        queue: Where *job* is.
        job: One that waits.
        backend: ``asyncio`` or ``trio``, for async handlers.

    Raises:
        InlineError: No handler of the app has its name, or it is async and an event loop runs in this thread.
    """
    handler = _handler(queue, job)
    if handler.is_async and _is_in_loop():
        raise InlineError(f"{handler.name} is async, and an event loop runs here: use the method that is awaited")
    attempt = queue.claim(job)
    if attempt is None:
        return
    value = _arguments(attempt, handler, job)
    if isinstance(value, Exception):
        pass
    elif handler.is_async:
        value = anyio.run(_call_async, attempt, handler, value, backend=backend)
    else:
        value = _call(handler, value)
    _end(queue, job, attempt, value)


async def run_attempt_async(queue: MemoryQueue, job: MemoryJob) -> None:
    """``run_attempt`` in the event loop that runs; a plain handler runs in a thread, as in a worker."""
    handler = _handler(queue, job)
    attempt = queue.claim(job)
    if attempt is None:
        return
    value = _arguments(attempt, handler, job)
    if not isinstance(value, Exception):
        value = await (_call_async(attempt, handler, value) if handler.is_async else run_sync(_call, handler, value))
    _end(queue, job, attempt, value)


def _handler(queue: MemoryQueue, job: MemoryJob) -> Handler:
    handler = queue.handler(job)
    if handler is None:
        raise InlineError(f"the app has no handler named {job.info.name!r}")
    if job.attempt is not None:
        raise InlineError(f"{handler.name} waits for a job that waits for it")
    return handler


def _arguments(attempt: Attempt, handler: Handler, job: MemoryJob) -> Any:  # noqa: ANN401 - or why there are none
    try:
        return arguments_for(attempt, handler, lambda _: job.recording)
    except Exception as error:  # noqa: BLE001 - decoding runs code of the user's
        return error


def _call(handler: Handler, arguments: Mapping[str, Any]) -> object:
    """What it returned or raised. Ctrl-C and what pytest raises to end a test are for neither."""
    try:
        return handler.function(**arguments)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any is the handler's
        return error


async def _call_async(attempt: Attempt, handler: Handler, arguments: Mapping[str, Any]) -> object:
    value: object = asyncio.CancelledError()  # if the handler lets its cancellation through
    timeout_s = attempt.job.timeout_s
    with anyio.move_on_after(timeout_s) as scope:
        attempt.runs_in(_ScopedTask(scope))
        try:
            value = await handler.function(**arguments)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - as in _call
            value = error
    if scope.cancel_called:
        attempt.stop("timeout")
    return value


def _end(queue: MemoryQueue, job: MemoryJob, attempt: Attempt, value: object) -> None:
    queue.end(job, attempt, attempt.ending(value), value if isinstance(value, BaseException) else None)


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
