"""Heartbeats of workers and of pool parents: one statement per flush for all of them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import structlog

from pulse.errors import StatementError, UnavailableError
from pulse.protocol import Beat
from pulse.store.rows import Renewal
from pulse.store.store import Store
from pulse_actors.dispatcher.admission.memory_budget import nothing_reserved
from pulse_actors.dispatcher.monitoring.counters import DispatchCounters
from pulse_actors.dispatcher.monitoring.observe import count_margin
from pulse_actors.dispatcher.workers.records import Pair, WorkerLink
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.dispatcher.writes.batcher import ROW_BYTES, Batcher
from pulse_actors.dispatcher.writes.unwritten import UnwrittenLeases
from pulse_actors.shared import identity as identities
from pulse_actors.shared.json_size import comes_back
from pulse_actors.shared.row_writes import UnwrittenRow, write_merged

BATCH: Final = 5000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PendingHeartbeat:
    """
    One heartbeat frame.

    Attributes:
        uid: User id of the sender, from the kernel; None: by TCP.
        worker: Identity whose leases it extends, if the frame came from the worker.
        session: Session whose leases it extends, if the frame came from a pool parent.
        jobs: The jobs that it lists; None: all of the session.
        at_s: When it arrived; monotonic clock.
        settled: Called when it is no longer kept in memory.
        kept: Whether its details are kept, too; else only the leases are extended, and the worker must send them again.
    """

    link: WorkerLink
    request: int | None
    uid: int | None
    worker: str
    session: bytes | None
    jobs: Sequence[Beat] | None
    at_s: float
    settled: Callable[[], None] = nothing_reserved
    kept: bool = True


class UnwrittenCheckpoints(NamedTuple):
    """
    Checkpoints that were not stored, by their attempts.

    Attributes:
        locked: They must be sent again: another session has locked their rows.
        dropped: PostgreSQL does not take them.
    """

    locked: set[Pair]
    dropped: set[Pair]

    def add_to(self, body: dict[str, object], renewals: Sequence[Renewal]) -> None:
        """Put into the answer what concerns these."""
        pairs = {(one.id, one.attempt) for one in renewals}
        if pairs & self.locked:
            body["kept"] = False
        if dropped := pairs & self.dropped:
            body["dropped"] = sorted(dropped)


class SessionLookup:
    """
    Finds the worker of a session that no connected worker has, from the leases in the database, once a flush.

    A frame with such a session costs its sender one hash. If each took a query of its own, one worker could delay the
    heartbeats of all others until their leases have lapsed.
    """

    def __init__(self, store: Store, host: identities.Host) -> None:
        self._store = store
        self._host = host
        self._by_key: dict[str | bytes, str] | None = None
        self._running: dict[str, Sequence[Renewal]] = {}

    async def named(self, session: bytes, *, remote: bool) -> str | None:
        """The identity of *session*, local or (*remote*) by TCP; None: it holds nothing."""
        if self._by_key is None:
            workers = await self._store.running_workers()
            self._by_key = {identities.key_of(self._host, one): one for one in workers}
        return self._by_key.get(identities.mark_of(session) if remote else session)

    async def held(self, identity: str) -> Sequence[Renewal]:
        """Renewals of all leases of *identity*."""
        if identity not in self._running:
            running = await self._store.running_of(identity)
            self._running[identity] = [Renewal(*pair, identity, None) for pair in running]
        return self._running[identity]


class HeartbeatWriter:
    """
    Extends leases.

    Args:
        host: This host, for sessions without a connection.
    """

    def __init__(
        self,
        store: Store,
        registry: WorkerRegistry,
        host: identities.Host,
        counters: DispatchCounters,
        *,
        lease_s: float,
    ) -> None:
        self._store = store
        self._registry = registry
        self._host = host
        self._counters = counters
        self._lease_s = lease_s
        self.unwritten = UnwrittenLeases(store, registry, lease_s=lease_s)
        self.batcher: Batcher[PendingHeartbeat] = Batcher(self._beat, _weight, BATCH)
        self.checkpoints: Batcher[PendingHeartbeat] = Batcher(self._save, _weight, BATCH)

    async def _beat(self, beats: Sequence[PendingHeartbeat]) -> None:
        for identity, at_s in await self._answer(beats, self._extend):
            worker = self._registry.find(identity)
            if worker is not None:
                count_margin(self._counters, worker, self._lease_s, at_s)
                worker.contact.extend(at_s)

    async def _save(self, beats: Sequence[PendingHeartbeat]) -> None:
        unsaved = UnwrittenCheckpoints(set(), set())
        await self._answer(beats, partial(self._keep, unsaved), unsaved)

    async def _answer(
        self,
        beats: Sequence[PendingHeartbeat],
        write: Callable[[Sequence[Renewal]], Awaitable[set[Pair]]],
        unsaved: UnwrittenCheckpoints | None = None,
    ) -> list[tuple[str, float]]:
        """Write *beats* and answer each; returns the workers of the written ones, and when each arrived."""
        try:
            lookup = SessionLookup(self._store, self._host)
            wanted = [await self._renewals(beat, lookup) for beat in beats]
            held = [self._held(renewals) for renewals in wanted]
            written = await write([renewal for some in wanted for renewal in some])
            gone = [(one.id, one.attempt) for some in wanted for one in some if (one.id, one.attempt) not in written]
            if gone:  # a handler that has completed its job by a fenced transaction may still run
                written |= await self._store.completed_already(gone)
        except UnavailableError as error:
            for beat in beats:
                beat.link.send("error", beat.request, {"code": error.code, "message": error.message})
                beat.settled()
            return []
        answered: list[tuple[str, float]] = []
        for beat, renewals, before in zip(beats, wanted, held, strict=True):
            lost = [(one.id, one.attempt) for one in renewals if (one.id, one.attempt) not in written]
            done = before - (self._held(renewals) - self._registry.reporting)  # a result has overtaken the heartbeat
            missed = {*lost} - done
            if missed:
                log.info("leases_lost", worker=renewals[0].worker, count=len(missed))
            body: dict[str, object] = {"lost": lost} if beat.kept else {"lost": lost, "kept": False}
            if unsaved is not None:
                unsaved.add_to(body, renewals)
            beat.link.send("beat", beat.request, body)
            beat.settled()
            answered.append((renewals[0].worker if renewals else beat.worker, beat.at_s))
        return answered

    def _held(self, renewals: Sequence[Renewal]) -> set[Pair]:
        """What the worker of *renewals* holds now."""
        worker = self._registry.find(renewals[0].worker) if renewals else None
        return set() if worker is None else {*worker.held}

    async def _renewals(self, beat: PendingHeartbeat, lookup: SessionLookup) -> Sequence[Renewal]:
        if beat.jobs is not None:
            return [Renewal(job.id, job.attempt, beat.worker, progress=job.text) for job in beat.jobs]
        if beat.session is None:
            held = self._registry.get(beat.worker)
            return [] if held is None else [Renewal(*pair, beat.worker, None) for pair in held.held]
        return await self._renewals_of_session(beat.session, beat.uid, lookup)

    async def _renewals_of_session(self, session: bytes, uid: int | None, lookup: SessionLookup) -> Sequence[Renewal]:
        # Not connected: it does not read, or is too busy to say hello to a restarted dispatcher.
        worker = self._registry.by_session(session, remote=uid is None) or self._registry.unconnected(session)
        if worker is not None:
            if not may_speak_for(uid, worker.identity, worker.facts.uid):
                return []
            now_s = time.monotonic()
            worker.contact.hear(now_s, itself=False)  # its parent sees it work
            worker.contact.beat(now_s)
            return [Renewal(*pair, worker.identity, None) for pair in worker.held]
        # Unknown here: its leases show its identity.
        identity = await lookup.named(session, remote=uid is None)
        if identity is None or not may_speak_for(uid, identity, identities.user_of(self._host, identity)):
            return []
        return await lookup.held(identity)

    async def _extend(self, renewals: Sequence[Renewal]) -> set[Pair]:
        extended: set[Pair] = set()

        async def together(some: Sequence[Renewal]) -> None:
            extended.update(await self.unwritten.extend(some))

        async def alone(bad: Renewal, _error: StatementError) -> None:
            await together([_without_progress(bad)])

        rows = [one if comes_back(one.progress) else _without_progress(one) for one in renewals]
        return extended | _pairs(await write_merged(self._store, rows, together, alone))

    async def _keep(self, unsaved: UnwrittenCheckpoints, checkpoints: Sequence[Renewal]) -> set[Pair]:
        """Returns the attempts that still hold their jobs; adds to *unsaved* those whose checkpoint is not stored."""
        kept: set[Pair] = set()

        async def together(some: Sequence[Renewal]) -> None:
            kept.update(await self._store.checkpoint(some))

        def drop(bad: Renewal) -> None:
            log.warning("checkpoint_not_storable", worker=bad.worker)
            kept.add((bad.id, bad.attempt))  # its worker has not lost it
            unsaved.dropped.add((bad.id, bad.attempt))

        async def alone(bad: Renewal, _error: StatementError) -> None:
            drop(bad)

        rows: list[Renewal] = []
        for one in checkpoints:
            if comes_back(one.progress):
                rows.append(one)
            else:
                drop(one)
        left = await write_merged(self._store, rows, together, alone)
        unsaved.locked.update(_pairs([row for row in left if row.error is None]))
        return kept | _pairs(left)


def _without_progress(bad: Renewal) -> Renewal:
    log.warning("progress_not_storable", worker=bad.worker)
    return bad._replace(progress=None)


def _pairs(left: Sequence[UnwrittenRow[Renewal]]) -> set[Pair]:
    """Locked or refused rows: not written now, but not lost either; the next heartbeat tries again."""
    return {(one.row.id, one.row.attempt) for one in left}


def _weight(beat: PendingHeartbeat) -> int:
    """Rows; long texts count as several rows, so that a statement ends in time."""
    return 1 + sum(1 + len(job.text or "") // ROW_BYTES for job in beat.jobs or ())


def may_speak_for(uid: int | None, identity: str, owner: int | None) -> bool:
    """
    Whether a peer of *uid* (None: by TCP) that sends the session of *identity* may extend its leases.

    Local sessions are no secret: it must be the account *owner* of that process, or root. Sessions over TCP are secret.
    """
    return identities.is_remote(identity) if uid is None else uid in {owner, 0} and not identities.is_remote(identity)
