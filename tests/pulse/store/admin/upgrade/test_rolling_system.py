"""A rolling upgrade under load: servers and workers of two releases on one database, whose schema changes meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import asyncpg
import pytest

import pulse
from bench.scale import COMPLETED
from bench.upgrade import WAITS
from pulse.store.admin.schema import SCHEMA_VERSION
from tests.support.servers.postgres import Postgres
from tests.support.systems.releases import next_release
from tests.support.systems.system_kit import Whole, measured, place, run
from tests.support.waiting import until

pytestmark = [
    pytest.mark.process, pytest.mark.postgres, pytest.mark.patient, pytest.mark.rest,
    pytest.mark.timeout(240),
]  # fmt: skip

ROWS: Final = 5_000  # bench/upgrade.py has millions
PACE_S: Final = 0.02
LOOK_S: Final = 0.005
LONGEST_S: Final = 0.1
DEADLINE_S: Final = 60.0  # for what takes seconds on a quiet machine
NEXT: Final = SCHEMA_VERSION + 1
OLD_AND_NEW: Final = "SELECT DISTINCT ran_by FROM pulse.jobs WHERE status = 'COMPLETED' AND args ? 'n'"


class Load:
    """Producers by sockets and by SQL, until ``end`` is called; what failed, and how long sessions waited for locks."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._done = threading.Event()
        self._threads = list[threading.Thread]()
        self.submitted = 0
        self.failed = list[Exception]()
        self.longest_wait_s = 0.0

    def begin(self, path: Path) -> None:
        """Submit through a server."""
        client = pulse.Client(path, timeout_s=30.0)
        self._start(lambda: self._until_done(lambda: client.submit("mark", {"n": 1}), PACE_S), client.close)

    def begin_sql(self) -> None:
        self._start(lambda: asyncio.run(self._by_sql()))

    def watch(self) -> None:
        self._start(lambda: asyncio.run(self._watch()))

    def end(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _start(self, *todo: Callable[[], object]) -> None:
        self._threads.append(threading.Thread(target=lambda: [one() for one in todo]))
        self._threads[-1].start()

    def _until_done(self, submit: Callable[[], object], pace_s: float) -> None:
        while not self._done.wait(pace_s):
            try:
                submit()
            except Exception as error:  # noqa: BLE001 - each counts
                self.failed.append(error)
            self.submitted += 1

    async def _by_sql(self) -> None:
        connection = await asyncpg.connect(self._dsn)
        while not self._done.wait(PACE_S):
            try:
                await connection.fetchval("SELECT pulse.submit(name => 'mark', args => '{\"n\": 2}')")
            except asyncpg.PostgresError as error:
                self.failed.append(error)
            self.submitted += 1
        connection.terminate()

    async def _watch(self) -> None:
        connection = await asyncpg.connect(self._dsn)
        while not self._done.wait(LOOK_S):
            self.longest_wait_s = max(self.longest_wait_s, await connection.fetchval(WAITS) or 0.0)
        connection.terminate()


@contextlib.contextmanager
def loaded(dsn: str) -> Iterator[Load]:
    load = Load(dsn)
    try:
        yield load
    finally:
        load.end()


def goes_on(whole: Whole) -> None:
    """Jobs of all producers are completed from now on, by workers of all pools."""
    before = set(_done(whole))
    until(lambda: len(set(_done(whole)) - before) > 50, "jobs are completed", DEADLINE_S)


def _done(whole: Whole) -> list[object]:
    return [row["id"] for row in whole.rows("SELECT id FROM pulse.jobs WHERE status = 'COMPLETED' AND args ? 'n'")]


def test_a_rolling_upgrade(newest_server: Postgres, tmp_path: Path) -> None:
    """
    No submit fails, and no attempt is charged twice.

    The server of the next release works on the schema of this one, `pulse migrate` upgrades that under load, and
    the server of this release goes on, and starts again, on the schema of the next one. Each has workers of both.
    """
    newer = next_release(tmp_path)
    with (
        newest_server.database() as dsn,
        place(dsn, PULSE_HOST_ID="old") as old,
        place(dsn, PULSE_HOST_ID="new", **newer) as new,
        loaded(dsn) as load,
    ):
        old.start()
        old.rows(COMPLETED, ROWS)
        load.begin(old.path)
        load.begin_sql()
        new.start()
        (said,) = new.log("schema_of_another_release")
        assert (said["found"], said["own"]) == (SCHEMA_VERSION, NEXT)
        load.begin(new.path)
        pools = [
            whole.pool("--processes", "1", env={**old.env, **whole.env, **more}, cwd=cwd)
            for whole in (old, new)
            for more, cwd in (({"PYTHONPATH": old.env["PYTHONPATH"]}, tmp_path.parent), (newer, tmp_path))
        ]
        load.watch()
        goes_on(old)

        migrated = run(
            "pulse.cli.main", ["migrate", "--dsn", dsn], {**new.env, **newer}, cwd=tmp_path, within_s=DEADLINE_S
        )
        assert migrated.returncode == 0, migrated.stderr
        assert migrated.stdout == f"schema pulse upgraded from version {SCHEMA_VERSION} to {NEXT}\n"
        assert measured("longest wait for a lock", load.longest_wait_s) < LONGEST_S
        goes_on(old)
        ended = {(row["outcome"], row["error"]) for row in old.rows("SELECT outcome, error FROM pulse.attempts")}
        assert {outcome for outcome, _ in ended} <= {"released"}, ended  # by a worker whose places were all taken

        assert old.stop() == 0
        old.start()
        (said,) = old.log("schema_of_another_release")
        assert (said["found"], said["own"]) == (NEXT, SCHEMA_VERSION)
        goes_on(new)
        load.end()
        assert load.failed == []
        for whole in (old, new):
            assert (whole.log("statement_refused"), whole.log("database_away")) == ([], [])
        open_jobs = "SELECT count(*) AS count FROM pulse.jobs WHERE completed_at IS NULL"
        until(lambda: old.rows(open_jobs)[0]["count"] == 0, "all are completed", DEADLINE_S)
        tries = "SELECT DISTINCT attempts - uncharged AS tries, crashes, status::text FROM pulse.jobs"
        assert [tuple(row) for row in old.rows(tries)] == [(1, 0, "COMPLETED")]
        assert old.rows("SELECT count(*) AS count FROM pulse.jobs")[0]["count"] == load.submitted + ROWS
        assert old.rows("SELECT DISTINCT region FROM pulse.jobs WHERE region IS DISTINCT FROM 'here'") == []
        workers = {row["ran_by"] for row in old.rows(OLD_AND_NEW)}
        assert len(workers) == len(pools) == 4
