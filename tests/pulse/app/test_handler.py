"""Handlers and declared schedules: what is refused, and what their signatures mean."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest

import pulse
from pulse import Context
from pulse.app.app import App
from pulse.app.handler import make_handler, name_of
from pulse.errors import HandlerError

if TYPE_CHECKING:
    from nowhere import Thing  # type: ignore[import-not-found]
from datetime import UTC, datetime

import msgspec

from pulse import protocol


async def resize(path: str, width: int) -> None: ...


def plain(n: int) -> None: ...


class Callee:
    def __call__(self, n: int, ctx: pulse.Context) -> None: ...


class AsyncCallee:
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
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def test_the_function_stays_what_it_is() -> None:
    app = App()
    assert app.handler("resize")(resize) is resize
    assert name_of(resize) == "resize"
    assert app.handlers["resize"].function is resize


def test_what_is_declared() -> None:
    app = App()

    @app.handler("full", topic="images", max_attempts=5, timeout_s=60, max_crashes=2, stall_s=9)
    async def full() -> None: ...

    @app.handler("bare")
    def bare() -> None: ...

    options = {"topic": "images", "max_attempts": 5, "timeout_s": 60.0, "max_crashes": 2, "stall_s": 9.0}
    assert app.handlers["full"].declared() == options
    assert app.handlers["bare"].declared() == {}
    assert (app.handlers["full"].is_async, app.handlers["bare"].is_async) == (True, False)


def test_isolation_is_the_workers_own_business() -> None:
    options = {"isolate": True, "max_memory_bytes": 2**30, "max_cpu_s": 2}
    handler = make_handler("apart", plain, **options)
    assert (handler.isolate, handler.max_memory_bytes, handler.max_cpu_s) == (True, 2**30, 2.0)
    assert handler.declared() == {}
    assert make_handler("here", plain).isolate is False
    with pytest.raises(HandlerError, match=r"handler 'x': max_cpu_s needs isolate=True: the limit is on a process"):
        App().handler("x", max_cpu_s=3)(plain)


@pytest.mark.parametrize(("function", "text"), [
    (None, "is not callable"), ("resize", "is not callable"), (generator, "generator function"),
    (async_generator, "generator function"), (functools.partial(generator), "generator function"),
    (positional, "parameter 'n' is positional-only"),
    (twice, "parameters 'one', 'two' are all annotated pulse.Context"), (Callee, "is a class"),
    (dict.fromkeys, "cannot be read|positional-only"),
])  # fmt: skip
def test_refused_functions(function: Any, text: str) -> None:
    app = App()
    with pytest.raises(HandlerError, match=text) as caught:
        app.handler("wrong")(function)
    assert "'wrong'" in caught.value.message
    assert "\n" not in caught.value.message
    assert not app.handlers


def test_a_called_function_is_no_handler() -> None:
    """A coroutine instead of its function is refused, and closed without a warning."""
    app = App()
    with pytest.raises(HandlerError, match="without calling it"):
        app.handler("wrong")(resize("a", 1))  # type: ignore[type-var, unused-coroutine]


def test_a_name_is_taken_once() -> None:
    app = App()
    app.handler("same")(plain)
    with pytest.raises(HandlerError, match="handler 'same' exists already: plain"):
        app.handler("same")(optional)
    with pytest.raises(TypeError, match="does not support item assignment"):
        app.handlers["same"] = make_handler("same", optional)  # type: ignore[index]
    assert app.handlers["same"].function is plain


def test_refused_names() -> None:
    names: list[Any] = ["", "x" * 201, "a\0b", "\ud800", 7, None]
    for name in names:
        with pytest.raises(HandlerError, match="name must be text of 1 to 200 characters"):
            App().handler(name)(plain)
    with pytest.raises(HandlerError, match=r'write @app.handler\("some-name"\)'):
        App().handler(plain)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [
    {"topic": ""}, {"topic": "x" * 201}, {"max_attempts": 0}, {"max_attempts": 10_001}, {"max_attempts": True},
    {"max_attempts": 2.0}, {"max_crashes": 0}, {"timeout_s": 0}, {"timeout_s": -1}, {"timeout_s": float("nan")},
    {"timeout_s": float("inf")}, {"timeout_s": "60"}, {"stall_s": 0}, {"stall_s": float("nan")}, {"stall_s": True},
    {"isolate": 1}, {"isolate": "yes"}, {"max_memory_bytes": 2**30}, {"max_memory_bytes": 2**30, "isolate": False},
    {"max_memory_bytes": 0, "isolate": True}, {"max_memory_bytes": 1e9, "isolate": True},
    {"max_memory_bytes": True, "isolate": True}, {"max_memory_bytes": 2**63, "isolate": True}, {"max_cpu_s": 1.5},
    {"max_cpu_s": 0, "isolate": True}, {"max_cpu_s": float("inf"), "isolate": True},
])  # fmt: skip
def test_refused_options(options: dict[str, Any]) -> None:
    with pytest.raises(HandlerError, match=next(iter(options))):
        App().handler("x", **options)(plain)


@pytest.mark.parametrize(("function", "parameter"), [
    (by_name, "ctx"), (by_module, "ctx"), (optional, "ctx"), (union, "ctx"), (annotated, "ctx"), (quoted, "ctx"),
    (beside_unknown, "ctx"), (renamed, "the_context"), (Callee(), "ctx"), (AsyncCallee().method, "ctx"),
    (functools.partial(by_name, n=1), "ctx"), (decorated(by_name), "ctx"), (plain, None), (named_only, None),
    (of_contexts, None), (starred, None),
])  # fmt: skip
def test_who_gets_the_context(function: Callable[..., Any], parameter: str | None) -> None:
    assert make_handler("x", function).context_parameter == parameter


def test_a_context_that_only_type_checkers_know() -> None:
    """An annotation that cannot be evaluated counts by its text; names of the enclosing function are found."""
    scope: dict[str, Any] = {}
    exec("def late(n: 'int', ctx: 'Context | None' = None): ...\ndef other(n, ctx: 'MyContext'): ...", scope)  # noqa: S102
    assert make_handler("x", scope["late"]).context_parameter == "ctx"
    assert make_handler("x", scope["other"]).context_parameter is None
    alias = pulse.Context

    def inner(ctx: alias) -> object:  # type: ignore[valid-type]  # pyright: ignore[reportInvalidTypeForm]
        return alias

    assert make_handler("x", inner).context_parameter == "ctx"


@pytest.mark.parametrize(("function", "is_async"), [
    (resize, True), (functools.partial(resize, width=1), True), (AsyncCallee(), True), (plain, False),
    (Callee(), False), (functools.partial(plain), False),
])  # fmt: skip
def test_what_runs_in_the_loop(function: Callable[..., Any], is_async: bool) -> None:
    assert make_handler("x", function).is_async is is_async
    assert not inspect.isclass(function)


def test_who_can_be_submitted() -> None:
    """A name, or a function that is a handler under exactly one name."""
    app, other = App(), App()

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
    app = App()
    app.handler("method")(AsyncCallee().method)
    assert app.handlers["method"].context_parameter == "ctx"


def test_what_is_declared_of_schedules() -> None:
    app = App()

    @app.schedule("often", {"n": 1}, every_s=5, overlap="skip", jitter_s=1.5)
    @app.schedule("one", every_s=5, unique="k", unique_until="start", on_conflict="replace", group_key="g")
    @app.schedule("nightly", cron="30 2 * * *", timezone="Europe/Berlin", starts_at=datetime(2030, 1, 1, tzinfo=UTC))
    @app.handler("report")
    def report(n: int = 0) -> None:
        del n

    assert list(app.schedules) == ["nightly", "one", "often"]
    sent = [msgspec.convert(one.body, protocol.ScheduleDeclared) for one in app.schedules.values()]
    nightly = protocol.ScheduleDeclared(
        "report", cron="30 2 * * *", timezone="Europe/Berlin", starts_at=1893456000.0, key="nightly"
    )
    often = protocol.ScheduleDeclared("report", every=5.0, args='{"n":1}', overlap="skip", jitter_s=1.5, key="often")
    one = protocol.ScheduleDeclared(
        "report", every=5.0, group_key="g", unique="k", unique_until="start", on_conflict="replace", key="one"
    )
    assert sent == [nightly, one, often]
    assert callable(report)


@pytest.mark.parametrize(("rules", "message"), [
    ({}, "give exactly one of cron, every_s, run_at, not none"),
    ({"cron": "@daily", "every_s": 5}, "give exactly one of cron, every_s, run_at, not cron, every_s"),
    ({"every_s": -5}, "every_s is -5; seconds are allowed, not negative"),
    ({"every_s": 5, "jitter_s": -0.5}, "jitter_s is -0.5; seconds are allowed, not negative"),
    ({"every_s": 5, "catch_up": "none"}, "catch_up is 'none'; allowed are skip, latest, all"),
    ({"every_s": 5, "overlap": "none"}, "overlap is 'none'; allowed are allow, skip, queue, cancel"),
    ({"every_s": 5, "on_conflict": "skip"}, "unique_until or on_conflict is given; they are allowed with unique only"),
    ({"every_s": 5, "group_key": ""}, "group_key is ''; text of 1 to 200 characters is allowed, but not * alone"),
    ({"every_s": 5, "group_key": "*"}, "group_key is '*'; text of 1 to 200 characters is allowed, but not * alone"),
    ({"every_s": 5, "group_key": "g" * 201}, "group_key is 'ggg"),
    ({"every_s": 5, "group_key": 7}, "group_key is 7; text of 1 to 200 characters is allowed, but not * alone"),
    ({"every_s": 5, "unique": ""}, "unique is ''; text of 1 to 500 characters is allowed"),
    ({"every_s": 5, "unique": "k" * 501}, "unique is 'kkk"),
    ({"every_s": 5, "unique": 7}, "unique is 7; text of 1 to 500 characters is allowed"),
    ({"every_s": 5, "unique": "k", "unique_until": "stop"}, "unique_until is 'stop'; allowed are start, end"),
    ({"every_s": 5, "unique": "k", "on_conflict": "error"}, "on_conflict is 'error'; allowed are skip, replace"),
    (
        {"every_s": 5, "unique": "k", "overlap": "skip"},
        "overlap is 'skip'; with unique only allow is: on_conflict decides",
    ),
    ({"every_s": 5, "often": 1}, "unknown option 'often'; allowed are catch_up, cron, ends_at"),
    ({"run_at": datetime(2030, 1, 1)}, "run_at has no time zone: 2030-01-01T00:00:00"),  # noqa: DTZ001
    ({"every_s": 5, "ends_at": "soon"}, "ends_at must be an aware datetime or Unix seconds, not 'soon'"),
])  # fmt: skip
def test_bad_rules(rules: dict[str, Any], message: str) -> None:
    app = App()
    app.handler("report")(report := lambda: None)
    with pytest.raises(HandlerError) as refused:
        app.schedule("key", **rules)(report)
    assert refused.value.message.startswith(f"schedule 'key': {message}")
    assert dict(app.schedules) == {}


def test_bad_keys_and_functions() -> None:
    """Keys are unique text; the function is a handler; its arguments are JSON."""
    app = App()
    app.handler("report")(report := lambda: None)
    app.schedule("key", every_s=1)(report)
    for key, function, args in (
        ("key", report, None),
        ("", report, None),
        ("k" * 201, report, None),
        ("b", print, None),
    ):
        with pytest.raises(HandlerError, match=r"^schedule|is not a handler"):
            app.schedule(key, args, every_s=1)(function)
    with pytest.raises(HandlerError, match="there is no parameter 'a'"):
        app.schedule("c", {"a": object()}, every_s=1)(report)
    assert list(app.schedules) == ["key"]
