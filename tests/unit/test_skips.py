"""The list of skips: every skip with its reason, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SUITE = """
import pytest

def test_runs(): pass

def test_skips(): pytest.skip("no moon\\ntonight")

@pytest.mark.skipif(True, reason="never here")
def test_marked(): pass

@pytest.mark.xfail(strict=True)
def test_expected_to_fail(): assert False
"""


def run_suite(folder: Path, *arguments: str) -> list[str]:
    """Run pytest on *folder* with the plugin and return the lines that it wrote."""
    listed = folder / "skips"
    env = {
        **os.environ,
        "PULSE_SKIPS_FILE": str(listed),
        "PYTHONPATH": str(ROOT),
        "PYTEST_PLUGINS": "xdist.plugin,tests.plugins.skips",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # others would take a second each time
    }
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(folder), *arguments, str(folder)]
    subprocess.run(command, env=env, cwd=folder, capture_output=True, check=False)
    return listed.read_text("utf-8").splitlines()


def test_skips_are_listed_with_their_reasons(tmp_path: Path) -> None:
    """A skip by call and a skip by mark are listed on one line each; an expected failure is not."""
    (tmp_path / "test_it.py").write_text(SUITE)
    assert run_suite(tmp_path) == ["test_it.py::test_skips\tno moon tonight", "test_it.py::test_marked\tnever here"]


def test_skipped_module_is_listed(tmp_path: Path) -> None:
    """A module that skips itself as a whole is listed once."""
    (tmp_path / "test_it.py").write_text("import pytest\npytest.skip('no spin', allow_module_level=True)\n")
    assert run_suite(tmp_path) == ["test_it.py\tno spin"]


def test_nothing_skipped_gives_an_empty_list(tmp_path: Path) -> None:
    """The list is written even when it is empty: so its absence tells that the suite was cut short."""
    (tmp_path / "test_it.py").write_text(SUITE)
    assert run_suite(tmp_path, "-k", "test_runs") == []


def test_skips_of_other_processes_are_listed(tmp_path: Path) -> None:
    """Side by side the list is the same."""
    (tmp_path / "test_it.py").write_text(SUITE)
    assert sorted(run_suite(tmp_path, "-n", "2")) == [
        "test_it.py::test_marked\tnever here",
        "test_it.py::test_skips\tno moon tonight",
    ]
