"""
The mechanical mutants of a module of the product, made from its syntax tree.

A condition, or a part of it, holds always or never. A part of ``and`` and ``or`` is left out. A bound is passed by one
(``<`` and ``<=``). Of a sum, difference, product or quotient, and of ``min`` and ``max``, one operand is left out. A
call that stands alone, a ``break`` or ``continue``, an assignment to an attribute, a lock that is taken, and an
argument given by its name, are left out. Assertions, exceptions and what is only logged stay.

A condition is a guard when what it holds for ends with ``return``, ``raise``, ``break`` or ``continue``.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tests.mutants.source import Mutant, Span, numbered, span_of, text_of, tree_of

_BOUNDS: Final[dict[type[ast.cmpop], ast.cmpop]] = {
    ast.Lt: ast.LtE(), ast.LtE: ast.Lt(), ast.Gt: ast.GtE(), ast.GtE: ast.Gt(),
}  # fmt: skip
_ARITHMETIC: Final = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitOr, ast.BitAnd)
_LEAVES: Final = (ast.Return, ast.Raise, ast.Break, ast.Continue)
_KEPT: Final = (ast.Assert, ast.Import, ast.ImportFrom, ast.Raise, ast.Global, ast.Nonlocal)
_QUIET: Final = {"debug", "info", "warning", "error", "print", "super"}  # calls that only tell somebody


def mutants_of(module: str, *, fine: bool = True) -> list[Mutant]:
    """Without *fine*: the guards, and what has the key of one but for its number."""
    return numbered(_Maker(module, fine=fine).of_body(tree_of(module), ""))


class _Maker:
    def __init__(self, module: str, *, fine: bool) -> None:
        self._module = module
        self._is_fine = fine
        self._source = text_of(module)
        self._scope = ""
        self._lines = (0, 0)

    def of_body(self, node: ast.AST, scope: str) -> Iterator[Mutant]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from self._of_block(child.body, scope + child.name)
            elif isinstance(child, ast.ClassDef):
                yield from self.of_body(child, f"{scope}{child.name}.")

    def _of_statement(self, node: ast.stmt, scope: str) -> Iterator[Mutant]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from self._of_block(node.body, f"{scope}.{node.name}")
        elif isinstance(node, ast.ClassDef):
            yield from self.of_body(node, f"{scope}.{node.name}.")
        elif not isinstance(node, _KEPT):
            self._scope = scope
            self._at(node)
            yield from self._of_whole(node)
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    yield from self._of_expression(child)
                elif isinstance(child, ast.withitem):
                    yield from self._of_expression(child.context_expr)
            yield from self._of_inner(node, scope)

    def _of_inner(self, node: ast.stmt, scope: str) -> Iterator[Mutant]:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.stmt():
                    yield from self._of_statement(child, scope)
                case ast.ExceptHandler(body=body):
                    yield from self._of_block(body, scope)
                case ast.match_case(guard=guard, body=body):
                    if guard is not None:
                        self._scope, self._lines = scope, (guard.lineno, guard.end_lineno or guard.lineno)
                        yield self._guard(guard)
                        yield from self._condition(guard)
                        yield from self._of_expression(guard)
                    yield from self._of_block(body, scope)
                case _:
                    pass

    def _of_block(self, body: list[ast.stmt], scope: str) -> Iterator[Mutant]:
        for one in body:
            yield from self._of_statement(one, scope)

    def _at(self, node: ast.stmt) -> None:
        """Which lines must be reached: of what has a body, its head alone."""
        body = getattr(node, "body", None) or getattr(node, "cases", None)
        last = node.end_lineno or node.lineno
        if body:
            first = body[0].pattern if isinstance(body[0], ast.match_case) else body[0]
            last = max(node.lineno, first.lineno - 1)
        self._lines = node.lineno, last

    def _of_whole(self, node: ast.stmt) -> Iterator[Mutant]:
        match node:
            case ast.If(test=test) | ast.While(test=test):
                if isinstance(node, ast.If) and isinstance(node.body[-1], _LEAVES):
                    yield self._guard(test)
                yield from self._condition(test)
            case _ if not self._is_fine:
                pass
            case ast.Expr(value=ast.Call() | ast.Await() as value) if not _is_quiet(value):
                yield self._instead(node, "pass")
            case ast.Break() | ast.Continue() | ast.AugAssign():
                yield self._instead(node, "pass")
            case (
                ast.Assign(targets=[ast.Attribute() | ast.Subscript()])
                | ast.AnnAssign(target=ast.Attribute(), value=ast.expr())
            ):
                if not self._scope.endswith("__init__"):
                    yield self._instead(node, "pass")
            case (
                ast.With(items=[ast.withitem(optional_vars=None)])
                | ast.AsyncWith(items=[ast.withitem(optional_vars=None)])
            ):
                (item,) = node.items
                start, end = span_of(self._module, node).start, span_of(self._module, item.context_expr).end
                yield self._mutant(Span(start, end), "if True")
            case _:
                pass

    def _of_expression(self, top: ast.expr) -> Iterator[Mutant]:
        for node in ast.walk(top):
            match node:
                case ast.IfExp(test=test):
                    yield from self._condition(test)
                case ast.comprehension(ifs=tests):
                    for test in tests:
                        yield from self._condition(test)
                case ast.BoolOp():
                    yield from self._of_choice(node)
                case ast.Compare():
                    yield from self._of_bounds(node)
                case _ if not self._is_fine:
                    pass
                case ast.BinOp(op=op) if isinstance(op, _ARITHMETIC) and not _is_text(node):
                    yield self._instead(node, f"({ast.unparse(node.left)})")
                    if not isinstance(op, ast.Sub | ast.Mod):
                        yield self._instead(node, f"({ast.unparse(node.right)})")
                case ast.Call(func=ast.Name("min" | "max"), args=[_, _, *_]):
                    yield from self._without_one(node, "args")
                case ast.Call() if not _is_quiet(node):
                    yield from self._without_keywords(node)
                case _:
                    pass

    def _of_choice(self, node: ast.BoolOp) -> Iterator[Mutant]:
        if self._is_fine:
            yield from self._without_one(node, "values")
        *values, last = node.values
        if isinstance(node.op, ast.And) or isinstance(last, ast.BoolOp | ast.Compare | ast.UnaryOp):
            values.append(last)  # else it is a default
        for value in values:
            yield from self._condition(value)

    def _of_bounds(self, node: ast.Compare) -> Iterator[Mutant]:
        yield from self._constants(node)
        for place, op in enumerate(node.ops):
            if self._is_fine and type(op) in _BOUNDS:
                other = copy.deepcopy(node)
                other.ops[place] = _BOUNDS[type(op)]
                yield self._instead(node, ast.unparse(other))

    def _without_keywords(self, node: ast.Call) -> Iterator[Mutant]:
        for place, keyword in enumerate(node.keywords):
            if keyword.arg is not None:
                other = copy.deepcopy(node)
                del other.keywords[place]
                yield self._instead(node, ast.unparse(other))

    def _guard(self, test: ast.expr) -> Mutant:
        return replace(self._instead(test, "False"), is_guard=True)

    def _condition(self, test: ast.expr) -> Iterator[Mutant]:
        yield from self._constants(test)
        match test:
            case ast.BoolOp(values=values):
                for value in values:
                    yield from self._condition(value)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield from self._condition(operand)
            case _:
                pass

    def _constants(self, node: ast.expr) -> Iterator[Mutant]:
        if not isinstance(node, ast.Constant):
            yield self._instead(node, "True")
            yield self._instead(node, "False")

    def _without_one(self, node: ast.BoolOp | ast.Call, field: str) -> Iterator[Mutant]:
        for place in range(len(getattr(node, field))):
            other = copy.deepcopy(node)
            rest: list[ast.expr] = getattr(other, field)
            del rest[place]
            yield self._instead(node, f"({ast.unparse(rest[0] if len(rest) == 1 else other)})")

    def _instead(self, node: ast.stmt | ast.expr, instead: str) -> Mutant:
        return self._mutant(span_of(self._module, node), instead)

    def _mutant(self, span: Span, instead: str) -> Mutant:
        return Mutant(self._module, self._scope, span, instead, self._lines, is_guard=False)


def _is_quiet(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Await) else node
    match call:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(name)):
            return name in _QUIET
        case _:
            return False


def _is_text(node: ast.AST) -> bool:
    return any(
        isinstance(one, ast.JoinedStr | ast.Constant) and not isinstance(getattr(one, "value", ""), int | float)
        for one in ast.walk(node)
    )
