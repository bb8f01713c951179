"""``pulse.epochs`` and ``pulse.witnesses`` as Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from pulse.store.recovery.epochs import APART_S, DatabaseState, Mark, NewEpoch, Witnessed

LINEAGE: Final = UUID(int=1)
STEP: Final = 1000


class Server(NamedTuple):
    """The identity of a PostgreSQL and of its tables: what a restore changes."""

    started_at: datetime
    relation: int

    @property
    def place(self) -> str:
        return f"{self.started_at.timestamp()}/{self.relation}"


@dataclass(slots=True)
class Epoch:
    epoch: int
    began_at: datetime
    floor: int = 0
    hosts: frozenset[UUID] = frozenset()


@dataclass(slots=True)
class WitnessRow:
    counter: int
    seen_at: datetime
    epoch: int
    highest: int
    place: str


@dataclass(slots=True)
class Ledger:
    epochs: list[Epoch] = field(default_factory=list)
    witnesses: dict[UUID, WitnessRow] = field(default_factory=dict)

    @property
    def newest(self) -> Epoch:
        return self.epochs[-1]

    @property
    def floor(self) -> int:
        """Of the newest epoch: all jobs of a world are old enough for it, or have ids without a time."""
        return self.epochs[-1].floor if self.epochs else 0

    def knows(self, known: Witnessed, server: Server) -> bool:
        if known.instance is None:
            return True
        row = self.witnesses.get(known.instance)
        if row is None or known.counter is None or row.counter < known.counter:
            return False
        return (known.started_at, known.relation) == server and known.epoch == self.newest.epoch

    def look(
        self, instance: UUID, back_to: datetime | None, wait_s: float, server: Server, now: datetime
    ) -> DatabaseState:
        own, newest = self.witnesses.get(instance), self.newest
        others = {one: row for one, row in self.witnesses.items() if one != instance}
        elsewhere = [row for row in others.values() if row.place != server.place]
        if back_to is None:
            back_to = max((row.seen_at for row in elsewhere), default=None) if own is None else own.seen_at
        since = None if back_to is None else back_to - timedelta(seconds=APART_S)
        late = [one for one, row in others.items() if row.epoch < newest.epoch and one in newest.hosts]
        return DatabaseState(
            lineage=LINEAGE, system_id="1", timeline=1, started_at=server.started_at, relation=server.relation,
            place=server.place, epoch=newest.epoch, floor=newest.floor, counter=None if own is None else own.counter,
            epoch_seen=None if own is None else own.epoch, back_to=back_to,
            elsewhere=sum(since is not None and row.seen_at >= since for row in elsewhere),
            behind=len(late) if newest.began_at > now - timedelta(seconds=wait_s) else 0,
            newest=max((row.highest for row in self.witnesses.values()), default=None),
        )  # fmt: skip

    def tick(self, known: Witnessed, highest: int, server: Server, now: datetime) -> Mark | None:
        if known.instance is None or not self.knows(known, server):
            return None
        row = self.witnesses[known.instance]
        row.counter, row.seen_at, row.highest = row.counter + 1, now, max(row.highest, highest)
        row.place = server.place
        return Mark(row.counter, row.seen_at)

    def begin(
        self, epoch: int, highest: int, instance: UUID, back_to: datetime | None, now: datetime
    ) -> NewEpoch | None:
        if self.newest.epoch >= epoch:
            return None
        since = None if back_to is None else back_to - timedelta(seconds=APART_S)
        known = max([highest, self.floor + STEP, *(row.highest for row in self.witnesses.values())])
        others = {one: row for one, row in self.witnesses.items() if one != instance}
        hosts = frozenset(one for one, row in others.items() if since is None or row.seen_at >= since)
        self.epochs.append(Epoch(epoch, now, -(-known // STEP) * STEP, hosts))
        return NewEpoch(epoch, self.floor)

    def accept(self, instance: UUID, counter: int, epoch: int, highest: int, place: str, now: datetime) -> Mark | None:
        if epoch != self.newest.epoch:
            return None
        highest, row = max(highest, self.floor + STEP), self.witnesses.get(instance)
        if row is None:
            row = self.witnesses[instance] = WitnessRow(counter + 1, now, epoch, highest, place)
        else:
            row.counter, row.highest = max(row.counter, counter) + 1, max(row.highest, highest)
            row.epoch, row.place, row.seen_at = epoch, place, now
        return Mark(row.counter, row.seen_at, row.highest)


def first_ledger(now: datetime) -> Ledger:
    return Ledger([Epoch(1, now)])
