"""The scene `latency`: from the call of submit to the start of the handler, alone and beside other jobs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from bench.flow import WARM_UP_S, unpinned
from bench.load import submit_evenly
from bench.recovery_scene import BenchError, until
from bench.results import Sample
from bench.stage import END_S, Stage, System

PER_S: Final = 50.0
FIRST: Final = 20  # jobs that are not looked at: connections are made, statements planned
LOAD: Final = 0.5  # of the steady state
STAMPS: Final = "SELECT 1000 * (result #>> '{}')::float8 AS ms FROM pulse.jobs WHERE id = ANY ($1::uuid[])"
UNDONE: Final = """
    SELECT count(*) FROM pulse.jobs
    WHERE id = ANY ($1::uuid[]) AND status::text IN ('PENDING', 'RUNNING', 'RETRYING')"""
LOOK_S: Final = 0.05
PERCENTS: Final = (50, 95, 99)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which *percent* of all lie; the nearest that was measured."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def stamped(system: System, count: int, submit_one: Callable[[dict[str, float]], UUID] | None = None) -> list[float]:
    """
    Submit *count* single jobs at an even pace; milliseconds of each.

    Args:
        system: Where.
        count: How many.
        submit_one: Submits one with these args; None: its client does.

    Raises:
        BenchError: Not all were done in time.
    """
    ids = submit_evenly(submit_one or (lambda args: system.client.submit("stamp", args)), count, PER_S)
    until(lambda: not system.sql.value(UNDONE, ids), "all jobs are done", END_S, LOOK_S)
    values: list[float | None] = [row["ms"] for row in system.sql.rows(STAMPS, ids)]
    found = [value for value in values if value is not None]
    if len(found) < count:
        raise BenchError(f"{len(found)} of {count} jobs were done {END_S:g} s after the last submit")
    return found


def latency(stage: Stage) -> list[Sample]:
    """One job at a time, 50 times a second."""
    rate = LOAD * statistics.fmean(unpinned(stage)[0])
    jobs, seconds = stage.size.latency_jobs, stage.size.loaded_s
    with stage.fresh() as dsn, stage.system(dsn) as system:
        stamped(system, FIRST)
        alone = stamped(system, jobs)
        with stage.producer(system, WARM_UP_S + seconds + 2 * END_S, rate):
            time.sleep(WARM_UP_S)
            beside = stamped(system, max(1, round(seconds * PER_S)))
    bare = stage.bare("latency", jobs=jobs).values_ms
    return [
        Sample(f"latency{label}, p{percent}", percentile(values, percent), "ms", percentile(bare, percent), against)
        for label, values in (("", alone), (" at half of the throughput", beside))
        for percent in PERCENTS
        for against in ("INSERT and claim of one row, alone",)
    ]
