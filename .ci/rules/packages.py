"""
Rule 6: each package's docstring lists its modules, a line each, in the order of the alphabet.

The form is ``- name: what it does``. A line that is too long goes on in the next one, indented by two spaces.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from rules.exceptions import Exceptions
from rules.tree import Offence, Tree

MIN_WORDS: Final = 2  # "retry: retries" says nothing; two words can
_ENTRY: Final = re.compile(r"^- (?P<name>\w+): (?P<what>.+)$", re.MULTILINE)
_UNLISTED: Final = frozenset({"__init__", "__main__"})


def check(tree: Tree, _allowed: Exceptions) -> Iterator[Offence]:
    """Packages whose list and folder differ."""
    for folder, entries in sorted(tree.packages().items()):
        path = f"{folder}/__init__.py"
        source = tree.sources.get(path)
        if source is None:
            yield Offence(folder, 0, "a package needs an __init__.py with a docstring that lists its modules")
            continue
        listed = [(found["name"], found["what"]) for found in _ENTRY.finditer(ast.get_docstring(source.module) or "")]
        names = [name for name, _ in listed]
        modules = {entry.removesuffix(".py") for entry in entries} - _UNLISTED
        for name in sorted(modules - set(names)):
            yield Offence(path, 1, f"the docstring does not list {name}: add '- {name}: what it does'")
        for name in sorted(set(names) - modules):
            yield Offence(path, 1, f"the docstring lists {name}, which is not in the folder")
        if names != sorted(set(names)):
            yield Offence(path, 1, "the docstring's list is not in the order of the alphabet, each module once")
        for name, what in listed:
            if len(what.split()) < MIN_WORDS:
                yield Offence(path, 1, f"the docstring says too little of {name}: {what!r}")
