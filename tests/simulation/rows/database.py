"""
The database of the simulation, the one thing in it that is no real code: rows behind connections that fail.

A statement is on its way, is carried out at one moment, and its answer is on its way back. It can be refused before, or
its answer lost after; and when its caller is killed meanwhile, it is carried out all the same, perhaps seconds later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import trio

from pulse.errors import StatementTimeoutError, UnavailableError
from tests.simulation.machine.process import PROCESS, Process
from tests.simulation.rows.workflow_rows import WorkflowRows
from tests.support.store.epoch_rows import Server, first_ledger

if TYPE_CHECKING:
    from tests.simulation.world import World

EPOCH: Final = datetime(2030, 1, 1, tzinfo=UTC)
SLOW: Final = 0.15  # of statements
SLOW_S: Final = 0.02
LATE_S: Final = 3.0  # a statement whose client is gone
LOCK_TIMEOUT_S: Final = 2.0
DEADLINE_S: Final = 3.0  # of a statement that nobody answers
# What takes a lock of the table of jobs that a SHARE lock keeps out.
WRITES: Final = frozenset(
    (
        *("submit", "submit_and_claim", "submit_again", "claim", "move", "complete", "end", "extend", "checkpoint"),
        *("cancel", "retry", "delete", "change", "mark_sweep", "submit_held", "signal", "settle_forgotten"),
    )
)
T = TypeVar("T")


class Database:
    """
    All machines' database.

    Attributes:
        mute: It is down without a word: a statement waits until its time is up.
        refused: Share of statements that fail before they are carried out.
        lost: Share of those whose answer is lost.
        losing: Statements whose next answer is lost.
        stepped_s: By how much its clock was set.
        locked: Jobs that somebody else has locked.
        table_locked: Somebody reads the whole table, and lets nobody write.
        server: Which one it is; another one after it went back.
        gone_back: How often it did.
        gone_back_s: When it last did.
        troubles: What kept heartbeats from being written: start, end, and how many of them it may have been.
        locks: The same of locks, which a living dispatcher can report.
        signal_numbers: Ids of signals; none is used again when it goes back.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.down = self.mute = False
        self.refused = 0.0
        self.lost = 0.0
        self.losing: set[str] = set()
        self.stepped_s = 0.0
        self.locked: set[bytes] = set()
        self.table_locked = False
        self.troubles: list[list[float]] = []
        self.locks: list[list[float]] = []
        self.signal_numbers = count(1)
        self.rows = WorkflowRows(swept_at=self.now(), ledger=first_ledger(self.now()))
        self.server = Server(self.now(), 1)
        self.gone_back = 0
        self.gone_back_s = float("-inf")

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=trio.current_time() + self.stepped_s)

    def backup(self) -> WorkflowRows:
        return deepcopy(self.rows)

    def go_back(self, backup: WorkflowRows, *, in_place: bool) -> None:
        """Restore *copy*: in the same server, with other tables; or in another one."""
        kept = deepcopy(backup)
        for one in fields(kept):
            setattr(self.rows, one.name, getattr(kept, one.name))
        started_at, relation = self.server
        self.server = Server(started_at, relation + 1) if in_place else Server(self.now(), relation)
        self.gone_back += 1
        self.gone_back_s = trio.current_time()

    def trouble_begins(self, times: int, kept: list[list[float]] | None = None) -> Callable[[], None]:
        """From now on heartbeats may fail, so many times in a row; call the result at the end of that."""
        trouble = [trio.current_time(), float("inf"), times]
        (self.troubles if kept is None else kept).append(trouble)

        def ends() -> None:
            trouble[1] = trio.current_time()

        return ends

    def troubles_since(self, since_s: float) -> float:
        """How many heartbeats in a row may have failed since then, other than by locks."""
        return sum(times for _, until_s, times in self.troubles if until_s >= since_s)

    def was_locked_since(self, since_s: float) -> bool:
        return any(until_s >= since_s for _, until_s, _ in self.locks)

    def _is_contested(self, name: str, locks: Sequence[bytes]) -> bool:
        return bool(self.locked.intersection(locks)) or (self.table_locked and name in WRITES)

    def _loses(self, name: str, process: Process) -> bool:
        is_lost = name in self.losing
        self.losing.discard(name)
        return is_lost or self.down or process.machine.cut_off or self.world.chance.random() < self.lost

    async def do(self, name: str, act: Callable[[], T], locks: Sequence[bytes] = ()) -> T:
        world, process = self.world, PROCESS.get()
        if process.dead:
            raise UnavailableError("this process is dead")
        world.nemesis.reached(f"{name}:before")
        statement = _Statement(self, process, name, act)
        try:
            if world.chance.random() < SLOW:
                await trio.sleep(world.chance.expovariate(1 / SLOW_S))
            if self.down or process.machine.cut_off or world.chance.random() < self.refused:
                world.trace("refused", process, statement=name)
                if self.down and self.mute:
                    await trio.sleep(DEADLINE_S)
                raise UnavailableError("the database is away")
            if self._is_contested(name, locks):
                await trio.sleep(LOCK_TIMEOUT_S)
                if self._is_contested(name, locks):
                    raise StatementTimeoutError("a statement waited too long: canceling statement due to lock timeout")
            statement.carry_out()
            world.nemesis.reached(f"{name}:after")
            if world.chance.random() < SLOW:
                await trio.sleep(world.chance.expovariate(1 / SLOW_S))
            else:
                await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            statement.abandon()
            raise
        if self._loses(name, process):
            world.trace("answer lost", process, statement=name)
            raise UnavailableError("the database went away")
        return statement.answer()


class _Statement(Generic[T]):
    """One statement of one process, which has the identity of that process."""

    def __init__(self, database: Database, process: Process, name: str, act: Callable[[], T]) -> None:
        self._database = database
        self._process = process
        self._name = name
        self._act = act
        self._server = database.server
        self._answer: list[T] = []
        self._error: Exception | None = None
        self._done = False

    def carry_out(self) -> None:
        if self._done:
            return
        self._done = True
        if self._database.server != self._server:
            self._error = UnavailableError("its server is gone")
            return
        token = PROCESS.set(self._process)
        try:
            self._answer.append(self._database.world.judge.watch(self._name, self._process, self._act))
        except Exception as error:  # noqa: BLE001 - it is the caller's
            self._error = error
        finally:
            PROCESS.reset(token)

    def abandon(self) -> None:
        """The caller is gone: the server may not notice before it has done it."""
        world = self._database.world
        if not self._done and world.chance.random() < 0.6:
            world.trace("goes on alone", self._process, statement=self._name)
            world.timers.after(world.chance.uniform(0.0, LATE_S), self._late)

    def _late(self) -> None:
        if not self._database.down:
            self.carry_out()

    def answer(self) -> T:
        if self._error is not None:
            raise self._error
        return self._answer[0]
