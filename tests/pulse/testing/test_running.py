"""What surrounds a handler that runs in memory: middleware, values of lifespans, and what is called when it fails."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import anyio
import pytest

import pulse
from pulse.testing import Inline, InlineError


class Store:
    def __init__(self, name: str) -> None:
        self.name = name


def _with_hooks() -> tuple[pulse.App, list[str]]:
    inner, seen = pulse.App(), list[str]()

    @inner.lifespan
    async def store() -> AsyncIterator[Store]:
        seen.append("open")
        yield Store("real")
        seen.append("closed")

    @inner.on_startup
    def start() -> None:
        seen.append("start")

    @inner.middleware
    async def loud(ctx: pulse.Context, call_next: pulse.CallNext) -> object:
        seen.append(f"{ctx.name} {dict(ctx.args)}")
        return f"{await call_next()}!"

    @inner.middleware
    def plain(ctx: pulse.Context, call_next: Callable[[], object]) -> object:
        return f"{call_next()}?"

    @inner.on_failure
    async def failed(ctx: pulse.Context, error: BaseException) -> None:
        seen.append(f"{ctx.name}: {error}")

    @inner.handler("keep")
    def keep(item: str, store: Store = pulse.provided()) -> str:
        return f"{item} in {store.name} of {pulse.current().name} in {threading.current_thread() is MAIN}"

    @inner.handler("look")
    async def look(item: str, store: Store = pulse.provided()) -> str:
        return f"{item} in {store.name} of {pulse.current().name}"

    @inner.handler("fail", max_attempts=1)
    def fail() -> None:
        raise ValueError("no")

    return inner, seen


MAIN: Final = threading.main_thread()


def test_hooks_are_around_handlers_and_tests_give_values() -> None:
    inner, seen = _with_hooks()
    inline = Inline(inner)
    assert inline.run_job(inline.submit("keep", {"item": "a"})).result == "a in real of keep in True?!"
    assert inline.run_job(inline.submit("look", {"item": "a"})).result == "a in real of look!"
    inline.values[Store] = Store("fake")
    assert inline.run_job(inline.submit("keep", {"item": "b"})).result == "b in fake of keep in True?!"
    assert inline.run_job(inline.submit("fail")).status == "DEAD_LETTERED"
    assert seen == [
        "open", "keep {'item': 'a'}", "closed", "open", "look {'item': 'a'}", "closed", "keep {'item': 'b'}", "fail {}",
        "fail: no",
    ]  # fmt: skip
    with pytest.raises(pulse.NoHandlerError):
        pulse.current()


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_hooks_run_in_the_loop_of_the_test(anyio_backend: str) -> None:
    inner, seen = _with_hooks()
    inline = Inline(inner)
    job = await inline.run_job_async(inline.submit("keep", {"item": "a"}))
    assert job.result == "a in real of keep in False?!"
    await inline.run_job_async(inline.submit("fail"))
    assert seen == ["open", "keep {'item': 'a'}", "closed", "fail {}", "fail: no"]
    with pytest.raises(InlineError, match="keep is async, and an event loop runs here"):
        inline.run_job(inline.submit("keep", {"item": "a"}))
    with pytest.raises(pulse.NoHandlerError):
        pulse.current()


def test_dead_letters_are_told() -> None:
    inner, told = pulse.App(), list[pulse.FailedJob]()

    @inner.on_dead_letter
    def bury(job: pulse.FailedJob) -> None:
        told.append(job)

    @inner.handler("fail", topic="hard", max_attempts=2)
    def fail() -> None:
        raise ValueError("no")

    inline = Inline(inner)
    dead = inline.run(fail)
    late = inline.submit(fail, delay_s=9, expires_in_s=10)
    inline.advance(20)
    assert [job.topic for job in inline.run_until_idle()] == ["hard", "hard", "hard"]
    assert [(job.id, job.name, job.topic, job.attempt, job.outcome) for job in told] == [
        (dead.id, "fail", "hard", 2, "error"), (late, "fail", "hard", 0, "expired"),
    ]  # fmt: skip
    assert told[0].error == dead.last_error


def test_plain_handlers_with_plain_hooks_need_no_loop() -> None:
    inner = pulse.App()

    @inner.middleware
    def plain(ctx: pulse.Context, call_next: Callable[[], object]) -> object:
        return f"{call_next()}?"

    @inner.handler("where")
    def where() -> str:
        with pytest.raises(RuntimeError):
            anyio.get_cancelled_exc_class()
        return "in the test"

    assert Inline(inner).run(where).result == "in the test?"


def test_a_lifespan_that_fails_fails_the_attempt() -> None:
    inner = pulse.App()

    @inner.lifespan
    async def store() -> AsyncIterator[Store]:
        yield Store(Path("/dev/null/no").read_text())

    @inner.handler("keep", max_attempts=1)
    def keep(store: Store = pulse.provided()) -> None: ...

    assert str(Inline(inner).run(keep).last_error).startswith("NotADirectoryError")
