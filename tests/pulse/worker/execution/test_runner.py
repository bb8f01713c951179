"""How async handlers are called on asyncio: several in one task, until one waits; each as if it were alone."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import pytest

import pulse
from pulse.app.handler import make_handler
from pulse.app.outcome import RELEASED, Outcome
from pulse.app.workflows.receipt import Receipt
from pulse.protocol import Assignment
from pulse.worker.execution import runner, stacks
from pulse.worker.execution.attempt import Attempt
from pulse.worker.execution.runner import interrupt, make_runner
from pulse.worker.execution.server_reader import ServerReader

pytestmark = pytest.mark.anyio

NUMBER = contextvars.ContextVar("NUMBER", default=0)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Office:
    identity = None
    schema = "pulse"

    def __init__(self) -> None:
        self.endings: list[Outcome] = []
        self.errors: list[BaseException] = []
        self._news = asyncio.Event()

    def ended(self, attempt: Attempt, ending: Outcome) -> None:
        attempt.task = None
        self.endings.append(ending)
        self._news.set()

    def raised(self, error: BaseException) -> None:
        self.errors.append(error)

    async def wait(self, count: int) -> list[Outcome]:
        while len(self.endings) < count:
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), 10)
        return self.endings

    def lease_lost(self, attempt: Attempt) -> bool:
        return attempt.lost

    def fenced(self, attempt: Attempt, phase: str) -> None:
        """Not here."""

    def progressed(self, attempt: Attempt, text: str) -> None:
        """Not here."""

    def checkpointed(self, attempt: Attempt, text: str, receipt: Receipt | None = None) -> None: ...

    @property
    def reader(self) -> ServerReader:
        """Nobody asks here."""
        return ServerReader(None, None)


Work = Callable[[], Coroutine[Any, Any, object]]


async def run(*works: Work) -> tuple[Office, list[Attempt]]:
    office = Office()
    attempts: list[Attempt] = []
    group = anyio.create_task_group()
    async with group:
        one = make_runner(office, group, 10)
        for number, work in enumerate(works):
            job = Assignment(number.to_bytes(16), 1, "n", "t", "{}", None, 30.0)
            attempts.append(Attempt(job, make_handler("n", work), 0.0))
            one.start(attempts[-1])
        assert office.endings == [], "nothing is called while others are started"
    return office, attempts


async def test_who_never_waits_costs_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are called in one task, in the order of arrival, unless others wait for a turn."""
    monkeypatch.setattr(runner, "SLICE_S", 60.0)
    tasks: list[object] = []
    order: list[int] = []

    def work(number: int) -> Work:
        async def handler() -> int:
            tasks.append(asyncio.current_task())
            order.append(number)
            return number

        return handler

    office, _ = await run(*map(work, range(50)))
    assert [one.detail for one in await office.wait(50)] == [str(number) for number in range(50)]
    assert order == list(range(50))
    assert len(set(map(id, tasks))) == 1


async def test_who_waits_holds_up_nobody() -> None:
    """The others are called meanwhile, in order; it gets its value or its error."""
    gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    order: list[str] = []

    async def waits() -> int:
        order.append("waits")
        value = await gate
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)
        except TimeoutError:
            return value
        return 0

    async def goes() -> None:
        order.append("goes")

    office, _ = await run(waits, goes, waits, goes)
    assert [one.detail for one in await office.wait(2)] == [None, None]
    assert order == ["waits", "goes", "waits", "goes"]
    gate.set_result(7)
    assert [one.detail for one in (await office.wait(4))[2:]] == ["7", "7"]


async def test_each_has_a_context_of_its_own() -> None:
    async def sets() -> int:
        seen = NUMBER.get()
        NUMBER.set(seen + 1)
        await asyncio.sleep(0)
        return NUMBER.get()

    async def looks() -> int:
        before = NUMBER.get()
        NUMBER.set(5)
        return before

    office, _ = await run(looks, sets, looks, sets)
    assert sorted(str(one.detail) for one in await office.wait(4)) == ["0", "0", "1", "1"]
    assert NUMBER.get() == 0


