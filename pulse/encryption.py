"""A ready codec: Fernet (AES-128-CBC with HMAC-SHA256), with keys that can be rotated."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Final, Self

from pulse.common.extras import missing_extra
from pulse.errors import ConfigError

try:
    from cryptography.fernet import Fernet, MultiFernet
except ModuleNotFoundError as error:
    raise (missing_extra("pulse.encryption", error) or error) from None

__all__ = ["KEYS", "FernetCodec"]

KEYS: Final = "PULSE_CODEC_KEYS"  # not a setting of the server, which never has the keys
_BETWEEN: Final = re.compile(r"[\s,]+")


class FernetCodec:
    """
    Encrypts args, results and checkpoints; needs the extra ``encryption``.

    To change the key, put a new one first everywhere: values under the old ones can still be read. Remove an old key
    when its jobs are gone.

    Args:
        keys: From ``FernetCodec.new_key()``; the first encrypts, all decrypt.
        place: Where they come from, for errors.

    Raises:
        ConfigError: There is no key, or one is invalid; the message has its number, never the key.
    """

    def __init__(self, *keys: str | bytes, place: str = "the keys") -> None:
        self._fernet = _fernet(keys, place)

    @classmethod
    def from_env(cls, variable: str = KEYS, env: Mapping[str, str] | None = None) -> Self:
        """With the keys of an environment variable, with commas or spaces between them."""
        return cls._of((os.environ if env is None else env).get(variable, ""), variable)

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Self:
        """With the keys of a file, one a line."""
        try:
            text = Path(path).read_text("ascii")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{os.fspath(path)}: no keys can be read: {type(error).__name__}") from None
        return cls._of(text, os.fspath(path))

    @staticmethod
    def new_key() -> str:
        """A key: 32 random bytes, as text."""
        return Fernet.generate_key().decode()

    @property
    def id(self) -> str:
        """As ``Codec`` has it."""
        return "fernet"

    def encode(self, name: str, text: str) -> str:
        """As ``Codec`` has it; the name does not matter."""
        del name
        return self._fernet.encrypt(text.encode()).decode()

    def decode(self, name: str, data: str) -> str:
        """As ``Codec`` has it."""
        del name
        return self._fernet.decrypt(data.encode()).decode()

    def __repr__(self) -> str:
        """Without a key."""
        return "FernetCodec(...)"

    @classmethod
    def _of(cls, text: str, place: str) -> Self:
        return cls(*(one for one in _BETWEEN.split(text) if one), place=place)


def _fernet(keys: Iterable[str | bytes], place: str) -> MultiFernet:
    made: list[Fernet] = []
    for number, key in enumerate(keys, 1):
        try:
            made.append(Fernet(key))
        except (ValueError, TypeError):
            raise ConfigError(f"{place}: number {number} is no key; FernetCodec.new_key() makes one") from None
    if not made:
        raise ConfigError(f"{place}: there is no key; FernetCodec.new_key() makes one")
    return MultiFernet(made)
