"""The long form: its plan is repeatable, its words are checked, and a short run of it passes."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.chaos.faults.fault import Fault
from tests.chaos.faults.faults import FAULTS
from tests.chaos.plan import Epoch, epochs
from tests.chaos.summary import Summary
from tests.support.systems.system_kit import PATHS, ROOT, clean_environment

pytestmark = [pytest.mark.chaos, pytest.mark.system]

ROWS: Final = {1, 2, 4, *range(6, 15), 16, 17, 20, 28, 30, 31, 35, 36, 37, 38, 40, 41, 42, 43, 45, 48, 53, 56, 57, 58}
RUN_S: Final = 100


def first(seed: int, names: list[str]) -> list[Epoch]:
    return list(itertools.islice(epochs(seed, names), 3))


def test_the_same_seed_makes_the_same_plan() -> None:
    names = list(FAULTS)
    assert first(7, names) == first(7, names)
    assert first(7, names) != first(8, names)
    assert len({str(epoch.shape) for epoch in first(7, names)}) > 1


def test_only_the_chosen_faults_strike() -> None:
    """And each of them does; what cannot go together does not."""
    names = ["kill-worker", "lock-table", "poison", "kill-supervisor"]
    steps = [step for epoch in first(1, names) for step in epoch.steps]
    assert {blow.name for step in steps for blow in step} == set(names)
    together = {tuple(blow.name for blow in step) for step in steps if len(step) > 1}
    assert ("kill-worker", "lock-table") in together
    assert ("lock-table", "poison") not in together
    assert not any("kill-supervisor" in pair for pair in together)


def test_every_row_has_a_fault() -> None:
    assert {kind.row for kind in FAULTS.values()} == ROWS
    for name, kind in FAULTS.items():
        assert kind.name == name
        assert kind.bar_s > 0
        assert 0 <= kind.held_s[0] <= kind.held_s[1]


def struck(name: str, gave_up: str = "") -> Fault:
    fault = FAULTS[name].__new__(FAULTS[name])  # without a system
    fault.gave_up = gave_up
    return fault


def test_a_missed_bar_is_wrong() -> None:
    """One fault has its own bar, two together the longer one."""
    summary = Summary(7)
    summary.count([struck("kill-worker"), struck("kill-postmaster")], 24.0)
    assert (summary.wrong, summary.over["kill-worker"]) == ([], 0)
    summary.count([struck("kill-worker")], 16.0)
    assert summary.wrong == ["kill-worker: whole again after 16.0 s, the bar is 15 s"]
    assert summary.over == {"kill-worker": 1, "kill-postmaster": 0}
    summary.count([struck("kill-worker"), struck("kill-postmaster")], 26.0)
    assert len(summary.wrong) == 2


def test_a_fault_that_gave_up_is_wrong() -> None:
    """It did not strike, so nothing recovered; unless another fault, at the same time, prevented it."""
    summary = Summary(7)
    summary.count([struck("kill-worker", "no worker is connected"), struck("kill-dispatcher")], 1.0)
    assert (summary.wrong, summary.left_out) == ([], {"kill-worker": "no worker is connected"})
    assert summary.recoveries_s == {"kill-dispatcher": [1.0]}
    summary.count([struck("kill-worker", "no worker is connected")], 1.0)
    assert summary.wrong == ["kill-worker did not strike: no worker is connected"]
    assert "kill-worker" not in summary.recoveries_s


@pytest.mark.process
@pytest.mark.postgres
@pytest.mark.rest
def test_a_short_run(tmp_path: Path) -> None:
    """It ends by itself, prints its seed and what it did, keeps what it should, and finds nothing wrong."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--seed", "3", "--duration", "3s", "--faults", "1,6", "--keep", tmp_path],
        cwd=ROOT, env=clean_environment(PYTHONPATH=PATHS), capture_output=True, text=True, timeout=RUN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("seed 3: 3 kinds of faults, 3 s\n")
    assert "whole again after" in done.stdout
    assert done.stdout.endswith("every invariant holds\n")
    [kept] = tmp_path.iterdir()
    assert {"ledger", "errors", "summary.json", "pulse_audit.changes.csv"} <= {path.name for path in kept.iterdir()}
