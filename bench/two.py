"""The scene `two`: two supervisors, each with its own runtime directory and worker, on one database."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Final
from uuid import UUID

from bench.drain import Work, beside, drain_rate, fill
from bench.latency import FIRST, PERCENTS, percentile, stamped
from bench.recovery_scene import until
from bench.results import Sample
from bench.stage import DEADLINE_S, LOOK_S, Stage

ID_BYTES: Final = 16
BY_SQL: Final = "SELECT pulse.submit('stamp', $1)"


def started(path: Path) -> Counter[bytes]:
    """How often each job has begun, as the handlers of one worker wrote down."""
    data = path.read_bytes()
    return Counter(data[at : at + ID_BYTES] for at in range(0, len(data), ID_BYTES))


def two(stage: Stage) -> list[Sample]:
    """Whether the claims are disjoint, and how much faster two are."""
    jobs = stage.size.two_jobs
    files = (stage.directory / f"ids-{stage.round}-a", stage.directory / f"ids-{stage.round}-b")
    with stage.fresh() as dsn, stage.system(dsn, ids=files[0]) as first, stage.system(dsn, ids=files[1]) as second:
        fill(first, Work("noted", jobs))
        first.client.resume()
        until(lambda: first.count.value + second.count.value >= jobs, f"{jobs} jobs have begun", DEADLINE_S, LOOK_S)
        first.wait_done()
        rate = drain_rate(first, jobs)

        def by_sql(args: dict[str, float]) -> UUID:
            found: UUID = first.sql.value(BY_SQL, json.dumps(args))
            return found

        stamped(first, FIRST, by_sql)
        told = stamped(first, stage.size.latency_jobs, by_sql)
    by_first, by_second = started(files[0]), started(files[1])
    both = by_first + by_second
    one, bare = beside(stage, Work("noted", jobs, ids=stage.directory / f"ids-{stage.round}-one"))
    share = min(by_first.total(), by_second.total()) / both.total()
    return [
        Sample(f"two supervisors, drain of {jobs:,}", rate, "jobs/s", bare.rate),
        Sample(f"two supervisors, drain of {jobs:,}", rate, "jobs/s", one.rate, "one supervisor"),
        Sample("two supervisors, jobs started twice", float(both.total() - len(both)), "jobs"),
        Sample("two supervisors, jobs never started", float(jobs - len(both)), "jobs"),
        Sample("two supervisors, share of the smaller part", 100 * share, "%"),
        *(
            Sample(f"two supervisors, SQL submit to handler start, p{percent}", percentile(told, percent), "ms")
            for percent in PERCENTS
        ),
    ]
