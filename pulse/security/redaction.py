"""
Hides single values in args, results and progress that are shown to people: the setting ``redact``.

An entry is the end of a path of keys: ``password`` hides what any key of that name holds, however deep, ``card.number``
what ``number`` holds in ``card``, ``*`` stands for any one key, and ``charge:card.number`` is about jobs of the handler
``charge`` alone. Lists count for nothing in a path, nor do capitals. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, cast

import msgspec

from pulse.common import json_text
from pulse.common.json_text import JsonValue
from pulse.errors import BadRequestError
from pulse.security.codec import sealed_by
from pulse.security.conceal import CONTENTS, PARTS

MASK: Final = "***"
_ENTRY: Final = r"(?:[^\s,:][^,:]*:)?[^\s,:.]+(?:\.[^\s,:.]+)*"
PATTERN: Final = rf"\A\s*{_ENTRY}\s*(?:,\s*{_ENTRY}\s*)*\Z"
ALLOWED: Final = "keys of args as in password, card.number, charge:card.*, separated by commas, are allowed"
_ANY: Final = "*"


class _Rule(msgspec.Struct, frozen=True):
    """The end of a path; ``handler``: of its jobs only."""

    handler: str | None
    keys: tuple[str, ...]

    def hides(self, path: tuple[str, ...]) -> bool:
        """Whether *path* ends so."""
        there = path[-len(self.keys) :]
        return len(there) == len(self.keys) and all(
            key in {_ANY, one} for key, one in zip(self.keys, there, strict=True)
        )


class Redaction:
    """
    The values to hide.

    Args:
        setting: The entries, as PATTERN allows them; None: nothing is hidden.
    """

    def __init__(self, setting: str | None) -> None:
        self._rules: list[_Rule] = []
        for entry in re.findall(_ENTRY, setting or ""):
            handler, _, path = entry.rpartition(":")
            self._rules.append(_Rule(handler.strip() or None, tuple(path.casefold().split("."))))

    def answer(self, answer: Mapping[str, object]) -> Mapping[str, object]:
        """*answer* to a request, with hidden values replaced by the mask."""
        return self._row(answer, None) if self._rules else answer

    def check(self, args: object) -> None:
        """
        Check *args* before they are stored.

        Raises:
            BadRequestError: They have the mask where a value is hidden: it was read before, and would replace the
            value.
        """
        if not self._rules or not isinstance(args, str) or MASK not in args:
            return
        with suppress(ValueError, RecursionError):  # reported elsewhere
            if MASK in self._values(json_text.loads(args, long_integers=False), ()):
                raise BadRequestError(f"args have {MASK!r} where a value is hidden: the value itself is allowed")

    def _row(self, row: Mapping[str, object], name: str | None) -> dict[str, object]:
        name = cast("str", row["name"]) if isinstance(row.get("name"), str) else name
        return {key: self._shown(key, value, name) for key, value in row.items()}

    def _shown(self, key: str, value: object, name: str | None) -> object:
        if key in CONTENTS and isinstance(value, str):
            return self._text(name, value)
        if key in PARTS and isinstance(value, list | tuple):
            return [self._shown(key, one, name) for one in cast("Sequence[object]", value)]
        if key in PARTS and isinstance(value, Mapping):
            return self._row(cast("Mapping[str, object]", value), name)
        return value

    def _text(self, name: str | None, text: str) -> str:
        """The JSON *text*, redacted; what Python cannot read or write is hidden as a whole, encrypted text stays."""
        if sealed_by(text) is not None:
            return text
        try:
            value = json_text.loads(text, long_integers=False)
            shown = self._hidden(name, value, ())
            return text if shown == value else json_text.dumps(shown)
        except (ValueError, RecursionError):
            return json_text.dumps(MASK)

    def _hidden(self, name: str | None, value: JsonValue, path: tuple[str, ...]) -> JsonValue:
        if isinstance(value, list):
            return [self._hidden(name, one, path) for one in value]
        if not isinstance(value, dict):
            return value
        return {
            key: MASK if self._hides(name, here := (*path, key.casefold())) else self._hidden(name, one, here)
            for key, one in value.items()
        }

    def _values(self, value: JsonValue, path: tuple[str, ...]) -> list[JsonValue]:
        """*value* with the mask."""
        if isinstance(value, list):
            return [found for one in value for found in self._values(one, path)]
        if not isinstance(value, dict):
            return []
        found: list[JsonValue] = []
        for key, one in value.items():
            here = (*path, key.casefold())
            found += [one] if self._hides(None, here) else self._values(one, here)
        return found

    def _hides(self, name: str | None, path: tuple[str, ...]) -> bool:
        """If the handler is unknown, the rules of all handlers apply."""
        rules = (rule for rule in self._rules if name is None or rule.handler in {None, name})
        return any(rule.hides(path) for rule in rules)
