"""A standing system under load, and one fault after the other: after each it drains, and everything is checked."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar
from uuid import UUID

from pulse.job import Job
from tests.chaos.faults.fault import Fault
from tests.chaos.load.ledger import Line
from tests.chaos.load.load import Load, Shape
from tests.chaos.site import WAIT_S, Site
from tests.support.waiting import until

RATE: Final = 30.0  # jobs per second: two busy cores have time for the fault as well
ENOUGH: Final = 15  # jobs before the fault, and after it
SEED: Final = 1
# Jobs that never fail by themselves: whatever they are charged for was somebody else's doing.
_BURNED: Final = """
    SELECT id FROM pulse.jobs WHERE name IN ('short', 'long', 'busy', 'hold', 'tick') AND status <> 'CANCELED'
        AND (attempts - uncharged > 1 OR status = 'DEAD_LETTERED') AND submitted_at > $1
        AND NOT EXISTS (SELECT FROM pulse.attempts WHERE job_id = id AND worker = ANY ($2::text[]))"""
F = TypeVar("F", bound=Fault)


class Trial:
    def __init__(self, site: Site, load: Load) -> None:
        self.site = site
        self.load = load
        self._held: list[Held] = []
        self._blamed: set[str] = set()

    def blame(self, worker: str) -> None:
        """Jobs that this worker held in the block may have been charged for a try."""
        self._blamed.add(worker)

    @contextlib.contextmanager
    def under_load(self) -> Iterator[Site]:
        """Load for the block; then the system is whole, drained, and every invariant holds: no innocent pays."""
        self._blamed.clear()
        since = self.site.sql.value("SELECT clock_timestamp()")
        self.site.fire_again()
        self.load.go_on()
        try:
            self._work()
            yield self.site
            self._work()
        finally:
            self.load.rest()
            while self._held:
                self._held.pop().open()
        self.site.settle()
        self.site.drain()
        assert self.site.report().wrong == []
        assert self.load.gave_up == 0
        assert self.site.sql.rows(_BURNED, since, sorted(self._blamed)) == []

    def _work(self) -> None:
        target = self.load.acked + ENOUGH
        until(lambda: self.load.acked >= target, "jobs are submitted", WAIT_S)

    @contextlib.contextmanager
    def suffering(self, kind: type[F]) -> Iterator[F]:
        fault = kind(self.site, random.Random(SEED))
        try:
            fault.inject()
            yield fault
        finally:
            fault.heal()
        assert not fault.gave_up

    def hold(self, count: int = 1) -> Held:
        self._held.append(Held(self.site, count))
        return self._held[-1]


class Held:
    def __init__(self, site: Site, count: int) -> None:
        self._site = site
        self._gate: Path = site.gate()
        self.jobs: list[UUID] = [
            site.submit("hold", {"gate": str(self._gate)}, priority=100, max_attempts=3) for _ in range(count)
        ]
        self.starts: list[Line] = [site.wait_started(job) for job in self.jobs]

    def of(self, pid: int) -> list[UUID]:
        return [line.job for line in self.starts if line.pid == pid]

    def open(self) -> None:
        self._gate.touch()

    def let_go(self) -> dict[UUID, Job]:
        """Let them end; what became of them."""
        self.open()
        return {job: self._site.wait(job, "COMPLETED") for job in self.jobs}

    def interrupted(self) -> list[Job]:
        """
        Let them end; those that did not do so in the attempt that was held, or were charged for another one.

        That need not be their first: a worker whose places are taken gives back what it has not begun.
        """
        held = {line.job: line.attempt for line in self.starts}
        return [
            found
            for job, found in self.let_go().items()
            if found.attempts != held[job] or found.attempts - found.uncharged != 1
        ]


@contextlib.contextmanager
def standing(site: Site) -> Iterator[Trial]:
    """A started system with pools, a schedule, and a load that rests."""
    with site.client() as client:
        client.schedules_create("tick", every_s=1.0)
    load = Load(site.whole.path, site.ledger, Shape(RATE), SEED)
    for producer in load.producers:
        producer.rest()
    with load:
        yield Trial(site, load)
