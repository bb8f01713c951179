"""
Which test noticed each mutant the last time: it is tried with that one at once.

Only a short cut: a mutant that its test no longer notices, or that is in neither file, is tried with all that may judge
it. ``killers.txt`` is in the repository, and ``--note`` brings it up to date; ``build/killers.json`` has what the runs
here found since. The text of a mutant is its key, so changed code has no entry, and none of another mutant.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from tests.mutants.source import ROOT

_LAST: Final = ROOT / "build" / "killers.json"
_TABLE: Final = Path(__file__).parent / "killers.txt"
_HEAD: Final = (
    "# Tests, and the mutants that each noticed (hashes of their keys): make mutants ARGS=--note writes it.\n"
)
_INDENT: Final = "    "
_A_LINE: Final = 12  # hashes
_HASH_BYTES: Final = 4  # two of 4,000 are the same once in 500 tables, and one of them is tried with a test in vain


def known(keys: Iterable[str]) -> dict[str, str]:
    """Key of a mutant -> the test that noticed it last: here, or when the table was written."""
    table = _table()
    return {key: table[_hash(key)] for key in keys if _hash(key) in table} | last()


def last() -> dict[str, str]:
    """The same of runs here; none before the first run, or where the file is cut off."""
    try:
        found: dict[str, str] = json.loads(_LAST.read_text("utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return found


def keep(found: Mapping[str, str], tried: Collection[str]) -> None:
    """
    Write the file of runs here anew.

    Args:
        found: Key of a mutant -> the test that noticed it this time.
        tried: All mutants that were judged this time.
    """
    kept = {key: test for key, test in last().items() if key not in tried}
    _LAST.parent.mkdir(exist_ok=True)
    new = Path(f"{_LAST}.new")
    new.write_text(json.dumps(kept | dict(found), indent=0, ensure_ascii=False, sort_keys=True), "utf-8")
    new.replace(_LAST)


def note(found: Mapping[str, str], tried: Collection[str], alive: Iterable[str]) -> None:
    """Write the table anew, likewise; what is not among *alive*, the keys of all mutants, is left out."""
    left = {_hash(key) for key in alive} - {_hash(key) for key in tried}
    kept = {key: test for key, test in _table().items() if key in left}
    tests: defaultdict[str, list[str]] = defaultdict(list)
    for key, test in sorted((kept | {_hash(key): test for key, test in found.items()}).items()):
        tests[test].append(key)
    _TABLE.write_text(_HEAD + "".join(f"{test}\n{_lines(tests[test])}" for test in sorted(tests)), "utf-8")


def _table() -> dict[str, str]:
    found: dict[str, str] = {}
    test = ""
    for line in _TABLE.read_text("utf-8").splitlines() if _TABLE.is_file() else ():
        if line.startswith(_INDENT):
            found.update(dict.fromkeys(line.split(), test))
        else:
            test = line
    return found


def _lines(keys: list[str]) -> str:
    return "".join(f"{_INDENT}{' '.join(keys[at : at + _A_LINE])}\n" for at in range(0, len(keys), _A_LINE))


def _hash(key: str) -> str:
    return hashlib.blake2b(key.encode(), digest_size=_HASH_BYTES).hexdigest()
