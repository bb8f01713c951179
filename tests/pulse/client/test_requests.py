"""Requests: the frames that both clients send; and why a job does not run, as they ask it."""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest

import pulse
from pulse import protocol
from pulse.client import control_requests, records, requests, schedule_requests
from pulse.client.requests import Request
from pulse.common.wire_values import unix_time
from pulse.errors import BadRequestError, HandlerError, ProtocolError, TooLargeError
from pulse.job import Status
from pulse.protocol import CLIENT_KINDS, FrameReader, decode_body

app = pulse.App()
JOB = uuid.UUID(int=1)


@app.handler("resize")
async def resize(path: str) -> None:
    """Only submitted here."""


def many() -> None: ...


def sent(request: Request[Any]) -> Any:
    (frame,) = FrameReader().feed(request.encode(1, protocol.MAX_FRAME_BYTES))
    return decode_body(CLIENT_KINDS[frame.kind], frame)


@pytest.mark.parametrize(("request_", "body"), [
    (requests.submit([{"name": "a"}]), {"ids": ["no id"]}),
    (requests.submit([{"name": "a"}]), {"ids": []}),
    (requests.get(JOB), {"job": {"id": JOB.bytes, "submitted_at": 1e300}}),
    (requests.get(JOB), {"job": {"id": JOB.bytes, "attempts": float("inf")}}),
    (requests.get(JOB), {"job": {"id": JOB.bytes, "args": "[" * 100_000}}),
    (requests.get(JOB), {"job": {"id": JOB.bytes, "history": [7]}}),
    (requests.cancel([JOB]), {"done": [], "refused": [7]}),
    (requests.cancel([JOB]), {"done": [], "refused": [[JOB.bytes]]}),
    (schedule_requests.preview_schedule(JOB), {"times": ["noon"]}),
])  # fmt: skip
def test_an_answer_that_cannot_be_read(request_: Request[Any], body: dict[str, object]) -> None:
    with pytest.raises(ProtocolError) as refused:
        request_.understood(body)
    assert len(refused.value.message) < 400


@pytest.mark.parametrize("ask", [requests.cancel, requests.retry])
def test_jobs_with_their_dependents(ask: Callable[..., Request[Any]]) -> None:
    """Only where it is wanted: a server of another version need not know it."""
    assert sent(ask([JOB], with_dependents=True)).with_dependents
    assert "with_dependents" not in ask([JOB]).body


@pytest.mark.parametrize(("columns", "due"), [
    ({"next_run_at": 253402128000.0}, None),
    ({"next_run_at": 5.0, "waiting_on": 2}, datetime.fromtimestamp(5.0, UTC)),
])  # fmt: skip
def test_a_job_that_is_held(columns: dict[str, Any], due: datetime | None) -> None:
    """Behind an earlier one of its schedule it has no time; behind others the time at which it is wanted."""
    job = requests.get(JOB).understood({"job": {"id": JOB.bytes, "status": "PENDING", **columns}})
    assert job.next_run_at == due


def test_a_submit_always_has_ids() -> None:
    request = requests.submit([{"name": "a"}, {"name": resize, "args": {"path": "ä"}}])
    first, second = sent(request).jobs
    assert request.repeatable
    assert (first.name, second.name) == ("a", "resize")
    assert (first.args, second.args) == ("{}", '{"path":"ä"}')
    assert {uuid.UUID(bytes=first.id).version, uuid.UUID(bytes=second.id).version} == {7}
    assert sent(request) == sent(request)


def test_another_id_is_that_of_a_job_that_was_there() -> None:
    request = requests.submit([{"name": "a", "unique": "k", "id": JOB}, {"name": "a", "unique": "j"}])
    assert [(one.unique, one.unique_until, one.on_conflict) for one in sent(request).jobs] == [
        ("k", None, None), ("j", None, None),
    ]  # fmt: skip
    request.meanwhile()
    own, other = request.understood({"ids": [JOB.bytes, bytes(16)]})
    assert (own, own.is_new, other, other.is_new) == (JOB, True, uuid.UUID(int=0), False)  # type: ignore[attr-defined]


def test_ids_are_made_before_the_answer_comes() -> None:
    request = requests.submit([{"name": "a", "id": JOB}])
    made = request.meanwhile()
    assert request.understood({"ids": [JOB.bytes]}) is made
    assert made == [JOB]


