"""
The watchdog: ends attempts whose lease has lapsed, with the usual rules for retries.

It leaves alone attempts of living processes of this host that can be killed: the dispatcher ends these when their
process is dead.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import anyio
import structlog

from pulse.protocol.bus import HintEvent, LapsedLeases, ReadyJobs, hint
from pulse.store.operators.dependencies import FIRST
from pulse.store.operators.limits import BATCH
from pulse.store.rows import Ended, Ending, EndingKind, from_s
from pulse.store.store import Store
from pulse.system.failure_log import FailureLog
from pulse_actors.runtime.actor import Runtime, Turn, TurnResult, database_status
from pulse_actors.runtime.bus import Hint
from pulse_actors.shared import identity as identities
from pulse_actors.shared.audit import note_asked
from pulse_actors.shared.failures import failed_attempts
from pulse_actors.shared.row_writes import write_merged
from pulse_actors.watchdog.expiry import expire
from pulse_actors.watchdog.retention import retain
from pulse_actors.watchdog.sweep_guard import Reading, SweepGuard

REASON: Final = "worker lease expired"
SWEEP_LIMIT: Final = 1000  # rows of one statement; repeated until nothing is left
MAX_DELAYS: Final = 100  # in one hint; few differ, since back-offs are squares of the tries
FORGET_S: Final = 60.0
DEPENDENCIES: Final = 1000  # looked at in one sweep
MAX_SPARED: Final = 100  # in one hint; the next sweep reports the others
TURN_S: Final = 5.0  # then the next turn goes on: an unfinished turn of 30 s looks stuck to the supervisor

log = structlog.get_logger()


class Watchdog:
    """
    Sweeps every *sweep_s*.

    Args:
        host: This host's name in ``pulse.hosts``.
        sweep_s: Pause between two sweeps, seconds.
        guard: Decides when lapsed leases prove nothing.
        failures: Learns of the attempts that it ends.
        sees_deaths: The dispatcher watches the workers of this host; False: only their leases count, as on other hosts.
    """

    def __init__(
        self,
        store: Store,
        host: identities.Host,
        sweep_s: float,
        guard: SweepGuard,
        *,
        failures: FailureLog,
        sees_deaths: bool,
    ) -> None:
        self._store, self._limits, self._dependencies = store, store.limits, store.dependencies
        self._before = store.endings
        self._host = host
        self._sweep_s = sweep_s
        self._guard = guard
        self._failures = failures
        self._sees_deaths = sees_deaths
        self._forget_s = float("-inf")  # next time to delete buckets of groups that are full again
        self._walked = FIRST
        self._unheard: list[Ending] = []  # what was written in a statement without an answer

    async def prime(self, *, boot: bool) -> None:
        """Store that this host is alive, and read the database's clock for the first time."""
        del boot
        await self._begin()

    async def turn(self, turn: Turn) -> TurnResult:
        """One sweep."""
        await note_asked(self._store, self._host.id, turn.inbox)
        at = await self._begin()
        if not self._guard.may_reap(time.monotonic()):
            return TurnResult(self._sweep_s)
        await self._note_unheard()
        if turn.now_s >= self._forget_s:
            self._forget_s = turn.now_s + FORGET_S
            while await self._limits.forget_buckets() == BATCH:
                pass
        await self._settle_forgotten()
        reaped, more, delays_s, spared = 0, True, set[float](), set[str]()
        while more:
            lapsed = await self._store.lapsed(SWEEP_LIMIT, spared=sorted(spared), now=at)
            in_hand = self._in_hand({one.worker for one in lapsed})
            spared |= in_hand
            silent = [one for one in lapsed if one.worker not in in_hand]
            ended = await self._reap([Ending(*fence, EndingKind.LEASE_EXPIRED, REASON) for fence in silent], at)
            reaped += len(ended)
            delays_s |= {round(one.delay_s, 3) for one in ended if one.status != "DEAD_LETTERED"}
            more = len(lapsed) == SWEEP_LIMIT and bool(ended or in_hand)
            if time.monotonic() - turn.now_s > TURN_S:
                break
        hints: list[Hint] = []
        if reaped:
            log.warning("leases_expired", count=reaped)
            hints.append(hint("dispatcher", HintEvent.READY, ReadyJobs(sorted(delays_s)[:MAX_DELAYS], reaped)))
        if spared:
            hints.append(hint("dispatcher", HintEvent.LAPSED, LapsedLeases(sorted(spared)[:MAX_SPARED])))
        return TurnResult(0.0 if more else self._sweep_s, tuple(hints))

    async def _settle_forgotten(self) -> None:
        """Jobs that wait for one that has ended, and were not told: should not happen, and would wait for ever."""
        self._walked, settled = await self._dependencies.settle_forgotten(self._walked, DEPENDENCIES)
        if settled:
            log.warning("dependencies_settled_late", jobs=settled)

    async def _begin(self) -> datetime:
        """
        Store the marks of a sweep, and find out whether leases can be trusted.

        Returns:
            The database's time as the guard has seen it; leases that lapse after it wait for the next sweep.
        """
        await self._store.note_host(self._host.id, self._host.boot, self._host.pidns)
        asked_s = time.monotonic()
        gap_s, database_s, wait_s = await self._store.mark_sweep(self._guard.gap_s, self._guard.lease_s)
        is_first = self._guard.is_new
        doubt = self._guard.doubt(gap_s, Reading(database_s, asked_s, time.monotonic()), wait_s)
        if doubt is not None and is_first:  # nobody swept while the server was stopped
            log.info("sweeps_wait", reason=doubt)
        elif doubt is not None:
            log.warning("sweeps_wait", reason=doubt)
        return from_s(database_s)

    def _in_hand(self, workers: set[str]) -> set[str]:
        """Those of *workers* that live on this host, and that the dispatcher can kill and watches."""
        return {one for one in workers if self._sees_deaths and identities.is_in_hand(self._host, one)}

    async def _reap(self, endings: list[Ending], at: datetime) -> list[Ended]:
        """End those attempts; locked or refused rows are left to the next sweep."""
        ended: list[Ended] = []

        async def together(some: Sequence[Ending]) -> None:
            self._unheard = list(some)
            written = await self._store.end(some, now=at)
            self._unheard = []
            self._failures.note(failed_attempts(some, written))
            ended.extend(written)

        await write_merged(self._store, endings, together)
        return ended

    async def _note_unheard(self) -> None:
        """A statement whose answer was lost may have been committed: log what it ended."""
        self._failures.note(failed_attempts(self._unheard, await self._before.written(self._unheard)))
        self._unheard = []

    async def status(self) -> dict[str, object]:
        """Whether the database is there."""
        return {"database": await database_status(self._store)}


async def watchdog(runtime: Runtime) -> None:
    """The watchdog's main part; beside it run retention and expiry."""
    host = identities.this_host(runtime.settings.host_id)
    settings = runtime.settings
    guard = SweepGuard(lease_s=settings.lease_s, heartbeat_s=settings.heartbeat_s, sweep_s=settings.sweep_s)
    failures = FailureLog(log)
    actor = Watchdog(
        runtime.store, host, guard.sweep_s, guard=guard, failures=failures, sees_deaths=settings.proof_of_death
    )
    await runtime.prime(actor)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(retain, runtime.store, settings.retention_s)
        tasks.start_soon(expire, runtime.store, failures)
        tasks.start_soon(failures.run)
        await runtime.loop(actor)
        tasks.cancel_scope.cancel()
