"""
Which slow test noticed a mutant that no fast one does: it is tried with that one at once.

Only a short cut: a mutant that its test no longer notices, or that is not in the table, is tried with all that may
judge it. ``--note`` brings the table up to date.
"""

from __future__ import annotations

import json
import tomllib
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

_TABLE: Final = Path(__file__).parent / "late.toml"
_HEAD: Final = "# Mutants that only a slow test notices, by that test: python -m tests.mutants --note writes this.\n"


def found_by() -> dict[str, str]:
    """Key of a mutant -> the test that notices it."""
    table = tomllib.loads(_TABLE.read_text("utf-8"))
    return {key: test for test, keys in table.items() for key in keys}


def note(found: Mapping[str, str], tried: Collection[str], alive: Collection[str]) -> None:
    """
    Write the table anew.

    Args:
        found: What slow tests noticed this time.
        tried: All mutants that were judged this time.
        alive: All that there are.
    """
    kept = {key: test for key, test in found_by().items() if key in alive and key not in tried}
    _TABLE.write_text(text_of(kept | dict(found)), "utf-8")


def text_of(found: Mapping[str, str]) -> str:
    keys: defaultdict[str, list[str]] = defaultdict(list)
    for key, test in sorted(found.items()):
        keys[test].append(key)
    return _HEAD + "".join(f"{_quoted(test)} = [{_lines(keys[test])}\n]\n" for test in sorted(keys))


def _lines(keys: list[str]) -> str:
    return "".join(f"\n    {_quoted(key)}," for key in keys)


def _quoted(text: str) -> str:
    """As TOML, whose strings of one line are those of JSON."""
    return json.dumps(text, ensure_ascii=False)
