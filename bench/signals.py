"""Signals, for the scene `graphs`: how soon a handler goes on that waits for one, and how many can be sent at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final
from uuid import UUID

from bench.drain import drain_rate
from bench.latency import percentile
from bench.load import batches, new_jobs
from bench.recovery_scene import until
from bench.results import Sample
from bench.stage import DEADLINE_S, LOOK_INTO_TABLE_S, Stage, System

SIGNALS: Final = 200  # one after the other, each way
NAME: Final = "go"  # as the handler has it
WAITING: Final = "SELECT count(*) FROM pulse.jobs WHERE awaited_signal = 'go' AND locked_by IS NULL"
SEND: Final = "SELECT pulse.signal($1, 'go')"
SEND_ALL: Final = """
    SELECT count(pulse.signal(j.id, 'go'))
    FROM (SELECT id FROM pulse.jobs WHERE awaited_signal = 'go' ORDER BY id) AS j"""


def _waiting(system: System, jobs: int) -> list[UUID]:
    """So many jobs, all of which wait for a signal."""
    ids: list[UUID] = []
    for first, length in batches(jobs):
        ids += system.client.submit_many(new_jobs("told", first, length))
    until(lambda: system.sql.value(WAITING) == jobs, "all wait for a signal", DEADLINE_S, LOOK_INTO_TABLE_S)
    return ids


def _delays_ms(system: System, send: Callable[[UUID], object]) -> list[float]:
    """From the call that sends a signal to the line of the handler behind its wait."""
    found: list[float] = []
    for job in _waiting(system, SIGNALS):
        sent_s = time.monotonic()
        send(job)
        found.append(1000 * (system.client.result(job, float, timeout_s=DEADLINE_S) - sent_s))
    return found


def signals(stage: Stage) -> list[Sample]:
    """One at a time by the client and by SQL; then as many as the graphs have jobs, in one statement."""
    jobs = stage.size.groups
    samples: list[Sample] = []
    with stage.fresh() as dsn, stage.system(dsn) as system:
        ways: list[tuple[str, Callable[[UUID], object]]] = [
            ("client.signal", lambda job: system.client.signal(job, NAME)),
            ("pulse.signal", lambda job: system.sql.value(SEND, job)),
        ]
        for way, send in ways:
            delays = _delays_ms(system, send)
            samples += [
                Sample(f"{way} to handler, {label}", percentile(delays, percent), "ms")
                for label, percent in (("p50", 50), ("max", 100))
            ]
    with stage.fresh() as dsn, stage.system(dsn) as system:
        _waiting(system, jobs)
        began_s = time.perf_counter()
        system.sql.run(SEND_ALL)
        samples.append(Sample(f"{jobs:,} signals in a statement", jobs / (time.perf_counter() - began_s), "signals/s"))
        system.wait_done()
        samples.append(Sample(f"drain, {jobs:,} that got a signal", drain_rate(system, jobs), "jobs/s"))
    return samples
