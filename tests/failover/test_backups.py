"""The recipes of docs/backups.md: a running system backs up by each of them, and goes back to an earlier moment."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.chaos.database import Own, Sql
from tests.docs.blocks import ROOT
from tests.support.checking.markdown import section
from tests.support.servers.postgres import installations
from tests.support.systems.epoch_kit import (
    FLOOR,
    SERVER,
    SETTINGS,
    Load,
    beside,
    held_jobs,
    is_sound,
    more,
    runs_again,
)
from tests.support.systems.system import short_directory
from tests.support.systems.system_kit import Whole
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.rest, pytest.mark.patient]

BASE, REST = "A base backup and archived WAL", "pgBackRest"
RUN_S: Final = 60.0
_FENCE: Final = re.compile(r"^```(ini|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SETTING: Final = re.compile(r"^(\w+) = '?(.*?)'?$", re.MULTILINE)
_SHOWN_TIME: Final = re.compile(r"(?<=')\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00(?=')")
_OF_SYSTEM: Final = [one.directory for one in installations() if one.directory.is_relative_to("/usr")]
_PROGRAMS: Final = next((one for one in _OF_SYSTEM if (one / "pg_basebackup").exists()), None)


class Recipe:
    """A section of the page: what its blocks say, with the places of this test."""

    def __init__(self, heading: str, place: Path) -> None:
        found = _FENCE.findall(section((ROOT / "docs" / "backups.md").read_text("utf-8"), heading))
        self._place = place
        self._config = place / "pgbackrest.conf"
        *files, settings = [source for language, source in found if language == "ini"]
        self.file = files[0] if files else ""
        self.backup, self._restore = [self._here(source) for language, source in found if language == "sh"]
        self.settings = dict(_SETTING.findall(self._here(settings)))

    def restore(self, moment: datetime) -> str:
        text, times = _SHOWN_TIME.subn(f"{moment:%Y-%m-%d %H:%M:%S.%f+00}", self._restore)
        assert times == 1
        return text

    def configure(self, data_dir: Path, host: str, port: str) -> None:
        if self.file:
            text, places = re.subn(r"^pg1-path=.*$", f"pg1-path={data_dir}", self._here(self.file), flags=re.MULTILINE)
            assert places == 1
            more = "".join(f"{name}-path={self._place}\n" for name in ("log", "lock", "spool"))
            text = text.replace("[global]\n", f"[global]\n{more}")
            self._config.write_text(f"{text}pg1-socket-path={host}\npg1-port={port}\npg1-user=pulse\n", "utf-8")

    def _here(self, source: str) -> str:
        return source.replace("/backup/", f"{self._place}/").replace(
            "pgbackrest ", f"pgbackrest --config={self._config} "
        )


class Server:
    """The server of a system, and its administrator."""

    def __init__(self, database: Own, sql: Sql, recipe: Recipe) -> None:
        self._database = database
        self._sql = sql
        self._recipe = recipe
        place = {key: values[0] for key, values in parse_qs(urlsplit(database.dsn).query).items()}
        self._env = {
            "PATH": f"{_PROGRAMS}:{os.defpath}", "PGDATA": str(database.data_dir),
            "PGHOST": place["host"], "PGPORT": place.get("port", "5432"), "PGUSER": "pulse", "PGDATABASE": "postgres",
        }  # fmt: skip
        recipe.configure(database.data_dir, self._env["PGHOST"], self._env["PGPORT"])
        with (database.data_dir / "pg_hba.conf").open("a", encoding="ascii") as file:
            file.write("local replication all trust\n")
        sql.rows("SELECT pg_reload_conf()")

    def back_up(self) -> None:
        """Back up, until a second has begun in which a restore may end: pgBackRest notes seconds alone."""
        self._run(self._recipe.backup)
        ended = self.now()
        until(lambda: self.now().replace(microsecond=0) > ended, "the next second begins")

    def now(self) -> datetime:
        now = self._sql.value("SELECT clock_timestamp() AT TIME ZONE 'UTC'")
        assert isinstance(now, datetime)
        return now

    def restore(self, moment: datetime) -> float:
        """When it takes writes, monotonic."""
        segment = self._sql.value("SELECT pg_walfile_name(pg_switch_wal())")
        archived = "SELECT last_archived_wal >= $1 FROM pg_stat_archiver"
        until(lambda: self._sql.value(archived, segment), "the WAL is archived", RUN_S)
        self._database.down()
        self._run(self._recipe.restore(moment))
        self._database.up()
        until(lambda: self._sql.value("SELECT NOT pg_is_in_recovery()"), "it takes writes", RUN_S)
        return time.monotonic()

    def _run(self, commands: str) -> None:
        owner = self._database.data_dir.stat()
        account: Mapping[str, int] = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
        done = subprocess.run(
            ["bash", "-euc", commands], env=self._env, cwd="/", capture_output=True, text=True, check=False,
            timeout=RUN_S, **account,  # type: ignore[call-overload]
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def backed_up(heading: str) -> Iterator[tuple[Whole, Server, Sql]]:
    """A system on a server that archives its WAL as the page says."""
    with ExitStack() as stack:
        place = stack.enter_context(short_directory(0o711)) / "backup"
        recipe = Recipe(heading, place)
        made = beside({**SERVER, **recipe.settings}, _PROGRAMS, **SETTINGS)
        whole, database, sql = stack.enter_context(made)
        owner = database.data_dir.stat()
        for one in (place, place / "wal"):
            one.mkdir()
            os.chown(one, owner.st_uid, owner.st_gid)
        yield whole, Server(database, sql, recipe), sql


@pytest.mark.skipif(_PROGRAMS is None, reason="no PostgreSQL with pg_basebackup here (package postgresql)")
@pytest.mark.parametrize("heading", [BASE, REST])
def test_a_restore_under_running_workers(heading: str) -> None:
    """Nothing runs twice under one number, or twice at once; new jobs run; status and doctor say so."""
    if heading == REST and shutil.which("pgbackrest") is None:
        pytest.skip("pgbackrest is not installed (package pgbackrest)")
    with backed_up(heading) as (whole, server, sql):
        whole.pool("--processes", "2", "--concurrency", "5")
        with Load(whole):
            more(whole, 20)
            server.back_up()
            held = held_jobs(whole, 3)
            more(whole, 20)
            moment = server.now()
            more(whole, 50)
            held_jobs(whole)
            runs_again(whole, server.restore(moment))
            whole.gate("held").touch()
            for job in held:
                assert whole.jobs().wait(job).attempts == FLOOR + 1
        is_sound(whole)
        (epoch,) = sql.rows("SELECT * FROM pulse.epochs WHERE epoch > 1")
        assert (epoch["epoch"], epoch["attempts_floor"]) == (2, FLOOR)
        (line,) = whole.log("database_went_back")
        assert (line["reopened"], line["epoch"]) == (epoch["reopened"], 2)
        until(lambda: "the database went back to" in whole.command("ctl", "status").stdout, "the dispatcher has looked")
        told = json.loads(whole.command("doctor", "--json").stdout)
        (found,) = [one for one in told["checks"] if one["name"] == "epochs"]
        assert found["state"] == "warning"
        assert "epoch 2 began" in found["text"]
