"""Answers of the wire as JSON documents."""

from __future__ import annotations

import json
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse.cli.output.documents import document, encoded
from pulse.ops.job_text import pretty

JSON_KEYS = {"args", "result", "progress"}
ID = UUID("0190163d-8694-739b-aea5-966c26f8ad91")


def as_json(body: dict[str, object]) -> object:
    """What a reader of the document sees."""
    return json.loads(encoded(document(body), indented=False))


def test_ids_are_text() -> None:
    """16 bytes become a UUID wherever they stand."""
    body: dict[str, object] = {"ids": [ID.bytes], "refused": [[ID.bytes, "conflict"]], "job": {"id": ID.bytes}}
    assert as_json(body) == {"ids": [str(ID)], "refused": [[str(ID), "conflict"]], "job": {"id": str(ID)}}


@pytest.mark.parametrize("key", ["submitted_at", "next_run_at", "paused_at", "occurrence", "lease_until", "as_of"])
def test_times_are_iso(key: str) -> None:
    """Unix seconds under the name of a time become ISO 8601 in UTC, whole numbers too; None stays."""
    assert as_json({key: 1_900_000_000.5}) == {key: "2030-03-17T17:46:40.500000Z"}
    assert as_json({key: 1_900_000_000}) == {key: "2030-03-17T17:46:40Z"}
    assert as_json({key: None}) == {key: None}


def test_a_list_of_times_is_converted() -> None:
    """A list has the meaning of its key."""
    assert as_json({"times": [0.0, 60.0]}) == {"times": ["1970-01-01T00:00:00Z", "1970-01-01T00:01:00Z"]}


def test_times_that_are_text_or_beyond_the_calendar_stay() -> None:
    """What cannot be a date is not lost."""
    assert as_json({"occurrence": "2030-01-01T00:00:00Z", "run_at": 1e15}) == {
        "occurrence": "2030-01-01T00:00:00Z",
        "run_at": 1e15,
    }


def test_numbers_that_are_no_times_stay() -> None:
    """Durations, counts and flags are left alone."""
    body: dict[str, object] = {"uptime_s": 5.5, "pid": 7, "paused": True, "jobs": {"PENDING": 3}}
    assert as_json(body) == body


def test_topics_may_have_the_names_of_columns() -> None:
    """The name of a topic is no column: what is under it is an object, whatever it is called."""
    topics: dict[str, dict[str, object]] = {
        "args": {"reason": "x", "paused_at": 0.0},
        "submitted_at": {"reason": None, "paused_at": 0.0},
    }
    shown = as_json({"topics": topics})
    assert shown == {"topics": {name: {**pause, "paused_at": "1970-01-01T00:00:00Z"} for name, pause in topics.items()}}


@pytest.mark.parametrize("key", ["args", "result", "progress"])
def test_json_text_is_put_in_as_it_is(key: str) -> None:
    """No digit is lost, however long the number: the text is never decoded."""
    text = '{"big": ' + "9" * 5000 + ', "pi": 3.14159265358979323846264338327950288, "at": {"started_at": 5}}'
    line = encoded(document({key: text}), indented=False).decode()
    assert line == f'{{"{key}":{text}}}\n'


def test_an_indented_document_is_the_same_document() -> None:
    """People get line breaks, nothing else."""
    body: dict[str, object] = {"args": '{"a": [1, 2]}', "id": ID.bytes}
    text = encoded(document(body), indented=True)
    assert text.count(b"\n") > 3
    assert json.loads(text) == as_json(body)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text() | st.binary(max_size=20),
        # Under these keys servers send JSON text, which is put in unread: another text there would be no answer.
        lambda inner: st.lists(inner) | st.dictionaries(st.text().filter(lambda key: key not in JSON_KEYS), inner),
    )
)
def test_every_answer_is_a_document(value: object) -> None:
    """Whatever a server answers comes out as one JSON document on one line."""
    line = encoded(document({"anything": value}), indented=False)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    msgspec.json.decode(line)


def test_pretty() -> None:
    """JSON that fits stays on a line; what does not fit is indented."""
    assert pretty('{"a":1,"b":[2]}') == '{"a": 1, "b": [2]}'
    assert pretty('{"a":1,"b":2}', 8) == '{\n  "a": 1,\n  "b": 2\n}'
