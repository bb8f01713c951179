"""The mutants of code: they fit the code, their tests exist, and no decision of a guarded module is without one."""

from __future__ import annotations

import pytest

from pulse_supervisor.events import Event
from tests.mutants.code import Guarded, killer_exists
from tests.mutants.code_table import CODE_MUTANTS, GUARDED
from tests.mutants.decisions import without_mutant
from tests.mutants.guards.machine_rows import EVENTS


def test_killers_exist() -> None:
    """The test that is to notice is there, for each of them."""
    assert [killer for killer in sorted({mutant.killer for mutant in CODE_MUTANTS}) if not killer_exists(killer)] == []


@pytest.mark.parametrize("module", sorted({mutant.module for mutant in CODE_MUTANTS}))
def test_mutants_fit(module: str) -> None:
    """What a mutant takes out is there exactly once, and what is left is Python; no two of them are the same."""
    mutants = [mutant for mutant in CODE_MUTANTS if mutant.module == module]
    sources = [mutant.mutated() for mutant in mutants]
    for mutant, source in zip(mutants, sources, strict=True):
        compile(source, str(mutant), "exec", dont_inherit=True)
    twice = [str(mutant) for mutant, source in zip(mutants, sources, strict=True) if sources.count(source) > 1]
    assert twice == []


@pytest.mark.parametrize("guarded", [one for one in GUARDED if not one.is_part], ids=lambda guarded: guarded.module)
def test_every_decision_has_a_mutant(guarded: Guarded) -> None:
    """Each condition is changed by some mutant, or listed with the reason why no test can see it."""
    found = without_mutant(guarded)
    assert {one.key for one in found} == guarded.without.keys()


def test_every_event_is_tried_in_every_phase() -> None:
    """The rows that are missing from the machine's table are put in for all events that there are."""
    assert set(EVENTS) == {kind.__name__ for kind in Event.__subclasses__()}
