"""Mutants that are tried in one process: each is taken back before the next, and what a test spoils is tried alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Final

import pytest

from tests.mutants.judging import batches
from tests.mutants.judging.forks import KILLED, SURVIVED
from tests.mutants.judging.warm import OLDEST
from tests.mutants.source import ROOT, SCHEMA, Mutant, Span, text_of

pytestmark = pytest.mark.patient  # what hangs is waited for

NOW, NEVER_NOW, PAST, FUTURE = (
    "abs(distance_s) < _NOW_BELOW_S -> True",
    "abs(distance_s) < _NOW_BELOW_S -> False",
    "distance_s > 0 -> True",
    "distance_s > 0 -> False",
)
TESTS: Final = """
import os
import signal
import pytest
from pathlib import Path
from pulse.common.text import ago

CODE = ago.__code__
seen = []

@pytest.fixture(autouse=True)
def note():
    with Path("processes").open("a") as file:
        print(os.getpid(), file=file)

def test_now():
    assert ago(0, 0) == "now"

def test_past():
    assert ago(0, 60) == "60 s ago"

def test_future():
    assert ago(60, 0) == "in 60 s"

def test_spoils():
    seen.append(ago.__code__)
    assert {*seen} == {CODE}

def test_hangs():
    while ago(0, 0) != "now":
        signal.pause()

@pytest.fixture(scope="module")
def shared():
    return ago(0, 0)

def test_shares(shared):
    assert shared == "now"

@pytest.fixture(scope="module")
def kept():
    return []

def test_gathers(kept):
    kept.append(ago(0, 60))
    assert {*kept} == {"60 s ago"}

def test_adds(kept):
    kept.append(ago(60, 0))
    assert kept[-1] == "in 60 s"

def test_keeps(kept):
    assert {*kept} <= {"in 60 s"}

def test_fails_at_first(kept):
    kept.append("here")
    assert len(kept) > 1
"""
SCENE: Final = """
import json, math, sys
from pathlib import Path
from tests.mutants import operators
from tests.mutants.judging import court, warm
from tests.mutants.judging.batches import Batches
from tests.mutants.judging.forks import Forks

mutants = [one for one in operators.mutants_of("pulse.common.text", fine=False) if one.scope == "ago"]
warm._LIMIT_S = 1.5
name_of = lambda mutant: mutant.key.partition("ago: ")[2]

def work(judges):
    judges.record(judges.items, [], math.inf)
    judges.reached = {name: one._replace(took_s=0.01) for name, one in judges.reached.items()}
    for line in sys.argv[1:]:
        Path("processes").unlink()
        judges.kills.clear()
        found = {}
        names = [f"test_scene.py::test_{name}" for name in line.split()]
        batches = Batches(court.Court(judges), math.inf, 10.0)
        tell = lambda mutant, end, test: found.update({name_of(mutant): [end, test.partition("::test_")[2]]})
        left = batches.judge([(mutant, names) for mutant in mutants], tell)
        processes = len({*Path("processes").read_text().split()})
        print("said:", json.dumps([found, [name_of(mutant) for mutant, _ in left], processes]))

warm.start(warm.Judges(work, Forks(Path.cwd(), 1, None), ""), ["test_scene.py"])
"""
CASES: Final[dict[str, tuple[dict[str, str], set[str], int]]] = {
    "now past future": ({NEVER_NOW: "now", NOW: "past", PAST: "future", FUTURE: "past"}, set(), 1),
    "past": ({NEVER_NOW: "", NOW: "past", PAST: "", FUTURE: "past"}, set(), 1),
    "shares": ({NEVER_NOW: "shares", NOW: "", PAST: "", FUTURE: ""}, set(), 1),
    "gathers": ({NEVER_NOW: "", NOW: "gathers", PAST: "", FUTURE: "gathers"}, set(), 1),
    "adds keeps": ({NEVER_NOW: "", NOW: "adds", PAST: "adds"}, {FUTURE}, 1),
    "fails_at_first": ({}, {NEVER_NOW, NOW, PAST, FUTURE}, 2),
    "hangs past future": ({NOW: "past", PAST: "future", FUTURE: "past"}, {NEVER_NOW}, 2),
    "spoils": ({}, {NEVER_NOW, NOW, PAST, FUTURE}, 2),
    "spoils now": ({NEVER_NOW: "now"}, {NOW, PAST, FUTURE}, 3),
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is said of each case: what became of which mutant, by which test; what is left; in how many processes."""
    here = tmp_path_factory.mktemp("scene")
    (here / "test_scene.py").write_text(TESTS, "utf-8")
    words = [sys.executable, "-c", SCENE, *CASES]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=here, env=env, check=True, capture_output=True, text=True, timeout=120)
    lines = [line.partition("said: ")[2] for line in done.stdout.splitlines() if "said: " in line]
    return dict(zip(CASES, map(json.loads, lines), strict=True))


@pytest.mark.rest
@pytest.mark.parametrize("case", CASES)
def test_what_a_batch_finds(case: str, said: dict[str, Any]) -> None:
    """A test that fails without the change, too, finds nothing, and the second time it is left to judge alone."""
    ends, left, processes = CASES[case]
    assert said[case][0] == {name: [KILLED if test else SURVIVED, test] for name, test in ends.items()}
    assert {*said[case][1]} == left
    assert said[case][2] == processes


@pytest.mark.parametrize(("where", "scope", "killer", "test", "is_for_a_fork"), [
    ("pulse.common.text", "", "", "tests/pulse/test_job.py::test_a", False),
    ("pulse.common.text", "", "", "tests/pulse/test_job_system.py::test_a", True),
    (SCHEMA, "submit", "", "tests/schema/test_a_pg.py::test_a", False),
    (SCHEMA, "submit", f"tests/schema/test_a_pg.py{OLDEST}", "tests/schema/test_a_pg.py::test_a", True),
    (SCHEMA, "", "", "tests/schema/test_a_pg.py::test_a", True),
])  # fmt: skip
def test_what_is_tried_alone(*, where: str, scope: str, killer: str, test: str, is_for_a_fork: bool) -> None:
    """What a test has started before has no mutant, nor has another server; tables cannot be changed in between."""
    at = (
        text_of(where).index("BEGIN\n", text_of(where).index("CREATE FUNCTION pulse.submit("))
        if scope == "submit"
        else 0
    )
    mutant = Mutant(where, scope, Span(at, at), "-- changed\n", killer=killer)
    assert batches._is_for_a_fork(mutant, [test]) is is_for_a_fork
