"""An application: the handlers that a worker serves, and the schedules and limits that it declares, all by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar, Unpack

from pulse.app.handler import Handler, bound, make_handler, mark
from pulse.app.hooks.failed_job import event_name
from pulse.app.hooks.middleware import Middleware
from pulse.app.hooks.registry import FailureHook, Hooks, ProcessHook
from pulse.app.retry_on import RetryOn
from pulse.app.schedule import Declared, ScheduleRules, declare
from pulse.errors import HandlerError
from pulse.limit import LimitOptions, problem_of, problem_of_whole
from pulse.security.codec import Codec, checked

__all__ = ["App", "check_app"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
MiddlewareT = TypeVar("MiddlewareT", bound=Middleware)
ProcessHookT = TypeVar("ProcessHookT", bound=ProcessHook)
FailureHookT = TypeVar("FailureHookT", bound=FailureHook)
LifespanT = TypeVar("LifespanT", bound=Callable[[], AsyncIterator[Any]])


def check_app(label: str, app: object, allowed: str = "a pulse.App is allowed") -> None:
    """
    Refuse what is no app.

    Raises:
        HandlerError: It is something else.
    """
    if not isinstance(app, App):
        raise HandlerError(f"{label}: app is {app!r:.60}; {allowed}")


class _Handlers(Mapping[str, Handler]):
    """Handlers by name, each with the hooks that there are when it is asked for."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._registered: dict[str, Handler] = {}
        self._bound: dict[str, Handler] = {}

    def add(self, handler: Handler) -> None:
        self._registered[handler.name] = handler

    def unbind(self) -> None:
        """There is one more hook."""
        self._bound.clear()

    def __getitem__(self, name: str) -> Handler:
        found = self._bound.get(name)
        if found is None:
            found = self._bound[name] = bound(self._registered[name], self._hooks)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._registered)

    def __len__(self) -> int:
        return len(self._registered)


