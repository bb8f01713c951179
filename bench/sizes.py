"""How much of everything: three sets of numbers, and words that change one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from bench.recovery_scene import BenchError


@dataclass(frozen=True, slots=True)
class Size:
    """
    The numbers of all scenes; the defaults are those of the default set.

    Attributes:
        drain_jobs: That wait in `drain`, `submit` and `cpu`.
        sql_rows: Rows of each way to submit by SQL.
        steady_s: Of `steady` and `pinned`.
        bare_s: Of the yardstick's steady state.
        depth: Jobs that the producer keeps waiting.
        latency_jobs: Single jobs at 50 per second.
        loaded_s: Of latency at half of the throughput.
        plain_jobs: Of `sync`.
        nap_jobs: Of `awaiting`.
        kb_jobs: With args of 1 KB.
        big_jobs: With args of 100 KB.
        idle_s: Of `workers`, for each number of workers.
        most_idle: Greatest number of workers.
        waiting: Rows that are backed off, and as many that are due later, in `scale`.
        completed: Rows that are done, in `scale`.
        restart_jobs: That wait in `restart`.
        topics: In `scale`.
        stability_jobs: Of each run of `stability`.
        stability_runs: How many of them.
        soak_s: Length of `soak`.
        soak_rate: Jobs per second that it is given.
        two_jobs: Of `two`.
        curve_jobs: Of each point of `curves`.
        groups: In `limits`.
        limit_tries: Claims of each case of `limits`.
        rate_s: How long `limits` and `shared` watch a rate.
        kills: Workers that are killed in `shared`, and slots that are handed over.
    """

    drain_jobs: int = 200_000
    sql_rows: int = 20_000
    steady_s: float = 20.0
    bare_s: float = 5.0
    depth: int = 5000
    latency_jobs: int = 150
    loaded_s: float = 3.0
    plain_jobs: int = 20_000
    nap_jobs: int = 50_000
    kb_jobs: int = 50_000
    big_jobs: int = 1000
    idle_s: float = 10.0
    most_idle: int = 1000
    waiting: int = 1_000_000
    completed: int = 1_000_000
    restart_jobs: int = 1_000_000
    topics: int = 10_000
    stability_jobs: int = 50_000
    stability_runs: int = 10
    soak_s: float = 600.0
    soak_rate: int = 12_000
    two_jobs: int = 200_000
    curve_jobs: int = 50_000
    groups: int = 10_000
    limit_tries: int = 30
    rate_s: float = 10.0
    kills: int = 20


MOST: Final = 1e9
DEFAULT: Final = Size()
FULL: Final = replace(
    DEFAULT,
    steady_s=60.0,
    bare_s=20.0,
    latency_jobs=1000,
    loaded_s=20.0,
    completed=10_000_000,
    restart_jobs=10_000_000,
    most_idle=10_000,
    rate_s=60.0,
)
TINY: Final = Size(
    drain_jobs=1500,
    sql_rows=500,
    steady_s=0.5,
    bare_s=1.0,
    depth=2000,
    latency_jobs=20,
    loaded_s=1.0,
    plain_jobs=1000,
    nap_jobs=1000,
    kb_jobs=1000,
    big_jobs=50,
    idle_s=1.0,
    most_idle=10,
    waiting=5000,
    completed=5000,
    restart_jobs=5000,
    topics=100,
    stability_jobs=2000,
    stability_runs=4,
    soak_s=3.0,
    soak_rate=2000,
    two_jobs=3000,
    curve_jobs=500,
    groups=200,
    limit_tries=5,
    rate_s=1.0,
    kills=2,
)
SIZES: Final[Mapping[str, Size]] = {"default": DEFAULT, "full": FULL, "tiny": TINY}
_WHOLE: Final[Mapping[str, bool]] = {
    field.name: isinstance(getattr(DEFAULT, field.name), int) for field in fields(Size)
}


def changed(size: Size, words: Iterable[str]) -> Size:
    """
    *size* with the numbers that `NAME=NUMBER` words name.

    Raises:
        BenchError: A word is no such thing: names it, and what is allowed.
    """
    for word in words:
        name, _, text = word.partition("=")
        if name not in _WHOLE:
            raise BenchError(f"--set {word}: there is no size {name!r}; there are {', '.join(_WHOLE)}")
        whole = _WHOLE[name]
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = -1
        if not 0 < value < MOST:  # NaN, too
            allowed = "a whole number from 1" if whole else "a number above 0,"
            raise BenchError(f"--set {word}: {name} must be {allowed} to {MOST:g}")
        more: dict[str, Any] = {name: value}
        size = replace(size, **more)
    return size
