"""
Heartbeats that were heard and cannot be written, whatever the cause: a lock on the table or on a row, a trigger that
raises, a full disk, a statement that takes too long.

Their workers live, so nobody on any host may take their leases for lapsed. That is said where every sweep looks, as
long as it lasts, and in time: a lease runs on for two thirds of its length after the first heartbeat that was missed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import anyio
import asyncpg
import structlog

from pulse.errors import UnavailableError
from pulse.store.rows import Renewal
from pulse.store.store import Store
from pulse_actors.dispatcher.desk import Pair
from pulse_actors.runtime import Backoff

# Share of a lease for which it cannot be extended before that is told. A row that somebody locks for a moment must not
# keep anybody from reaping; and with three heartbeats in a lease, or more, one fails between a quarter and a half.
TOLD: Final = 0.25
AGAIN_S: Final = 1.0  # between two words of it

log = structlog.get_logger()


class Unwritten:
    """
    Extends leases, and tells all sweeps where that fails.

    Args:
        store: The database.
        lease_s: Length of a lease.
        clock: Monotonic.
    """

    def __init__(self, store: Store, *, lease_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._lease_s = lease_s
        self._since_s: dict[Pair, float] = {}
        self._failed_s = float("-inf")
        self._bell = anyio.Event()

    async def extend(self, renewals: Sequence[Renewal]) -> set[Pair]:
        """Extend leases in one statement; as ``Store.extend``."""
        began_s = self._clock()
        try:
            extended = await self._store.extend(renewals, self._lease_s)
        except Exception:
            self._failed(renewals, began_s)
            raise
        for one in renewals:
            self._since_s.pop((one.id, one.attempt), None)
        return extended

    def _failed(self, renewals: Sequence[Renewal], began_s: float) -> None:
        if began_s - self._failed_s > self._lease_s:
            self._since_s.clear()  # of jobs that have ended since
        self._failed_s = self._clock()
        if self._is_late(min(self._since_s.setdefault((one.id, one.attempt), began_s) for one in renewals)):
            self._bell.set()

    def _is_late(self, since_s: float) -> bool:
        return self._failed_s - since_s >= TOLD * self._lease_s

    async def run(self) -> None:
        """Tell all sweeps until cancelled; while even that cannot be written, as soon as it can."""
        backoff = Backoff()
        while True:
            await self._bell.wait()
            self._bell = anyio.Event()
            if backoff.may_log():
                log.warning("heartbeats_unwritten", jobs=sum(map(self._is_late, self._since_s.values())))
            try:
                await self._store.doubt_leases(self._lease_s)
            except (UnavailableError, asyncpg.PostgresError):
                self._bell.set()
            await anyio.sleep(AGAIN_S)
