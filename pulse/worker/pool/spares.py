"""
Processes in reserve: started, the app loaded, and waiting for the slot of one that dies.

Python and the imports of an app take most of a second, in which all places of a dead process would be missing. A spare
costs the memory of an idle process; a process that was taken before it was ready is still ahead of a fresh one.

A spare that dies while it waits is missed by nobody. It is not replaced before the next of those that serve, so that
what makes it die (an app that cannot be loaded any more, no memory) is neither repeated nor logged again and again.
"""

from __future__ import annotations

import signal
from typing import Final

from anyio.abc import TaskGroup

from pulse.worker.execution.wakeup import WakeupEvent
from pulse.worker.options import PoolOptions
from pulse.worker.pool.child import Child
from pulse.worker.session.reconnect import Log
from pulse.worker.status_pipe import Kind

__all__ = ["Spares"]

ASKED: Final = frozenset({-signal.SIGTERM, -signal.SIGINT})  # a service manager signals all processes of a pool


class Spares:
    """Starts all processes of a pool, some of them before they are needed."""

    def __init__(self, options: PoolOptions, group: TaskGroup, log: Log) -> None:
        self._options: Final = options
        self._group: Final = group
        self._log: Final = log
        self._waiting: list[Child] = []
        self._gone: Final = WakeupEvent()
        self._dismissed = False

    def take(self) -> Child:
        """
        The spare that waits longest, whether it is ready or not; without one, a process that is started now.

        Raises:
            OSError: It cannot be started.
        """
        spare = next((one for one in self._waiting if not one.has_ended()), None)
        if spare is None or self._dismissed:
            return self._start()
        self._waiting.remove(spare)
        return spare

    def pids(self) -> set[int]:
        """Of those that wait."""
        return {one.pid for one in self._waiting}

    def refill(self) -> None:
        """Start those that are missing."""
        while len(self._waiting) < self._options.spares and not self._dismissed:
            try:
                self._waiting.append(self._start())
            except OSError as error:  # no memory or no more processes at this moment
                self._log.warning("spare_died", cause=f"cannot be started: {error}")
                return

    def dismiss(self) -> None:
        """Kill those that wait, and keep none from now on."""
        self._dismissed = True
        for spare in self._waiting:
            spare.kill_all()

    async def wait_dismissed(self) -> None:
        """The same, until the last of them is reaped."""
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
