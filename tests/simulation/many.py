"""Many seeds, in several processes, until one of them goes wrong; and the hunt for a variant."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Final

from tests.simulation.machine import patches
from tests.simulation.variants import VARIANTS, applied
from tests.simulation.world import simulate

CHUNK: Final = 25  # seeds between two looks whether it is over, and between two collections of garbage


@dataclass(slots=True)
class Report:
    """The first *seed* of some that went wrong, its *findings*, and its *trace*; a good run has one only on request."""

    runs: int = 0
    simulated_s: float = 0.0
    took_s: float = 0.0
    seed: int | None = None
    findings: tuple[str, ...] = ()
    trace: Sequence[str] = ()
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, other: Report) -> None:
        """Merge *other*; of two seeds that went wrong the lower one stays."""
        self.runs += other.runs
        self.simulated_s += other.simulated_s
        self.counts = dict(Counter(self.counts) + Counter(other.counts))
        if other.seed is not None and (self.seed is None or other.seed < self.seed):
            self.seed, self.findings, self.trace = other.seed, other.findings, other.trace


def run_one(seed: int, variant: str | None = None, *, only: Sequence[str] = (), keep_trace: bool = False) -> Report:
    only = VARIANTS[variant].only if variant is not None else only
    with applied(variant):
        outcome = simulate(seed, only)
    report = Report(1, outcome.simulated_s, counts=outcome.counts)
    if outcome.findings or keep_trace:
        report.seed, report.findings, report.trace = seed, outcome.findings, outcome.trace()
    return report


def run_chunk(seeds: Sequence[int], only: Sequence[str]) -> Report:
    report = Report()
    with patches.installed():
        for seed in seeds:
            report.add(run_one(seed, only=only))
            if report.findings:
                break
    gc.collect()
    return report


def run_many(seeds: range, processes: int, only: Sequence[str] = ()) -> Report:
    began_s = time.monotonic()
    report = Report()
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    context = multiprocessing.get_context("fork")  # all that a seed needs is imported, and none has run
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        for done in as_completed([pool.submit(run_chunk, chunk, only) for chunk in chunks]):
            report.add(done.result())
            if report.findings:
                pool.shutdown(wait=True, cancel_futures=True)
                break
    report.took_s = time.monotonic() - began_s
    return report


def hunt(variant: str) -> tuple[Report, Report]:
    """Look for a seed that finds *variant*: that run, or an empty report; and the same run with the guard in place."""
    wanted = VARIANTS[variant]
    with patches.installed():
        for seed in range(wanted.first, wanted.first + wanted.within):
            report = run_one(seed, variant)
            if any(wanted.finding in one for one in report.findings):
                outcome = simulate(seed, wanted.only)
                return report, Report(1, seed=seed, findings=outcome.findings, trace=outcome.trace())
    return Report(), Report()
