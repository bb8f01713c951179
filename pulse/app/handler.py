"""
What a handler is: a function, the name that jobs call it by, and how it wants to be called.

All that can be wrong with a handler is found when it is registered, at import, and not when its first job fails.
"""

from __future__ import annotations

import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeGuard

from pulse.app.context import Context
from pulse.app.hooks.functions import check_function, is_async
from pulse.app.hooks.lifespan import provided_parameters
from pulse.app.hooks.middleware import Layers, Middleware, checked_own, layers_for
from pulse.app.hooks.registry import FailureHook, Hooks
from pulse.app.parameters import BatchParameters, Parameters, batch_kind, resolved
from pulse.app.retry_on import RetryOn, check_retry_on
from pulse.common.backoff import ALLOWED, is_backoff
from pulse.errors import BadRequestError, HandlerError
from pulse.security.codec import Codec

__all__ = ["Handler", "make_handler", "name_of"]

MAX_NAME: Final = 200  # characters; as in the database
MAX_KEY: Final = 500  # as in the database
MAX_GROUP: Final = 200  # as in the database
MAX_TRIES: Final = 10_000  # as in the database
MAX_SECONDS: Final = 1e9  # as on the wire
MAX_BYTES: Final = 2**60  # far beyond any machine, and below what the kernel takes
MAX_BATCH: Final = 1000  # a call gains nothing beyond, and a crash of its process is charged to all of its jobs
MAX_BATCH_WAIT_S: Final = 60.0  # the jobs are held meanwhile: no other worker can have them
BATCH_WAIT_S: Final = 0.05  # longer than a claim takes, too short to notice
_BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_HANDLERS: Final = "__pulse_handlers__"  # on the function: by each name that it was registered under, how to find it
# The annotation of a name that exists for type checkers only cannot be evaluated: compare its text.
_WRITTEN_CONTEXT: Final = re.compile(r"(?:^|[^\w.])(?:pulse\.)?Context(?:$|[^\w.])")


