"""Faults of handlers: they hold the interpreter, fork, die, kill their process, and say what cannot be kept."""

from __future__ import annotations

import random
import signal
from typing import ClassVar, Final
from uuid import UUID

from tests.chaos.faults.fault import Fault, send
from tests.chaos.load.load import DEATHS
from tests.chaos.site import LEASE_S, WAIT_S, Site
from tests.support.waiting import until

FORKS: Final = ("plain", "setsid", "daemon")
WICKED: Final = ("nul", "surrogate", "nan", "object", "deep", "raise")


class GripInterpreter(Fault):
    """A handler that lets no other thread of its process run, for longer than a lease."""

    row, name = 40, "grip-interpreter"
    works = True
    held_s: ClassVar = (LEASE_S, LEASE_S * 2.5)

    def inject(self) -> None:
        self.job: UUID = self.site.submit("grip", {"seconds": LEASE_S * self.rng.uniform(1.2, 2.2)}, priority=100)


class ForkAndDie(Fault):
    """Handlers that leave children behind, also such as hide in sessions of their own, and are killed."""

    row, name = 41, "fork-and-die"
    kills = True
    works = True

    def inject(self) -> None:
        self.jobs = [self.site.submit("forks", {"how": how, "gate": str(self._gate)}, priority=100) for how in FORKS]
        self.pids = [self.site.wait_started(job).pid for job in self.jobs]
        until(lambda: {line.job for line in self.site.lines("child")} >= set(self.jobs), "their children", WAIT_S)
        for pid in set(self.pids):
            send(pid, signal.SIGKILL)

    def __init__(self, site: Site, rng: random.Random) -> None:
        super().__init__(site, rng)
        self._gate = site.gate()

    def heal(self) -> None:
        self._gate.touch()


class HandlerDies(Fault):
    """Handlers that end their process, once each: by exit and by signals."""

    row, name = 42, "handler-dies"
    works = True

    def inject(self) -> None:
        self.jobs = {how: self.site.submit("deadly", {"how": how, "times": 1}) for how in DEATHS}


class Poison(Fault):
    row, name = 43, "poison"
    works = True

    def inject(self) -> None:
        self.job: UUID = self.site.submit("deadly", {"how": self.rng.choice(DEATHS), "times": 100})


class Wicked(Fault):
    """Results and errors that PostgreSQL cannot hold."""

    row, name = 45, "wicked"
    works = True

    def inject(self) -> None:
        self.jobs = {how: self.site.submit("wicked", {"how": how}) for how in WICKED}
