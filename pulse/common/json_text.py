"""
JSON as pulse stores it: strict JSON that PostgreSQL's jsonb can hold.

NaN and Infinity are not JSON; NUL characters and lone surrogates are, but jsonb refuses them. Both are checked here,
where the caller gets the error.
"""

from __future__ import annotations

import json
import re
from typing import Final, TypeAlias

JsonValue: TypeAlias = "dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None"

_decode: Final = json.JSONDecoder().raw_decode
_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
# An escaped NUL: \u0000 behind an even number of backslashes (an odd number makes it the text of an escape).
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class NotJsonError(ValueError):
    """The value has no JSON form."""


class NotStorableError(ValueError):
    """The value is JSON, but PostgreSQL cannot hold it."""


def dumps(value: object) -> str:
    """
    The JSON text of *value*, without needless spaces.

    Raises:
        NotJsonError: It holds something that JSON has no form for.
        NotStorableError: It holds a NUL character or a lone surrogate.
    """
    try:
        text = _encode(value)
    except RecursionError:
        raise NotJsonError("it is nested too deeply, or contains itself") from None
    except Exception as error:  # noqa: BLE001 - dict and str subclasses run code of the user's here
        raise NotJsonError(_reason(error)) from None
    if "\\u0000" in text and _NUL.search(text):
        raise NotStorableError("it contains a NUL character")
    if not text.isascii() and not _is_unicode(text):
        raise NotStorableError("it contains a lone surrogate")
    return text


def loads(text: str) -> JsonValue:
    """
    The value of a JSON text.

    Raises:
        ValueError: It is not JSON.
    """
    found: JsonValue
    try:
        found, end = _decode(text)  # json.loads takes twice as long: it looks for spaces before and after
    except ValueError:
        found, end = None, -1
    if end != len(text):
        found = json.loads(text)  # with spaces after all, or with an error that says what is wrong
    return found


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _reason(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - str() of a user's exception
        text = ""
    return text or type(error).__name__
