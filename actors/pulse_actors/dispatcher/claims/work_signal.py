"""Where there may be work, as far as this process has heard: cursors, due times, and what wakes the claim loop."""

from __future__ import annotations

import time
from collections.abc import Iterable

import anyio

from pulse.store.rows import Level
from pulse_actors.dispatcher.claims.cross_host import CrossHostHints
from pulse_actors.dispatcher.claims.cursors import Cursors
from pulse_actors.dispatcher.claims.due_times import DueTimes
from pulse_actors.dispatcher.workers.registry import RegisteredWorker, WorkerRegistry


class WorkSignal:
    """
    What whoever makes work, or room for it, tells the claim loop.

    Args:
        registry: Who serves which topics.
        cross_host: Tells other hosts of work that is left.
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
        self._is_waiting = False  # all that is known was claimed, and somebody has room

    def wake(self) -> None:
        """There may be something to claim, nobody knows where, and since when."""
        self.cursors.want_full()
        self._event.set()

    def came(self, worker: RegisteredWorker) -> None:
        """A worker has come: topics that nobody else here serves may have jobs that are long due."""
        served = {topic for one in self._registry.workers() if one is not worker for topic in one.topics}
        if served.issuperset(worker.topics):
            self.wake_recent()
        else:
            self.wake()

    def wake_recent(self, delay_s: float = 0.0) -> None:
        """Something is due now or in *delay_s*, nobody knows at which level."""
        if delay_s <= 0:
            self.cursors.want_recent()
            self._event.set()
        elif self._due.add(None, delay_s, time.monotonic()):
            self._event.set()  # the loop reckons its pause anew

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
        """There is work in *topics* that a claim has not taken: other hosts may have room for it."""
        self._cross_host.work(topics)

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
