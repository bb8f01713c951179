"""Steps of a handler, in memory: what is remembered, what runs again, and what is refused."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final
from uuid import uuid4

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

import pulse
from pulse.app.context import Context
from pulse.app.workflows.parents import ParentPage
from pulse.app.workflows.receipt import Kept, Receipt
from pulse.app.workflows.steps import Asleep, NextSignal, Steps, split
from pulse.errors import HandlerError, StaleAttemptError, TooLargeError
from pulse.testing import Inline, RecordingContext
from tests.support.waiting import DEADLINE_S

pytestmark = pytest.mark.anyio

HOUR_S: Final = 3600.0


class Crash(Exception):
    """Ends an attempt."""


class Calls:
    """What was called, and when an attempt is to end."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.crash_before: set[str] = set()

    def make(self, name: str) -> str:
        self.made.append(name)
        return name.upper()

    async def make_async(self, name: str) -> str:
        await anyio.lowlevel.checkpoint()
        return self.make(name)

    def pass_by(self, name: str) -> None:
        """Crash, the first time."""
        if name in self.crash_before:
            self.crash_before.remove(name)
            raise Crash(name)


class Shop:
    """What a lifespan yields: then an event loop runs in the thread of a plain handler."""


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture(params=["async", "plain", "plain with a lifespan"])
def app(calls: Calls, request: pytest.FixtureRequest) -> pulse.App:
    app = pulse.App()

    if request.param == "async":

        @app.handler("order", backoff="fixed:0")
        async def order(ctx: pulse.Context) -> list[Any]:
            first = await ctx.step("first", calls.make_async, "a")
            calls.pass_by("own")
            if ctx.previous is None or ctx.previous.checkpoint is None:
                await ctx.checkpoint({"page": 1})
            calls.pass_by("second")
            second = await ctx.step("second", calls.make, name="b")
            calls.pass_by("end")
            await ctx.sleep(hours=1)
            return [first, second, ctx.previous and ctx.previous.checkpoint]

        return app

    @app.lifespan
    async def shop() -> AsyncIterator[Shop]:
        yield Shop()

    def plain(ctx: pulse.Context) -> list[Any]:
        first = ctx.step("first", calls.make, "a")
        calls.pass_by("own")
        if ctx.previous is None or ctx.previous.checkpoint is None:
            ctx.checkpoint({"page": 1})
        calls.pass_by("second")
        second = ctx.step("second", calls.make, name="b")
        calls.pass_by("end")
        ctx.sleep(hours=1)
        return [first, second, ctx.previous and ctx.previous.checkpoint]

    if request.param == "plain":
        app.handler("order", backoff="fixed:0")(plain)
        return app

    @app.handler("order", backoff="fixed:0")
    def with_shop(ctx: pulse.Context, shop: Shop) -> list[Any]:
        del shop
        return plain(ctx)

    return app


@pytest.mark.parametrize("crashes", [(), ("own",), ("second",), ("end",), ("own", "second", "end")])
def test_finished_steps_do_not_run_again(app: pulse.App, calls: Calls, crashes: tuple[str, ...]) -> None:
    calls.crash_before |= {*crashes}
    inline = Inline(app)
    job_id = inline.client.submit("order")
    job = inline.run_job(job_id)
    assert (job.result, calls.made) == (["A", "B", {"page": 1}], ["a", "b"])
    assert (job.attempts, job.checkpoint) == (len(crashes) + 2, {"page": 1})
    assert [round(one) for one in job.delays_s if one] == [HOUR_S]


def test_a_sleep_is_over_by_the_time_of_the_queue(calls: Calls) -> None:
    """A crash before the attempt had ended does not begin it anew, and two sleeps are two."""
    app = pulse.App()

    @app.handler("naps")
    def naps(ctx: pulse.Context) -> int:
        ctx.sleep(60)
        calls.make("between")
        ctx.sleep(days=1, name="long")
        return ctx.attempt

    inline = Inline(app)
    job_id = inline.client.submit("naps")
    for seconds, attempts in ((0.0, 1), (30.0, 1), (31.0, 2), (3600.0, 2), (24 * HOUR_S, 3)):
        inline.advance(seconds)
        inline.run_until_idle()
        assert inline.job(job_id).attempts == attempts
    job = inline.job(job_id)
    assert (job.result, calls.made, [one.outcome for one in job.history]) == (3, ["between"] * 2, ["snoozed"] * 2)


def _after(outcome: str, slept_in: int, until_s: float, attempt: int) -> RecordingContext:
    steps: Any = {"$sleep 1": [until_s, slept_in]}
    return RecordingContext(attempt=attempt, previous=pulse.Previous(outcome=outcome, steps=steps))


def test_whether_a_sleep_is_over() -> None:
    """The server wakes a job by its own clock; after anything else the sleep lasts until its time."""
    now_s = time.time()
    _after("snoozed", 1, now_s + 100, 2).sleep(200)
    _after("crashed", 1, now_s - 1, 2).sleep(200)
    for ctx in (_after("crashed", 1, now_s + 100, 2), _after("snoozed", 1, now_s + 100, 3)):
        with pytest.raises(Asleep) as caught:
            ctx.sleep(200)
        assert 90 < caught.value.seconds <= 100
    RecordingContext().sleep(0)
    for bad in (-1.0, float("nan"), 1e10):
        with pytest.raises(ValueError, match="between 0 and 1e\\+09 seconds are allowed"):
            RecordingContext().sleep(bad)


