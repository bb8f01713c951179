"""What can befall a host: it dies, is cut off, hears or is heard badly, has a wrong clock, a twin, or is born again."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from tests.chaos.faults.fault import Fault
from tests.chaos.hosts.cluster import DATABASE, LEASE_S, START_S, SWEEP_S, TWIN, Cluster, Host, Remote
from tests.chaos.hosts.machine import why_no_clock
from tests.chaos.hosts.wire import Link
from tests.support.waiting import until

HOUR_S: Final = 3600
MINUTE_S: Final = 60
SLACK_S: Final = 4.0  # of a busy machine
FLAP_S: Final = (0.2, 1.5)
ENDED_S: Final = LEASE_S + SWEEP_S + SLACK_S


class HostFault(Fault):
    """
    Something that befalls one host.

    Attributes:
        ended_s: The attempts of the host are ended, since nobody hears of it, within so many seconds; 0: it keeps them.
        forgotten: PostgreSQL hears nothing of it, and ends the sessions that it gives up.
        fences: It lives, and has to see for itself that its leases have passed.
    """

    held_s: ClassVar = (8.0, 10.0)  # longer than a lease, a sweep, and the longest that a batch waits
    bar_s = 15.0
    ended_s: ClassVar[float] = 0.0
    forgotten: ClassVar[bool] = False
    fences: ClassVar[bool] = False
    of_remotes: ClassVar[bool] = False
    site: Cluster

    def __init__(self, site: Cluster, rng: random.Random) -> None:
        super().__init__(site, rng)
        victims: Sequence[Host | Remote] = site.remotes if self.of_remotes else site.hosts
        self.victim = rng.choice(victims)

    @property
    def struck(self) -> list[Host | Remote]:
        """The hosts whose leases it may cost."""
        return self.site.served_by(self.victim)

    def last(self, seconds: float) -> None:
        """Let it last."""
        threading.Event().wait(seconds)

    def heal(self) -> None:
        self.site.wire.heal(self.victim.name)


class HostDies(HostFault):
    """Its power fails; after a while it is back, under its old name."""

    row, name = 101, "host-dies"
    kills = forgotten = True
    ended_s = ENDED_S
    bar_s = 30.0

    def inject(self) -> None:
        self.victim.die()

    def heal(self) -> None:
        if not self.victim.machine.runs:
            self.victim.machine.nature = self.victim.machine.nature.reborn()
            self.victim.spawn()


class HostReborn(HostDies):
    """The same, and it is back at once, while the leases of its former life last."""

    row, name = 102, "host-reborn"
    held_s: ClassVar = (0.0, 0.0)  # it is over when the leases are

    def inject(self) -> None:
        super().inject()
        self.heal()


class CutFromDatabase(HostFault):
    """All others reach it, its remote workers too."""

    row, name = 103, "cut-from-database"
    forgotten = fences = True
    ended_s = ENDED_S

    def inject(self) -> None:
        self.site.wire.set(self.victim.name, Link(apart=(DATABASE,)))


class CutOff(HostFault):
    row, name = 104, "cut-off"
    forgotten = fences = True
    ended_s = ENDED_S

    def inject(self) -> None:
        self.site.wire.cut(self.victim.name)


class Deaf(HostFault):
    """
    What it sends gets through, and no answer comes.

    So it takes its heartbeats for unwritten, and that it says so gets through, too: sweeps wait for one lease more.
    """

    row, name = 105, "deaf"
    forgotten = fences = True
    ended_s = ENDED_S + LEASE_S

    def inject(self) -> None:
        self.site.wire.set(self.victim.name, Link(deaf=True))


class Mute(HostFault):
    """It hears everything, and nothing that it sends gets through."""

    row, name = 106, "mute"
    forgotten = fences = True
    ended_s = ENDED_S

    def inject(self) -> None:
        self.site.wire.set(self.victim.name, Link(mute=True))


class RemoteCutOff(HostFault):
    """The same of a host with remote workers, whose server only misses their heartbeats."""

    row, name = 107, "remote-cut-off"
    fences = of_remotes = True
    ended_s = ENDED_S

    def inject(self) -> None:
        self.site.wire.cut(self.victim.name)


class Flaps(HostFault):
    """Its link comes and goes."""

    row, name = 108, "flaps"

    def inject(self) -> None:
        self.site.wire.cut(self.victim.name)

    def last(self, seconds: float) -> None:
        over_s, is_cut = time.monotonic() + seconds, True
        while (left_s := over_s - time.monotonic()) > 0:
            super().last(min(self.rng.uniform(*FLAP_S), left_s))
            is_cut = not is_cut
            (self.site.wire.cut if is_cut else self.site.wire.heal)(self.victim.name)


class Lossy(HostFault):
    """A bad line: 200 ms there and back, and 5 % of what it carries is lost."""

    row, name = 109, "lossy"

    def inject(self) -> None:
        self.site.wire.set(self.victim.name, Link(delay_s=0.1, loss=0.05))


class SlowReader(HostFault):
    """Remote workers behind a line of 3 kB/s: their server has to keep what it sends them."""

    row, name = 110, "slow-reader"
    of_remotes = True

    def inject(self) -> None:
        self.site.wire.set(self.victim.name, Link(bytes_s=3000))


class Clock(HostFault):
    """Its wall clock is an hour ahead, or behind, from its next boot on."""

    row, name = 111, "wrong-clock"
    kills = True
    bar_s = 30.0

    @classmethod
    def missing(cls, site: Cluster) -> str | None:  # type: ignore[override]
        del site
        return why_no_clock()

    def inject(self) -> None:
        ahead_s = self.rng.choice([-HOUR_S, HOUR_S])
        self._restart(ahead_s)
        assert isinstance(self.victim, Host)
        until(self.victim.is_whole, "the host works with its clock", START_S)
        told = self.victim.clock_s() - time.time()
        if abs(told - ahead_s) > MINUTE_S:
            self.gave_up = f"its clock is {told:.0f} s ahead"

    def heal(self) -> None:
        if self.victim.machine.nature.clock_s:
            self._restart(0)

    def _restart(self, clock_s: int) -> None:
        self.victim.die()
        machine = self.victim.machine
        machine.nature = machine.nature.reborn(clock_s)
        self.victim.spawn()


class Twin(HostFault):
    """A clone of it is started, with its host name and machine id, works beside it, and dies."""

    row, name = 112, "twin"
    kills = True
    bar_s = 30.0
    _twin: Host | None = None

    @property
    def struck(self) -> list[Host | Remote]:
        return [*super().struck, *([] if self._twin is None else [self._twin])]

    def inject(self) -> None:
        nature, lives = self.victim.machine.nature.reborn(), self.site.lives()
        self._twin = self.site.builder.host(TWIN + self.site.strikes, nature)
        self.site.take_in(self._twin)
        self._twin.spawn()
        until(self._twin.is_whole, "the twin works", START_S)
        if self.site.lives() <= lives:
            self.gave_up = "its twin has another name"

    def heal(self) -> None:
        twin, self._twin = self._twin, None
        if twin is not None:
            twin.die()


FAULTS: Final[Mapping[str, type[HostFault]]] = {
    kind.name: kind
    for kind in (
        HostDies, HostReborn, CutFromDatabase, CutOff, Deaf, Mute, RemoteCutOff, Flaps, Lossy, SlowReader, Clock, Twin,
    )
}  # fmt: skip
