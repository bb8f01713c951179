"""The dispatcher's claims and submits, put together as it does."""

from __future__ import annotations

from dataclasses import dataclass

from pulse.store.store import Store
from pulse_actors.dispatcher.claims import parts
from pulse_actors.dispatcher.monitoring.counters import DispatchCounters
from pulse_actors.dispatcher.workers.deadlines import HandlerDeadlines
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from pulse_actors.dispatcher.writes.submit import SubmitWriter
from pulse_actors.shared.identity import Host


@dataclass(frozen=True, slots=True)
class ClaimParts(parts.ClaimParts):
    counters: DispatchCounters
    submits: SubmitWriter


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
    counters = DispatchCounters()
    claims = parts.claim_parts(
        store, registry, counters, host=host, deadlines=deadlines, lease_s=lease_s, poll_s=poll_s, batch=batch,
    )  # fmt: skip
    submits = SubmitWriter(
        store, registry, signal=claims.signal, in_doubt=claims.in_doubt, handout=claims.handout, batch=batch,
        counters=counters,
    )  # fmt: skip
    made = {name: getattr(claims, name) for name in parts.ClaimParts.__slots__}
    return ClaimParts(**made, counters=counters, submits=submits)
