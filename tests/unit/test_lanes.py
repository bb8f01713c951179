"""The order of the suite: what shares a lane is run by one process, one test after the other, by its own name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUITE = """
import os, time, pytest

@pytest.mark.system
def test_system_{0}(): say("system")

@pytest.mark.patient
def test_patient_{0}(): say("patient")

@pytest.mark.timed
def test_timed_{0}(): say("timed")

@pytest.mark.parametrize("one", range(3))
def test_plain_{0}(one): say("{0}")

def say(lane):
    with open("said", "a") as file:
        file.write(f"{{lane}} {{os.environ['PYTEST_XDIST_WORKER']}} {{os.nice(0)}}\\n")
"""


def test_lanes(tmp_path: Path) -> None:
    """A lane has one process whatever files its tests are in; marked lanes are never nice; names stay as they are."""
    for name in ("a", "b", "c"):
        (tmp_path / f"test_{name}.py").write_text(SUITE.format(name))
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTEST_PLUGINS": "xdist.plugin,tests.plugins.lanes",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # others would take a second each time
    }
    command = [sys.executable, "-m", "pytest", "-v", "-n", "3", "--rootdir", str(tmp_path), str(tmp_path)]
    command += ["-o", "markers=system\npatient\ntimed", "--strict-markers"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, check=False, text=True)
    assert "18 passed" in done.stdout, done.stdout + done.stderr
    assert "PASSED test_b.py::test_system_b" in done.stdout
    said = [line.split() for line in (tmp_path / "said").read_text("utf-8").splitlines()]
    for lane in ("system", "patient", "timed", "a", "b", "c"):
        assert len({process for one, process, _ in said if one == lane}) == 1
        assert sum(one == lane for one, _, _ in said) == 3
    nice = os.nice(0)
    assert {int(value) for lane, _, value in said if lane in {"system", "patient", "timed"}} == {nice}
    assert {int(value) for lane, _, value in said if lane in {"a", "b", "c"}} == {min(nice + 10, 19)}
