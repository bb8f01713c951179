"""What is shipped: the wheel, built from the sdist as an installer would build it, holds everything that runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import pulse
from pulse.common.version import VERSION
from pulse_supervisor.systemd.units import FILES

pytestmark = pytest.mark.rest
ROOT = Path(__file__).resolve().parents[2]
NAMED = f"pulse_supervisor-{VERSION}"
PACKAGES = {"pulse": "pulse", "pulse_supervisor": "supervisor/pulse_supervisor", "pulse_actors": "actors/pulse_actors"}


def build(source: Path, out: Path, umask: int = 0o022) -> Path:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    env = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, umask=umask)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.parametrize("package", PACKAGES)
def test_wheel_holds_every_file_of_the_packages(in_wheel: set[str], package: str) -> None:
    folder = ROOT / PACKAGES[package]
    files = {path for path in folder.rglob("*") if path.suffix in {".py", ".sql", ".typed"}}
    expected = {f"{package}/{path.relative_to(folder).as_posix()}" for path in files}
    assert f"{package}/__init__.py" in expected
    assert f"{package}/py.typed" in expected
    assert expected <= in_wheel


def test_wheel_holds_the_sql(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("pulse/schema.sql") == (ROOT / "schema.sql").read_bytes()
        for source in (ROOT / "pulse" / "store").rglob("*.sql"):
            assert archive.read(source.relative_to(ROOT).as_posix()) == source.read_bytes()
        for path in FILES.values():
            assert archive.read(f"pulse_supervisor/deploy/{path}") == (ROOT / "deploy" / path).read_bytes()


def test_wheel_holds_nothing_else(in_wheel: set[str], wheel: Path) -> None:
    """Three import names and no more (`supervisor`, `actors` and `tests` are others'), the man page, both commands."""
    tops = {name.split("/")[0] for name in in_wheel}
    assert tops == {*PACKAGES, f"{NAMED}.dist-info", f"{NAMED}.data"}
    data = {name for name in in_wheel if name.startswith(f"{NAMED}.data/")}
    assert data == {f"{NAMED}.data/data/share/man/man1/pulse.1"}
    with zipfile.ZipFile(wheel) as archive:
        declared = archive.read(f"{NAMED}.dist-info/entry_points.txt").decode()
    assert "pulse = pulse.cli.main:main" in declared
    assert "pulse-supervisor = pulse_supervisor.main:main" in declared


def test_wheel_can_be_imported(wheel: Path, tmp_path: Path) -> None:
    """Unpacked elsewhere, without the checkout."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)  # noqa: S202 -- built a moment ago, from this checkout
    code = f"import {', '.join(PACKAGES)}; print({', '.join(f'{one}.__file__' for one in PACKAGES)}, sep=chr(10))"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [Path(line).parent for line in done.stdout.splitlines()] == [tmp_path / package for package in PACKAGES]


def test_sdist_is_complete(built: Path) -> None:
    """One can build, test and read it; it holds nothing that was generated."""
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"LICENSE", "Makefile", "README.md", "CHANGELOG.md", "pyproject.toml", "schema.sql", ".ci/run", ".ci/venv"}
    assert needed <= inside
    assert "tests/packaging/test_packages.py" in inside
    assert not {name for name in inside if name.startswith((".venv/", ".git/", "dist/")) or "__pycache__" in name}


def test_it_can_be_made_again(built: Path, tmp_path: Path) -> None:
    """A build from the sdist, later, elsewhere and with other permissions, makes the same files, bit by bit."""
    (sdist,) = built.glob("*.tar.gz")
    command: list[str | Path] = ["tar", "--no-same-permissions", "--no-same-owner", "-xf", sdist, "-C", tmp_path]
    subprocess.run(command, check=True, umask=0o077)
    source = tmp_path / sdist.name.removesuffix(".tar.gz")
    for path in [source, *source.rglob("*")]:
        os.utime(path, (2_000_000_000, 2_000_000_000))
    shutil.move(source, tmp_path / "elsewhere")
    again = build(tmp_path / "elsewhere", tmp_path / "dist", umask=0o077)
    assert {path.name: path.read_bytes() for path in again.iterdir()} == {
        path.name: path.read_bytes() for path in built.iterdir()
    }


def test_what_it_consists_of(tmp_path: Path) -> None:
    """``make sbom``: a CycloneDX document, valid by its schema, of all that an installation has."""
    recipe = re.sub(r"\s*\\\n\s*", " ", (ROOT / "Makefile").read_text("utf-8"))
    (words,) = re.findall(r"/cyclonedx-py (.*) --output-file", recipe)
    out = tmp_path / "sbom.json"
    command = [str(Path(sys.executable).with_name("cyclonedx-py")), *words.split(), "--output-file", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr  # it validates what it writes
    said = json.loads(out.read_text("utf-8"))
    assert (said["bomFormat"], said["metadata"]["component"]["name"]) == ("CycloneDX", "pulse-supervisor")
    lock = (ROOT / "locks/all.lock").read_text("utf-8")
    assert {one["name"] for one in said["components"]} == set(re.findall(r"^([\w.-]+)==", lock, re.MULTILINE))
    assert all(one["purl"].startswith("pkg:pypi/") for one in said["components"])


def test_what_pyproject_says_twice() -> None:
    """Code and project name one version; the extra `dev`, for older pips, and the group `dev` name the same tools."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["project"]["version"] == pulse.__version__ == VERSION
    assert project["project"]["optional-dependencies"]["dev"] == project["dependency-groups"]["dev"]
