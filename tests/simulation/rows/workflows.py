"""
Jobs that wait, on the simulated database: ``DependencyStore``, ``SignalStore``, and ``UniqueSubmits`` without keys.

Transactions that add dependencies and signals look at the rows before they commit, and in between others may commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import trio

from pulse.protocol import SubmittedJob
from pulse.store.operators.dependencies import FIRST, Settled
from pulse.store.rows import Wake
from tests.simulation.rows.workflow_rows import Edge, SentSignal

if TYPE_CHECKING:
    from tests.simulation.rows.database import Database

LONG: Final = 0.3  # of these transactions
LONG_S: Final = 1.0


async def _think(database: Database) -> None:
    chance = database.world.chance
    if chance.random() < LONG:
        await trio.sleep(chance.uniform(0.0, LONG_S))


class FakeSubmits:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def submit(self, jobs: Sequence[SubmittedJob]) -> tuple[list[bytes], list[Wake]]:
        database, rows = self._database, self._database.rows
        seen = await database.do("look_at_parents", lambda: rows.ended_parents(jobs))
        await _think(database)
        database.world.judge.workflows.saw(jobs, seen)
        woken = await database.do("submit_held", lambda: rows.submit_held(jobs, seen, database.now()))
        return [job.id or b"" for job in jobs], woken


class FakeDependencies:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def settle_forgotten(self, after: Edge, limit: int) -> Settled:
        database, rows = self._database, self._database.rows
        if not rows.edges:
            return Settled(FIRST, 0)
        return await database.do("settle_forgotten", lambda: rows.settle_forgotten(after, limit, database.now()))


class FakeSignals:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def send(self, job: bytes, name: str, payload: str, key: str) -> bool:
        database, rows = self._database, self._database.rows
        if not await database.do("look_at_job", lambda: rows.may_send(job, name, key)):
            return False
        signal = SentSignal(next(database.signal_numbers), job, name, payload, key)
        await _think(database)
        return await database.do("signal", lambda: rows.deliver(signal, database.now()), [job])

    async def next(self, job: bytes, name: str, had: Sequence[int]) -> dict[str, object] | None:
        database, rows = self._database, self._database.rows
        return await database.do("next_signal", lambda: rows.next_signal(job, name, had, database.now()))
