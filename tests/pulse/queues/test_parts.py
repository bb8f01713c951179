"""Which jobs of a submit go to which queue, and what is refused before anything is sent."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

import pulse
from pulse.client.discovery import LocalSocket, Refusal, UnansweredError
from pulse.errors import BadRequestError, ConfigError, ProtocolError
from pulse.queues.parts import Part, interrupted, parts_of
from pulse.routes import Queue, Routes

ROUTES = Routes(
    {name: Queue(name, f"/run/{name}.sock") for name in ("orders", "mail")}, {"mail": "mail", "*": "orders"}
)
app = pulse.App()


@app.handler("welcome", topic="mail")
async def welcome() -> None: ...


@app.handler("crunch")
async def crunch() -> None: ...


def test_each_job_has_its_place() -> None:
    """The topic of the submit counts before the handler's; one id may be there twice, as in any submit."""
    same = UUID(int=1)
    twin: pulse.NewJob = {"name": "x", "topic": "mail", "id": same}
    batch = pulse.Batch([pulse.call(welcome), {"name": welcome, "topic": "pay"}, twin, twin])
    mail, orders = parts_of(ROUTES, batch)
    assert (mail.queue, mail.places, orders.queue, orders.places) == ("mail", [0, 2, 3], "orders", [1])
    assert [job.get("id") for job in mail.jobs] == [batch.ids[0], same, same]


@pytest.mark.parametrize("job", [pulse.call(crunch), {"name": "welcome"}])
def test_a_job_without_a_topic(job: pulse.NewJob) -> None:
    """The server would find one, but which server? A pattern for the rest does not count."""
    with pytest.raises(BadRequestError, match="has no topic, by which its queue is found: allowed are a topic in"):
        parts_of(ROUTES, pulse.Batch([job]))


def test_no_jobs() -> None:
    with pytest.raises(BadRequestError, match=r"^submit: no jobs$"):
        parts_of(ROUTES, pulse.Batch())


def test_jobs_wait_within_a_queue() -> None:
    """Whichever is first in the submit; of jobs that were submitted before, the server knows whether they are there."""
    first, second = UUID(int=1), UUID(int=2)
    jobs: list[pulse.NewJob] = [
        {"name": "a", "topic": "pay", "id": first},
        {"name": "b", "topic": "mail", "id": second},
    ]
    for at, other in ((1, first), (0, second)):
        wrong = [pulse.NewJob(**one) for one in jobs]
        wrong[at]["after"] = [str(other)]
        with pytest.raises(BadRequestError, match=f"is to wait for job {other} of queue .*: jobs of its own queue are"):
            parts_of(ROUTES, pulse.Batch(wrong))
    jobs.append({"name": "c", "topic": "mail", "after": [second, UUID(int=3)]})
    assert [part.places for part in parts_of(ROUTES, pulse.Batch(jobs))] == [[0], [1, 2]]


def test_one_id_for_two_queues() -> None:
    """It would be two jobs."""
    same = UUID(int=1)
    jobs: list[pulse.NewJob] = [{"name": "x", "topic": one, "id": same} for one in ("pay", "mail")]
    with pytest.raises(BadRequestError, match=f"^submit: job {same} has topics of queues orders and mail: one is allo"):
        parts_of(ROUTES, pulse.Batch(jobs))


def test_an_error_says_what_stays_submitted() -> None:
    """And what may be; it stays what it was otherwise."""
    error = UnansweredError("nobody")
    error.refusals = (Refusal(LocalSocket(Path("/x"), named=True), "gone"),)
    mail, orders = Part("mail", [{"name": "a"}, {"name": "b"}], [0, 2]), Part("orders", [{"name": "c"}], [1])
    told = interrupted(error, orders, [mail])
    assert str(told) == (
        "queue orders: nobody; queue orders may have its jobs all the same; submitted before: 2 of queue mail"
    )
    assert isinstance(told, UnansweredError)
    assert (told.refusals, str(error)) == (error.refusals, "nobody")
    refused = interrupted(ProtocolError("too large", "too_large"), mail, [])
    assert isinstance(refused, ProtocolError)
    assert (refused.code, str(refused)) == ("too_large", "queue mail: too large")


def test_a_refusal_names_the_job_by_its_place_in_the_submit() -> None:
    part = Part("mail", [{"name": "a"}, {"name": "b"}], [1, 3])
    for said, told in (("jobs[1].priority is 'jobs[0]'", "jobs[3].priority is 'jobs[0]'"), ("jobs[9]", "jobs[9]")):
        assert str(interrupted(BadRequestError(said), part, [])) == f"queue mail: {told}"


def test_submits_by_sql_are_for_one_queue() -> None:
    """The clients of all queues would submit to the schema of PULSE_SCHEMA."""
    for kind in (pulse.Queues, pulse.AsyncQueues):
        with pytest.raises(ConfigError, match=r"^when_down is a DSN: with several queues 'fail' or 'wait' is allowed$"):
            kind(ROUTES, when_down="postgresql:///shop")
        kind(ROUTES, when_down="fail")
