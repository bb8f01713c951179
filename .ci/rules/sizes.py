"""Rule 1: a folder has at most 12 entries; a file at most 450 lines, and a module of the product at least 40."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from rules.exceptions import Exceptions
from rules.tree import Offence, Tree

MAX_ENTRIES: Final = 12
MAX_LINES: Final = 450
MIN_LINES: Final = 40
MARKERS: Final = frozenset({"__init__.py", "py.typed"})  # they say what the folder is
NOT_COUNTED: Final = frozenset({"__init__.py", "__main__.py"})  # as short as they can be


def check(tree: Tree, allowed: Exceptions) -> Iterator[Offence]:
    """Folders that are too full, files that are too long, modules that are too short."""
    yield from allowed.filter("folders", _folders(tree))
    yield from allowed.filter("long_files", _long_files(tree))
    yield from allowed.filter("short_files", _short_files(tree))


def _folders(tree: Tree) -> Iterator[Offence]:
    entries: defaultdict[str, set[str]] = defaultdict(set)
    for name in tree.sources:
        path = PurePosixPath(name)
        for child, parent in zip([path, *path.parents], path.parents, strict=False):
            if child.name not in MARKERS:
                entries[str(parent)].add(child.name)
    for folder, names in sorted(entries.items()):
        excess = len(names) - MAX_ENTRIES
        if excess > 0:
            yield Offence(folder, 0, f"{len(names)} entries; at most {MAX_ENTRIES} are allowed", excess)


def _long_files(tree: Tree) -> Iterator[Offence]:
    for source in tree.sources.values():
        if source.suffix in {".py", ".sql"} and len(source.lines) > MAX_LINES:
            yield Offence(
                source.path, 0, f"{len(source.lines)} lines; at most {MAX_LINES} are allowed: cut it along an idea"
            )


def _short_files(tree: Tree) -> Iterator[Offence]:
    for source in tree.python():
        if source.name not in NOT_COUNTED and len(source.lines) < MIN_LINES:
            yield Offence(
                source.path,
                0,
                f"{len(source.lines)} lines; a module has at least {MIN_LINES}: join it to the one that uses it,"
                " or give a reason in lists/exceptions.toml",
            )
