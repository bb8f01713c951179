"""Scenes with a producer beside the worker: steady, pinned, soak."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from bench.bare import BIN_S
from bench.recovery_scene import BenchError
from bench.results import Sample
from bench.stage import END_S, Sql, Stage, System
from bench.usage import rss_bytes

WARM_UP_S: Final = 2.0  # a process is started, and imports the SDK
LAST_S: Final = 10.0
MINUTE_S: Final = 60.0
RETENTION_S: Final = 60.0  # of a soak: from the second minute on as much is deleted as comes in
LEAST_LOOKS: Final = 5  # of a soak of less than five minutes
MB: Final = 1e6
PER_BIN: Final = """
    SELECT floor(extract(epoch FROM completed_at - to_timestamp($1)) / $3::float8)::int AS bin, count(*) AS jobs
    FROM pulse.jobs WHERE completed_at >= to_timestamp($1) AND completed_at < to_timestamp($1 + $2::float8)
    GROUP BY bin"""
# An index may be renamed by a new version: sizes are listed by the names of that day.
BYTES: Final = "SELECT pg_table_size('pulse.jobs')::float8 AS heap, pg_indexes_size('pulse.jobs')::float8 AS indexes"


@dataclass(frozen=True, slots=True)
class Look:
    """What a soak looks at every minute, in bytes; how many handlers had begun by then, since the rows go."""

    at_s: float
    begun: int
    heap: float
    indexes: float
    rss: float


def rates(system: System, from_s: float, seconds: float, bin_s: float) -> list[float]:
    """Jobs completed per second in each of the bins, by the times in the table."""
    bins = [0.0] * max(1, round(seconds / bin_s))
    bin_s = seconds / len(bins)
    for row in system.sql.rows(PER_BIN, from_s, seconds, bin_s):
        if 0 <= row["bin"] < len(bins):
            bins[row["bin"]] = row["jobs"] / bin_s
    return bins


@contextmanager
def snapshot(dsn: str) -> Generator[None]:
    """A session that holds a snapshot: what dies from now on cannot be removed."""
    with Sql(dsn) as holder:
        holder.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.value("SELECT count(*) FROM pulse.jobs")
        yield


def flowed(stage: Stage, *, pinned: bool = False) -> list[float]:
    """A steady state; the jobs per second of each bin."""
    seconds = stage.size.steady_s
    with stage.fresh() as dsn, stage.system(dsn) as system:
        with (
            snapshot(dsn) if pinned else contextlib.nullcontext(),
            stage.producer(system, WARM_UP_S + seconds + END_S),
        ):
            time.sleep(WARM_UP_S)
            from_s = time.time()
            time.sleep(seconds)
        bins = rates(system, from_s, seconds, BIN_S)
    if not all(bins):
        raise BenchError(f"a bin of {BIN_S:g} s without one job: {bins}")
    return bins


def unpinned(stage: Stage) -> tuple[list[float], list[float]]:
    """The steady state of pulse and of the yardstick, once in a round."""
    if "steady" not in stage.kept:
        seconds = stage.size.bare_s
        if stage.round % 2:
            bare = stage.bare("steady", seconds=seconds)
            stage.kept["steady"] = flowed(stage), bare.bins
        else:
            bins = flowed(stage)
            stage.kept["steady"] = bins, stage.bare("steady", seconds=seconds).bins
    found: tuple[list[float], list[float]] = stage.kept["steady"]
    return found


def steady(stage: Stage) -> list[Sample]:
    """About 5000 jobs wait all along."""
    bins, bare = unpinned(stage)
    reference = statistics.fmean(bare)
    return [
        Sample(f"steady state, {stage.size.steady_s:g} s", statistics.fmean(bins), "jobs/s", reference, bins=(*bins,)),
        Sample(f"steady state, slowest {BIN_S:g} s", min(bins), "jobs/s", reference),
    ]


def last(bins: list[float]) -> float:
    """The rate of the last ten seconds."""
    return statistics.fmean(bins[-max(1, round(LAST_S / BIN_S)) :])


def pinned(stage: Stage) -> list[Sample]:
    """The same beside an old snapshot."""
    free, bare = unpinned(stage)
    bins = flowed(stage, pinned=True)
    mean, at_last, reference = statistics.fmean(bins), last(bins), statistics.fmean(bare)
    return [
        Sample(f"pinned, {stage.size.steady_s:g} s", mean, "jobs/s", reference, bins=(*bins,)),
        Sample("pinned, last 10 s", at_last, "jobs/s", reference),
        Sample("pinned, last 10 s", at_last, "jobs/s", last(free), "the same unpinned"),
    ]


def soak(stage: Stage) -> list[Sample]:
    """A long time at a given rate, while what is done is deleted after a minute."""
    seconds, rate = stage.size.soak_s, float(stage.size.soak_rate)
    step_s = min(MINUTE_S, seconds / LEAST_LOOKS)
    with (
        stage.fresh() as dsn,
        stage.system(dsn, env={"PULSE_RETENTION_S": f"{RETENTION_S}"}) as system,
        stage.producer(system, WARM_UP_S + seconds + END_S, rate),
    ):
        time.sleep(WARM_UP_S)
        began_s, looks = time.monotonic(), [look(system)]
        for number in range(round(seconds / step_s)):
            time.sleep(max(0.0, began_s + (number + 1) * step_s - time.monotonic()))
            looks.append(look(system))
    bins = [(new.begun - old.begun) / (new.at_s - old.at_s) for old, new in itertools.pairwise(looks)]
    del looks[0]
    parts = {
        "table": [one.heap / MB for one in looks],
        "indexes": [one.indexes / MB for one in looks],
        "dispatcher RSS": [one.rss / MB for one in looks],
    }
    return [
        Sample(f"soak, {seconds:g} s at {rate:,.0f} jobs/s", statistics.fmean(bins), "jobs/s", bins=(*bins,)),
        Sample("soak, slowest part", min(bins), "jobs/s", rate, "what was submitted"),
        *(Sample(f"soak, {name} at the end", some[-1], "MB", bins=(*some,)) for name, some in parts.items()),
    ]


def look(system: System) -> Look:
    """As of now."""
    at_s, begun = time.monotonic(), system.count.value
    heap, indexes = system.sql.rows(BYTES)[0]
    return Look(at_s, begun, heap, indexes, rss_bytes(system.pids["dispatcher"]))
