"""
A call of a handler, to be submitted as a job: ``pulse.call(resize, "a.png", width=64)``.

Type checkers hold the arguments against the handler; at run time they are bound, checked and converted at once, so that
what is wrong fails where it is written, and not in a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, cast, overload

from pulse.app.context import Context
from pulse.app.handler import Handler, handler_of
from pulse.app.parameters import ArgumentError
from pulse.common.wire_values import args_text
from pulse.errors import BadRequestError, HandlerError

__all__ = ["Call", "HandlerRef", "call", "is_call", "resolve_call"]

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Call(Generic[ResultT_co]):
    """
    A handler's name and checked arguments; made by ``pulse.call``.

    Attributes:
        name: The name of the handler.
        args: Its arguments, a JSON object.
        options: Those of a submit that the handler declares: ``topic``, ``max_attempts``, ``timeout_s``; and
            ``unique`` and ``group_key``, its ``unique_by`` and ``group_by`` of these arguments.
    """

    name: str
    args: str
    options: Mapping[str, object] = field(default_factory=dict[str, object], hash=False, repr=False)


HandlerRef: TypeAlias = "str | Callable[..., Any] | Call[Any]"


@overload
def call(
    handler: Callable[Concatenate[Context, P], Coroutine[Any, Any, ResultT]], /, *args: P.args, **kwargs: P.kwargs
) -> Call[ResultT]: ...
@overload
def call(handler: Callable[P, Coroutine[Any, Any, ResultT]], /, *args: P.args, **kwargs: P.kwargs) -> Call[ResultT]: ...
@overload
def call(
    handler: Callable[Concatenate[Context, P], ResultT], /, *args: P.args, **kwargs: P.kwargs
) -> Call[ResultT]: ...
@overload
def call(handler: Callable[P, ResultT], /, *args: P.args, **kwargs: P.kwargs) -> Call[ResultT]: ...
def call(handler: Callable[..., Any], /, *args: object, **kwargs: object) -> Call[Any]:
    """
    A call of *handler*, for ``client.submit`` and wherever else a handler and its args are taken.

    Args:
        handler: A function registered with ``@app.handler``. Its ``pulse.Context`` is left out; for type checkers it
            has to be the first parameter.
        args, kwargs: As if it were called. Of a handler of batches: the args of one job, in one value or by name, which
            type checkers refuse.

    Raises:
        HandlerError: It is no handler.
        BadRequestError: It cannot be called like that; names the argument, its value, and what is allowed.

    Example:
        ``client.submit(pulse.call(resize, "a.png", width=64), priority=5)``
    """
    if isinstance(handler, str):
        raise HandlerError(f"{handler}: a call needs the function itself, not its name")
    found = handler_of(handler)
    try:
        return _made(found, found.parameters.bound(args, kwargs))
    except (ArgumentError, BadRequestError) as error:
        if any(isinstance(one, Context) for one in args):  # type checkers cannot refuse it
            raise BadRequestError(f"{found.name}: a call leaves the context out; the worker gives its own") from None
        raise BadRequestError(f"{found.name}: {error}") from None


def is_call(handler: object) -> bool:
    """Whether it has args of its own."""
    return isinstance(handler, Call)


def resolve_call(handler: HandlerRef, args: object) -> Call[Any]:
    """
    The call to submit; of a function its parameters judge the args.

    Raises:
        HandlerError: The function is not a handler, or has several names.
        BadRequestError: It does not take these args; or a call is given args beside its own.
    """
    if isinstance(handler, Call):
        if args is not None:
            raise BadRequestError(f"{handler.name}: args are given beside those of the call")
        return cast("Call[Any]", handler)  # type: ignore[redundant-cast]  # pyright says that it is partially unknown
    if isinstance(handler, str):
        return Call(handler, args_text(args))
    found = handler_of(handler)
    if args is not None and not isinstance(args, Mapping):
        return Call(found.name, args_text(args))  # which refuses them
    try:
        given = found.parameters.encoded({} if args is None else cast("Mapping[str, object]", args))
    except ArgumentError as error:
        raise BadRequestError(f"{found.name}: {error}") from None
    return _made(found, given)


def _made(found: Handler, args: Mapping[str, object]) -> Call[Any]:
    """A call of *found* with args that it takes."""
    return Call(found.name, args_text(args), {**found.submit_options, **found.keys(args)})
