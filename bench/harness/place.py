"""PostgreSQL with the harness's configuration, and the environments of the harness and of its adapters."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg

from bench.harness.stand_in import Program
from bench.peers.install import find_node, made_once, python_environment, run_installer
from bench.peers.peer import Unavailable
from pulse_supervisor.postgres import embedded

PORT: Final = 15555  # the harness's own; also its user, which is its password
USER: Final = "bench"
PYTHON_AT_LEAST: Final = (3, 12)
_NEWER: Final = ("python3.14", "python3.13", "python3.12")
_SETTING: Final = re.compile(r"^(\w+)\s*=\s*'?([^'#\n]*?)'?\s*(?:#.*)?$", re.MULTILINE)
_OURS: Final = {"port": str(PORT), "listen_addresses": "localhost"}


class Postgres:
    """
    The embedded PostgreSQL, as the harness wants it.

    Args:
        directory: For all that it keeps.
        settings: The harness's ``postgres.conf``.
    """

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        access = directory / "access.conf"
        access.write_text("local all all trust\nhost all all 127.0.0.1/32 trust\nhost all all ::1/128 trust\n", "utf-8")
        access.chmod(0o644)
        told = {**settings, **_OURS, "hba_file": str(access)}
        self._server = embedded.prepare(directory / "postgres", embedded_user=None, log=_ignore, settings=told)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        asyncio.run(_make_user(self._server.dsn.replace("5432", str(PORT))))

    def start(self) -> None:
        """Start it, unless it runs."""
        if self._process is None:
            self._process = embedded.run(self._server, _ignore)

    def stop(self) -> None:
        """Stop it, if it runs."""
        if self._process is not None:
            embedded.stop(self._process)
            self._process = None

    def is_running(self) -> bool:
        """Whether it runs."""
        return self._process is not None

    def close(self) -> None:
        """Stop it for good."""
        self.stop()
        embedded.release(self._server)


def settings_of(clone: Path) -> dict[str, str]:
    """What the harness's ``postgres.conf`` sets."""
    return dict(_SETTING.findall((clone / "postgres.conf").read_text("utf-8")))


def harness_python(cache: Path, clone: Path) -> Path:
    """
    An interpreter with what the harness needs.

    Raises:
        Unavailable: It cannot be installed, or no Python is new enough.
    """
    return python_environment(cache, "harness", _requirements(clone / "pyproject.toml"), python=_new_python())


def programs(cache: Path, clone: Path, systems: Sequence[str]) -> dict[str, Program]:
    """
    The adapters of *systems* that start without docker, by the names of their images.

    Raises:
        Unavailable: One cannot be installed.
    """
    found: dict[str, Program] = {}
    if "procrastinate" in systems:
        place = clone / "procrastinate-bench"
        python = python_environment(
            cache, "procrastinate", _requirements(place / "pyproject.toml"), python=_new_python()
        )
        found["procrastinate-bench"] = Program((str(python), "main.py"), place)
    if "pgboss" in systems:
        place = clone / "pgboss-bench"
        lock = (place / "package-lock.json").read_text("utf-8")

        def make(made: Path) -> None:
            made.mkdir()
            for name in ("package.json", "package-lock.json", "main.js"):
                shutil.copy(place / name, made / name)
            run_installer(
                ["npm", "ci", "--prefix", str(made), "--omit=dev", "--no-audit", "--no-fund", "--ignore-scripts"]
            )

        node = find_node()
        found["pgboss-bench"] = Program((node, "main.js"), made_once(cache, "harness-pgboss", [lock], make))
    return found


@contextmanager
def postgres(directory: Path, clone: Path) -> Iterator[Postgres]:
    """The harness's PostgreSQL."""
    made = Postgres(directory, settings_of(clone))
    try:
        yield made
    finally:
        made.close()


async def _make_user(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"CREATE ROLE {USER} SUPERUSER LOGIN PASSWORD '{USER}'")
        await connection.execute(f"CREATE DATABASE {USER} OWNER {USER}")
    finally:
        await connection.close()


def _requirements(path: Path) -> list[str]:
    document: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
    return [str(one) for one in document["project"]["dependencies"]]


def _new_python() -> str:
    if sys.version_info >= PYTHON_AT_LEAST:
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for name in _NEWER:
        found = [shutil.which(name), *map(str, pyenv.glob(f"*/bin/{name}"))]
        for path in filter(None, found):  # a name in PATH may be pyenv's, which runs nothing without a version
            if subprocess.run([path, "-c", "import venv"], check=False, capture_output=True).returncode == 0:
                return path
    raise Unavailable(f"the harness needs Python {'.'.join(map(str, PYTHON_AT_LEAST))} or newer")


def _ignore(*_: object, **__: object) -> None:
    pass
