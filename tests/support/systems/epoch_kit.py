"""A database that goes back under a running system: base backups, and a load whose ledger tells every start."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, Self
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import asyncpg

import pulse
from pulse.common.ids import uuid7
from tests.chaos.database import Own, Sql, own_database
from tests.support.systems.system_kit import Entry, Whole, measured, place
from tests.support.waiting import until

SETTINGS: Final = {"PULSE_LEASE_S": "6", "PULSE_HEARTBEAT_S": "2", "PULSE_SWEEP_S": "2"}
SERVER: Final = {"fsync": "off", "max_wal_size": "256MB"}
FLOOR: Final = 1000  # of the attempts of the first epoch after the first
PAUSE_S: Final = 0.02  # between two submits of the load


class Backups:
    """Base backups of a server, and restores; *archive*: where it archives its WAL, if it does."""

    def __init__(self, database: Own, directory: Path, archive: Path | None = None) -> None:
        self.database = database
        self._copy = directory / "backup"
        self._archive = archive

    def take(self) -> None:
        asyncio.run(self._take())

    async def _take(self) -> None:
        connection = await asyncpg.connect(self.database.dsn)
        try:
            await connection.execute("SELECT pg_backup_start('test', true)")
            copied(self.database.data_dir, self._copy)
            row = await connection.fetchrow("SELECT labelfile FROM pg_backup_stop(false)")
            copied(self.database.data_dir / "pg_wal", self._copy / "pg_wal")
            assert row is not None
            label = self._copy / "backup_label"
            label.write_text(row["labelfile"], "utf-8")
            shutil.copystat(self._copy / "PG_VERSION", label)
            owner = (self._copy / "PG_VERSION").stat()
            shutil.chown(label, owner.st_uid, owner.st_gid)
        finally:
            await connection.close(timeout=5)

    def restore(self, until_time: datetime | None = None) -> float:
        """
        Stop the server, replace its data by the backup, and start it.

        Args:
            until_time: Recover from the archive up to this moment, by the server's clock.

        Returns:
            When it was there, monotonic.
        """
        self.database.down()
        copied(self._copy, self.database.data_dir)
        (self.database.data_dir / "postmaster.pid").unlink(missing_ok=True)
        if until_time is not None:
            self._recover(until_time)
        self.database.up()
        return time.monotonic()

    def _recover(self, until_time: datetime) -> None:
        data = self.database.data_dir
        owner = (data / "PG_VERSION").stat()
        for segment in (data / "pg_wal").iterdir():  # the archive has all that there was
            if segment.is_file():
                segment.unlink()
        with (data / "postgresql.auto.conf").open("a", encoding="utf-8") as file:
            file.write(
                f"restore_command = 'cp {self._archive}/%f %p'\n"
                f"recovery_target_time = '{until_time.isoformat()}'\n"
                "recovery_target_action = 'promote'\n"
            )
        signal_file = data / "recovery.signal"
        signal_file.touch()
        os.chown(signal_file, owner.st_uid, owner.st_gid)


def copied(source: Path, target: Path) -> None:
    """*target* becomes what *source* is, owners and all; files that go away meanwhile are left out."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", str(source), str(target)], check=False, capture_output=True)


class Load:
    """Submits short jobs all the time, from a thread, whatever the answers are."""

    def __init__(self, whole: Whole) -> None:
        self.acked: list[UUID] = []
        self.refused: list[str] = []
        self._whole = whole
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with pulse.Client(self._whole.path, timeout_s=2.0) as client:
                    while not self._over.wait(PAUSE_S):
                        self.acked.append(client.submit("nap", {"seconds": 0.05}, id=uuid7()))
            except pulse.PulseError as error:
                self.refused.append(str(error))


def starts(whole: Whole) -> list[Entry]:
    return whole.entries(event="start")


def twice(whole: Whole) -> list[tuple[UUID, int]]:
    counted = Counter((entry.job, entry.attempt) for entry in starts(whole))
    return [pair for pair, times in counted.items() if times > 1]


def overlaps(*wholes: Whole) -> list[tuple[Entry, Entry]]:
    open_since: dict[UUID, Entry] = {}
    found: list[tuple[Entry, Entry]] = []
    for entry in sorted((one for whole in wholes for one in whole.entries()), key=lambda one: one.at_s):
        if entry.event == "start":
            if entry.job in open_since:
                found.append((open_since[entry.job], entry))
            open_since[entry.job] = entry
        elif entry.event in {"end", "broken"} and open_since.get(entry.job, entry).attempt == entry.attempt:
            open_since.pop(entry.job, None)
    return found


