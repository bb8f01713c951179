"""What `pip install pulse-supervisor` brings, and nothing else: enough to submit jobs and to run them."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import tomllib
import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.systems.system_kit import END_S, ROOT, Whole

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.system]

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PACKAGES: Final = ("pulse", "supervisor/pulse_supervisor", "actors/pulse_actors")  # as in the wheel
JOBS: Final = """
import pulse
app = pulse.App()

@app.handler("double", topic="numbers")
async def double(ctx: pulse.Context, number: int) -> int:
    await ctx.progress(0.5)
    return 2 * number
"""
ASK: Final = """
import jobs, pulse, pulse.sql, pulse.testing
for name in dir(pulse):
    getattr(pulse, name)
assert pulse.testing.Inline(jobs.app).run(jobs.double, 2).result == 4
try:
    pulse.sql.submit(jobs, pulse.call(jobs.double, 3))
except pulse.BadRequestError as error:
    assert "a module is no connection" in str(error)
with pulse.Client() as client:
    print(client.result(client.submit(pulse.call(jobs.double, 21)), int, timeout_s=30))
"""


def closure(requirements: Iterable[str]) -> set[str]:
    """The distributions that these need, and those that they need, as far as they are for this Python."""
    found: set[str] = set()
    left = [Requirement(one) for one in requirements]
    while left:
        one = left.pop()
        name = canonicalize_name(one.name)
        if name not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found.add(name)
            left += map(Requirement, distribution(name).requires or [])
    return found


BASE: Final = closure(PROJECT["dependencies"])


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with them alone."""
    directory = tmp_path_factory.mktemp("base")
    venv.create(directory / "env", symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(directory / "env")}))
    installed = Path(sysconfig.get_path("purelib"))
    for name in BASE:
        for top in {file.parts[0] for file in distribution(name).files or [] if file.parts[0] != ".."}:
            (site / top).symlink_to(installed / top)
    for package in PACKAGES:
        (site / Path(package).name).symlink_to(ROOT / package)
    (directory / "jobs.py").write_text(JOBS)
    return directory / "env/bin/python"


@pytest.fixture
def env(whole: Whole, python: Path) -> dict[str, str]:
    return {**os.environ, **whole.env, "PYTHONPATH": str(python.parents[2])}


def test_no_package_of_the_server_is_needed() -> None:
    """Nor one of a driver, a framework or an interface."""
    extras = PROJECT["optional-dependencies"]
    others = {canonicalize_name(Requirement(one).name) for name in extras for one in extras[name]}
    assert {"asyncpg", "trio", "starlette", "jinja2", "psycopg", "sqlalchemy", "django", "pydantic"} <= others
    assert BASE & others == set()


@pytest.fixture
def worker(whole: Whole, env: dict[str, str], python: Path, tmp_path: Path) -> Iterator[Path]:
    """A pool that serves the jobs; what it says."""
    said = tmp_path / "said"
    words = [str(python), "-m", "pulse.cli.main", "worker", "jobs:app", "--processes", "1", "--spares", "0"]
    with said.open("wb") as sink, subprocess.Popen(words, env=env, stderr=sink) as process:
        yield said
        process.terminate()
        assert process.wait(END_S) == 0, said.read_text()


@pytest.mark.rest
def test_it_submits_and_runs_jobs(worker: Path, env: dict[str, str], python: Path) -> None:
    """The first submit may come before the worker has said what it serves."""
    done = subprocess.run([python, "-W", "error", "-c", ASK], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", ""), worker.read_text()


@pytest.mark.parametrize("command", ["worker", "ctl submit", "ctl jobs get"])
def test_commands_show_their_help(command: str, env: dict[str, str], python: Path) -> None:
    words = [str(python), "-m", "pulse.cli.main", *command.split(), "--help"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Usage: pulse {command} [OPTIONS]" in done.stdout
