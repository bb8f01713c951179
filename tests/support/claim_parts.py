"""The dispatcher's claims, put together as it does."""

from __future__ import annotations

from dataclasses import dataclass

from pulse.store.store import Store
from pulse_actors.dispatcher.claims.cross_host import CrossHostHints
from pulse_actors.dispatcher.claims.doubts import InDoubtClaims
from pulse_actors.dispatcher.claims.handout import Handout
from pulse_actors.dispatcher.claims.loop import ClaimLoop
from pulse_actors.dispatcher.claims.quarantine import Quarantine
from pulse_actors.dispatcher.claims.refused_jobs import RefusedJobs
from pulse_actors.dispatcher.claims.work_signal import WorkSignal
from pulse_actors.dispatcher.monitoring.counters import DispatchCounters
from pulse_actors.dispatcher.workers.deadlines import HandlerDeadlines
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.dispatcher.writes.submit import SubmitWriter
from pulse_actors.shared.identity import Host


@dataclass(frozen=True, slots=True)
class ClaimParts:
    """Each of them, as the dispatcher names them."""

    cross_host: CrossHostHints
    signal: WorkSignal
    in_doubt: InDoubtClaims
    handout: Handout
    quarantine: Quarantine
    refused_jobs: RefusedJobs
    counters: DispatchCounters
    submits: SubmitWriter
    loop: ClaimLoop


def claim_parts(
    store: Store,
    registry: WorkerRegistry,
    host: Host | None,
    *,
    deadlines: HandlerDeadlines | None = None,
    lease_s: float = 30.0,
    poll_s: float = 60.0,
    batch: int = 500,
) -> ClaimParts:
    """New ones; *host* and *batch* as for ``Handout`` and ``ClaimLoop``."""
    cross_host, counters = CrossHostHints(store), DispatchCounters()
    signal = WorkSignal(registry, cross_host, poll_s=poll_s)
    in_doubt = InDoubtClaims(store, registry, signal, deadlines)
    handout = Handout(store, registry, signal, in_doubt=in_doubt, host=host, lease_s=lease_s, counters=counters)
    refused_jobs = RefusedJobs(store, registry, handout, in_doubt=in_doubt, signal=signal)
    quarantine = Quarantine()
    submits = SubmitWriter(
        store, registry, signal=signal, in_doubt=in_doubt, handout=handout, batch=batch, counters=counters
    )
    loop = ClaimLoop(
        store,
        registry,
        signal=signal,
        in_doubt=in_doubt,
        handout=handout,
        refused_jobs=refused_jobs,
        quarantine=quarantine,
        batch=batch,
    )
    return ClaimParts(cross_host, signal, in_doubt, handout, quarantine, refused_jobs, counters, submits, loop)
