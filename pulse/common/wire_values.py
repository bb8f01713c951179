"""Converts ids, times and args of callers for the wire."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from pulse.common import json_text
from pulse.errors import BadRequestError

IdLike = UUID | str | bytes
TimeLike = datetime | float


def as_id(value: IdLike) -> bytes:
    """
    An id for the wire: 16 bytes.

    Raises:
        BadRequestError: *value* is not a UUID.
    """
    try:
        match value:
            case UUID():
                return value.bytes
            case str():
                return UUID(value).bytes
            case _:
                return UUID(bytes=value).bytes
    except (TypeError, ValueError):
        raise BadRequestError(f"not a UUID: {value!r:.100}") from None


def args_text(args: object) -> str:
    """
    A job's args as JSON text.

    Raises:
        BadRequestError: They are not a JSON object that PostgreSQL can hold.
    """
    if args is None:
        return "{}"
    if not isinstance(args, dict | Mapping):  # dict: an answer at once, without a look at the registry of Mapping
        raise BadRequestError(f"args must be an object of keyword arguments, not {type(args).__name__}")
    given = cast("Mapping[str, object]", args)
    try:
        return json_text.dumps(given if isinstance(args, dict) else dict(given))
    except json_text.NotStorableError as error:
        raise BadRequestError(f"args are not storable: {_place_in(given)}{error}") from None
    except json_text.NotJsonError as error:
        raise BadRequestError(f"args are not JSON: {_place_in(given)}{error}") from None


def _place_in(args: Mapping[str, object]) -> str:
    """Which argument alone has no JSON text that can be stored; '' if each has one."""
    for name, value in args.items():
        try:
            json_text.dumps({"": value})
        except ValueError:
            return f"{name!r:.100}: "
    return ""


def why_unsendable(value: object, error: Exception, place: str = "") -> str:
    """Why encoding *value* ended with *error*, in words: what has no form on the wire, and where it is."""
    found = _unsendable(value, place) if isinstance(error, TypeError) else ""
    return found or f"a value cannot be sent: {error}"


def _unsendable(value: object, place: str) -> str:
    """What of *value* is of a type that has no form on the wire, in words; '' if that is not it."""
    inner: list[tuple[object, str]] = []
    known: Any = value
    if isinstance(value, dict):
        inner = [(one, f"{place}.{key}" if place else str(key)) for key, one in known.items()]
    elif isinstance(value, list | tuple):
        inner = [(one, f"{place}[{number}]") for number, one in enumerate(known)]
    elif value is not None and not isinstance(value, bool | int | float | str | bytes):
        return f"{place} is of type {type(value).__name__}, which cannot be sent"
    return next(filter(None, (_unsendable(one, where) for one, where in inner)), "")


def unix_time(value: object, what: str) -> float:
    """
    A time for the wire: Unix seconds.

    Raises:
        BadRequestError: It is a datetime without time zone, or not a time.
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise BadRequestError(f"{what} has no time zone: {value.isoformat()}; pass an aware datetime")
        return value.timestamp()
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise BadRequestError(f"{what} must be an aware datetime or Unix seconds, not {value!r:.100}")
