"""JSON as pulse stores it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulse.common.json_text import (
    NotJsonError,
    NotOfTypeError,
    NotStorableError,
    as_type,
    dumps,
    knows_type,
    loads,
    to_json,
)

storable = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | storable
documents = st.recursive(
    plain,
    lambda inner: st.lists(inner) | st.dictionaries(storable, inner),
    max_leaves=20,
)


@given(documents)
def test_what_is_json_comes_back(value: object) -> None:
    text = dumps(value)
    assert loads(text) == value
    assert text.encode().decode() == text


EVERY_CHARACTER = "".join(map(chr, (*range(1, 0xD800), *range(0xE000, 0x110000))))


@given(st.dictionaries(storable, plain))
@example({EVERY_CHARACTER: EVERY_CHARACTER})
@example({"": 1e16})
@example({"": 2**64, "1": -(2**63) - 1})
def test_an_object_alone_has_the_same_text_as_in_another(value: dict[str, object]) -> None:
    """Objects of nothing but texts and integers are written by another encoder."""
    assert dumps(value) == dumps([value])[1:-1]


@given(st.from_regex(r"-?(0|[1-9][0-9]{0,400})([.][0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", fullmatch=True))
def test_numbers_are_read_as_python_reads_them(text: str) -> None:
    found = loads(text)
    assert (type(found), repr(found)) == (type(json.loads(text)), repr(json.loads(text)))


def test_what_is_json_and_what_is_not() -> None:
    for text, value in [(' {"a": 1}', {"a": 1}), ("[1]\n ", [1]), ("1e400", float("inf"))]:
        assert loads(text) == value
    for text in ["", " ", "{", '{"a": 1} x', "[1][2]", "\ufeff{}", "nul"]:
        with pytest.raises(ValueError, match=r".+"):
            loads(text)


def test_integers_that_int_refuses() -> None:
    """Each that PostgreSQL stores is read, unless somebody has no time for that."""
    long = 3 * 10**131_071 + 7
    digits = f"3{'0' * 131_070}7"
    assert loads(f'{{"a": [{digits}, -{digits}, 1]}}') == {"a": [long, -long, 1]}
    with pytest.raises(ValueError, match="131073 digits; at most 131072 are allowed"):
        loads(f"-{digits}00"[:131_074])
    with pytest.raises(ValueError, match="Exceeds the limit"):
        loads(digits, long_integers=False)


@pytest.mark.parametrize("value", ["a\0b", {"\0": 1}, ["\\\0"], "\ud800", {"k": "x\udfff"}])
def test_what_postgresql_cannot_hold(value: object) -> None:
    with pytest.raises(NotStorableError, match=r"it contains a (NUL|lone)"):
        dumps(value)


@pytest.mark.parametrize("value", ["\\u0000", "\\\\u0000", {"\\u0000": "\\"}, "u0000", "\U0001f600"])
def test_what_only_looks_like_it(value: object) -> None:
    assert json.loads(dumps(value)) == value


class Rude(dict[str, object]):
    def items(self) -> object:  # type: ignore[override]
        raise OSError("no")


def endless() -> list[object]:
    value: list[object] = []
    value.append(value)
    return value


def deep() -> object:
    value: object = 1
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize("value", [
    float("nan"), float("inf"), [float("-inf")], {1, 2}, object(), b"x", {(1, 2): 3}, Rude(a=1), endless(), [10**5000],
])  # fmt: skip
def test_what_has_no_json_form(value: object) -> None:
    with pytest.raises(NotJsonError) as caught:
        dumps(value)
    assert str(caught.value)


class Model(pydantic.BaseModel):
    path: Path


@dataclass
class Tree:
    below: list[Tree] = field(default_factory=list["Tree"])


def test_types_that_msgspec_does_not_know() -> None:
    """Paths and models; and a type that contains itself is walked once."""
    for value, kind, text in ((Path("a"), Path, "a"), (Model(path=Path("b")), Model, {"path": "b"})):
        assert knows_type(kind)
        assert to_json(value) == text
        assert as_type(text, kind, "it") == value
    assert knows_type(Tree)
    assert not knows_type(object)
    assert not knows_type(dict[str, complex | object])


def test_values_of_another_type() -> None:
    """The message names the place and not the value."""
    for value, kind, said in (
        (1, Path, "it is wrong; allowed is a path"),
        ([{}], list[Model], "it[0]: path: Field required"),
        ("secret", int, "it is wrong; allowed is a whole number"),
    ):
        with pytest.raises(NotOfTypeError) as caught:
            as_type(value, kind, "it")
        assert str(caught.value) == said
    with pytest.raises(NotOfTypeError, match=r"^args has no form in JSON \(objects of type object have none\)$"):
        to_json(object(), "args")
