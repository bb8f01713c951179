"""
Kill, then requeue: jobs of a silent process on this host are handed out again only when that process is dead.

A worker that was stopped by a signal, or hangs together with its pool parent, sends no heartbeats; but it lives, and
may go on at any moment. So the watchdog leaves it alone, and its leases are renewed here, so that no watchdog of
another host ends them either. After a lease of silence it is pinged, then gets SIGTERM, then SIGKILL, each with a time
limit; a heartbeat stops that. Only then its attempts are ended, as lapsed leases.

For processes that this one may not signal (of another user) or cannot see (on another host, in another pid namespace)
only the leases count.

For a worker that has not said hello here, the database is read: it may work for another supervisor of this host, which
extends its leases. All else is kept in memory: reading RUNNING rows is slow where a snapshot pins dead rows.
"""

from __future__ import annotations

import enum
import signal
import time
from collections.abc import Iterable, Sequence
from typing import Final

import anyio
import anyio.abc
import structlog

from pulse.errors import UnavailableError
from pulse.store.rows import Ending, EndingKind, Leased, Renewal
from pulse.store.store import Store
from pulse.system import processes
from pulse_actors.dispatcher.claims.doubts import InDoubtClaims
from pulse_actors.dispatcher.liveness.process_watch import ProcessWatch
from pulse_actors.dispatcher.workers.health import STOPPED, lease_of
from pulse_actors.dispatcher.workers.records import ForcedEnding, HeldJob, RegisteredWorker
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.dispatcher.writes.report import ReportWriter
from pulse_actors.dispatcher.writes.report_rows import Obituary
from pulse_actors.dispatcher.writes.unwritten import UnwrittenLeases
from pulse_actors.runtime.actor import Backoff, log_unavailable
from pulse_actors.shared import identity as identities
from pulse_actors.shared.row_writes import write_merged

REASON: Final = "worker lease expired"
ASK_S: Final = 1.0  # for a heartbeat after the ping
TERM_S: Final = 2.0  # between SIGTERM and SIGKILL
LOOKS: Final = 10  # checks per lease
TOO_LATE: Final = 3.0  # looks; after a longer pause this process itself was stopped
SILENT: Final = 0.7  # share of a lease without a heartbeat after which it is renewed from here
BEATS: Final = 0.9  # share of a lease: a worker with a younger heartbeat no longer holds what has lapsed now
CHANGED_S: Final = 1.0  # if a stranger's leases move by this, another dispatcher has extended them
UNLISTED: Final = 2  # heartbeats without a job: the first of a worker that counts no frames may be an older one

log = structlog.get_logger()


class LeaseAction(enum.Enum):
    """What to do about a worker that holds jobs."""

    LEAVE = enum.auto()  # it sends heartbeats
    HOLD = enum.auto()  # silent for less than a lease: renew
    KILL = enum.auto()  # silent for a lease


def judge(worker: RegisteredWorker, *, awake_s: float, now_s: float, lease_s: float) -> LeaseAction:
    """
    What to do about *worker*.

    Args:
        worker: A worker of this host that is alive and can be signalled.
        awake_s: Since when this process reads what workers send; monotonic.
        now_s: Monotonic.
    """
    silent_s = now_s - max(worker.contact.beaten_s, awake_s)
    if silent_s >= lease_s:
        return LeaseAction.KILL
    # A worker that was awake has its lease since the last written heartbeat, which may be long ago, or unknown.
    return LeaseAction.HOLD if now_s - worker.contact.extended_s >= SILENT * lease_s else LeaseAction.LEAVE


