"""The setting ``redact``: which values of args are hidden, and that the mask is never stored."""

from __future__ import annotations

import json

import pytest

from pulse.errors import BadRequestError
from pulse.security.redaction import Redaction


def shown(setting: str, args: object, name: str | None = "charge") -> object:
    job = {"args": json.dumps(args)} | ({"name": name} if name else {})
    answer = Redaction(setting).answer({"job": job})["job"]
    assert isinstance(answer, dict)
    return json.loads(answer["args"])


@pytest.mark.parametrize(("setting", "args", "seen"), [
    ("password", {"password": 1, "user": "a"}, {"password": "***", "user": "a"}),
    ("password", {"a": [{"b": {"Password": [1, 2]}}]}, {"a": [{"b": {"Password": "***"}}]}),
    ("PASSWORD", {"password": None}, {"password": "***"}),
    ("password", {"passwords": 1}, {"passwords": 1}),
    ("card.number", {"number": 1, "card": {"number": 2}}, {"number": 1, "card": {"number": "***"}}),
    ("card.number", {"card": [{"number": 2}, 3]}, {"card": [{"number": "***"}, 3]}),
    ("card.*", {"card": {"a": 1, "b": {"c": 2}}, "d": 3}, {"card": {"a": "***", "b": "***"}, "d": 3}),
    ("*.number", {"number": 1, "card": {"number": 2}}, {"number": 1, "card": {"number": "***"}}),
    ("*", {"a": 1, "b": {"c": 2}}, {"a": "***", "b": "***"}),
    ("pin, card.number", {"pin": 1, "card": {"number": 2}}, {"pin": "***", "card": {"number": "***"}}),
    ("charge:pin", {"pin": 1}, {"pin": "***"}),
    ("refund:pin", {"pin": 1}, {"pin": 1}),
    ("card", {"$pulse": "fernet", "data": "card"}, {"$pulse": "fernet", "data": "card"}),
    ("data", {"$pulse": "fernet", "data": "card"}, {"$pulse": "fernet", "data": "card"}),
])  # fmt: skip
def test_what_is_hidden(setting: str, args: object, seen: object) -> None:
    """By the end of the path, wherever it is; nothing else changes, and what is encrypted stays to be opened."""
    assert shown(setting, args) == seen


def test_whose_it_is_counts_unless_nobody_says() -> None:
    """Then it is hidden: rather too much than too little."""
    assert shown("refund:pin", {"pin": 1}, None) == {"pin": "***"}


def test_all_that_people_are_shown() -> None:
    row = {
        "name": "n", "id": b"1", "args": '{"pin":1}', "result": '{"pin":1,"b":2}', "progress": None,
        "last_error": "e",
    }  # fmt: skip
    told = {
        "jobs": [{**row, "history": [{"attempt": 1, "progress": '{"pin": 1}'}]}, b"id"],
        "schedules": [row],
        "next": '{"pin":1}',
    }
    seen = {**row, "args": '{"pin":"***"}', "result": '{"pin":"***","b":2}'}
    assert Redaction("pin").answer(told) == {
        "jobs": [{**seen, "history": [{"attempt": 1, "progress": '{"pin":"***"}'}]}, b"id"],
        "schedules": [seen],
        "next": '{"pin":1}',
    }
    assert Redaction(None).answer(told) is told


def test_what_is_not_touched_is_the_same_to_the_letter() -> None:
    job = {"job": {"args": '{"b":  1.50}'}}
    assert Redaction("pin").answer(job) == job


LONG = f'{{"pin": 1, "n": {"9" * 5000}}}'  # an integer that int() refuses
HUGE = f'{{"pin": 1, "n": {"9" * 400}.5}}'  # as Python has it, infinity: no JSON


@pytest.mark.parametrize("text", ["[" * 100_000, "{no", '{"pin":' * 5000, LONG, HUGE])
def test_what_cannot_be_looked_at_is_hidden(text: str) -> None:
    assert Redaction("pin").answer({"job": {"args": text}}) == {"job": {"args": '"***"'}}


@pytest.mark.parametrize("args", ['{"pin":"***"}', '{"a":[{"PIN":"***","b":1}]}'])
def test_a_mask_is_never_stored(args: str) -> None:
    """A client that changes what it was shown would store it instead of the value."""
    with pytest.raises(BadRequestError, match=r"args have '\*\*\*' where a value is hidden"):
        Redaction("charge:pin").check(args)
    for right in ('{"pin":"1234","stars":"***"}', "{***", None, "[" * 100_000 + "***"):
        Redaction("pin").check(right)
    Redaction(None).check(args)