@dataclass(frozen=True, slots=True)
class Handler:
    """
    One registered handler.

    Attributes:
        function: The user's function, unchanged.
        is_async: Runs in the event loop; otherwise in a thread.
        parameters: What it takes, without its context.
        context_parameter: Name of the parameter that takes the Context; None: it has none.
        topic: Where its jobs wait unless the submit says otherwise; None: the server decides. The same for the next
            three.
        stall_s: Longest time without progress or checkpoint; None: its topic's, else no limit.
        backoff: Wait after a failed try, as in ``pulse.common.backoff``; None: its topic's.
        retry_on: What its exceptions mean for the next try.
        isolate: Each of its jobs runs in a process of its own.
        max_memory_bytes: Address space of that process.
        max_cpu_s: Processor time of that process.
        batch: Most jobs of one call; None: each job has a call of its own.
        batch_wait_s: Longest wait of the first of them for more.
        unique_by: Makes the unique key of a job from its arguments, by their names; None: its jobs have none.
        group_by: Makes the group of a job likewise.
        codec: Its app's.
        middleware: Its own, inside its app's.
        layers: All that wraps it; None: nothing does.
        provided: Parameters that get the value of a lifespan, with its type.
        on_failure: Its app's hooks.
        events: Names of the jobs that tell of its dead letters and crashes, by ``on_dead_letter`` and ``on_crash``.
    """

    name: str
    function: Callable[..., Any]
    is_async: bool
    parameters: Parameters
    context_parameter: str | None = None
    topic: str | None = None
    max_attempts: int | None = None
    timeout_s: float | None = None
    max_crashes: int | None = None
    stall_s: float | None = None
    backoff: str | None = None
    retry_on: RetryOn | None = None
    isolate: bool = False
    max_memory_bytes: int | None = None
    max_cpu_s: float | None = None
    batch: int | None = None
    batch_wait_s: float | None = None
    unique_by: Callable[..., str | None] | None = None
    group_by: Callable[..., str | None] | None = None
    codec: Codec | None = None
    middleware: tuple[Middleware, ...] = ()
    layers: Layers | None = None
    provided: Mapping[str, Any] = field(default_factory=dict[str, Any])
    on_failure: tuple[FailureHook, ...] = ()
    events: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def submit_options(self) -> dict[str, object]:
        """The declared options that a submit has, too: with the function in hand, no worker needs to have told them."""
        values = {"topic": self.topic, "max_attempts": self.max_attempts, "timeout_s": self.timeout_s}
        return {key: value for key, value in values.items() if value is not None}

    def keys(self, args: Mapping[str, object]) -> dict[str, str]:
        """
        The unique key and the group of a job with *args*, as options of a submit.

        Raises:
            BadRequestError: ``unique_by`` or ``group_by`` makes something else.
        """
        made = {
            "unique": self._made("unique_by", self.unique_by, args, MAX_KEY),
            "group_key": self._made("group_by", self.group_by, args, MAX_GROUP, but=", but not * alone,"),
        }
        return {option: key for option, key in made.items() if key is not None}

    def _made(
        self, what: str, function: Callable[..., object] | None, args: Mapping[str, object], most: int, but: str = ""
    ) -> str | None:
        """What *function* makes from what the handler would get."""
        if function is None:
            return None
        given = self.parameters.complete(args)
        key = function(**{name: given[name] for name in inspect.signature(function).parameters})
        if key is None or (isinstance(key, str) and 1 <= len(key) <= most and not (but and key == "*")):
            return key
        allowed = f"text of 1 to {most} characters{but} is allowed, or None"
        raise BadRequestError(f"{self.name}: {what} gives {key!r:.100}; {allowed}")

    def declared(self) -> dict[str, object]:
        """The declared options, for the worker's hello."""
        values = {
            "topic": self.topic,
            "max_attempts": self.max_attempts,
            "timeout_s": self.timeout_s,
            "max_crashes": self.max_crashes,
            "stall_s": self.stall_s,
            "backoff": self.backoff,
            "batch": self.batch,
            **self.events,
        }
        return {key: value for key, value in values.items() if value is not None}


def make_handler(name: str, function: Callable[..., Any], **options: Any) -> Handler:
    """
    Check a handler and its options.

    Args:
        name: Name of its jobs.
        function: The user's function.
        options: Options of ``App.handler``.

    Raises:
        HandlerError: It can never be called as pulse calls handlers, or an option is out of range; one line that says
            which, and what is allowed.
    """
    _check_word("name", name)
    label = f"handler {name!r}"
    check_function(label, function, "a handler")
    context, parameters = _read(label, function)
    is_batch = options.get("batch") is not None
    if is_batch:
        _check_jobs(label, function, context, parameters)
    made = Handler(
        name,
        function,
        is_async=is_async(function),
        parameters=_parameters(is_batch=is_batch)(function, parameters, {context}),
        context_parameter=context,
        **options,
    )
    if made.topic is not None:
        _check_word("topic", made.topic, label)
    _check_count(label, "max_attempts", made.max_attempts)
    _check_count(label, "max_crashes", made.max_crashes)
    _check_seconds(label, "timeout_s", made.timeout_s)
    _check_seconds(label, "stall_s", made.stall_s)
    if made.backoff is not None and not is_backoff(made.backoff):
        raise HandlerError(f"{label}: backoff must be one of {ALLOWED}, not {made.backoff!r:.100}")
    if made.retry_on is not None:
        check_retry_on(label, made.retry_on)
    _check_isolation(label, made.isolate, made.max_memory_bytes, made.max_cpu_s)
    _check_batch(label, made)
    for what, makes_key in (("unique_by", made.unique_by), ("group_by", made.group_by)):
        if makes_key is not None:
            _check_key_function(label, what, makes_key, made.parameters.names)
    return replace(
        made,
        batch_wait_s=_wait_s(made),
        timeout_s=_as_float(made.timeout_s),
        stall_s=_as_float(made.stall_s),
        max_cpu_s=_as_float(made.max_cpu_s),
        middleware=checked_own(label, made.middleware, handler_is_async=made.is_async),
    )


