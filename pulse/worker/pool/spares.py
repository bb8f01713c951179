"""
Spare processes: started, with the app loaded, they wait to replace a process that dies.

Python and the imports of an app take most of a second, in which the slots of a dead process would be missing. A spare
costs the memory of an idle process; one that is taken before it is ready is still faster than a new one.

A spare that dies while it waits is replaced only together with the next one that serves, so that its cause (an app that
cannot be loaded any more, no memory) is neither repeated nor logged again and again.
"""

from __future__ import annotations

import signal
from typing import Final

from anyio.abc import TaskGroup

from pulse.system.failure_log import Log
from pulse.worker.execution.wakeup import WakeupEvent
from pulse.worker.options import PoolOptions
from pulse.worker.pool.child import Child
from pulse.worker.status_pipe import Kind

__all__ = ["Spares"]

ASKED: Final = frozenset({-signal.SIGTERM, -signal.SIGINT})  # a service manager signals all processes of a pool


class Spares:
    """Starts all processes of a pool, some of them in advance."""

    def __init__(self, options: PoolOptions, group: TaskGroup, log: Log) -> None:
        self._options: Final = options
        self._group: Final = group
        self._log: Final = log
        self._waiting: list[Child] = []
        self._gone: Final = WakeupEvent()
        self._dismissed = False

    def take(self) -> Child:
        """
        The spare that has waited longest, ready or not; without one, a new process.

        Raises:
            OSError: It cannot be started.
        """
        spare = next((one for one in self._waiting if not one.has_ended()), None)
        if spare is None or self._dismissed:
            return self._start()
        self._waiting.remove(spare)
        return spare

    def pids(self) -> set[int]:
        """Pids of waiting spares."""
        return {one.pid for one in self._waiting}

    def refill(self) -> None:
        """Start the missing spares."""
        while len(self._waiting) < self._options.spares and not self._dismissed:
            try:
                self._waiting.append(self._start())
            except OSError as error:  # no memory or processes at this moment
                self._log.warning("spare_died", cause=f"cannot be started: {error}")
                return

    def dismiss(self) -> None:
        """Kill the spares, and keep none from now on."""
        self._dismissed = True
        for spare in self._waiting:
            spare.kill_all()

    async def wait_dismissed(self) -> None:
        """The same, and wait until the last is reaped."""
        self.dismiss()
        while self._waiting:
            await self._gone.wait()

    def _start(self) -> Child:
        child = Child(self._options)
        self._group.start_soon(self._watch, child)
        return child

    async def _watch(self, child: Child) -> None:
        await child.watch()
        if child in self._waiting:
            self._waiting.remove(child)
            self._bury(child)
            self._gone.wake()

    def _bury(self, spare: Child) -> None:
        notes, _ = spare.read_notes()
        spare.kill_all()
        code = spare.reap()
        if self._dismissed:
            return
        facts: dict[str, object] = {"pid": spare.pid}
        facts |= {"signal": signal.Signals(-code).name} if code < 0 else {"exit_code": code}
        for note in notes:
            if note.kind is Kind.REFUSED:
                facts["cause"] = note.text.decode("utf-8", "replace").rpartition("\n")[2]
        if code in ASKED:
            self._log.info("spare_died", **facts)
        else:
            self._log.warning("spare_died", **facts)
