"""
Values that live as long as a process, such as a pool of database connections, and what is called at its start and end.

A handler process starts before its first job and ends after its last; the process of an isolated job does both for its
one job. Everything happens in one task, so that a lifespan may hold a task group open around its ``yield``.
"""

from __future__ import annotations

import collections.abc
import contextlib
import inspect
import types
import typing
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pulse.app.context import Context
from pulse.app.hooks.functions import check_arguments, check_callable, is_async_generator, shown
from pulse.app.parameters import resolved
from pulse.errors import HandlerError

if TYPE_CHECKING:
    from pulse.app.hooks.registry import Hooks

__all__ = ["SHUTDOWN_S", "Lifespan", "StartupError", "make_lifespan", "provided", "provided_parameters", "running"]

SHUTDOWN_S: Final = 5.0  # for all that is called at the end; a pool that stops allows less once drain_s is used up
_ITERATORS: Final = (collections.abc.AsyncIterator, collections.abc.AsyncGenerator, collections.abc.AsyncIterable)
# Args of jobs have these types, too: a parameter would not tell which it wants.
_AMBIGUOUS: Final = frozenset({object, str, int, float, bool, bytes, list, dict, set, tuple, Context})
_UNKNOWN: Final = object()  # an annotation that cannot be evaluated


class StartupError(Exception):
    """A function that was called when the process started has failed; its cause says how."""


@dataclass(frozen=True, slots=True)
class Lifespan:
    """
    One lifespan of an app.

    Attributes:
        function: The user's async generator function.
        kind: The type that it yields, by which handlers ask for it; None: it yields nothing.
    """

    function: Callable[[], AsyncGenerator[Any, None]]
    kind: Any


class _Provided:
    """The default of a parameter that gets the value of a lifespan."""

    def __repr__(self) -> str:
        return "pulse.provided()"

    def __getattr__(self, name: str) -> object:
        raise AttributeError(f"{name}: pulse.provided() is no value: a worker replaces it; elsewhere pass one")


_PROVIDED: Final = _Provided()


def provided() -> Any:  # noqa: ANN401 - the default of a parameter of any type
    """
    The default of a handler's parameter that gets the value of a lifespan, so that calls can leave it out.

    Example:
        ``async def resize(path: str, deps: Deps = pulse.provided()) -> None: ...``
    """
    return _PROVIDED


def make_lifespan(function: Callable[[], Any]) -> Lifespan:
    """
    Check a lifespan.

    Raises:
        HandlerError: It is no async generator function without parameters, or its type is missing or unusable.
    """
    label = "lifespan"
    check_callable(label, function, "a lifespan")
    if not is_async_generator(function):
        raise HandlerError(
            f"{label}: {shown(function)} must be an async generator function: async def with one yield, undecorated"
        )
    check_arguments(label, function)
    return Lifespan(function, _kind_of(f"{label} {shown(function)}", function))


def _kind_of(label: str, function: Callable[..., object]) -> Any:  # noqa: ANN401 - any type
    annotation = inspect.signature(function).return_annotation
    wanted = "write -> AsyncIterator[T], where T is the type by which handlers ask for its value"
    if annotation is inspect.Signature.empty:
        raise HandlerError(f"{label}: the return annotation is missing; {wanted}")
    try:
        found: Any = resolved(function, annotation)
    except Exception as error:  # noqa: BLE001 - evaluating an annotation runs code of the user's
        raise HandlerError(f"{label}: the return annotation {annotation!r:.100} cannot be evaluated: {error}") from None
    if typing.get_origin(found) not in _ITERATORS:
        raise HandlerError(f"{label}: the return annotation is {annotation!r:.100}; {wanted}")
    kind = typing.get_args(found)[0]
    if kind is types.NoneType:
        return None
    if kind is Any or kind in _AMBIGUOUS or typing.get_origin(kind) in _AMBIGUOUS:
        raise HandlerError(f"{label}: args of jobs may be of type {kind!r:.100}, too; yield a class of your own")
    return kind


def provided_parameters(
    function: Callable[..., object], parameters: Mapping[str, inspect.Parameter], kinds: Collection[Any]
) -> dict[str, Any]:
    """
    The parameters that get the value of a lifespan, with its type.

    Args:
        kinds: The types that the app's lifespans yield.
    """
    found: dict[str, Any] = {}
    for name, parameter in parameters.items():
        is_marked = parameter.default is _PROVIDED
        if parameter.kind in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            continue
        if is_marked or (kinds and parameter.annotation is not inspect.Parameter.empty):
            kind = _annotated(function, parameter)
            if is_marked or any(kind == one for one in kinds):
                found[name] = kind
    return found


def _annotated(function: Callable[..., object], parameter: inspect.Parameter) -> Any:  # noqa: ANN401 - any type
    try:
        kind = resolved(function, parameter.annotation)
    except Exception:  # noqa: BLE001 - evaluating an annotation runs code of the user's
        return _UNKNOWN
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind


@contextlib.asynccontextmanager
async def running(
    hooks: Hooks, failed: Callable[[str, BaseException], None], only: Collection[Any] | None = None
) -> AsyncGenerator[Mapping[Any, Any], None]:
    """
    Start what lives as long as the process, and end it.

    Args:
        hooks: Those of the app.
        failed: Called with a function's name and its error, if it fails at the end.
        only: The types that are needed; None: all.

    Yields:
        The values of the lifespans, by type.

    Raises:
        StartupError: A function failed at the start; what had been started was ended again.
    """
    import anyio

    is_over = False
    with anyio.CancelScope() as scope:  # outside of all that a lifespan may enter: only then it can be the last to end
        try:
            async with contextlib.AsyncExitStack() as stack:
                yield await _start(hooks, stack, only)
                is_over = True
                scope.deadline = anyio.current_time() + SHUTDOWN_S
        except Exception as error:
            if not is_over:
                raise
            failed("lifespan", error)
        for function in hooks.on_shutdown:
            try:
                await _call(function)
            except Exception as error:  # noqa: BLE001 - the others have to be called all the same
                failed(shown(function), error)
    if scope.cancelled_caught:
        failed("shutdown", TimeoutError(f"it took more than {SHUTDOWN_S:g} s"))


async def _start(hooks: Hooks, stack: contextlib.AsyncExitStack, only: Collection[Any] | None) -> Mapping[Any, Any]:
    values: dict[Any, Any] = {}
    function: Callable[..., object]
    for function in hooks.on_startup:
        with _named(function):
            await _call(function)
    for lifespan in hooks.lifespans:
        if only is None or lifespan.kind in only:
            with _named(lifespan.function):
                context = contextlib.asynccontextmanager(lifespan.function)()
                values[lifespan.kind] = await stack.enter_async_context(context)
    return values


@contextlib.contextmanager
def _named(function: Callable[..., object]) -> Generator[None, None, None]:
    try:
        yield
    except Exception as error:
        raise StartupError(shown(function)) from error


async def _call(function: Callable[[], object]) -> None:
    made = function()
    if inspect.isawaitable(made):
        await made