def runs_again(whole: Whole, back_s: float) -> None:
    """How soon is said: it depends on what else the machine does."""
    first = until(lambda: [one for one in starts(whole) if one.at_s > back_s], "jobs run again")[0]
    measured("until a job runs", first.at_s - back_s)


def more(whole: Whole, count: int) -> None:
    before = len(starts(whole))
    until(lambda: len(starts(whole)) > before + count, "jobs run")


def held_jobs(whole: Whole, count: int = 1) -> list[UUID]:
    jobs: list[UUID] = [whole.jobs().submit("hold", {"gate": str(whole.gate("held"))}) for _ in range(count)]
    for job in jobs:
        whole.wait_entry(job)
    return jobs


def is_sound(whole: Whole) -> None:
    assert twice(whole) == []
    assert overlaps(whole) == []


class Pair:
    """A primary that runs and a standby that streams from it; *standby* is any server, whose data are replaced."""

    def __init__(self, primary: Own, standby: Own, directory: Path) -> None:
        self.primary = primary
        self.standby = standby
        for one in (primary, standby):
            one.down()
            with (one.data_dir / "pg_hba.conf").open("a") as file:
                file.write("local replication all trust\n")
        primary.up()
        Backups(primary, directory).take()
        copied(directory / "backup", standby.data_dir)
        (standby.data_dir / "postmaster.pid").unlink(missing_ok=True)
        query = parse_qs(urlsplit(primary.dsn).query)
        with (standby.data_dir / "postgresql.auto.conf").open("a") as file:
            of_primary = f"host={query['host'][0]} port={query['port'][0]} user=pulse application_name=two"
            file.write(f"primary_conninfo = '{of_primary}'\n")
        signal_file = standby.data_dir / "standby.signal"
        signal_file.touch()
        owner = (standby.data_dir / "PG_VERSION").stat()
        os.chown(signal_file, owner.st_uid, owner.st_gid)
        standby.up()
        until(self.streams, "the standby streams", 30.0)

    @property
    def dsn(self) -> str:
        places = [parse_qs(urlsplit(one.dsn).query) for one in (self.primary, self.standby)]
        hosts, ports = (",".join(place[key][0] for place in places) for key in ("host", "port"))
        return f"postgresql:///postgres?host={hosts}&port={ports}&user=pulse"

    def streams(self) -> bool:
        return bool(ask(self.primary, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"))

    def promote(self) -> float:
        """The primary is gone, the standby becomes one; when it takes writes, monotonic."""
        self.primary.kill()
        assert ask(self.standby, "SELECT pg_promote()")
        return time.monotonic()


def ask(database: Own, *statements: str) -> object:
    """The first value that the last statement returns."""

    async def asked() -> object:
        connection = await asyncpg.connect(database.dsn)
        try:
            return [await connection.fetchval(sql) for sql in statements][-1]
        finally:
            await connection.close(timeout=5)

    return asyncio.run(asked())


@contextlib.contextmanager
def beside(
    server: Mapping[str, str], programs: Path | None = None, /, **settings: str
) -> Iterator[tuple[Whole, Own, Sql]]:
    """A system on a server of its own, started, and a session of a super-user, made anew after the server was away."""
    with contextlib.ExitStack() as stack:
        whole = stack.enter_context(place("", **settings))
        home = whole.directory / "server"
        home.mkdir(mode=0o711)
        database = stack.enter_context(own_database(home, server, programs))
        whole.set_dsn(database.dsn)
        whole.env["PULSE_DSN"] = database.dsn  # of `pulse doctor`
        whole.start()
        yield whole, database, stack.enter_context(contextlib.closing(Sql(database.dsn)))


@contextlib.contextmanager
def replicated(**settings: str) -> Iterator[tuple[Whole, Pair]]:
    """A system that runs on a primary, and knows its standby."""
    with contextlib.ExitStack() as stack:
        whole = stack.enter_context(place("", **SETTINGS, **settings))
        servers: list[Own] = []
        for name in ("one", "two"):
            home = whole.directory / name
            home.mkdir(mode=0o711)
            servers.append(stack.enter_context(own_database(home, SERVER)))
        pair = Pair(servers[0], servers[1], whole.directory)
        whole.set_dsn(pair.dsn)
        whole.start()
        yield whole, pair


@contextlib.contextmanager
def restorable(**settings: str) -> Iterator[tuple[Whole, Backups, Sql]]:
    """A system that runs, on a server beside it that can be restored."""
    with beside(SERVER, **SETTINGS, **settings) as (whole, database, sql):
        yield whole, Backups(database, whole.directory), sql
