"""Where there may be work, as far as this process has heard: cursors, due times, and what wakes the claim loop."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterable
from typing import Final

import anyio

from pulse.store.rows import Level
from pulse_actors.dispatcher.claims.cross_host import CrossHostHints
from pulse_actors.dispatcher.claims.cursors import Cursors
from pulse_actors.dispatcher.workers.records import RegisteredWorker
from pulse_actors.dispatcher.workers.registry import ClaimPlan, WorkerRegistry

FAR_S: Final = 3600.0  # what is due later than that is left to the poll
UNPLANNED_S: Final = 0.1  # other hosts hear of work after it, though no claim was planned since
MAX_TIMES: Final = 10_000  # likewise what there is no room for


class DueTimes:
    """
    When levels get work, as far as it is known: a bounded memory, with the poll behind it.

    Moments are monotonic, each with its level; None: at a level that nobody knows.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Level | None]] = []
        self._numbers = itertools.count()  # levels and None have no order

    def add(self, level: Level | None, delay_s: float, now_s: float) -> bool:
        """Something is due there in *delay_s*; whether that is remembered."""
        if delay_s >= FAR_S or len(self._heap) >= MAX_TIMES:
            return False
        heapq.heappush(self._heap, (now_s + delay_s, next(self._numbers), level))
        return True

    def passed(self, now_s: float) -> list[Level | None]:
        """What is due by now, in order; it is forgotten."""
        due: list[Level | None] = []
        while self._heap and self._heap[0][0] <= now_s:
            due.append(heapq.heappop(self._heap)[2])
        return due

    def cut(self, pause_s: float, now_s: float) -> float:
        """The pause, no longer than until the next one is due."""
        return min(pause_s, self._heap[0][0] - now_s) if self._heap else pause_s


class WorkSignal:
    """
    Submits, reports and requests tell the claim loop here that jobs are due or that workers have free capacity.

    Args:
        poll_s: Longest pause between two claims while somebody has room.

    Attributes:
        cursors: Where claims go on.
        poll_s: As above.
    """

    def __init__(self, registry: WorkerRegistry, cross_host: CrossHostHints, *, poll_s: float) -> None:
        self._registry = registry
        self._cross_host = cross_host
        self.poll_s = poll_s
        self.cursors = Cursors(poll_s)
        self._due = DueTimes()
        self._event = anyio.Event()
        self._left: set[str] = set()  # topics with work, since the last plan
        self._has_left = anyio.Event()
        self._is_waiting = False  # all that is known was claimed, and somebody has room

    def wake(self) -> None:
        """There may be something to claim, nobody knows where, and since when."""
        self.cursors.want_full()
        self._event.set()

    def came(self, worker: RegisteredWorker) -> None:
        """A worker has come: topics that nobody else here serves may have jobs that are long due."""
        served = {topic for one in self._registry.workers() if one is not worker for topic in one.facts.topics}
        if served.issuperset(worker.facts.topics):
            self.wake_recent()
        else:
            self.wake()

    def wake_recent(self, delay_s: float = 0.0) -> None:
        """Something is due now or in *delay_s*, nobody knows at which level."""
        if delay_s <= 0:
            self.cursors.want_recent()
            self._event.set()
        elif self._due.add(None, delay_s, time.monotonic()):
            self._event.set()  # the loop computes its pause anew

    def wake_level(self, level: Level, delay_s: float = 0.0, *, due_s: float | None = None) -> None:
        """
        There is something to claim at *level*, now or in *delay_s*.

        Args:
            level: Where.
            delay_s: In how many seconds.
            due_s: When it is due, Unix seconds, where that is known; it may lie long before now.
        """
        if delay_s <= 0:
            self.cursors.learn(level, due_s)
            self._event.set()
            self.work_left((level.topic,))
        elif self._due.add(level, delay_s, time.monotonic()):
            self._event.set()

    def work_left(self, topics: Iterable[str]) -> None:
        """There is work in *topics* that a claim has not taken."""
        self._left.update(topics)
        self._has_left.set()

    def plan_made(self, plans: Iterable[ClaimPlan]) -> None:
        """Claims are made for *plans*: other hosts may have room for the work in all other topics."""
        if self._left:
            left, self._left = self._left.difference(*(plan.topics for plan in plans)), set()
            if left:
                self._cross_host.work()

    async def tell_left(self) -> None:
        """
        Tell other hosts of work that the claim loop does not reach yet, until cancelled.

        A claim may take long, or fail each time.
        """
        while True:
            await self._has_left.wait()
            self._has_left = anyio.Event()
            await anyio.sleep(UNPLANNED_S)
            with_room = (worker for worker in self._registry.workers() if worker.credit > 0)
            left = self._left.difference(*(worker.facts.topics for worker in with_room))
            if left:
                self._left -= left
                self._cross_host.work()

    def look_again(self) -> None:
        """Nothing new is due, but somebody may have room again, or something may have to be settled."""
        self._event.set()

    @property
    def is_at_rest(self) -> bool:
        """Whether the claim loop waits, with nothing known to be due and somebody who has room."""
        return self._is_waiting and not self._event.is_set()

    def take_due(self, now_s: float) -> bool:
        """Whether something has become due by now: the last claim may have missed it."""
        passed = self._due.passed(now_s)
        for level in passed:
            if level is None:
                self.cursors.want_recent()
            else:
                self.cursors.learn(level)
        return bool(passed)

    async def wait(self, pause_s: float, now_s: float, *, has_room: bool) -> None:
        """Return after *pause_s*, or when something is due, or may be. *has_room*: somebody here could take it."""
        self._is_waiting = has_room
        with anyio.move_on_after(self._due.cut(pause_s, now_s)):
            await self._event.wait()
        self._is_waiting = False
        self._event = anyio.Event()
