"""
`python -m bench.recovery`: how soon, and how safely, a job comes back from a worker that died, hung or was poisoned.

Every figure is of a system of its own with real worker processes: SIGKILL of a worker that runs 1 or 100 jobs, to the
moment at which no row is RUNNING for it any more (as another connection sees it), and to the first handler that runs
again elsewhere; the same with a process of the handler's that holds the worker's sockets, until it is killed with the
worker or because nobody can tell whose it is; the same behind a snapshot that pins dead rows; SIGSTOP, where the
second attempt looks whether the first one's process is there; poison jobs among innocents; a PostgreSQL that is shut
down under load and started again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Final
from uuid import UUID

import asyncpg

import pulse
from bench.load import Figure
from bench.recovery_scene import BenchError, Database, Scene, Start, database, scene, until
from pulse.system import processes

WORKERS: Final = 6  # of the scene in which one is killed: a slot whose process dies again waits longer each time
CLAIM_JOBS: Final = 10_000  # of one round behind the pinned snapshot
PROCESSES: Final = 4
SEATS: Final = 40  # they, not the machine, bound the throughput of innocents
MS: Final = 50.0
RATE: Final = SEATS * 1000 / MS  # jobs/s at most
FULL: Final = 0.95
WARM_UP_S: Final = 3.0
BEFORE_S: Final = 5.0
AFTER_S: Final = 12.0
LIFE_S: Final = 3.0  # shortest window of a poison job
LIVES_S: Final = 10.0  # of one poison job after the other
CHILDREN: Final = {"": "", "forked": ", socket held", "kept": ", socket held for good"}
SPARE_S: Final = 3.0  # more jobs than can be done in time
SHORT_LEASE: Final = {"PULSE_LEASE_S": "1.5", "PULSE_HEARTBEAT_S": "0.5", "PULSE_SWEEP_S": "0.2"}
# By primary key: where dead rows are pinned, the index of RUNNING rows is slow to walk, and that is not pulse's time.
LEFT: Final = (
    "SELECT count(*) FROM pulse.jobs WHERE id = ANY ($1::uuid[]) AND status::text = 'RUNNING' AND attempts = 1"
)
DONE: Final = (
    "SELECT count(*) FROM pulse.jobs WHERE name = 'work' AND completed_at BETWEEN to_timestamp($1) AND to_timestamp($2)"
)
WAITING: Final = "SELECT count(*) FROM pulse.jobs WHERE name = 'work' AND status IN ('PENDING', 'RUNNING', 'RETRYING')"
BURNED: Final = "SELECT coalesce(sum(attempts - uncharged - 1), 0)::int FROM pulse.jobs WHERE name = 'work'"
CLAIMED_AGAIN: Final = "SELECT coalesce(sum(attempts - 1), 0)::int FROM pulse.jobs WHERE name = 'work'"
CRASHES: Final = "SELECT coalesce(sum(crashes), 0)::int FROM pulse.jobs WHERE name = 'work'"
UNDONE: Final = "SELECT count(*) FROM pulse.jobs WHERE name = 'work' AND status <> 'COMPLETED'"
DIED_AT: Final = "SELECT extract(epoch FROM completed_at)::float8 FROM pulse.jobs WHERE id = $1"
DEAD: Final = "SELECT count(*) FROM pulse.jobs WHERE name = 'poison' AND status = 'DEAD_LETTERED' AND crashes = 3"


def kill_once(on: Scene, jobs: int, child: str) -> tuple[float, float]:
    """
    Kill a worker that runs *jobs* jobs, and has a child of that kind.

    Returns:
        Milliseconds from the kill until none of its rows is RUNNING, and until the first of its jobs runs again.
    """
    count = WORKERS * jobs if jobs > 1 else 1  # dealt in turn: all get as many, and one of the first ones
    new: list[pulse.NewJob] = [
        {"name": "hold", "args": {"child": child if place < WORKERS else ""}} for place in range(count)
    ]
    ids = on.client.submit_many(new)
    first = on.starts_of(ids, 1)
    lost = [start for start in first if start.pid == first[0].pid]
    holders = check_victim(lost, jobs, child)
    held = [start.job for start in lost]
    killed_s, free_s = on.kill(lost[0].pid, lambda: on.value(LEFT, held) == 0)
    again = on.starts_of(held, 2)
    on.cancel(ids)
    for holder in holders if child == "kept" else ():
        os.kill(holder, signal.SIGKILL)  # that nobody else did it is what this kind is for
    on.wait_workers(WORKERS)
    return 1000 * (free_s - killed_s), 1000 * (min(start.at_s for start in again) - killed_s)


def check_victim(lost: list[Start], jobs: int, child: str) -> list[int]:
    """
    Whether the worker that is about to be killed is the right one to measure.

    Returns:
        Its children.

    Raises:
        BenchError: It holds more or fewer jobs than *jobs*; or no child of it, or one too many, is alive.
    """
    if len(lost) != jobs:
        raise BenchError(f"worker {lost[0].pid} holds {len(lost)} jobs, not {jobs}")
    children = [start.child for start in lost if start.child]
    if len(children) != bool(child):
        raise BenchError(f"worker {lost[0].pid} has {len(children)} children, not {int(bool(child))}")
    for pid in children:
        if processes.state(pid) in {"", "Z", "X"}:
            raise BenchError(f"child {pid} of worker {lost[0].pid} is dead before the kill")
    return children


def kills(on: Scene, tries: int, jobs: int, child: str, label: str) -> Iterator[Figure]:
    """Many kills; the figures of both times."""
    times = [kill_once(on, jobs, child) for _ in range(tries)]
    for what, values in (("free", [one for one, _ in times]), ("again", [one for _, one in times])):
        values.sort()
        yield Figure(f"{label}, {what} p50", statistics.median(values), "ms")
        yield Figure(f"{label}, {what} p99", values[min(len(values) - 1, round(len(values) * 0.99))], "ms")


def pinned(on: Scene, claims: int, tries: int) -> Iterator[Figure]:
    """The same behind *claims* claims whose dead rows a snapshot keeps."""
    runner = asyncio.Runner()
    with runner:
        holder = runner.run(asyncpg.connect(on.dsn))
        runner.run(holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pulse.jobs"))
        for _ in range(0, claims, CLAIM_JOBS):
            last = on.submit("nothing", CLAIM_JOBS)[-1]
            on.client.wait(last, timeout_s=60)
        for jobs in (1, 100):
            label = f"SIGKILL, {jobs} jobs, {claims:,} claims pinned"
            yield from kills(on, tries, jobs, "", label)
        runner.run(holder.close())


def stops(on: Scene, tries: int, workers: int) -> Iterator[Figure]:
    """Stop workers that run one job each; the second attempt tells whether the first one's process is there."""
    overlaps = made = 0
    waits: list[float] = []
    while made < tries:
        on.wait_workers(workers)
        ids = on.submit("hold", workers // 2)
        first = {start.job: start for start in on.starts_of(ids, 1)}
        stopped_s = time.monotonic()
        for start in first.values():
            os.kill(start.pid, signal.SIGSTOP)
        for start in on.starts_of(ids, 2):
            made += 1
            overlaps += bool(start.before_lives)
            waits.append(start.at_s - stopped_s)
        on.cancel(ids)
    yield Figure(f"SIGSTOP, {made} tries: overlaps", overlaps, "")
    yield Figure("SIGSTOP, stop to second attempt p50", statistics.median(waits), "s")
    yield Figure("SIGSTOP, second attempt at the earliest", min(waits), "s")


def fill(on: Scene, seconds: float, at_least: int = 0) -> int:
    """Innocents for all seats for so long; how many."""
    count = max(at_least, int((seconds + SPARE_S) * RATE))
    on.submit("work", count, ms=MS)
    return count


def rate(on: Scene, from_s: float, to_s: float) -> float:
    """Innocents completed per second, by the database's clock, which is this host's."""
    return on.value(DONE, from_s, to_s) / (to_s - from_s)


def check_busy(on: Scene) -> None:
    """
    Whether all seats had work until now.

    Raises:
        BenchError: They had not: the throughput of the last seconds was the load's.
    """
    if on.value(WAITING) <= SEATS:
        raise BenchError("the innocents came to their end before the measurement did")


def poisoned(on: Scene, innocents: int) -> Iterator[Figure]:
    """One poison job among innocents; then one after the other."""
    count = fill(on, WARM_UP_S + BEFORE_S + BEFORE_S, innocents)
    time.sleep(WARM_UP_S + BEFORE_S)
    from_s = time.time()
    lasted_s = max(LIFE_S, poison_once(on) - from_s)
    time.sleep(max(0.0, from_s + lasted_s - time.time()))
    check_busy(on)
    before = rate(on, from_s - min(lasted_s, BEFORE_S), from_s)
    kept = rate(on, from_s, from_s + lasted_s) / before
    yield Figure("poison, throughput before", before, "jobs/s")
    yield Figure(f"poison, throughput kept over {lasted_s:.1f} s", 100 * kept, "%")
    yield from harm(on, "poison", 1, count)
    yield from poisoned_on_and_on(on, count)


def poisoned_on_and_on(on: Scene, before: int) -> Iterator[Figure]:
    """Poison jobs, each as soon as the one before is dead, among more innocents than the *before* that are done."""
    count = before + fill(on, WARM_UP_S + 2 * LIVES_S)
    time.sleep(WARM_UP_S + LIVES_S)
    from_s, poisons = time.time(), 1  # the one before
    while time.time() < from_s + LIVES_S:
        poison_once(on)
        poisons += 1
    check_busy(on)
    kept = rate(on, from_s, from_s + LIVES_S) / rate(on, from_s - LIVES_S, from_s)
    yield Figure(f"poison one after the other, throughput kept over {LIVES_S:g} s", 100 * kept, "%")
    yield from harm(on, "poison one after the other", poisons, count)


def poison_once(on: Scene) -> float:
    """Submit one, and wait until it is dead; when that was, by the database's clock."""
    job: UUID = on.client.submit("poison", priority=1)
    on.client.wait(job, timeout_s=60)
    return on.value(DIED_AT, job)


def harm(on: Scene, label: str, poisons: int, innocents: int) -> Iterator[Figure]:
    """What the poison jobs so far did to all innocents so far, when these are done."""
    until(lambda: on.value(UNDONE) == 0, "the innocents")
    runs = on.runs()
    if len(runs) != innocents:
        raise BenchError(f"{len(runs)} of {innocents} innocents have run, and all are COMPLETED")
    label = f"{label}, {poisons} among {innocents:,} innocents"
    yield Figure(f"{label}: dead after 3 crashes", on.value(DEAD), "")
    yield Figure(f"{label}: attempts burned", on.value(BURNED), "")
    yield Figure(f"{label}: innocents started again", runs.total() - innocents, "")
    yield Figure(f"{label}: innocents claimed again", on.value(CLAIMED_AGAIN), "")
    yield Figure(f"{label}: crashes on record", on.value(CRASHES), "")


def outage(on: Scene, postgres: Database, away_s: float) -> Iterator[Figure]:
    """Jobs for all seats all the time; completions by the database's own clock, before it went and after it came."""
    count = fill(on, WARM_UP_S + BEFORE_S + AFTER_S)
    time.sleep(WARM_UP_S + BEFORE_S)
    logged, stopped_s = on.log_lines(), time.time()
    postgres.stop()
    time.sleep(away_s)
    lines = on.log_lines() - logged
    postgres.start()
    back_s = time.time()
    time.sleep(AFTER_S)
    on.reconnect()
    check_busy(on)
    before = rate(on, stopped_s - BEFORE_S, stopped_s)
    starts_s = (tenth / 10 for tenth in range(int(10 * (AFTER_S - 1))))
    full_s = next((one for one in starts_s if rate(on, back_s + one, back_s + one + 1) >= FULL * before), math.inf)
    label = f"outage of {away_s:g} s"
    yield Figure(f"{label}, throughput before", before, "jobs/s")
    yield Figure(f"{label}, throughput from 3 s after its return", 100 * rate(on, back_s + 3, back_s + 8) / before, "%")
    yield Figure(f"{label}, from return to a second with 95 % of it", full_s, "s")
    yield Figure(f"{label}, lines logged by all processes", lines / away_s, "per s")
    until(lambda: on.value(UNDONE) == 0, "all jobs")
    yield Figure(f"{label}, {count:,} jobs: started again", on.runs().total() - count, "")
    yield Figure(f"{label}, {count:,} jobs: attempts burned", on.value(BURNED), "")


def figures(options: argparse.Namespace) -> Iterator[Figure]:
    """Everything that is measured, in order."""
    if options.tries:
        with scene(WORKERS, 250, {}) as on:
            on.hear_changes()
            for child, held in CHILDREN.items():
                for jobs in (1, 100):
                    label = f"SIGKILL, {jobs} job{'s' * (jobs > 1)}{held}"
                    yield from kills(on, options.tries, jobs, child, label)
    if options.stops:
        with scene(8, 1, SHORT_LEASE) as on:
            yield from stops(on, options.stops, 8)
    if options.innocents:
        with scene(PROCESSES, SEATS // PROCESSES, {}) as on:
            yield from poisoned(on, options.innocents)
    if options.outage:
        with database() as postgres, scene(PROCESSES, SEATS // PROCESSES, {"PULSE_DSN": postgres.dsn}) as on:
            yield from outage(on, postgres, options.outage)
    if options.claims:
        with scene(WORKERS, 250, {}) as on:
            on.hear_changes()
            yield from pinned(on, options.claims, options.tries)


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__)
    parser.add_argument("--tries", type=int, default=40, help="kills per figure; 0: none (default: %(default)s)")
    parser.add_argument("--stops", type=int, default=200, help="stopped workers; 0: none (default: %(default)s)")
    parser.add_argument(
        "--innocents",
        type=int,
        default=20_000,
        help="jobs beside the first poison job, at least; 0: no poison (default: %(default)s)",
    )
    parser.add_argument(
        "--outage", type=float, default=10.0, help="seconds without the database; 0: none (default: %(default)s)"
    )
    parser.add_argument(
        "--claims", type=int, default=0, help="claims behind a pinned snapshot, too; 2000000 take minutes"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    options = parser.parse_args()
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    found: list[Figure] = []
    for figure in figures(options):
        found.append(figure)
        if not options.json:
            print(f"{figure.name:<78} {figure.value:>10,.1f} {figure.unit}", flush=True)
    if options.json:
        print(json.dumps({"machine": machine, "figures": {one.name: [one.value, one.unit] for one in found}}))
    else:
        print(f"({machine})", file=sys.stdout)


if __name__ == "__main__":
    main()
