"""The search for secrets in what the suite prints: each way in which one gets out fails the test, and shows nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.confidential import confidential

ROOT = Path(__file__).resolve().parents[2]

# Half of it, so that the text of this file is no leak of what stands in it.
HALF = "Zq9-tower"
SUITE = """
import logging, os, subprocess, sys, threading
import pytest
from tests.support.confidential import confidential, search

WHOLE = confidential("Zq9-tower" + "-bridge\\"", "word at the gate")
SHOUT = [sys.executable, "-c", "import os, sys; sys.stderr.write(os.environ['X'])"]
ENV = {**os.environ, "X": "", "PULSE_AUTH_USERS": "ann:Zq9-tower" + "-of-ann:viewer+worker,bob:" + "Zq9-tower" + ":x"}

def test_quiet(): print("nothing")

def test_prints(): print("it is", WHOLE)

def test_logs(): logging.getLogger().warning("it is %s", WHOLE)

def test_as_json(): print("Zq9-tower-bridge\\\\\\"")

def test_of_a_program(): subprocess.run(SHOUT, env={**ENV, "X": WHOLE}, capture_output=True, check=True)

def test_of_an_environment(): subprocess.run(SHOUT, env={**ENV, "X": "Zq9-tower" + "-of-ann"}, capture_output=True)

def test_of_a_dsn():
    dsn = "host=x password=" + "Zq9-tower" + "-door"
    subprocess.run(SHOUT, env={**ENV, "PULSE_DSN": dsn, "X": "Zq9-tower" + "-door"}, capture_output=True)

@pytest.fixture
def removed(tmp_path):
    path = tmp_path / "log"
    with path.open("wb") as sink:
        yield path, sink
    path.unlink()

def test_in_a_file(removed):
    path, sink = removed
    subprocess.run(SHOUT, env={**ENV, "X": WHOLE}, stderr=sink, check=True)

@pytest.fixture
def late(removed):
    path, sink = removed
    program = subprocess.Popen([sys.executable, "-c", "input(); print(input())"], stdin=subprocess.PIPE, stdout=sink)
    program.stdin.write(b"begin\\n")
    yield program
    program.communicate(WHOLE.encode() + b"\\n")

def test_in_a_file_afterwards(late): pass

def test_on_a_screen(): search("open " + WHOLE, "a screen")

@pytest.mark.shows_secrets("it is the only time that it is told")
def test_on_purpose(): print(WHOLE)

def test_fails_and_tells():
    print(WHOLE)
    assert not "in the test"

def test_quiet_again(): print("nothing")
"""
GOOD = {"test_quiet", "test_on_purpose", "test_quiet_again"}


def run_suite(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run pytest on *folder* with the plugin: its exit code, and what it said."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_PLUGINS": "tests.plugins.leaks"}
    options = ["-q", "-rA", "--strict-markers", "-o", "markers=shows_secrets(reason)", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(folder), *arguments, str(folder)]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, check=False, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "side_by_side", [(), pytest.param(("-n", "1"), marks=pytest.mark.rest)], ids=["alone", "side by side"]
)
def test_who_tells_fails(tmp_path: Path, side_by_side: tuple[str, ...]) -> None:
    """Each of them, by its name, with secret and place, and without the secret; the others pass."""
    (tmp_path / "test_it.py").write_text(SUITE)
    code, said = run_suite(tmp_path, *side_by_side)
    outcomes = [
        line.split(" - ")[0].split() for line in said.splitlines() if line.startswith(("PASSED", "FAILED", "ERROR"))
    ]
    bad = {name.rpartition("::")[2] for how, name in outcomes if how != "PASSED"}
    every = {line.split("(")[0].removeprefix("def ") for line in SUITE.splitlines() if line.startswith("def test_")}
    assert (code, every - bad) == (1, GOOD), said
    for words in (
        "the secret 'word at the gate' is told in the captured stdout of its call: 'it is ***'",
        "test_it.py::test_in_a_file_afterwards\n",
        "/log: '***'",
        "the secret 'password of ann in PULSE_AUTH_USERS' is told in stderr of ",
        "the secret 'password in PULSE_DSN' is told in stderr of ",
        "is told in a screen: 'open ***'",
        "in the test",
    ):
        assert words in said
    assert f"{HALF}-bridge" not in said


def test_exceptions_have_reasons(tmp_path: Path) -> None:
    """A marker that does not say why is refused."""
    (tmp_path / "test_it.py").write_text("import pytest\n@pytest.mark.shows_secrets\ndef test_it(): pass\n")
    code, said = run_suite(tmp_path)
    assert code != 0
    assert "test_it.py::test_it: shows_secrets takes one reason, in words" in said


def test_short_ones_are_refused() -> None:
    """They would be found in words."""
    with pytest.raises(ValueError, match=r"the secret 'door' has 6 characters: 8 or more are allowed"):
        confidential("secret", "door")
