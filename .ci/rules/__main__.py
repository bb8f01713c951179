"""``python -m rules``: runs all rules over the checkout; ``--rewrite`` shrinks the list of repairs."""

from __future__ import annotations

import argparse
import gc
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from rules import coupling, duplicates, names, packages, prose, schema, sizes, to_repair
from rules.exceptions import LIST, Exceptions
from rules.tree import Offence, Tree

ROOT: Final = Path(__file__).resolve().parents[2]
Rule: TypeAlias = Callable[[Tree, Exceptions], Iterator[Offence]]
RULES: Final[Mapping[str, Rule]] = {
    "sizes": sizes.check,
    "names": names.check,
    "coupling": coupling.check,
    "duplicates": duplicates.check,
    "packages": packages.check,
    "schema": schema.check,
    "prose": prose.check,
}


def main(words: Sequence[str], root: Path = ROOT) -> int:
    """Print what is wrong in the checkout *root*; 0: nothing is."""
    parser = argparse.ArgumentParser(prog="rules", description=__doc__)
    parser.add_argument("--rewrite", action="store_true", help="rewrite the list of repairs")
    parser.add_argument("--all", action="store_true", help="show also what is on that list")
    options = parser.parse_args(words)
    allowed = Exceptions(_read(root / LIST))
    listed: to_repair.Numbers = _read(root / to_repair.LIST)
    tree = Tree.at(root)
    offences = {name: list(check(tree, allowed)) for name, check in RULES.items()}
    if options.rewrite:
        return _rewrite(root / to_repair.LIST, listed, to_repair.count(offences))
    wrong = [
        f"{offence} [{name}]"
        for name, found in offences.items()
        for offence in (found if options.all else to_repair.compare(name, found, listed.get(name, {})))
    ]
    wrong += [f"{offence} [exceptions]" for offence in allowed.unneeded()]
    wrong += [f"{to_repair.LIST}: there is no rule [{name}]" for name in sorted(listed.keys() - RULES.keys())]
    if wrong:
        print(*wrong, sep="\n")
    return 1 if wrong else 0


def _read(path: Path) -> dict[str, dict[str, Any]]:
    return tomllib.loads(path.read_text("utf-8"))


def _rewrite(path: Path, before: to_repair.Numbers, after: to_repair.Numbers) -> int:
    if grown := to_repair.grown(before, after):
        print("the list can only shrink:", *grown, sep="\n  ")
        return 1
    path.write_text(to_repair.written(after), "utf-8")
    return 0


if __name__ == "__main__":
    gc.disable()  # a million nodes of syntax trees that all stay: looking for garbage among them doubles the time
    sys.exit(main(sys.argv[1:]))
