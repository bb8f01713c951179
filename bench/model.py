"""
What more cores would do: `python -m bench.model` plays the pipeline with the measured costs of its stages.

Each process works on one thing at a time, and only while it has a core. Batches go from stage to stage as in the
product: claim, hand-over, handlers, report, completion; in the steady state also submit and INSERT. What is not played:
that backends of PostgreSQL wait for each other's locks and share one log, and that cores share caches and memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import simpy

BATCH: Final = 500  # jobs of a claim
REPORTS: Final = 2000  # jobs that are completed by one statement
SLICE_US: Final = 10_000.0  # in which a handler process calls handlers, before it reports
BULK: Final = 1000  # jobs of a submit
ROOM: Final = 3000  # jobs that a handler process holds at most, with those sent ahead
KEPT: Final = 5000  # jobs that a producer keeps waiting
TURN_US: Final = 1000.0  # a process that has worked so long lets others have its core
PLAYED_US: Final = 3_000_000.0
SETTLED_US: Final = 1_000_000.0  # what comes before is not counted
Steps: TypeAlias = "Generator[simpy.Event, Any]"


@dataclass(frozen=True, slots=True)
class Costs:
    """
    Microseconds of processor time of a job in each stage, as ADR 0029 has them, with the cleaning of what they leave.

    Attributes:
        commit_us: Microseconds in which a commit waits for the disk.
    """

    claim: float = 11.5
    hand_over: float = 6.0
    run: float = 8.2
    take_report: float = 4.3
    complete: float = 8.5
    produce: float = 6.0
    take_submit: float = 1.5
    insert: float = 8.5
    commit_us: float = 700.0

    @property
    def drain(self) -> float:
        """Of a job that waits already."""
        return self.claim + self.hand_over + self.run + self.take_report + self.complete

    @property
    def steady(self) -> float:
        """Of a job from its submit on."""
        return self.drain + self.produce + self.take_submit + self.insert


@dataclass(frozen=True, slots=True)
class Machine:
    """
    Where it runs.

    Attributes:
        servers: Supervisors on one primary, each with a dispatcher.
        workers: Handler processes of each.
        producers: Of each, in the steady state; one call at a time.
    """

    cores: int
    servers: int = 1
    workers: int = 1
    producers: int = 2


@dataclass(frozen=True, slots=True)
class Played:
    """
    What came of it.

    Attributes:
        rate: Jobs per second.
        idle: Share of the cores that did nothing.
        busy: Share of the time in which each kind of process worked, of the busiest of its kind.
    """

    rate: float
    idle: float
    busy: dict[str, float]

    @property
    def busiest(self) -> str:
        """The kind of process that works most of the time."""
        return max(self.busy, key=self.busy.__getitem__)


@dataclass(slots=True)
class _World:
    """What all share; and what is counted."""

    env: simpy.Environment
    cores: simpy.Resource
    done: int = 0
    worked_us: dict[str, list[float]] = field(default_factory=dict[str, list[float]])


class _Process:
    """One process or backend: does what it is given in turn, on a core that is free."""

    def __init__(self, world: _World, kind: str) -> None:
        self._env, self._cores = world.env, world.cores
        self._turn = simpy.Resource(world.env)
        self._worked = world.worked_us.setdefault(kind, [])
        self._number = len(self._worked)
        self._worked.append(0.0)

    def work(self, cost_us: float) -> Steps:
        """Work for so long."""
        with self._turn.request() as turn:
            yield turn
            while cost_us > 0:
                slice_us = min(cost_us, TURN_US)
                with self._cores.request() as core:
                    yield core
                    yield self._env.timeout(slice_us)
                cost_us -= slice_us
                if self._env.now > SETTLED_US:
                    self._worked[self._number] += slice_us


class _Server:
    """A dispatcher with its sessions and its workers."""

    def __init__(self, world: _World, costs: Costs, workers: int) -> None:
        self._world, self._costs, self._env = world, costs, world.env
        self._dispatcher, self._claims = _Process(world, "dispatcher"), _Process(world, "claims")
        self._reports = _Process(world, "completions")
        self._workers = [_Process(world, "worker") for _ in range(workers)]
        self._room = simpy.Container(world.env, init=ROOM * workers)
        self._waiting, self._reported = simpy.Container(world.env), simpy.Container(world.env)
        self._assigned = [simpy.Container(world.env) for _ in self._workers]
        self._next = 0

    def drain(self) -> None:
        """As many jobs wait as can be claimed."""
        self._waiting.put(float("1e12"))
        self._begin()

    def steady(self, producers: int) -> None:
        """Producers keep some waiting."""
        self._begin()
        inserts = _Process(self._world, "inserts")
        for _ in range(producers):
            self._env.process(self._produce(_Process(self._world, "producer"), inserts))

    def _begin(self) -> None:
        self._env.process(self._claim())
        self._env.process(self._complete())
        for number in range(len(self._workers)):
            self._env.process(self._run(number))

    def _produce(self, producer: _Process, inserts: _Process) -> Steps:
        while True:
            while self._waiting.level >= KEPT:
                yield self._env.timeout(TURN_US)
            yield from producer.work(self._costs.produce * BULK)
            yield from self._dispatcher.work(self._costs.take_submit * BULK)
            yield from inserts.work(self._costs.insert * BULK)
            yield self._env.timeout(self._costs.commit_us)
            yield self._waiting.put(BULK)

    def _claim(self) -> Steps:
        """Each claim is handed over before the next one is sent."""
        while True:
            jobs = yield from _taken(self._waiting, BATCH)
            yield self._room.get(jobs)
            yield from self._claims.work(self._costs.claim * jobs)
            yield self._env.timeout(self._costs.commit_us)
            yield from self._hand_over(jobs)

    def _hand_over(self, jobs: int) -> Steps:
        yield from self._dispatcher.work(self._costs.hand_over * jobs)
        assigned = self._assigned[self._next]
        self._next = (self._next + 1) % len(self._workers)
        yield assigned.put(jobs)

    def _run(self, number: int) -> Steps:
        """A handler process calls handlers for some milliseconds, then it reports what has ended."""
        worker, assigned = self._workers[number], self._assigned[number]
        while True:
            jobs = yield from _taken(assigned, int(SLICE_US / self._costs.run))
            yield from worker.work(self._costs.run * jobs)
            self._env.process(self._report(jobs))

    def _report(self, jobs: int) -> Steps:
        yield from self._dispatcher.work(self._costs.take_report * jobs)
        yield self._reported.put(jobs)

    def _complete(self) -> Steps:
        """All that was reported meanwhile is completed by one statement."""
        while True:
            jobs = yield from _taken(self._reported, REPORTS)
            yield from self._reports.work(self._costs.complete * jobs)
            yield self._env.timeout(self._costs.commit_us)
            yield self._room.put(jobs)
            if self._env.now > SETTLED_US:
                self._world.done += jobs


def _taken(some: simpy.Container, most: int) -> Generator[simpy.Event, Any, int]:
    """Wait until there is one; returns how many were taken, *most* at most."""
    yield some.get(1)
    jobs = 1 + int(min(some.level, most - 1))
    if jobs > 1:
        yield some.get(jobs - 1)
    return jobs


def play(machine: Machine, *, steady: bool = False, costs: Costs | None = None) -> Played:
    """Let it run for some seconds of its own time."""
    env = simpy.Environment()
    world = _World(env, simpy.Resource(env, machine.cores))
    for _ in range(machine.servers):
        server = _Server(world, costs or Costs(), machine.workers)
        if steady:
            server.steady(machine.producers)
        else:
            server.drain()
    env.run(PLAYED_US)
    counted_us = PLAYED_US - SETTLED_US
    worked_us = sum(sum(each) for each in world.worked_us.values())
    return Played(
        rate=world.done / counted_us * 1e6,
        idle=1 - worked_us / (counted_us * machine.cores),
        busy={kind: max(each) / counted_us for kind, each in world.worked_us.items()},
    )


def main(words: Sequence[str] | None = None) -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(prog="python -m bench.model", description=__doc__)
    parser.add_argument("--cores", default="2,4,16,64", metavar="N,…")
    parser.add_argument("--servers", default="1,2,4,8,16", metavar="N,…")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="of each server (default: 1)")
    given = parser.parse_args(words)
    print("| cores | servers | drain, jobs/s | idle | busiest | steady, jobs/s | idle | busiest |")
    print("|--:|--:|--:|--:|---|--:|--:|---|")
    for cores in map(int, given.cores.split(",")):
        for servers in map(int, given.servers.split(",")):
            machine = Machine(cores, servers, given.workers)
            cells = [f"{cores}", f"{servers}"]
            for one in (play(machine), play(machine, steady=True)):
                cells += [f"{one.rate:,.0f}", f"{one.idle:.0%}", f"{one.busiest}, {one.busy[one.busiest]:.0%}"]
            print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
