"""
`python -m bench.upgrade`: does an upgrade of a large table hold up the jobs of a server that works meanwhile?

A system of its own with millions of rows. A producer submits jobs at an even pace, a worker runs them, and `pulse
migrate` takes the steps of a release that was made up (`upgrade.sql`). Told are, before and during it, how long jobs
take from their submit to their claim, by the database's clock, and the longest wait of a server's session for a lock,
which is looked for every few milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import asyncpg

from bench.load import Figure, new_jobs
from bench.scale import COMPLETED, LATER, put
from bench.stage import APP, Sql
from pulse.client.client import Client
from pulse.ops.demo.server import running_server
from pulse.store.admin import schema
from pulse.store.admin.upgrade.runner import upgrade
from pulse.store.connections.pool import Target

STEPS: Final = Path(__file__).with_name("upgrade.sql")
PACE_S: Final = 0.01  # between two calls, of this many jobs
JOBS: Final = 2
LOOK_S: Final = 0.005
WAITS: Final = """
    SELECT max(extract(epoch FROM clock_timestamp() - l.waitstart))::float8
    FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE NOT l.granted AND a.application_name LIKE 'pulse %' AND a.application_name <> 'pulse migrate'"""
LATENCY: Final = """
    SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY s), percentile_cont(0.99) WITHIN GROUP (ORDER BY s), max(s)
    FROM (SELECT greatest(0, extract(epoch FROM started_at - submitted_at)::float8 * 1000) AS s FROM pulse.jobs
          WHERE status = 'COMPLETED' AND submitted_at BETWEEN to_timestamp($1) AND to_timestamp($2)
            AND topic = 'default' AND args ? 'pad') AS found"""
ATTEMPTS: Final = "SELECT count(*) FROM pulse.jobs WHERE args ? 'pad' AND (attempts <> 1 OR status <> 'COMPLETED')"


class Load:
    """A producer and a watcher of locks, each in a thread."""

    def __init__(self, client: Client, dsn: str) -> None:
        self._client = client
        self._dsn = dsn
        self._done = threading.Event()
        self.submitted = 0
        self.longest_wait_s = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Work, for the time of the block."""
        threads = [threading.Thread(target=one) for one in (self._submit, self._look)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._done.set()
            for thread in threads:
                thread.join()

    def _submit(self) -> None:
        while not self._done.wait(PACE_S):
            self.submitted += len(self._client.submit_many(new_jobs("noop", self.submitted, JOBS)))

    def _look(self) -> None:
        asyncio.run(self._watch())

    async def _watch(self) -> None:
        connection = await asyncpg.connect(self._dsn)
        while not self._done.wait(LOOK_S):
            waited_s = await connection.fetchval(WAITS)
            self.longest_wait_s = max(self.longest_wait_s, waited_s or 0.0)
        connection.terminate()


@contextlib.contextmanager
def next_release() -> Iterator[None]:
    """Let this program be the release after this one, which brought the steps of `upgrade.sql`."""
    before, version = schema.VERSIONS, schema.SCHEMA_VERSION + 1
    with tempfile.TemporaryDirectory(prefix="pulse-bench-") as name:
        shutil.copy(STEPS, Path(name) / f"{version}.sql")
        schema.RELEASES[version] = "made up"
        schema.VERSIONS, schema.SCHEMA_VERSION = Path(name), version  # type: ignore[misc] # it is the bench's to pretend
        try:
            yield
        finally:
            del schema.RELEASES[version]
            schema.VERSIONS, schema.SCHEMA_VERSION = before, version - 1  # type: ignore[misc] # as above


def measured(rows: int, quiet_s: float) -> Iterator[Figure]:
    """Half of the rows are completed jobs, half are due later; for *quiet_s* there is no upgrade."""
    with running_server(APP, {}, processes=1, concurrency=100) as client:
        database = client.status()["database"]
        assert isinstance(database, dict)
        dsn = str(database["dsn"])
        with Sql(dsn) as sql:
            for statement in (COMPLETED, LATER):
                put(sql, statement, rows // 2)
            sql.run("ANALYZE pulse.jobs")
            load = Load(client, dsn)
            with load.running(), next_release():
                began_s = time.time()
                time.sleep(quiet_s)
                before_s, waited_s = time.time(), load.longest_wait_s
                load.longest_wait_s = 0.0
                asyncio.run(upgrade(Target(dsn, "pulse migrate"), lambda text: print(f"    {text}", flush=True)))
                after_s = time.time()
            yield Figure(f"upgrade of {rows:,} rows", after_s - before_s, "s")
            yield Figure("longest wait of the server for a lock, before", 1000 * waited_s, "ms")
            yield Figure("the same during the upgrade", 1000 * load.longest_wait_s, "ms")
            yield from latencies(sql, "before", began_s, before_s)
            yield from latencies(sql, "during the upgrade", before_s, after_s)
            while sql.value("SELECT EXISTS (SELECT FROM pulse.jobs WHERE args ? 'pad' AND completed_at IS NULL)"):
                time.sleep(LOOK_S)
            yield Figure(f"of {load.submitted:,} jobs: not completed by one attempt", sql.value(ATTEMPTS), "jobs")


def latencies(sql: Sql, when: str, first_s: float, last_s: float) -> Iterator[Figure]:
    """How long jobs took from submit to claim, of those that were submitted between the two."""
    (row,) = sql.rows(LATENCY, first_s, last_s)
    for name, value in zip(("p50", "p99", "longest"), row, strict=True):
        yield Figure(f"submit to claim {when}, {name}", value, "ms")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.upgrade", description="an upgrade under load")
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows in the table")
    parser.add_argument("--quiet", type=float, default=60.0, metavar="SECONDS", help="how long without an upgrade")
    options = parser.parse_args()
    for figure in measured(options.rows, options.quiet):
        print(f"{figure.name:<60} {figure.value:10.1f} {figure.unit}", flush=True)


if __name__ == "__main__":
    main()
