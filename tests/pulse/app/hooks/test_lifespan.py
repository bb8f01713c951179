"""What is started and ended around a process: the order, what failures do, how long the end may take."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel
import pytest

import pulse
from pulse.app.hooks import lifespan
from pulse.app.hooks.lifespan import StartupError, running

pytestmark = pytest.mark.anyio


class First: ...


class Second: ...


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def seen() -> list[str]:
    return []


@pytest.fixture
def app(seen: list[str]) -> pulse.App:
    app = pulse.App()

    @app.lifespan
    async def first() -> AsyncIterator[First]:
        seen.append("first")
        try:
            yield First()
        finally:
            seen.append("first ends")

    @app.on_shutdown
    async def stop() -> None:
        await anyio.lowlevel.checkpoint()
        seen.append("stop")

    @app.on_startup
    def start() -> None:
        seen.append("start")

    return app


class Failures:
    def __init__(self) -> None:
        self.shown: list[str] = []

    def __call__(self, name: str, error: BaseException) -> None:
        self.shown.append(f"{name.rpartition('.')[2]}: {error!r}")


async def test_the_order(app: pulse.App, seen: list[str]) -> None:
    @app.lifespan
    async def second() -> AsyncIterator[Second]:
        seen.append("second")
        yield Second()
        seen.append("second ends")

    failures = Failures()
    async with running(app.hooks, failures) as values:
        assert {kind: type(value) for kind, value in values.items()} == {First: First, Second: Second}
        seen.append("work")
    assert seen == ["start", "first", "second", "work", "second ends", "first ends", "stop"]
    assert failures.shown == []


async def test_only_what_is_needed(app: pulse.App, seen: list[str]) -> None:
    async with running(app.hooks, Failures(), only={Second}) as values:
        assert values == {}
    assert seen == ["start", "stop"]


@pytest.mark.parametrize("kind", ["lifespan", "plain", "async"])
async def test_a_start_that_fails_ends_what_had_started(kind: str, app: pulse.App, seen: list[str]) -> None:
    """The functions for the end belong to a start that was complete."""

    def away_plain() -> None:
        raise ConnectionError("away")

    async def away_async() -> None:
        away_plain()

    async def away() -> AsyncIterator[Second]:
        away_plain()
        yield Second()

    if kind == "lifespan":
        app.lifespan(away)
    else:
        app.on_startup(away_async if kind == "async" else away_plain)
    with pytest.raises(StartupError) as caught:
        async with running(app.hooks, Failures()):
            seen.append("work")
    assert str(caught.value).rpartition(".")[2].startswith("away")
    assert repr(caught.value.__cause__) == "ConnectionError('away')"
    assert seen == (["start", "first", "first ends"] if kind == "lifespan" else ["start"])


async def test_an_end_that_fails_keeps_nothing_from_ending(app: pulse.App, seen: list[str]) -> None:
    @app.lifespan
    async def second() -> AsyncIterator[Second]:
        yield Second()
        raise LookupError("at the end")

    @app.on_shutdown
    def broken() -> None:
        raise LookupError("later")

    app.on_shutdown(lambda: seen.append("last"))
    failures = Failures()
    async with running(app.hooks, failures):
        seen.append("work")
    assert seen == ["start", "first", "work", "first ends", "stop", "last"]
    assert failures.shown == ["lifespan: LookupError('at the end')", "broken: LookupError('later')"]


async def test_what_happens_in_between_is_not_the_end(app: pulse.App, seen: list[str]) -> None:
    failures = Failures()
    with pytest.raises(LookupError, match="at work"):
        async with running(app.hooks, failures):
            raise LookupError("at work")
    assert seen == ["start", "first", "first ends"]
    assert failures.shown == []


@pytest.mark.parametrize("where", ["lifespan", "hook"])
async def test_the_end_has_a_limit(where: str, app: pulse.App, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has run out of it is cancelled, and the program goes on."""
    monkeypatch.setattr(lifespan, "SHUTDOWN_S", 0.05)

    async def hangs() -> AsyncIterator[Second]:
        async with anyio.create_task_group():
            yield Second()
            await anyio.sleep_forever()

    if where == "lifespan":
        app.lifespan(hangs)
    else:
        app.on_shutdown(anyio.sleep_forever)
    failures = Failures()
    with anyio.fail_after(20):
        async with running(app.hooks, failures):
            await anyio.sleep(0.1)  # the limit is for the end alone
    assert failures.shown == ["shutdown: TimeoutError('it took more than 0.05 s')"]
