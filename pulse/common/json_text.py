"""
JSON as pulse stores it: strict JSON that PostgreSQL's jsonb can hold; and its values as Python types.

NaN and Infinity are not JSON; NUL characters and lone surrogates are, but jsonb refuses them. Both are checked here,
where the caller gets the error. Types are msgspec's (dataclasses, structs, enums, dates, UUIDs and so on), paths and
models of pydantic; msgspec is loaded when the first value needs it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any, Final, TypeAlias, cast

JsonValue: TypeAlias = "dict[str, JsonValue] | list[JsonValue] | str | int | float | bool | None"

_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_TEXT: Final[frozenset[object]] = frozenset({str})
_FLAT: Final[frozenset[object]] = frozenset({str, int, bool, type(None)})  # no floats: msgspec writes 1e16 for 1e+16
_MOST_DIGITS: Final = 131_072  # before the decimal point, of a number that PostgreSQL stores
_PART: Final = 500  # digits that int() takes whatever sys.set_int_max_str_digits says
# An escaped NUL: \u0000 behind an even number of backslashes (an odd number makes it the text of an escape).
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_learning: Final = threading.RLock()
_learned: Final = set[object]()


class NotJsonError(ValueError):
    """The value has no JSON form."""


class NotStorableError(ValueError):
    """The value is JSON, but PostgreSQL cannot hold it."""


class NotOfTypeError(ValueError):
    """A value is not what its type says; the message: which part of it, and what is allowed."""


def dumps(value: object) -> str:
    """
    The JSON text of *value*, without needless spaces.

    Raises:
        NotJsonError: It holds something that JSON has no form for.
        NotStorableError: It holds a NUL character or a lone surrogate.
    """
    try:
        text = _flat(value) or _encode(value)
    except RecursionError:
        raise NotJsonError("it is nested too deeply, or contains itself") from None
    except Exception as error:  # noqa: BLE001 - dict and str subclasses run code of the user's here
        raise NotJsonError(_reason(error)) from None
    refuse_nul(text)
    if not text.isascii() and not _is_unicode(text):
        raise NotStorableError("it contains a lone surrogate")
    return text


def refuse_nul(text: str) -> None:
    """
    Look for a NUL character in a JSON text.

    Raises:
        NotStorableError: It holds one.
    """
    if "\\u0000" in text and _NUL.search(text):
        raise NotStorableError("it contains a NUL character")


def _flat(value: object) -> str:
    """The text of an object of texts and integers alone, as args mostly are, in half of the time; '': it has others."""
    if type(value) is not dict:
        return ""
    given = cast("dict[object, object]", value)
    if not (_TEXT.issuperset(map(type, given)) and _FLAT.issuperset(map(type, given.values()))):
        return ""
    try:
        return _encoder()(given).decode()
    except UnicodeEncodeError:  # a lone surrogate
        return ""


def loads(text: str, *, long_integers: bool = True) -> JsonValue:
    """
    The value of a JSON text.

    Args:
        text: The text.
        long_integers: Whether integers of more than 4300 digits are read, which int() refuses. SQL can store them
            (1e5000), and one job must not make a page of jobs unreadable; but a megabyte of them takes a fifth of a
            second.

    Raises:
        ValueError: It is not JSON.
    """
    found: JsonValue
    decode = _decoder()
    try:
        found = decode(text)  # json.loads takes three times as long
    except Exception:  # noqa: BLE001 - msgspec has several
        # With a number that msgspec refuses, or with an error of which json.loads says what is wrong.
        found = json.loads(text, parse_int=_integer if long_integers else None)
    return found


def to_json(value: object, name: str = "it") -> object:
    """
    *value* as JSON has it.

    Args:
        value: The value.
        name: What the message calls it.

    Raises:
        NotOfTypeError: It has no such form.
    """
    import msgspec

    try:
        return msgspec.to_builtins(value, str_keys=True, enc_hook=_dump_other)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NotOfTypeError(f"{name} has no form in JSON ({error})") from None


def as_type(value: object, kind: object, name: str, *, shown: bool = False) -> Any:  # noqa: ANN401 - of that kind
    """
    A JSON value as *kind* has it.

    Args:
        value: The value.
        kind: The type.
        name: What the message calls the value.
        shown: Whether the message may show it: it may be a secret.

    Raises:
        NotOfTypeError: It is none.
    """
    import msgspec

    learn(kind)
    try:
        return msgspec.convert(value, kind, dec_hook=_load_other)
    except RecursionError:
        raise NotOfTypeError(f"{name} is nested too deeply") from None
    except msgspec.ValidationError as error:
        from pulse.common.invalid_field import invalid_field

        raise NotOfTypeError(invalid_field(kind, value, error, name=name, shown=shown, none="None")) from None


def learn(kind: object) -> None:
    """
    Let msgspec learn the type *kind*, in one thread; call it before each conversion that may be in any thread.

    msgspec (0.22.0) reads the annotations of a type when it is first used, and keeps what it has before that is
    complete: another thread that uses the type, or one of its parts, meanwhile crashes the process.
    """
    try:
        if kind in _learned:
            return
    except TypeError:  # it cannot be hashed: then it is looked at each time
        pass
    import msgspec

    with _learning:
        msgspec.msgpack.Decoder(kind)
        with contextlib.suppress(TypeError):
            _learned.add(kind)


def knows_type(kind: object) -> bool:
    """Whether values can be converted to that type; without this every conversion would fail."""
    import msgspec

    try:
        return kind is not Any and all(map(_is_added, _foreign(msgspec.inspect.type_info(kind), set())))
    except (TypeError, NameError, RecursionError):
        return False


@functools.cache
def _encoder() -> Callable[[object], bytes]:
    import msgspec

    return msgspec.json.Encoder().encode


@functools.cache
def _decoder() -> Callable[[str], JsonValue]:
    import msgspec

    return msgspec.json.Decoder().decode


def _integer(text: str) -> int:
    digits = text.removeprefix("-")
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"an integer has {len(digits)} digits; at most {_MOST_DIGITS} are allowed")
    number = _natural(digits)
    return -number if text.startswith("-") else number


def _natural(digits: str) -> int:
    if len(digits) <= _PART:
        return int(digits)
    half = len(digits) // 2  # halves take a third of the time of parts one after the other
    ten_to_half: int = 10**half
    return _natural(digits[:-half]) * ten_to_half + _natural(digits[-half:])


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


def _foreign(info: object, seen: set[int]) -> Iterator[object]:
    """The classes in a type that msgspec itself does not know."""
    import msgspec

    if id(info) in seen:
        return
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        yield info.cls
    elif isinstance(info, msgspec.Struct):
        for name in info.__struct_fields__:
            yield from _foreign(getattr(info, name), seen)
    elif isinstance(info, tuple):
        for one in cast("tuple[object, ...]", info):
            yield from _foreign(one, seen)


def _is_added(kind: object) -> bool:
    return isinstance(kind, type) and (issubclass(kind, PurePath) or hasattr(cast("object", kind), "model_validate"))


def _dump_other(value: object) -> object:
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "model_dump"):
        return cast("Any", value).model_dump(mode="json")
    raise TypeError(f"objects of type {type(value).__name__} have none")


def _load_other(kind: type, value: object) -> object:
    if issubclass(kind, PurePath):
        if isinstance(value, str):
            return kind(value)
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
    try:
        return cast("Any", kind).model_validate(value)
    except ValueError as error:
        # Without the values, which may be secrets.
        each = getattr(error, "errors", list[Any])()
        said = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}".removeprefix(": ") for one in each]
        raise ValueError("; ".join(said) or "it is refused by its model") from None
