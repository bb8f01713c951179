"""A mutant of code: one guard taken out of one module, and the test that must fail then."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

ROOT: Final = Path(__file__).parents[2]
TESTS: Final = ROOT / "tests"
_FOLDERS: Final = {"pulse": ROOT, "pulse_supervisor": ROOT / "supervisor", "pulse_actors": ROOT / "actors"}

Span: TypeAlias = tuple[int, int]


class Edit(NamedTuple):
    """
    One change of a source.

    Attributes:
        scope: The function, class or constant in which the text is there exactly once, as ``Class.method``; "" for
            the whole module.
        text: What is replaced.
        instead: What stands there instead.
    """

    scope: str
    text: str
    instead: str


Change: TypeAlias = tuple[str, str, str] | list[tuple[str, str, str]]


@dataclass(frozen=True, slots=True)
class CodeMutant:
    """
    A change of one module.

    Attributes:
        module: Its name.
        edits: What is changed.
        killer: The test that must fail, as ``folder/file::function`` or ``folder/file::Class::function``.
    """

    module: str
    edits: tuple[Edit, ...]
    killer: str

    def __str__(self) -> str:
        """For people."""
        edit = self.edits[0]
        text, instead = (" ".join(part.split()) for part in edit[1:])
        more = f" (and {len(self.edits) - 1} more)" if self.edits[1:] else ""
        return f"{self.module}:{edit.scope}: {text!r} -> {instead!r}{more}"

    def mutated(self) -> str:
        """
        The module's source with the change.

        Raises:
            ValueError: A text to be replaced is not there, or not there alone.
        """
        text = source_of(self.module)
        for start, end, instead in sorted(self._places(), reverse=True):
            text = text[:start] + instead + text[end:]
        return text

    def touched(self) -> list[Span]:
        """Where the source is really changed, without what text and replacement have in common at their ends."""
        source = source_of(self.module)
        return [_narrowed(source[start:end], instead, start) for start, end, instead in self._places()]

    def _places(self) -> Iterator[tuple[int, int, str]]:
        source = source_of(self.module)
        for edit in self.edits:
            start, end = scopes_of(self.module).get(edit.scope, (0, 0))
            found = source[start:end].count(edit.text)
            if found != 1:
                message = f"{self}: the text is there {found} times in {edit.scope or 'the module'}"
                raise ValueError(message)
            place = source.index(edit.text, start)
            yield place, place + len(edit.text), edit.instead


@dataclass(frozen=True, slots=True)
class Guarded:
    """
    A module and the mutants of its guards.

    Attributes:
        module: Its name.
        killers: Test -> the changes that it must notice.
        without: Decisions of the module without a mutant, as (scope, condition) -> why none can be seen.
        is_part: Only some of its decisions are guards; else all have a mutant, or are among those without.
    """

    module: str
    killers: Mapping[str, Sequence[Change]]
    without: Mapping[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    is_part: bool = False

    @property
    def mutants(self) -> list[CodeMutant]:
        """One for each change."""
        return [
            CodeMutant(self.module, tuple(Edit(*one) for one in (change if isinstance(change, list) else [change])), at)
            for at, changes in self.killers.items()
            for change in changes
        ]


@functools.cache
def source_of(module: str) -> str:
    """The text of a module of the product."""
    path = _FOLDERS[module.partition(".")[0]].joinpath(*module.split("."))
    return path.with_suffix(".py").read_text("utf-8")


@functools.cache
def tree_of(module: str) -> ast.Module:
    """The same, parsed."""
    return ast.parse(source_of(module))


@functools.cache
def scopes_of(module: str) -> dict[str, Span]:
    """Where each function, class, field and constant is, by its dotted name; "" is the whole."""
    source = source_of(module)
    found = {"": (0, len(source))}

    def look(body: Sequence[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.ClassDef():
                    found[prefix + node.name] = span_of(source, node)
                    look(node.body, f"{prefix}{node.name}.")
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    found[prefix + node.name] = span_of(source, node)
                    inner = [one for one in ast.walk(node) if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
                    look([one for one in inner if one is not node], f"{prefix}{node.name}.")
                case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)):
                    found.setdefault(prefix + name, span_of(source, node))
                case _:
                    pass

    look(tree_of(module).body, "")
    return found


def span_of(source: str, node: ast.AST) -> Span:
    """Where *node* stands in *source*, in characters."""
    assert isinstance(node, (ast.stmt, ast.expr, ast.pattern))
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def offset(line: int, column_bytes: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column_bytes].decode())

    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)


def killer_exists(killer: str) -> bool:
    """Whether there is a test of that name."""
    file, *names = killer.split("::")
    found: Sequence[ast.stmt] = _tests_of(file)
    for name in names:
        bodies = [
            node.body
            for node in found
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name == name
        ]
        if len(bodies) != 1:
            return False
        found = bodies[0]
    return bool(names)


@functools.cache
def _tests_of(file: str) -> Sequence[ast.stmt]:
    path = TESTS / file
    return ast.parse(path.read_text("utf-8")).body if path.is_file() else ()


def _narrowed(text: str, instead: str, start: int) -> Span:
    shortest = min(len(text), len(instead))
    before = next((at for at in range(shortest) if text[at] != instead[at]), shortest)
    room = shortest - before
    after = next((at for at in range(room) if text[-1 - at] != instead[-1 - at]), room)
    return start + before, start + len(text) - after
