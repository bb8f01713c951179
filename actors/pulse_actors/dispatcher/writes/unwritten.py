"""
Heartbeats and reports that have arrived and cannot be written, whatever the cause: a lock on the table or on a row, a
trigger that raises, a full disk, a statement that takes too long.

A worker whose heartbeat has arrived lives, and a reported attempt has ended: so no watchdog of any host may take their
leases for lapsed. As long as it lasts this is stored where every sweep looks, and in time: after the first missed
heartbeat a lease runs on for two thirds of its length.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import anyio
import structlog

from pulse.errors import UnavailableError
from pulse.store.rows import Renewal
from pulse.store.store import Store
from pulse_actors.dispatcher.workers.records import Pair
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.runtime.actor import Backoff
from pulse_actors.shared.row_writes import write_merged

# Share of a lease after which unwritten heartbeats are reported to sweeps. A row that is locked for a moment must not
# stop all sweeps; and with three or more heartbeats in a lease, one falls between this and twice this.
DOUBTED_SHARE: Final = 0.25
LOOK: Final = DOUBTED_SHARE / 2  # share of a lease between two looks at the reports
AGAIN_S: Final = 1.0  # between two reports of it

log = structlog.get_logger()


class UnwrittenLeases:
    """
    Extends leases, and holds off all sweeps while that fails, or reports wait.

    Args:
        registry: Knows the unwritten reports.
    """

    def __init__(self, store: Store, registry: WorkerRegistry, *, lease_s: float) -> None:
        self._store = store
        self._registry = registry
        self._lease_s = lease_s
        self._beats_s: dict[Pair, float] = {}  # since when they cannot be extended
        self._reports_s: dict[Pair, float] = {}  # since when their reports wait
        self._failed_s = float("-inf")
        self._doubted = anyio.Event()

    async def extend(self, renewals: Sequence[Renewal]) -> set[Pair]:
        """Extend leases in one statement; as ``Store.extend``."""
        began_s = time.monotonic()
        try:
            extended = await self._store.extend(renewals, self._lease_s)
        except Exception:
            self._failed(renewals, began_s)
            raise
        for one in renewals:
            self._beats_s.pop((one.id, one.attempt), None)
        return extended

    def _failed(self, renewals: Sequence[Renewal], began_s: float) -> None:
        if began_s - self._failed_s > self._lease_s:
            self._beats_s.clear()  # ended jobs
        self._failed_s = time.monotonic()
        if self._late(self._beats_s.setdefault((one.id, one.attempt), began_s) for one in renewals):
            self._doubted.set()

    def _late(self, since_s: Iterable[float]) -> int:
        """How many of these wait for too long."""
        latest_s = time.monotonic() - DOUBTED_SHARE * self._lease_s
        return sum(one_s <= latest_s for one_s in since_s)

    async def run(self) -> None:
        """Look, and hold off sweeps, until cancelled."""
        backoff = Backoff()
        while True:
            with anyio.move_on_after(LOOK * self._lease_s):
                await self._doubted.wait()
            await self.look(backoff)

    async def _keep_refused(self) -> None:
        """A job's report may be refused for days: only its own lease is extended then, and sweeps go on."""
        renewals = [Renewal(*pair, worker, None) for pair, worker in self._registry.refused.items()]
        with suppress(UnavailableError):
            await write_merged(self._store, renewals, self._extend, raises=False)

    async def _extend(self, renewals: Sequence[Renewal]) -> None:
        await self._store.extend(renewals, self._lease_s)

    async def look(self, backoff: Backoff) -> None:
        """Hold off all sweeps if needed; if even that cannot be written, as soon as it can."""
        now_s = time.monotonic()
        await self._keep_refused()
        waiting = self._registry.reporting - self._registry.refused.keys()
        self._reports_s = {pair: self._reports_s.get(pair, now_s) for pair in waiting}
        reports = self._late(self._reports_s.values())
        if not reports and not self._doubted.is_set():
            return
        self._doubted = anyio.Event()
        if backoff.may_log():
            log.warning("leases_doubted", heartbeats=self._late(self._beats_s.values()), reports=reports)
        try:
            await self._store.doubt_leases(self._lease_s)
        except UnavailableError:
            self._doubted.set()
        await anyio.sleep(AGAIN_S)
