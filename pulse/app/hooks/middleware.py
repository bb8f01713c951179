"""
Middleware: functions around each attempt, like layers around the handler.

The first one that was registered is the outermost. Async ones run in the event loop, and the thread of a plain handler
runs inside them; plain ones run in that thread, so they wrap plain handlers only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

from pulse.app.context import Context
from pulse.app.hooks.functions import check_arguments, check_function, is_async, shown
from pulse.errors import HandlerError

__all__ = ["CallNext", "Layers", "Middleware", "checked_middleware", "layers_for", "wrapped"]

CallNext: TypeAlias = "Callable[[], Awaitable[Any]]"
Middleware: TypeAlias = "Callable[[Context, CallNext], object]"


@dataclass(frozen=True, slots=True)
class Layers:
    """
    The middleware of one handler, innermost first, which is the order in which calls are wrapped.

    Attributes:
        in_loop: Async middleware.
        in_thread: Plain middleware, inside the other.
    """

    in_loop: tuple[Middleware, ...] = ()
    in_thread: tuple[Middleware, ...] = ()


def checked_middleware(label: str, function: Middleware) -> Middleware:
    """
    The same function.

    Raises:
        HandlerError: It cannot be called as middleware.
    """
    check_function(label, function, "middleware")
    check_arguments(label, function, "ctx", "call_next")
    return function


def checked_own(label: str, middleware: object, *, handler_is_async: bool) -> tuple[Middleware, ...]:
    """
    The middleware that a handler names for itself.

    Raises:
        HandlerError: One of them cannot wrap that handler.
    """
    if callable(middleware) or not isinstance(middleware, Iterable):
        raise HandlerError(f"{label}: middleware must be a list of functions, not {middleware!r:.100}")
    given = cast("Iterable[Middleware]", middleware)
    found = tuple(checked_middleware(f"{label}: middleware", one) for one in given)
    plain = next((one for one in found if not is_async(one)), None)
    if handler_is_async and plain is not None:
        raise HandlerError(
            f"{label}: middleware {shown(plain)} is a plain def, which cannot wait for an async handler;"
            " declare it with async def"
        )
    return found


def wrapped(call: Callable[[], Any], context: Context, layers: Iterable[Middleware]) -> Callable[[], Any]:
    """The call inside its layers; frames of pulse's own are not between them."""
    for layer in layers:
        call = partial(layer, context, call)
    return call


def layers_for(middleware: Iterable[Middleware], *, handler_is_async: bool) -> Layers | None:
    """
    The layers of one handler; None: there are none.

    Args:
        middleware: In the order of registration; plain ones are left out for an async handler.
    """
    inside_out = tuple(middleware)[::-1]
    in_loop = tuple(one for one in inside_out if is_async(one))
    in_thread = () if handler_is_async else tuple(one for one in inside_out if not is_async(one))
    return Layers(in_loop, in_thread) if in_loop or in_thread else None
