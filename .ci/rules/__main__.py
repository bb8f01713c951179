"""``python -m rules``: runs all rules over the checkout; ``--rewrite`` shrinks the list of what is to be repaired."""

from __future__ import annotations

import argparse
import gc
import sys
import tomllib
from pathlib import Path
from typing import Final

from rules import coupling, duplicates, names, packages, prose, schema, sizes, to_repair
from rules.exceptions import LIST, Exceptions
from rules.tree import Offence, Tree

ROOT: Final = Path(__file__).resolve().parents[2]
RULES: Final = {
    "sizes": sizes.check,
    "names": names.check,
    "coupling": coupling.check,
    "duplicates": duplicates.check,
    "packages": packages.check,
    "schema": schema.check,
    "prose": prose.check,
}


def main(words: list[str]) -> int:
    """Print what is wrong; 0: nothing is."""
    parser = argparse.ArgumentParser(prog="rules", description=__doc__)
    parser.add_argument("--rewrite", action="store_true", help="write the list of what is to be repaired anew")
    parser.add_argument("--all", action="store_true", help="show also what is on that list")
    parser.add_argument("names", nargs="*", metavar="RULE", help=", ".join(RULES))
    options = parser.parse_args(words)
    gc.disable()  # a million nodes of syntax trees that all stay: looking for garbage among them doubles the time
    tree = Tree.at(ROOT)
    allowed = Exceptions(_read(LIST))
    offences = {name: list(check(tree, allowed)) for name, check in RULES.items()}
    listed = _read(to_repair.LIST)
    if options.rewrite:
        return _rewrite(listed, to_repair.count(offences))
    wrong: list[tuple[str, Offence]] = []
    for name, found in offences.items():
        if not options.names or name in options.names:
            shown = found if options.all else to_repair.compare(name, found, listed.get(name, {}))
            wrong += [(name, offence) for offence in shown]
    if not options.names:
        wrong += [("exceptions", offence) for offence in allowed.unneeded()]
    for name, offence in wrong:
        print(f"{offence} [{name}]")
    return 1 if wrong else 0


def _read(path: str) -> dict[str, dict[str, object]]:
    return tomllib.loads((ROOT / path).read_text("utf-8"))


def _rewrite(before: to_repair.Numbers, after: to_repair.Numbers) -> int:
    if grown := to_repair.grown(before, after):
        print("the list can only shrink:", *grown, sep="\n  ")
        return 1
    (ROOT / to_repair.LIST).write_text(to_repair.written(after), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
