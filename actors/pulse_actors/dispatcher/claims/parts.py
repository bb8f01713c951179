"""Builds the objects that make claims."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from pulse.store.store import Store
from pulse.system.failure_log import FailureLog
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
from pulse_actors.shared.identity import Host


@dataclass(frozen=True, slots=True)
class ClaimParts:
    """The objects that make claims, and what logs failures of the dispatcher's own; the module of each describes it."""

    failures: FailureLog
    cross_host: CrossHostHints
    signal: WorkSignal
    in_doubt: InDoubtClaims
    handout: Handout
    quarantine: Quarantine
    refused_jobs: RefusedJobs
    loop: ClaimLoop


def claim_parts(
    store: Store,
    registry: WorkerRegistry,
    counters: DispatchCounters,
    *,
    host: Host | None,
    deadlines: HandlerDeadlines | None,
    lease_s: float,
    poll_s: float,
    batch: int,
) -> ClaimParts:
    """
    Build the objects of one dispatcher.

    Args:
        host: This host, whose processes can be seen and killed; None: leases only.
        deadlines: Limits of handlers that started; None: leases only.
        poll_s: Longest pause between two claims while a worker has room.
        batch: Most jobs of one claim.
    """
    cross_host, quarantine, failures = CrossHostHints(store), Quarantine(), FailureLog(structlog.get_logger())
    signal = WorkSignal(registry, cross_host, poll_s=poll_s)
    in_doubt = InDoubtClaims(store, registry, signal, deadlines=deadlines)
    handout = Handout(
        store, registry, signal, in_doubt=in_doubt, host=host, lease_s=lease_s, counters=counters, failures=failures
    )
    refused_jobs = RefusedJobs(store, registry, handout, in_doubt=in_doubt, signal=signal)
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
    return ClaimParts(
        failures,
        cross_host,
        signal,
        in_doubt=in_doubt,
        handout=handout,
        quarantine=quarantine,
        refused_jobs=refused_jobs,
        loop=loop,
    )
