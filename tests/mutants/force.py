"""
Puts a mutant in force in this process, which has imported everything: its functions get other code.

A function stays the object that it was, so every module that imported or wrapped it has the mutant as well. A constant
of a module is made anew. Processes that are started from now on get the mutant by ``hook``.
"""

from __future__ import annotations

import ast
import gc
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

from pulse.store import statements
from tests.mutants.site import hook
from tests.mutants.source import SCHEMA, Mutant, path_of, statement_of, text_of, tree_of
from tests.mutants.sql_operators import FUNCTION

_SITE: Final = Path(__file__).parent / "site"
_Place = tuple[str, str, int]


@cache
def functions() -> dict[_Place, list[FunctionType]]:
    """All functions of this process that Python files define; to be called before the first fork."""
    found: defaultdict[_Place, list[FunctionType]] = defaultdict(list)
    gc.unfreeze()  # an actor that started in this process has frozen what was there, and that is not told
    for one in gc.get_objects():
        if type(one) is FunctionType:
            found[_place(one.__code__)].append(one)
    return found


def force(mutant: Mutant, directory: Path) -> None:
    """
    Put *mutant* in force, for good; *directory* has the changed source for processes that are started.

    Raises:
        LookupError: What it changes is neither in a function nor a constant of its module.
    """
    if mutant.where == SCHEMA:
        (new,) = (
            one
            for one in compile(f"def schema_sql(): return {mutant.mutated()!r}", "", "exec").co_consts
            if isinstance(one, CodeType)
        )
        statements.schema_sql.__code__ = new
    elif not mutant.is_code:
        statement = statement_of(mutant.where)
        before = statement.sql
        object.__setattr__(statement, "sql", mutant.mutated())
        _replace(before, statement.sql)
    else:
        source = directory / "mutant.py"
        source.write_text(mutant.mutated(), "utf-8")
        os.environ |= {hook.MODULE: mutant.where, hook.SOURCE: str(source), "PYTHONPATH": str(_SITE)}
        if mutant.where in sys.modules:  # else it is for processes that are started
            _swap(mutant)


def changed_function(mutant: Mutant) -> str:
    """What replaces the function that is all that it changes; empty: it changes something else."""
    before = {match[0] for match in FUNCTION.finditer(text_of(SCHEMA))}
    changed = [match[0] for match in FUNCTION.finditer(mutant.mutated()) if match[0] not in before]
    is_all = bool(mutant.scope) and len(changed) == 1
    return changed[0].replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION") if is_all else ""


def _replace(before: str, after: str) -> None:
    """In all modules: some keep the text of a statement as a constant, or what belongs to it in a dictionary."""
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is before:
                setattr(module, name, after)
            elif type(value) is dict and before in value:
                value[after] = value[before]


def _swap(mutant: Mutant) -> None:
    path = str(path_of(mutant.where))
    old = compile(tree_of(mutant.where), path, "exec", dont_inherit=True)
    tree = ast.parse(mutant.mutated())
    changed = False
    for before, after in _pairs(old, compile(tree, path, "exec", dont_inherit=True)):
        for function in functions().get(_place(before), ()):
            function.__code__ = after
            changed = True
    names: set[str] = set()
    for one, other in zip(tree_of(mutant.where).body, tree.body, strict=False):
        if isinstance(other, ast.Assign | ast.AnnAssign) and (
            ast.dump(one) != ast.dump(other)
            or names & {node.id for node in ast.walk(other) if isinstance(node, ast.Name)}
        ):
            names.add(_assign(mutant.where, other))
            changed = True
    if not changed:
        raise LookupError(mutant.key)


def _pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    waiting: defaultdict[str, list[CodeType]] = defaultdict(list)
    for one in new.co_consts:
        if isinstance(one, CodeType):
            waiting[one.co_qualname].append(one)
    for one in old.co_consts:
        if isinstance(one, CodeType) and waiting[one.co_qualname]:
            other = waiting[one.co_qualname].pop(0)
            if one != other:
                if len(one.co_freevars) == len(other.co_freevars):
                    yield one, other
                yield from _pairs(one, other)


def _place(code: CodeType) -> _Place:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _assign(module: str, node: ast.Assign | ast.AnnAssign) -> str:
    home = sys.modules[module].__dict__
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    assert isinstance(target, ast.Name)
    before = home[target.id]
    exec(compile(ast.Module([node], []), module, "exec"), home)  # noqa: S102 - a line of the product, changed
    for other in list(sys.modules.values()):
        if getattr(other, target.id, None) is before:
            setattr(other, target.id, home[target.id])
    return target.id
