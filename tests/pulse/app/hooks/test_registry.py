"""What an app takes for a hook, and what it says of the rest; which handlers a hook concerns."""

from __future__ import annotations

import typing
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any

import pytest

import pulse
import pulse.app.app as app_module
from pulse.app.handler import Handler, bound
from pulse.app.hooks.lifespan import provided
from pulse.app.hooks.middleware import Layers
from pulse.app.hooks.registry import Hooks
from pulse.errors import HandlerError


class Pool: ...


class Mailer: ...


async def good(ctx: pulse.Context, call_next: pulse.CallNext) -> object:
    return await call_next()


def plain(ctx: pulse.Context, call_next: Callable[[], object]) -> object:
    return call_next()


async def pool() -> AsyncIterator[Pool]:
    yield Pool()


def failed(ctx: pulse.Context, error: BaseException) -> None: ...


def generator(ctx: object, call_next: object) -> Iterator[None]:
    yield


async def bare() -> None: ...


async def too_many(ctx: object, call_next: object, more: object) -> None: ...


async def by_keyword(ctx: object, *, call_next: object) -> None: ...


def is_refused(call: Callable[[], object], text: str) -> None:
    with pytest.raises(HandlerError) as caught:
        call()
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("function", "text"), [
    (7, "middleware: 7 is not callable"),
    (Pool, "middleware: Pool is a class; middleware is a function"),
    (bare, "middleware: bare has other parameters; it is called with (ctx, call_next)"),
    (too_many, "it is called with (ctx, call_next)"),
    (by_keyword, "it is called with (ctx, call_next)"),
    (generator, "middleware: a generator function cannot be middleware"),
])  # fmt: skip
def test_what_cannot_be_middleware(function: Any, text: str) -> None:
    app = pulse.App()
    is_refused(lambda: app.middleware(function), text)
    is_refused(lambda: app.handler("n", middleware=[function])(bare), text)
    assert (app.hooks.middleware, app.handlers) == ((), {})


def test_middleware_of_a_handler_is_a_list() -> None:
    app = pulse.App()
    wrong: Any
    for wrong in (good, None, 7):
        text = "handler 'n': middleware must be a list of functions"
        is_refused(lambda: app.handler("n", middleware=wrong)(bare), text)  # noqa: B023 - it is called here


def test_a_plain_function_cannot_wrap_an_async_handler() -> None:
    """Named by that handler it is a mistake; the app's wraps the plain ones and leaves out the others."""
    app = pulse.App()
    is_refused(lambda: app.handler("n", middleware=[good, plain])(bare), "middleware plain is a plain def")
    app.handler("plain", middleware=[good, plain])(lambda: None)
    app.handler("async")(bare)
    app.middleware(plain)
    assert app.handlers["async"].layers is None
    assert app.handlers["plain"].layers == Layers((good,), (plain, plain))


def test_the_first_is_the_outermost() -> None:
    """Those of the app lie outside those of the handler, whatever was registered first."""
    app = pulse.App()

    def layer(_number: int, ctx: pulse.Context, call_next: Callable[[], object]) -> object:
        return call_next()

    first, second, third, fourth = (partial(layer, number) for number in range(4))
    app.middleware(first)
    app.handler("n", middleware=[third, fourth])(lambda: None)
    app.middleware(second)
    assert app.handlers["n"].layers == Layers(in_thread=(fourth, third, second, first))


@pytest.mark.parametrize("hook", ["on_startup", "on_shutdown", "on_failure"])
def test_hooks_that_cannot_be_called(hook: str) -> None:
    app = pulse.App()
    register = getattr(app, hook)
    is_refused(lambda: register("x"), f"{hook}: 'x' is not callable")
    is_refused(lambda: register(lambda a: a), f"{hook}: ")
    is_refused(lambda: register(pool), f"{hook}: a generator function cannot be a hook")
    assert getattr(app.hooks, hook) == ()


@pytest.mark.parametrize("hook", ["on_dead_letter", "on_crash"])
def test_what_cannot_be_told_of_ends(hook: str) -> None:
    app = pulse.App()
    register = getattr(app, hook)
    is_refused(lambda: register(None), f"{hook}: None is not callable")
    is_refused(lambda: register(Pool), f"{hook}: Pool is a class; a handler is a function")
    is_refused(lambda: register(bare), f"{hook}: bare has other parameters; write (job: pulse.FailedJob)")
    assert (app.hooks.events, app.handlers) == ({}, {})