async def test_what_is_no_step(calls: Calls) -> None:
    ctx = RecordingContext()
    for name in ("", "$x", "x" * 201):
        with pytest.raises(HandlerError, match="a name of 1 to 200 characters is allowed"):
            ctx.step(name, calls.make, "a")
    assert await ctx.step("a", calls.make, "a") == "A"
    with pytest.raises(HandlerError, match="step 'a' has run in this attempt"):
        await ctx.step("a", calls.make, "a")
    with pytest.raises(ValueError, match="the result of step 'b' is not JSON"):
        await ctx.step("b", object)
    with pytest.raises(TooLargeError, match="at most 1048576 are allowed"):
        await ctx.step("c", lambda: "x" * 2**20)
    assert await ctx.step("d", lambda: (1, 2)) == [1, 2]
    assert ctx.link.stored == {"$steps": {"a": "A", "d": [1, 2]}, "checkpoint": None}
    with pytest.raises(HandlerError, match="step 'e' is async"):
        await anyio.to_thread.run_sync(ctx.step, "e", calls.make_async, "e")
    ctx.link.lease_lost = True
    with pytest.raises(StaleAttemptError, match="begins no step"):
        await ctx.step("f", calls.make, "f")
    assert calls.made == ["a"]


def test_a_step_that_failed_may_be_tried_again(calls: Calls) -> None:
    ctx = RecordingContext()
    calls.crash_before = {"a"}
    with pytest.raises(Crash):
        ctx.step("a", calls.pass_by, "a")
    assert ctx.step("a", calls.pass_by, "a") is None


def test_checkpoints_that_look_like_steps() -> None:
    """The handler's own is never taken for steps, and gets what the steps returned beside it."""
    own: Any = {"$steps": {"a": 1}, "checkpoint": 2}
    ctx = RecordingContext()
    ctx.checkpoint(own)
    assert split(ctx.link.stored) == ({}, own)
    again = RecordingContext(previous=pulse.Previous(checkpoint=own))
    again.step("b", lambda: 3)
    assert split(again.link.stored) == ({"b": 3}, own)
    plain = RecordingContext()
    plain.checkpoint(7)
    assert plain.link.stored == 7


class Slow:
    """A link whose server answers when the test does."""

    worker = None
    fence = None
    lease_lost = False
    cancelled = False

    def __init__(self) -> None:
        self.receipts: list[Receipt] = []
        self.sent = threading.Event()

    def progress(self, text: str) -> None: ...

    def checkpoint(self, text: str) -> None: ...

    def save(self, text: str) -> Receipt:
        del text
        self.receipts.append(Receipt())
        self.sent.set()
        return self.receipts[-1]

    def parents(self, after: str | None) -> ParentPage:
        raise NotImplementedError

    def next_signal(self, name: str, had: Sequence[int]) -> NextSignal:
        raise NotImplementedError


@pytest.mark.parametrize(("kept", "error"), [("kept", None), ("lost", StaleAttemptError), ("refused", HandlerError)])
async def test_a_step_returns_when_the_server_has_its_result(kept: Kept, error: type[Exception] | None) -> None:
    """In the loop, and in a thread; the answer comes from another thread."""
    link = Slow()
    ctx = Context(job_id=uuid4(), attempt=1, name="n", topic="t", link=link)
    ended: list[object] = []

    async def in_loop() -> None:
        try:
            ended.append(await ctx.step("a", lambda: 1))
        except Exception as raised:  # noqa: BLE001 - of either kind
            ended.append(type(raised))

    def in_thread() -> None:
        try:
            ended.append(ctx.step("b", lambda: 1))
        except Exception as raised:  # noqa: BLE001 - of either kind
            ended.append(type(raised))

    async with anyio.create_task_group() as group:
        group.start_soon(in_loop)
        group.start_soon(anyio.to_thread.run_sync, in_thread)
        while len(link.receipts) < 2:
            await anyio.to_thread.run_sync(link.sent.wait, 10.0)
            await anyio.lowlevel.checkpoint()
        assert ended == []
        for receipt in link.receipts:
            await anyio.to_thread.run_sync(receipt.settle, kept)
    assert ended == [1 if error is None else error] * 2


def test_an_attempt_that_may_not_sleep_says_why() -> None:
    steps = Steps(1, {}, why_awake="a hook does not sleep")
    never: Any = None
    with pytest.raises(HandlerError, match=r"^a hook does not sleep$"):
        steps.sleep(never, 1.0, None)
    with pytest.raises(HandlerError, match=r"^a hook does not sleep$"):
        steps.wait(never, never, "paid", None)


async def test_an_answer_that_nobody_else_hears_is_listened_for() -> None:
    receipt = Receipt(lambda one: one.settle("lost"))
    with anyio.fail_after(DEADLINE_S), pytest.raises(StaleAttemptError):
        await receipt.arrive()


async def test_an_interrupted_step_is_not_taken_for_finished() -> None:
    """Its result is sent again, and it is not called again."""
    link = Slow()
    ctx = Context(job_id=uuid4(), attempt=1, name="n", topic="t", link=link)
    results = iter([1, 2])
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(ctx.step, "a", lambda: next(results))
            await anyio.to_thread.run_sync(link.sent.wait, 10.0)
            scope.cancel()
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: ctx.step("a", lambda: next(results)))
        while len(link.receipts) < 2:
            await anyio.lowlevel.checkpoint()
        link.receipts[-1].settle()
    assert next(results) == 2