def test_a_submit_says_what_was_said() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    said: dict[str, Any] = {"name": "a", "topic": "t", "priority": -5, "max_attempts": 3, "group_key": "g"}
    given: Any = {**said, "run_at": at, "id": str(JOB), "timeout_s": 2.5, "delay_s": None}
    (job,) = sent(requests.submit([given])).jobs
    assert job == protocol.SubmittedJob(**said, timeout_s=2.5, run_at=at.timestamp(), id=JOB.bytes)
    body: Any = requests.submit([{"name": "a", "args": MappingProxyType({"x": 1})}]).body
    assert set(body["jobs"][0]) == {"name", "args", "id"}
    assert body["jobs"][0]["args"] == '{"x":1}'


def test_what_the_handler_declares_is_sent_with_it() -> None:
    """Workers may not have told yet; what the caller gives wins, and of a name nothing is known."""
    pulse.App().handler("many", topic="images", max_attempts=2, timeout_s=9)(many)
    jobs: list[Any] = [
        pulse.call(many),
        {"name": many, "topic": None},
        {"name": many, "topic": "t", "max_attempts": 1},
        {"name": "many"},
    ]
    sent_jobs = sent(requests.submit(jobs)).jobs
    assert [(one.topic, one.max_attempts, one.timeout_s) for one in sent_jobs] == [
        ("images", 2, 9.0), ("images", 2, 9.0), ("t", 1, 9.0), (None, None, None)
    ]  # fmt: skip


@pytest.mark.parametrize("jobs", [None, 5, "ab", b"a", {"name": "a"}, pulse.Call("a", "{}"), resize])
def test_jobs_are_a_list(jobs: Any) -> None:
    with pytest.raises(BadRequestError, match=f"jobs must be a list of calls or mappings, not {type(jobs).__name__}$"):
        requests.submit(jobs)


def test_who_has_no_id_gets_one() -> None:
    body: Any = requests.submit([{"name": "a"}, {"name": "b", "id": JOB}, {"name": "c", "id": None}]).body
    first, second, third = [job["id"] for job in body["jobs"]]
    assert second == JOB.bytes
    assert len({first, second, third}) == 3
    assert len(first) == len(third) == 16


@pytest.mark.parametrize(("job", "text"), [
    ({"name": "a", "args": [1]}, "args must be an object of keyword arguments, not list"),
    ({"name": resize, "args": [1]}, "args must be an object of keyword arguments, not list"),
    ({"name": "a", "args": "{}"}, "args must be an object of keyword arguments, not str"),
    ({"name": "a", "args": {"x": float("nan")}}, "args are not JSON: "),
    ({"name": "a", "args": {"x": {1}}}, "args are not JSON: 'x': Object of type set"),
    ({"name": "a", "args": {"x": "\0"}}, "args are not storable: 'x': it contains a NUL character"),
    ({"name": "a", "args": {"x": "\ud800"}}, "args are not storable: 'x': it contains a lone surrogate"),
    ({"name": "a", "id": "not a uuid"}, "not a UUID: 'not a uuid'"),
    ({"name": "a", "id": 7}, "not a UUID: 7"),
    ({"name": "a", "run_at": datetime(2030, 1, 1)}, "run_at has no time zone"),  # noqa: DTZ001 - what is tested
    ({"name": "a", "run_at": "tomorrow"}, "run_at must be an aware datetime or Unix seconds, not 'tomorrow'"),
    ({"name": "a", "run_at": float("nan")}, "run_at must be"),
    ({"name": "a", "run_at": 1.0, "delay_s": 1.0}, "give run_at or delay_s, not both"),
    ({"name": "a", "expires_at": 1.0, "expires_in_s": 1.0}, "give expires_at or expires_in_s, not both"),
    ({"name": "a", "unique_until": "end"}, "unique_until or on_conflict is given; they are allowed with unique only"),
    ({"name": "a", "on_conflict": "skip"}, "unique_until or on_conflict is given; they are allowed with unique only"),
    ({"name": "a", "after": JOB}, "after is UUID('00000000-0000-0000-0000-000000000001'); a list of ids of jobs"),
    ({"name": "a", "after": str(JOB)}, "after is '00000000-0000-0000-0000-000000000001'; a list of ids of jobs"),
    ({"name": "a", "after": 7}, "after is 7; a list of ids of jobs is allowed"),
    ({"name": "a", "after": ["x"]}, "not a UUID: 'x'"),
    ({"name": "a", "on_failure": "run"}, "on_failure is given; it is allowed with after only"),
    ({"name": "a", "prioritty": 1}, "unknown key 'prioritty'"),
    ({"args": {}}, "a job has no name"),
    ("a", "a job is a mapping with name and args, not str"),
])  # fmt: skip
def test_refused_jobs(job: Any, text: str) -> None:
    for jobs, said in (([{"name": "good"}, job], text), ([], "no jobs")):
        with pytest.raises(BadRequestError, match=re.escape(said)) as caught:
            requests.submit(jobs)
        assert "\n" not in caught.value.message


