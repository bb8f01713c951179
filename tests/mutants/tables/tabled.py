"""The mutants that no rule makes: of ``code.toml`` and ``sql.toml``, and rows of the supervisor's restart machine."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from tests.mutants.source import SCHEMA, Mutant, Span, scopes_of, span_of, text_of, tree_of

_HERE: Final = Path(__file__).parent
MACHINE: Final = "pulse_supervisor.children.lifecycle"


@cache
def mutants() -> dict[str, list[Mutant]]:
    found = {
        where: [mutant(where, *row) for row in rows]
        for table in ("code.toml", "sql.toml")
        for where, rows in tomllib.loads((_HERE / table).read_text("utf-8")).items()
    }
    found.setdefault(MACHINE, []).extend(_of_machine())
    return found


def mutant(where: str, scope: str, text: str, instead: str, killer: str = "", *more: str) -> Mutant:
    """A row of a table; ValueError if its text is not there once."""
    span = _place(where, scope, text)
    whole = text_of(where)
    first, last = (whole.count("\n", 0, place) + 1 for place in (span.start, span.start + len(text.rstrip())))
    and_also = (_place(where, more[0], more[1]), more[2]) if more else None
    return Mutant(where, scope, span, instead, (first, last), killer=killer, and_also=and_also)


def _place(where: str, scope: str, text: str) -> Span:
    """Where *text* is; ValueError if it is not there once."""
    whole, (start, end) = text_of(where), _scope(where, scope)
    if whole.count(text, start, end) != 1:
        message = f"{where}: {scope}: {text!r} is there {whole.count(text, start, end)} times"
        raise ValueError(message)
    at = whole.index(text, start)
    return Span(at, at + len(text))


def _scope(where: str, scope: str) -> Span:
    whole = text_of(where)
    if where == SCHEMA and scope:
        start = whole.index(f"CREATE FUNCTION pulse.{scope}(")
        return Span(start, whole.index("\n$$;", start))
    return Span(0, len(whole)) if not scope else scopes_of(where)[scope]


def _of_machine() -> Iterator[Mutant]:
    """Of the table of the restart machine: each row left out, or without its deed, and each one that is not there."""
    table, alive, late = (_constant(name) for name in ("TABLE", "_ALIVE", "_LATE"))
    assert isinstance(alive, ast.Tuple)
    yield from _of_rows("_ALIVE", alive.elts)
    (said,) = (node.iter for node in ast.walk(late) if isinstance(node, ast.comprehension))
    assert isinstance(said, ast.Tuple)
    yield from (_row("_LATE", name, "*()") for name in said.elts)
    several = {"_ALIVE": _events(alive.elts), "_LATE": [ast.unparse(name) for name in said.elts]}
    events = [
        node.name
        for node in tree_of("pulse_supervisor.children.events").body
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Event" for base in node.bases)
    ]
    assert isinstance(table, ast.Dict)
    for value in table.values:
        assert isinstance(value, ast.Call)
        (rows,) = value.args
        assert isinstance(rows, ast.List)
        yield from _of_rows("TABLE", rows.elts)
        present = _events(rows.elts)
        for row in rows.elts:
            if isinstance(row, ast.Starred):
                present += several[ast.unparse(row.value)]
        start, _ = span_of(MACHINE, rows.elts[0])
        for event in events:
            if event not in present:
                yield Mutant(MACHINE, "TABLE", Span(start, start), f"({event}, _stay), ")


def _of_rows(scope: str, rows: list[ast.expr]) -> Iterator[Mutant]:
    for row in rows:
        yield _row(scope, row, "*()")
        if isinstance(row, ast.Call):
            event, deed = map(ast.unparse, row.args)
            if deed != "_stay":
                yield _row(scope, row, f"({event}, _stay)")


def _row(scope: str, row: ast.expr, instead: str) -> Mutant:
    return Mutant(MACHINE, scope, span_of(MACHINE, row), instead)


def _events(rows: list[ast.expr]) -> list[str]:
    return [ast.unparse(row.args[0]) for row in rows if isinstance(row, ast.Call)]


def _constant(name: str) -> ast.expr:
    for one in tree_of(MACHINE).body:
        if isinstance(one, ast.AnnAssign) and ast.unparse(one.target) == name and one.value is not None:
            return one.value
    raise LookupError(name)