class App:
    """
    A registry of handlers; ``pulse worker module:app`` serves it.

    Args:
        codec: Decrypts the args of its jobs and encrypts their results and checkpoints, see ``pulse.Codec``; values
            that were stored unencrypted can still be read.

    Raises:
        ConfigError: It is not a codec.

    Example:
        ::

            app = pulse.App()

            @app.handler("resize", topic="images", max_attempts=5, timeout_s=60.0)
            async def resize(path: str, width: int, ctx: pulse.Context) -> dict[str, bool]:
                await ctx.progress(0.5, "half way")
                return {"ok": True}
    """

    def __init__(self, *, codec: Codec | None = None) -> None:
        self._codec = checked(codec)
        self._hooks = Hooks()
        self._handlers = _Handlers(self._hooks)
        self._schedules: dict[str, Declared] = {}
        self._limits: dict[str, LimitOptions] = {}

    @property
    def codec(self) -> Codec | None:
        """Its codec."""
        return self._codec

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The handlers by name, read-only."""
        return self._handlers

    @property
    def schedules(self) -> Mapping[str, Declared]:
        """The declared schedules by key, read-only."""
        return MappingProxyType(self._schedules)

    @property
    def limits(self) -> Mapping[str, LimitOptions]:
        """The policies of the declared limits by name, read-only."""
        return MappingProxyType(self._limits)

    @property
    def hooks(self) -> Hooks:
        """What is called around its handlers."""
        return self._hooks

    def handler(  # noqa: PLR0913 - the options of a handler are its whole public face; one by one they are read best
        self,
        name: str,
        *,
        topic: str | None = None,
        max_attempts: int | None = None,
        timeout_s: float | None = None,
        max_crashes: int | None = None,
        stall_s: float | None = None,
        backoff: str | None = None,
        retry_on: RetryOn | None = None,
        isolate: bool = False,
        max_memory_bytes: int | None = None,
        max_cpu_s: float | None = None,
        batch: int | None = None,
        batch_wait_s: float | None = None,
        middleware: Sequence[Middleware] = (),
        unique_by: Callable[..., str | None] | None = None,
        group_by: Callable[..., str | None] | None = None,
    ) -> Callable[[FunctionT], FunctionT]:
        """
        Register a function as the handler of the jobs called *name*.

        The job's args object becomes keyword arguments. A parameter annotated ``pulse.Context`` gets the context, one
        with the type of a lifespan its value. The function itself is returned, so it can still be called, and be
        submitted: ``client.submit(resize, {...})``.

        Args:
            name: 1 to 200 characters, unique in this app.
            topic: Where its jobs wait unless the submit says otherwise.
            max_attempts, max_crashes: Charged tries, and deaths of its worker, before the dead letter, 1 to 10000.
            timeout_s: Longest run of one attempt, seconds from the handler's start.
            stall_s: Longest time without ``ctx.progress`` or ``ctx.checkpoint``, seconds; then it is stopped.
            backoff: Wait after a failed try: quadratic[:UNIT], exponential[:FIRST[:LONGEST]], fixed:SECONDS or
                list:SECONDS,SECONDS,...; without it the topic's, else the server's.
            retry_on: The delay of the next try by exception class, of which the nearest counts: seconds, a back-off as
                above, pulse.Discard, or None: as usual; or a function (exception, tries) that returns one of these.
            isolate: Run each job in a process of its own, whose death does not affect other jobs.
            max_memory_bytes: Address space of that process; beyond it there is MemoryError. Needs *isolate*.
            max_cpu_s: Processor time of that process, rounded up to whole seconds. Needs *isolate*.
            batch: Call it for up to so many jobs at once, 1 to 1000; it takes them as ``list[pulse.BatchJob]``, and
                returns a list of results in that order, a dict by their ids, or None.
            batch_wait_s: How long the first job of a batch waits for more, 0 to 60 seconds; 0.05 without it.
            middleware: Functions around each of its attempts, inside those of ``App.middleware``; the first is the
                outermost.
            unique_by: A function of some of its arguments, by their names, that returns the unique key of a job, or
                None: it has none. For submits that have the function, and not only its name.
            group_by: The same for the group of a job.

        Raises:
            HandlerError: The function cannot be a handler, an option is out of range, or the name is taken.
        """
        if callable(name):
            raise HandlerError('the name of a handler is missing; write @app.handler("some-name")')

        def register(function: FunctionT) -> FunctionT:
            handler = make_handler(
                name,
                function,
                topic=topic,
                max_attempts=max_attempts,
                timeout_s=timeout_s,
                max_crashes=max_crashes,
                stall_s=stall_s,
                backoff=backoff,
                retry_on=retry_on,
                isolate=isolate,
                max_memory_bytes=max_memory_bytes,
                max_cpu_s=max_cpu_s,
                batch=batch,
                batch_wait_s=batch_wait_s,
                middleware=middleware,
                unique_by=unique_by,
                group_by=group_by,
            )
            self._add(handler)
            return function

        return register

    def _add(self, handler: Handler) -> None:
        taken = self._handlers.get(handler.name)
        if taken is not None:
            shown = getattr(taken.function, "__qualname__", repr(taken.function))
            raise HandlerError(f"handler {handler.name!r} exists already: {shown}")
        self._handlers.add(handler if self._codec is None else replace(handler, codec=self._codec))
        mark(handler.function, handler.name, partial(self._handlers.__getitem__, handler.name))

    def schedule(
        self, key: str, args: Mapping[str, object] | None = None, **rules: Unpack[ScheduleRules]
    ) -> Callable[[FunctionT], FunctionT]:
        """
        Declare a schedule that submits jobs to the handler below it.

        A worker that serves the app sends it to the server, which creates or changes the schedule; its next occurrence
        stays unless its times change. A schedule that is no longer declared goes on, marked in ``pulse ctl schedules
        list``, until an operator deletes it.

        Args:
            key: Its stable name, 1 to 200 characters, unique in the database.
            args: Arguments of its jobs.
            rules: When it fires and what its jobs are like, see ``ScheduleRules``; one of cron, every_s and run_at.

        Raises:
            HandlerError: The function is no handler, a rule cannot be right, or the key is taken.

        Example:
            ::

                @app.schedule("nightly-report", cron="30 2 * * *", timezone="Europe/Berlin", overlap="skip")
                @app.handler("report")
                def report() -> None: ...
        """

        def register(function: FunctionT) -> FunctionT:
            declared = declare(key, function, args, rules)
            if key in self._schedules:
                raise HandlerError(f"schedule {key!r:.100} is declared twice")
            self._schedules[key] = declared
            return function

        return register

    def limit(self, name: str, **policy: Unpack[LimitOptions]) -> None:
        """
        Declare a limit on the jobs of the topics that go by it: the one called *name*, and those whose policy names it.

        A worker that serves the app sends it to the server, which makes it so: options that are not given are unset,
        and what operators have changed since is changed back, except for what differs for single groups. A limit that
        is no longer declared stays in force, marked in ``pulse ctl limits list``, until an operator unsets it.

        Args:
            name: 1 to 200 characters.
            policy: How many run at once, and how many start per second, in all and of each group; see ``LimitOptions``.

        Raises:
            HandlerError: An option cannot be right, or the name is taken.

        Example:
            ::

                app.limit("api", concurrency=50, rate=100, group_concurrency=2)
        """
        problem = problem_of(name, policy) or problem_of_whole(name, policy)
        if problem is not None:
            raise HandlerError(problem)
        if name in self._limits:
            raise HandlerError(f'limit "{name:.100}" is declared twice')
        self._limits[name] = policy

    def middleware(self, function: MiddlewareT) -> MiddlewareT:
        """
        Wrap every attempt of the app's handlers in *function*; the first that is registered is the outermost.

        ``await call_next()`` runs the rest and returns the handler's value, or raises its exception. What the
        middleware returns is the result of the job. A plain ``def`` wraps plain handlers only, inside their threads.

        Raises:
            HandlerError: It cannot be called with a context and ``call_next``.

        Example:
            ::

                @app.middleware
                async def timed(ctx: pulse.Context, call_next: pulse.CallNext) -> object:
                    began = time.monotonic()
                    try:
                        return await call_next()
                    finally:
                        observe(ctx.name, time.monotonic() - began)
        """
        self._hooks.add_middleware(function)
        self._handlers.unbind()
        return function

    def on_startup(self, function: ProcessHookT) -> ProcessHookT:
        """
        Call *function*, async or plain, once in each process before its first job.

        Raises:
            HandlerError: It is no function without parameters.
        """
        self._hooks.add_startup(function)
        return function

    def on_shutdown(self, function: ProcessHookT) -> ProcessHookT:
        """
        Call *function*, async or plain, once in each process after its last job.

        Raises:
            HandlerError: It is no function without parameters.
        """
        self._hooks.add_shutdown(function)
        return function

    def on_dead_letter(self, function: FunctionT) -> FunctionT:
        """
        Call *function* for each job of the app's handlers that becomes a dead letter, whatever the cause.

        It is called in a job of its own, in the topic of the other one, with ``job``, a ``pulse.FailedJob``. The job is
        submitted in the transaction that ends the other one, so it is there if and only if that is a dead letter; it
        runs at least once, and is tried again like any job. For its own end there is no other job.

        Raises:
            HandlerError: It cannot be a handler, has no parameter ``job``, or another function is called already.

        Example:
            ::

                @app.on_dead_letter
                async def warn(job: pulse.FailedJob) -> None:
                    await chat.post(f"{job.name} {job.id} is dead: {job.error}")
        """
        return self._call_on("on_dead_letter", function)

    def on_crash(self, function: FunctionT) -> FunctionT:
        """
        Call *function* for each attempt of the app's handlers whose process died, as ``on_dead_letter`` says.

        Raises:
            HandlerError: It cannot be a handler, has no parameter ``job``, or another function is called already.
        """
        return self._call_on("on_crash", function)

    def _call_on(self, event: str, function: FunctionT) -> FunctionT:
        name = event_name(event, function)
        self._hooks.add_event(event, name)
        self._add(make_handler(name, function))
        self._handlers.unbind()
        return function

    def lifespan(self, function: LifespanT) -> LifespanT:
        """
        Keep a value for as long as a process lives; handlers get it by a parameter annotated with its type.

        *function* is an async generator function: it yields the value once, and goes on after the last job.

        Raises:
            HandlerError: It is something else, its return annotation is missing, or another one yields that type.

        Example:
            ::

                @app.lifespan
                async def database() -> AsyncIterator[Database]:
                    async with Database(url) as opened:
                        yield opened
        """
        self._hooks.add_lifespan(function)
        self._handlers.unbind()
        return function

    def on_failure(self, function: FailureHookT) -> FailureHookT:
        """
        Call *function*, async or plain, for each attempt that failed, with its context and its exception.

        It runs before the server hears of the failure, for a few seconds at most. What it raises is logged.

        Raises:
            HandlerError: It cannot be called with a context and an exception.
        """
        self._hooks.add_failure(function)
        self._handlers.unbind()
        return function
