"""Faults of the database: its sessions, its processes, its room."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from tests.chaos.database import AWAY, Own, Sql, postmaster
from tests.chaos.faults.fault import Fault, send
from tests.chaos.site import LEASE_S, Site
from tests.support.waiting import is_alive, until

if TYPE_CHECKING:
    from asyncpg import Connection, Record

_TERMINATE: Final = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'pulse %'"
)
_BACKENDS: Final = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pulse %' ORDER BY pid"
TERMINATE_EVERY_S: Final = 0.5
ROOM_BYTES: Final = 96 * 1024 * 1024
ALL_CONNECTIONS: Final = 1000
END_S: Final = 20.0


class TerminateBackends(Fault):
    row, name = 10, "terminate-backends"
    held_s: ClassVar = (2.0, 10.0)

    def __init__(self, site: Site, rng: random.Random) -> None:
        super().__init__(site, rng)
        self.rounds = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def inject(self) -> None:
        self._thread.start()

    def heal(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        if not self.rounds:
            self.gave_up = "the database could not be reached, not even once"

    def _run(self) -> None:
        sql = Sql(self.site.database.dsn)
        try:
            while not self._over.wait(TERMINATE_EVERY_S):
                with contextlib.suppress(*AWAY):
                    sql.rows(_TERMINATE, within_s=0.0)
                    self.rounds += 1
        finally:
            sql.close()


class KillBackend(Fault):
    """SIGKILL of one backend: PostgreSQL ends all others and recovers."""

    row, name = 11, "kill-backend"

    def inject(self) -> None:
        self.hit(lambda: backends(self.site), signal.SIGKILL, "pulse has no session")


class KillPostmaster(Fault):
    """SIGKILL of the postmaster, whose children have to notice."""

    row, name = 12, "kill-postmaster"
    bar_s = 25.0
    number: ClassVar = signal.SIGKILL

    def inject(self) -> None:
        pid = postmaster(self.site.database)
        send(pid, self.number)
        until(lambda: not is_alive(pid), "the postmaster ends", END_S)

    def heal(self) -> None:
        self.site.database.up()


class QuitPostmaster(KillPostmaster):
    """An immediate shutdown: without a checkpoint, so that the next start recovers."""

    row, name = 13, "quit-postmaster"
    number: ClassVar = signal.SIGQUIT


class StopDatabase(Fault):
    row, name = 14, "stop-database"
    alone = True
    stalls = True
    held_s: ClassVar = (LEASE_S * 0.5, LEASE_S * 3)
    bar_s = 25.0

    @classmethod
    def missing(cls, site: Site) -> str | None:
        return None if isinstance(site.database, Own) else "the supervisor would start its own database again"

    def inject(self) -> None:
        self.site.database.down()

    def heal(self) -> None:
        self.site.database.up()


class FillTablespace(Fault):
    """The tablespace of pulse.jobs is full (53100), while everything else has room."""

    row, name = 16, "fill-tablespace"
    alone = True
    stalls = True
    held_s: ClassVar = (3.0, 6.0)
    bar_s = 25.0
    _places: ClassVar[dict[str, Path]] = {}

    @classmethod
    def missing(cls, site: Site) -> str | None:
        if not isinstance(site.database, Own):
            return "the database must outlive its supervisor"
        place = Path(tempfile.mkdtemp(prefix="pulse-m-"))
        try:
            done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, text=True, check=False)
            if done.returncode:
                return f"no file system can be mounted: {done.stderr.strip()}"
            subprocess.run(["umount", place], check=False)
        except OSError as error:
            return str(error)
        finally:
            place.rmdir()
        return None

    def inject(self) -> None:
        place = self._places.get(self.site.database.dsn) or self._move()
        free = shutil.disk_usage(place).free
        with (place / "ballast").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, free - 8192))

    def heal(self) -> None:
        place = self._places.get(self.site.database.dsn)
        if place is not None:
            (place / "ballast").unlink(missing_ok=True)

    def _move(self) -> Path:
        owner = self.site.database.data_dir.stat()
        place = Path(tempfile.mkdtemp(prefix="pulse-m-"))
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "tmpfs", place], check=True)
        self._places[self.site.database.dsn] = place
        table = place / "table"
        table.mkdir(0o700)
        os.chown(table, owner.st_uid, owner.st_gid)
        place.chmod(0o711)
        self.site.sql.rows(f"CREATE TABLESPACE chaos LOCATION '{table}'")
        self.site.sql.rows("ALTER TABLE pulse.jobs SET TABLESPACE chaos")
        return place

    @classmethod
    def clear(cls, site: Site) -> None:
        place = cls._places.pop(site.database.dsn, None)
        if place is not None:
            subprocess.run(["umount", "-l", place], check=False)
            place.rmdir()


class _Holding(Fault):
    def __init__(self, site: Site, rng: random.Random) -> None:
        super().__init__(site, rng)
        self.held: list[Connection[Record]] = []

    def heal(self) -> None:
        self.site.sql.let_go(self.held)


class ExhaustConnections(_Holding):
    """Others hold every connection that the database has (53300)."""

    row, name = 17, "exhaust-connections"
    held_s: ClassVar = (2.0, 6.0)

    def inject(self) -> None:
        self.held = self.site.sql.hold(ALL_CONNECTIONS)


class StopBackend(Fault):
    """SIGSTOP of a backend: a statement that never answers, on a connection that looks alive."""

    row, name = 20, "stop-backend"
    stalls = True
    held_s: ClassVar = (2.0, 12.0)
    bar_s = 25.0
    _pid = 0

    def inject(self) -> None:
        self._pid = self.hit(lambda: backends(self.site), signal.SIGSTOP, "pulse has no session")

    def heal(self) -> None:
        if self._pid and _is_backend(self._pid):
            send(self._pid, signal.SIGCONT)


class PinSnapshot(_Holding):
    """A transaction that holds a snapshot: nothing that died since can be cleaned up."""

    row, name = 48, "pin-snapshot"
    held_s: ClassVar = (5.0, 30.0)

    def inject(self) -> None:
        self.held = self.site.sql.hold()
        for one in self.held:
            self.site.sql.on(one, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pulse.jobs")


class LockTable(_Holding):
    """Somebody locks the whole table: a migration, a careless ALTER TABLE; or CREATE INDEX, so that reads go on."""

    row, name = 53, "lock-table"
    stalls = True
    held_s: ClassVar = (1.0, 8.0)
    bar_s = 25.0

    def inject(self) -> None:
        self.held = self.site.sql.hold()
        for one in self.held:
            mode = self.rng.choice(("ACCESS EXCLUSIVE", "SHARE"))
            self.site.sql.on(one, f"BEGIN; LOCK TABLE pulse.jobs IN {mode} MODE")


class RaisingTrigger(Fault):
    """A trigger of a user raises for some jobs: at their claim, or at their end."""

    row, name = 57, "raising-trigger"
    held_s: ClassVar = (2.0, 10.0)

    def inject(self) -> None:
        status, digit = self.rng.choice(("RUNNING", "COMPLETED")), self.rng.choice("0123456789abcdef")
        self.site.sql.rows(
            "CREATE OR REPLACE FUNCTION public.chaos_refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN RAISE EXCEPTION ''not with me''; END'"
        )
        self.site.sql.rows(
            "CREATE OR REPLACE TRIGGER chaos_refuse BEFORE UPDATE ON pulse.jobs FOR EACH ROW "
            f"WHEN (new.status = '{status}' AND new.id::text LIKE '%{digit}') EXECUTE FUNCTION public.chaos_refuse()"
        )

    def heal(self) -> None:
        self.site.sql.rows("DROP TRIGGER IF EXISTS chaos_refuse ON pulse.jobs")


class DropConstraint(Fault):
    """The key of the attempts is gone: no attempt can be written (42P10)."""

    row, name = 58, "drop-constraint"
    stalls = True
    held_s: ClassVar = (2.0, 8.0)

    def inject(self) -> None:
        self.site.sql.rows("ALTER TABLE pulse.attempts DROP CONSTRAINT IF EXISTS attempts_pkey")

    def heal(self) -> None:
        there = "SELECT count(*) FROM pg_constraint WHERE conname = 'attempts_pkey'"
        if not self.site.sql.value(there):
            self.site.sql.rows("ALTER TABLE pulse.attempts ADD PRIMARY KEY (job_id, attempt)")


def backends(site: Site) -> list[int]:
    return [row["pid"] for row in site.sql.rows(_BACKENDS)]


def _is_backend(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"postgres: ")
    except OSError:
        return False