async def test_who_cancels_itself_cancels_nobody_else() -> None:
    async def cancels() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "cancels"

    async def waits() -> str:
        await asyncio.sleep(0)
        return "waits"

    office, _ = await run(cancels, waits, cancels, waits)
    assert sorted(str(one.detail) for one in await office.wait(4)) == ['"cancels"'] * 2 + ['"waits"'] * 2


async def test_one_that_waits_is_interrupted_alone() -> None:
    gate = asyncio.Event()

    async def waits() -> str:
        await gate.wait()
        return "waited"

    async def comes_last() -> str:
        return "last"

    office, attempts = await run(waits, waits, waits, comes_last)
    await office.wait(1)
    assert "await gate.wait()" in stacks.where_is(attempts[1])
    attempts[1].stopped = "canceled"
    interrupt(attempts[1])
    assert [one.outcome for one in (await office.wait(2))[1:]] == ["release"]
    gate.set()
    assert [one.detail for one in (await office.wait(4))[2:]] == ['"waited"'] * 2


async def test_one_that_only_gives_others_their_turn_is_interrupted() -> None:
    async def spins() -> None:
        for _ in range(1000):
            await asyncio.sleep(0)

    async def comes_last() -> None: ...

    office, (first, _) = await run(spins, comes_last)
    await office.wait(1)
    first.stopped = "canceled"
    interrupt(first)
    assert [one.outcome for one in await office.wait(2)] == ["ok", "release"]


async def test_limits_of_its_own_hold() -> None:
    async def handler() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            pass
        with anyio.move_on_after(0.001) as scope:
            await anyio.sleep_forever()
        assert scope.cancelled_caught
        return "both"

    office, _ = await run(handler, handler)
    assert [one.detail for one in await office.wait(2)] == ['"both"'] * 2


async def test_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers that take long between two waits do not keep the loop for all of them together."""
    monkeypatch.setattr(runner, "SLICE_S", -1.0)
    order: list[str] = []
    loop = asyncio.get_running_loop()

    def work(name: str) -> Work:
        async def handler() -> None:
            order.append(name)
            loop.call_soon(order.append, "loop")

        return handler

    office, _ = await run(work("a"), work("b"), work("c"))
    await office.wait(3)
    assert order[:5] == ["a", "loop", "b", "loop", "c"]


async def test_what_is_worth_a_traceback() -> None:
    """What a handler failed with; no outcome that it requested, and no cancellation."""
    boom = ValueError("boom")

    def work(error: BaseException) -> Work:
        async def handler() -> None:
            raise error

        return handler

    office, _ = await run(*map(work, (boom, pulse.Discard("hopeless"), asyncio.CancelledError())))
    assert [one.outcome for one in await office.wait(3)] == ["error", "discard", "error"]
    assert office.errors == [boom]


async def test_plain_ones_go_to_threads() -> None:
    gate = threading.Event()

    def plain() -> int:
        return threading.get_ident() if gate.wait(10) else 0

    async def opens() -> int:
        gate.set()
        return threading.get_ident()

    office = Office()
    async with anyio.create_task_group() as group:
        one = make_runner(office, group, 10)
        for number, work in enumerate((plain, opens)):
            job = Assignment(number.to_bytes(16), 1, "n", "t", "{}", None, 30.0)
            one.start(Attempt(job, make_handler("n", work), 0.0))
        await office.wait(2)
    threads = {one.detail for one in office.endings}
    assert len(threads) == 2
    assert str(threading.get_ident()) in threads


async def test_what_is_stopped_before_its_turn_is_not_called() -> None:
    """It is given back as it was."""
    called: list[object] = []

    async def work() -> None:
        called.append(None)

    office = Office()
    async with anyio.create_task_group() as group:
        attempt = Attempt(Assignment(bytes(16), 1, "n", "t", "{}", None, 30.0), make_handler("n", work), 0.0)
        make_runner(office, group, 10).start(attempt)
        attempt.stopped = "canceled"
    assert (office.endings, called) == ([RELEASED], [])