def bound(handler: Handler, hooks: Hooks) -> Handler:
    """The handler with the hooks of its app, of which there are more now than when it was registered."""
    function = handler.function
    parameters = inspect.signature(function).parameters
    provided = provided_parameters(function, parameters, hooks.kinds)
    return replace(
        handler,
        parameters=_parameters(is_batch=handler.batch is not None)(
            function, parameters, {handler.context_parameter, *provided}
        ),
        layers=layers_for((*hooks.middleware, *handler.middleware), handler_is_async=handler.is_async),
        provided=provided,
        on_failure=hooks.on_failure,
        events={} if handler.name in hooks.events.values() else dict(hooks.events),
    )


def _parameters(*, is_batch: bool) -> type[Parameters]:
    return BatchParameters if is_batch else Parameters


def _wait_s(handler: Handler) -> float | None:
    if handler.batch is None:
        return None
    return BATCH_WAIT_S if handler.batch_wait_s is None else float(handler.batch_wait_s)


def _as_float(seconds: float | None) -> float | None:
    return None if seconds is None else float(seconds)


def mark(function: Callable[..., object], name: str, find: Callable[[], Handler]) -> None:
    """Write on a function which handler it is, and how to *find* that: so it can be submitted instead of the name."""
    try:
        setattr(function, _HANDLERS, {**getattr(function, _HANDLERS, {}), name: find})
    except (AttributeError, TypeError):
        return  # a bound method or a builtin takes no attribute; it is submitted by name


def name_of(handler: str | Callable[..., object]) -> str:
    """
    The name to submit by.

    Args:
        handler: A name, or a function that was registered with ``@app.handler``.

    Raises:
        HandlerError: The function is not a handler, or has several names.
    """
    if isinstance(handler, str):
        return handler
    names = list(_known(handler))
    if len(names) == 1:
        return names[0]
    shown = getattr(handler, "__qualname__", None) or repr(handler)
    if not names:
        raise HandlerError(f"{shown} is not a handler: register it with @app.handler(name), or submit a name")
    raise HandlerError(f"{shown} is registered as {', '.join(map(repr, names))}: submit one of these names")


def handler_of(function: Callable[..., object]) -> Handler:
    """
    The handler that a registered function is.

    Raises:
        HandlerError: It is none, or has several names.
    """
    return _known(function)[name_of(function)]()


def _known(function: object) -> Mapping[str, Callable[[], Handler]]:
    return getattr(function, _HANDLERS, {})


def _check_word(what: str, value: object, label: str = "handler") -> None:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME or "\0" in value or not _encodes(value):
        raise HandlerError(f"{label}: the {what} must be text of 1 to {MAX_NAME} characters, not {value!r:.100}")


def _check_count(label: str, what: str, value: object) -> None:
    if value is not None and not (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_TRIES):
        raise HandlerError(f"{label}: {what} must be a whole number from 1 to {MAX_TRIES}, not {value!r:.100}")


def _check_seconds(label: str, what: str, value: object) -> None:
    if value is not None and not (_is_number(value) and 0 < value <= MAX_SECONDS):
        raise HandlerError(f"{label}: {what} must be above 0 and at most {MAX_SECONDS:g} seconds, not {value!r:.100}")


def _check_isolation(label: str, isolate: object, max_memory_bytes: object, max_cpu_s: object) -> None:
    if not isinstance(isolate, bool):
        raise HandlerError(f"{label}: isolate must be True or False, not {isolate!r:.100}")
    for what, value in (("max_memory_bytes", max_memory_bytes), ("max_cpu_s", max_cpu_s)):
        if value is not None and not isolate:
            raise HandlerError(f"{label}: {what} needs isolate=True: the limit is on a process of the job's own")
    _check_seconds(label, "max_cpu_s", max_cpu_s)
    if max_memory_bytes is not None and not (
        isinstance(max_memory_bytes, int)
        and not isinstance(max_memory_bytes, bool)
        and 1 <= max_memory_bytes <= MAX_BYTES
    ):
        raise HandlerError(
            f"{label}: max_memory_bytes must be a whole number from 1 to {MAX_BYTES}, not {max_memory_bytes!r:.100}"
        )