def test_handlers_are_bound_to_hooks_once_and_when_one_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at each hook, which would take the square of the time at import."""
    bindings: list[str] = []

    def noted(handler: Handler, hooks: Hooks) -> Handler:
        bindings.append(handler.name)
        return bound(handler, hooks)

    monkeypatch.setattr(app_module, "bound", noted)
    app = pulse.App()
    for number in range(3):
        app.handler(f"n{number}")(bare)
        app.middleware(good)
    seen = app.handlers
    assert bindings == []
    assert seen["n0"].layers == Layers((good, good, good))
    assert (seen["n0"], app.handlers["n0"], bindings) == (seen["n0"], seen["n0"], ["n0"])
    app.on_failure(failed)
    assert (seen["n0"].on_failure, bindings) == ((failed,), ["n0", "n0"])


def test_hooks_stay_what_they_are() -> None:
    app = pulse.App()
    assert app.middleware(good) is good
    assert app.lifespan(pool) is pool
    assert app.on_startup(bare) is bare
    assert app.on_shutdown(bare) is bare
    assert app.on_failure(failed) is failed


async def with_argument(url: str) -> AsyncIterator[Pool]:
    yield Pool()


async def without_annotation():  # type: ignore[no-untyped-def]  # noqa: ANN201 - what is tested
    yield Pool()


async def of_nobody() -> AsyncIterator[Nobody]:  # type: ignore[name-defined]  # noqa: F821 - what is tested
    yield Pool()


async def itself() -> AsyncIterator[Pool]:
    yield Pool()


itself.__annotations__["return"] = "Pool"  # what type checkers refuse as well


async def of_text() -> AsyncIterator[str]:
    yield ""


async def of_texts() -> AsyncIterator[dict[str, int]]:
    yield {}


async def of_anything() -> AsyncIterator[Any]:
    yield {}


@asynccontextmanager
async def decorated() -> AsyncIterator[Pool]:
    yield Pool()


@pytest.mark.parametrize(("function", "text"), [
    (bare, "bare must be an async generator function"),
    (decorated, "decorated must be an async generator function: async def with one yield, undecorated"),
    (None, "lifespan: None is not callable"),
    (with_argument, "with_argument has other parameters; it is called without arguments"),
    (without_annotation, "lifespan without_annotation: the return annotation is missing; write -> AsyncIterator[T]"),
    (of_nobody, "cannot be evaluated: name 'Nobody' is not defined"),
    (itself, "the return annotation is 'Pool'; write -> AsyncIterator[T]"),
    (of_text, "args of jobs may be of type <class 'str'>, too; yield a class of your own"),
    (of_texts, "args of jobs may be of type dict[str, int], too"),
    (of_anything, "args of jobs may be of type typing.Any, too"),
])  # fmt: skip
def test_what_cannot_be_a_lifespan(function: Any, text: str) -> None:
    hooks = Hooks()
    is_refused(lambda: hooks.add_lifespan(function), text)
    assert hooks.lifespans == ()


def test_a_type_has_one_lifespan() -> None:
    """Those that yield nothing are as many as one likes."""
    hooks = Hooks()
    hooks.add_lifespan(pool)

    async def another() -> AsyncIterator[Pool]:
        yield Pool()

    async def nothing() -> AsyncIterator[None]:
        yield

    is_refused(
        lambda: hooks.add_lifespan(another), "pool yields <class 'tests.pulse.app.hooks.test_registry.Pool'> already"
    )

    async def nothing_either() -> typing.AsyncIterator[None]:
        yield

    for _ in range(2):
        hooks.add_lifespan(nothing)
        hooks.add_lifespan(nothing_either)
    assert len(hooks.lifespans) == 5
    assert hooks.kinds == [Pool]


def test_a_parameter_of_that_type_is_no_argument() -> None:
    """Whether the handler or the lifespan comes first; calls leave it out, with or without a default."""
    app = pulse.App()

    async def use(path: str, *, pool: Annotated[Pool, "ours"], mailer: Mailer = pulse.provided()) -> None: ...

    checked: Any = use  # type checkers know of lifespans only by the default
    app.handler("use")(use)
    with pytest.raises(pulse.BadRequestError, match="argument 'pool' is missing"):
        pulse.call(checked, "a.png")
    app.lifespan(pool)
    assert pulse.call(checked, "a.png").args == '{"path":"a.png"}'
    with pytest.raises(pulse.BadRequestError, match="there is no parameter 'mailer'"):
        pulse.call(checked, "a.png", mailer=Mailer())
    assert app.handlers["use"].provided == {"pool": Pool, "mailer": Mailer}


def test_what_was_not_provided_says_so() -> None:
    async def use(pool: Pool = pulse.provided()) -> object:
        return pool.connection  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match=r"connection: pulse.provided\(\) is no value"):
        use().send(None)
    assert repr(provided()) == "pulse.provided()"


def test_an_annotation_for_type_checkers_only() -> None:
    """It matches no lifespan, and harms none of the others."""
    app = pulse.App()
    app.lifespan(pool)

    async def use(what: Nobody, pool: Pool, *rest: Pool, **more: Pool) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - what is tested

    app.handler("use")(use)
    assert app.handlers["use"].provided == {"pool": Pool}


def told(job: pulse.FailedJob) -> None: ...


def test_of_which_handlers_events_tell() -> None:
    app = pulse.App()
    app.handler("before")(bare)
    app.on_dead_letter(told)
    app.handler("after", topic="t")(failed)
    name = f"on_dead_letter:{__name__}.told"
    assert {key: one.declared() for key, one in app.handlers.items()} == {
        "before": {"on_dead_letter": name}, "after": {"topic": "t", "on_dead_letter": name}, name: {},
    }  # fmt: skip


@pytest.mark.parametrize("event", ["on_dead_letter", "on_crash"])
def test_what_events_cannot_call(event: str) -> None:
    app = pulse.App()
    is_refused(lambda: getattr(app, event)(bare), f"{event}: bare has other parameters; write (job: pulse.FailedJob)")
    is_refused(lambda: getattr(app, event)(max), "other parameters")
    getattr(app, event)(told)
    is_refused(
        lambda: getattr(app, event)(told), f"{event}: {__name__}.told is called already; one function is allowed"
    )
