"""
What tests keep secret, and whether somebody told it: passwords, keys, and the search for them in all that was printed.

``confidential`` makes a text known as a secret. ``search`` is given whatever a program wrote; the plugin
``tests/plugins/leaks.py`` calls it for all output that pytest and programs of tests leave behind, and fails the test
in which one was found. Nothing here ever shows a secret: it is named by what it is for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, quote, urlsplit

from pulse.security.grants import parse_roles

__all__ = [
    "confidential", "longest", "masked", "new_key", "note_settings", "note_words", "search", "search_logs",
    "take_found",
]  # fmt: skip

LEAST: Final = 8  # a shorter one would be found by chance, as a part of a word
MASK: Final = "***"
_AROUND: Final = 100  # characters of its line that are shown on each side
_PASSWORD: Final = re.compile(r"(?<!\w)password\s*=\s*'?([^'\s]+)")

_known: dict[bytes, str] = {}
_found: list[str] = []


def confidential(text: str, what: str) -> str:
    """
    Make *text* known as a secret, for the rest of the run; returned as it is.

    Args:
        text: A password, a key: something that is found nowhere by chance.
        what: What it is for: its name when it is found.
    """
    if len(text) < LEAST:
        raise ValueError(f"the secret {what!r} has {len(text)} characters: {LEAST} or more are allowed")
    # As it stands, in JSON, in an address, in a repr.
    for spelled in (text, json.dumps(text)[1:-1], quote(text, safe=""), repr(text)[1:-1]):
        _known.setdefault(spelled.encode(), what)
    return text


def note_settings(env: Mapping[str, object]) -> None:
    """Register secrets in the environment of a program; those that are too short are only words."""
    names = [name for name in list(env) if str(name).startswith(("PULSE_", "PG"))]  # other threads change the rest
    given = {name: str(value) for name in names if (value := env.get(name))}
    for part in given.get("PULSE_AUTH_USERS", "").split(","):
        user, _, password = part.strip().partition(":")
        _note(_without_roles(password), f"password of {user} in PULSE_AUTH_USERS")
    for name in ("PULSE_PASSWORD", "PGPASSWORD"):
        _note(given.get(name, ""), name)
    for key in given.get("PULSE_CODEC_KEYS", "").replace(",", " ").split():
        _note(key, "key in PULSE_CODEC_KEYS")
    _note(_password_of(given.get("PULSE_DSN", "")), "password in PULSE_DSN")


def note_words(words: Iterable[object]) -> None:
    """Register passwords in DSNs and addresses of a command line."""
    for word in words:
        if isinstance(word, str) and ("://" in word or "password=" in word):
            _note(_password_of(word), "password on a command line")


def new_key() -> str:
    from pulse.encryption import FernetCodec

    return confidential(FernetCodec.new_key(), "Fernet key")


def search(data: bytes | str, where: str, known_bytes: int = 0) -> None:
    """
    Look for every secret in *data*.

    Args:
        data: What was written.
        where: To what, for the report.
        known_bytes: So many of its first bytes were searched before: they count with what follows only.
    """
    told = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
    for needle, what in _known.items():
        at = told.find(needle, max(0, known_bytes - len(needle) + 1))
        if at >= 0:
            _found.append(f"the secret {what!r} is told in {masked(where)}: {_excerpt(told, at)}")


def search_logs(place: Path) -> None:
    """Search the logs of PostgreSQLs below *place*; the plugin sees all that programs of tests write themselves."""
    for log in (*place.glob("postgres.log*"), *place.glob("state/postgres.log*")):
        search(log.read_bytes(), str(log))


def take_found() -> list[str]:
    found = list(dict.fromkeys(_found))
    _found.clear()
    return found


def masked(text: str) -> str:
    for needle in sorted(_known, key=len, reverse=True):
        text = text.replace(needle.decode(), MASK)
    return text


def longest() -> int:
    return max(map(len, _known), default=0)


def _note(text: str, what: str) -> None:
    if len(text) >= LEAST:
        confidential(text, what)


def _without_roles(password: str) -> str:
    secret, _, roles = password.rpartition(":")
    return password if not secret or parse_roles(roles) is None else secret


def _password_of(dsn: str) -> str:
    if "://" not in dsn:
        found = _PASSWORD.search(dsn)
        return found[1] if found else ""
    try:
        split = urlsplit(dsn)
    except ValueError:
        return ""
    return split.password or parse_qs(split.query).get("password", [""])[0]


def _excerpt(told: bytes, at: int) -> str:
    """The line around *at*, or a part of it, without any secret."""
    begin = told.rfind(b"\n", 0, at) + 1
    end = told.find(b"\n", at)
    shown = masked(told[begin : len(told) if end < 0 else end].decode("utf-8", "replace"))
    middle = shown.find(MASK)
    return repr(shown[max(0, middle - _AROUND) : middle + _AROUND])
