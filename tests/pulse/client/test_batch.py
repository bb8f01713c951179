"""Batches: ids that are known at once, what each job waits for, and what is wrong with one, said where it is added."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Final

import pytest

import pulse
from pulse.client import batch as batches
from pulse.client import requests
from pulse.errors import BadRequestError, HandlerError
from pulse.protocol import FrameReader, Submit, decode_body
from pulse.testing import Inline

app: Final = pulse.App()
OTHER: Final = uuid.UUID(int=7)


@app.handler("part")
def part(number: int) -> int:
    return number


@app.handler("whole")
def whole(ctx: pulse.Context) -> list[Any]:
    return [(parent.status, parent.result) for parent in ctx.parents()]


@app.handler("keyed", unique_by=lambda number: f"number {number}")
def keyed(number: int) -> None: ...


def sent(batch: pulse.Batch) -> list[Any]:
    (frame,) = FrameReader().feed(requests.submit(batch).encode(1, 1 << 20))
    return decode_body(Submit, frame).jobs


def test_a_graph() -> None:
    batch = pulse.Batch([pulse.call(part, 1), {"name": "part", "args": {"number": 2}, "priority": 5}])
    first, second = batch.ids
    third = batch.add(pulse.call(part, 3), after=(one for one in [first, OTHER]), on_failure="run", topic="t")
    last = batch.then(whole, on_failure="cancel")
    assert batch.ids == [first, second, third, last]
    assert len(batch) == 4
    one, two, three, four = sent(batch)
    assert [job.id for job in (one, two, three, four)] == [job.bytes for job in batch.ids]
    assert (one.after, two.priority, three.topic, three.on_failure) == (None, 5, "t", "run")
    assert three.after == [first.bytes, OTHER.bytes]
    assert (four.after, four.on_failure) == ([one.id, two.id, three.id], "cancel")


def test_ids_are_in_the_order_of_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the clock steps back, and beside ids that the caller chose."""
    made = [uuid.UUID(int=number) for number in (50, 40, 45, 60)]
    monkeypatch.setattr(batches, "uuid7", iter(made).__next__)
    batch = pulse.Batch()
    for number in range(3):
        batch.add(pulse.call(part, number))
    batch.add(pulse.call(part, 9), id=uuid.UUID(int=1000))
    batch.add(pulse.call(part, 3))
    assert [one.int for one in batch.ids] == [50, 51, 52, 1000, 60]


def _wrong(jobs: Any) -> object:
    return pulse.Batch(jobs)


@pytest.mark.parametrize(("add", "said"), [
    (lambda batch: batch.add("part", after="abc"), "after is 'abc'; a list of ids of jobs is allowed"),
    (lambda batch: batch.add("part", after=OTHER), "a list of ids of jobs is allowed"),
    (lambda batch: batch.add("part", after=[7]), "not a UUID: 7"),
    (lambda batch: batch.add("part", on_failure="run"), "on_failure is given; it is allowed with after only"),
    (lambda batch: batch.add("part", after=[], on_failure="run"), "on_failure is given; it is allowed with after only"),
    (lambda batch: batch.add(part, {"numbr": 1}), "argument 'number' is missing"),
    (lambda batch: batch.add("part", speed=3), "unknown key 'speed'"),
    (lambda batch: batch.add(pulse.call(part, 1), {"number": 2}), "args are given beside those of the call"),
    (lambda _batch: _wrong("part"), "jobs must be a list of calls or mappings, not str"),
    (lambda _batch: _wrong([{"args": {}}]), "a job has no name"),
])  # fmt: skip
def test_what_is_wrong_is_not_added(add: Callable[[pulse.Batch], object], said: str) -> None:
    batch = pulse.Batch()
    with pytest.raises(BadRequestError, match=said):
        add(batch)
    assert list(batch) == batch.ids == []


def test_what_is_no_handler() -> None:
    jobs: list[Any] = [7]
    with pytest.raises(HandlerError):
        pulse.Batch(jobs)


def test_nobody_waits_for_a_job_that_may_be_another() -> None:
    """A job with a unique key gets the id of the job that has the key."""
    batch = pulse.Batch()
    one, other = batch.add("part", unique="k"), batch.add(pulse.call(keyed, 1))
    for job in (one, other):
        with pytest.raises(BadRequestError, match=f"after is job {job} of the same batch, which has a unique key"):
            batch.add("whole", after=[str(job)])
    with pytest.raises(BadRequestError, match="has a unique key"):
        batch.then("whole")
    batch.add("whole", after=[OTHER])
    assert len(batch) == 3


def test_submit_batch() -> None:
    inline = Inline(app)
    calls = [pulse.call(part, number) for number in range(3)]
    *parts, last = inline.client.submit_batch(calls, then=pulse.call(whole))
    inline.run_until_idle()
    assert [inline.job(one).result for one in parts] == [0, 1, 2]
    assert inline.job(last).result == [["COMPLETED", 0], ["COMPLETED", 1], ["COMPLETED", 2]]


@pytest.mark.parametrize("on_failure", [None, "cancel", "run"])
@pytest.mark.anyio
async def test_the_callback_after_a_failure(on_failure: Any) -> None:
    inline = Inline(app)
    canceled, last = await inline.async_client.submit_batch([pulse.call(part, 1)], whole, on_failure=on_failure)
    inline.cancel(canceled)
    await inline.run_until_idle_async()
    expected = ("COMPLETED", [["CANCELED", None]]) if on_failure == "run" else ("CANCELED", None)
    assert (inline.job(last).status, inline.job(last).result) == expected


def test_a_batch_is_submitted_as_it_is() -> None:
    """Again, too: the same jobs. A callback is not added to it."""
    inline, batch = Inline(app), pulse.Batch([pulse.call(part, 1)])
    assert inline.client.submit_batch(batch) == inline.client.submit_many(batch) == batch.ids
    assert inline.client.submit_batch(batch, then="whole")[:1] == batch.ids
    assert (len(batch), len(inline.submitted())) == (1, 2)


def test_nothing_to_wait_for() -> None:
    inline = Inline(app)
    (last,) = inline.client.submit_batch([], then="whole", on_failure="run")
    inline.run_until_idle()
    assert inline.job(last).result == []
    with pytest.raises(BadRequestError, match="no jobs"):
        inline.client.submit_batch([])
    with pytest.raises(BadRequestError, match="on_failure is given; it is allowed with then only"):
        inline.client.submit_batch([pulse.call(part, 1)], on_failure="run")
