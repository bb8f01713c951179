"""The mutants of code: they fit the code, their tests exist, and no decision of a guarded module is without one."""

from __future__ import annotations

import ast

from pulse_supervisor.children.events import Event
from tests.mutants.code import CodeMutant, Guarded, killer_exists, scopes_of, source_of
from tests.mutants.code_table import CODE_MUTANTS, GUARDED
from tests.mutants.decisions import without_mutant
from tests.mutants.guards.machine_rows import EVENTS
from tests.support.every import every


def test_killers_exist() -> None:
    """The test that is to notice is there, for each of them."""
    assert [killer for killer in sorted({mutant.killer for mutant in CODE_MUTANTS}) if not killer_exists(killer)] == []


def test_mutants_fit() -> None:
    """What a mutant takes out is there exactly once, and what is left is Python; no two of them are the same."""
    before: dict[tuple[str, str], CodeMutant] = {}

    def check(mutant: CodeMutant) -> None:
        source = mutant.mutated()
        ast.parse(_touched(mutant, source))
        twin = before.setdefault((mutant.module, source), mutant)
        assert twin is mutant, f"the same as {twin}"

    every(CODE_MUTANTS, check)


def _touched(mutant: CodeMutant, mutated: str) -> str:
    """The function that a mutant changes, which takes less time to parse than its module; that where it changes two."""
    source, scopes = source_of(mutant.module), {edit.scope for edit in mutant.edits}
    if len(scopes) > 1:
        return mutated
    start, end = scopes_of(mutant.module)[scopes.pop()]
    column = start - source.rfind("\n", 0, start) - 1
    return "if True:\n" * bool(column) + " " * column + mutated[start : end + len(mutated) - len(source)]


def test_every_decision_has_a_mutant() -> None:
    """Each condition is changed by some mutant, or listed with the reason why no test can see it."""

    def check(guarded: Guarded) -> None:
        assert {one.key for one in without_mutant(guarded)} == guarded.without.keys(), guarded.module

    every((one for one in GUARDED if not one.is_part), check)


def test_every_event_is_tried_in_every_phase() -> None:
    """The rows that are missing from the machine's table are put in for all events that there are."""
    assert set(EVENTS) == {kind.__name__ for kind in Event.__subclasses__()}
