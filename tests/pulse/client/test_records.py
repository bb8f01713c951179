"""Answers: what the server says, as Python values."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest

from pulse.client import records, requests
from pulse.client.records import Changed
from pulse.errors import (
    InternalError,
    InvalidTransitionError,
    NotFoundError,
    ProtocolError,
    RefusedError,
    UnavailableError,
)
from pulse.job import HistoryEntry, Job, Status
from pulse.protocol import Frame, FrameReader, answers, encode, encode_error

JOB = uuid.UUID(int=1)
COLUMNS: dict[str, object] = {
    "id": JOB.bytes, "name": "resize", "topic": "images", "status": "RETRYING", "args": '{"path": "a.png"}',
    "result": None, "progress": '{"value": 0.5}', "last_error": "boom", "attempts": 3, "uncharged": 1,
    "max_attempts": 5, "submitted_at": 1_700_000_000.25, "schedule_id": None, "a_column_of_tomorrow": 1,
    "history": [{"attempt": 1, "outcome": "error", "error": "boom", "ended_at": 1_700_000_001.0, "more": 1}],
}  # fmt: skip


def only(data: bytes) -> Frame:
    (frame,) = FrameReader().feed(data)
    return frame


def test_a_job() -> None:
    job = records.job({"job": COLUMNS})
    assert job == Job(
        id=JOB,
        name="resize",
        topic="images",
        status=Status.RETRYING,
        args={"path": "a.png"},
        progress={"value": 0.5},
        last_error="boom",
        attempts=3,
        uncharged=1,
        max_attempts=5,
        submitted_at=datetime(2023, 11, 14, 22, 13, 20, 250_000, tzinfo=UTC),
        history=(
            HistoryEntry(
                attempt=1, outcome="error", error="boom", ended_at=datetime(2023, 11, 14, 22, 13, 21, tzinfo=UTC)
            ),
        ),
    )
    assert not job.is_terminal


@pytest.mark.parametrize(("text", "value"), [("null", None), ('"null"', "null"), ("[1]", [1]), ("0", 0)])
def test_results_are_what_their_json_says(text: str, value: object) -> None:
    assert records.job({"job": {**COLUMNS, "result": text}}).result == value


def test_what_is_too_long_for_a_frame() -> None:
    """The server says that it is left out; the record has None, and the command line reads the row, too."""
    row = {**COLUMNS, "args": None, "omitted": ["args"]}
    assert records.job({"job": row}).args is None
    assert answers.read(answers.JobInfo, row).omitted == ["args"]
    schedule = {"id": JOB.bytes, "name": "a", "kind": "at", "args": None, "omitted": ["args"]}
    assert records.schedule({"schedule": schedule}).args is None


@pytest.mark.parametrize("body", [
    *({}, {"job": None}, {"job": []}, {"job": {"id": JOB.bytes}}),
    *({"job": {**COLUMNS, "status": "LOST"}}, {"job": {**COLUMNS, "id": b"short"}}),
    *({"job": {**COLUMNS, "args": "{"}}, {"job": {**COLUMNS, "submitted_at": "now"}}),
])  # fmt: skip
def test_an_answer_that_is_none(body: dict[str, object]) -> None:
    with pytest.raises(ProtocolError, match=r"^(the answer is not understood|job): "):
        records.job(body)


def test_pages_and_changes() -> None:
    page = records.job_page({"jobs": [COLUMNS], "next": "abc"})
    assert ([job.id for job in page.jobs], page.next) == ([JOB], "abc")
    assert records.job_page({"jobs": [], "next": None}).next is None
    changed = records.changed({"done": [JOB.bytes], "refused": [[JOB.bytes, "not_found", "later"]]})
    assert changed == Changed((JOB,), ((JOB, "not_found"),))
    with pytest.raises(ProtocolError, match="the answer is not understood"):
        records.changed({"done": [JOB.bytes]})


def test_schedules_and_plain_answers() -> None:
    """A schedule is read like a job; ids in plain answers become text."""
    columns = {"id": JOB.bytes, "name": "a", "kind": "every", "every_s": 5, "args": "{}", "paused": True, "topic": None}
    schedule = records.schedule({"schedule": columns})
    assert (schedule.kind, schedule.every_s, schedule.paused, schedule.topic) == ("every", 5.0, True, None)
    assert records.schedule_page({"schedules": [columns], "next": None}).schedules == (schedule,)
    body = {"workers": [{"running": [[JOB.bytes, 1]], "raw": b"\1"}], "ok": True}
    assert records.plain(body) == {"workers": [{"running": [[str(JOB), 1]], "raw": "01"}], "ok": True}


@pytest.mark.parametrize(("code", "kind"), [
    ("not_found", NotFoundError), ("invalid_transition", InvalidTransitionError), ("unavailable", UnavailableError),
    ("something new", InternalError),
])  # fmt: skip
def test_refusals_keep_their_code(code: str, kind: type[RefusedError]) -> None:
    with pytest.raises(kind, match="the words"):
        requests.body_of(only(encode_error(1, code, "the words")))


def test_a_welcome_of_another_version() -> None:
    body = {"protocol": 2, "server": "x", "heartbeat_s": 1.0, "lease_s": 3.0, "max_frame_bytes": 1000}
    with pytest.raises(ProtocolError, match="version 2") as caught:
        requests.welcome_of(only(encode("welcome", 0, body)))
    assert caught.value.code == "unsupported_version"
    with pytest.raises(ProtocolError, match="a welcome was expected"):
        requests.welcome_of(only(encode("ok", 0, {})))
    with pytest.raises(ProtocolError, match="'maybe'"):
        requests.body_of(only(encode("maybe", 1, {})))