@pytest.mark.parametrize(("ask", "said"), [
    (lambda: requests.change([JOB], None, None), "neither topic nor priority is given"),
    (lambda: requests.change([], "t", None), "no ids"),
    (lambda: control_requests.pause(for_s=1.0, until=1.0), "give for_s or until, not both"),
    (lambda: control_requests.set_topic("t", {}), "nothing to set for 't'"),
    (lambda: control_requests.unset_topic("t", ["tries"]), "unknown option 'tries' of topic 't'"),
    (lambda: schedule_requests.update_schedule(JOB, {"every_s": 1.0, "cron": "* * * * *"}), "at most one of cron"),
])  # fmt: skip
def test_what_is_not_sent(ask: Callable[[], object], said: str) -> None:
    with pytest.raises(BadRequestError, match=said):
        ask()


def test_a_function_that_is_no_handler() -> None:
    with pytest.raises(HandlerError, match=r"register it with @app\.handler"):
        requests.submit([{"name": sent}])


def test_what_cannot_be_sent() -> None:
    request = requests.submit([{"name": "a", "args": {"x": "y" * 2000}}])
    with pytest.raises(TooLargeError, match=r"the request has 20\d\d bytes; the server accepts 1000"):
        request.encode(1, 1000)
    for value in ["\ud800", 2**70]:
        with pytest.raises(BadRequestError, match="a value cannot be sent"):
            requests.raw("ping", {"x": value}, repeatable=True).encode(1, 1000)
    for value, place in ((object(), "x is of type object"), ([1, {"a": range(1)}], r"x\[1\]\.a is of type range")):
        with pytest.raises(BadRequestError, match=f"^ping: {place}, which cannot be sent$"):
            requests.raw("ping", {"y": [None, b"1", 1.5], "x": value}, repeatable=True).encode(1, 1000)


def test_lists_are_filtered() -> None:
    body = sent(
        requests.list_jobs({"status": pulse.Status.RUNNING, "name": resize, "schedule": JOB, "limit": 7, "after": None})
    )
    assert body == protocol.JobsList(status=["RUNNING"], name="resize", schedule=JOB.bytes, limit=7)
    assert sent(requests.list_jobs({"status": ["PENDING", pulse.Status.RETRYING]})).status == ["PENDING", "RETRYING"]
    assert sent(requests.list_jobs({})) == protocol.JobsList()


def test_ids_of_any_kind() -> None:
    assert sent(requests.cancel([JOB, str(JOB), JOB.bytes])).ids == [JOB.bytes] * 3
    assert sent(requests.get(str(JOB))).id == JOB.bytes
    with pytest.raises(BadRequestError, match="no ids"):
        requests.retry([])


def test_what_may_be_repeated() -> None:
    """Reads, submits and the gate may be repeated; moves of a job may not. All are requests of the protocol."""
    some: list[Request[Any]] = [
        *(
            requests.submit([{"name": "a"}]),
            requests.get(JOB),
            requests.list_jobs({}),
            control_requests.pause("t", "why"),
        ),
        *(
            control_requests.resume("t"),
            schedule_requests.get_schedule(JOB),
            schedule_requests.list_schedules(5, "cursor"),
        ),
        *(control_requests.simple(kind) for kind in ("status", "ping", "workers.list", "dispatch.status")),
    ]
    moving: list[Request[Any]] = [
        *(requests.cancel([JOB]), requests.retry([JOB]), schedule_requests.delete_schedule(JOB)),
        schedule_requests.create_schedule("a", None, {"every_s": 5}),
    ]
    for request in (*some, *moving):
        assert request.repeatable is (request in some), request.kind
        sent(request)


