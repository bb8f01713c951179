"""Args and payloads as a person writes them: JSON text, checked here and sent as it is, so that no digit is lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NoReturn

from pulse.common import json_text
from pulse.errors import BadRequestError

_KINDS: Final[Mapping[type[object], str]] = {
    list: "an array",
    str: "a string",
    bool: "true or false",
    type(None): "null",
}


class _Number(str):
    """A number that is not converted: one of 5000 digits is JSON, and PostgreSQL can hold it."""

    __slots__ = ()


def check_args(text: str) -> None:
    """
    Make sure that *text* can be the args of a job.

    Raises:
        BadRequestError: It is not the text of a JSON object, or PostgreSQL cannot hold it; the message says which.
    """
    value = _value_of(text, "args are")
    if not isinstance(value, dict):
        kind = "a number" if isinstance(value, _Number) else _KINDS[type(value)]
        raise BadRequestError(f"args must be a JSON object of keyword arguments, not {kind}")


def check_payload(text: str) -> None:
    """
    Make sure that *text* can be the payload of a signal: any JSON value.

    Raises:
        BadRequestError: It is not JSON, or PostgreSQL cannot hold it; the message says which.
    """
    _value_of(text, "the payload is")


def decoded_args(data: bytes) -> str:
    """The text of *data*, which can be the args of a job; raises as ``check_args`` does."""
    text = _decoded(data, "args are")
    check_args(text)
    return text


def decoded_payload(data: bytes) -> str:
    """The text of *data*, which can be the payload of a signal; raises as ``check_payload`` does."""
    text = _decoded(data, "the payload is")
    check_payload(text)
    return text


def _decoded(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadRequestError(f"{what} not UTF-8 text") from None


def _value_of(text: str, what: str) -> object:
    try:
        text.encode()
        value: object = json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_refuse_constant)
    except UnicodeEncodeError:
        raise BadRequestError(f"{what} not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise BadRequestError(f"{what} not JSON: {_reason(error)}") from None
    except _NumberError as error:
        raise BadRequestError(f"{what} not JSON: {error} is no JSON number") from None
    except RecursionError:
        raise BadRequestError(f"{what} nested too deeply") from None
    if "\\u" in text:  # only an escape can hide what PostgreSQL refuses
        try:
            json_text.dumps(value)
        except json_text.NotStorableError as error:
            raise BadRequestError(f"{what} not storable: {error}") from None
    return value


class _NumberError(Exception):
    """NaN or Infinity, which Python takes for JSON."""


def _refuse_constant(word: str) -> NoReturn:
    raise _NumberError(word)


def _reason(error: json.JSONDecodeError) -> str:
    where = f"character {error.colno}" if error.lineno == 1 else f"line {error.lineno}, character {error.colno}"
    return f"{error.msg} at {where}"
