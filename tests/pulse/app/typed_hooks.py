# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""What type checkers say of hooks: `make lint` fails if one accepts a wrong line below, or refuses another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, assert_type

import pulse

MYPY: bool = False  # mypy takes it for true, and does not look at what it does not mean
app = pulse.App()


class Database: ...


@app.middleware
async def around(ctx: pulse.Context, call_next: pulse.CallNext) -> object:
    return ctx.args and await call_next()


@app.middleware
async def as_written_out(ctx: pulse.Context, call_next: Callable[[], Awaitable[object]]) -> object:
    return await call_next()


@app.middleware
def plain(ctx: pulse.Context, call_next: Callable[[], object]) -> object:
    return call_next()


@app.lifespan
async def database() -> AsyncIterator[Database]:
    yield Database()


@app.handler("ask", middleware=[around, as_written_out])
async def ask(path: str, database: Database = pulse.provided()) -> str:
    return path


@app.handler("ask-plain", middleware=[plain])
def ask_plain(path: str, *, database: Database = pulse.provided()) -> str:
    return path


@app.on_startup
async def begin() -> None: ...


@app.on_shutdown
def end() -> int:
    return 1


@app.on_failure
async def failed(ctx: pulse.Context, error: BaseException) -> None: ...


@app.on_failure
def failed_plain(ctx: pulse.Context, error: BaseException) -> None: ...


async def uses() -> None:
    assert_type(pulse.call(ask, path="a.png"), pulse.Call[str])
    assert_type(pulse.call(ask_plain, "a.png"), pulse.Call[str])
    assert_type(await ask("a.png", Database()), str)
    assert_type(pulse.current(), pulse.Context)
    assert_type(await around(pulse.current(), begin), object)
    assert_type(end(), int)


def no_context(call_next: pulse.CallNext) -> None: ...


def wrong_error(ctx: pulse.Context, error: int) -> None: ...


def needs(path: str) -> None: ...


async def one_value() -> Database:
    return Database()


def refused() -> Any:
    if MYPY:
        app.middleware(no_context)  # type: ignore[type-var]
        app.on_failure(wrong_error)  # type: ignore[type-var]
        app.on_startup(needs)  # type: ignore[type-var]
        app.lifespan(one_value)  # type: ignore[type-var]
        app.handler("n", middleware=[no_context])  # type: ignore[list-item]
        pulse.call(ask, 3)  # type: ignore[call-overload]
    else:
        app.middleware(no_context)  # pyright: ignore[reportArgumentType]
        app.on_failure(wrong_error)  # pyright: ignore[reportArgumentType]
        app.on_startup(needs)  # pyright: ignore[reportArgumentType]
        app.lifespan(one_value)  # pyright: ignore[reportArgumentType]
        app.handler("n", middleware=[no_context])  # pyright: ignore[reportArgumentType]
        pulse.call(ask, 3)  # pyright: ignore[reportCallIssue, reportArgumentType]
