"""Handlers of batches in memory: which jobs are called together, and what becomes of each job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import anyio
import pytest

import pulse
from pulse.errors import InlineError
from pulse.testing import Inline

app: Final = pulse.App()
calls: list[list[str]] = []


@dataclass
class Page:
    url: str


Pages = list[pulse.BatchJob[Page]]


def outcomes(jobs: Pages) -> list[object]:
    calls.append([job.args.url for job in jobs])
    for job in jobs:
        job.ctx.progress(len(jobs))
    return [KeyError("no") if job.args.url == "bad" else f"{job.args.url}!" for job in jobs]


@app.handler("plain", batch=3, timeout_s=30, backoff="fixed:7")
def plain(jobs: Pages) -> list[object]:
    return outcomes(jobs)


@app.handler("awaited", batch=3)
async def awaited(jobs: Pages) -> list[object]:
    return outcomes(jobs)


@app.handler("hangs", batch=3, timeout_s=0.01, max_attempts=1)
async def hangs(jobs: Pages) -> None:
    jobs[0].complete("in time")
    await anyio.sleep_forever()


@pytest.fixture
def inline() -> Inline:
    calls.clear()
    return Inline(app)


def urls(inline: Inline, *urls: str, handler: Any = plain, **options: Any) -> None:
    for url in urls:
        inline.submit(handler, {"url": url}, **options)


@pytest.mark.parametrize("handler", [plain, awaited])
def test_what_is_due_is_called_together(inline: Inline, handler: Any) -> None:
    urls(inline, "a", "b", "c", "d", handler=handler)
    urls(inline, "late", handler=handler, delay_s=60)
    urls(inline, "first", handler=handler, priority=9)
    ended = inline.run_until_idle()
    assert calls == [["first", "a", "b"], ["c", "d"]]
    assert [(job.status, job.result) for job in ended] == [
        ("COMPLETED", f"{url}!") for url in ("first", "a", "b", "c", "d")
    ]
    assert ended[0].progress_reports == ({"value": 3},)


@pytest.mark.anyio
async def test_in_an_event_loop_too() -> None:
    calls.clear()
    inline = Inline(app)
    urls(inline, "a", "b")
    assert [job.result for job in await inline.run_until_idle_async()] == ["a!", "b!"]
    assert calls == [["a", "b"]]


def test_one_fails_and_is_tried_again_alone(inline: Inline) -> None:
    urls(inline, "a", "bad")
    first, second = inline.run_until_idle()
    assert (first.status, second.status, second.delays_s) == ("COMPLETED", "RETRYING", (7.0,))
    assert repr(second.error) == "KeyError('no')"
    urls(inline, "b")
    inline.advance(7)
    urls(inline, "c")
    inline.run_until_idle()
    assert sorted(calls) == sorted([["a", "bad"], ["b", "c"], ["bad"]])


def test_jobs_with_other_time_limits_are_called_apart(inline: Inline) -> None:
    urls(inline, "a", timeout_s=1)
    urls(inline, "b")
    urls(inline, "c", timeout_s=1)
    inline.run_until_idle()
    assert sorted(calls) == [["a", "c"], ["b"]]


def test_a_single_job_is_run_alone(inline: Inline) -> None:
    urls(inline, "other")
    assert inline.run_job(inline.submit(plain, {"url": "a"})).result == "a!"
    assert calls == [["a"]]


def test_a_time_limit_ends_those_without_an_outcome(inline: Inline) -> None:
    urls(inline, "a", "b", handler=hangs)
    first, second = inline.run_until_idle()
    assert (first.status, first.result) == ("COMPLETED", "in time")
    assert (second.status, second.last_error) == ("DEAD_LETTERED", "timed out after 0.01 s")


def test_args_that_do_not_fit_are_not_in_the_call(inline: Inline) -> None:
    for handler in ("plain", "awaited"):
        inline.submit(handler, {"url": 7})
    assert [job.status for job in inline.run_until_idle()] == ["DEAD_LETTERED", "DEAD_LETTERED"]
    assert calls == []
    inline.submit("plain", {"no": 7})
    urls(inline, "a")
    assert [job.status for job in inline.run_until_idle()] == ["DEAD_LETTERED", "COMPLETED"]


def test_one_that_has_expired_is_not_in_the_call(inline: Inline) -> None:
    urls(inline, "a", expires_in_s=1)
    urls(inline, "b")
    inline.advance(2)
    assert [job.status for job in inline.run_until_idle()] == ["DEAD_LETTERED", "COMPLETED"]
    assert calls == [["b"]]


def test_the_hooks_of_a_failure_hear_of_each_job() -> None:
    mine, told = pulse.App(), list[object]()

    @mine.handler("n", batch=3)
    def fail(jobs: list[pulse.BatchJob[Any]]) -> None:
        jobs[0].complete()
        raise ValueError("all")

    @mine.on_failure
    def tell(ctx: pulse.Context, error: BaseException) -> None:
        told.append((ctx.job_id, str(error)))

    inline = Inline(mine)
    ids = [inline.submit("n", {}) for _ in range(3)]
    inline.run_until_idle()
    assert told == [(ids[1], "all"), (ids[2], "all")]


def test_a_batch_that_waits_for_a_job_of_its_own_says_so() -> None:
    mine, seen = pulse.App(), list[str]()

    @mine.handler("n", batch=3)
    def wait(jobs: list[pulse.BatchJob[Any]]) -> None:
        try:
            memory.run_job(jobs[1].id)
        except InlineError as error:
            seen.append(str(error))

    memory = Inline(mine)
    for _ in range(2):
        memory.submit("n", {})
    memory.run_until_idle()
    assert seen == ["n waits for a job that waits for it"]


def test_one_of_a_batch_is_canceled_while_it_runs() -> None:
    mine, seen = pulse.App(), list[object]()

    @mine.handler("n", batch=3)
    def work(jobs: list[pulse.BatchJob[Any]]) -> list[int]:
        memory.cancel(jobs[0].id)
        seen.extend(job.ctx.cancelled for job in jobs)
        return [1 for _ in jobs]

    memory = Inline(mine)
    for _ in range(2):
        memory.submit("n", {})
    assert [(job.status, job.result) for job in memory.run_until_idle()] == [("CANCELED", None), ("COMPLETED", 1)]
    assert seen == [True, False]
