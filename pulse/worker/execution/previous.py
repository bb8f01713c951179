"""How the attempt before this one ended, as the server tells it. Pure."""

from __future__ import annotations

from pulse.app.context import Previous
from pulse.app.workflows.steps import split
from pulse.common import json_text
from pulse.common.json_text import JsonValue
from pulse.security.codec import Codec, UnreadableError, unseal

__all__ = ["previous_from"]


def previous_from(found: JsonValue, codec: Codec | None, name: str) -> Previous | None:
    """
    The end of the attempt before.

    Args:
        found: What the server tells about it.
        codec: Decrypts its checkpoint.
        name: Of the handler.

    Raises:
        UnreadableError: Its checkpoint is encrypted with a key that is missing here.
    """
    if not isinstance(found, dict):
        return None
    steps, own = (_opened(part, codec, name) for part in split(_json(found.get("checkpoint"))))
    return Previous(
        outcome=_text(found.get("outcome")),
        reason=_text(found.get("reason")),
        worker=_text(found.get("worker")),
        progress=_json(found.get("progress")),
        checkpoint=own,
        steps=steps if isinstance(steps, dict) else {},
    )


def _opened(part: JsonValue, codec: Codec | None, name: str) -> JsonValue:
    try:
        return unseal(codec, name, part)
    except UnreadableError as error:
        raise UnreadableError(f"the checkpoint is {error}") from None


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) else None


def _json(value: JsonValue) -> JsonValue:
    try:
        return json_text.loads(value) if isinstance(value, str) else None
    except ValueError:
        return None  # additions of a newer server must not stop an older worker
