"""One call for several attempts: what its handler gets, and what becomes of each."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import anyio
import pytest

import pulse
from pulse.app.outcome import Outcome
from pulse.security.codec import seal
from pulse.worker.execution import stacks
from pulse.worker.execution.runner import interrupt
from tests.pulse.worker.execution.batch_kit import Jobs, Scene
from tests.support.checking.codecs import Backwards

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@dataclass
class Page:
    url: str


class Pool:
    """What a lifespan yields."""


async def test_a_call_gets_all_jobs_and_each_its_result() -> None:
    scene, seen = Scene(), list[Any]()

    @scene.app.handler("n", batch=10)
    async def index(jobs: list[pulse.BatchJob[Page]]) -> list[object]:
        seen.append([(job.id, job.attempt, job.args) for job in jobs])
        return [job.args.url for job in jobs]

    endings = await scene.call(scene.attempts('{"url": "a"}', '{"url": "b"}'))
    assert seen == [[(UUID(int=1), 1, Page("a")), (UUID(int=2), 1, Page("b"))]]
    assert endings == {1: Outcome("ok", '"a"'), 2: Outcome("ok", '"b"')}


async def test_a_plain_handler_runs_in_a_thread() -> None:
    scene = Scene()

    @scene.app.handler("n", batch=10)
    def index(jobs: Jobs) -> list[int]:
        jobs[0].ctx.progress(0.5)
        return [threading.get_ident() for _ in jobs]

    attempts = scene.attempts("{}", "{}")
    endings = await scene.call(attempts)
    assert endings[1] == endings[2] == Outcome("ok", str(attempts[0].batch and attempts[0].batch.thread))
    assert str(threading.get_ident()) != endings[1].detail
    assert scene.office.progress == {1: '{"value":0.5}'}


async def test_every_kind_of_end_in_one_call() -> None:
    """A job with an outcome of its own keeps it, whatever the handler returns."""
    scene = Scene()

    @scene.app.handler("n", batch=10, retry_on={KeyError: 7})
    async def index(jobs: Jobs) -> list[object]:
        jobs[0].complete("early")
        jobs[1].fail(ValueError("no such page"))
        jobs[2].fail(pulse.RetryAfter(5, "429"))
        return ["late", "late", "late", pulse.Discard("gone"), pulse.Snooze(3), KeyError("k"), None, object()]

    endings = await scene.call(scene.attempts(*["{}"] * 8))
    assert endings[1] == Outcome("ok", '"early"')
    assert endings[2] == Outcome("error", "ValueError: no such page")
    assert endings[3] == Outcome("retry", (5.0, "429"))
    assert endings[4] == Outcome("discard", "gone")
    assert endings[5] == Outcome("snooze", 3.0)
    assert endings[6] == Outcome("retry", (7.0, "KeyError: 'k'"))
    assert endings[7] == Outcome("ok", None)
    assert (endings[8].outcome, str(endings[8].detail)[:18]) == ("error", "result is not JSON")
    assert [(type(error), job) for error, job in scene.office.errors] == [(ValueError, 2)], "retries are no failures"


async def test_a_raise_fails_all_without_an_outcome_and_is_logged_once() -> None:
    scene = Scene()

    @scene.app.handler("n", batch=10)
    async def index(jobs: Jobs) -> None:
        jobs[0].complete(1)
        jobs[1].fail(KeyError("own"))
        raise ValueError("the index is away")

    endings = await scene.call(scene.attempts(*["{}"] * 4))
    assert endings[1] == Outcome("ok", "1")
    assert str(endings[2].detail).startswith("KeyError: 'own'")
    assert endings[3] == endings[4]
    assert str(endings[3].detail).startswith("ValueError: the index is away\nTraceback")
    assert [(type(error), job) for error, job in scene.office.errors] == [(KeyError, 2), (ValueError, 3)]


async def test_args_that_do_not_fit_fail_alone() -> None:
    scene, seen = Scene(), list[str]()

    @scene.app.handler("n", batch=10)
    async def index(jobs: list[pulse.BatchJob[Page]]) -> list[str]:
        seen.extend(job.args.url for job in jobs)
        return seen

    endings = await scene.call(scene.attempts('{"url": "a"}', '{"url": 7}', "[]", '{"url": "b"}'))
    assert seen == ["a", "b"]
    assert (endings[1].detail, endings[4].detail) == ('"a"', '"b"')
    assert endings[2].outcome == "discard"
    assert str(endings[2].detail).startswith("the handler does not take these args: args.url is wrong")
    assert str(endings[3].detail).startswith("TypeError: args are not an object")


async def test_without_a_single_job_nothing_is_called() -> None:
    scene, called = Scene(), list[object]()

    @scene.app.handler("n", batch=10)
    async def index(jobs: list[pulse.BatchJob[Page]]) -> None:
        called.append(jobs)

    endings = await scene.call(scene.attempts('{"url": 7}', "{}"))
    assert [one.outcome for one in endings.values()] == ["discard", "discard"]
    assert called == []


async def test_each_job_has_its_own_context() -> None:
    scene = Scene()
    contexts: list[pulse.Context] = []

    @scene.app.handler("n", batch=10)
    async def index(jobs: Jobs) -> None:
        contexts.extend(job.ctx for job in jobs)
        await jobs[1].ctx.progress(0.5)
        await jobs[1].ctx.checkpoint({"done": 1})

    previous = {"outcome": "released", "checkpoint": "5"}
    await scene.call(scene.attempts('{"a": 1}', '{"a": 2}', previous=previous))
    assert [one.args for one in contexts] == [{"a": 1}, {"a": 2}]
    assert [one.previous and one.previous.checkpoint for one in contexts] == [5, 5]
    assert all(one.deadline is not None and one.worker == "me" for one in contexts)
    assert scene.office.progress == {2: '{"value":0.5}'}
    assert scene.office.checkpoints == {2: '{"done":1}'}


async def test_values_of_lifespans_are_passed() -> None:
    scene, pool = Scene(), Pool()
    scene.values = {Pool: pool}

    @scene.app.handler("n", batch=10)
    async def index(jobs: Jobs, mine: Pool = pulse.provided()) -> list[bool]:
        return [mine is pool for _ in jobs]

    assert await scene.call(scene.attempts("{}")) == {1: Outcome("ok", "true")}


async def test_args_and_results_are_encrypted_one_by_one() -> None:
    scene, codec, seen = Scene(), Backwards(), list[str]()
    scene.app = pulse.App(codec=codec)

    @scene.app.handler("n", batch=10)
    async def index(jobs: list[pulse.BatchJob[Page]]) -> list[str]:
        seen.extend(job.args.url for job in jobs)
        await jobs[0].ctx.checkpoint(7)
        return seen

    endings = await scene.call(scene.attempts(seal(codec, "n", '{"url": "a"}'), '{"url": "b"}'))
    assert seen == ["a", "b"]
    assert [one.detail for one in endings.values()] == [seal(codec, "n", '"a"'), seal(codec, "n", '"b"')]
    assert scene.office.checkpoints == {1: seal(codec, "n", "7")}


async def test_a_checkpoint_that_cannot_be_read_fails_its_job_before_the_call() -> None:
    scene, called = Scene(), list[object]()

    @scene.app.handler("n", batch=10)
    async def index(jobs: Jobs) -> None:
        called.append(jobs)

    endings = await scene.call(scene.attempts("{}", previous={"checkpoint": seal(Backwards(), "n", "7")}))
    assert "the checkpoint is encrypted" in str(endings[1].detail)
    assert called == []


class TestStopping:
    gate: anyio.Event

    @pytest.fixture
    def scene(self) -> Scene:
        scene = Scene()

        @scene.app.handler("n", batch=10)
        async def wait(jobs: Jobs) -> list[bool]:
            self.gate = anyio.Event()
            await self.gate.wait()
            return [job.ctx.cancelled for job in jobs]

        return scene

    def open(self) -> None:
        self.gate.set()

    async def test_a_batch_goes_on_while_one_job_of_it_is_wanted(self, scene: Scene) -> None:
        attempts = scene.attempts("{}", "{}")

        def cancel_one() -> None:
            attempts[0].stop("canceled")
            interrupt(attempts[0])
            self.gate.set()

        endings = await scene.call(attempts, cancel_one)
        assert endings == {1: Outcome("ok", "true"), 2: Outcome("ok", "false")}

    async def test_it_is_interrupted_when_none_is_wanted(self, scene: Scene) -> None:
        attempts = scene.attempts("{}", "{}")

        def stop_all() -> None:
            for one in attempts:
                one.stop("timeout" if one is attempts[0] else "canceled")
                interrupt(one)

        endings = await scene.call(attempts, stop_all)
        assert endings == {1: Outcome("error", "timed out after 60 s"), 2: Outcome("release", None)}

    async def test_who_was_stopped_before_the_call_is_not_in_it(self, scene: Scene) -> None:
        attempts = scene.attempts("{}", "{}")
        attempts[0].stop("canceled")
        endings = await scene.call(attempts, self.open)
        assert endings == {1: Outcome("release", None), 2: Outcome("ok", "false")}
        assert not attempts[0].begun

    async def test_the_stack_of_each_job_shows_the_call(self, scene: Scene) -> None:
        attempts, seen = scene.attempts("{}", "{}"), list[str]()

        def look() -> None:
            seen.extend(stacks.where_is(one, "") for one in attempts)
            self.gate.set()

        await scene.call(attempts, look)
        assert "await self.gate.wait()" in seen[1]
        assert seen[0] == seen[1]


async def test_a_plain_handler_is_shown_by_its_thread() -> None:
    scene, go = Scene(), threading.Event()
    seen: list[str] = []

    @scene.app.handler("n", batch=10)
    def index(jobs: Jobs) -> list[bool]:
        seen.extend(stacks.where_is(one, "") for one in attempts)
        for one in attempts:
            one.stop("canceled")
            interrupt(one)
        go.set()
        return [job.ctx.cancelled for job in jobs]

    attempts = scene.attempts("{}", "{}")
    endings = await scene.call(attempts)
    assert seen[1].startswith("The handler runs in thread 0x")
    assert endings[2] == Outcome("ok", "true"), "a thread is not interrupted"
