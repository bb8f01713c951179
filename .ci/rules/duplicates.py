"""Rule 5: no eight equal lines twice in the product's Python or SQL; what a program wrote is exempt."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from rules.exceptions import Exceptions
from rules.schema import UPGRADES
from rules.tree import Offence, Source, Tree

WINDOW: Final = 8
_Line = tuple[int, str]  # number, text


def check(tree: Tree, allowed: Exceptions) -> Iterator[Offence]:
    """Each run of lines that stands somewhere before, in the order of the paths."""
    first: dict[tuple[str, ...], tuple[str, int]] = {}
    for source in sorted(tree.sources.values(), key=lambda one: one.path):
        if _counts(source):
            yield from allowed.filter("duplicates", _repeated(source, first))


def _counts(source: Source) -> bool:
    if source.folder == UPGRADES:  # a step repeats what it replaces
        return False
    return source.is_product and source.suffix in {".py", ".sql"} and not source.is_generated


def _repeated(source: Source, first: dict[tuple[str, ...], tuple[str, int]]) -> Iterator[Offence]:
    """The runs of *source* that are in *first* already; what is new in it is added."""
    lines = _lines(source)
    covered_to = -1
    for start in range(len(lines) - WINDOW + 1):
        window = tuple(text for _, text in lines[start : start + WINDOW])
        path, line = first.setdefault(window, (source.path, lines[start][0]))
        if (path, line) == (source.path, lines[start][0]):
            continue
        if start > covered_to:
            yield Offence(source.path, lines[start][0], f"{WINDOW} lines or more that are in {path}:{line}, too")
        covered_to = start + WINDOW - 1


def _lines(source: Source) -> list[_Line]:
    """The lines that count: no blank ones, no imports and no ``__all__``, which two modules may well share."""
    skipped: set[int] = set()
    if source.suffix == ".py":
        for node in source.module.body:
            if isinstance(node, ast.Import | ast.ImportFrom) or _is_all(node) or _is_type_checking(node):
                skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    numbered = [(number, line.strip()) for number, line in enumerate(source.lines, 1) if number not in skipped]
    return [(number, text) for number, text in numbered if text]


def _is_all(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"


def _is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
