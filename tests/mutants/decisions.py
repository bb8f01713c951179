"""The decisions of a module: every condition on which its code goes one way or the other, by itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tests.mutants.code import Guarded, Span, scopes_of, source_of, span_of, tree_of


@dataclass(frozen=True, slots=True)
class Decision:
    """
    One condition; of ``a and not b`` there are two, a and b.

    Attributes:
        scope: The innermost function or class around it.
        text: As it is written, on one line.
        span: Where it stands.
    """

    scope: str
    text: str
    span: Span

    @property
    def key(self) -> tuple[str, str]:
        """What it is listed by where it has no mutant."""
        return self.scope, self.text


def decisions_of(module: str) -> list[Decision]:
    """All of *module*, in order."""
    source = source_of(module)
    scopes = scopes_of(module)
    found: dict[Span, Decision] = {}
    for node in ast.walk(tree_of(module)):
        for one in _conditions(node):
            start, end = span = span_of(source, one)
            around = [name for name, (first, last) in scopes.items() if first <= start and end <= last]
            scope = min(around, key=lambda name: scopes[name][1] - scopes[name][0])
            found[span] = Decision(scope, " ".join(source[start:end].split()), span)
    return [found[span] for span in sorted(found)]


def without_mutant(guarded: Guarded) -> list[Decision]:
    """Those that no mutant changes anything of."""
    touched = [span for mutant in guarded.mutants for span in mutant.touched()]
    return [
        decision
        for decision in decisions_of(guarded.module)
        if not any(start < decision.span[1] and decision.span[0] < max(end, start + 1) for start, end in touched)
    ]


def _conditions(node: ast.AST) -> Iterator[ast.expr | ast.pattern]:
    match node:
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) | ast.Assert(test=test):
            yield from _leaves(test)
        case ast.comprehension(ifs=tests):
            for test in tests:
                yield from _leaves(test)
        case ast.match_case(pattern=pattern, guard=guard):
            if not (isinstance(pattern, ast.MatchAs) and pattern.pattern is None):
                yield pattern
            if guard is not None:
                yield from _leaves(guard)
        case ast.BoolOp(op=op, values=[*values, last]):
            for value in values:
                yield from _leaves(value)
            if isinstance(op, ast.And) or isinstance(last, (ast.BoolOp, ast.Compare, ast.UnaryOp)):
                yield from _leaves(last)  # else it is what stands in for what is not there
        case ast.Compare():
            yield node
        case _:
            pass


def _leaves(test: ast.expr) -> Iterator[ast.expr]:
    match test:
        case ast.BoolOp(values=values):
            for value in values:
                yield from _leaves(value)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _leaves(operand)
        case ast.Constant():
            pass  # while True
        case _:
            yield test
