"""The files of the project, each read and parsed once, and what a rule says about them."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Final

PACKAGES: Final = {  # import name: folder
    "pulse": "pulse",
    "pulse_actors": "actors/pulse_actors",
    "pulse_supervisor": "supervisor/pulse_supervisor",
}
GENERATED_WITHIN: Final = 5  # lines: a generated file says so at its head
GENERATED_MARK: Final = "Generated from"
_BINARY: Final = frozenset({".png", ".webp", ".ico", ".woff2", ".gz"})

Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Offence:
    """
    One thing that breaks a rule.

    Attributes:
        path: The file or folder.
        line: Where in it; 0: as a whole.
        message: What is wrong, and what is allowed.
        weight: How often it counts in the list of repairs.
        name: What it counts for in that list; "": its path.

    """

    path: str
    line: int
    message: str
    weight: int = 1
    name: str = ""

    @property
    def listed_as(self) -> str:
        """Its name in the list of repairs."""
        return self.name or self.path

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}" if self.line else f"{self.path}: {self.message}"


class Source:
    """One file of the tree: its path from the root, and its text."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text

    @cached_property
    def lines(self) -> list[str]:
        """Its lines, without their ends."""
        return self.text.splitlines()

    @cached_property
    def module(self) -> ast.Module:
        """Its syntax tree, of a Python file."""
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of its syntax tree: several rules walk over them."""
        return list(ast.walk(self.module))

    @cached_property
    def definitions(self) -> list[Definition]:
        """The module, its classes and functions, at whatever depth."""
        found: list[Definition] = [self.module]
        bodies: list[ast.AST] = [self.module]
        while bodies:
            for node in ast.iter_child_nodes(bodies.pop()):
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    found.append(node)
                if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):  # no expression defines anything
                    bodies.append(node)
        return found

    @property
    def classes(self) -> list[ast.ClassDef]:
        """Its classes, at whatever depth."""
        return [node for node in self.definitions if isinstance(node, ast.ClassDef)]

    @property
    def name(self) -> str:
        """The last part of its path."""
        return PurePosixPath(self.path).name

    @property
    def suffix(self) -> str:
        """How its name ends: ``.py``, ``.sql``."""
        return PurePosixPath(self.path).suffix

    @property
    def folder(self) -> str:
        """The folder that it is in; "." is the root."""
        return str(PurePosixPath(self.path).parent)

    @cached_property
    def is_generated(self) -> bool:
        """Whether its head says that a program wrote it."""
        head = "\n".join(self.lines[:GENERATED_WITHIN])
        return GENERATED_MARK in head

    @property
    def is_product(self) -> bool:
        """Whether it is installed with pulse."""
        return self.path == "schema.sql" or any(self.path.startswith(f"{folder}/") for folder in PACKAGES.values())


class Tree:
    """
    The files that are checked.

    Args:
        sources: Each file that is text.
        tags: The tags of the repository.

    """

    def __init__(self, sources: Iterable[Source], tags: Iterable[str] = ()) -> None:
        self.sources = {source.path: source for source in sources}
        self.tags = frozenset(tags)

    @classmethod
    def of(cls, texts: Mapping[str, str], tags: Iterable[str] = ()) -> Tree:
        """A tree of these files: path to text."""
        return cls((Source(path, text) for path, text in texts.items()), tags)

    @classmethod
    def at(cls, root: Path) -> Tree:
        """What git has or would add, in the checkout *root*."""
        names = _git(root, "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
        paths = [
            name for name in names if name and PurePosixPath(name).suffix not in _BINARY and (root / name).is_file()
        ]
        sources = (Source(path, (root / path).read_text("utf-8")) for path in paths)
        return cls(sources, _git(root, "tag", "--list").split())

    def python(self, *, product: bool = True) -> list[Source]:
        """The Python files: the product's, or all."""
        return [one for one in self.sources.values() if one.suffix == ".py" and (one.is_product or not product)]

    def packages(self) -> dict[str, list[str]]:
        """Folder of each package of the product: the names of its modules (``x.py``) and of the folders in it."""
        inside: dict[str, set[str]] = {}
        for source in self.sources.values():
            if source.is_product:
                path = PurePosixPath(source.path)
                for child, parent in zip([path, *path.parents], path.parents, strict=False):
                    if child.suffix in {".py", ""}:
                        inside.setdefault(str(parent), set()).add(child.name)
        with_code = {source.folder for source in self.python()}
        return {folder: sorted(inside[folder]) for folder in with_code}


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout  # noqa: S607 - by PATH
