"""What the suite itself does: its lists of skips and costs, lanes, turns, the search for secrets, a check of many."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.plugins.times import read
from tests.plugins.turns import about, turn_of
from tests.support.checking.every import every
from tests.support.confidential import confidential

ROOT = Path(__file__).resolve().parents[2]


def run_suite(folder: Path, plugin: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on *folder* with one of our plugins, and no others but xdist: each would take a second."""
    env = {
        **os.environ, "PYTHONPATH": str(ROOT), "PYTEST_PLUGINS": f"xdist.plugin,tests.plugins.{plugin}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **env,
    }  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(folder), *arguments]
    return subprocess.run([*command, str(folder)], env=env, cwd=folder, capture_output=True, check=False, text=True)


# Skips.

SKIPPING = """
import pytest

def test_runs(): pass

def test_skips(): pytest.skip("no moon\\ntonight")

@pytest.mark.skipif(True, reason="never here")
def test_marked(): pass

@pytest.mark.xfail(strict=True)
def test_expected_to_fail(): assert False
"""


def skips_of(folder: Path, *arguments: str) -> list[str]:
    run_suite(folder, "skips", "-q", *arguments, PULSE_SKIPS_FILE=str(folder / "skips"))
    return (folder / "skips").read_text("utf-8").splitlines()


@pytest.mark.rest
def test_skips_are_listed_with_their_reasons(tmp_path: Path) -> None:
    """A skip by call and one by mark, a line each, also side by side; the list exists when it is empty."""
    (tmp_path / "test_it.py").write_text(SKIPPING)
    expected = ["test_it.py::test_skips\tno moon tonight", "test_it.py::test_marked\tnever here"]
    assert skips_of(tmp_path) == expected
    assert sorted(skips_of(tmp_path, "-n", "2")) == sorted(expected)
    assert skips_of(tmp_path, "-k", "test_runs") == []
    (tmp_path / "test_it.py").write_text("import pytest\npytest.skip('no spin', allow_module_level=True)\n")
    assert skips_of(tmp_path) == ["test_it.py\tno spin"]


# Lanes.

LANES = """
import os, time, pytest

@pytest.mark.system
def test_system_{0}(): say("system")

@pytest.mark.patient
def test_patient_{0}(): say("patient-{0}")

@pytest.mark.timed
def test_timed_{0}(): say("timed")

@pytest.mark.parametrize("one", range(3))
def test_plain_{0}(one): say("{0}")

def say(lane):
    with open("said", "a") as file:
        file.write(f"{{lane}} {{os.environ['PYTEST_XDIST_WORKER']}} {{os.nice(0)}}\\n")
"""


@pytest.mark.rest
def test_lanes(tmp_path: Path) -> None:
    """A lane has one process whatever files its tests are in; what is marked is never nice; names stay as they are."""
    for name in ("a", "b", "c"):
        (tmp_path / f"test_{name}.py").write_text(LANES.format(name))
    options = ["-v", "-n", "3", "-o", "markers=system\npatient\ntimed", "--strict-markers"]
    done = run_suite(tmp_path, "lanes", *options)
    assert "18 passed" in done.stdout, done.stdout + done.stderr
    assert "PASSED test_b.py::test_system_b" in done.stdout
    said = [line.split() for line in (tmp_path / "said").read_text("utf-8").splitlines()]
    for lane in ("system", "timed", "a", "b", "c"):
        assert len({process for one, process, _ in said if one == lane}) == 1
        assert sum(one == lane for one, _, _ in said) == 3
    nice = os.nice(0)
    assert {int(value) for lane, _, value in said if lane not in {"a", "b", "c"}} == {nice}
    assert {int(value) for lane, _, value in said if lane in {"a", "b", "c"}} == {min(nice + 10, 19)}


# Turns.

WAITING = """
import pytest

def test_each_time(): pass

@pytest.mark.rest
@pytest.mark.parametrize("number", range(60))
def test_rest(number): pass

@pytest.mark.rest
class TestTogether:
    @pytest.mark.parametrize("number", range(9))
    def test_it(self, number): pass
"""


