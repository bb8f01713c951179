"""An application: the handlers that a worker serves, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from pulse.errors import HandlerError
from pulse.handlers import Handler, make_handler, mark
from pulse.retries import RetryOn

__all__ = ["App"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class App:
    """
    A registry of handlers; ``pulse worker module:app`` serves it.

    Example:
        ::

            app = pulse.App()

            @app.handler("resize", topic="images", max_attempts=5, timeout_s=60.0)
            async def resize(path: str, width: int, ctx: pulse.Context) -> dict[str, bool]:
                await ctx.progress(0.5, "half way")
                return {"ok": True}

    """

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The handlers by name, read-only."""
        return MappingProxyType(self._handlers)

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
    ) -> Callable[[FunctionT], FunctionT]:
        """
        Register a function as the handler of the jobs called *name*.

        The job's args object becomes keyword arguments. A parameter annotated ``pulse.Context`` gets the context. The
        function itself is returned, so it can still be called, and be submitted: ``client.submit(resize, {...})``.

        Args:
            name: 1 to 200 characters, unique in this app.
            topic: Where its jobs wait unless the submit says otherwise.
            max_attempts: Charged tries before the dead letter, 1 to 10000.
            timeout_s: Longest run of one attempt, seconds from the handler's start.
            max_crashes: Deaths of its worker before the dead letter, 1 to 10000.
            stall_s: Longest time without ``ctx.progress`` or ``ctx.checkpoint``, seconds; then it is stopped.
            backoff: Wait after a failed try: quadratic[:UNIT], exponential[:FIRST[:LONGEST]], fixed:SECONDS or
                list:SECONDS,SECONDS,...; without it the topic's, else the server's.
            retry_on: What its exceptions mean for the next try: exception classes, of which the nearest counts, each
                with seconds, a back-off as above, pulse.Discard, or None: as usual; or a function (exception, tries)
                that says one of these.
            isolate: Run each job in a process of its own, whose death costs no other job anything.
            max_memory_bytes: Address space of that process; beyond it there is MemoryError. Needs *isolate*.
            max_cpu_s: Processor time of that process, rounded up to whole seconds. Needs *isolate*.

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
            )
            if name in self._handlers:
                taken = self._handlers[name].function
                raise HandlerError(f"handler {name!r} exists already: {getattr(taken, '__qualname__', repr(taken))}")
            self._handlers[name] = handler
            mark(handler)
            return function

        return register
