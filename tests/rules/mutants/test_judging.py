"""What judges mutants: a test that fails or hangs by itself finds none, a hang is confirmed, and a time is a bound."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from tests.mutants.judging.forks import HUNG, KILLED, LEFT_OUT, SURVIVED, Forks, Processors
from tests.mutants.judging.warm import Judges
from tests.mutants.source import ROOT
from tests.support.waiting import DEADLINE_S

pytestmark = pytest.mark.patient  # what hangs is waited for

TESTS: Final = """
import signal
from pathlib import Path
from pulse.common.text import cut

CODE = cut.__code__

def is_changed():
    return cut("four", 3) == "four"

def test_notices():
    assert not is_changed()

def test_notices_any_change():
    assert cut.__code__ is CODE

def test_hangs_with_any_change():
    while cut.__code__ is not CODE:
        signal.pause()

def test_hangs():
    while is_changed():
        signal.pause()

def test_hangs_once():
    while is_changed() and not Path("once").exists():
        Path("once").touch()
        signal.pause()

def test_fails():
    raise ValueError("a fault of its own")

def test_never_ends():
    signal.pause()

def test_passes():
    pass
"""
SCENE: Final = """
import json, math, sys, time
from pathlib import Path
from tests.mutants import operators
from tests.mutants.judging import court, warm
from tests.mutants.judging.forks import Forks

(mutant,) = [
    one for one in operators.mutants_of("pulse.common.text") if one.key.endswith("cut: width_of(text) <= width -> True")
]
warm._LIMIT_S = warm._RECORD_LIMIT_S = warm._RECORD_LEAST_S = 1.5

def work(judges):
    silent = judges.record(judges.items, [], math.inf)
    for line in sys.argv[1:]:
        held = court.Court(judges)
        judges.kills.clear()
        judges.reached = {name: one._replace(took_s=0.01) for name, one in judges.reached.items()}  # in the given order
        names = [f"test_scene.py::test_{name}" for name in line.split()]
        found = []
        held.judge([(mutant, names)], lambda _, end, test: found.append((end, test)), math.inf, 10.0)
        result = [silent, [*judges.reached], found, dict(held.dismissed)]
        held.forget_what_hung()
        result += [[*held.dismissed], [name for name in names if held.is_sound(mutant, name) is False]]
        print("said:", json.dumps(result))
        Path("once").unlink(missing_ok=True)

warm.start(warm.Judges(work, Forks(Path.cwd(), 1, None), ""), ["test_scene.py"])
"""
CASES: Final = {
    "notices": (KILLED, "notices", {}),
    "passes": (SURVIVED, "", {}),
    "notices_any_change notices": (KILLED, "notices", {"notices_any_change": "it fails although nothing is changed"}),
    "notices_any_change": (SURVIVED, "", {"notices_any_change": "it fails although nothing is changed"}),
    "hangs_with_any_change notices": (KILLED, "notices", {"hangs_with_any_change": "it does not end although nothing"}),
    "hangs": (HUNG, "hangs", {}),
    "hangs_once notices": (KILLED, "notices", {"hangs_once": "once it did not end, but passes alone"}),
    "hangs_once": (SURVIVED, "", {"hangs_once": "once it did not end, but passes alone"}),
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is said of each case, of one mutant that these tests judge."""
    here = tmp_path_factory.mktemp("scene")
    (here / "test_scene.py").write_text(TESTS, "utf-8")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", SCENE, *CASES]
    done = subprocess.run(words, cwd=here, env=env, check=True, capture_output=True, text=True, timeout=120)
    lines = [line.partition("said: ")[2] for line in done.stdout.splitlines() if "said: " in line]
    return dict(zip(CASES, map(json.loads, lines), strict=True))


@pytest.mark.rest
@pytest.mark.parametrize("case", CASES)
def test_what_finds_a_mutant(case: str, said: dict[str, Any]) -> None:
    end, by, dismissed = CASES[case]
    _, _, found, reasons, *_ = said[case]
    assert found == [[end, f"test_scene.py::test_{by}" if by else ""]]
    assert reasons.keys() == {f"test_scene.py::test_{name}" for name in dismissed}
    for name, reason in dismissed.items():
        assert reasons[f"test_scene.py::test_{name}"].startswith(reason)


