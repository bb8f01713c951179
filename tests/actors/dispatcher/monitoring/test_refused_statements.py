"""Statements that the database refuses again and again are a finding, whichever actor they are of."""

from __future__ import annotations

import msgspec
import pytest

from pulse.ops.doctor.finding import State
from pulse.ops.doctor.refusals import StatementFailure
from pulse.store.failures import Failing
from pulse_actors.dispatcher.monitoring import refused_statements
from pulse_actors.dispatcher.monitoring.refused_statements import RefusedStatements

TOLD = ["watchdog", "mark_sweep", "42P10", "no unique constraint", 3, 12.0]


def test_the_first_refusal_is_no_finding() -> None:
    """It may be a victim of a restart; from the second in a row on it is a fault, until it succeeds."""
    own = Failing()
    statements = RefusedStatements(own)
    own.refused("claim_jobs", "XX001", "missing chunk")
    assert statements.findings() == []
    own.refused("claim_jobs", "XX001", "missing chunk")
    (found,) = statements.findings()
    assert (found.check, found.state) == ("statements", State.WRONG)
    assert found.text == (
        "the database refuses claim_jobs of the dispatcher, 2 times in 0 s: missing chunk (SQLSTATE XX001)"
    )
    own.succeeded("claim_jobs")
    assert statements.findings() == []


def test_what_other_actors_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    statements = RefusedStatements(Failing())
    statements.heard("watchdog", [TOLD])
    statements.heard("scheduler", [["?"]])
    statements.heard("pause", None)
    (found,) = statements.findings()
    assert found.text.startswith("the database refuses mark_sweep of the watchdog, 3 times in 12 s: no unique")
    monkeypatch.setattr(refused_statements, "OLD_S", -1.0)
    assert statements.findings() == []


def test_what_is_told_is_what_is_heard() -> None:
    assert msgspec.convert(TOLD, StatementFailure) == StatementFailure(
        "watchdog", "mark_sweep", "42P10", "no unique constraint", 3, 12.0
    )