def test_schedule_options_are_unset() -> None:
    """An option to unset is nil on the wire; one that is left out, or None, is missing."""
    changes: Any = {"priority": 1, "topic": None, "unset": ["timeout_s", "ends_at"]}
    body = sent(schedule_requests.update_schedule(JOB, changes))
    assert body == protocol.ScheduleUpdate(JOB.bytes, priority=1, timeout_s=None, ends_at=None)
    bad: list[tuple[Any, str]] = [
        (
            {"unset": ["cron"]},
            "unset names 'cron'; allowed are topic, timezone, max_attempts, timeout_s, starts_at, ends",
        ),
        ({"unset": "topic"}, "unset is 'topic'; a collection of names is allowed"),
        ({"unset": 5}, "unset is 5; a collection of names is allowed"),
        ({"unset": ["ends_at"], "ends_at": 5.0}, "ends_at is given, and to be unset; one of them is allowed"),
    ]
    for changes, said in bad:
        with pytest.raises(pulse.BadRequestError, match=f"^schedule: {said}"):
            schedule_requests.update_schedule(JOB, changes)


def test_schedules() -> None:
    every = sent(schedule_requests.create_schedule(resize, {"path": "a"}, {"every_s": 5, "topic": "t"}))
    assert (every.name, every.args, every.every, every.topic, every.cron) == ("resize", '{"path":"a"}', 5.0, "t", None)
    at = sent(schedule_requests.create_schedule("a", None, {"run_at": 12.5, "id": JOB}))
    assert (at.at, at.id) == (12.5, JOB.bytes)
    cron = sent(schedule_requests.create_schedule("a", None, {"cron": "*/5 * * * *", "timezone": "Europe/Berlin"}))
    assert (cron.cron, cron.timezone) == ("*/5 * * * *", "Europe/Berlin")
    for wrong in ({}, {"every_s": 5.0, "cron": "* * * * *"}):
        with pytest.raises(BadRequestError, match="exactly one of cron, every_s and run_at"):
            schedule_requests.create_schedule("a", None, wrong)  # type: ignore[arg-type]


def test_pauses_grow() -> None:
    """The first pause is 10 ms, later ones 500 ms; the last is cut to the timeout, whose error has the status."""
    pauses_s = list(itertools.islice(requests.poll_pauses_s(), 20))
    assert pauses_s[0] == 0.01
    assert pauses_s == sorted(pauses_s)
    assert pauses_s[-1] == 0.5
    job = pulse.Job(id=JOB, name="a", topic="t", status=pulse.Status.RUNNING)
    assert requests.cut_pause_s(job, 0.5, 100.0, None) == 0.5
    assert requests.cut_pause_s(job, 0.5, 0.9, 1.0) == pytest.approx(0.1)
    with pytest.raises(TimeoutError, match=f"job {JOB} is RUNNING after 1 s"):
        requests.cut_pause_s(job, 0.5, 1.0, 1.0)


def test_times_are_unix_seconds() -> None:
    at = datetime(2030, 1, 1, 12, tzinfo=UTC)
    assert unix_time(at, "x") == unix_time(at.astimezone(), "x") == at.timestamp()
    assert unix_time(1, "x") == 1.0
    assert unix_time(at + timedelta(microseconds=1), "x") > at.timestamp()


BODY: dict[str, object] = {
    "id": JOB.bytes,
    "name": "resize",
    "topic": "images",
    "status": "PENDING",
    "reasons": [{"code": "full", "text": "Full.", "advice": "Wait.", "details": {"running": [["a", 1]]}, "more": 1}],
}


def test_the_question() -> None:
    request = requests.why(str(JOB))
    (frame,) = FrameReader().feed(request.encode(1, protocol.MAX_FRAME_BYTES))
    asked: Any = decode_body(CLIENT_KINDS[frame.kind], frame)
    assert (asked.id, request.repeatable) == (JOB.bytes, True)
    with pytest.raises(BadRequestError, match="not a UUID: 'x'"):
        requests.why("x")


def test_the_answer() -> None:
    told = records.why(BODY)
    assert told == records.Why(
        JOB, "resize", "images", Status.PENDING, (records.Reason("full", "Full.", "Wait.", {"running": [["a", 1]]}),)
    )
    (least,) = records.why({**BODY, "reasons": [{"code": "new", "text": "New."}]}).reasons
    assert (least.advice, least.details) == ("", {})


@pytest.mark.parametrize("wrong", [
    {"id": b"1"}, {"id": None}, {"status": "ASLEEP"}, {"reasons": None}, {"reasons": [1]}, {"reasons": [{"code": "x"}]},
])  # fmt: skip
def test_an_answer_of_another_kind(wrong: dict[str, object]) -> None:
    with pytest.raises(ProtocolError, match=r"answer (is not understood|cannot be read)"):
        requests.why(JOB).understood({**BODY, **wrong})