@pytest.mark.rest
def test_what_is_marked_rest_runs_in_its_turn(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(WAITING)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = rest")
    outputs = [run_suite(tmp_path, "turns", "-v", PULSE_TEST_TURN=turn).stdout for turn in ("1/3", "2/3", "3/3", "")]
    *thirds, whole = [Counter(word for word in output.split() if "::" in word) for output in outputs]
    always = Counter(["test_it.py::test_each_time"])
    assert len(whole) == 70
    assert all(third > always for third in thirds)
    assert sum(thirds, Counter()) == whole + always + always
    assert sorted(sum("TestTogether" in name for name in third) for third in thirds) == [0, 0, 9]
    assert f"{70 - thirds[0].total()} deselected" in outputs[0]
    changed = run_suite(tmp_path, "turns", "-v", PULSE_TEST_TURN="1/3", PULSE_TEST_CHANGED="a.py\ntest_it.py").stdout
    assert Counter(word for word in changed.split() if "::" in word) == whole


@pytest.mark.parametrize(("path", "expected"), [
    ("tests/pulse/store/test_runner.py", ["pulse/store/test_runner.py"]),
    ("pulse/store/runner.py", ["pulse/store/test_runner.py", "pulse/store/test_runner_pg.py"]),
    ("pulse/store/sql/claim.sql", ["pulse/store/sql/test_claim_pg.py"]),
    ("pulse/store/sql/end.sql", ["pulse/store/sql/test_claim_pg.py"]),  # by its folder
    ("supervisor/pulse_supervisor/main.py", ["supervisor/test_main_system.py"]),
    ("actors/pulse_actors/dispatcher/claims/cursors.py", ["actors/dispatcher/claims/test_cursors_pg.py"]),
    (".ci/rules/names.py", ["rules/test_names.py"]),
    ("pulse/store/runner.md", []),
    ("pulse/main.py", []),
])  # fmt: skip
def test_what_is_about_a_file(path: str, expected: list[str]) -> None:
    """Itself, else what has its name, of whatever level, else all of the folder."""
    names = (
        "pulse/store/test_runner.py", "pulse/store/test_runner_pg.py", "pulse/store/test_runners.py",
        "pulse/store/sql/test_claim_pg.py", "supervisor/test_main_system.py", "rules/test_names.py",
        "actors/dispatcher/claims/test_cursors_pg.py", "pulse/runner/test_runner.py",
    )  # fmt: skip
    assert about(path, {f"tests/{name}" for name in names}) == {f"tests/{name}" for name in expected}


@pytest.mark.rest
@pytest.mark.parametrize("turn", ["0/3", "4/3", "1/0", "1", "a/b", "1/3 ", "-1/3"])
def test_a_turn_that_is_none(turn: str, tmp_path: Path) -> None:
    done = run_suite(tmp_path, "turns", "-n", "2", PULSE_TEST_TURN=turn)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    expected = f"ERROR: PULSE_TEST_TURN is {turn!r}: NUMBER/PARTS expected, as 1/4 or 4/4"
    assert done.stderr.splitlines() == [expected, ""]


def test_the_suite_has_turns(pytestconfig: pytest.Config) -> None:
    """After what runs on the oldest PostgreSQL is marked ``rest``, and before markers are selected by ``-m``."""
    last_first = pytestconfig.hook.pytest_collection_modifyitems.get_hookimpls()
    names = [one.plugin_name for one in last_first]
    assert names.index("tests.plugins.turns") < names.index("tests.plugins.databases")


def test_the_turn_after_a_commit_is_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the day, if it is not known how many commits there are."""
    made, shallow, none = (tmp_path / name for name in ("made", "shallow", "none"))
    none.mkdir()
    monkeypatch.setattr("time.time", lambda: 3 * 86400.0 + 5)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    git = ["git", "-C", str(made), "-c", "user.name=A", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", str(made)], check=True)
    found = []
    for _ in range(4):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
        found.append(turn_of(made, 3))
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{made}", str(shallow)], check=True)
    assert found == [(2, 3), (3, 3), (1, 3), (2, 3)]
    assert turn_of(shallow, 3) == turn_of(none, 3) == (1, 3)
    monkeypatch.setenv("PATH", str(none))
    assert turn_of(made, 3) == (1, 3)


# Costs.

BURN = "import time; end_s = time.process_time() + 0.2\nwhile time.process_time() < end_s: pass"
COSTLY = f"""
import os, subprocess, sys, time, pytest

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

def test_fails(): assert "PULSE_TIMES_FILE" in os.environ  # else a run in a test would write over the file
"""


@pytest.mark.rest
@pytest.mark.parametrize("side_by_side", [(), ("-n", "2")], ids=["alone", "side by side"])
def test_costs_are_written(tmp_path: Path, side_by_side: tuple[str, ...]) -> None:
    """Wall time, its own CPU time and its children's, also of those that live on; also of a test that fails."""
    (tmp_path / "test_it.py").write_text(COSTLY)
    dist = ["--dist=loadfile"] if side_by_side else []
    run_suite(tmp_path, "times", "-q", *side_by_side, *dist, PULSE_TIMES_FILE=str(tmp_path / "times"))
    costs = {test.rpartition("::")[2]: cost for test, cost in read(tmp_path / "times").items()}
    assert list(costs) == ["test_itself", "test_child", "test_living_child", "test_nothing", "test_fails"]
    assert costs["test_itself"].own_cpu_s >= 0.2 > costs["test_itself"].child_cpu_s
    for name in ("test_child", "test_living_child"):
        assert costs[name].child_cpu_s >= 0.19 > costs[name].own_cpu_s
        assert costs[name].wall_s >= 0.19
    for name in ("test_nothing", "test_fails"):
        assert costs[name].own_cpu_s + costs[name].child_cpu_s < 0.15


# Secrets.

# Half of it, so that the text of this file is no leak.
HALF = "Zq9-tower"
TELLING = """
import logging, os, subprocess, sys, threading
import pytest
from tests.support.commandline.cli import environment
from tests.support.commandline.warm import Process
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

def test_in_a_file_of_a_warm_program(removed):
    path, sink = removed
    assert Process(["pulse.worker.__main__", WHOLE], env=environment(), cwd=path.parent, stderr=sink).wait(20)

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


def leaks_of(folder: Path, *arguments: str) -> tuple[int, str]:
    options = ["-q", "-rA", "--strict-markers", "-o", "markers=shows_secrets(reason)"]
    done = run_suite(folder, "leaks", *options, *arguments)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.rest
@pytest.mark.parametrize("side_by_side", [(), ("-n", "1")], ids=["alone", "side by side"])
def test_who_tells_fails(tmp_path: Path, side_by_side: tuple[str, ...]) -> None:
    """Each of them, with secret and place, and without the secret's text; the others pass."""
    (tmp_path / "test_it.py").write_text(TELLING)
    code, said = leaks_of(tmp_path, *side_by_side)
    outcomes = [x.split(" - ")[0].split() for x in said.splitlines() if x.startswith(("PASSED", "FAILED", "ERROR"))]
    bad = {name.rpartition("::")[2] for how, name in outcomes if how != "PASSED"}
    every = {line.split("(")[0].removeprefix("def ") for line in TELLING.splitlines() if line.startswith("def test_")}
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
    (tmp_path / "test_it.py").write_text("import pytest\n@pytest.mark.shows_secrets\ndef test_it(): pass\n")
    code, said = leaks_of(tmp_path)
    assert code != 0
    assert "test_it.py::test_it: shows_secrets takes one reason, in words" in said


def test_short_ones_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the secret 'door' has 6 characters: 8 or more are allowed"):
        confidential("secret", "door")


def test_all_offenders_are_named() -> None:
    """Each that does not pass is named with its reason."""

    def check(number: int) -> None:
        assert number < 3, "it is too great"
        assert 1 / number

    with pytest.raises(AssertionError) as caught:
        every([0, 1, 2, 3, 4], check)
    said = str(caught.value)
    assert said.splitlines()[0] == "3 of 5 do not pass"
    for line in ("0: ZeroDivisionError: division by zero", "3: AssertionError: it is too great", "4: AssertionError:"):
        assert line in said
    assert "1: " not in said
    every([1, 2], check)


def test_nothing_to_check_is_a_failure() -> None:
    """An empty list would make a test that cannot fail."""
    with pytest.raises(AssertionError, match="nothing to check"):
        every([], print)
