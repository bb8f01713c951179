"""
Rule 4: a module changes only what it defines, reaches only its neighbours, and keeps records and calls narrow.

The boundary is the module: it may assign to attributes that one of its own classes declares.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from rules.exceptions import Exceptions
from rules.tree import Offence, Source, Tree

MAX_FIELDS: Final = 12
MAX_ARGUMENTS: Final = 8
MAX_POSITIONAL: Final = 3
MAX_CHAIN: Final = 2  # self.a.b
_OWN: Final = frozenset({"self", "cls", "mcs"})
_RECORDS: Final = frozenset({"Struct", "NamedTuple", "TypedDict"})


def check(tree: Tree, allowed: Exceptions) -> Iterator[Offence]:
    """What is assigned from outside, chains that are too long, records and calls that are too wide."""
    classes = {node.name for source in tree.python() for node in source.classes}
    for source in tree.python():
        if not source.is_generated:
            yield from _assignments(source, allowed)
            yield from _chains(source)
            yield from _wide_classes(source, allowed)
            yield from _wide_calls(source, classes)


def _assignments(source: Source, allowed: Exceptions) -> Iterator[Offence]:
    own = {name for node in source.classes for name in _declared(node)}
    for node in source.nodes:
        for target in _targets(node):
            if _is_own(target.value) or target.attr in own:
                continue
            if allowed.has("foreign_attributes", f"{source.path}: {target.attr}"):
                continue
            yield Offence(
                source.path,
                node.lineno if isinstance(node, ast.stmt | ast.expr) else 0,
                f"{ast.unparse(target)} is assigned from outside: let its owner do that, or pass it in when it is made",
            )


def _targets(node: ast.AST) -> Iterator[ast.Attribute]:
    """The attributes that a statement assigns to or deletes."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            found: list[ast.expr] = targets
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            found = [target]
        case ast.Call(func=ast.Name(id="setattr"), args=[owner, ast.Constant(value=str(name)), *_]):
            yield ast.copy_location(ast.Attribute(owner, name), node)
            return
        case _:
            return
    for one in found:
        parts = one.elts if isinstance(one, ast.Tuple | ast.List) else [one]
        yield from (part for part in parts if isinstance(part, ast.Attribute))


def _is_own(owner: ast.expr) -> bool:
    return isinstance(owner, ast.Name) and owner.id in _OWN


def _declared(node: ast.ClassDef) -> Iterator[str]:
    """The attributes that a class declares: annotated in its body, in its slots, or assigned to ``self``."""
    for part in ast.walk(node):
        match part:
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=value):
                yield from (
                    one.value for one in ast.walk(value) if isinstance(one, ast.Constant) and isinstance(one.value, str)
                )
            case ast.Assign() | ast.AnnAssign():
                yield from (target.attr for target in _targets(part) if _is_own(target.value))
            case _:
                pass


def _chains(source: Source) -> Iterator[Offence]:
    inner = {node.value for node in source.nodes if isinstance(node, ast.Attribute)}
    for node in source.nodes:
        if not isinstance(node, ast.Attribute) or node in inner:
            continue
        length, base = 0, ast.expr()
        link: ast.expr = node
        while isinstance(link, ast.Attribute):
            length, link = length + 1, link.value
        base = link
        if length > MAX_CHAIN and isinstance(base, ast.Name) and base.id == "self":
            yield Offence(
                source.path,
                node.lineno,
                f"{ast.unparse(node)}: reaches through a neighbour; ask the neighbour, or be given it",
            )


def _wide_classes(source: Source, allowed: Exceptions) -> Iterator[Offence]:
    for node in source.classes:
        fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and not _is_class_variable(one)]
        if _is_record(node) and len(fields) > MAX_FIELDS and not allowed.has("wide_records", node.name):
            yield Offence(
                source.path, node.lineno, f"{node.name} has {len(fields)} fields; at most {MAX_FIELDS} are allowed"
            )
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                yield from _wide_constructor(source, node.name, method)


def _wide_constructor(source: Source, name: str, method: ast.FunctionDef) -> Iterator[Offence]:
    positional = [*method.args.posonlyargs, *method.args.args][1:]
    count = len(positional) + len(method.args.kwonlyargs)
    if count > MAX_ARGUMENTS:
        yield Offence(
            source.path, method.lineno, f"{name}() takes {count} arguments; at most {MAX_ARGUMENTS} are allowed"
        )


def _is_class_variable(field: ast.AnnAssign) -> bool:
    return ast.unparse(field.annotation).split("[")[0].rpartition(".")[2] in {"ClassVar", "Final"}


def _is_record(node: ast.ClassDef) -> bool:
    bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    decorators = {ast.unparse(one).split("(")[0].rpartition(".")[2] for one in node.decorator_list}
    return bool(bases & _RECORDS or "dataclass" in decorators)


def _wide_calls(source: Source, classes: set[str]) -> Iterator[Offence]:
    for node in source.nodes:
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args):
                if name in classes and len(args) > MAX_POSITIONAL:
                    yield Offence(
                        source.path,
                        node.lineno,
                        f"{name}(…) with {len(args)} arguments by position; beyond {MAX_POSITIONAL} they need keywords",
                    )
            case _:
                pass
