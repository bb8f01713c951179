"""
Every guarded statement against every other, on two connections, in every order.

The first runs in a transaction that is held open, the second meets it there: it waits for the row and judges it then,
or passes by. Statements and rows must end as if one had run after the other: the database itself says what those
serial orders give. An audit trigger watches over all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

import asyncpg
import pytest
from anyio.lowlevel import checkpoint

from tests.support.store import audit
from tests.support.store.helpers import Sql
from tests.support.store.ops import CLAIM, EXPIRE, OPS, SET_TOPIC, STAGES, Op, Session, made, said, state
from tests.support.waiting import until_async

pytestmark = pytest.mark.heavy

SKIPPING: Final = (CLAIM, EXPIRE)  # what they find locked they leave to their next turn
FORGET: Final = "TRUNCATE public.audit, pulse.jobs, pulse.attempts, pulse.schedules, pulse.topics CASCADE"
Outcome = tuple[object, ...]  # what each operation said, in the order first, second; and the state afterwards


@dataclass(frozen=True, slots=True)
class Arena:
    """
    Two sessions, a watcher, and results so far.

    Attributes:
        known: Outcomes of serial orders.
        met: For each operation: where another one had to wait for it, or passed by.
    """

    one: Session
    two: Session
    watcher: Sql
    known: dict[tuple[str, ...], Outcome] = field(default_factory=dict)
    met: dict[str, set[tuple[str, str]]] = field(default_factory=dict)

    async def serial(self, stage: str, *ops: Op) -> Outcome:
        """The answers of *ops*, one after the other, and the state afterwards."""
        key = (stage, *(op.name for op in ops))
        if key not in self.known:
            world = await made(self.watcher, self.two, stage)
            told = [await said(op, self.one, world) for op in ops]
            self.known[key] = (*told, await state(self.watcher, world))
        return self.known[key]

    async def overlapping(self, stage: str, first: Op, second: Op, *, commit: bool) -> tuple[Outcome, bool]:
        """The same with *second* beginning before *first* is committed or rolled back; and whether it had to wait."""
        world = await made(self.watcher, self.two, stage)
        transaction = self.one.connection_of(first).transaction()
        await transaction.start()
        told = await said(first, self.one, world)
        meeting = asyncio.create_task(said(second, self.two, world))
        waited = await self._met(meeting, second)
        await (transaction.commit() if commit else transaction.rollback())
        return (told, await meeting, await state(self.watcher, world)), waited

    async def _met(self, meeting: asyncio.Task[object], op: Op) -> bool:
        """Return when the other session waits for ours (True) or has finished (False)."""
        blocking = "SELECT cardinality(pg_blocking_pids($1)) > 0"
        pid = self.two.connection_of(op).get_server_pid()

        async def is_met() -> bool:
            return meeting.done() or bool(await self.watcher.fetchval(blocking, pid))

        await until_async(is_met, f"{op} to finish or to wait")
        return not meeting.done()


@pytest.fixture(scope="module")
async def shared_arena(module_database: str) -> AsyncIterator[Arena]:
    watcher = await asyncpg.connect(module_database)
    await audit.install(watcher)
    made_of = Arena(await Session.open(module_database), await Session.open(module_database), watcher)
    yield made_of
    made_of.one.close()
    made_of.two.close()
    await watcher.close(timeout=5)
    await checkpoint()


@pytest.fixture
async def arena(shared_arena: Arena) -> Arena:
    """Without what the tests before have left: statements and rules of the audit would read all of it each time."""
    await shared_arena.watcher.execute(FORGET)
    return shared_arena


@pytest.mark.rest
@pytest.mark.parametrize("first", OPS, ids=str)
async def test_committed(arena: Arena, first: Op) -> None:
    """Two statements that meet end as one of their two serial orders; neither claim nor expiry ever waits."""
    wrong = []
    met = arena.met[first.name] = set()
    for second in OPS:
        for stage in STAGES:
            outcome, waited = await arena.overlapping(stage, first, second, commit=True)
            if waited or second in SKIPPING:
                met.add((second.name, stage))
            *told, left = await arena.serial(stage, second, first)
            serial = [await arena.serial(stage, first, second), (*reversed(told), left)]
            if (first.name.startswith("fire") and second is CLAIM) or (
                first.name in {"change", "replace"} and second in SKIPPING
            ):
                # It passes by the job that makes way, or is moved, and cannot see the new one yet: the next turn does.
                said_alone, left_alone = await arena.serial(stage, first)
                serial.append((said_alone, [] if second is CLAIM else None, left_alone))
            if outcome not in serial or (waited and second in SKIPPING):
                wrong.append((stage, first.name, second.name, waited, outcome, serial))
    assert wrong == []
    assert await audit.violations(arena.watcher) == []


@pytest.mark.rest
@pytest.mark.parametrize("first", OPS, ids=str)
async def test_rolled_back(arena: Arena, first: Op) -> None:
    """
    A statement that met one that was rolled back ends as if it had been alone; claim and expiry may pass by.

    A statement that did not wait for the first one ended before its commit, and has not seen it: so pairs that the test
    above has found to pass are left out.
    """
    wrong = []
    met = arena.met.get(first.name)
    for second in OPS:
        for stage in STAGES:
            if met is not None and (second.name, stage) not in met:
                continue
            (_, *outcome), waited = await arena.overlapping(stage, first, second, commit=False)
            allowed = [await arena.serial(stage, second)]
            if second in SKIPPING:
                nothing: object = [] if second is CLAIM else None
                allowed.append((nothing, *await arena.serial(stage)))
            if tuple(outcome) not in allowed or (waited and second in SKIPPING):
                wrong.append((stage, first.name, second.name, waited, outcome, allowed))
    assert wrong == []
    assert await audit.violations(arena.watcher) == []


@pytest.mark.rest
async def test_statements_do_meet(arena: Arena) -> None:
    """The tests above prove something only if sessions do wait for each other: all that write to the same row do."""
    row_writers = {
        "complete", "complete by a handler", "error", "released", "crashed", "lease_expired", "extend", "checkpoint",
        "move", "cancel",
    }  # fmt: skip
    for first in OPS:
        for second in OPS:
            if {first.name, second.name} <= row_writers:
                assert (await arena.overlapping("RUNNING", first, second, commit=True))[1], (first, second)
    assert (await arena.overlapping("PENDING", *SET_TOPIC, commit=True))[1]
