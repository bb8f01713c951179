"""
Spare processes: started, with the app loaded, they wait to replace a process that dies.

Where processes are forked from a template there are none. Elsewhere Python and the imports of an app take most of a
second, in which the slots of a dead process would be missing. A spare costs the memory of an idle process; one that is
taken before it is ready is still faster than a new one.

A spare that dies while it waits is replaced only together with the next one that serves, so that its cause (an app that
cannot be loaded any more, no memory) is neither repeated nor logged again and again.
"""

from __future__ import annotations

import signal
from typing import Final

from anyio.abc import TaskGroup

from pulse.common.waiting import WakeupEvent
from pulse.system.failure_log import Log
from pulse.worker.options import PoolOptions
from pulse.worker.pool.child import Child, start
from pulse.worker.pool.forks import Forks

__all__ = ["Spares"]

ASKED: Final = frozenset({-signal.SIGTERM, -signal.SIGINT})  # a service manager signals all processes of a pool


class Spares:
    """
    Starts all processes of a pool, some of them in advance.

    Attributes:
        forking: Held while a process is forked, and is not known yet.
    """

    def __init__(self, options: PoolOptions, group: TaskGroup, log: Log) -> None:
        self._options: Final = options
        self._group: Final = group
        self._log: Final = log
        self._waiting: list[Child] = []
        self._gone: Final = WakeupEvent()
        self._dismissed = False
        self._unreaped: list[Child] = []
        self._forks: Final = Forks(options, group, log, own=self._own)
        self.forking: Final = self._forks.forking

    async def take(self) -> Child | None:
        """
        The spare that has waited longest, ready or not; without one, a new process; None: they were dismissed.

        Raises:
            OSError: It cannot be started.
        """
        spare = next((one for one in self._waiting if not one.has_ended()), None)
        if spare is not None and not self._dismissed:
            self._waiting.remove(spare)
            return spare
        child = await self._forks.take()
        if self._dismissed:
            if child is not None:  # forked meanwhile
                self._waiting.append(child)
                child.kill_all()
            return None
        return child or self._start()

    def forks_are_unsafe(self, why: str) -> None:
        """Fork no more processes."""
        self._forks.turn_off([why])

    def pids(self) -> set[int]:
        """Pids of all processes that were started and are not reaped."""
        self._unreaped = [one for one in self._unreaped if not one.reaped]
        return {one.pid for one in self._unreaped}

    def refill(self) -> None:
        """Start the missing spares; none where processes are forked, which are there as soon."""
        while self._forks.are_off and len(self._waiting) < self._options.spares and not self._dismissed:
            try:
                self._waiting.append(self._start())
            except OSError as error:  # no memory or processes at this moment
                self._log.warning("spare_died", cause=f"cannot be started: {error}")
                return

    def dismiss(self) -> None:
        """Kill the spares and the template, and keep none from now on."""
        self._dismissed = True
        self._forks.dismiss()
        for spare in self._waiting:
            spare.kill_all()

    async def wait_dismissed(self) -> None:
        """The same, and wait until the last is reaped."""
        self.dismiss()
        await self._forks.wait_dismissed()
        while self._waiting:
            await self._gone.wait()

    def _start(self) -> Child:
        return self._own(start(self._options))

    def _own(self, child: Child) -> Child:
        self._unreaped.append(child)
        self._group.start_soon(self._watch, child)
        return child

    async def _watch(self, child: Child) -> None:
        await child.watch()
        if child in self._waiting:
            self._waiting.remove(child)
            self._bury(child)
            self._gone.wake()

    def _bury(self, spare: Child) -> None:
        code, facts = spare.bury()
        if self._dismissed:
            return
        if code in ASKED:
            self._log.info("spare_died", **facts)
        else:
            self._log.warning("spare_died", **facts)