def _check_jobs(
    label: str,
    function: Callable[..., object],
    context: str | None,
    parameters: Mapping[str, inspect.Parameter],
) -> None:
    """Refuse a function that cannot take a batch."""
    wanted = "a handler of batches takes them as its first parameter, annotated list[pulse.BatchJob]"
    if context is not None:
        raise HandlerError(f"{label}: a batch has no context for {context!r}: each job of it has its own, job.ctx")
    first = next(iter(parameters.values()), None)
    if first is None or first.kind in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        raise HandlerError(f"{label}: no parameter takes the jobs; {wanted}")
    try:
        batch_kind(function, first)
    except TypeError as error:
        raise HandlerError(f"{label}: parameter {first.name!r} {error}; {wanted}") from None


def _check_batch(label: str, handler: Handler) -> None:
    size, wait_s = handler.batch, handler.batch_wait_s
    if size is None:
        if wait_s is not None:
            raise HandlerError(f"{label}: batch_wait_s needs batch: it is how long the first job waits for others")
        return
    if not _is_size(size):
        raise HandlerError(f"{label}: batch must be a whole number from 1 to {MAX_BATCH}, not {size!r:.100}")
    if wait_s is not None and not (_is_number(wait_s) and 0 <= wait_s <= MAX_BATCH_WAIT_S):
        raise HandlerError(f"{label}: batch_wait_s must be from 0 to {MAX_BATCH_WAIT_S:g} seconds, not {wait_s!r:.100}")
    if handler.isolate:
        raise HandlerError(f"{label}: isolate=True runs each job in a process of its own, which no batch can do")


def _is_size(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= MAX_BATCH


def _check_key_function(label: str, what: str, function: object, allowed: Sequence[str]) -> None:
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise HandlerError(f"{label}: {what} must be a plain function of its arguments, not {function!r:.100}")
    for parameter in inspect.signature(function).parameters.values():
        is_known = parameter.name in allowed and parameter.kind in _BY_NAME
        if not is_known:
            raise HandlerError(
                f"{label}: {what} takes {parameter.name!r}; parameters of the handler are allowed, by their names: "
                f"{', '.join(allowed) or 'it has none'}"
            )


def _read(label: str, function: Callable[..., object]) -> tuple[str | None, Mapping[str, inspect.Parameter]]:
    """The name of the parameter that takes the context, and all parameters."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise HandlerError(f"{label}: the parameters of {function!r:.100} cannot be read") from None
    found = [parameter.name for parameter in parameters.values() if _takes_context(function, parameter)]
    for parameter in parameters.values():
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise HandlerError(
                f"{label}: parameter {parameter.name!r} is positional-only; arguments are passed by keyword"
            )
    if len(found) > 1:
        raise HandlerError(
            f"{label}: parameters {', '.join(map(repr, found))} are all annotated pulse.Context; keep one"
        )
    return (found[0] if found else None), parameters


def _takes_context(function: Callable[..., object], parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    variable = parameter.kind in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return annotation is not inspect.Parameter.empty and not variable and _is_context(function, annotation)


def _is_context(function: Callable[..., object], annotation: object) -> bool:
    try:
        found = resolved(function, annotation)
    except Exception:  # noqa: BLE001 - evaluating an annotation runs code of the user's
        return isinstance(annotation, str) and _WRITTEN_CONTEXT.search(annotation) is not None
    if typing.get_origin(found) is typing.Annotated:
        found = typing.get_args(found)[0]
    if typing.get_origin(found) in {typing.Union, types.UnionType}:
        return Context in typing.get_args(found)
    return found is Context


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
