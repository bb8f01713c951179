"""Where there may be work, as far as this process knows: cursors, due times, and the event for the claim loop."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterable, Mapping
from typing import Final

import anyio

from pulse.common.waiting import WakeupEvent
from pulse.store.rows import Ended, GroupLevel, Level, level_of
from pulse_actors.dispatcher.claims.cross_host import CrossHostHints
from pulse_actors.dispatcher.claims.cursors import Cursors
from pulse_actors.dispatcher.claims.group_turns import GroupTurns
from pulse_actors.dispatcher.workers.records import HeldJob, RegisteredWorker
from pulse_actors.dispatcher.workers.registry import WorkerRegistry

FAR_S: Final = 3600.0  # jobs that are due later are left to polling
UNPLANNED_S: Final = 0.1  # after that other hosts are notified of work although no claim was planned
MAX_TIMES: Final = 10_000  # remembered due times; polling finds the others


class DueTimes:
    """
    When levels get work, as far as it is known: a bounded memory; polling finds the rest.

    Times are monotonic, each with its level; None: an unknown level.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Level | GroupLevel | None]] = []
        self._numbers = itertools.count()  # levels and None have no order

    def add(self, level: Level | GroupLevel | None, delay_s: float, now_s: float) -> bool:
        """A job is due at that level in *delay_s*; returns whether that is remembered."""
        if delay_s >= FAR_S or len(self._heap) >= MAX_TIMES:
            return False
        heapq.heappush(self._heap, (now_s + delay_s, next(self._numbers), level))
        return True

    def passed(self, now_s: float) -> list[Level | GroupLevel | None]:
        """Remove and return what is due by now, in order."""
        due: list[Level | GroupLevel | None] = []
        while self._heap and self._heap[0][0] <= now_s:
            due.append(heapq.heappop(self._heap)[2])
        return due

    def cut(self, pause_s: float, now_s: float) -> float:
        """The pause, shortened to when the next one is due."""
        return min(pause_s, self._heap[0][0] - now_s) if self._heap else pause_s


