"""Waits for signals, in memory: which signal each gets, when it is over, and what a later attempt makes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import anyio
import anyio.lowlevel
import pytest

import pulse
from pulse.app.context import Previous
from pulse.app.outcome import Outcome, classify
from pulse.app.workflows.steps import Asleep, NextSignal, SignalWaiting, split
from pulse.common.json_text import JsonValue
from pulse.errors import HandlerError, NobodyAnswersError, StaleAttemptError, TooLargeError
from pulse.testing import RecordingContext

pytestmark = pytest.mark.anyio

SENT_AT: Final = datetime(2026, 1, 2, tzinfo=UTC)
HOUR_S: Final = 3600.0


def signal(name: str = "approval", payload: JsonValue = None) -> pulse.Signal:
    return pulse.Signal(name=name, payload=payload, sent_at=SENT_AT)


def attempt(number: int = 1, before: RecordingContext | None = None, *signals: pulse.Signal) -> RecordingContext:
    """The context of an attempt, after another one."""
    previous = None
    if before is not None:
        steps, own = split(before.link.stored)
        assert isinstance(steps, dict)
        previous = Previous(outcome="snoozed", checkpoint=own, steps=steps)
    ctx = RecordingContext(attempt=number, previous=previous)
    ctx.link.signals += signals
    ctx.link.now_s = 1000.0
    return ctx


def waits(ctx: RecordingContext, name: str = "approval", timeout_s: float | None = HOUR_S) -> float:
    """For how long the attempt is given back."""
    with pytest.raises(SignalWaiting) as caught:
        ctx.wait_for(name, timeout_s=timeout_s)
    assert caught.value.signal == name
    return caught.value.seconds


def test_each_wait_gets_a_signal_of_its_own() -> None:
    ctx = attempt(1, None, signal(payload=1), signal("payment", "x"), signal(payload=2))
    found = [ctx.wait_for(name) for name in ("approval", "payment", "approval")]
    assert found == [signal(payload=1), signal("payment", "x"), signal(payload=2)]
    with pytest.raises(SignalWaiting) as caught:
        ctx.wait_for("approval")
    assert (caught.value.seconds, caught.value.sent) == (1e9, 3)


def test_a_later_attempt_gets_the_same_ones() -> None:
    """Though others have come meanwhile."""
    first = attempt(1, None, signal(payload=1))
    assert first.wait_for("approval") == signal(payload=1)
    second = attempt(2, first, signal(payload=1), signal(payload=2))
    assert [second.wait_for("approval") for _ in range(2)] == [signal(payload=1), signal(payload=2)]


def test_the_time_counts_from_the_first_attempt() -> None:
    first = attempt()
    assert waits(first) == HOUR_S
    second = attempt(2, first)
    second.link.now_s = 1000.0 + 600.0
    assert waits(second, timeout_s=5.0) == HOUR_S - 600.0
    third = attempt(3, second)
    third.link.now_s = 1000.0 + HOUR_S
    assert third.wait_for("approval", timeout_s=HOUR_S) is None
    fourth = attempt(4, third, signal())  # it came too late for the first wait
    assert [fourth.wait_for("approval", timeout_s=HOUR_S) for _ in range(2)] == [None, signal()]


@pytest.mark.parametrize(("number", "is_over"), [(2, True), (2, False), (3, True)])
def test_the_server_says_when_it_is_over(number: int, is_over: bool) -> None:
    """But only of the wait that the attempt before ended with."""
    first = attempt()
    waits(first)
    second = attempt(number, first)
    second.link.next_signal = lambda *_: NextSignal(None, now_s=1000.0, is_over=is_over)  # type: ignore[method-assign]
    if number == 2 and is_over:
        assert second.wait_for("approval", timeout_s=HOUR_S) is None
        assert waits(second, timeout_s=60.0) == 60.0
    else:
        assert waits(second) == HOUR_S


def test_a_signal_comes_before_the_end_of_the_time() -> None:
    """Both are there when the attempt begins: the signal counts."""
    first = attempt()
    waits(first)
    second = attempt(2, first, signal())
    second.link.now_s = 1000.0 + 2 * HOUR_S
    assert second.wait_for("approval", timeout_s=HOUR_S) == signal()


def test_what_is_decided_is_stored_before_the_handler_goes_on() -> None:
    """An attempt that has lost its job decides nothing; nor does it end in a wait whose time nobody knows."""
    for given, stored in (([signal()], "id"), ([], "over")):
        ctx = attempt(1, None, *given)
        ctx.wait_for("approval", timeout_s=0)
        steps, _ = split(ctx.link.stored)
        assert isinstance(steps, dict)
        [decided] = steps.values()
        assert stored in (decided if isinstance(decided, dict) else {})
    for given, timeout_s in (([signal()], None), ([], 0.0), ([], HOUR_S)):
        ctx = attempt(1, None, *given)
        look = ctx.link.next_signal

        def lose(
            name: str,
            had: Sequence[int],
            ctx: RecordingContext = ctx,
            look: Callable[[str, Sequence[int]], NextSignal] = look,
        ) -> NextSignal:
            ctx.link.lease_lost = True
            return look(name, had)

        ctx.link.next_signal = lose  # type: ignore[method-assign]
        with pytest.raises(StaleAttemptError):
            ctx.wait_for("approval", timeout_s=timeout_s)
        with pytest.raises(StaleAttemptError, match="begins no step"):
            ctx.wait_for("approval")


def test_a_wait_without_an_answer_does_not_count() -> None:
    """The handler may try it again, and a later attempt counts as this one."""
    ctx = attempt(1, None, signal(payload=1), signal(payload=2))
    look = ctx.link.next_signal
    answers: list[Any] = [NobodyAnswersError("no"), *[None] * 4]

    def fail(name: str, had: Sequence[int]) -> NextSignal:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return look(name, had)

    ctx.link.next_signal = fail  # type: ignore[method-assign]
    with pytest.raises(NobodyAnswersError):
        ctx.wait_for("approval")
    assert ctx.wait_for("approval") == signal(payload=1)
    assert attempt(2, ctx).wait_for("approval") == signal(payload=1)


async def test_two_waits_at_the_same_time() -> None:
    """Each gets another signal."""
    ctx = attempt(1, None, signal(payload=1), signal(payload=2))
    found: list[Any] = []

    async def wait() -> None:
        found.append((await ctx.wait_for("approval")).payload)

    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(wait)
    assert sorted(found) == [1, 2]


async def test_a_wait_that_is_cancelled_frees_its_own_number() -> None:
    """The other one keeps its number: the next wait gets a signal of its own."""
    ctx = attempt(1, None, signal(payload=1), signal(payload=2))
    look, gate = ctx.link.next_signal, threading.Event()
    calls: list[int] = []

    def slow(name: str, had: Sequence[int]) -> NextSignal:
        calls.append(1)
        if len(calls) <= 2:
            assert gate.wait(timeout=30)
        return look(name, had)

    ctx.link.next_signal = slow  # type: ignore[method-assign]
    found: list[Any] = []

    async def wait() -> None:
        found.append((await ctx.wait_for("approval")).payload)

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as first:
                first.start_soon(wait)
                while len(calls) < 1:
                    await anyio.lowlevel.checkpoint()
                group.start_soon(wait)
                while len(calls) < 2:
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
        group.start_soon(wait)
        gate.set()
    assert sorted(found) == [1, 2]


@pytest.mark.parametrize("errors", [[Asleep(60.0), SignalWaiting(5.0, "a", 3)], [SignalWaiting(5.0, "a", 3)]])
def test_several_at_once(errors: list[BaseException]) -> None:
    """An attempt of which all parts wait goes on with the first; one that fails in a part has failed."""
    group = BaseExceptionGroup("parts", [BaseExceptionGroup("inner", errors[:1]), *errors[1:]])
    assert classify(group) == Outcome("wait", (5.0, ("a", 3)))
    assert classify(BaseExceptionGroup("parts", [*errors, ValueError("x")])).outcome == "error"


async def test_in_an_event_loop() -> None:
    """As in a plain handler."""
    ctx = attempt(1, None, signal(payload=1))
    assert await ctx.wait_for("approval", timeout_s=5) == signal(payload=1)
    assert await ctx.wait_for("approval", timeout_s=0) is None
    with pytest.raises(SignalWaiting):
        await ctx.wait_for("approval", timeout_s=5)
    assert issubclass(SignalWaiting, Asleep)
    assert not issubclass(SignalWaiting, Exception)


def test_a_large_payload() -> None:
    """Signals and steps share the room of the checkpoint; what does not fit stays with the server."""
    ctx = attempt(1, None, signal(payload="x" * 1024 * 1024), signal("other", 5))
    with pytest.raises(TooLargeError):
        ctx.wait_for("approval")
    assert ctx.wait_for("other") == signal("other", 5)


def test_a_payload_that_python_does_not_write() -> None:
    """SQL can send 1e5000: the wait fails, and the steps of the job do not."""
    ctx = attempt(1, None, signal("a b", 10**5000))
    with pytest.raises(HandlerError, match=r"the payload of signal 'a b' cannot be kept: Exceeds the limit"):
        ctx.wait_for("a b")
    assert ctx.step("next", lambda: 1) == 1


@pytest.mark.parametrize(("name", "timeout_s", "error", "said"), [
    ("", None, HandlerError, "signal '': a name of 1 to 200 characters is allowed"),
    ("x" * 201, None, HandlerError, "a name of 1 to 200 characters is allowed"),
    (5, None, HandlerError, "signal 5: a name"),
    ("approval", -1.0, ValueError, "wait_for: between 0 and 1e[+]09 seconds are allowed, not -1.0"),
    ("approval", float("nan"), ValueError, "are allowed, not nan"),
])  # fmt: skip
def test_what_is_wrong(name: Any, timeout_s: float | None, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        attempt().wait_for(name, timeout_s=timeout_s)
