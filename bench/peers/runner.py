"""One turn of one peer: bulk enqueue, drain, latency, steady state, and steady state behind a pinned snapshot."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bench.peers.peer import SUBMIT_BATCH, Mark, MeasureError, Peer, Queue
from bench.peers.server import Server

LIMIT_S: Final = 20.0  # of a drain; what is done by then is the figure
START_S: Final = 30.0  # for the first handler to be called
EDGE_S: Final = 5.0  # the first and the last seconds of a steady state, listed separately
POLL_S: Final = 0.002
PACE_S: Final = 0.02  # between two looks of the producer: a few hundred jobs of the fastest
PERCENTILES: Final = (50, 95, 99)

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Plan:
    """
    What is measured of each peer.

    Attributes:
        jobs: Of the drain.
        seconds: Of each steady state.
        depth: Jobs that the producer keeps waiting in it.
        latency_jobs: Single jobs of the latency.
        per_second: Their pace.
    """

    jobs: int = 50_000
    seconds: float = 20.0
    depth: int = 5000
    latency_jobs: int = 250
    per_second: float = 50.0


def turn(peer: Peer, server: Server, name: str, plan: Plan, say: Callable[[str], None]) -> Figures:
    """
    Measure one peer once, in a database of that *name*.

    Raises:
        MeasureError: It gave no figures.
    """
    figures: Figures = {}

    def found(more: Figures) -> None:
        figures.update(more)
        say(", ".join(f"{key} {value:,.1f}" for key, value in more.items()))

    with server.place(name) as place, peer.open(place) as queue:
        jobs = min(plan.jobs, peer.facts.most_jobs)
        found(enqueue(queue, jobs))
        server.analyze(place)
        with queue.working():
            found(drain(queue, jobs))
            found(latency(queue, plan))
            fill(queue, plan)
            server.analyze(place)
            marks = steady(queue, plan)
            found({"steady": rate(queue, marks[0], marks[-1])})
            with server.pinned(place):
                marks = steady(queue, plan)
                found({"pinned_first": rate(queue, *marks[:2]), "pinned_last": rate(queue, *marks[-2:])})
    return figures


def enqueue(queue: Queue, jobs: int) -> Figures:
    """Jobs per second of bulk calls, one after the other, while no worker runs."""
    began_s = time.perf_counter()
    for first in range(0, jobs, SUBMIT_BATCH):
        queue.submit(min(SUBMIT_BATCH, jobs - first))
    return {"enqueue": jobs / (time.perf_counter() - began_s)}


def drain(queue: Queue, jobs: int) -> Figures:
    """Finished jobs per second, from the first handler to the last row."""
    deadline_s = time.monotonic() + START_S
    while not (before := jobs - queue.waiting()):
        if time.monotonic() > deadline_s:
            raise MeasureError(f"no handler was called within {START_S:g} s")
        time.sleep(POLL_S)
    began_s = time.monotonic()
    while queue.waiting() and time.monotonic() < began_s + LIMIT_S:
        time.sleep(POLL_S)
    while (left := queue.left()) and time.monotonic() < began_s + LIMIT_S:
        time.sleep(POLL_S)
    return {"drain": (jobs - left - before) / (time.monotonic() - began_s), "drain_jobs": jobs - left}


def latency(queue: Queue, plan: Plan) -> Figures:
    """Percentiles of single jobs, the queue being empty."""
    values = sorted(queue.latencies_ms(plan.latency_jobs, plan.per_second))
    return {f"p{part}": values[math.ceil(len(values) * part / 100) - 1] for part in PERCENTILES}


def fill(queue: Queue, plan: Plan) -> None:
    """Submit what is to wait, so that the steady state begins with it."""
    for _ in range(0, plan.depth, SUBMIT_BATCH):
        queue.submit(SUBMIT_BATCH)


def steady(queue: Queue, plan: Plan) -> Sequence[Mark]:
    """Keep *depth* jobs waiting; marks at the beginning, after one edge, before the other, and at the end."""
    edge_s = min(EDGE_S, plan.seconds / 2)
    began_s = time.monotonic()
    marks: list[Mark] = []
    for due_s in (0.0, edge_s, plan.seconds - edge_s, plan.seconds):
        while time.monotonic() < began_s + due_s:
            if queue.waiting() < plan.depth:
                queue.submit(SUBMIT_BATCH)
            else:
                time.sleep(PACE_S)
        marks.append(queue.mark())
    return marks


def rate(queue: Queue, first: Mark, last: Mark) -> float:
    """Finished jobs per second between two marks."""
    return (queue.finished(last) - queue.finished(first)) / (last.at_s - first.at_s)
