"""What a message of an end is: its subject, its id and its data."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from pulse.bridge.outbox import SubjectTemplate, message_data, message_id
from pulse.errors import ConfigError
from pulse.protocol.workflows import JobEnd

JOB = UUID("019dfd00-aa00-7e10-8001-0123456789ab")


def end(**fields: Any) -> JobEnd:
    known = {"job": JOB.bytes, "ended_at": 1_700_000_000_123_456, "attempt": 2, "status": "DEAD_LETTERED"}
    return JobEnd(**{**known, "topic": "orders", "name": "ship", **fields})


@pytest.mark.parametrize(("text", "fields", "subject"), [
    ("pulse.{topic}.{status}", {}, "pulse.orders.dead_lettered"),
    ("{name}", {"name": "a.b *>é%"}, "a%2Eb%20%2A%3E%C3%A9%25"),
    ("all", {}, "all"),
])  # fmt: skip
def test_the_subject(text: str, fields: dict[str, str], subject: str) -> None:
    """What an operator or an application has chosen is one word of it."""
    assert SubjectTemplate(text).of(end(**fields)) == subject


@pytest.mark.parametrize("text", ["", "a..b", ".a", "a.", "a.*", "a.>", "a b", "{id}", "{}", "{topic.x}"])
def test_no_subject(text: str) -> None:
    with pytest.raises(ConfigError, match="--subject is "):
        SubjectTemplate(text)


def test_the_id_names_the_end() -> None:
    """Two cancels of a job that never ran differ only in their time."""
    assert message_id(end()) == f"{JOB}.2.DEAD_LETTERED.1700000000123456"
    assert message_id(end(ended_at=1)) != message_id(end())


def test_the_data() -> None:
    """The result as it is stored."""
    facts = {
        "id": str(JOB), "name": "ship", "topic": "orders", "status": "DEAD_LETTERED", "attempt": 2,
        "ended_at": 1_700_000_000.123456, "last_error": "x" * 2000,
    }  # fmt: skip
    raw = message_data(end(result='{"n": 1.10}', last_error="x" * 3000))
    assert json.loads(raw) == {**facts, "result": {"n": 1.1}}
    assert b'"result": {"n": 1.10}' in raw
    assert json.loads(message_data(end(result_omitted=True)))["result_omitted"] is True
    assert json.loads(message_data(end()))["result"] is None
