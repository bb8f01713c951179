"""What a submit of a typed call costs beside one by name and args, and one by SQL beside one through the socket."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import psycopg

import pulse
from bench.app import noop
from bench.load import batches, new_jobs
from bench.results import Sample
from bench.stage import Stage, System
from pulse.client.requests import NewJob

SINGLES: Final = 10  # of so many jobs, one is submitted by a call of its own, too
SOCKET: Final = "the same through the socket"
UNTYPED: Final = "the same by name and args"
IMPORTS: Final = ("pass", "import pulse", "import pulse; pulse.Client")
IMPORT_RUNS: Final = 15


def calls(stage: Stage) -> list[Sample]:
    """Two ways in turn, behind a closed gate, so that both meet the same noise and nothing else runs."""
    with stage.fresh() as dsn, stage.system(dsn) as system, psycopg.connect(dsn, autocommit=True) as connection:
        system.client.pause(reason="bench")
        many, one = _batch_ways(system, connection), _single_ways(system, connection)
        # Not all three: what SQL notifies of is looked at while the next way is measured.
        jobs, few = stage.size.sql_rows, max(1, stage.size.sql_rows // SINGLES)
        typed_many, typed_one = _times(_pair(many, "typed"), jobs), _times(_pair(one, "typed"), few)
        sql_many, sql_one = _times(_pair(many, "sql"), jobs), _times(_pair(one, "sql"), few)
    return [
        Sample("submit_many, typed calls", typed_many["typed"], "µs", typed_many["plain"], UNTYPED),
        Sample("submit, a typed call", typed_one["typed"], "µs", typed_one["plain"], UNTYPED),
        Sample("pulse.sql.submit_many, psycopg", 1e6 / sql_many["sql"], "jobs/s", 1e6 / sql_many["plain"], SOCKET),
        Sample("pulse.sql.submit, psycopg", sql_one["sql"], "µs", sql_one["plain"], SOCKET),
    ]


Way = Callable[[list[NewJob]], object]


def typed(job: NewJob) -> pulse.Call[Any]:
    """A call with the args of *job*."""
    args: Any = job.get("args")
    return pulse.call(noop, number=args["number"], pad=args["pad"])


def _batch_ways(system: System, connection: psycopg.Connection[Any]) -> Mapping[str, Way]:
    return {
        "plain": system.client.submit_many,
        "typed": lambda jobs: system.client.submit_many([typed(job) for job in jobs]),
        "sql": lambda jobs: pulse.sql.submit_many(connection, jobs),
    }


def _single_ways(system: System, connection: psycopg.Connection[Any]) -> Mapping[str, Way]:
    return {
        "plain": lambda jobs: [system.client.submit("noop", job.get("args")) for job in jobs],
        "typed": lambda jobs: [system.client.submit(typed(job)) for job in jobs],
        "sql": lambda jobs: [pulse.sql.submit(connection, "noop", job.get("args")) for job in jobs],
    }


def _pair(ways: Mapping[str, Way], other: str) -> dict[str, Way]:
    return {"plain": ways["plain"], other: ways[other]}


def _times(ways: Mapping[str, Way], jobs: int) -> dict[str, float]:
    """Microseconds per job of each way; the order changes with each batch."""
    used = dict.fromkeys(ways, 0.0)
    for number, (first, length) in enumerate(batches(jobs)):
        for name in sorted(ways, reverse=bool(number % 2)):
            work = new_jobs("noop", first, length)
            began_s = time.perf_counter()
            ways[name](work)
            used[name] += time.perf_counter() - began_s
    return {name: 1e6 * spent / jobs for name, spent in used.items()}


def imports(_stage: Stage) -> list[Sample]:
    """What a program waits for: the shortest of many runs, less what Python itself takes."""
    took = dict.fromkeys(IMPORTS, float("inf"))
    for _ in range(IMPORT_RUNS):
        for code in IMPORTS:
            began_s = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            took[code] = min(took[code], 1e3 * (time.perf_counter() - began_s))
    bare, *others = IMPORTS
    return [Sample(f"python -c '{code}', beyond Python", took[code] - took[bare], "ms") for code in others]
