"""
Says what does not fit its type: which field, the value that was given, and what is allowed. Pure.

msgspec names the first such place: ``Expected `int` >= 1 - at `$.jobs[1].max_attempts` ``. Along that path lie the
value and the type of the field; a person gets these in words. Where the path leads nowhere, msgspec's message is better
than none.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final, cast

from msgspec import inspect

__all__ = ["invalid_field"]

_PLACE: Final = re.compile(r" - at (`key` in )?`\$(.*)`$", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[(\.\.\.)\]")
_MISSING: Final = re.compile(r"^Object missing required field `([^`]+)`")
_SHOWN_CHARS: Final = 60  # of a value
_TOLD_CHARS: Final = 400  # of a message: a value in it may be as long as a frame
_UNKNOWN: Final = object()  # a value that is not looked up, or that nobody finds
_NO_PATTERNS: Final[Mapping[str, str]] = {}


def invalid_field(
    kind: object,
    value: object,
    error: Exception,
    *,
    name: str = "",
    shown: bool = True,
    none: str = "nil",
    patterns: Mapping[str, str] = _NO_PATTERNS,
) -> str:
    """
    What is wrong with a value, in one line.

    Args:
        kind: The type that it does not fit.
        value: The plain value.
        error: What msgspec raised.
        name: What the value is called; '': it is a body, whose fields have names.
        shown: Whether the wrong value may be shown.
        none: What None is called where the value comes from.
        patterns: Patterns of text, in words.
    """
    problem = str(error)
    place, missing = _PLACE.search(problem), _MISSING.match(problem)
    if place is None and missing is None and not name:
        return _cut(problem)
    steps = list(_STEP.finditer(place[2])) if place else []
    path = (name + "".join(step[0] for step in steps)).removeprefix(".").replace("...", "…")
    if missing is not None:
        return f"{path}.{missing[1]} is missing".removeprefix(".")
    allowed = _allowed(_type_at(_info(kind), steps, is_key=bool(place and place[1])), patterns)
    if not allowed:
        return _cut(f"{path}: {_PLACE.sub('', problem)}" if name else problem)
    if place and place[1]:
        return f"a key of {path} is wrong; allowed {allowed}"
    found = _value_at(value, steps) if shown else _UNKNOWN
    return f"{path} is {'wrong' if found is _UNKNOWN else _given(found, none)}; allowed {allowed}"


@functools.cache
def _info(kind: object) -> inspect.Type:
    return inspect.type_info(kind)


def _value_at(value: Any, steps: Iterable[re.Match[str]]) -> object:  # noqa: ANN401 -- whatever the peer has sent
    try:
        for name, index, _ in (step.groups() for step in steps):
            value = value[name] if name else value[int(index)]
    except (LookupError, TypeError):  # `[...]` is any value of a map
        return _UNKNOWN
    return value


def _type_at(info: inspect.Type, steps: Sequence[re.Match[str]], *, is_key: bool) -> inspect.Type | None:
    found: inspect.Type | None = info
    for name, index, _ in (step.groups() for step in steps):
        found = next(filter(None, (_below(one, name, index) for one in _choices(found))), None)
    if is_key:
        return next((one.key_type for one in _choices(found) if isinstance(one, inspect.DictType)), None)
    return found


def _below(info: inspect.Type, name: str | None, index: str | None) -> inspect.Type | None:
    """The type of what *info* has under a name, at an index, or as any value of a map."""
    match info:
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() | inspect.NamedTupleType():
            fields = info.fields[int(index) : int(index) + 1] if index else info.fields
            return next((one.type for one in fields if index or one.encode_name == name), None)
        case inspect.CollectionType() if index:
            return info.item_type
        case inspect.TupleType() if index:
            return dict(enumerate(info.item_types)).get(int(index))
        case inspect.DictType() if not index and not name:
            return info.value_type
        case _:
            return None


def _choices(info: inspect.Type | None) -> Sequence[inspect.Type]:
    return info.types if isinstance(info, inspect.UnionType) else [] if info is None else [info]


def _allowed(info: inspect.Type | None, patterns: Mapping[str, str]) -> str:
    """``is text`` or ``are a, b``, without nil, which may stand for a missing value; '' of an unknown type."""
    choices = [one for one in _choices(info) if not isinstance(one, inspect.NoneType)]
    if any(isinstance(one, inspect.FloatType) for one in choices):
        choices = [one for one in choices if not isinstance(one, inspect.IntType)]  # a whole number is a number, too
    literals = [word for one in choices for word in _literals(one)]
    if literals:
        return f"are {', '.join(literals)}"
    words = [_words(one, patterns) for one in choices]
    return f"is {' or '.join(words)}" if all(words) and words else ""


def _literals(info: inspect.Type) -> list[str]:
    match info:
        case inspect.LiteralType():
            return [str(one) for one in info.values]
        case inspect.EnumType():
            return [str(one.value) for one in info.cls]
        case _:
            return []


def _words(info: inspect.Type, patterns: Mapping[str, str]) -> str:  # noqa: PLR0911 - one for each kind of type
    """What a type allows; '' of one whose own words are better."""
    match info:
        case inspect.IntType():
            return "a whole number" + _range(info)
        case inspect.FloatType():
            return "a number" + _range(info)
        case inspect.StrType():
            return patterns.get(info.pattern or "") or "text" + _length(info, "characters")
        case inspect.BytesType():
            return "bytes" if info.min_length is None else f"{info.min_length} bytes"
        case inspect.CollectionType():
            return "a list" + _length(info, "elements")
        case inspect.StructType(array_like=True):
            return f"a list of {sum(one.required for one in info.fields)} or more"
        case inspect.TupleType():
            return f"a list of {len(info.item_types)}"
        case inspect.CustomType():
            return "a path" if issubclass(info.cls, PurePath) else ""
        case _:
            return _PLAIN.get(type(info), "a map")


_PLAIN: Final[Mapping[type[inspect.Type], str]] = {
    inspect.BoolType: "true or false",
    inspect.NoneType: "nil",
    inspect.DateTimeType: "a time as 2026-01-31T12:00:00Z",
    inspect.DateType: "a date as 2026-01-31",
    inspect.TimeType: "a time of day as 12:00:00",
    inspect.TimeDeltaType: "a length of time as PT1H30M, or in seconds",
    inspect.UUIDType: "a UUID",
    inspect.DecimalType: "a decimal number",
}


def _range(info: inspect.IntType | inspect.FloatType) -> str:
    least, most = info.ge, info.le
    if info.gt is not None:
        return f" above {_number(info.gt)}" + ("" if most is None else f", up to {_number(most)}")
    if least is not None and most is not None:
        return f" from {_number(least)} to {_number(most)}"
    return f", {_number(least)} or more" if least is not None else ""


def _length(info: inspect.StrType | inspect.CollectionType, what: str) -> str:
    if info.max_length is None:
        return ""
    return f" of {'up' if info.min_length is None else _number(info.min_length)} to {_number(info.max_length)} {what}"


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def _given(value: object, none: str) -> str:  # noqa: PLR0911 - one for each kind of value
    match value:
        case None:
            return none
        case str() if len(value) > _SHOWN_CHARS:
            return f"{value[:_SHOWN_CHARS]!r}… of {len(value):,} characters"
        case bool() | int() | float() | str():
            return f"{value!r:.100}"
        case bytes():
            return f"{len(value):,} bytes"
        case Mapping():
            return "a map"
        case list() | tuple():
            return f"a list of {len(cast('Sequence[object]', value)):,}"
        case _:
            return "of another kind"


def _cut(text: str) -> str:
    return text if len(text) <= _TOLD_CHARS else f"{text[: _TOLD_CHARS // 2]}…{text[-_TOLD_CHARS // 2 :]}"
