"""
Schedules: `python -m bench.schedules DSN`, on a database of its own, whose schedules and jobs are deleted first.

Many that are due in the same second, all by cron; one that fires five times a second; and many
that are not due for a day. Prints one JSON document; times are in milliseconds, from when an occurrence is due to when
its job is in the database.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING, Final

import asyncpg
import uvloop

from pulse.store.connections.pool import Target
from pulse.store.store import Store
from pulse_actors.runtime.actor import Turn
from pulse_actors.scheduler.actor import Scheduler

if TYPE_CHECKING:
    from asyncpg import Connection, Record

SAME_SECOND: Final = 10_000
IDLE: Final = 100_000
OFTEN_S: Final = 10.0
EMPTY: Final = "TRUNCATE pulse.jobs, pulse.attempts, pulse.schedules"
CRONS: Final = """
    INSERT INTO pulse.schedules (id, name, topic, kind, cron, timezone, next_run_at)
    SELECT gen_random_uuid(), 'noop', 't', 'cron',
           format('%s * * * * *', extract(second FROM $1::timestamptz)::int), 'UTC', $1
    FROM generate_series(1, $2::int)"""
LATER: Final = """
    INSERT INTO pulse.schedules (id, name, topic, kind, every_s, next_run_at, reckon)
    SELECT gen_random_uuid(), 'noop', 't', 'every', 86400, now() + interval '1 day' + n * interval '1 ms', false
    FROM generate_series(1, $1::int) AS n"""
LATENESS: Final = """
    SELECT count(*) AS jobs, percentile_disc(ARRAY[0.5, 0.99, 1.0]) WITHIN GROUP (ORDER BY late_ms) AS late_ms
    FROM (SELECT extract(epoch FROM submitted_at - occurrence)::float8 * 1000 AS late_ms FROM pulse.jobs) AS j"""


async def work(actor: Scheduler, seconds: float) -> None:
    """Let the actor live as its runtime does."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        result = await actor.turn(Turn(time.monotonic()))
        await asyncio.sleep(result.next_s)


async def late(connection: Connection[Record]) -> dict[str, object]:
    """How many jobs there are, and how late they were."""
    row = await connection.fetchrow(LATENESS)
    if row is None or not row["jobs"]:
        return {"jobs": 0}
    p50, p99, worst = (round(one, 1) for one in row["late_ms"])
    return {"jobs": row["jobs"], "p50_ms": p50, "p99_ms": p99, "max_ms": worst}


async def measure(dsn: str) -> dict[str, object]:
    """All of it."""
    store, connection = Store(Target(dsn, "bench")), await asyncpg.connect(dsn)
    await store.prepare()
    actor = Scheduler(store)
    found: dict[str, object] = {}

    await connection.execute(EMPTY)
    when = await connection.fetchval("SELECT date_trunc('second', now()) + interval '30 s'")
    await connection.execute(CRONS, when, SAME_SECOND)
    started_s = time.monotonic()
    while (await store.schedules.work()).reckon:
        await actor.turn(Turn(time.monotonic()))
    found["reckoned_ms"] = round((time.monotonic() - started_s) * 1000)
    await connection.execute("UPDATE pulse.schedules SET next_run_at = now() + interval '2 s'")
    await work(actor, 6.0)
    found["same_second"] = await late(connection)

    await connection.execute(EMPTY)
    await connection.execute(LATER, IDLE)
    await connection.execute("ANALYZE pulse.schedules")
    cpu_s, began_s = time.process_time(), time.monotonic()
    await work(actor, OFTEN_S)
    found["idle"] = {
        "schedules": IDLE,
        "cpu_percent": round(100 * (time.process_time() - cpu_s) / (time.monotonic() - began_s), 2),
    }
    began_s = time.monotonic()
    for _ in range(100):
        await store.schedules.work()
    found["idle_look_ms"] = round((time.monotonic() - began_s) * 10, 3)

    await connection.execute("SELECT pulse.create_schedule('noop', every_s => 0.2)")
    await work(actor, OFTEN_S)
    found["often"] = await late(connection)
    await connection.execute(EMPTY)
    await connection.close()
    store.close()
    return found


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dsn")
    sys.stdout.write(json.dumps(uvloop.run(measure(parser.parse_args().dsn))) + "\n")


if __name__ == "__main__":
    main()
