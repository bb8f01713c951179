"""
The yardstick: one program, two statements, no workers: `python -m bench.bare MODE DSN`.

It claims 500 rows by SKIP LOCKED and completes them by unnest, on a table of the shape of pulse's (`bare.sql`). What
it reaches is what this machine and this PostgreSQL can do for a queue of such rows at this moment. Prints one JSON
document. The table `bare` of the database is dropped first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import asyncpg
import uvloop

from bench.count import Count
from bench.load import ARG_BYTES, SUBMIT_BATCH, batches
from bench.usage import cpu_s, family_cpu_s
from pulse.system import processes

if TYPE_CHECKING:
    from asyncpg import Connection, Record

    Database: TypeAlias = Connection[Record]

BATCH: Final = 500
DEPTH: Final = 5000  # that wait in the steady state
WARM_UP_S: Final = 1.0
IDLE_S: Final = 0.003
BIN_S: Final = 5.0
LATENCY_PER_S: Final = 50.0
END_S: Final = 10.0  # for the producer to end by itself
# As on pulse's own hot path: without them the plans depend on when ANALYZE ran last.
PLAN: Final[Mapping[str, str]] = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
SEED: Final = """
    INSERT INTO bare (id, topic, name, args)
    SELECT uuidv7(), 'default', 'noop', jsonb_build_object('number', n, 'pad', repeat('x', $2::int))
    FROM generate_series(1, $1::int) AS n"""
INSERT: Final = """
    INSERT INTO bare (id, topic, name, args)
    SELECT uuidv7(), 'default', 'noop', a::jsonb FROM unnest($1::text[]) AS a"""
CLAIM: Final = """
    WITH picked AS (
        SELECT id FROM bare WHERE topic = 'default' AND status IN ('PENDING', 'RETRYING') AND next_run_at <= now()
        ORDER BY priority DESC, next_run_at LIMIT $1 FOR UPDATE SKIP LOCKED)
    UPDATE bare b SET status = 'RUNNING', attempts = attempts + 1, locked_by = 'bare', started_at = clock_timestamp(),
        lease_until = clock_timestamp() + interval '30 seconds'
    FROM picked p WHERE b.id = p.id AND b.status::text IN ('PENDING', 'RETRYING')
    RETURNING b.id, b.attempts, b.name, b.topic, b.args::text, b.timeout_s"""
COMPLETE: Final = """
    UPDATE bare b SET status = 'COMPLETED', completed_at = clock_timestamp(), locked_by = NULL, lease_until = NULL
    FROM unnest($1::uuid[], $2::int[]) AS d(id, attempts)
    WHERE b.id = d.id AND b.status::text = 'RUNNING' AND b.attempts = d.attempts AND b.locked_by = 'bare'
    RETURNING b.id"""


def rate_after(marks: list[tuple[float, int]], skip: float = 0.05) -> float:
    """Rows per second from the moment at which the part *skip* was done; *marks* are (when, done by then)."""
    total = marks[-1][1]
    at_s, done = next((mark for mark in marks if mark[1] >= skip * total), marks[0])
    if done == total:  # all in one statement: there is no time between
        at_s, done = marks[0][0], 0
    return (total - done) / max(1e-9, marks[-1][0] - at_s)


async def turn(database: Database) -> int:
    """Claim and complete once; how many."""
    rows = await database.fetch(CLAIM, BATCH)
    if rows:
        await database.fetch(COMPLETE, [row[0] for row in rows], [row[1] for row in rows])
    return len(rows)


async def drain(database: Database, options: argparse.Namespace) -> dict[str, object]:
    """Rows that wait are claimed and completed."""
    await database.execute(SEED, options.jobs, max(0, options.arg_bytes - 30))
    await database.execute("CHECKPOINT")
    postmaster = processes.parent(await database.fetchval("SELECT pg_backend_pid()"))
    before = cpu_s(processes.own_pid()), family_cpu_s(postmaster)
    marks, done = [(time.perf_counter(), 0)], 0
    while moved := await turn(database):
        done += moved
        marks.append((time.perf_counter(), done))
    used = cpu_s(processes.own_pid()) - before[0], family_cpu_s(postmaster) - before[1]
    return {"rate": rate_after(marks), "cpu_us": {"bare": 1e6 * used[0] / done, "postgres": 1e6 * used[1] / done}}


async def steady(database: Database, options: argparse.Namespace) -> dict[str, object]:
    """The same with a process beside it that inserts."""
    with tempfile.TemporaryDirectory(prefix="pulse-bench-") as directory:
        path = Path(directory) / "count"
        count, seconds = Count(path), WARM_UP_S + options.seconds
        words = ["produce", options.dsn, "--count", str(path), "--seconds", str(seconds + END_S)]
        producer = subprocess.Popen([sys.executable, "-m", "bench.bare", *words])  # noqa: ASYNC220 - nothing runs yet
        try:
            return await _steady(database, count, options.seconds)
        finally:
            producer.kill()
            producer.wait()


async def _steady(database: Database, count: Count, seconds: float) -> dict[str, object]:
    while not count.value:  # the producer has come up when the first rows are there
        await _add(database, count)
    began_s = time.perf_counter() + WARM_UP_S
    bins: list[float] = [0.0] * max(1, round(seconds / BIN_S))
    bin_s = seconds / len(bins)
    while (now_s := time.perf_counter()) < began_s + seconds:
        moved = await _add(database, count)
        if now_s >= began_s:
            bins[min(len(bins) - 1, int((now_s - began_s) / bin_s))] += moved / bin_s
    return {"rate": statistics.fmean(bins), "bins": bins}


async def _add(database: Database, count: Count) -> int:
    moved = await turn(database)
    count.add_many(moved)
    if not moved:
        await asyncio.sleep(IDLE_S)
    return moved


async def produce(database: Database, options: argparse.Namespace) -> dict[str, object]:
    """Keep rows waiting, by what was claimed."""
    count, sent, end_s = Count(options.count), 0, time.monotonic() + options.seconds
    while time.monotonic() < end_s:
        if sent - count.value > DEPTH - SUBMIT_BATCH:
            await asyncio.sleep(IDLE_S)
            continue
        await database.execute(INSERT, _args(sent, SUBMIT_BATCH, options.arg_bytes))
        sent += SUBMIT_BATCH
    return {}


async def submit(database: Database, options: argparse.Namespace) -> dict[str, object]:
    """Plain INSERTs of 1000 rows."""
    began_s = time.perf_counter()
    for first, length in batches(options.jobs, options.arg_bytes):
        await database.execute(INSERT, _args(first, length, options.arg_bytes))
    return {"rate": options.jobs / (time.perf_counter() - began_s)}


async def latency(database: Database, options: argparse.Namespace) -> dict[str, object]:
    """INSERT of one row and its claim, 50 times a second."""
    values: list[float] = []
    began_s = time.perf_counter()
    for number in range(options.jobs):
        await asyncio.sleep(max(0.0, began_s + number / LATENCY_PER_S - time.perf_counter()))
        from_s = time.perf_counter()
        await database.execute(INSERT, _args(number, 1, options.arg_bytes))
        rows = await database.fetch(CLAIM, BATCH)
        values.append(1000 * (time.perf_counter() - from_s))
        await database.fetch(COMPLETE, [row[0] for row in rows], [row[1] for row in rows])
    return {"values_ms": values}


def _args(first: int, count: int, arg_bytes: int) -> list[str]:
    pad = "x" * max(0, arg_bytes - 30)
    return [json.dumps({"number": number, "pad": pad}) for number in range(first, first + count)]


Mode: TypeAlias = "Callable[[Database, argparse.Namespace], Awaitable[dict[str, object]]]"
MODES: Final[Mapping[str, Mode]] = {
    "drain": drain,
    "steady": steady,
    "submit": submit,
    "latency": latency,
    "produce": produce,
}


async def run(options: argparse.Namespace) -> dict[str, object]:
    """Carry out one mode on a new table; the producer takes the one that is there."""
    database = await asyncpg.connect(options.dsn, server_settings=dict(PLAN))
    try:
        if options.mode != "produce":
            await database.execute(Path(__file__).with_name("bare.sql").read_text("utf-8"))
        return await MODES[options.mode](database, options)
    finally:
        database.terminate()


def main() -> None:
    """Measure, and print the JSON document."""
    parser = argparse.ArgumentParser(prog="python -m bench.bare", description=__doc__)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("dsn", help="of a scratch database")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--arg-bytes", type=int, default=ARG_BYTES)
    parser.add_argument("--count", type=Path, help="of the mode produce: the file with what was claimed")
    print(json.dumps(uvloop.run(run(parser.parse_args()))))


if __name__ == "__main__":
    main()
