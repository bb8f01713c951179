"""The bench in its smallest form: what it finds has the shape that it promises. Nothing here is about speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.servers.embedded_kit import needs_postgres
from tests.support.systems.system_kit import PATHS, ROOT

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system, pytest.mark.rest]

DEADLINE_S: Final = 100.0
SCENES: Final = ("drain", "cpu", "submit", "waits", "calls", "imports", "limits")
PROCESSES: Final = ("all together", "postgres", "dispatcher", "worker", "others")


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": PATHS}
    command = [sys.executable, "-m", "bench", *words]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


@needs_postgres
def test_smallest_form(tmp_path: Path) -> None:
    """Every requested scene is there, each figure with all its runs, compared with the yardstick."""
    path = tmp_path / "result.json"
    done = bench(*SCENES, "--size", "tiny", "--rounds", "1", "--json", str(path))
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text("utf-8"))
    assert (found["format"], found["failures"], found["size"]["drain_jobs"]) == (1, [], 1500)
    assert [scene["name"] for scene in found["scenes"]] == list(SCENES)
    figures = {one["name"]: one for scene in found["scenes"] for one in scene["figures"]}
    for one in figures.values():
        check_figure(one)
    assert figures["drain of 1,500 jobs"]["against"] == "bare SQL loop"
    assert 0.5 < figures["starts under a rate of 100 a second, 1 s"]["ratio_median"] < 1.2  # a burst of ten, and noise
    assert {f"CPU, {name}" for name in PROCESSES} < set(figures)
    assert "| drain of 1,500 jobs |" in bench("table", str(path), str(path)).stdout


def check_figure(one: dict[str, Any]) -> None:
    (run,) = one["runs"]
    assert one["median"] == one["min"] == one["max"] == run["value"] >= 0
    if one["against"] is None:
        assert run["reference"] is run["ratio"] is one["ratio_median"] is None
    else:
        assert run["ratio"] == one["ratio_median"] == run["value"] / run["reference"]


@pytest.mark.parametrize(("words", "said"), [
    (["drian"], "there is no scene 'drian'; there are drain, cpu, submit,"),
    (["--rounds", "0"], "--rounds 0: must be a whole number from 1 to 100"),
    (["--size", "huge"], "--size huge: must be one of default, full, tiny"),
    (["--set", "depht=3"], "--set depht=3: there is no size 'depht'; there are drain_jobs,"),
    (["--set", "depth=-3"], "--set depth=-3: depth must be a whole number from 1 to 1e+09"),
    (["--set", "steady_s=nan"], "--set steady_s=nan: steady_s must be a number above 0, to 1e+09"),
    (["--json", "/nowhere/a.json"], "--json /nowhere/a.json: there is no directory /nowhere"),
    (["table", "/nowhere/a.json"], "/nowhere/a.json: No such file or directory"),
])  # fmt: skip
def test_wrong_words(words: list[str], said: str) -> None:
    """Before anything starts, in one line that says what is allowed."""
    done = bench(*words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"bench: {said}")
    assert done.stderr.count("\n") == 1
