"""The worker processes of this host, where their ends can be seen: watched, and killed when they are silent or hang."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import anyio

from pulse.errors import UnavailableError
from pulse.store.rows import Ending
from pulse.store.store import Store
from pulse_actors.dispatcher.liveness.hung_handlers import HungHandlers
from pulse_actors.dispatcher.liveness.process_watch import LATE_S, ProcessWatch
from pulse_actors.dispatcher.liveness.silent_workers import SilentWorkers
from pulse_actors.dispatcher.liveness.startup import bury_forgotten, bury_late
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.runtime.actor import Backoff
from pulse_actors.shared.identity import Host


@dataclass(frozen=True, slots=True)
class HostWorkers:
    """
    What sees to them.

    Attributes:
        process_watch: Sees their ends.
        silent_workers: Those that let their leases lapse.
        hung_handlers: Those whose handlers run on.
        store: The database.
        registry: Who has said hello.
        host: This host.
        living: Workers that held jobs and lived when the dispatcher was started.
    """

    process_watch: ProcessWatch
    silent_workers: SilentWorkers
    hung_handlers: HungHandlers
    store: Store
    registry: WorkerRegistry
    host: Host
    living: Final[list[str]] = field(default_factory=list[str])

    async def bury_forgotten(self, *, boot: bool, sweep_s: float) -> list[Ending]:
        """End what died while no dispatcher watched; what could not be written, since others have locked the rows."""
        living, locked = await bury_forgotten(self.store, self.host, boot=boot, sweep_s=sweep_s)
        self.living[:] = living  # it is called again while the database is away
        return locked

    async def run(self) -> None:
        """Watch over them until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.process_watch.run)
            tasks.start_soon(self.silent_workers.run, self.living)
            tasks.start_soon(self.hung_handlers.run)
            tasks.start_soon(self._bury_late)

    async def _bury_late(self) -> None:
        """What the dispatcher before this one claimed may have been committed after it was killed."""
        await anyio.sleep(LATE_S)
        backoff = Backoff()
        while True:
            try:
                await bury_late(self.store, self.host, self._has_seen)
            except UnavailableError:
                await anyio.sleep(backoff.next_s())
            else:
                return

    def _has_seen(self, identity: str) -> bool:
        return identity in self.living or self.registry.has_met(identity)
