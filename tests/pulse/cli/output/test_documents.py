"""Answers of the wire as JSON documents; and the story of a job, as people read it."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse.cli.jobs.story import story
from pulse.cli.output.documents import document, encoded
from pulse.ops.job_text import pretty, where
from pulse.protocol.answers import AttemptInfo, JobInfo

JSON_KEYS = {"args", "result", "progress"}
ZERO = "1970-01-01T00:00:00Z"
ID = UUID("0190163d-8694-739b-aea5-966c26f8ad91")


def as_json(body: dict[str, object]) -> object:
    return json.loads(encoded(document(body), indented=False))


def test_ids_are_text() -> None:
    body: dict[str, object] = {"ids": [ID.bytes], "refused": [[ID.bytes, "conflict"]], "job": {"id": ID.bytes}}
    assert as_json(body) == {"ids": [str(ID)], "refused": [[str(ID), "conflict"]], "job": {"id": str(ID)}}


@pytest.mark.parametrize("key", ["submitted_at", "next_run_at", "paused_at", "occurrence", "lease_until", "as_of"])
def test_times_are_iso(key: str) -> None:
    assert as_json({key: 1_900_000_000.5}) == {key: "2030-03-17T17:46:40.500000Z"}
    assert as_json({key: 1_900_000_000}) == {key: "2030-03-17T17:46:40Z"}
    assert as_json({key: None}) == {key: None}


@pytest.mark.parametrize(("body", "shown"), [
    ({"times": [0.0, 60.0]}, {"times": ["1970-01-01T00:00:00Z", "1970-01-01T00:01:00Z"]}),
    ({"occurrence": "2030-01-01T00:00:00Z", "run_at": 1e15}, None),  # text, or beyond the calendar
    ({"uptime_s": 5.5, "pid": 7, "paused": True, "jobs": {"PENDING": 3}}, None),  # no times
    # The name of a topic is no column, whatever it is called.
    ({"topics": {"submitted_at": {"paused_at": 0.0}}}, {"topics": {"submitted_at": {"paused_at": ZERO}}}),
    ({"topics": {"args": {"reason": "x"}}}, None),
])  # fmt: skip
def test_what_is_a_time(body: dict[str, object], shown: dict[str, object] | None) -> None:
    """By the keys; values that cannot be a date stay as they are."""
    assert as_json(body) == (body if shown is None else shown)


@pytest.mark.parametrize("key", ["args", "result", "progress"])
def test_json_text_is_put_in_as_it_is(key: str) -> None:
    text = '{"big": ' + "9" * 5000 + ', "pi": 3.14159265358979323846264338327950288, "at": {"started_at": 5}}'
    assert encoded(document({key: text}), indented=False).decode() == f'{{"{key}":{text}}}\n'


def test_an_indented_document_is_the_same_document() -> None:
    body: dict[str, object] = {"args": '{"a": [1, 2]}', "id": ID.bytes}
    text = encoded(document(body), indented=True)
    assert text.count(b"\n") > 3
    assert json.loads(text) == as_json(body)


@pytest.mark.rest
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text() | st.binary(max_size=20),
        # Under these keys servers send JSON text, which is put in unread: another text there would be no answer.
        lambda inner: st.lists(inner) | st.dictionaries(st.text().filter(lambda key: key not in JSON_KEYS), inner),
    )
)
def test_every_answer_is_a_document(value: object) -> None:
    line = encoded(document({"anything": value}), indented=False)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    msgspec.json.decode(line)


def test_pretty() -> None:
    assert pretty('{"a":1,"b":[2]}') == '{"a": 1, "b": [2]}'
    assert pretty('{"a":1,"b":2}', 8) == '{\n  "a": 1,\n  "b": 2\n}'


NOW_S = 1_900_000_000.0
WORKER = "h0st/b00t/42/1234.99/pool/1"


def told(*, whole_stacks: bool = False, **columns: Any) -> list[str]:
    job = JobInfo(**{"id": ID.bytes, "submitted_at": NOW_S - 100, "max_attempts": 5, **columns})
    lines = ["".join(cell.text for cell in line) for line in story(job, NOW_S, whole_stacks=whole_stacks)]
    return [line.partition("Z  ")[2] or line.strip() for line in lines]


def attempt(number: int, outcome: str, **more: Any) -> AttemptInfo:
    return AttemptInfo(number, outcome, WORKER, NOW_S - 90 + number, NOW_S - 88 + number, **more)


def test_all_attempts_in_their_order() -> None:
    """The story has each attempt with its claim, place, end and reason; one line counts those that left no row."""
    history = [
        attempt(1, "error", error="ValueError: no\nTraceback ...\n  File ..."),
        attempt(2, "crashed", exit_code=-9, cpu_s=1.5, peak_rss_bytes=3 * 2**20),
        attempt(4, "completed", progress='{"a":1}'),
    ]
    times: dict[str, Any] = {"started_at": NOW_S - 5, "completed_at": NOW_S - 2}
    found = told(status="COMPLETED", attempts=5, ran_by=WORKER, history=history, **times)
    assert found == [
        "submitted; first claimed after 11 s", "attempt 1 claimed by pool/1 on h0st, pid 1234",
        "attempt 1 error after 2 s, charged", "why: ValueError: no", "Traceback ...", "File ...",
        "attempt 2 claimed by pool/1 on h0st, pid 1234", "attempt 2 crashed (SIGKILL) after 2 s, uncharged",
        "used: 1.50 s of CPU, 3 MiB of memory", "attempt 4 claimed by pool/1 on h0st, pid 1234",
        "attempt 4 completed after 2 s", 'progress: {"a": 1}', "attempt 3 left no record: given back unstarted",
        "attempt 5 claimed by pool/1 on h0st, pid 1234", "COMPLETED, 3 s after its claim",
    ]  # fmt: skip


def test_hosts_have_their_names() -> None:
    """Of one that the server does not know, the id is shown."""
    history = [attempt(1, "error"), AttemptInfo(2, "error", "e24f/b/4/5.6/w", NOW_S, NOW_S)]
    times: dict[str, Any] = {"started_at": NOW_S - 5, "completed_at": NOW_S - 2, "hosts": {"h0st": "alpha"}}
    found = told(status="COMPLETED", attempts=3, ran_by=WORKER, history=history, **times)
    assert [line for line in found if " on " in line] == [
        "attempt 1 claimed by pool/1 on alpha, pid 1234", "attempt 2 claimed by w on e24f, pid 5",
        "attempt 3 claimed by pool/1 on alpha, pid 1234",
    ]  # fmt: skip


def test_a_traceback_is_shown_once() -> None:
    """An attempt that failed as an earlier one, or as the last error above says, has only the line of the exception."""
    errors = ["KeyError: 1\nTraceback of it", "KeyError: 1\nTraceback of it", "KeyError: 2\nTraceback of that"]
    history = [attempt(number, "error", error=error) for number, error in enumerate(errors, 1)]
    found = told(status="RETRYING", attempts=3, history=history, last_error=errors[2])
    assert [line for line in found if "KeyError" in line or "Traceback" in line] == [
        "why: KeyError: 1", "Traceback of it", "why: KeyError: 1", "why: KeyError: 2"
    ]  # fmt: skip


def test_a_claim_that_began_before_the_submit() -> None:
    """Its transaction may be the older one: the story still has the job's first claim."""
    assert told(status="RUNNING", started_at=NOW_S - 100.5, attempts=1)[0] == "submitted; first claimed after 0 s"


