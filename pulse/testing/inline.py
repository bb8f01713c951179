"""
``pulse_inline``: jobs are submitted to memory, and their handlers run in the test itself.

What a worker does with a handler is done here by the worker's own code: decoding, outcomes, ``retry_on``; only the rows
are in memory. There is no server, no process and no waiting: back-off is a number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Concatenate, Final, ParamSpec, Unpack, cast, overload
from uuid import UUID

from pulse.app.app import App, check_app
from pulse.app.call import Call, HandlerRef, call
from pulse.app.context import Context
from pulse.client.requests import JobOptions
from pulse.client.sealing import open_answer
from pulse.common.wire_values import IdLike, as_id
from pulse.errors import BadRequestError, InlineError
from pulse.job import is_endless
from pulse.protocol.answers import JobInfo
from pulse.testing.clients import InlineAsyncClient, InlineClient
from pulse.testing.matching import SubmittedJobs, find_submitted, told
from pulse.testing.memory import MemoryJob, MemoryQueue, time_step
from pulse.testing.recording import InlineJob
from pulse.testing.running import InlineRunner

__all__ = ["Inline"]

P = ParamSpec("P")
MAX_RUNS: Final = 10_000  # attempts without an end: a handler snoozes, or submits itself, for ever


class Inline:
    """
    Runs the handlers of an app in memory. In pytest it is the fixture ``pulse_inline``.

    Args:
        app: Whose handlers.
        values: What handlers get by type, in place of the values of the app's lifespans.
        backend: ``asyncio`` or ``trio``: where async handlers run that a plain test runs.

    Raises:
        HandlerError: It is no app.
        InlineError: It is no such backend.

    Attributes:
        values: Those values; may be changed: ``values[Database] = FakeDatabase()``.
        client: A ``pulse.Client`` for the code under test: submits here, and runs the job that it waits for.
        async_client: The same as a ``pulse.AsyncClient``.

    Example:
        ::

            job = Inline(app).run(resize, "a.png", width=3)
            assert job.result == {"ok": True}
    """

    def __init__(self, app: App, *, values: Mapping[Any, Any] | None = None, backend: str = "asyncio") -> None:
        check_app("inline", app)
        if backend not in ("asyncio", "trio"):
            raise InlineError(f"inline: backend is {backend!r:.60}; 'asyncio' and 'trio' are allowed")
        self._queue = MemoryQueue(app)
        self._codec = app.codec
        self._runner = InlineRunner(self._queue, app.hooks, backend)
        self.values = self._runner.values
        self.values.update(values or {})
        self.client = InlineClient(self._queue, self, self._codec)
        self.async_client = InlineAsyncClient(self._queue, self, self._codec)

    @overload
    def run(self, handler: Call[Any], /) -> InlineJob: ...
    @overload
    def run(
        self, handler: Callable[Concatenate[Context, P], Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> InlineJob: ...
    @overload
    def run(self, handler: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> InlineJob: ...
    def run(self, handler: Call[Any] | Callable[..., Any], /, *args: object, **kwargs: object) -> InlineJob:
        """
        Submit a call and run it to its end: a next try follows at once, however long its back-off.

        Args:
            handler: A function that was registered, or a ``pulse.call(…)``.
            args, kwargs: As if the function were called.

        Returns:
            The job: its ``status``, ``result``, ``error``, and the waits in ``delays_s``.

        Raises:
            BadRequestError: The handler cannot be called like that.
            InlineError: An async handler is run where an event loop runs: ``await arun`` instead; or it never ends.

        """
        return self.run_job(self.client.submit(_call_of(handler, args, kwargs)))

    @overload
    async def arun(self, handler: Call[Any], /) -> InlineJob: ...
    @overload
    async def arun(
        self, handler: Callable[Concatenate[Context, P], Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> InlineJob: ...
    @overload
    async def arun(self, handler: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> InlineJob: ...
    async def arun(self, handler: Call[Any] | Callable[..., Any], /, *args: object, **kwargs: object) -> InlineJob:
        """``run`` in the event loop of the test; plain handlers run in a thread, as in a worker."""
        return await self.run_job_async(self.client.submit(_call_of(handler, args, kwargs)))

    def submit(
        self, handler: HandlerRef, args: Mapping[str, object] | None = None, **options: Unpack[JobOptions]
    ) -> UUID:
        """Submit a job, to be run by ``run_until_idle``; as ``client.submit``."""
        return self.client.submit(handler, args, **options)

    def run_until_idle(self) -> list[InlineJob]:
        """
        Run the jobs that are due, also those that they submit, until none is.

        A job that failed waits for its back-off, which ``advance`` skips. Jobs without a handler in this app wait.
        A handler of batches is called for all that are due at once, up to its ``batch``.

        Returns:
            The jobs that ran, in the order of their first attempts.

        """
        ran: dict[bytes, MemoryJob] = {}
        for jobs in self._due():
            ran.update((job.info.id, job) for job in jobs if job.info.id not in ran)
            self._runner.run(*jobs)
        return [self._record(one) for one in ran.values()]

    async def run_until_idle_async(self) -> list[InlineJob]:
        """``run_until_idle`` in the event loop of the test."""
        ran: dict[bytes, MemoryJob] = {}
        for jobs in self._due():
            ran.update((job.info.id, job) for job in jobs if job.info.id not in ran)
            await self._runner.run_async(*jobs)
        return [self._record(one) for one in ran.values()]

    def _due(self) -> Iterator[list[MemoryJob]]:
        for _ in range(MAX_RUNS):
            job = self._queue.next_due()
            if job is None:
                return
            yield self._queue.due_with(job)
        raise _endless("the jobs", MAX_RUNS)

    def advance(self, seconds: float = 0.0, *, minutes: float = 0.0, hours: float = 0.0, days: float = 0.0) -> None:
        """Set the clock of the jobs forward: delays and back-off pass; handlers see the real time."""
        self._queue.advance(time_step(seconds, minutes, hours, days).total_seconds())

    def run_job(self, job_id: IdLike) -> InlineJob:
        """Run a submitted job to its end; as ``run``."""
        job = self._queue.job(as_id(job_id))
        for _ in _until_ended(job):
            self._runner.run(job)
        return self._record(job)

    async def run_job_async(self, job_id: IdLike) -> InlineJob:
        """``run_job`` in the event loop of the test."""
        job = self._queue.job(as_id(job_id))
        for _ in _until_ended(job):
            await self._runner.run_async(job)
        return self._record(job)

    def adopt(self, jobs: Iterable[JobInfo]) -> list[UUID]:
        """Take over jobs that are stored elsewhere; returns their ids."""
        return [UUID(bytes=self._queue.add(info).info.id) for info in jobs]

    def job(self, job_id: IdLike) -> InlineJob:
        """
        A job as it is now.

        Raises:
            NotFoundError: There is none.
        """
        return self._record(self._queue.job(as_id(job_id)))

    def submitted(self, handler: HandlerRef | None = None, /, **args: object) -> SubmittedJobs[InlineJob]:
        """
        The jobs of *handler* with at least these *args*, whatever their status; without any it prints what there is.

        Args:
            handler: A function, its name, or a ``pulse.call(…)``; None: all jobs.
            args: Arguments by name, as the caller of the handler has them.
        """
        return find_submitted(self._records(), handler, args)

    def cancel(self, job_id: IdLike) -> None:
        """Cancel a job. If its handler runs, an async one is cancelled; for a plain one ``ctx.cancelled`` is true."""
        self._queue.cancel(self._queue.job(as_id(job_id)))

    def lose_lease(self, job_id: IdLike) -> None:
        """Let the running attempt lose its job, as if its worker had been silent for too long: it is tried again."""
        self._queue.lose_lease(self._queue.job(as_id(job_id)))

    def told(self) -> str:
        """All jobs, a line each."""
        return told(self._records())

    def _records(self) -> list[InlineJob]:
        return [self._record(job) for job in self._queue.jobs()]

    def _record(self, job: MemoryJob) -> InlineJob:
        record = job.record()
        return record if self._codec is None else open_answer(self._codec, record)


def _call_of(handler: Call[Any] | Callable[..., Any], args: tuple[object, ...], kwargs: dict[str, object]) -> Call[Any]:
    if not isinstance(handler, Call):
        return call(handler, *args, **kwargs)
    made = cast("Call[Any]", handler)  # type: ignore[redundant-cast]  # pyright says that it is partially unknown
    if args or kwargs:
        raise BadRequestError(f"{made.name}: args are given beside those of the call")
    return made


def _until_ended(job: MemoryJob) -> Iterator[int]:
    for number in range(MAX_RUNS):
        if job.is_terminal:
            return
        if job.info.awaited_signal is not None and is_endless(job.info.next_run_at or 0.0, time.time()):
            name = job.info.awaited_signal
            raise InlineError(f"{job.info.name} waits for the signal {name!r}, which nobody has sent: client.signal(…)")
        yield number
    raise _endless(job.info.name, MAX_RUNS)


def _endless(what: str, runs: int) -> InlineError:
    return InlineError(f"{what} did not end within {runs} attempts")
