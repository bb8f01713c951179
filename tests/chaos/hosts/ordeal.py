"""One fault after the other on standing hosts under load: after each all is drained, and everything is checked."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pulse
from pulse.common.ids import uuid7
from tests.chaos.hosts.cluster import LEASE_S, Cluster, Host, Remote
from tests.chaos.hosts.faults import HostFault
from tests.chaos.hosts.machine import Machine
from tests.chaos.load.ledger import Line
from tests.chaos.load.load import BRIEF, Load, Shape
from tests.chaos.site import CLIENT_S, Report
from tests.chaos.verdict import Pair
from tests.support.waiting import until

MIX: Final = {**BRIEF, "long": 6, "gathered": 20}
RATE: Final = 3.0  # jobs a second of each host: two cores run sixty processes
HOLDS: Final = 16  # until each host runs one while it is struck: other hosts may take them
HELD_S: Final = 0.3  # what has begun by then was on its way when the lease ended
FORGOTTEN_S: Final = 20.0  # TCP gives up after some ten
WHOLE_S: Final = 60.0
DRAIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    What became of a fault.

    Attributes:
        held: Attempts that it held when it was struck.
        ended_s: How long it took until all of these were over; 0: they need not be.
        whole_s: How long it took after the fault until all hosts worked, and a job was completed.
        report: On everything so far.
        wrong: What is wrong with the fault itself.
    """

    fault: HostFault
    held: int
    ended_s: float
    whole_s: float
    report: Report
    wrong: list[str]


class Ordeal:
    def __init__(self, site: Cluster, loads: list[Load], rng: random.Random) -> None:
        self.site = site
        self.loads = loads
        self._rng = rng
        self._gates = 0

    def suffer(self, kind: type[HostFault], tell: Callable[[str], None]) -> Outcome:
        """Let *kind* befall a host that runs jobs, heal it, and see that nothing is lost."""
        site, fault = self.site, kind(self.site, self._rng)
        site.fire_again()
        for load in self.loads:
            load.go_on()
        wrong: list[str] = []
        with self._holding():
            held = site.running(fault.victim.machine.nature.hostname)
            said = {one.name: one.said("leases_passed") for one in fault.struck}
            tell(f"{fault.name}: {fault.victim.name} holds {len(held)} attempts")
            began_s, ended_s = time.monotonic(), 0.0
            site.strikes += fault.kills
            try:
                fault.inject()
                if fault.ended_s:
                    ended_s = self._ended(held, began_s, fault.ended_s, wrong=wrong)
                lasts_s = self._rng.uniform(*fault.held_s)
                fault.last(max(0.0, began_s + lasts_s - time.monotonic()))
                struck = fault.struck
            finally:
                healed_s = time.monotonic()
                fault.heal()
            if fault.fences:
                wrong += self._fenced(struck, (began_s, healed_s), said)
            whole_s = self._recover(healed_s)
            if fault.forgotten:
                wrong += self._forgotten(fault.victim.machine)
            for one in struck:
                site.dark_s[one.name].append((began_s, time.monotonic()))
        for load in self.loads:
            load.rest()
        site.drain(DRAIN_S)
        wrong += [f"{load.gave_up} submits were never acknowledged" for load in self.loads if load.gave_up]
        return Outcome(fault, len(held), ended_s, whole_s, site.report(), wrong)

    @contextlib.contextmanager
    def _holding(self) -> Iterator[None]:
        """Jobs run on each host, from before the fault until after it."""
        gate = self.site.gate()
        try:
            for host in self.site.hosts:
                self._hold(host, str(gate))
            yield
        finally:
            gate.touch()

    def _hold(self, host: Host, gate: str) -> None:
        """By way of *host*, until it runs one, and each host whose workers it serves."""
        free = {one.name for one in self.site.served_by(host)}
        with pulse.Client(host.path, timeout_s=CLIENT_S) as client:
            for _ in range(HOLDS):
                job = uuid7()
                self.site.ledger.write("intent", job)
                client.submit("hold", {"gate": gate}, id=job, priority=100)
                self.site.ledger.write("acked", job)
                free.discard(self.site.wait_started(job).host)
                if not free:
                    return
        raise AssertionError(f"no job got to {', '.join(free)} by way of {host.name}")

    def _ended(self, held: set[Pair], since_s: float, bar_s: float, *, wrong: list[str]) -> float:
        """How long it takes until the database has none of these attempts as running."""
        with contextlib.suppress(AssertionError):
            until(lambda: not held & self.site.running(), "", bar_s)
        took_s = time.monotonic() - since_s
        if left := held & self.site.running():
            wrong.append(f"{len(left)} of its attempts still held after {took_s:.1f} s; the bar is {bar_s:.0f} s")
        return took_s

    def _fenced(
        self, struck: list[Host | Remote], within_s: tuple[float, float], said: dict[str, int]
    ) -> Iterator[str]:
        """It started nothing when its leases had passed, and said so."""
        from_s, until_s = within_s[0] + LEASE_S + HELD_S, within_s[1]
        ran = {line.host for line in self._running_at(within_s[0], from_s)}
        for one in struck:
            late = [line for line in self.site.lines("start") if line.host == one.name and from_s < line.at_s < until_s]
            if late:
                after_s = late[0].at_s - within_s[0]
                yield f"{one.name} started {len(late)} jobs without leases, the first {after_s:.1f} s after the cut"
            if one.name in ran and one.said("leases_passed") == said[one.name]:
                yield f"{one.name} did not say that its leases have passed"

    def _forgotten(self, machine: Machine) -> Iterator[str]:
        """PostgreSQL has no session any more whose host has none."""
        with contextlib.suppress(AssertionError):
            until(lambda: not self.site.orphans(machine), "", FORGOTTEN_S)
        if count := self.site.orphans(machine):
            yield f"PostgreSQL still has {count} sessions that {machine.name} has not, {FORGOTTEN_S:.0f} s later"

    def _running_at(self, from_s: float, until_s: float) -> list[Line]:
        """The starts of handlers that ran all that time."""
        ended = {(line.job, line.attempt) for line in self.site.lines("end") if line.at_s < until_s}
        return [
            line for line in self.site.lines("start") if line.at_s < from_s and (line.job, line.attempt) not in ended
        ]

    def _recover(self, from_s: float) -> float:
        self.site.settle(WHOLE_S)
        self.site.probe(WHOLE_S)
        return time.monotonic() - from_s


@contextlib.contextmanager
def standing(site: Cluster, seed: int) -> Iterator[Ordeal]:
    """Started hosts with a schedule, and a load on each, which rests."""
    with contextlib.ExitStack() as stack:
        with site.client() as client:
            client.schedules_create("tick", every_s=1.0)
        loads = [
            Load(host.path, site.ledger, Shape(RATE, mix=MIX, batch=3), seed + number)
            for number, host in enumerate(site.hosts)
        ]
        for load in loads:
            load.producers[0].rest()
            stack.enter_context(load)
        yield Ordeal(site, loads, random.Random(seed))
