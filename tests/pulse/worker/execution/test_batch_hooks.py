"""Around a batch: middleware is called once for the call, the hooks of a failure for each job."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any
from uuid import UUID

import anyio
import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import pulse
from pulse.app.context import CURRENT
from pulse.app.outcome import Outcome
from pulse.app.tracing import Spans
from pulse.logs import LOGGED
from pulse.worker.execution.runner import interrupt
from tests.pulse.worker.execution.batch_kit import Jobs, Scene

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_middleware_sees_the_batch() -> None:
    scene, seen, contexts = Scene(), list[Any](), list[pulse.Context]()

    @scene.app.middleware
    async def around(ctx: pulse.Context, call_next: pulse.CallNext) -> object:
        contexts.append(ctx)
        seen.append((ctx.job_id, ctx.name, ctx.topic, ctx.args, [job.args for job in ctx.batch]))
        results = await call_next()
        return [f"{one}!" for one in results]

    @scene.app.handler("n", batch=10)
    async def index(jobs: Jobs) -> list[int]:
        assert pulse.current() is contexts[0]
        seen.append(pulse.current().batch == tuple(jobs))
        return [1 for _ in jobs]

    endings = await scene.call(scene.attempts('{"a": 1}', '{"a": 2}'))
    assert seen == [(UUID(int=1), "n", "t", {"a": 1}, [{"a": 1}, {"a": 2}]), True]
    assert endings == {1: Outcome("ok", '"1!"'), 2: Outcome("ok", '"1!"')}


async def test_plain_middleware_is_called_in_the_thread() -> None:
    scene, seen = Scene(), list[int]()

    @scene.app.middleware
    def around(ctx: pulse.Context, call_next: Callable[[], object]) -> object:
        seen.append(len(ctx.batch))
        return call_next()

    @scene.app.handler("n", batch=10)
    def index(jobs: Jobs) -> None:
        pass

    await scene.call(scene.attempts("{}", "{}"))
    assert seen == [2]


async def test_the_context_of_a_batch_acts_for_no_job() -> None:
    """Its facts are those of the first one; that it is canceled or lost is true only if all are."""
    scene, seen, before = Scene(), list[Any](), list[bool]()

    @scene.app.handler("n", batch=10)
    async def index(jobs: Jobs) -> None:
        ctx = pulse.current()
        for refused in (
            lambda: ctx.progress(1),
            lambda: ctx.checkpoint(1),
            lambda: ctx.complete(1),
            lambda: ctx.transaction(None),
        ):
            with pytest.raises(pulse.PulseError, match=r"a batch has no .*: each job of it has its own, job\.ctx"):
                refused()
        before.append(ctx.previous is jobs[0].ctx.previous is not None)
        before.append(ctx.occurrence == jobs[0].ctx.occurrence is not None)
        seen.append((ctx.worker, ctx.attempt, ctx.deadline == jobs[0].ctx.deadline, ctx.lease_lost, ctx.cancelled))
        scene.office.lost.add(1)
        attempts[0].stop("canceled")
        seen.append((ctx.lease_lost, ctx.cancelled))
        scene.office.lost.add(2)
        attempts[1].stop("canceled")
        seen.append((ctx.lease_lost, ctx.cancelled))

    attempts = scene.attempts("{}", "{}", previous={"outcome": "released"}, occurrence=5.0)
    await scene.call(attempts)
    assert before == [True, True]
    assert seen == [("me", 1, True, False, False), (False, False), (True, True)]


async def test_a_job_has_a_transaction_of_its_own() -> None:
    scene, fences = Scene(), list[Any]()

    @scene.app.handler("n", batch=10)
    async def index(jobs: Jobs) -> None:
        fences.extend(job.ctx.link.fence for job in jobs)
        fences[0].move("completed")

    attempts = scene.attempts("{}", "{}")
    endings = await scene.call(attempts)
    assert fences[0] is not fences[1]
    assert [one.is_completed for one in attempts] == [True, False]
    assert endings[1].outcome == "ok"


async def test_each_failure_is_told_with_its_own_context_at_the_same_time() -> None:
    scene, seen = Scene(), list[Any]()
    all_there = anyio.Event()

    @scene.app.on_failure
    async def tell(ctx: pulse.Context, error: BaseException) -> None:
        seen.append((ctx.job_id.int, str(error), LOGGED.get() == attempts[ctx.job_id.int - 1].job))
        assert CURRENT.get().context is ctx
        if len(seen) == 3:
            all_there.set()
        await all_there.wait()

    @scene.app.handler("n", batch=10)
    async def index(jobs: Jobs) -> None:
        jobs[1].fail(KeyError(2))
        jobs[2].complete()
        raise ValueError("all")

    attempts = scene.attempts(*["{}"] * 4)
    await scene.call(attempts)
    assert sorted(seen) == [(1, "all", True), (2, "2", True), (4, "all", True)]


async def test_a_hook_that_is_interrupted_does_not_cost_the_results() -> None:
    scene = Scene()

    @scene.app.on_failure
    async def tell(_ctx: pulse.Context, _error: BaseException) -> None:
        for one in attempts:
            one.stop("drain")
            interrupt(one)
        await anyio.lowlevel.checkpoint()

    @scene.app.handler("n", batch=10)
    async def index(jobs: Jobs) -> None:
        raise ValueError("all")

    attempts = scene.attempts("{}", "{}")
    endings = await scene.call(attempts)
    assert [one.outcome for one in endings.values()] == ["error", "error"]


async def test_lines_name_the_first_job_and_how_many_there_are() -> None:
    scene, seen = Scene(), list[Any]()

    @scene.app.handler("n", batch=10)
    async def index(jobs: Jobs) -> None:
        logged = LOGGED.get()
        seen.append((logged and logged.id, structlog.contextvars.get_contextvars().get("batch")))

    attempts = scene.attempts("{}", "{}")
    await scene.call(attempts)
    assert seen == [(attempts[0].job.id, 2)]
    assert "batch" not in structlog.contextvars.get_contextvars()
    scene.office.endings.clear()
    await scene.call(scene.attempts("{}"))
    assert seen[1] == (attempts[0].job.id, None)


async def test_what_one_call_sets_shows_in_no_other() -> None:
    scene = Scene()
    variable = contextvars.ContextVar("variable", default=0)

    @scene.app.handler("n", batch=10)
    async def index(jobs: Jobs) -> list[int]:
        variable.set(variable.get() + len(jobs))
        return [variable.get() for _ in jobs]

    assert (await scene.call(scene.attempts("{}", "{}")))[1].detail == "2"
    scene.office.endings.clear()
    assert (await scene.call(scene.attempts("{}")))[1].detail == "1"


async def test_each_job_has_a_span_with_its_outcome() -> None:
    """Those that were stopped before the call have none; without any there is no span of a call."""
    scene, exporter = Scene(), InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    scene.tracing = Spans(provider.get_tracer("test"))

    @scene.app.handler("n", batch=10)
    async def index(jobs: Jobs) -> list[object]:
        return [7, ValueError("no")]

    attempts = scene.attempts("{}", "{}", "{}")
    attempts[0].stop("canceled")
    await scene.call(attempts)
    outcomes = [(one.attributes or {}).get("pulse.outcome") for one in exporter.get_finished_spans()]
    assert outcomes == ["ok", "error", None]
    exporter.clear()
    scene.office.endings.clear()
    stopped = scene.attempts("{}")
    stopped[0].stop("canceled")
    await scene.call(stopped)
    assert exporter.get_finished_spans() == ()
