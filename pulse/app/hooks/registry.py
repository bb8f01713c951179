"""All hooks of an app, in the order of registration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from pulse.app.context import Context
from pulse.app.hooks.functions import check_arguments, check_function, shown
from pulse.app.hooks.lifespan import Lifespan, make_lifespan
from pulse.app.hooks.middleware import Middleware, checked_middleware
from pulse.errors import HandlerError

__all__ = ["FailureHook", "Hooks", "ProcessHook"]

ProcessHook: TypeAlias = "Callable[[], Awaitable[object] | object]"
FailureHook: TypeAlias = "Callable[[Context, BaseException], Awaitable[object] | object]"


class Hooks:
    """
    The hooks of an app; its methods check what they add.

    Attributes:
        middleware: Around each attempt, the outermost first.
        on_startup, on_shutdown: Called once in each process.
        lifespans: Their values live as long as a process.
        on_failure: Called for each attempt that failed.
        events: Names of the jobs that tell of dead letters and crashes, by ``on_dead_letter`` and ``on_crash``.
    """

    def __init__(self) -> None:
        self.middleware: tuple[Middleware, ...] = ()
        self.on_startup: tuple[ProcessHook, ...] = ()
        self.on_shutdown: tuple[ProcessHook, ...] = ()
        self.lifespans: tuple[Lifespan, ...] = ()
        self.on_failure: tuple[FailureHook, ...] = ()
        self.events: dict[str, str] = {}

    @property
    def kinds(self) -> list[Any]:
        """The types that the lifespans yield."""
        return [one.kind for one in self.lifespans if one.kind is not None]

    def add_middleware(self, function: Middleware) -> None:
        """One more, inside those before."""
        self.middleware = (*self.middleware, checked_middleware("middleware", function))

    def add_startup(self, function: ProcessHook) -> None:
        """One more."""
        self.on_startup = (*self.on_startup, _checked_process_hook("on_startup", function))

    def add_shutdown(self, function: ProcessHook) -> None:
        """One more."""
        self.on_shutdown = (*self.on_shutdown, _checked_process_hook("on_shutdown", function))

    def add_failure(self, function: FailureHook) -> None:
        """One more."""
        check_function("on_failure", function, "a hook")
        check_arguments("on_failure", function, "ctx", "error")
        self.on_failure = (*self.on_failure, function)

    def add_event(self, event: str, name: str) -> None:
        """Have jobs *name* tell of an *event*."""
        if event in self.events:
            taken = self.events[event].partition(":")[2]
            raise HandlerError(f"{event}: {taken} is called already; one function is allowed")
        self.events[event] = name

    def add_lifespan(self, function: Callable[[], Any]) -> None:
        """One more, of another type."""
        added = make_lifespan(function)
        same = next((one for one in self.lifespans if added.kind is not None and one.kind == added.kind), None)
        if same is not None:
            raise HandlerError(
                f"lifespan {shown(function)}: {shown(same.function)} yields {added.kind!r:.100} already; one may"
            )
        self.lifespans = (*self.lifespans, added)


def _checked_process_hook(label: str, function: ProcessHook) -> ProcessHook:
    check_function(label, function, "a hook")
    check_arguments(label, function)
    return function
