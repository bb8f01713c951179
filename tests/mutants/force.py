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
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

from pulse.store import statements
from pulse.store.statements import Statement
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


def force(mutant: Mutant, directory: Path) -> Callable[[], None]:
    """
    Put *mutant* in force; *directory* has the changed source for processes that are started.

    Returns:
        What takes it back.

    Raises:
        LookupError: What it changes is neither in a function nor a constant of its module.
    """
    if mutant.where == SCHEMA:
        (new,) = (
            one
            for one in compile(f"def schema_sql(): return {mutant.mutated()!r}", "", "exec").co_consts
            if isinstance(one, CodeType)
        )
        before = statements.schema_sql.__code__
        statements.schema_sql.__code__ = new
        return partial(setattr, statements.schema_sql, "__code__", before)
    if not mutant.is_code:
        statement = statement_of(mutant.where)
        text, changed = statement.sql, mutant.mutated()
        _restate(statement, text, text, changed)
        return partial(_restate, statement, text, changed, text)
    source = directory / "mutant.py"
    source.write_text(mutant.mutated(), "utf-8")
    os.environ |= {hook.MODULE: mutant.where, hook.SOURCE: str(source), "PYTHONPATH": str(_SITE)}
    with ExitStack() as stack:
        for name in (hook.MODULE, hook.SOURCE, "PYTHONPATH"):
            stack.callback(os.environ.pop, name)
        if mutant.where in sys.modules:  # else it is for processes that are started
            _swap(mutant, stack)
        return stack.pop_all().close


def changed_function(mutant: Mutant, *, is_back: bool = False) -> str:
    """What replaces the function that is all that it changes, or takes that back; empty: it changes something else."""
    old, new = ([match[0] for match in FUNCTION.finditer(text)] for text in (text_of(SCHEMA), mutant.mutated()))
    changed = [one for one in (old if is_back else new) if one not in set(new if is_back else old)]
    is_all = bool(mutant.scope) and len(changed) == 1
    return changed[0].replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION") if is_all else ""


@cache
def holders() -> dict[str, list[tuple[dict[str, object], str]]]:
    """
    What else has the texts of statements: modules as a constant, or as a key of a dictionary; where, and its name.

    To be called before the first fork.
    """
    found: defaultdict[str, list[tuple[dict[str, object], str]]] = defaultdict(list)
    texts = {one.sql for one in statements.STATEMENTS.values()}
    for module in list(sys.modules.values()):
        home: dict[str, object] = getattr(module, "__dict__", {})
        for name, value in list(home.items()):
            held = value if type(value) is dict else (value,) if type(value) is str else ()
            for text in texts.intersection(held):
                found[text].append((home, name))
    return found


def _restate(statement: Statement, text: str, before: str, after: str) -> None:
    held = holders().get(text, ())
    object.__setattr__(statement, "sql", after)
    for home, name in held:
        value = home[name]
        if isinstance(value, dict):
            value[after] = value[before]
        else:
            home[name] = after


def _swap(mutant: Mutant, stack: ExitStack) -> None:
    path = str(path_of(mutant.where))
    old = compile(tree_of(mutant.where), path, "exec", dont_inherit=True)
    tree = ast.parse(mutant.mutated())
    changed = False
    for before, after in _pairs(old, compile(tree, path, "exec", dont_inherit=True)):
        for function in functions().get(_place(before), ()):
            stack.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = after
            changed = True
    names: set[str] = set()
    for one, other in zip(tree_of(mutant.where).body, tree.body, strict=False):
        if isinstance(other, ast.Assign | ast.AnnAssign) and (
            ast.dump(one) != ast.dump(other)
            or names & {node.id for node in ast.walk(other) if isinstance(node, ast.Name)}
        ):
            names.add(_assign(mutant.where, other, stack))
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


def _assign(module: str, node: ast.Assign | ast.AnnAssign, stack: ExitStack) -> str:
    home = sys.modules[module].__dict__
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    assert isinstance(target, ast.Name)
    before = home[target.id]
    stack.callback(setattr, sys.modules[module], target.id, before)
    exec(compile(ast.Module([node], []), module, "exec"), home)  # noqa: S102 - a line of the product, changed
    for other in list(sys.modules.values()):
        if getattr(other, target.id, None) is before:
            stack.callback(setattr, other, target.id, before)
            setattr(other, target.id, home[target.id])
    return target.id
