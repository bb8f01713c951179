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

SINGLES: Final = 10  # for so many jobs in a batch, one is submitted by a call of its own, too
SOCKET: Final = "the same through the socket"
UNTYPED: Final = "the same by name and args"
IMPORTS: Final = ("pass", "import pulse", "import pulse; pulse.Client")
IMPORT_RUNS: Final = 15


def calls(stage: Stage) -> list[Sample]:
    """Each way in turn, behind a closed gate, so that all meet the same noise and nothing else runs."""
    with stage.fresh() as dsn, stage.system(dsn) as system, psycopg.connect(dsn, autocommit=True) as connection:
        system.client.pause(reason="bench")
        many, one = _times(_batch_ways(system, connection), _single_ways(system, connection), stage.size.sql_rows)
    return [
        Sample("submit_many, typed calls", many["typed"], "µs", many["plain"], UNTYPED),
        Sample("submit, a typed call", one["typed"], "µs", one["plain"], UNTYPED),
        Sample("pulse.sql.submit_many, psycopg", 1e6 / many["sql"], "jobs/s", 1e6 / many["plain"], SOCKET),
        Sample("pulse.sql.submit, psycopg", one["sql"], "µs", one["plain"], SOCKET),
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


def _times(many: Mapping[str, Way], one: Mapping[str, Way], jobs: int) -> tuple[dict[str, float], dict[str, float]]:
    """Microseconds per job of each way, in batches and by single calls; the order changes with each batch."""
    in_batches, singly = dict.fromkeys(many, 0.0), dict.fromkeys(one, 0.0)
    singles = 0
    for first, length in batches(jobs):
        few = max(1, length // SINGLES)
        _add(in_batches, many, first, length)
        _add(singly, one, first, few)
        singles += few
    return (
        {name: 1e6 * spent / jobs for name, spent in in_batches.items()},
        {name: 1e6 * spent / singles for name, spent in singly.items()},
    )


def _add(used: dict[str, float], ways: Mapping[str, Way], first: int, count: int) -> None:
    for name in sorted(ways, reverse=bool(first // count % 2)):
        jobs = new_jobs("noop", first, count)
        began_s = time.perf_counter()
        ways[name](jobs)
        used[name] += time.perf_counter() - began_s


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
