"""The texts that mutants change: modules of the product, statements of the store, and schema.sql."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from pulse.store.admin import doctor
from pulse.store.statements import STATEMENTS, Statement, schema_sql

ROOT: Final = Path(__file__).parents[2]
SCHEMA: Final = "schema.sql"
_FOLDERS: Final = {"pulse": ROOT, "pulse_supervisor": ROOT / "supervisor", "pulse_actors": ROOT / "actors"}


class Span(NamedTuple):
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Mutant:
    """
    One change of one text.

    Attributes:
        where: Name of a module, or of a statement, or SCHEMA.
        scope: The function or class that is changed; of SQL "".
        lines: First and last line of the statement that is changed.
        number: Of those with the same scope, text and replacement, from 1.
        and_also: A second change, where two guards stand for each other.
        is_guard: Whether a guard is taken away, so that it is tried without ``--fine``.
        killer: The tests that judge it, as the beginning of ``folder/file.py::test``; "": all that reach its line.
    """

    where: str
    scope: str
    span: Span
    instead: str
    lines: tuple[int, int] = (0, 0)
    number: int = 1
    killer: str = ""
    and_also: tuple[Span, str] | None = None
    is_guard: bool = True

    @property
    def is_code(self) -> bool:
        return self.where != SCHEMA and self.where.partition(".")[0] in _FOLDERS

    @property
    def key(self) -> str:
        """Its name in lists: it does not change when lines move."""
        start, end = self.span
        text, instead = (" ".join(part.split()) for part in (text_of(self.where)[start:end], self.instead))
        again = f" ({self.number})" if self.number > 1 else ""
        return f"{self.where}: {self.scope}: {text} -> {instead or 'nothing'}{again}"

    @property
    def is_change(self) -> bool:
        """Whether its text differs: some replace a text by the same."""
        text = text_of(self.where)
        return any(text[start:end] != instead for (start, end), instead in self._changes())

    def _changes(self) -> list[tuple[Span, str]]:
        return [(self.span, self.instead), *([self.and_also] if self.and_also else [])]

    def mutated(self) -> str:
        text = text_of(self.where)
        for (start, end), instead in sorted(self._changes(), reverse=True):
            text = text[:start] + instead + text[end:]
        return text


def numbered(mutants: Iterable[Mutant]) -> list[Mutant]:
    """Each change once, and a number for those that look alike."""
    seen: dict[str, int] = {}
    found: dict[tuple[object, ...], Mutant] = {}
    for given in mutants:
        one = given if given.number == 1 else replace(given, number=1)
        if (one.span, one.instead, one.and_also) not in found and one.is_change:
            key = one.key
            seen[key] = seen.get(key, 0) + 1
            found[one.span, one.instead, one.and_also] = one if seen[key] == 1 else replace(one, number=seen[key])
    return list(found.values())


@functools.cache
def statement_of(name: str) -> Statement:
    """A statement of the store, or of the doctor."""
    return STATEMENTS[name] if name in STATEMENTS else doctor.QUESTIONS[name.removeprefix("doctor.")]


@functools.cache
def text_of(where: str) -> str:
    if where == SCHEMA:
        return schema_sql()
    if where.partition(".")[0] in _FOLDERS:
        return path_of(where).read_text("utf-8")
    return statement_of(where).sql


def path_of(module: str) -> Path:
    path = _FOLDERS[module.partition(".")[0]].joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def statements() -> dict[str, Path]:
    """All statements of the store and of the doctor, with the files that they are in; and the schema."""
    found = {SCHEMA: ROOT / SCHEMA}
    for folder, prefix in (("sql", ""), ("admin", "doctor.")):
        for path in sorted((ROOT / "pulse" / "store" / folder).glob("*.sql")):
            names = re.findall(r"^-- name: (\w+)", path.read_text("utf-8"), re.MULTILINE)
            found |= {prefix + name: path for name in names if name in STATEMENTS or name in doctor.QUESTIONS}
    return found


@functools.cache
def modules() -> tuple[str, ...]:
    return tuple(
        sorted(
            ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
            for package, folder in _FOLDERS.items()
            for path in (folder / package).rglob("*.py")
        )
    )


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(text_of(module))


def is_in_function(module: str, line: int) -> bool:
    """Whether it runs when a function is called, not when the module is imported."""
    functions = [one for one in ast.walk(tree_of(module)) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    return any(one.lineno < line <= (one.end_lineno or line) for one in functions)


@functools.cache
def scopes_of(module: str) -> dict[str, Span]:
    """Where each function, class, field and constant is, by its dotted name; "" is the whole."""
    found = {"": Span(0, len(text_of(module)))}

    def look(body: Sequence[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.ClassDef():
                    found[prefix + node.name] = span_of(module, node)
                    look(node.body, f"{prefix}{node.name}.")
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    found[prefix + node.name] = span_of(module, node)
                    inner = [one for one in ast.walk(node) if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
                    look([one for one in inner if one is not node], f"{prefix}{node.name}.")
                case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)):
                    found.setdefault(prefix + name, span_of(module, node))
                case _:
                    pass

    look(tree_of(module).body, "")
    return found


@functools.cache
def _line_starts(module: str) -> tuple[tuple[int, str], ...]:
    found, at = [], 0
    for line in text_of(module).splitlines(keepends=True):
        found.append((at, line))
        at += len(line)
    return tuple(found)


def span_of(module: str, node: ast.AST) -> Span:
    assert isinstance(node, (ast.stmt, ast.expr, ast.keyword, ast.pattern))
    starts = _line_starts(module)

    def offset(line: int, column_bytes: int) -> int:
        start, text = starts[line - 1]
        return start + (column_bytes if text.isascii() else len(text.encode()[:column_bytes].decode()))

    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return Span(offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset))
