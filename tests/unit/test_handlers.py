"""Handlers: what is refused at registration, and what is found out about the rest."""
# ruff: noqa: D102, D103 - the functions at the top are specimens; their signatures say all

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest

import pulse
from pulse import Context
from pulse.app.handler import make_handler, name_of
from pulse.errors import HandlerError

if TYPE_CHECKING:
    from nowhere import Thing  # type: ignore[import-not-found]


async def resize(path: str, width: int) -> None: ...


def plain(n: int) -> None: ...


class Callee:
    """An object that can be called."""

    def __call__(self, n: int, ctx: pulse.Context) -> None: ...


class AsyncCallee:
    """An object that can be awaited."""

    async def __call__(self, n: int) -> None: ...

    def method(self, n: int, ctx: Context) -> None: ...


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


def positional(n: int, /) -> None: ...


def twice(one: Context, two: pulse.Context) -> None: ...


def by_name(n: int, ctx: Context) -> None: ...


def by_module(n: int, ctx: pulse.Context) -> None: ...


def optional(n: int, ctx: Optional[Context] = None) -> None: ...  # noqa: UP045 - users write it


def union(n: int, ctx: pulse.Context | None = None) -> None: ...


def annotated(n: int, ctx: Annotated[Context, "note"]) -> None: ...


def quoted(n: int, ctx: "pulse.Context") -> None: ...  # noqa: UP037 - users write it


def beside_unknown(thing: Thing, ctx: Context) -> None: ...


def renamed(n: int, the_context: Context) -> None: ...


def named_only(n: int, ctx: int) -> None: ...


def of_contexts(n: int, ctxs: list[Context]) -> None: ...


def starred(*args: Context, **kwargs: Context) -> None: ...


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as users write them."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def test_the_function_stays_what_it_is() -> None:
    """The decorator returns the very function, which can be called and submitted."""
    app = pulse.App()
    again = app.handler("resize")(resize)
    assert again is resize
    assert name_of(resize) == "resize"
    assert app.handlers["resize"].function is resize


def test_what_is_declared() -> None:
    """The options end up in the handler, and only they are told to the server."""
    app = pulse.App()

    @app.handler("full", topic="images", max_attempts=5, timeout_s=60, max_crashes=2, stall_s=9)
    async def full() -> None: ...

    @app.handler("bare")
    def bare() -> None: ...

    assert app.handlers["full"].declared() == {
        "topic": "images",
        "max_attempts": 5,
        "timeout_s": 60.0,
        "max_crashes": 2,
        "stall_s": 9.0,
    }
    assert app.handlers["bare"].declared() == {}
    assert (app.handlers["full"].is_async, app.handlers["bare"].is_async) == (True, False)


def test_isolation_is_the_workers_own_business() -> None:
    """Its options are kept with the handler, and not declared: the server has no say in them."""
    options = {"isolate": True, "max_memory_bytes": 2**30, "max_cpu_s": 2}
    handler = make_handler("apart", plain, **options)
    assert (handler.isolate, handler.max_memory_bytes, handler.max_cpu_s) == (True, 2**30, 2.0)
    assert handler.declared() == {}
    assert make_handler("here", plain).isolate is False


def test_a_limit_needs_a_process() -> None:
    """Whoever limits a handler that shares its process is told what is missing."""
    with pytest.raises(HandlerError, match=r"handler 'x': max_cpu_s needs isolate=True: the limit is on a process"):
        pulse.App().handler("x", max_cpu_s=3)(plain)


def test_handlers_are_read_only() -> None:
    """Nobody adds a handler behind the checks."""
    app = pulse.App()
    with pytest.raises(TypeError):
        app.handlers["x"] = make_handler("x", plain)  # type: ignore[index]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (None, "is not callable"),
        ("resize", "is not callable"),
        (generator, "generator function"),
        (async_generator, "generator function"),
        (functools.partial(generator), "generator function"),
        (positional, "parameter 'n' is positional-only"),
        (twice, "parameters 'one', 'two' are all annotated pulse.Context"),
        (Callee, "is a class"),
        (dict.fromkeys, "cannot be read|positional-only"),
    ],
)
def test_refused_functions(function: Any, text: str) -> None:
    """What can never be called as a handler is refused when it is registered, in one line with its name."""
    app = pulse.App()
    with pytest.raises(HandlerError, match=text) as caught:
        app.handler("wrong")(function)
    assert "'wrong'" in caught.value.message
    assert "\n" not in caught.value.message
    assert not app.handlers


def test_a_called_function_is_no_handler() -> None:
    """A coroutine instead of its function is refused, and put away without a warning."""
    app = pulse.App()
    with pytest.raises(HandlerError, match="without calling it"):
        app.handler("wrong")(resize("a", 1))  # type: ignore[type-var, unused-coroutine]


def test_a_name_is_taken_once() -> None:
    """A second handler of the same name is refused, and the first one stays."""
    app = pulse.App()
    app.handler("same")(plain)
    with pytest.raises(HandlerError, match="handler 'same' exists already: plain"):
        app.handler("same")(optional)
    assert app.handlers["same"].function is plain


