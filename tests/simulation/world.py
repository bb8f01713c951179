"""One simulated world, from its seed to its end."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import trio

from pulse.config import Settings
from tests.simulation import scenario
from tests.simulation.clients import Producer, SignalSender
from tests.simulation.judge.judge import Judge
from tests.simulation.machine import clockwork
from tests.simulation.machine.machine import OWN_UID, Machine
from tests.simulation.machine.process import Gated, Process
from tests.simulation.machine.worker import Act, Worker
from tests.simulation.nemesis import Nemesis
from tests.simulation.rows.database import Database
from tests.simulation.site import Site

LOOK_S: Final = 1.0  # whether all is over
PEACE_S: Final = 600.0  # then everything must be over: all leases, back-offs and budgets


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    findings: tuple[str, ...]
    trace: Callable[[], list[str]]
    counts: dict[str, int]
    simulated_s: float


class World:
    """Machines, a database, and what happens to them; *only*: the faults, empty: as the seed chooses."""

    def __init__(self, seed: int, only: Sequence[str] = ()) -> None:
        self.seed = seed
        self._only = only
        self.chance = random.Random(seed)
        limited = scenario.with_limits(random.Random(f"limits {seed}"), scenario.draw(self.chance))
        self.scenario = scenario.with_workflows(random.Random(f"workflows {seed}"), limited)
        self.settings = Settings(
            lease_s=scenario.LEASE_S, heartbeat_s=scenario.HEARTBEAT_S, sweep_s=scenario.SWEEP_S,
            poll_s=scenario.POLL_S, obey_s=scenario.OBEY_S,
            allow_users=f"{OWN_UID}:worker+operator, {OWN_UID + 1}:worker",
        )  # fmt: skip
        self.has_peerpidfd = self.scenario.has_peerpidfd
        self.jobs = {job.id: job for job in self.scenario.jobs}
        self.workers: dict[str, Worker] = {}
        self.acknowledged: list[bytes] = []
        self.sent: list[scenario.SignalPlan] = []
        self.retried: dict[bytes, int] = {}
        self.deleted: set[bytes] = set()
        self.events: list[tuple[float, str, object, dict[str, object]]] = []
        self._begun: dict[bytes, int] = {}
        self._links = 0
        self.closed = False
        self.log = _Log(self)

    async def main(self) -> None:
        self.timers = clockwork.Timers()
        self.judge = Judge(self)
        self.database = Database(self)
        limits = self.database.rows.limits
        limits.by_name |= {name: replace(limit) for name, limit in self.scenario.limits.items()}
        limits.of_topic |= self.scenario.limit_of
        self.nemesis = Nemesis(self, self._only)
        self.machines = [Machine(self, f"host{number}") for number in range(self.scenario.machines)]
        self.sites = [
            Site(self, machine, [slot for slot in self.scenario.slots if slot.machine == number])
            for number, machine in enumerate(self.machines)
        ]
        self._began_s = trio.current_time()
        async with trio.open_nursery() as self.nursery:
            self.nursery.start_soon(self.timers.run)
            for site in self.sites:
                site.start()
            self._produce()
            self._send()
            if self.scenario.by_hand is not None:
                self.timers.after(self.scenario.by_hand[1], partial(self._cancel_by_hand, self.scenario.by_hand[0]))
            self.nursery.start_soon(self.nemesis.run, self.scenario.trouble_s)
            await self._until_over()
            self._close()
            self.nursery.cancel_scope.cancel()

    def _produce(self) -> None:
        """Have all jobs submitted that are not acknowledged; a producer may be lost with its machine."""
        left = sorted((job for job in self.scenario.jobs if job.id not in self.acknowledged), key=lambda job: job.at_s)
        if left:
            self._producer = self.machines[0].spawn(
                "producer", Producer(self, left).main, on_end=lambda: self.timers.after(1.0, self._produce)
            )

    def _send(self) -> None:
        """The same of signals."""
        left = [one for one in self.scenario.signals if one not in self.sent]
        if left:
            self._sender = self.machines[0].spawn(
                "sender", SignalSender(self, left).main, on_end=lambda: self.timers.after(1.0, self._send)
            )

    def _cancel_by_hand(self, job: bytes) -> None:
        """Somebody's SQL; the next walk through the dependencies tells those that wait for it."""
        row = self.database.rows.jobs.get(job)
        if row is not None and row.status in {"PENDING", "RETRYING"}:
            self.trace("canceled by hand", job=job)
            self.judge.count("by hand")
            self.judge.workflows.by_hand.add(job)
            row.let_go("CANCELED", finished_at=self.database.now())

    def backup(self) -> Callable[..., None]:
        rows, closed = self.database.backup(), self.judge.closed()
        acknowledged, retried, deleted = list(self.acknowledged), dict(self.retried), set(self.deleted)
        sent = list(self.sent)

        def restore(*, in_place: bool) -> None:
            self.trace("database goes back", in_place=in_place)
            self.database.go_back(rows, in_place=in_place)
            self.judge.went_back(closed)
            self.acknowledged[:], self.retried, self.deleted = acknowledged, dict(retried), set(deleted)
            self.sent[:] = sent
            if self.scenario.signals:
                if self._sender.dead:
                    self.timers.after(1.0, self._send)
                else:
                    self._sender.exit(0)
            if self._producer.dead:
                self.timers.after(1.0, self._produce)
            else:
                self._producer.exit(0)

        return restore

    async def _until_over(self) -> None:
        peace_s = trio.current_time() + self.scenario.trouble_s + PEACE_S
        while not self.judge.over.is_set():
            with trio.move_on_after(LOOK_S):
                await self.judge.over.wait()
            if self._is_over():
                self.judge.at_the_end(self.acknowledged)
                return
            if trio.current_time() > peace_s:
                self.judge.fail(f"it does not come to an end: {self._left()}")

    def _is_over(self) -> bool:
        return self.nemesis.over and not self._left()

    def _left(self) -> list[str]:
        left = [job.label for job in self.scenario.jobs if job.id not in self.acknowledged]
        # What was ended while its handler hung: the dispatcher that knew its limit may be gone. It keeps its job here.
        living = [one for one in self.workers.values() if not one.process.dead]
        hung = {pair[0] for one in living for pair in one.hanging if self.judge.logs[pair].closed is not None}
        left += [
            f"{self.label(job.id)} {job.status}"
            for job in self.database.rows.jobs.values()
            if job.status not in {"COMPLETED", "DEAD_LETTERED", "CANCELED"} and job.id not in hung
        ]
        for one in living:
            over = sum(self.judge.logs[pair].closed is not None for pair in one.hanging)  # nobody waits for these
            if one.desk.held > over:
                left.append(f"{one.name} holds {one.desk.held}")
        return left

    def _close(self) -> None:
        self.closed = True
        for process in self.everybody():
            process.dead = True
            process.died.set()
            process.thaw()

    # What all of it asks.

    def everybody(self) -> list[Process]:
        return [process for site in self.sites for process in site.everybody]

    def next_link(self) -> int:
        self._links += 1
        return self._links

    def act_of(self, pair: tuple[bytes, int]) -> Act:
        acts, times = self.jobs[pair[0]].acts, self._begun.get(pair[0], 0)
        self._begun[pair[0]] = times + 1
        return acts[min(times, len(acts) - 1)]

    def worker_named(self, identity: str) -> Process:
        return self.workers[identity.rpartition("/")[2]].process

    def in_hand(self, worker: Process) -> bool:
        return worker.pidns == worker.machine.pidns and worker.uid == OWN_UID

    def dispatcher_of(self, machine: Machine) -> Process:
        return next(site for site in self.sites if site.machine is machine).actors["dispatcher"]

    def has_met(self, worker: Process, dispatcher: Process) -> bool:
        """Whether it has connected since that dispatcher began."""
        connected_s = next(one.connected_s for one in self.workers.values() if one.process is worker)
        return worker.machine is dispatcher.machine and dispatcher.began_s <= connected_s < float("inf")

    def has_beaten(self, worker: Process, since_s: float) -> bool:
        """Whether it has run, was connected to a dispatcher that ran, and the database there for all but one beat."""
        dispatcher = self.dispatcher_of(worker.machine)
        connected_s = next(one.connected_s for one in self.workers.values() if one.process is worker)
        return (
            connected_s <= since_s
            and not worker.machine.cut_off
            and worker.machine.cut_off_s <= since_s
            and all(not one.dead and not one.frozen and one.impaired_s <= since_s for one in (worker, dispatcher))
            and self.database.troubles_since(since_s) <= 1
        )

    def is_well(self, machine: Machine, since_s: float) -> bool:
        """Whether its dispatcher has run since then, and was not cut off from the database."""
        dispatcher = self.dispatcher_of(machine)
        lives = not dispatcher.dead and not dispatcher.frozen and dispatcher.began_s <= since_s
        reaches = not machine.cut_off and machine.cut_off_s <= since_s and self.database.troubles_since(since_s) <= 1
        return lives and reaches and dispatcher.impaired_s <= since_s

    def label(self, job: bytes) -> str:
        return self.jobs[job].label

    # The trace.

    def trace(self, what: str, who: object = "", /, **facts: object) -> None:
        if not self.closed:
            self.events.append((trio.current_time(), what, who, facts))

    def logged(self, process: Process, method: str, event: MutableMapping[str, Any]) -> None:
        what = event.pop("event")
        self.trace(f"log {what}", process, **event)
        if what == "worker_killed":
            self.judge.condemned.add((process, event["worker"]))
        if what == "database_went_back":
            self.judge.count("epochs")
        elif method in {"error", "critical"} and not self.closed:
            self.judge.fail(f"{process} logged {what}: {event}\n{traceback.format_exc()}")

    def told(self) -> list[str]:
        return [self._line(*event) for event in self.events]

    def _line(self, at_s: float, what: str, who: object, facts: dict[str, object]) -> str:
        shown = " ".join(f"{key}={self._shown(value)}" for key, value in facts.items() if value is not None)
        return f"{at_s - self._began_s:9.4f}  {who!s:<24} {what:<22} {shown}"

    def _shown(self, value: object) -> str:
        return self.label(value) if isinstance(value, bytes) and value in self.jobs else str(value)


class _Log:
    def __init__(self, world: World) -> None:
        self._world = world

    def info(self, event: str, /, **facts: object) -> None:
        self._world.trace(f"says {event}", "", **facts)

    warning = info


def simulate(seed: int, only: Sequence[str] = ()) -> Outcome:
    """Run one seed, with these faults *only*. The modules must have been patched: see ``patches.installed``."""
    world = World(seed, only)
    Gated.steps = 0
    clockwork.run(world.main, seed)
    simulated_s = world.events[-1][0] - world.events[0][0]
    return Outcome(seed, tuple(world.judge.findings), world.told, world.judge.counts, simulated_s)
