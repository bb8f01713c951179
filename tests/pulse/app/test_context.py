"""The context: what a handler can say through it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import anyio.to_thread
import pytest

import pulse
from pulse import Context
from pulse.app.context import current
from pulse.app.workflows.parents import ParentPage
from pulse.app.workflows.receipt import Receipt
from pulse.app.workflows.steps import NextSignal
from pulse.errors import HandlerError, NoHandlerError, TooLargeError, TransactionError

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Heard:
    worker = None
    fence = None

    def __init__(self) -> None:
        self.lease_lost = False
        self.cancelled = False
        self.said: list[tuple[str, str]] = []

    def progress(self, text: str) -> None:
        self.said.append(("progress", text))

    def checkpoint(self, text: str) -> None:
        self.said.append(("checkpoint", text))

    def save(self, text: str) -> Receipt:
        self.said.append(("save", text))
        receipt = Receipt()
        receipt.settle()
        return receipt

    def parents(self, after: str | None) -> ParentPage:
        """Three, on two pages."""
        self.said.append(("parents", str(after)))
        assert len(self.said) < 9, "it goes on"
        jobs = [pulse.Job(id=uuid.UUID(int=n), name="n", topic="t", status=pulse.Status.COMPLETED) for n in range(3)]
        return (jobs[:2], "2") if after is None else (jobs[2:], None)

    def next_signal(self, name: str, had: Sequence[int]) -> NextSignal:
        raise NotImplementedError


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def ctx(heard: Heard) -> Context:
    return Context(job_id=uuid.uuid4(), attempt=1, name="n", topic="t", link=heard)


async def test_progress_with_await(ctx: Context, heard: Heard) -> None:
    await ctx.progress(0.5, "half way")
    await ctx.checkpoint({"page": 3})
    assert heard.said == [("progress", '{"value":0.5,"text":"half way"}'), ("checkpoint", '{"page":3}')]


def test_progress_without_await(ctx: Context, heard: Heard) -> None:
    ctx.progress(0.5)
    ctx.progress({"done": 3}, "files")
    ctx.progress(None)
    ctx.checkpoint([1, 2])
    assert [text for _, text in heard.said] == ['{"value":0.5}', '{"done":3,"text":"files"}', '{"value":null}', "[1,2]"]


@pytest.mark.parametrize("value", [float("nan"), {1}, "a\0b", {"k": "\ud800"}])
def test_what_cannot_be_stored_is_refused_here(ctx: Context, heard: Heard, value: object) -> None:
    with pytest.raises(ValueError, match="progress is not JSON"):
        ctx.progress(value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="checkpoint is not JSON"):
        ctx.checkpoint(value)  # type: ignore[arg-type]
    assert heard.said == []


def test_what_is_too_large_is_refused_here(ctx: Context, heard: Heard) -> None:
    with pytest.raises(TooLargeError, match="at most 16384"):
        ctx.progress("ä" * 10_000)
    with pytest.raises(TooLargeError, match="at most 1048576"):
        ctx.checkpoint("x" * 2_000_000)
    assert heard.said == []


def test_flags_follow_the_worker(ctx: Context, heard: Heard) -> None:
    assert (ctx.lease_lost, ctx.cancelled) == (False, False)
    heard.lease_lost = heard.cancelled = True
    assert (ctx.lease_lost, ctx.cancelled) == (True, True)
    with pytest.raises(AttributeError, match="cannot assign to field"):
        ctx.attempt = 7  # type: ignore[misc]


def test_a_context_made_by_hand() -> None:
    ctx = Context(job_id=uuid.uuid4(), attempt=2, name="n", topic="t")
    ctx.progress(1)
    assert (ctx.attempt, ctx.cancelled, ctx.lease_lost, ctx.previous) == (2, False, False, None)


@pytest.mark.parametrize("begin", [
    lambda ctx: ctx.step("a", list), lambda ctx: ctx.sleep(1), lambda ctx: ctx.wait_for("a"),
], ids=["step", "sleep", "wait"])  # fmt: skip
def test_a_batch_has_no_steps(ctx: Context, heard: Heard, begin: Callable[[Context], object]) -> None:
    """Middleware gets the context of the first one, whose attempt a step would end or save for all."""
    job: pulse.BatchJob[Any] = pulse.BatchJob(id=ctx.job_id, attempt=1, args={}, ctx=ctx)
    whole = Context(job_id=ctx.job_id, attempt=1, name="n", topic="t", link=heard, batch=(job,))
    with pytest.raises(HandlerError, match=r"^a batch has no steps: each job of it has its own, job\.ctx\.step$"):
        begin(whole)
    assert heard.said == []


def test_where_no_handler_runs() -> None:
    """Where one runs it is the handler's: tests/pulse/worker/execution/test_failure_hooks.py."""
    with pytest.raises(NoHandlerError, match="where no handler runs") as caught:
        current()
    assert isinstance(caught.value, RuntimeError)


def test_what_only_a_worker_can_do() -> None:
    ctx = Context(job_id=uuid.uuid4(), attempt=2, name="n", topic="t")
    assert ctx.worker is None
    with pytest.raises(TransactionError, match="need a worker that runs the attempt"):
        ctx.transaction(object())
    with pytest.raises(TransactionError, match="need a worker that runs the attempt"):
        ctx.complete(1)


THREE = [uuid.UUID(int=n) for n in range(3)]


async def test_parents_are_read_page_by_page(ctx: Context, heard: Heard) -> None:
    assert [one.id for one in await ctx.parents()] == THREE
    assert heard.said == [("parents", "None"), ("parents", "2")]
    async for _ in ctx.parents():
        break
    assert heard.said[2:] == [("parents", "None")]


async def test_parents_are_not_read_where_that_stops_the_loop(ctx: Context, heard: Heard) -> None:
    with pytest.raises(HandlerError, match="write `await ctx"):
        list(ctx.parents())
    assert heard.said == []
    assert await anyio.to_thread.run_sync(list, ctx.parents()) == await ctx.parents()


def test_parents_of_a_plain_handler(ctx: Context) -> None:
    assert [one.id for one in ctx.parents()] == THREE
    assert list(Context(job_id=uuid.uuid4(), attempt=1, name="n", topic="t").parents()) == []


def test_the_id_of_a_child(ctx: Context) -> None:
    """It depends on the job, not on the attempt."""
    again = replace(ctx, attempt=2)
    assert again.child_id("a") == ctx.child_id("a") == uuid.uuid5(ctx.job_id, "a")
    other = replace(ctx, job_id=uuid.uuid4())
    assert len({ctx.child_id("a"), ctx.child_id("b"), other.child_id("a")}) == 3
