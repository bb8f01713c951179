"""Ids in short: as many characters as tell them apart."""

from __future__ import annotations

import copy
import pickle
from uuid import UUID

import pytest

from pulse.common.ids import JobId, hex_digits, short_ids, uuid7, uuid7s

FIRST = "0190163d-8694-739b-aea5-966c26f8ad91"


@pytest.mark.parametrize(("other", "length"), [
    (FIRST, 13),  # the same one twice
    ("0190163e-8694-739b-aea5-966c26f8ad91", 13),
    ("0190163d-8694-839b-aea5-966c26f8ad91", 15),
    ("0190163d-8694-739c-aea5-966c26f8ad91", 18),
    ("0190163d-8694-739b-bea5-966c26f8ad91", 20),
    ("0190163d-8694-739b-aea5-966c26f8ad92", 36),
])  # fmt: skip
def test_short_ids(other: str, length: int) -> None:
    """At least the time; never a dash at the end."""
    assert short_ids([UUID(FIRST).bytes, UUID(other).bytes]) == [FIRST[:length], other[:length]]


def test_short_ids_of_many() -> None:
    ids = uuid7s(1000)
    assert len(set(short_ids(ids))) == 1000
    assert short_ids([]) == []


@pytest.mark.parametrize(
    ("text", "digits"),
    [(FIRST, FIRST.replace("-", "")), ("0190-AB", "0190ab"), ("", None), ("-", None), ("x1", None), ("0" * 33, None)],
)
def test_hex_digits(text: str, digits: str | None) -> None:
    assert hex_digits(text) == digits


@pytest.mark.parametrize("is_new", [True, False])
def test_the_id_of_a_submit(is_new: bool) -> None:
    """A UUID in every respect, which knows whether the job is new; copies do, too."""
    plain = uuid7()
    made = JobId(plain.bytes, is_new=is_new)
    assert (made, hash(made), str(made), made.is_new) == (plain, hash(plain), str(plain), is_new)
    for other in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):  # noqa: S301 - its own
        assert (other, other.is_new, type(other)) == (made, is_new, JobId)
    assert JobId(plain.bytes).is_new
