"""
Answers of the wire as JSON documents: ids as text, times as ISO 8601 UTC, JSON text as the JSON that it is.

``args``, ``result`` and ``progress`` arrive as text and are put into the document as they are, never decoded: a number
with more digits than a float holds, or of more digits than Python wants to read, comes out as the database has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast
from uuid import UUID

import msgspec

from pulse.common.ids import ID_BYTES
from pulse.common.text import iso

Body = Mapping[str, object]

_JSON_TEXTS: Final = frozenset({"args", "result", "progress"})
_TIMES: Final = frozenset({"occurrence", "lease_until", "paused_until", "as_of", "times", "at", "since"})  # and all _at
_INDENT: Final = 2


def document(body: Body) -> dict[str, object]:
    """*body*, an answer of the server, as values that ``encoded`` can write."""
    return {key: _converted(value, key) for key, value in body.items()}


def encoded(value: object, *, indented: bool) -> bytes:
    """
    *value* as one JSON document in UTF-8, ending in a line break.

    Args:
        value: What ``document`` returned, or anything JSON can say.
        indented: On several lines, for people; else on one.
    """
    text = msgspec.json.encode(value)
    return (msgspec.json.format(text, indent=_INDENT) if indented else text) + b"\n"


def _converted(value: object, key: str) -> object:
    match value:
        case bytes():
            return str(UUID(bytes=value)) if len(value) == ID_BYTES else value.hex()
        case str() if key in _JSON_TEXTS:
            return msgspec.Raw(value.encode())
        case int() | float() if not isinstance(value, bool) and (key.endswith("_at") or key in _TIMES):
            return _time(value)
        case dict():
            return document(cast("dict[str, object]", value))
        case list() | tuple():
            return [_converted(one, key) for one in cast("list[object]", value)]
        case _:
            return value


def _time(seconds: float) -> object:
    try:
        return iso(seconds)
    except (OverflowError, ValueError):  # infinity, or beyond the year 9999: PostgreSQL knows both
        return seconds
