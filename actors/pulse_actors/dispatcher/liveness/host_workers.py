"""The worker processes of this host whose ends the kernel reports: watched, and killed when they are silent or hang."""

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
    The loops that watch them.

    Attributes:
        process_watch: Notices their ends.
        silent_workers: Handles workers that let their leases lapse.
        hung_handlers: Handles handlers that do not end in time.
        store: The database.
        registry: The workers that have said hello.
        host: This host.
        living: Workers that held jobs and were alive when the dispatcher started.
    """

    process_watch: ProcessWatch
    silent_workers: SilentWorkers
    hung_handlers: HungHandlers
    store: Store
    registry: WorkerRegistry
    host: Host
    living: Final[list[str]] = field(default_factory=list[str])

    async def bury_forgotten(self, *, boot: bool, sweep_s: float) -> list[Ending]:
        """End attempts of workers that died while no dispatcher watched; returns those whose rows are locked."""
        living, locked = await bury_forgotten(self.store, self.host, boot=boot, sweep_s=sweep_s)
        self.living[:] = living  # called again while the database is away
        return locked

    async def run(self) -> None:
        """Watch them until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.process_watch.run)
            tasks.start_soon(self.silent_workers.run, self.living)
            tasks.start_soon(self.hung_handlers.run)
            tasks.start_soon(self._bury_late)

    async def _bury_late(self) -> None:
        """End claims of the killed dispatcher before this one that were committed after its end."""
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
