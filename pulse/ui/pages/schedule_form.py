"""The form of a schedule: from its fields to the words of the wire, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from starlette.requests import Request

from pulse.common import json_text
from pulse.common.duration import seconds_of
from pulse.common.text import iso
from pulse.errors import BadRequestError
from pulse.protocol.schedules import ScheduleInfo
from pulse.ui.site import FORM

KINDS: Final = ("cron", "every", "at")
_KEY_FIELDS: Final = ("unique", "unique_until", "on_conflict")
FIELDS: Final = (
    "name", "kind", "cron", "timezone", "every", "at", "args", "topic", "priority", "max_attempts", "timeout_s",
    "starts_at", "ends_at", "jitter_s", "catch_up", "overlap", "group_key", *_KEY_FIELDS,
)  # fmt: skip
_UNSETTABLE: Final = frozenset(
    {"topic", "timezone", "max_attempts", "timeout_s", "starts_at", "ends_at", "jitter_s", "group_key", *_KEY_FIELDS}
)


def values_of(request: Request) -> dict[str, str]:
    """What was typed, field by field."""
    form: Mapping[str, list[str]] = request.scope[FORM]
    return {name: form.get(name, [""])[0].strip() for name in FIELDS}


def values_from(found: ScheduleInfo) -> dict[str, str]:
    """What the form shows of a schedule that is there."""
    texts = {
        "name": found.name,
        "kind": found.kind,
        "cron": found.cron,
        "timezone": found.timezone if found.kind == "cron" else None,
        "every": _number(found.every_s),
        "at": _moment(found.run_at),
        "args": found.args,
        "topic": found.topic,
        "priority": str(found.priority) if found.priority else None,
        "max_attempts": _number(found.max_attempts),
        "timeout_s": _number(found.timeout_s),
        "starts_at": _moment(found.starts_at),
        "ends_at": _moment(found.ends_at),
        "jitter_s": _number(found.jitter_s or None),
        "catch_up": found.catch_up,
        "overlap": found.overlap,
        "group_key": found.group_key,
        "unique": found.unique_key,
        "unique_until": found.unique_until if found.unique_until == "start" else None,
        "on_conflict": found.on_conflict if found.on_conflict == "replace" else None,
    }
    return {name: text or "" for name, text in texts.items()}


def body_of(given: Mapping[str, str], before: Mapping[str, str] | None = None) -> dict[str, object]:
    """
    The request that the form asks for.

    Args:
        given: What was typed.
        before: What was there: only what differs is asked for, and what was emptied is unset.

    Raises:
        BadRequestError: A field is not understood.
    """
    kind = given.get("kind", "")
    if kind not in KINDS:
        raise BadRequestError(f"kind is {kind!r:.20}: {', '.join(KINDS)} are allowed")
    if not given.get("name"):
        raise BadRequestError("name is empty: the name of a handler is allowed")
    if not given.get(kind):
        raise BadRequestError(f"{kind} is empty: when does it fire?")
    others = {*KINDS, *({"timezone"} if kind != "cron" else ())} - {kind}
    body: dict[str, object] = {}
    for name in FIELDS:
        text = given.get(name, "")
        if (
            name == "kind"
            or name in others
            or (before is not None and text == before.get(name, "") and not _moves(name, kind, before))
        ):
            continue
        if text:
            body[name] = _converted(name, text) if name in _READ else text
        elif before is not None and name in _UNSETTABLE:
            body[name] = None
    if before is not None and not given.get("args") and before.get("args", "{}") != "{}":
        body["args"] = "{}"
    if before is not None and not given.get("priority") and before.get("priority"):
        body["priority"] = 0
    return body


def _moves(name: str, kind: str, before: Mapping[str, str]) -> bool:
    """Whether *name* must be said although its text is the same: the kind was changed."""
    return name in {kind, "timezone"} and before.get("kind") != kind


def _converted(name: str, text: str) -> object:
    try:
        return _READ[name](text)
    except (ValueError, OverflowError):
        raise BadRequestError(f"{name} is {text!r:.60}: {_ALLOWED[name]} is allowed") from None


def _object(text: str) -> str:
    try:
        value = json_text.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"args are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequestError("args must be a JSON object of keyword arguments")
    return text


def _unix(text: str) -> float:
    """A time as people type it or a browser writes it; without a zone it is UTC."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.15g}"


def _moment(value: float | None) -> str | None:
    return None if value is None else iso(value)


_READ: Final[Mapping[str, Callable[[str], object]]] = {
    "every": seconds_of,
    "at": _unix,
    "args": _object,
    "priority": int,
    "max_attempts": int,
    "timeout_s": seconds_of,
    "starts_at": _unix,
    "ends_at": _unix,
    "jitter_s": lambda text: seconds_of(text, zero=True),
}
_ALLOWED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("every", "timeout_s", "jitter_s"), "a length of time, as 90 (seconds), 5m or 2h30m,"),
    **dict.fromkeys(("priority", "max_attempts"), "a whole number"),
    **dict.fromkeys(("at", "starts_at", "ends_at"), "a time as 2030-01-31T12:00:00Z"),
    "args": "a JSON object",
}
