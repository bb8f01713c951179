"""
Encrypts args, results and checkpoints: puts encrypted JSON text into an envelope. Pure.

The envelope is a JSON object, ``{"$pulse": "id of the codec", "data": "its text"}``: without the key it shows only that
there is a value, and which codec reads it.
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
    Encrypts JSON text for storage, and decrypts it; ``pulse.encryption.FernetCodec`` is one.

    It may be called from several threads at once. Of its exceptions only the type is shown: the text might contain
    secrets.
    """

    @property
    def id(self) -> str:
        """Its name in the envelope: 1 to 64 of a-z, 0-9 and . _ -, a letter or digit first."""
        ...

    def encode(self, name: str, text: str) -> str:
        """The text to store instead of the JSON *text* of a job of the handler *name*: any text without NUL."""
        ...

    def decode(self, name: str, data: str) -> str:
        """The text that was encoded to *data*."""
        ...


class UnreadableError(ValueError):
    """The key is missing here, or the codec failed."""


def checked(codec: Codec | None) -> Codec | None:
    """
    The codec.

    Raises:
        ConfigError: It is not a codec, or its id is invalid.
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
    except Exception as error:  # noqa: BLE001 - a codec may raise anything, and its message may contain the secret
        raise UnreadableError(f"codec {codec.id!r} failed: {type(error).__name__}") from None


def unseal(codec: Codec | None, name: str, value: JsonValue) -> JsonValue:
    """
    The contents of the envelope *value*; *value* itself if it is not an envelope.

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
    """The contents of the envelope *value*; *value* itself if it is none or cannot be read here."""
    try:
        return unseal(codec, name, value)
    except UnreadableError:
        return value


def sealed_by(text: str | None) -> str | None:
    """The id of the codec that has encrypted this JSON text; None: it is not encrypted."""
    if text is None or BY not in text:
        return None
    try:
        found = _envelope(json_text.loads(text, long_integers=False))
    except (ValueError, RecursionError):
        return None
    return None if found is None else found[0][:_LONGEST_SHOWN]


def shown_instead(text: str | None) -> str | None:
    """A short text for people instead of encrypted JSON text; None: it is not encrypted."""
    codec = sealed_by(text)
    return None if codec is None else f"encrypted ({codec})"


def _envelope(value: JsonValue) -> tuple[str, str] | None:
    if not isinstance(value, dict) or value.keys() != {BY, DATA}:
        return None
    by, data = value[BY], value[DATA]
    return (by, data) if isinstance(by, str) and isinstance(data, str) else None