@pytest.mark.rest
def test_what_judges_nothing_is_named(said: dict[str, Any]) -> None:
    """Tests that fail, or do not end, while they are recorded; the next of the same file judge."""
    silent, reached, *_ = said["notices"]
    assert {name.partition("::test_")[2]: why for name, why in silent.items()} == {
        "fails": "ValueError: a fault of its own",
        "never_ends": "it does not end",
    }
    assert "test_scene.py::test_passes" in reached


@pytest.mark.rest
@pytest.mark.parametrize(("case", "left"), [
    ("hangs_with_any_change notices", []), ("notices_any_change", ["test_scene.py::test_notices_any_change"]),
])  # fmt: skip
def test_what_did_not_end_may_judge_again(case: str, left: list[str], said: dict[str, Any]) -> None:
    *_, dismissed, unsound = said[case]
    assert (dismissed, unsound) == (left, left)


def test_what_is_trusted_has_a_time(tmp_path: Path) -> None:
    """Which depends on whether it starts processes, or is marked ``rest``."""
    made = Judges(lambda _: None, Forks(tmp_path, 1, None), "")
    plain = SimpleNamespace(nodeid="tests/pulse/test_job.py::test_one", get_closest_marker=lambda _: None)
    slow = SimpleNamespace(nodeid="tests/pulse/test_job.py::test_two", get_closest_marker={"rest": "rest"}.get)
    starting = SimpleNamespace(nodeid="tests/pulse/test_job_system.py::test_one", get_closest_marker=lambda _: None)
    made._by_name |= {one.nodeid: cast("pytest.Item", one) for one in (plain, slow, starting)}
    made.trust(made._by_name)
    assert [made.limit_s(name) for name in made._by_name] == [11.0, 56.0, 80.0]


def test_a_time_is_a_bound(tmp_path: Path) -> None:
    """What runs then is killed, what waits does not begin."""
    begun_s = time.monotonic()
    forks = Forks(tmp_path, 1, None, begun_s + 0.3)
    ends: list[int] = []
    for _ in range(3):
        forks.put_off(_never_ends, lambda code, *_: ends.append(code))
    forks.drain()
    assert ends == [LEFT_OUT] * 3
    assert time.monotonic() - begun_s < min(DEADLINE_S, 5.0)


@pytest.mark.parametrize(("is_idle", "slots"), [(True, [-1, 0, 1, 2, 3]), (False, [-1, -1, -1, -1, 0])])
def test_more_are_begun_while_the_machine_idles(tmp_path: Path, slots: list[int], *, is_idle: bool) -> None:
    forks = Forks(tmp_path, 1, None)
    forks._processors = cast("Processors", SimpleNamespace(idle_for_a_while=lambda: is_idle))
    ends: list[int] = []
    for _ in range(5):
        forks.put_off(_never_ends, lambda _code, _number, slot: ends.append(slot))
    for _ in range(5):
        forks._step()
    forks.until_s = time.monotonic()
    forks.drain()
    assert sorted(ends) == slots


@pytest.mark.parametrize(("idle", "waiting", "idles"), [(50.0, 11.0, True), (61.0, 0.0, True), (30.0, 29.0, False)])
def test_a_machine_idles_if_most_of_its_time_is_idle(
    idle: float, waiting: float, monkeypatch: pytest.MonkeyPatch, *, idles: bool
) -> None:
    """Also while it waits for its disk; of a moment nothing is known."""
    monkeypatch.setattr("psutil.cpu_times_percent", lambda: SimpleNamespace(idle=idle, iowait=waiting))
    processors = Processors()
    assert not processors.idle_for_a_while()
    processors._since_s -= 1.0
    assert processors.idle_for_a_while() is idles
    assert not processors.idle_for_a_while(), "it is asked again at once, and does not look"


def _never_ends(_slot: int) -> int:
    signal.pause()
    return SURVIVED
