"""
What hides args, results and checkpoints from everybody without the key: an envelope around JSON text. Pure.

What is stored is a JSON object, ``{"$pulse": "id of the codec", "data": "its text"}``, so that the server, the database
and people see that something is there and who can read it, and nothing else.
"""

from __future__ import annotations

import re
from typing import Final, Protocol, cast, runtime_checkable

from pulse.common import json_text
from pulse.common.json_text import JsonValue
from pulse.errors import ConfigError

BY: Final = "$pulse"
DATA: Final = "data"
_ID: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_LONGEST_SHOWN: Final = 64


@runtime_checkable
class Codec(Protocol):
    """
    Turns JSON text into what is stored, and back; ``pulse.encryption.FernetCodec`` is one.

    It may be called from any thread, and by many at once. Of what it raises only the type is shown: its text might hold
    what nobody is to see.
    """

    @property
    def id(self) -> str:
        """What names it in the envelope: 1 to 64 of a-z, 0-9 and . _ -, a letter or digit first."""
        ...

    def encode(self, name: str, text: str) -> str:
        """What is stored instead of the JSON *text* of a job of the handler *name*: any text without NUL."""
        ...

    def decode(self, name: str, data: str) -> str:
        """The text that was encoded to *data*."""
        ...


class UnreadableError(ValueError):
    """Somebody else holds the key, or the codec failed."""


def checked(codec: Codec | None) -> Codec | None:
    """
    The codec.

    Raises:
        ConfigError: It is none, or its id cannot be one.
    """
    if codec is None:
        return None
    given = cast("object", codec)  # whatever its type says
    if not isinstance(given, Codec):
        raise ConfigError(f"codec is {type(given).__name__}; an object with id, encode and decode is allowed")
    name = cast("object", given.id)
    if not isinstance(name, str) or not _ID.fullmatch(name):
        raise ConfigError(
            f"the id of the codec is {name!r:.80}; 1 to 64 of a-z, 0-9 and . _ - are allowed, a letter or digit first"
        )
    return codec


def seal(codec: Codec, name: str, text: str) -> str:
    """
    The envelope with the JSON *text* of a job of *name* in it, as JSON text.

    Raises:
        UnreadableError: The codec failed.
    """
    try:
        return json_text.dumps({BY: codec.id, DATA: codec.encode(name, text)})
    except Exception as error:  # noqa: BLE001 - a codec may raise anything, and its words may tell the secret
        raise UnreadableError(f"codec {codec.id!r} failed: {type(error).__name__}") from None


def unseal(codec: Codec | None, name: str, value: JsonValue) -> JsonValue:
    """
    What is in the envelope *value*, or *value*, where it is none.

    Raises:
        UnreadableError: There is no codec, or another one, or it failed.
    """
    found = _envelope(value)
    if found is None:
        return value
    by, data = found[0][:_LONGEST_SHOWN], found[1]
    if codec is None:
        raise UnreadableError(f"encrypted by codec {by!r}, and there is none here: pulse.App(codec=...)")
    if by != codec.id:
        raise UnreadableError(f"encrypted by codec {by!r}, and the one that is here is {codec.id!r}")
    try:
        return json_text.loads(codec.decode(name, data))
    except Exception as error:  # noqa: BLE001 - as above
        raise UnreadableError(f"codec {by!r} cannot read it: {type(error).__name__}") from None


def opened(codec: Codec, name: str, value: JsonValue) -> JsonValue:
    """What is in the envelope *value*; *value* itself, where it is none or cannot be read here."""
    try:
        return unseal(codec, name, value)
    except UnreadableError:
        return value


def sealed_by(text: str | None) -> str | None:
    """The id of the codec that has encrypted this JSON text; None: nobody has."""
    if text is None or BY not in text:
        return None
    try:
        found = _envelope(json_text.loads(text))
    except (ValueError, RecursionError):
        return None
    return None if found is None else found[0][:_LONGEST_SHOWN]


def shown_instead(text: str | None) -> str | None:
    """What people are shown of a JSON text that is encrypted; None: it is not."""
    codec = sealed_by(text)
    return None if codec is None else f"encrypted ({codec})"


def _envelope(value: JsonValue) -> tuple[str, str] | None:
    if not isinstance(value, dict) or value.keys() != {BY, DATA}:
        return None
    by, data = value[BY], value[DATA]
    return (by, data) if isinstance(by, str) and isinstance(data, str) else None
