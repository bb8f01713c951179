"""The context: what a handler can say through it."""

from __future__ import annotations

import uuid

import pytest

from pulse import Context
from pulse.app.context import current
from pulse.errors import NoHandlerError, TooLargeError, TransactionError

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
