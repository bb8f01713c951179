"""The simulation's epochs and witnesses against PostgreSQL."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pytest

from pulse.store.recovery.epochs import DatabaseState, Held, HostContact, Mark, NewEpoch, Witnessed
from pulse.store.rows import Completion, Fence
from pulse.store.store import Store
from tests.support.store.epoch_kit import clean
from tests.support.store.epoch_rows import Server, first_ledger
from tests.support.store.helpers import LEASE_S, NOW, job
from tests.support.store.model import FINISHED
from tests.support.store.rows import Rows

if TYPE_CHECKING:
    from asyncpg import Connection, Record

pytestmark = [pytest.mark.postgres, pytest.mark.anyio, pytest.mark.usefixtures("own_database")]

HOSTS: Final = {"h0": UUID(int=10), "h1": UUID(int=11)}
WORKERS: Final = ("h0/w0", "h1/w1")
STEPS: Final = 40
OPERATIONS: Final = ("submit", "begin", "tick", "tick", "take", "take", "ask", "complete", "cancel")


class Epochs:
    """A real store and the model, with two hosts. Epochs go by the real time, which hardly moves here."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store = store
        self.chance = random.Random(seed)
        self.rows = Rows(swept_at=NOW, ledger=first_ledger(NOW))
        self.server = Server(NOW, 1)
        self.counters = dict.fromkeys(HOSTS, 0)
        self.epochs = dict.fromkeys(HOSTS, 0)

    def some_job(self) -> bytes:
        return self.chance.choice([*self.rows.jobs, b"\0" * 16])

    async def do_submit(self) -> tuple[object, object]:
        """Its id has no time, so that its attempts begin above the floor."""
        new = [job(id=UUID(bytes=self.chance.randbytes(16), version=4).bytes, topic=self.chance.choice("ab"))]
        return await self.store.submit(new, now=NOW), self.rows.submit(new, NOW)

    async def do_complete(self) -> tuple[object, object]:
        row = self.rows.jobs[self.chance.choice(list(self.rows.jobs))]
        done = [Completion(row.id, max(row.attempts, 1), row.locked_by or "nobody", None)]
        return await self.store.complete(done, now=NOW), self.rows.complete(done, NOW)

    async def do_cancel(self) -> tuple[object, object]:
        chosen = [self.chance.choice(list(self.rows.jobs))]
        return await self.store.cancel(chosen, now=NOW), self.rows.cancel(chosen, NOW)

    async def look(self) -> None:
        for instance in HOSTS.values():
            real, said = await self._seen(instance)
            assert _plain(real) == _plain(said)

    async def _seen(self, instance: UUID) -> tuple[DatabaseState, DatabaseState]:
        real = await self.store.epochs.look(instance, None, LEASE_S)
        return real, self.rows.ledger.look(instance, None, LEASE_S, self.server, NOW)

    async def do_begin(self) -> tuple[object, object]:
        host = self.chance.choice([*HOSTS])
        real, said = await self._seen(HOSTS[host])
        epoch = self.chance.choice((None, real.epoch, real.epoch + 1))
        highest, counter = self.chance.choice((1000, 2500)), self.counters[host]
        mine = [worker for worker in WORKERS if worker.startswith(host)]
        held = Held(mine, [Fence(self.some_job(), self.chance.choice((1, 2, 1003)), mine[0])], 0.0)
        coming = HostContact(HOSTS[host], host, counter, highest)
        found = await self.store.epochs.begin(real, coming, epoch=epoch, held=held)
        raised, mark = self.rows.begin_epoch(said, coming, epoch, held, NOW)
        if mark is not None:
            self.counters[host], self.epochs[host] = mark.counter, said.epoch if raised is None else raised.epoch
        return _counted(*found), _counted(raised, mark)

    async def do_tick(self) -> tuple[object, object]:
        host = self.chance.choice([*HOSTS])
        real, _ = await self._seen(HOSTS[host])
        counter = self.counters[host] + self.chance.choice((0, 0, -1, 1))
        epoch = self.epochs[host] + self.chance.choice((0, 0, 0, 1))
        known = Witnessed(HOSTS[host], counter, epoch, real.started_at, real.relation)
        found = await self.store.epochs.tick(known, 1000, real.place)
        mark = self.rows.ledger.tick(known._replace(started_at=NOW, relation=1), 1000, self.server, NOW)
        if mark is not None:
            self.counters[host] = mark.counter
        return _counted(None, found), _counted(None, mark)

    async def do_take(self) -> tuple[object, object]:
        seats = [self.chance.randrange(2) for _ in range(self.chance.randrange(1, 3))]
        real = await self.store.claim(["a", "b"], WORKERS, seats, LEASE_S, now=NOW)
        chosen = {one.id: WORKERS[one.worker] for one in real}
        for identity, worker in chosen.items():
            self.rows.seated([identity], [worker], LEASE_S, NOW)
        jobs = [self.rows.jobs[one] for one in chosen]
        return [(one.attempt, one.uncharged) for one in real], [(job.attempts, job.uncharged) for job in jobs]

    async def do_ask(self) -> tuple[object, object]:
        pairs = {self.some_job(): self.chance.choice((0, 1, 1001, 2002)) for _ in range(2)}
        forgotten = set(pairs) if self.chance.random() < 0.5 else set()
        real = await self.store.epochs.gone_back(pairs, forgotten)
        is_open = {job for job in pairs if job in self.rows.jobs and self.rows.jobs[job].status not in FINISHED}
        assert set(await self.store.epochs.open_again([*pairs])) == is_open
        assert set(await self.store.epochs.unknown([*pairs])) == pairs.keys() - self.rows.jobs.keys()
        return real, self.rows.knows_less(pairs, forgotten)


def _counted(raised: NewEpoch | None, mark: Mark | None) -> tuple[object, ...]:
    return raised, None if mark is None else (mark.counter, mark.highest)


def _plain(seen: DatabaseState) -> dict[str, Any]:
    told = dataclasses.asdict(seen)
    return {name: told[name] for name in ("epoch", "floor", "counter", "epoch_seen", "elsewhere", "behind", "newest")}


@pytest.fixture(autouse=True)
async def at_first(connection: Connection[Record]) -> Any:
    await clean(connection)
    yield
    await clean(connection)


@pytest.mark.parametrize("seed", range(6))
async def test_both_databases_know_the_same_of_epochs(store: Store, seed: int) -> None:
    twins = Epochs(store, seed)
    for operation in ["submit", *twins.chance.choices(OPERATIONS, k=STEPS)]:
        said, expected = await getattr(twins, f"do_{operation}")()
        assert said == expected, operation
        await twins.look()