def test_the_decorator_needs_a_name() -> None:
    """`@app.handler` without parentheses says what to write."""
    with pytest.raises(HandlerError, match=r'write @app.handler\("some-name"\)'):
        pulse.App().handler(plain)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "x" * 201, "a\0b", "\ud800", 7, None])
def test_refused_names(name: Any) -> None:
    """A name is text that the database can hold."""
    with pytest.raises(HandlerError, match="name must be text of 1 to 200 characters"):
        pulse.App().handler(name)(plain)


@pytest.mark.parametrize(
    "options",
    [
        {"topic": ""},
        {"topic": "x" * 201},
        {"max_attempts": 0},
        {"max_attempts": 10_001},
        {"max_attempts": True},
        {"max_attempts": 2.0},
        {"max_crashes": 0},
        {"timeout_s": 0},
        {"timeout_s": -1},
        {"timeout_s": float("nan")},
        {"timeout_s": float("inf")},
        {"timeout_s": "60"},
        {"stall_s": 0},
        {"stall_s": float("nan")},
        {"stall_s": True},
        {"isolate": 1},
        {"isolate": "yes"},
        {"max_memory_bytes": 2**30},
        {"max_memory_bytes": 2**30, "isolate": False},
        {"max_memory_bytes": 0, "isolate": True},
        {"max_memory_bytes": 1e9, "isolate": True},
        {"max_memory_bytes": True, "isolate": True},
        {"max_memory_bytes": 2**63, "isolate": True},
        {"max_cpu_s": 1.5},
        {"max_cpu_s": 0, "isolate": True},
        {"max_cpu_s": float("inf"), "isolate": True},
    ],
)
def test_refused_options(options: dict[str, Any]) -> None:
    """An option out of range, or without the one that it needs, is refused by its name."""
    with pytest.raises(HandlerError, match=next(iter(options))):
        pulse.App().handler("x", **options)(plain)


@pytest.mark.parametrize(
    ("function", "parameter"),
    [
        (by_name, "ctx"),
        (by_module, "ctx"),
        (optional, "ctx"),
        (union, "ctx"),
        (annotated, "ctx"),
        (quoted, "ctx"),
        (beside_unknown, "ctx"),
        (renamed, "the_context"),
        (Callee(), "ctx"),
        (AsyncCallee().method, "ctx"),
        (functools.partial(by_name, n=1), "ctx"),
        (decorated(by_name), "ctx"),
        (plain, None),
        (named_only, None),
        (of_contexts, None),
        (starred, None),
    ],
)
def test_who_gets_the_context(function: Callable[..., Any], parameter: str | None) -> None:
    """By annotation, however it is written, and by nothing else."""
    assert make_handler("x", function).context_parameter == parameter


def test_a_context_that_only_type_checkers_know() -> None:
    """An annotation that cannot be evaluated goes by how it is written."""
    scope: dict[str, Any] = {}
    exec("def late(n: 'int', ctx: 'Context | None' = None): ...\ndef other(n, ctx: 'MyContext'): ...", scope)  # noqa: S102
    assert make_handler("x", scope["late"]).context_parameter == "ctx"
    assert make_handler("x", scope["other"]).context_parameter is None


def test_a_context_named_in_a_closure() -> None:
    """Names of the enclosing function are found as well."""
    alias = pulse.Context

    def inner(ctx: alias) -> object:  # type: ignore[valid-type]  # pyright: ignore[reportInvalidTypeForm]
        return alias

    assert make_handler("x", inner).context_parameter == "ctx"


@pytest.mark.parametrize(
    ("function", "is_async"),
    [
        (resize, True),
        (functools.partial(resize, width=1), True),
        (AsyncCallee(), True),
        (plain, False),
        (Callee(), False),
        (functools.partial(plain), False),
    ],
)
def test_what_runs_in_the_loop(function: Callable[..., Any], is_async: bool) -> None:
    """Whatever gives a coroutine is async, also behind a partial or as an object."""
    assert make_handler("x", function).is_async is is_async
    assert not inspect.isclass(function)


def test_who_can_be_submitted() -> None:
    """A name, or a function that is a handler under exactly one name."""
    app, other = pulse.App(), pulse.App()

    def once() -> None: ...

    def often() -> None: ...

    app.handler("once")(once)
    app.handler("one")(often)
    other.handler("two")(often)
    assert name_of("anything") == "anything"
    assert name_of(decorated(once)) == "once"
    with pytest.raises(HandlerError, match="registered as 'one', 'two'"):
        name_of(often)
    with pytest.raises(HandlerError, match="is not a handler"):
        name_of(positional)


def test_what_takes_no_attributes_can_still_be_a_handler() -> None:
    """A bound method is registered; it is submitted by its name."""
    app = pulse.App()
    app.handler("method")(AsyncCallee().method)
    assert app.handlers["method"].context_parameter == "ctx"
