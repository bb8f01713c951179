"""Which tests may judge a mutant of a module: those in files whose imports lead to it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from typing import Final

from pulse.store.statements import STATEMENTS
from tests.mutants.source import ROOT, SCHEMA, modules, path_of, text_of
from tests.mutants.sql_operators import FUNCTION

FOLDERS: Final = ("tests/unit", "tests/store")
_FAR: Final = 4  # steps, from one module to what it imports


@functools.cache
def files() -> tuple[str, ...]:
    """All files of tests that run in one process, from the root."""
    return tuple(sorted(str(path.relative_to(ROOT)) for one in FOLDERS for path in (ROOT / one).glob("**/test_*.py")))


def files_for(wanted: Iterable[str]) -> list[str]:
    """Those that import one of the modules *wanted*, or have the shortest way to it; nearest first."""
    ways = {file: _ways(file) for file in files()}
    near: dict[str, int] = {}
    for module in wanted:
        steps = min((way[module] for way in ways.values() if module in way), default=_FAR)
        for file, way in ways.items():
            if module in way and way[module] <= max(1, steps):
                near[file] = min(way[module], near.get(file, _FAR))
    return sorted(near, key=lambda file: (near[file], file))


def names(file: str, function: str) -> bool:
    """Whether a test file names a function of the schema, one that calls it, or a statement of the store that does."""
    text = _text(file)
    return any(
        one in text or any(f"pulse.{one}(" in known.sql and known.name in text for known in STATEMENTS.values())
        for one in _callers(function)
    )


@functools.cache
def _callers(function: str) -> frozenset[str]:
    """A function of the schema, and those that call it, directly or not."""
    bodies = {match[1]: match[0] for match in FUNCTION.finditer(text_of(SCHEMA))}
    found, new = set[str](), {function}
    while new:
        found |= new
        new = {name for name, body in bodies.items() if any(f"pulse.{one}(" in body for one in new)} - found
    return frozenset(found)


@functools.cache
def _text(file: str) -> str:
    return (ROOT / file).read_text("utf-8")


@functools.cache
def _ways(file: str) -> dict[str, int]:
    """Module -> how many modules of the product lead from *file* to it; those of the tests count for nothing."""
    found: dict[str, int] = {}
    ring, seen = {file}, set[str]()
    for steps in range(_FAR):
        free, ring = list(ring), set()
        while free:
            one = free.pop()
            if one in seen:
                continue
            seen.add(one)
            found[one] = steps
            for name in _imports(one):
                if name.startswith("tests."):
                    free.append(name)
                else:
                    ring.add(name)
    return found


@functools.cache
def _imports(one: str) -> frozenset[str]:
    if one.endswith(".py"):
        path = ROOT / one
    elif one.startswith("tests."):
        path = ROOT.joinpath(*one.split(".")).with_suffix(".py")
        if not path.is_file():
            return frozenset()
    else:
        path = path_of(one)
    known = set(modules())
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Import(names=names):
                found |= {name.name for name in names}
            case ast.ImportFrom(module=str() as module, names=names, level=0):
                found |= {module, *(f"{module}.{name.name}" for name in names)}
            case _:
                pass
    return frozenset(name for name in found if name in known or name.startswith("tests."))
