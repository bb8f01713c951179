"""
What is counted when: of each batch how many, and how long a few of them took, which stand for the others.

All of it is on the way of every job: nothing here is done for each of them where a batch can be told apart without.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from pulse.common.histogram import sample
from pulse.common.ids import time_of
from pulse.store.rows import Claim, Ended, Ending, EndingKind, Wake
from pulse_actors.dispatcher.monitoring.counters import Kind, Tally

if TYPE_CHECKING:
    from pulse_actors.dispatcher.workers.registry import Pair, Worker

OUT_OF_MEMORY: Final = "out of memory (SIGKILL)"
AT_ONCE_S: Final = 1.0  # a job that is due so soon after its submit was not to wait
MAX_STARTING: Final = 16  # jobs of a worker whose start is waited for, to be measured
LOST: Final = frozenset({EndingKind.CRASHED, EndingKind.SILENT, EndingKind.LEASE_EXPIRED})  # their workers died
topic_of: Final = attrgetter("topic")


def count_submitted(tally: Tally, woken: Iterable[Wake], claims: Sequence[Claim] = ()) -> None:
    """Jobs were inserted, some of them handed out by the same statement."""
    for wake in woken:
        tally.add(Kind.SUBMITTED, wake.topic, wake.jobs)
    if claims:
        tally.add_all(Kind.SUBMITTED, map(topic_of, claims))


def count_assigned(tally: Tally, worker: Worker, claims: Sequence[Claim]) -> None:
    """*worker* gets these jobs now."""
    if len(worker.topics) == 1:
        tally.add(Kind.STARTED, worker.topics[0], len(claims))
    else:
        tally.add_all(Kind.STARTED, map(topic_of, claims))
    chosen = sample(len(claims))
    weight, now = len(claims) / len(chosen), time.time() + tally.clock_ahead_s
    for place in chosen:
        claim = claims[place]
        tally.observe("wait_s", now - claim.due_at, weight)
        submitted_at = time_of(claim.id)
        if claim.attempt == 1 and submitted_at is not None and claim.due_at - submitted_at < AT_ONCE_S:
            if len(worker.starting) >= MAX_STARTING:
                del worker.starting[next(iter(worker.starting))]
            worker.starting[claim.id, claim.attempt] = submitted_at, weight
    if tally.is_recovering:
        tally.claimed_again([claim.id for claim in claims if claim.attempt > 1], time.monotonic())


def count_started(tally: Tally, worker: Worker) -> None:
    """*worker* has said which handlers it calls."""
    if not worker.starting:
        return
    now = time.time()
    for pair in [*worker.starting]:
        held = worker.held.get(pair)
        if held is None or held.started:
            submitted_at, weight = worker.starting.pop(pair)
            if held is not None:
                tally.observe("start_s", now - submitted_at, weight)


def count_runs(tally: Tally, worker: Worker, pairs: Sequence[Pair]) -> None:
    """Results of *worker* have arrived."""
    if not pairs:
        return
    chosen = sample(len(pairs))
    weight, now_s = len(pairs) / len(chosen), time.monotonic()
    for place in chosen:
        held = worker.held.get(pairs[place])
        if held is not None and held.since_s:
            tally.observe("run_s", now_s - held.since_s, weight)


def count_completed(
    tally: Tally, worker: Worker, pairs: Sequence[Pair], stale: Sequence[Pair] = (), ended: Sequence[Ended] = ()
) -> None:
    """*pairs* are answered, and still in the book: successes, all but those that are *stale* or *ended* otherwise."""
    done = pairs
    if stale or ended:  # seldom
        other = {(one.id, one.attempt) for one in ended}.union(stale)
        done = [pair for pair in pairs if pair not in other]
    tally.outcomes["completed"] += len(done)
    if len(worker.topics) == 1:
        tally.add(Kind.COMPLETED, worker.topics[0], len(done))
    else:
        tally.add_all(Kind.COMPLETED, [held.topic for pair in done if (held := worker.held.get(pair)) is not None])


def count_margin(tally: Tally, worker: Worker, lease_s: float, at_s: float) -> None:
    """The leases of *worker* were extended, by a heartbeat of that time of the monotonic clock."""
    if worker.held and worker.extended_s > 0:
        tally.observe("lease_margin_s", lease_s - (at_s - worker.extended_s))


def count_death(tally: Tally, worker: Worker, status: int | None, reason: str) -> None:
    """The process of *worker* has ended; *status* as of waitpid, None: not known; *reason*: the same for people."""
    if worker.sentences:
        cause = "killed"
    elif worker.leaving:
        cause = "asked"
    elif reason.endswith(OUT_OF_MEMORY):
        cause = "out_of_memory"
    elif status is None:
        cause = "unknown"
    else:
        cause = "signal" if os.WIFSIGNALED(status) else "exit"
    tally.worker_deaths[cause] += 1


def count_ended(tally: Tally, endings: Sequence[Ending], ended: Sequence[Ended]) -> None:
    """What became of *endings*."""
    kinds = {(one.id, one.attempt): one.kind for one in endings}
    for one in ended:
        if (kind := kinds.get((one.id, one.attempt))) is not None:  # figures end no process, whatever the database says
            tally.ended(kind.value, one.topic, one.status)


def count_reaped(tally: Tally, endings: Sequence[Ending], ended: Sequence[Ended], died_s: float) -> None:
    """Of *endings*, which no worker reported, these were still to be ended; *died_s*: when that was known."""
    if not endings:
        return
    waiting = {(one.id, one.attempt) for one in ended if one.status != "DEAD_LETTERED"}
    written = {(one.id, one.attempt) for one in ended}
    for one in endings:
        if (one.id, one.attempt) in written and one.kind is not EndingKind.UNASSIGNED:
            tally.reaped[one.kind.value] += 1
            if one.kind in LOST and (one.id, one.attempt) in waiting:
                tally.died(one.id, died_s)
