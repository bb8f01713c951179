"""Handlers of batches: how they are declared, which args their jobs take, and what their results mean."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import pytest

import pulse
from pulse.app.handler import make_handler
from pulse.app.outcome import split
from pulse.app.parameters import ArgumentError

ONE, TWO = UUID(int=1), UUID(int=2)


@dataclass
class Page:
    url: str
    depth: int = 1


class Pool:
    """What a lifespan would yield."""


def typed(jobs: list[pulse.BatchJob[Page]]) -> None: ...
def untyped(jobs: list[pulse.BatchJob[Any]]) -> None: ...
def in_a_sequence(jobs: Sequence[pulse.BatchJob[Page]]) -> None: ...
def bare(jobs: list[pulse.BatchJob]) -> None: ...  # type: ignore[type-arg]  # the short form
def without_annotation(jobs) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001 - the case at hand
def unknown(jobs: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - it cannot be evaluated
def with_context(jobs: list[pulse.BatchJob[Page]], ctx: pulse.Context) -> None: ...
def no_list(jobs: int) -> None: ...
def of_numbers(jobs: list[int]) -> None: ...
def single(jobs: pulse.BatchJob[Page]) -> None: ...
def nothing() -> None: ...
def all_of_them(*jobs: pulse.BatchJob[Page]) -> None: ...
def with_pool(jobs: list[pulse.BatchJob[Page]], pool: Pool) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "says"),
    [
        (with_context, {}, "handler 'n': a batch has no context for 'ctx': each job of it has its own, job.ctx"),
        (no_list, {}, "handler 'n': parameter 'jobs' is annotated 'int'; a handler of batches takes them as its first"),
        (of_numbers, {}, "parameter 'jobs' is annotated 'list[int]'; a handler of batches"),
        (single, {}, "parameter 'jobs' is annotated 'pulse.BatchJob[Page]'; a handler of batches"),
        (nothing, {}, "handler 'n': no parameter takes the jobs; a handler of batches"),
        (all_of_them, {}, "handler 'n': no parameter takes the jobs; a handler of batches"),
        (typed, {"batch": 0}, "batch must be a whole number from 1 to 1000, not 0"),
        (typed, {"batch": 1001}, "batch must be a whole number from 1 to 1000, not 1001"),
        (typed, {"batch": True}, "batch must be a whole number from 1 to 1000, not True"),
        (typed, {"batch": 1.5}, "batch must be a whole number from 1 to 1000, not 1.5"),
        (typed, {"batch_wait_s": -1}, "batch_wait_s must be from 0 to 60 seconds, not -1"),
        (typed, {"batch_wait_s": 61}, "batch_wait_s must be from 0 to 60 seconds, not 61"),
        (typed, {"batch_wait_s": "1"}, "batch_wait_s must be from 0 to 60 seconds, not '1'"),
        (typed, {"isolate": True}, "isolate=True runs each job in a process of its own, which no batch can do"),
        (nothing, {"batch": None, "batch_wait_s": 1}, "batch_wait_s needs batch: it is how long the first job waits"),
    ],
)
def test_what_cannot_be_a_handler_of_batches(
    function: Callable[..., object], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(pulse.HandlerError) as refused:
        pulse.App().handler("n", **{"batch": 10, **options})(function)
    assert says in str(refused.value)


@pytest.mark.parametrize(("given", "wait_s"), [({}, 0.05), ({"batch_wait_s": 0}, 0.0), ({"batch_wait_s": 60}, 60.0)])
def test_how_long_a_batch_waits(given: dict[str, float], wait_s: float) -> None:
    made = make_handler("n", typed, batch=1000, **given)
    assert (made.batch, made.batch_wait_s) == (1000, wait_s)
    assert make_handler("n", nothing).batch_wait_s is None
    assert made.declared() == {"batch": 1000}


def test_args_have_the_type_that_the_jobs_say() -> None:
    for function in (typed, in_a_sequence):
        parameters: Any = make_handler("n", function, batch=1).parameters
        assert parameters.decoded({"url": "a", "depth": 2}) == Page("a", 2)
        assert parameters.encoded({"url": "a"}) == {"url": "a"}


@pytest.mark.parametrize("function", [untyped, bare, without_annotation, unknown])
def test_without_a_type_the_args_are_a_dict(function: Callable[..., object]) -> None:
    parameters = make_handler("n", function, batch=1).parameters
    assert parameters.decoded({"any": [1]}) == {"any": [1]}
    assert parameters.encoded({"any": TWO}) == {"any": str(TWO)}


def test_the_args_of_a_submit_are_checked() -> None:
    app = pulse.App()
    app.handler("n", batch=10)(typed)
    called: Any = pulse.call
    assert called(typed, Page("a")).args == '{"url":"a","depth":1}'
    assert called(typed, url="a").args == '{"url":"a"}'
    for args, says in (
        ([Page("a"), 2], "takes one value, which has all args of a job, or these by name"),
        ([], "args.url is missing"),
        ([{"url": 7}], "args.url is 7; allowed is text"),
    ):
        with pytest.raises(pulse.BadRequestError) as refused:
            called(typed, *args)
        assert says in str(refused.value)
    with pytest.raises(pulse.BadRequestError, match="takes one value"):
        called(typed, Page("a"), depth=2)


def test_a_unique_key_is_made_from_the_args_of_one_job() -> None:
    def index(jobs: list[pulse.BatchJob[Page]]) -> None: ...

    pulse.App().handler("n", batch=10, unique_by=lambda args: f"{args.url}:{args.depth}")(index)
    called: Any = pulse.call
    assert called(index, url="a").options == {"unique": "a:1"}
    with pytest.raises(pulse.HandlerError, match=r"unique_by takes 'jobs'; parameters .* are allowed, .*: args"):
        pulse.App().handler("n", batch=10, unique_by=lambda jobs: f"{jobs}")(index)


def test_args_are_an_object_whatever_the_type_says() -> None:
    def numbers(jobs: list[pulse.BatchJob[Any]]) -> None: ...

    pulse.App().handler("n", batch=1)(numbers)
    called: Any = pulse.call
    with pytest.raises(pulse.BadRequestError, match=r"args are \[1\]; an object is allowed"):
        called(numbers, [1])
    with pytest.raises(pulse.BadRequestError, match="args has no form in JSON"):
        called(numbers, {"a": object()})


def test_a_parameter_that_nothing_fills_is_named() -> None:
    """Until there is a lifespan for it: then it is no arg of a job."""
    app = pulse.App()
    app.handler("n", batch=10)(with_pool)
    parameters: Any = app.handlers["n"].parameters
    says = "nothing fills the parameter 'pool' of a handler of batches"
    with pytest.raises(ArgumentError, match=says):
        parameters.decoded({"url": "a"})
    with pytest.raises(ArgumentError, match=says):
        parameters.encoded({"url": "a"})

    async def pool() -> AsyncIterator[Pool]:
        yield Pool()

    app.lifespan(pool)
    parameters = app.handlers["n"].parameters
    assert parameters.decoded({"url": "a"}) == Page("a")


class TestWhatBelongsToWhichJob:
    def test_a_list_is_in_the_order_of_the_jobs(self) -> None:
        error = ValueError("x")
        assert split([1, error], [ONE, TWO]) == [1, error]
        assert split((None, "b"), [ONE, TWO]) == [None, "b"]

    def test_a_dict_goes_by_id_and_who_is_missing_has_no_result(self) -> None:
        assert split({TWO: "b"}, [ONE, TWO]) == [None, "b"]
        assert split({}, [ONE]) == [None]

    @pytest.mark.parametrize("value", [None, ValueError("x"), pulse.Snooze(3)])
    def test_what_is_meant_for_all(self, value: object) -> None:
        assert split(value, [ONE, TWO]) == [value, value]

    @pytest.mark.parametrize(
        ("value", "says"),
        [
            ([1], "the handler returned 1 results for 2 jobs; a list in the order of the jobs"),
            ({"a": 1}, "the handler returned a result for 'a', which is no id of the batch; a list"),
            ("ab", "the handler of a batch returned str; a list"),
            (7, "the handler of a batch returned int; a list"),
        ],
    )
    def test_anything_else_is_an_error_of_all(self, value: object, says: str) -> None:
        found = split(value, [ONE, TWO])
        assert [type(one) for one in found] == [pulse.ResultError, pulse.ResultError]
        assert str(found[0]).startswith(says)


class TestOutcomesOfSingleJobs:
    def job(self) -> pulse.BatchJob[Page]:
        ctx = pulse.Context(job_id=ONE, attempt=1, name="n", topic="t")
        return pulse.BatchJob(id=ONE, attempt=1, args=Page("a"), ctx=ctx)

    def test_without_one_the_handlers_answer_counts(self) -> None:
        assert self.job().outcome_or(7) == 7

    def test_the_one_that_was_given_counts(self) -> None:
        job, error = self.job(), ValueError("x")
        job.complete()
        assert job.outcome_or(7) is None
        job = self.job()
        job.fail(error)
        assert job.outcome_or(7) is error

    def test_one_is_allowed(self) -> None:
        job = self.job()
        job.complete({"ok": True})
        for again in (job.complete, partial(job.fail, ValueError())):
            with pytest.raises(pulse.HandlerError, match="has its outcome already"):
                again()
        assert job.outcome_or(None) == {"ok": True}

    def test_a_failure_is_an_exception(self) -> None:
        job, anything = self.job(), "why"
        with pytest.raises(pulse.HandlerError, match="fail takes an exception, not 'why'"):
            job.fail(anything)  # type: ignore[arg-type]  # the case at hand
        assert job.outcome_or(1) == 1
