"""The scene `stability`: the same drain whatever PostgreSQL knows about the table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from bench.drain import Work, beside
from bench.results import Sample
from bench.stage import Stage

OFF: Final = "ALTER TABLE pulse.jobs SET (autovacuum_enabled = off);"
# Of a table that had a thousand jobs, all of them completed.
STALE: Final = """
    INSERT INTO pulse.jobs (id, topic, name, args, max_attempts, status, attempts, started_at, completed_at)
    SELECT pulse.uuid7(), 'default', 'noop', '{}', 5, 'COMPLETED', 1, now(), now() FROM generate_series(1, 1000);
    ANALYZE pulse.jobs"""
KINDS: Final[Mapping[str, Work]] = {
    "never analysed": Work("noop", 0, before=OFF),
    "analysed when all wait": Work("noop", 0, before=OFF, filled="ANALYZE pulse.jobs"),
    "stale statistics": Work("noop", 0, before=OFF + STALE),
    "vacuumed in the middle": Work("noop", 0, halfway="VACUUM (ANALYZE) pulse.jobs"),
}


def stability(stage: Stage) -> list[Sample]:
    """Ten drains, each beside the yardstick."""
    samples: list[Sample] = []
    jobs, kinds = stage.size.stability_jobs, list(KINDS.items())
    for number in range(stage.size.stability_runs):
        label, work = kinds[number % len(kinds)]
        stage.round = number  # the order changes with each run
        found, bare = beside(stage, replace(work, jobs=jobs))
        samples.append(Sample(f"drain of {jobs:,}, {label}", found.rate, "jobs/s", bare.rate))
    ratios = [sample.value / sample.reference for sample in samples if sample.reference]
    slowest, usual = min(ratios), statistics.median(ratios)
    return [*samples, Sample(f"slowest of {len(ratios)} runs, to bare", slowest, "×", usual, "the median run")]
