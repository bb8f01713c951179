"""Decides which worker runs each claimed job, and gives back jobs that no worker here can run. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from pulse.protocol import CLAIM_MAX_BYTES
from pulse.store.rows import Claim, Ending, EndingKind, Fence
from pulse_actors.dispatcher.workers.records import RegisteredWorker
from pulse_actors.dispatcher.workers.registry import ClaimPlan, WorkerRegistry
from pulse_actors.shared.epochs import given_back

NO_HANDLER_MIN_S: Final = 5.0
NO_HANDLER_MAX_S: Final = 60.0
ALL_BUSY_MIN_S: Final = 1.0  # if all workers with its handler are full, other jobs of its topic go first for so long
ALL_BUSY_MAX_S: Final = 10.0
_WIDEST_CHAR_BYTES: Final = 4


@dataclass(slots=True)
class Placement:
    """
    The decision for each claimed job.

    Attributes:
        assigned: identity -> its jobs.
        moved: Jobs whose seat cannot run them, with the worker that can.
        returned: Jobs that no worker here can take now.
        unhandled: Jobs among them for which no worker here has a handler.
    """

    assigned: dict[str, list[Claim]] = field(default_factory=dict[str, list[Claim]])
    moved: list[tuple[Claim, Fence, str]] = field(default_factory=list[tuple[Claim, Fence, str]])
    returned: list[Ending] = field(default_factory=list[Ending])
    unhandled: list[Claim] = field(default_factory=list[Claim])


def place(
    registry: WorkerRegistry, plan: ClaimPlan, claims: Sequence[Claim], running: AbstractSet[bytes] = frozenset()
) -> Placement:
    """
    Decide which worker runs each claimed job; the registry stays unchanged.

    Args:
        plan: The claim's plan.
        claims: The claimed jobs.
        running: Jobs of which an earlier attempt may still run on this host, in a process that is not connected.

    A job waits while an earlier attempt of it may run in a process that can be killed: the attempt was canceled, or
    its lease lapsed for another host. For other processes only the lease counts.
    """
    placement = Placement()
    free: dict[str, int] = {}  # of those that were looked at: of thousands of workers a claim concerns few
    names: dict[str, AbstractSet[str]] = {}
    for identity in plan.workers:
        worker = registry.get(identity)
        if worker is not None:  # else it has left
            free[identity], names[identity] = worker.credit, worker.facts.names
    again = [claim.id for claim in claims if claim.attempt > 1]
    held = registry.running_in_hand(again) | running if again else running
    for claim in claims:
        seat = plan.workers[claim.worker]
        if claim.id in held:
            delay_s = min(ALL_BUSY_MAX_S, ALL_BUSY_MIN_S * 2.0 ** given_back(claim))
            placement.returned.append(
                Ending(claim.id, claim.attempt, seat, kind=EndingKind.UNASSIGNED, delay_s=delay_s)
            )
            continue
        if length_of(claim) * _WIDEST_CHAR_BYTES > CLAIM_MAX_BYTES and _bytes_of(claim) > CLAIM_MAX_BYTES:
            placement.returned.append(_discarded(claim, seat))
            continue
        if seat in names and claim.name in names[seat] and free[seat] > 0:
            free[seat] -= 1
            placement.assigned.setdefault(seat, []).append(claim)
            continue
        heir = _heir(_able(registry, claim), free)
        fence = Fence(claim.id, claim.attempt, seat)
        if heir is not None:
            free[heir] -= 1
            placement.moved.append((claim, fence, heir))
        else:
            ending = _returned(registry, claim, fence)
            placement.returned.append(ending)
            if ending.error is not None:
                placement.unhandled.append(claim)
    return placement


def _heir(able: Sequence[RegisteredWorker], free: dict[str, int]) -> str | None:
    for one in able:
        free.setdefault(one.identity, one.credit)
    heir = max((one.identity for one in able), key=free.__getitem__, default=None)
    return heir if heir is not None and free[heir] > 0 else None


def _able(registry: WorkerRegistry, claim: Claim) -> list[RegisteredWorker]:
    """The workers with its topic and its handler."""
    return [one for one in registry.workers() if claim.name in one.facts.names and claim.topic in one.facts.topics]


def _returned(registry: WorkerRegistry, claim: Claim, fence: Fence) -> Ending:
    """The end of an attempt that no worker here can start; it has an error only where none has the handler."""
    if registry.closed or registry.get(fence.worker) is None:  # for the next dispatcher, or another host
        return Ending(*fence, EndingKind.UNASSIGNED, delay_s=0.0)
    longer = 2.0 ** given_back(claim)
    if _able(registry, claim):
        return Ending(*fence, EndingKind.UNASSIGNED, delay_s=min(ALL_BUSY_MAX_S, ALL_BUSY_MIN_S * longer))
    error = f'no handler named "{claim.name}" on topic "{claim.topic}"'  # schema.sql has an index of these
    return Ending(*fence, EndingKind.UNASSIGNED, error, delay_s=min(NO_HANDLER_MAX_S, NO_HANDLER_MIN_S * longer))


def length_of(claim: Claim) -> int:
    """Characters of text in an assignment of *claim*."""
    length = len(claim.args)
    if claim.checkpoint is None and claim.previous is None:
        return length  # nearly every one
    return length + len(claim.checkpoint or "") + len(claim.previous or "")


def _bytes_of(claim: Claim) -> int:
    return sum(len(text.encode()) for text in (claim.args, claim.checkpoint or "", claim.previous or ""))


def _discarded(claim: Claim, seat: str) -> Ending:
    """
    The ending of a job too long for a frame: SQL submits args of any length, and jsonb prints 1e400 in 401 digits.

    A worker would close the connection over it, reconnect, and get it again.
    """
    what = "args and checkpoint" if claim.checkpoint else "args"
    error = f"{what} have {_bytes_of(claim)} bytes as the database prints them; at most {CLAIM_MAX_BYTES} can be sent"
    return Ending(claim.id, claim.attempt, seat, kind=EndingKind.DISCARDED, error=error)
