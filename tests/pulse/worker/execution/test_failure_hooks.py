"""Middleware and the hooks of failures, around handlers of all kinds, on both event loops."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import pulse
from pulse.app.outcome import Outcome
from pulse.app.workflows.receipt import Receipt
from pulse.protocol import Assignment
from pulse.worker.execution import failure_hooks
from pulse.worker.execution.attempt import Attempt
from pulse.worker.execution.runner import interrupt, make_runner
from pulse.worker.execution.server_reader import ServerReader

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class Pool: ...


class Office:
    """The owner of a runner, for one attempt at a time."""

    identity = None
    schema = "pulse"

    def __init__(self) -> None:
        self.over = anyio.Event()
        self.ending: Outcome | None = None
        self.told: list[str] = []

    def ended(self, attempt: Attempt, ending: Outcome) -> None:
        self.ending = ending
        self.over.set()

    def raised(self, error: BaseException) -> None:
        self.told.append(f"raised {error!r}")

    def lease_lost(self, attempt: Attempt) -> bool:
        return attempt.lost

    def progressed(self, attempt: Attempt, text: str) -> None:
        self.told.append(text)

    def checkpointed(self, attempt: Attempt, text: str, receipt: Receipt | None = None) -> None: ...

    @property
    def reader(self) -> ServerReader:
        """Nobody asks here."""
        return ServerReader(None, None)

    def fenced(self, attempt: Attempt, phase: str) -> None: ...


async def run(
    app: pulse.App,
    name: str = "n",
    meanwhile: Callable[[Attempt], Any] = lambda _: None,
    timeout_s: float | None = None,
    **args: object,
) -> Outcome:
    office = Office()
    attempt = Attempt(Assignment(b"i" * 16, 3, name, "t", json.dumps(args), timeout_s, 30.0), app.handlers[name], 0.0)
    async with anyio.create_task_group() as group:
        make_runner(office, group, 10).start(attempt)
        await anyio.wait_all_tasks_blocked()
        meanwhile(attempt)
        with anyio.fail_after(20):
            await office.over.wait()
        group.cancel_scope.cancel()
    assert office.ending is not None
    return office.ending


@pytest.fixture
def seen() -> list[object]:
    return []


def notes(seen: list[object], name: str) -> Callable[[pulse.Context, pulse.CallNext], Any]:
    async def layer(ctx: pulse.Context, call_next: pulse.CallNext) -> object:
        seen.append(f"{name} before {dict(ctx.args)}")
        try:
            value = await call_next()
        except BaseException as error:
            seen.append(f"{name} {error!r}")
            raise
        seen.append(f"{name} {value!r}")
        return value

    return layer


async def test_layers_around_an_async_handler(seen: list[object]) -> None:
    app = pulse.App()
    app.middleware(notes(seen, "first"))

    @app.handler("n", middleware=[notes(seen, "inner")])
    async def handler(x: int, ctx: pulse.Context) -> int:
        seen.append("handler")
        assert dict(ctx.args) == {"x": 7}
        return x

    assert await run(app, x=7) == ("ok", "7")
    assert seen == ["first before {'x': 7}", "inner before {'x': 7}", "handler", "inner 7", "first 7"]


async def test_layers_around_a_plain_handler(seen: list[object]) -> None:
    """The plain ones are in its thread, inside the async ones."""
    app = pulse.App()
    threads: list[int] = []

    @app.middleware
    def inside(ctx: pulse.Context, call_next: Callable[[], object]) -> object:
        threads.append(threading.get_ident())
        seen.append(f"plain before {dict(ctx.args)}")
        return call_next()

    app.middleware(notes(seen, "async"))

    @app.handler("n")
    def handler(x: int) -> int:
        threads.append(threading.get_ident())
        seen.append("handler")
        return pulse.current().attempt

    @app.handler("async")
    async def other() -> None: ...

    assert await run(app, x=1) == ("ok", "3")
    assert seen == ["async before {'x': 1}", "plain before {'x': 1}", "handler", "async 3"]
    assert threads[0] == threads[1] != threading.get_ident()
    assert await run(app, "async") == ("ok", None)


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize(("error", "ending"), [
    (LookupError("gone"), "error"), (pulse.Discard("no"), "discard"), (pulse.RetryAfter(3, "busy"), "retry"),
    (SystemExit(3), "error"), (KeyboardInterrupt(), "error"),
])  # fmt: skip
async def test_what_is_raised_passes_through(kind: str, error: BaseException, ending: str, seen: list[object]) -> None:
    """The traceback shows calls of the user's, and none of the worker's."""
    app = pulse.App()
    app.middleware(notes(seen, "it"))

    async def handler() -> None:
        raise error

    def plain() -> None:
        raise error

    app.handler("n")(handler if kind == "async" else plain)
    outcome, detail = await run(app)
    assert outcome == ending
    assert seen[1] == f"it {error!r}"
    assert "execution/runner.py" not in str(detail)
    assert "execution/failure_hooks.py" not in str(detail)
    assert ending != "error" or "in layer" in str(detail)


async def test_middleware_decides(seen: list[object]) -> None:
    """What it returns is the result, also without a call of the handler; what it raises is the end of the attempt."""
    app = pulse.App()

    async def skips(ctx: pulse.Context, call_next: pulse.CallNext) -> object:
        return "skipped"

    async def catches(ctx: pulse.Context, call_next: pulse.CallNext) -> object:
        try:
            return await call_next()
        except LookupError:
            return pulse.Snooze(5)

    async def again(ctx: pulse.Context, call_next: pulse.CallNext) -> object:
        return [await call_next(), await call_next()]

    async def fails(ctx: pulse.Context, call_next: pulse.CallNext) -> object:
        await call_next()
        raise pulse.Discard("not today")

    async def handler() -> str:
        seen.append("called")
        if len(seen) == 3:
            raise LookupError
        return "done"

    for name, layer in (("skips", skips), ("again", again), ("catches", catches), ("fails", fails)):
        app.handler(name, middleware=[layer])(handler)
    assert await run(app, "skips") == ("ok", '"skipped"')
    assert seen == []
    assert await run(app, "again") == ("ok", '["done","done"]')
    assert await run(app, "catches") == ("snooze", 5.0)
    assert await run(app, "fails") == ("discard", "not today")


async def test_a_stop_reaches_async_middleware_of_a_plain_handler(seen: list[object]) -> None:
    """It waits in the loop; once its thread runs, only the handler itself can end it."""
    app = pulse.App()
    gate = threading.Event()

    async def waits(ctx: pulse.Context, call_next: pulse.CallNext) -> object:
        await anyio.sleep_forever()
        return await call_next()

    async def passes(ctx: pulse.Context, call_next: pulse.CallNext) -> object:
        return await call_next()

    def handler(ctx: pulse.Context) -> bool:
        assert gate.wait(20)
        return ctx.cancelled

    app.handler("waits", middleware=[waits])(handler)
    app.handler("passes", middleware=[passes])(handler)

    def stop(attempt: Attempt) -> None:
        attempt.stopped = "timeout"
        interrupt(attempt)
        gate.set()

    assert (await run(app, "waits", stop, timeout_s=9.0)).detail == "timed out after 9 s"
    gate.clear()
    assert await run(app, "passes", stop) == ("ok", "true")


async def test_the_current_context_is_everywhere(seen: list[object]) -> None:
    app = pulse.App()

    def here() -> object:
        found = pulse.current()
        return found.name, dict(found.args), found is pulse.current()

    @app.handler("n")
    async def handler(x: int, ctx: pulse.Context) -> None:
        async def child() -> None:
            seen.append(here())

        async with anyio.create_task_group() as group:
            group.start_soon(child)
        seen.append(await anyio.to_thread.run_sync(here))
        seen.append(ctx is pulse.current())

    assert await run(app, x=1) == ("ok", None)
    assert seen == [("n", {"x": 1}, True), ("n", {"x": 1}, True), True]


async def test_the_context_of_an_attempt_is_one() -> None:
    app = pulse.App()

    @app.handler("n", timeout_s=60)
    async def handler() -> list[object]:
        ctx = pulse.current()
        with pytest.raises(TypeError):
            ctx.args["x"] = 1  # type: ignore[index]
        with pytest.raises(AttributeError, match="has no 'nonsense'"):
            ctx.nonsense  # type: ignore[attr-defined]  # noqa: B018 - what is tested
        assert ctx.deadline is not None
        assert ctx.deadline is ctx.deadline
        assert "secret" not in repr(ctx)
        ctx.progress(0.5)
        return [str(ctx.job_id), ctx.attempt, ctx.name, ctx.topic, ctx.occurrence, ctx.previous, ctx.cancelled]

    assert json.loads(str((await run(app, timeout_s=60.0)).detail)) == [
        "69696969-6969-6969-6969-696969696969", 3, "n", "t", None, None, False,
    ]  # fmt: skip


@pytest.fixture
def failing(seen: list[object]) -> pulse.App:
    """An app whose handlers fail in every way, and that notes what its hooks hear."""
    app = pulse.App()

    def raises(error: BaseException) -> Callable[[], None]:
        def handler() -> None:
            raise error

        return handler

    app.handler("error")(raises(LookupError("gone")))
    app.handler("discard")(raises(pulse.Discard("no")))
    app.handler("retry")(raises(pulse.RetryAfter(1, "busy")))
    app.handler("exit")(raises(SystemExit(2)))
    app.handler("snooze")(lambda: pulse.Snooze(1))
    app.handler("fine")(lambda: 1)
    app.handler("unstorable")(lambda: object())  # noqa: PLW0108 - a class is no handler
    app.handler("args")(lambda x: x)

    @app.handler("waits")
    async def waits() -> None:
        await anyio.sleep_forever()

    @app.handler("objects")
    async def objects() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise LookupError("at the end")

    @app.on_failure
    async def hook(ctx: pulse.Context, error: BaseException) -> None:
        await anyio.lowlevel.checkpoint()
        seen.append((ctx.name, repr(error), pulse.current() is ctx))

    @app.on_failure
    def plain_hook(ctx: pulse.Context, error: BaseException) -> None:
        seen.append((threading.get_ident() != main, repr(error.__cause__)))

    main = threading.get_ident()
    return app


@pytest.mark.parametrize(("name", "shown"), [
    ("error", "LookupError('gone')"),
    ("discard", "Discard('no')"),
    ("retry", "RetryAfter('busy')"),
    ("exit", "SystemExit(2)"),
    ("unstorable", "ResultError('result is not JSON: Object of type object is not JSON serializable')"),
    ("args", "ArgumentError(\"argument 'x' is missing; it takes x\")"),
])  # fmt: skip
async def test_hooks_hear_of_each_failure(name: str, shown: str, failing: pulse.App, seen: list[object]) -> None:
    await run(failing, name)
    assert seen == [(name, shown, True), (True, "None")]


@pytest.mark.parametrize("name", ["snooze", "fine"])
async def test_hooks_hear_of_nothing_else(name: str, failing: pulse.App, seen: list[object]) -> None:
    await run(failing, name)
    assert seen == []


@pytest.mark.parametrize(("name", "cause"), [("waits", "None"), ("objects", "LookupError('at the end')")])
async def test_hooks_hear_of_a_time_limit(name: str, cause: str, failing: pulse.App, seen: list[object]) -> None:
    """On trio as on asyncio they run, though the attempt was cancelled."""

    def stop(attempt: Attempt) -> None:
        attempt.stopped = "timeout"
        interrupt(attempt)

    ending = await run(failing, name, stop, timeout_s=2.5)
    assert ending.outcome == "error"
    assert seen == [(name, "TimeoutError('timed out after 2.5 s')", True), (True, cause)]


async def test_hooks_hear_of_no_stop_that_costs_nothing(failing: pulse.App, seen: list[object]) -> None:
    def stop(attempt: Attempt) -> None:
        attempt.stopped = "drain"
        interrupt(attempt)

    assert (await run(failing, "waits", stop)).outcome == "release"
    assert seen == []


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_hook_cannot_hold_an_attempt(
    kind: str, seen: list[object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is left after a while; the next hook is called."""
    monkeypatch.setattr(failure_hooks, "HOOKS_S", 0.05)
    app = pulse.App()
    gate = threading.Event()
    app.handler("n")(lambda: 1 / 0)

    async def hangs(ctx: pulse.Context, error: BaseException) -> None:
        await anyio.sleep_forever()

    def hangs_plain(ctx: pulse.Context, error: BaseException) -> None:
        gate.wait(20)

    app.on_failure(hangs if kind == "async" else hangs_plain)
    app.on_failure(lambda ctx, _error: seen.append(ctx.name))
    try:
        assert (await run(app)).outcome == "error"
    finally:
        gate.set()
    assert "the hooks of a failure took more than 0.05 s" in capsys.readouterr().out


@pytest.mark.parametrize("error", [LookupError("in the hook"), SystemExit(4)])
async def test_a_hook_that_fails_changes_nothing(
    error: BaseException, failing: pulse.App, seen: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    @failing.on_failure
    async def broken(ctx: pulse.Context, _error: BaseException) -> None:
        raise error

    assert (await run(failing, "discard")) == ("discard", "no")
    assert len(seen) == 2
    assert "broken" in capsys.readouterr().out


async def test_values_of_lifespans() -> None:
    app, value, office = pulse.App(), Pool(), Office()

    @app.handler("n")
    async def handler(ctx: pulse.Context, pool: Pool) -> bool:
        return pool is value and dict(ctx.args) == {}

    async def lifespan() -> AsyncIterator[Pool]:
        yield value

    app.lifespan(lifespan)
    attempt = Attempt(Assignment(b"i" * 16, 1, "n", "t", "{}", None, 30.0), app.handlers["n"], 0.0)
    async with anyio.create_task_group() as group:
        make_runner(office, group, 10, values={Pool: value}).start(attempt)
        await office.over.wait()
        group.cancel_scope.cancel()
    assert office.ending == ("ok", "true")
