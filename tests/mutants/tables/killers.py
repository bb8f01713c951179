"""
Which test noticed each mutant in the last run here: it is tried with that one at once.

Only a short cut, as ``late.py`` is, and not part of the repository: a mutant that its test no longer notices, or that
is not in the file, is tried with all that may judge it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from tests.mutants.source import ROOT

_FILE: Final = ROOT / "build" / "killers.json"


def last() -> dict[str, str]:
    """Key of a mutant -> the test that noticed it; none before the first run, or where a file is cut off."""
    try:
        found: dict[str, str] = json.loads(_FILE.read_text("utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return found


def keep(found: Mapping[str, str], tried: Collection[str]) -> None:
    """
    Write the file anew.

    Args:
        found: Key of a mutant -> the test that noticed it this time.
        tried: All mutants that were judged this time.
    """
    kept = {key: test for key, test in last().items() if key not in tried}
    _FILE.parent.mkdir(exist_ok=True)
    new = Path(f"{_FILE}.new")
    new.write_text(json.dumps(kept | dict(found), indent=0, ensure_ascii=False, sort_keys=True), "utf-8")
    new.replace(_FILE)