class SilentWorkers:
    """
    Handles workers of this host that let their leases lapse.

    Args:
        process_watch: The watched workers; kills them, and ends their attempts.
    """

    def __init__(
        self,
        store: Store,
        registry: WorkerRegistry,
        in_doubt: InDoubtClaims,
        process_watch: ProcessWatch,
        reports: ReportWriter,
        host: identities.Host,
        *,
        unwritten: UnwrittenLeases,
        lease_s: float,
    ) -> None:
        self._store = store
        self._registry = registry
        self._in_doubt = in_doubt
        self._process_watch = process_watch
        self._reports = reports
        self._host = host
        self._lease_s = lease_s
        self._unwritten = unwritten
        self._awake_s = time.monotonic()
        self._being_killed: set[str] = set()
        self._in_vain = Backoff()  # of each look: its lines in the log

    async def run(self, living: Sequence[str]) -> None:
        """
        Handle them until cancelled.

        Args:
            living: Workers of this host that held jobs and were alive when the dispatcher started.
        """
        pause_s = self._lease_s / LOOKS
        async with anyio.create_task_group() as tasks:
            await self.lapsed(living)
            self._awake_s = looked_s = time.monotonic()
            while True:
                await anyio.sleep(pause_s)
                now_s = time.monotonic()
                if now_s - looked_s > TOO_LATE * pause_s:  # this process itself was stopped: frames are still unread
                    self._awake_s = now_s
                looked_s = now_s
                self._process_watch.note_oom_kills()
                await self._look(now_s, tasks)

    async def lapsed(self, workers: Sequence[str]) -> None:
        """
        Leases of these workers have lapsed, or may have: by the database they hold jobs, and they live.

        A worker that sends heartbeats no longer lists lapsed jobs, so these are over; an unknown worker is watched.
        """
        for identity in workers:
            try:
                await self._lapsed(identity)
            except UnavailableError as error:
                log_unavailable(error, "lapsed leases")
                return

    async def _lapsed(self, identity: str) -> None:
        worker = self._registry.find(identity) or self._process_watch.watched(identity)
        if worker is None:
            stranger = await self._process_watch.adopt(self._host, identity)
            if stranger is not None:
                await self._renew(_renewals(stranger), [stranger])
            return
        if worker.contact.extended_s > time.monotonic() - BEATS * self._lease_s:
            endings = [
                Ending(*pair, identity, EndingKind.LEASE_EXPIRED, error=REASON)  # ends only what really lapsed
                for pair, held in worker.held.items()
                if held.unlisted >= UNLISTED and pair not in self._registry.reporting
            ]
            if endings:
                self._reports.put(Obituary(endings))
        if self._registry.get(identity) is worker:
            self._in_doubt.doubt(identity)  # jobs that it never received are given back
        elif self._registry.strangers.get(identity) is not worker:
            await self._in_doubt.give_back_unknown(worker)

    async def _look(self, now_s: float, tasks: anyio.abc.TaskGroup) -> None:
        """Check all workers that hold jobs."""
        await self._hear_of_strangers()
        renewals: list[Renewal] = []
        strangers: list[RegisteredWorker] = []
        for worker in self._process_watch.in_hand():
            if not worker.held:
                continue
            verdict = judge(worker, awake_s=self._awake_s, now_s=now_s, lease_s=self._lease_of(worker))
            is_stranger = self._registry.strangers.get(worker.identity) is worker
            if verdict is not LeaseAction.LEAVE:
                renewals += _renewals(worker)
                strangers += [worker] * is_stranger
            if verdict is LeaseAction.KILL and worker.identity not in self._being_killed:
                self._being_killed.add(worker.identity)
                tasks.start_soon(self._kill, worker)
        try:
            await self._renew(renewals, strangers)
        except UnavailableError as error:
            self._in_vain.failed(error, "renew")
            _beyond_doubt(strangers, now_s)

    def _lease_of(self, worker: RegisteredWorker) -> float:
        return lease_of(worker, self._registry.policies.leases, self._lease_s)

    async def _renew(self, renewals: Sequence[Renewal], strangers: Sequence[RegisteredWorker]) -> None:
        """Extend leases; rows that others have locked lapse."""

        async def together(some: Sequence[Renewal]) -> None:
            await self._unwritten.extend(some)

        locked = {one.row.worker for one in await write_merged(self._store, renewals, together)}
        now_s = time.monotonic()
        for stranger in strangers:
            stranger.contact.expect_lapse(now_s + self._lease_s)
        _beyond_doubt((stranger for stranger in strangers if stranger.identity in locked), now_s)

    async def _hear_of_strangers(self) -> None:
        """
        Read the leases of workers that have not said hello here. They may work for another supervisor of this
        host, which then extends their leases and gives them other jobs.
        """
        strangers = list(self._registry.strangers.values())
        if not strangers:
            return
        asked_s = time.monotonic()
        try:
            leases = await self._store.leases_of([stranger.identity for stranger in strangers])
        except UnavailableError as error:
            self._in_vain.failed(error, "strangers")
            _beyond_doubt(strangers, asked_s)
            return
        for stranger in strangers:
            held = leases.get(stranger.identity, {})
            if not held:
                self._process_watch.release(stranger)
                continue
            until_s = asked_s + max(lease.left_s for lease in held.values())
            if stranger.contact.until_s is not None and abs(until_s - stranger.contact.until_s) > CHANGED_S:
                stranger.contact.extended_elsewhere(asked_s)
            stranger.contact.expect_lapse(until_s)
            stranger.jobs.replace(
                {pair: stranger.held.get(pair) or _held_by_lease(lease) for pair, lease in held.items()}
            )

    async def _kill(self, worker: RegisteredWorker) -> None:
        """Ping, SIGTERM, SIGKILL; then its attempts are ended."""
        began_s = time.monotonic()
        try:
            log.warning("worker_silent_too_long", worker=worker.identity, held=len(worker.held))
            if not await self._spoke(worker, began_s, ASK_S):
                _force_endings(worker)  # it may die of SIGTERM
                self._process_watch.signal(worker, signal.SIGTERM)
                if await self._spoke(worker, began_s, TERM_S):
                    worker.jobs.forced_endings.clear()
                else:
                    _force_endings(worker)
                    self._process_watch.kill(worker, "silent for a lease")
                    await self._process_watch.wait_buried(worker)
        finally:
            self._being_killed.discard(worker.identity)

    async def _spoke(self, worker: RegisteredWorker, since_s: float, within_s: float) -> bool:
        """Whether it sends a heartbeat, or ends by itself, within that time; a stopped process is not waited for."""
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            if worker.contact.beaten_s > since_s or self._process_watch.watched(worker.identity) is not worker:
                return True
            if processes.state(worker.facts.pid) in STOPPED:  # it cannot react
                return False
            await anyio.sleep(min(within_s, ASK_S) / 20)
        return False


def _held_by_lease(lease: Leased) -> HeldJob:
    return HeldJob(lease.name, lease.topic, started=True, timeout_s=lease.timeout_s)


def _beyond_doubt(strangers: Iterable[RegisteredWorker], now_s: float) -> None:
    """While no heartbeat can be written or read, leases that do not move prove nothing."""
    for stranger in strangers:
        stranger.contact.beat(now_s)


def _renewals(worker: RegisteredWorker) -> list[Renewal]:
    return [Renewal(*pair, worker.identity, None) for pair in worker.held]


def _force_endings(worker: RegisteredWorker) -> None:
    for pair, held in worker.held.items():
        if held.started:
            worker.jobs.forced_endings[pair] = ForcedEnding(EndingKind.SILENT, REASON)
