"""A whole system under a load, on a server in which faults can be made, and what must always hold."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

from pulse_supervisor.postgres import binaries
from tests.chaos.database import Own, Sql
from tests.support.admin import notify_queue
from tests.support.systems.epoch_kit import Load, beside, overlaps, starts, twice
from tests.support.systems.system import Body
from tests.support.systems.system_kit import END_S, Pool, Whole, measured, since
from tests.support.waiting import is_alive, until

SETTINGS: Final = {"PULSE_LEASE_S": "6", "PULSE_HEARTBEAT_S": "2", "PULSE_SWEEP_S": "2"}
SERVER: Final = {
    "fsync": "off", "max_wal_size": "256MB", "autovacuum": "off", "allow_system_table_mods": "on",
    **notify_queue.SETTINGS,
}  # fmt: skip
HELD_S: Final = 8.0  # how long a fault lasts: longer than a lease
RATE: Final = 20  # starts in a second that are full speed: the load is twice that on a quiet machine
STOP_XIDS: Final = 3_000_000  # of the end of the transaction ids; there the server takes no more writes
SEGMENT_XIDS: Final = 1_048_576  # of which a file of pg_xact tells
SEGMENT_BYTES: Final = 262_144
_OPEN: Final = """
    SELECT count(*) FROM unnest($1::uuid[]) AS w(id) LEFT JOIN pulse.jobs j USING (id)
    WHERE j.status IS DISTINCT FROM 'COMPLETED'"""
_FROZEN_UP_TO: Final = "SELECT relfrozenxid::text::bigint FROM pg_class WHERE oid = $1::text::regclass"


class Trial:
    def __init__(self, whole: Whole, database: Own, sql: Sql, pool: Pool) -> None:
        self.whole = whole
        self.database = database
        self.sql = sql
        self.pool = pool

    @contextlib.contextmanager
    def load(self) -> Iterator[Load]:
        """Jobs come while this lasts: none is lost or runs twice, no process is restarted, all is fast afterwards."""
        before = self._standing()
        with Load(self.whole) as load:
            until(lambda: len(load.acked) > RATE, "jobs are submitted")
            yield load
            self.is_fast(load)
        assert self._standing() == before
        self.completed(load.acked)
        self.ran_once()

    def is_fast(self, load: Load) -> None:
        """As many new jobs start in a second as before; how soon is said, and depends on what else the machine does."""
        healed_s, before = time.monotonic(), set(load.acked)

        def of_last_second() -> int:
            began_s = max(healed_s, time.monotonic() - 1.0)
            return sum(entry.at_s > began_s and entry.job not in before for entry in starts(self.whole))

        until(lambda: of_last_second() >= RATE, "jobs run at full speed")
        measured("until jobs run at full speed", since(healed_s))

    def ran_once(self) -> None:
        """No attempt was handed out twice, and none of a job beside another."""
        assert twice(self.whole) == []
        assert overlaps(self.whole) == []

    def completed(self, jobs: Sequence[UUID]) -> None:
        until(lambda: self.sql.value(_OPEN, list(jobs)) == 0, "all jobs complete", END_S)

    def hold(self, seconds: float = HELD_S) -> None:
        began_s = time.monotonic()
        until(lambda: since(began_s) > seconds, "its time", seconds + END_S)

    def refusals(self, sqlstate: str) -> list[Body]:
        events = ("statement_refused", "job_set_aside", "report_refused")
        return [line for event in events for line in self.whole.log(event, sqlstate=sqlstate)]

    def doctor(self, check: str) -> Body:
        rows: list[Body] = json.loads(self.whole.command("doctor", "--json").stdout)["checks"]
        return next(row for row in rows if row["name"] == check)

    def _standing(self) -> tuple[dict[str, int], list[int], bool]:
        return self.whole.pids(), sorted(self.pool.workers()), is_alive(self.pool.pid)

    # What its server is made of.

    def program(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """A program of PostgreSQL, as the user that the server runs as."""
        owner = self.database.data_dir.stat()
        done = subprocess.run(
            [next(iter(binaries.candidates())) / name, *words], capture_output=True, text=True, check=False,
            cwd=self.database.data_dir, user=owner.st_uid, group=owner.st_gid,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done

    def near_wraparound(self, table: str, meanwhile: Callable[[], object]) -> None:
        """Stop the server, set its transaction ids to where that *table* stops all writes, and start it."""
        oldest = self.sql.value(_FROZEN_UP_TO, table)
        assert isinstance(oldest, int)
        limit = oldest + 2**31 - 1 - STOP_XIDS
        self.database.down()
        segment = self.database.data_dir / "pg_xact" / f"{limit // SEGMENT_XIDS:04X}"
        segment.write_bytes(bytes(SEGMENT_BYTES))
        owner = self.database.data_dir.stat()
        shutil.chown(segment, owner.st_uid, owner.st_gid)
        self.program("pg_resetwal", "-x", str(limit + 1), str(self.database.data_dir))
        meanwhile()
        self.database.up()

    @property
    def place(self) -> tuple[str, ...]:
        query = parse_qs(urlsplit(self.database.dsn).query)
        return ("-h", query["host"][0], "-p", query.get("port", ["5432"])[0], "-U", "pulse", "-d", "postgres")


@contextlib.contextmanager
def trial() -> Iterator[Trial]:
    """A system that runs, with a pool of two processes, on a server beside it."""
    with beside(SERVER, **SETTINGS) as (whole, database, sql):
        yield Trial(whole, database, sql, whole.pool("--processes", "2", "--concurrency", "5"))
