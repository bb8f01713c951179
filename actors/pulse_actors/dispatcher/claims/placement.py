"""Which worker runs each of the jobs that were claimed, and what becomes of those that nobody here can run. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from pulse.protocol import CLAIM_MAX_BYTES
from pulse.store.rows import Claim, Ending, EndingKind, Fence
from pulse_actors.dispatcher.workers.registry import ClaimPlan, WorkerRegistry
from pulse_actors.shared.epochs import given_back

NO_HANDLER_MIN_S: Final = 5.0
NO_HANDLER_MAX_S: Final = 60.0
ALL_BUSY_MIN_S: Final = 1.0  # the workers that name it are full: others behind it in its topic go first for that long
ALL_BUSY_MAX_S: Final = 10.0
_WIDEST_CHAR_BYTES: Final = 4


@dataclass(slots=True)
class Placement:
    """
    Where claimed jobs go.

    Attributes:
        assigned: identity -> its jobs.
        moved: Jobs whose seat cannot run them, with the worker that can.
        returned: Jobs that nobody here can take now.
    """

    assigned: dict[str, list[Claim]] = field(default_factory=dict[str, list[Claim]])
    moved: list[tuple[Claim, Fence, str]] = field(default_factory=list[tuple[Claim, Fence, str]])
    returned: list[Ending] = field(default_factory=list[Ending])


def place(
    registry: WorkerRegistry, plan: ClaimPlan, claims: Sequence[Claim], running: AbstractSet[bytes] = frozenset()
) -> Placement:
    """
    Decide for each claimed job who runs it; nothing is written into the registry yet.

    Args:
        plan: Of the claim.
        claims: What it brought.
        running: Jobs an earlier attempt of which may run on this host yet, in a process that is not connected.

    A job of which an earlier attempt has not ended, in a process that can be killed, waits for that: the attempt
    was canceled, or it lapsed for another host. Of others, only their leases are known.
    """
    placement = Placement()
    workers = registry.workers()
    free = {worker.identity: worker.credit for worker in workers}
    names = {worker.identity: worker.facts.names for worker in workers}
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
        if _is_too_long(claim):
            placement.returned.append(_discarded(claim, seat))
            continue
        if seat in names and claim.name in names[seat] and free[seat] > 0:
            free[seat] -= 1
            placement.assigned.setdefault(seat, []).append(claim)
            continue
        heir = _heir(registry, claim, free)
        fence = Fence(claim.id, claim.attempt, seat)
        if heir is not None:
            free[heir] -= 1
            placement.moved.append((claim, fence, heir))
        else:
            placement.returned.append(_returned(registry, claim, fence))
    return placement


def _heir(registry: WorkerRegistry, claim: Claim, free: Mapping[str, int]) -> str | None:
    able = [identity for identity in _naming(registry, claim) if free[identity] > 0]
    return max(able, key=lambda identity: free[identity], default=None)


def _naming(registry: WorkerRegistry, claim: Claim) -> list[str]:
    return [
        one.identity for one in registry.workers() if claim.name in one.facts.names and claim.topic in one.facts.topics
    ]


def _returned(registry: WorkerRegistry, claim: Claim, fence: Fence) -> Ending:
    if registry.closed or registry.get(fence.worker) is None:  # for a successor, or for who else serves the topic
        return Ending(*fence, EndingKind.UNASSIGNED, delay_s=0.0)
    longer = 2.0 ** given_back(claim)
    if _naming(registry, claim):
        return Ending(*fence, EndingKind.UNASSIGNED, delay_s=min(ALL_BUSY_MAX_S, ALL_BUSY_MIN_S * longer))
    error = f'no handler named "{claim.name}" on topic "{claim.topic}"'
    return Ending(*fence, EndingKind.UNASSIGNED, error, delay_s=min(NO_HANDLER_MAX_S, NO_HANDLER_MIN_S * longer))


def length_of(claim: Claim) -> int:
    """How much text an assignment of *claim* carries, in characters."""
    return len(claim.args) + len(claim.checkpoint or "") + len(claim.previous or "")


def _bytes_of(claim: Claim) -> int:
    return sum(len(text.encode()) for text in (claim.args, claim.checkpoint or "", claim.previous or ""))


def _is_too_long(claim: Claim) -> bool:
    return length_of(claim) * _WIDEST_CHAR_BYTES > CLAIM_MAX_BYTES and _bytes_of(claim) > CLAIM_MAX_BYTES


def _discarded(claim: Claim, seat: str) -> Ending:
    """
    The end of a job that no frame can carry: SQL submits args of any length, and jsonb prints 1e400 in 401 digits.

    A worker would break the connection over it, come back, and be given it again.
    """
    what = "args and checkpoint" if claim.checkpoint else "args"
    error = f"{what} have {_bytes_of(claim)} bytes as the database prints them; at most {CLAIM_MAX_BYTES} can be sent"
    return Ending(claim.id, claim.attempt, seat, kind=EndingKind.DISCARDED, error=error)