class WorkSignal:
    """
    Submits, reports and requests tell the claim loop here that jobs are due or that workers have free capacity.

    Args:
        poll_s: Longest pause between two claims while a worker has room.

    Attributes:
        cursors: Where claims go on.
        turns: The same of groups, and of topics with a limit.
        poll_s: As above.
    """

    def __init__(self, registry: WorkerRegistry, cross_host: CrossHostHints, *, poll_s: float) -> None:
        self._registry = registry
        self._cross_host = cross_host
        self.poll_s = poll_s
        self.cursors = Cursors(poll_s)
        self.turns = GroupTurns(poll_s)
        self._due = DueTimes()
        self._event = anyio.Event()
        self._left: set[str] = set()  # topics with unclaimed work, since the last plan
        self._has_left = WakeupEvent()
        self._is_waiting = False  # everything known was claimed, and a worker has room

    def wake(self) -> None:
        """There may be work, at an unknown level, due for an unknown time."""
        self.cursors.want_full()
        self.turns.want_survey()
        self._event.set()

    def is_in_turn(self, level: GroupLevel) -> bool:
        """Whether jobs of *level* are claimed by their group's turn: they have one, or their topic has a limit."""
        return level.group is not None or level.topic in self.turns.limits

    def set_limits(self, limits: Mapping[str, str]) -> None:
        """Topics that go by a limit, and its name, as just read; policies may have changed, too."""
        if self.turns.limits or limits:
            self.turns.set_limits(limits)
            self.wake()

    def came(self, worker: RegisteredWorker) -> None:
        """A worker connected: topics that no other worker here serves may have jobs that are long due."""
        if self.is_at_rest and self._registry.is_spare(worker):
            return  # else each of thousands that connect would cost a claim, and a look at all others
        if self._registry.has_others(worker):
            self.wake_recent()
        else:
            self.wake()

    def wake_recent(self, delay_s: float = 0.0, *, has_groups: bool = False) -> None:
        """Work is due now or in *delay_s*, at an unknown level, maybe of a group."""
        if has_groups:
            self.turns.use()
        if delay_s <= 0:
            self.cursors.want_recent()
            self.turns.want_survey()
            self._event.set()
        elif self._due.add(None, delay_s, time.monotonic()):
            self._event.set()  # the loop computes its pause again

    def wake_level(self, level: Level | GroupLevel, delay_s: float = 0.0, *, due_s: float | None = None) -> None:
        """
        There is work at *level*, now or in *delay_s*.

        Args:
            level: The level.
            delay_s: In how many seconds.
            due_s: When it is due, Unix seconds, if known; it may be long ago.
        """
        if delay_s <= 0:
            self._learn(level, due_s)
            self._event.set()
            self.work_left((level.topic,))
        elif self._due.add(level, delay_s, time.monotonic()):
            self._event.set()

    def _learn(self, level: Level | GroupLevel, due_s: float | None = None) -> None:
        if isinstance(level, GroupLevel):
            self.turns.learn(level, due_s)
        elif level.topic in self.turns.limits:
            self.turns.learn(GroupLevel(level.topic, None, level.priority), due_s)
        else:
            self.cursors.learn(level, due_s)

    def ended(self, one: Ended, delay_s: float | None = None) -> None:
        """An attempt ended without success: its slot is free, and its job is due then, if it runs again."""
        if one.topic in self.turns.limits:
            self.turns.freed(one.topic, one.group_key)
            self._event.set()
        if one.status != "DEAD_LETTERED":
            delay_s = one.delay_s if delay_s is None else delay_s
            self.wake_level(level_of(one.topic, one.group_key, one.priority), delay_s, due_s=one.due_s)

    def freed_somewhere(self) -> None:
        """Jobs were canceled or deleted: slots may be free, or a sequence go on, here or on other hosts."""
        if self.turns.limits:
            self.wake_recent()
            self._cross_host.work()

    def freed(self, jobs: Iterable[HeldJob]) -> None:
        """These are over: the slots of those with a limit are free."""
        if self.turns.limits:
            for job in jobs:
                self.turns.freed(job.topic, job.group_key)

    def work_left(self, topics: Iterable[str]) -> None:
        """A claim has left work in *topics*."""
        self._left.update(topics)
        self._has_left.wake()

    def will_claim(self, topics: Iterable[Iterable[str]]) -> None:
        """Claims of these *topics* follow: other hosts may have room for work in all others."""
        if self._left:
            left, self._left = self._left.difference(*topics), set()
            if left:
                self._cross_host.work()

    def tell_slots(self) -> None:
        """Notify other hosts of slots of limits that were freed here, and that no job here has taken."""
        if self.turns.limits and self.turns.has_left_slots():
            self._cross_host.work()

    async def tell_left(self) -> None:
        """
        Notify other hosts of work that the claim loop does not reach in time, until cancelled.

        A claim may take long, or fail each time.
        """
        while True:
            await self._has_left.wait()
            await anyio.sleep(UNPLANNED_S)
            left = self._left.difference(*(one.topics for one in self._registry.with_room(again=True)))
            if left:
                self._left -= left
                self._cross_host.work()

    def look_again(self) -> None:
        """No new work, but a worker may have room again, or a doubt must be looked into."""
        self._event.set()

    @property
    def is_at_rest(self) -> bool:
        """Whether the claim loop waits with room for jobs and no known work."""
        return self._is_waiting and not self._event.is_set()

    def take_due(self, now_s: float) -> bool:
        """Whether a job has become due: the last claim may have missed it."""
        passed = self._due.passed(now_s)
        for level in passed:
            if level is None:
                self.cursors.want_recent()
                if self.turns.is_used or self.turns.limits:
                    self.turns.want_survey()
            else:
                self._learn(level)
        return bool(passed)

    async def wait(self, pause_s: float, now_s: float, *, has_room: bool) -> None:
        """Return after *pause_s*, or when work is or may be due. *has_room*: a worker here could take it."""
        self._is_waiting = has_room
        with anyio.move_on_after(self._due.cut(pause_s, now_s)):
            await self._event.wait()
        self._is_waiting = False
        self._event = anyio.Event()
