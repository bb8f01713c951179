"""The types of the wire in the words of ``docs/protocol.md``, made from the Structs of ``pulse.protocol``."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Struct, inspect

NAMES: Final = {
    "JobRef": "ref", "HandlerInfo": "handler", "Assignment": "assignment", "Result": "result", "ResultExtra": "end",
    "Beat": "held", "StopOrder": "order", "SubmittedJob": "job", "ScheduleDeclared": "declared",
    "LimitDeclared": "limit",
}  # fmt: skip


def fields(kind: type[Struct]) -> list[tuple[str, str, str]]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return [(field.encode_name, type_name(field.type), default_of(field)) for field in info.fields]


def default_of(field: inspect.Field) -> str:
    if field.required:
        return "required"
    if field.default is field.default_factory is msgspec.NODEFAULT:
        return "stays"  # UNSET: what is left out of a change
    if field.default_factory is not msgspec.NODEFAULT:
        return {list: "[]", dict: "{}"}[field.default_factory]
    return "nil" if field.default is None else str(msgspec.json.encode(field.default).decode())


def type_name(kind: inspect.Type) -> str:  # noqa: PLR0911 - one for each kind of type
    match kind:
        case inspect.ListType(item, min_length, max_length):
            return f"[{type_name(item)}…]{_lengths(min_length, max_length)}"
        case inspect.DictType(key, value, min_length, max_length):
            return f"{{{type_name(key)}: {type_name(value)}}}{_lengths(min_length, max_length)}"
        case inspect.TupleType(items):
            return f"[{', '.join(type_name(item) for item in items)}]"
        case inspect.UnionType(options):
            return " or ".join(sorted((type_name(option) for option in options), key="nil".__eq__))
        case inspect.StructType(cls):
            return NAMES[cls.__name__]
        case inspect.EnumType(cls):
            return " ".join(sorted(str(member.value) for member in cls))
        case _:
            return _scalar(kind)


def _lengths(least: int | None, most: int | None) -> str:
    return "" if most is None else f" {least or 0}…{most}"


def _scalar(kind: inspect.Type) -> str:
    match kind:
        case inspect.IntType():
            return f"int{_range(kind)}"
        case inspect.FloatType():
            return f"float{_range(kind)}"
        case inspect.BytesType(min_length, max_length):
            assert min_length == max_length
            return f"bin {min_length}"
        case inspect.StrType():
            return _text(kind)
        case inspect.LiteralType(values):
            return " ".join(sorted(str(value) for value in values))
        case _:
            return {inspect.NoneType: "nil", inspect.BoolType: "bool", inspect.RawType: "any"}[type(kind)]


def _text(kind: inspect.StrType) -> str:
    if kind.pattern is not None and kind.max_length is None:  # else its words say what else is not allowed
        return kind.pattern.removeprefix("^").removesuffix(r"\Z")
    if kind.max_length is None:
        return "str"
    return f"str {kind.min_length or 0}…{kind.max_length}"


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    low = kind.ge if kind.ge is not None else kind.gt
    if low is None or kind.le is None:
        return ""
    above = ">" if kind.gt is not None else ""
    return f" {above}{_number(low)}…{_number(kind.le)}"


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return re.sub(r"e\+?(-?)0*", r"e\1", f"{value:g}")
