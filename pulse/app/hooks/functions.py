"""What kind of function something is, and whether it can be called as pulse would call it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

from pulse.errors import HandlerError

__all__ = ["check_arguments", "check_function", "is_async", "is_async_generator", "shown"]


def check_function(label: str, function: object, what: str) -> None:
    """
    Refuse what is no function, or yields.

    Args:
        label: How the error begins.
        what: What it is to be: "a handler".

    Raises:
        HandlerError: It says what was found instead.
    """
    check_callable(label, function, what)
    if any(inspect.isgeneratorfunction(part) or inspect.isasyncgenfunction(part) for part in _parts(function)):
        raise HandlerError(f"{label}: a generator function cannot be {what}; return the result instead of yielding")


def check_callable(label: str, function: object, what: str) -> None:
    """
    Refuse what is no function.

    Raises:
        HandlerError: It says what was found instead.
    """
    if inspect.iscoroutine(function):
        function.close()
        raise HandlerError(f"{label}: got a coroutine; pass the function itself, without calling it")
    if not callable(function):
        raise HandlerError(f"{label}: {function!r:.100} is not callable")
    if inspect.isclass(function):
        raise HandlerError(f"{label}: {function.__qualname__} is a class; {what} is a function")


def check_arguments(label: str, function: Callable[..., object], *names: str) -> None:
    """
    Refuse a function that cannot be called with these arguments by position.

    Raises:
        HandlerError: It takes fewer, or needs more.
    """
    try:
        inspect.signature(function).bind(*names)
    except (TypeError, ValueError):
        wanted = f"it is called with ({', '.join(names)})" if names else "it is called without arguments"
        raise HandlerError(f"{label}: {shown(function)} has other parameters; {wanted}") from None


def is_async(function: Callable[..., object]) -> bool:
    """Whether calling it makes a coroutine."""
    return any(inspect.iscoroutinefunction(part) for part in _parts(function))


def is_async_generator(function: Callable[..., object]) -> bool:
    """Whether calling it makes an async generator."""
    return any(inspect.isasyncgenfunction(part) for part in _parts(function))


def shown(function: object) -> str:
    """Its name, for people."""
    return getattr(function, "__qualname__", None) or repr(function)


def _parts(function: object) -> tuple[object, ...]:
    """What shows the kind of a callable: the function inside its partials, and ``__call__`` if it is an object."""
    while isinstance(function, functools.partial):
        function = function.func
    return (function, getattr(type(function), "__call__", None))  # noqa: B004 - the method itself is wanted
