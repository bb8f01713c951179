"""The scene `graphs`: what jobs cost that wait for others or for signals, and how soon they start."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from bench.drain import drain_rate
from bench.load import batches, new_jobs
from bench.results import Sample
from bench.signals import signals
from bench.stage import Stage, System
from pulse.client.requests import NewJob

LINKS: Final = 200  # of the chain
BETWEEN: Final = """
    SELECT 1000 * percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM c.started_at - p.completed_at))
    FROM pulse.dependencies d JOIN pulse.jobs p ON p.id = d.parent_id JOIN pulse.jobs c ON c.id = d.child_id"""
RELEASED: Final = """
    SELECT 1000 * extract(epoch FROM max(c.next_run_at) - min(p.completed_at))::float8
    FROM pulse.dependencies d JOIN pulse.jobs p ON p.id = d.parent_id JOIN pulse.jobs c ON c.id = d.child_id"""
Submit = Callable[[System, int], None]


def plain(system: System, jobs: int) -> None:
    """They wait for nothing."""
    _many(system, jobs)


def fan_in(system: System, jobs: int) -> None:
    """One waits for all others."""
    parents = _many(system, jobs - 1)
    system.client.submit_many([{**_one(), "after": parents}])


def fan_out(system: System, jobs: int) -> None:
    """All others wait for one."""
    [parent] = _many(system, 1)
    _many(system, jobs - 1, after=[parent])


def pairs(system: System, jobs: int) -> None:
    """Each second one waits for the one before it."""
    for first, length in batches(jobs // 2):
        parents = system.client.submit_many(new_jobs("noop", first, length))
        system.client.submit_many([{**_one(), "after": [parent]} for parent in parents])


def _one() -> NewJob:
    return new_jobs("noop", 0, 1)[0]


def _many(system: System, jobs: int, after: Sequence[UUID] = ()) -> list[UUID]:
    ids: list[UUID] = []
    for first, length in batches(jobs):
        ids += system.client.submit_many([{**one, "after": after} for one in new_jobs("noop", first, length)])
    return ids


def _graph(stage: Stage, jobs: int, submit: Submit) -> tuple[float, float, float]:
    """Jobs per second into the queue and out of it, and milliseconds from the first end to the release of all."""
    with stage.fresh() as dsn, stage.system(dsn) as system:
        system.client.pause(reason="bench")
        began_s = time.perf_counter()
        submit(system, jobs)
        into = jobs / (time.perf_counter() - began_s)
        system.sql.run("CHECKPOINT")
        system.client.resume()
        system.wait_done()
        released_ms = system.sql.value(RELEASED)
        return into, drain_rate(system, jobs), float(released_ms or 0.0)


def _link_ms(stage: Stage) -> float:
    """From the end of a job to the start of the one that waits for it."""
    with stage.fresh() as dsn, stage.system(dsn) as system:
        system.client.pause(reason="bench")
        last = _many(system, 1)
        for _ in range(LINKS):
            last = system.client.submit_many([{**_one(), "after": last}])
        system.client.resume()
        system.wait_done()
        return float(system.sql.value(BETWEEN))


def graphs(stage: Stage) -> list[Sample]:
    """Graphs of the same size, beside as many jobs that wait for nothing; then signals."""
    jobs = stage.size.groups
    into, out, _ = _graph(stage, jobs, plain)
    samples: list[Sample] = []
    for name, submit in (("fan-in", fan_in), ("fan-out", fan_out), ("pairs", pairs)):
        found = _graph(stage, jobs, submit)
        samples.append(Sample(f"submit, {name} of {jobs:,}", found[0], "jobs/s", into, "jobs that wait for nothing"))
        samples.append(Sample(f"drain, {name} of {jobs:,}", found[1], "jobs/s", out, "jobs that wait for nothing"))
        if submit is fan_out:
            samples.append(Sample(f"end of the parent to release of all, {name}", found[2], "ms"))
    link = Sample(f"end of a job to start of the next, chain of {LINKS}", _link_ms(stage), "ms")
    return [*samples, link, *signals(stage)]
