"""The list of costs: what each test costs is written down, however the suite is run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins.times import Cost, read, summary

ROOT = Path(__file__).resolve().parents[2]
BURN = "import time; end_s = time.process_time() + 0.2\nwhile time.process_time() < end_s: pass"
SUITE = f"""
import subprocess, sys, time, pytest

BURN = {BURN!r}

@pytest.fixture(scope="module")
def server():
    with subprocess.Popen([sys.executable, "-c", BURN + "\\nprint(flush=True)\\ninput()"], stdin=-1, stdout=-1) as made:
        yield made
        made.kill()

def test_itself(): exec(BURN)

def test_child(): subprocess.run([sys.executable, "-c", BURN], check=True)

def test_living_child(server): server.stdout.readline()

def test_nothing(server): pass

def test_fails(): assert False
"""


@pytest.mark.parametrize(
    "side_by_side", [pytest.param((), marks=pytest.mark.rest), ("-n", "2")], ids=["alone", "side by side"]
)
def test_costs_are_written(tmp_path: Path, side_by_side: tuple[str, ...]) -> None:
    """Wall time, one's own CPU time and that of children, also of those that live on; also of a test that fails."""
    (tmp_path / "test_it.py").write_text(SUITE)
    env = {
        **os.environ,
        "PULSE_TIMES_FILE": str(tmp_path / "times"),
        "PYTHONPATH": str(ROOT),
        "PYTEST_PLUGINS": "xdist.plugin,tests.plugins.times",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # others would take a second each time
    }
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), *side_by_side, str(tmp_path)]
    subprocess.run([*command, "--dist=loadfile"] if side_by_side else command, env=env, cwd=tmp_path, check=False)
    costs = {test.rpartition("::")[2]: cost for test, cost in read(tmp_path / "times").items()}
    assert list(costs) == ["test_itself", "test_child", "test_living_child", "test_nothing", "test_fails"]
    assert costs["test_itself"].own_cpu_s >= 0.2 > costs["test_itself"].child_cpu_s
    for name in ("test_child", "test_living_child"):
        assert costs[name].child_cpu_s >= 0.19 > costs[name].own_cpu_s
        assert costs[name].wall_s >= 0.19
    for name in ("test_nothing", "test_fails"):
        assert costs[name].own_cpu_s + costs[name].child_cpu_s < 0.15


def test_summary_has_the_slowest_first() -> None:
    """Tests and folders come with the dearest first, and the folders with their sums."""
    costs = {"a/test_x.py::one": Cost(1, 2, 3), "b/test_y.py::two": Cost(4, 0, 0), "a/test_x.py::three": Cost(3.5)}
    lines = [line.split() for line in summary(costs)]
    assert [line[-1] for line in lines[1:4]] == ["b/test_y.py::two", "a/test_x.py::three", "a/test_x.py::one"]
    assert [line[:4] for line in lines[5:]] == [
        ["8.50", "2.00", "3.00", "all"],
        ["4.50", "2.00", "3.00", "a"],
        ["4.00", "0.00", "0.00", "b"],
    ]
