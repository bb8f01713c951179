"""
Decides which events of a batch are counted: all of them, and the durations of a few, which stand for the others.

All of this is on the path of every job, so nothing is done per job that can be done per batch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final

from pulse.common.histogram import sample
from pulse.common.ids import time_of
from pulse.store.rows import Claim, Ended, Ending, EndingKind, Wake
from pulse_actors.dispatcher.monitoring.counters import Counted, DispatchCounters
from pulse_actors.dispatcher.workers.records import Pair, RegisteredWorker
from pulse_actors.dispatcher.workers.registry import WorkerRegistry

OUT_OF_MEMORY: Final = "out of memory (SIGKILL)"
AT_ONCE_S: Final = 1.0  # a job due so soon after its submit was not meant to wait
MAX_STARTING: Final = 16  # per worker: jobs whose start is awaited, to measure it
LOST: Final = frozenset({EndingKind.CRASHED, EndingKind.SILENT, EndingKind.LEASE_EXPIRED})  # their workers died
topic_of: Final = attrgetter("topic")


def count_submitted(counters: DispatchCounters, woken: Iterable[Wake], claims: Sequence[Claim] = ()) -> None:
    """Count inserted jobs, some of them handed out by the same statement."""
    for wake in woken:
        counters.add(Counted.SUBMITTED, wake.topic, wake.jobs)
    if claims:
        counters.add_all(Counted.SUBMITTED, map(topic_of, claims))


def count_handed_out(
    counters: DispatchCounters, registry: WorkerRegistry, assigned: Mapping[str, Sequence[Claim]]
) -> None:
    """Count jobs that these workers, by identity, get now."""
    for identity, claims in assigned.items():
        worker = registry.get(identity)
        if worker is not None:
            count_assigned(counters, worker, claims)


def count_assigned(counters: DispatchCounters, worker: RegisteredWorker, claims: Sequence[Claim]) -> None:
    """Count jobs that *worker* gets now."""
    if len(worker.facts.topics) == 1:
        counters.add(Counted.STARTED, worker.facts.topics[0], len(claims))
    else:
        counters.add_all(Counted.STARTED, map(topic_of, claims))
    chosen = sample(len(claims))
    weight, now = len(claims) / len(chosen), time.time() + counters.clock_ahead_s
    for index in chosen:
        claim = claims[index]
        counters.observe("wait_s", now - claim.due_at, weight)
        submitted_at = time_of(claim.id)
        if claim.attempt == 1 and submitted_at is not None and claim.due_at - submitted_at < AT_ONCE_S:
            if len(worker.jobs.starting) >= MAX_STARTING:
                del worker.jobs.starting[next(iter(worker.jobs.starting))]
            worker.jobs.starting[claim.id, claim.attempt] = submitted_at, weight
    if counters.is_recovering:
        counters.claimed_again([claim.id for claim in claims if claim.attempt > 1], time.monotonic())


def count_started(counters: DispatchCounters, worker: RegisteredWorker) -> None:
    """Count handlers that *worker* has called."""
    if not worker.jobs.starting:
        return
    now, jobs = time.time(), worker.held
    for pair in [*worker.jobs.starting]:
        held = jobs.get(pair)
        if held is None or held.started:
            submitted_at, weight = worker.jobs.starting.pop(pair)
            if held is not None:
                counters.observe("start_s", now - submitted_at, weight)


def count_runs(counters: DispatchCounters, worker: RegisteredWorker, pairs: Sequence[Pair]) -> None:
    """Count results of *worker*."""
    if not pairs:
        return
    chosen = sample(len(pairs))
    weight, now_s, jobs = len(pairs) / len(chosen), time.monotonic(), worker.held
    for index in chosen:
        held = jobs.get(pairs[index])
        if held is not None and held.since_s:
            counters.observe("run_s", now_s - held.since_s, weight)


def count_completed(
    counters: DispatchCounters,
    worker: RegisteredWorker,
    pairs: Sequence[Pair],
    stale: Sequence[Pair] = (),
    ended: Sequence[Ended] = (),
) -> None:
    """Count successes: answered *pairs* that are still in the registry, except *stale* and otherwise *ended* ones."""
    done = pairs
    if stale or ended:  # rare
        other = {(one.id, one.attempt) for one in ended}.union(stale)
        done = [pair for pair in pairs if pair not in other]
    counters.outcomes["completed"] += len(done)
    if len(worker.facts.topics) == 1:
        counters.add(Counted.COMPLETED, worker.facts.topics[0], len(done))
    else:
        jobs = worker.held
        counters.add_all(Counted.COMPLETED, [held.topic for pair in done if (held := jobs.get(pair)) is not None])


def count_margin(counters: DispatchCounters, worker: RegisteredWorker, lease_s: float, at_s: float) -> None:
    """Measure how much of the leases of *worker* was left at a heartbeat of that monotonic time."""
    if worker.held and worker.contact.extended_s > 0:
        counters.observe("lease_margin_s", lease_s - (at_s - worker.contact.extended_s))


def count_death(counters: DispatchCounters, worker: RegisteredWorker, status: int | None, reason: str) -> None:
    """Count a dead process of *worker*; *status* as of waitpid, None: unknown; *reason*: the same for people."""
    if worker.jobs.forced_endings:
        cause = "killed"
    elif worker.leaving:
        cause = "asked"
    elif reason.endswith(OUT_OF_MEMORY):
        cause = "out_of_memory"
    elif status is None:
        cause = "unknown"
    else:
        cause = "signal" if os.WIFSIGNALED(status) else "exit"
    counters.worker_deaths[cause] += 1


def count_ended(counters: DispatchCounters, endings: Sequence[Ending], ended: Sequence[Ended]) -> None:
    """Count the results of *endings*."""
    kinds = {(one.id, one.attempt): one.kind for one in endings}
    for one in ended:
        if (kind := kinds.get((one.id, one.attempt))) is not None:  # statistics must not fail
            counters.ended(kind.value, one.topic, one.status)


def count_reaped(counters: DispatchCounters, endings: Sequence[Ending], ended: Sequence[Ended], died_s: float) -> None:
    """Count those of *endings* that no worker reported and that had not ended; *died_s*: when the death was known."""
    if not endings:
        return
    waiting = {(one.id, one.attempt) for one in ended if one.status != "DEAD_LETTERED"}
    written = {(one.id, one.attempt) for one in ended}
    for one in endings:
        if (one.id, one.attempt) in written and one.kind is not EndingKind.UNASSIGNED:
            counters.reaped[one.kind.value] += 1
            if one.kind in LOST and (one.id, one.attempt) in waiting:
                counters.died(one.id, died_s)