@pytest.mark.parametrize(("columns", "last"), [
    ({"status": "PENDING", "next_run_at": NOW_S + 60}, "due in 60 s"),
    ({"status": "RETRYING", "next_run_at": NOW_S - 60}, "due for 60 s: `pulse ctl jobs why` tells why it waits"),
    ({"status": "PENDING", "next_run_at": 253402128000.0}, "held back behind an earlier job of its schedule"),
    ({"status": "RUNNING", "started_at": NOW_S - 7, "attempts": 1}, "still running, for 7 s"),
    ({"status": "CANCELED", "completed_at": NOW_S}, "CANCELED"),
    ({"status": "DEAD_LETTERED", "completed_at": NOW_S, "history": [AttemptInfo(0, "expired")]}, "DEAD_LETTERED"),
], ids=lambda value: value.get("status") if isinstance(value, dict) else None)  # fmt: skip
def test_how_it_stands(columns: dict[str, Any], last: str) -> None:
    assert told(**columns)[-1] == last


def test_fired_by_a_schedule() -> None:
    (first, *_) = told(status="PENDING", schedule_id=ID.bytes, occurrence=0.0)
    assert first == f"fired by schedule {ID}, for 1970-01-01T00:00:00Z"
    assert where("tcp\x1b/user") == "tcp\\x1b/user"


def test_stacks_are_short_unless_asked_for() -> None:
    hung = [attempt(1, "timeout", stack="\n".join(f"line {number}" for number in range(9)))]
    short = told(status="PENDING", attempts=1, history=hung)
    assert [line for line in short if line.startswith("line")] == [f"line {number}" for number in range(5, 9)]
    assert any("the 4 innermost of 9 lines; --stack shows all" in line for line in short)
    assert sum(line.startswith("line") for line in told(status="PENDING", history=hung, whole_stacks=True)) == 9


@pytest.mark.parametrize(("newest", "numbers"), [("last", range(5, 9)), ("first", range(4))])
def test_a_short_stack_is_of_the_handler(newest: str, numbers: range) -> None:
    """Of several parts the first is shown, the handler's, with its innermost frames."""
    handler = [f"Here (most recent call {newest}):", *(f"line {number}" for number in range(9))]
    stack = "\n".join([*handler, "Current thread 0x1 (most recent call first):", "  File host.py"])
    short = told(status="PENDING", attempts=1, history=[attempt(1, "timeout", stack=stack)])
    shown = [line for line in short if line.startswith(("line", "File"))]
    assert shown == [f"line {number}" for number in numbers]
