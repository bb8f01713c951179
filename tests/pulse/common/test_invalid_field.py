"""What a person reads of a body that does not fit: the field, the value, and what is allowed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from msgspec import Struct

from pulse.common.invalid_field import invalid_field
from pulse.protocol import messages, requests
from pulse.protocol.fields import PATTERNS


class Odd:
    """A type that msgspec does not know."""


def refuse(_kind: type, _value: object) -> None:
    raise ValueError("too odd")


ID = b"x" * 16
VALUE = "text or a number or true or false"
ATTEMPT, DETAIL = "a whole number from 1 to 2,147,483,647", "text or a number or a list of 2"


def said(kind: type[Struct], body: Mapping[str, object], *, shown: bool = True) -> str:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(body, kind)
    return invalid_field(kind, body, refused.value, shown=shown, patterns=PATTERNS)


@pytest.mark.parametrize(("job", "text"), [
    ({}, "name is missing"),
    ({"name": ""}, "name is ''; allowed is text of 1 to 200 characters"),
    ({"name": "n" * 300}, f"name is {'n' * 60!r}… of 300 characters; allowed is text of 1 to 200 characters"),
    ({"name": {}}, "name is a map; allowed is text of 1 to 200 characters"),
    ({"name": "n", "priority": None}, "priority is nil; allowed is a whole number from -100 to 100"),
    ({"name": "n", "priority": "3"}, "priority is '3'; allowed is a whole number from -100 to 100"),
    ({"name": "n", "max_attempts": 0}, "max_attempts is 0; allowed is a whole number from 1 to 10,000"),
    ({"name": "n", "timeout_s": 0}, "timeout_s is 0; allowed is a number above 0, up to 1,000,000,000"),
    ({"name": "n", "id": b"12"}, "id is 2 bytes; allowed is 16 bytes"),
])  # fmt: skip
def test_a_wrong_job(job: Mapping[str, object], text: str) -> None:
    assert said(requests.Submit, {"jobs": [{"name": "good"}, job]}) == f"jobs[1].{text}"


@pytest.mark.parametrize(("kind", "body", "text"), [
    (requests.Submit, {}, "jobs is missing"),
    (requests.Submit, {"jobs": []}, "jobs is a list of 0; allowed is a list of 1 to 100,000 elements"),
    (requests.LogsRequest, {"level": "loud"}, "level is 'loud'; allowed are critical, debug, error, info, warning"),
    (requests.LogsRequest, {"after": -1}, "after is -1; allowed is a whole number, 0 or more"),
    (requests.DrainRequest, {"all": 1}, "all is 1; allowed is true or false"),
    (requests.JobsList, {"status": 2}, "status is 2; allowed is a list of up to 100 elements or text"),
    (requests.TopicSet, {"topic": "t", "policy": {"a": []}}, f"policy[…] is wrong; allowed is {VALUE}"),
    (requests.TopicSet, {"topic": "t", "policy": {1: 1}}, "a key of policy is wrong; allowed is text"),
    (requests.TopicSet, {"topic": "t", "policy": 1}, "policy is 1; allowed is a map"),
    (messages.Report, {"results": [[ID, 1]]}, "results[0] is a list of 2; allowed is a list of 3 or more"),
    (messages.Report, {"results": [[ID, 0, "ok"]]}, "results[0][1] is 0; allowed is " + ATTEMPT),
    (messages.Report, {"results": [[ID, 1, "ok", [1]]]}, "results[0][3] is a list of 1; allowed is " + DETAIL),
])  # fmt: skip
def test_a_wrong_request(kind: type[Struct], body: Mapping[str, Any], text: str) -> None:
    assert said(kind, body) == text


def test_what_must_not_be_shown() -> None:
    body = {"protocol": 1, "role": "client", "password": 12345678}
    assert said(messages.Hello, body, shown=False) == "password is wrong; allowed is text"
    body = {"protocol": 1, "role": "worker", "worker": "a b"}
    assert said(messages.Hello, body, shown=False) == "worker is wrong; allowed is 1 to 64 of A-Z a-z 0-9 . _ -"


def test_a_problem_without_a_place() -> None:
    """It stays as msgspec has it, cut in the middle."""
    assert invalid_field(requests.ById, None, ValueError("truncated")) == "truncated"
    told = invalid_field(requests.ById, None, ValueError("a" * 1000 + "b"))
    assert (len(told), told[:2], told[199:202], told[-1]) == (401, "aa", "a…a", "b")
    assert invalid_field(requests.ById, {}, ValueError("Expected - at `$.else`")) == "Expected - at `$.else`"


@dataclass
class Item:
    price: Decimal
    when: dt.datetime | None = None
    tags: frozenset[str] = frozenset()


class Order(TypedDict):
    items: list[Item]


class Pair(NamedTuple):
    one: int
    two: dt.date


@pytest.mark.parametrize(("kind", "value", "text"), [
    (int, "b", "it is 'b'; allowed is a whole number"),
    (int | None, "b", "it is 'b'; allowed is a whole number"),
    (str, None, "it is None; allowed is text"),
    (Order, {"items": [{"price": "1"}, {"price": "x"}]}, "it.items[1].price is 'x'; allowed is a decimal number"),
    (Order, {}, "it.items is missing"),
    (Order, {"items": [{}]}, "it.items[0].price is missing"),
    (Order, {"items": [3]}, "it.items[0] is 3; allowed is a map"),
    (Item, {"price": "1", "when": "now"}, "it.when is 'now'; allowed is a time as 2026-01-31T12:00:00Z"),
    (Item, {"price": "1", "tags": ["a", 2]}, "it.tags[1] is 2; allowed is text"),
    (Pair, [1, "x"], "it[1] is 'x'; allowed is a date as 2026-01-31"),
    (tuple[int, dt.time], [1, "x"], "it[1] is 'x'; allowed is a time of day as 12:00:00"),
    (dt.timedelta, "x", "it is 'x'; allowed is a length of time as PT1H30M, or in seconds"),
    (UUID, "x", "it is 'x'; allowed is a UUID"),
    (dict[str, list[bool]], {"a-b": [1]}, "it[…][0] is wrong; allowed is true or false"),
    (dict[int, int], {"x": 1}, "a key of it is wrong; allowed is a whole number"),
    (list[PurePosixPath], [1], "it[0] is 1; allowed is a path"),
    (list[Odd], [1], "it[0]: too odd"),
])  # fmt: skip
def test_a_wrong_value(kind: object, value: object, text: str) -> None:
    """Of any type that a handler's parameter may have; what a type says by itself stays in its words."""
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(value, kind, dec_hook=refuse)
    assert invalid_field(kind, value, refused.value, name="it", none="None") == text
