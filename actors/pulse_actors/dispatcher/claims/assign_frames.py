"""What a worker is sent of the jobs that were claimed for it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

from pulse.store.rows import Claim
from pulse_actors.dispatcher.claims.placement import length_of
from pulse_actors.dispatcher.workers.policies import TopicPolicies

ASSIGN_CHARS: Final = 1024 * 1024  # in one frame; a worker starts the first job while the next frame comes
ISOLATE_AT_CRASHES: Final = 2  # one crash may be an innocent neighbour's; after two the job runs where it kills nobody
_PREVIOUS: Final = ("outcome", "reason", "worker", "progress")  # as claim_jobs returns them


def frames(claims: Sequence[Claim], policies: TopicPolicies, lease_s: float) -> Iterator[list[tuple[object, ...]]]:
    """
    *claims*, which one worker gets, as they are sent: a frame after the other.

    Args:
        claims: In the order in which they start.
        policies: What is kept in memory of the topics' policies.
        lease_s: Length of a lease, where its topic has no other.
    """
    for part in _parts(claims):
        yield [_wire(claim, policies, lease_s) for claim in part]


def _wire(claim: Claim, policies: TopicPolicies, lease_s: float) -> tuple[object, ...]:
    extra, lease_s = _extra(claim, policies.stall_s(claim.topic)), policies.lease_s(claim.topic, lease_s)
    return (claim.id, claim.attempt, claim.name, claim.topic, claim.args, claim.timeout_s, lease_s, extra)


def _parts(claims: Sequence[Claim]) -> Iterator[Sequence[Claim]]:
    start, size = 0, 0
    for index, claim in enumerate(claims):
        size += length_of(claim)
        if size > ASSIGN_CHARS and index > start:
            yield claims[start:index]
            start, size = index, length_of(claim)
    yield claims[start:]


def _extra(claim: Claim, stall_s: float | None = None) -> dict[str, object] | None:
    if claim.attempt == 1 and claim.traceparent is None and claim.occurrence_at is None and stall_s is None:
        return None  # nearly every one
    extra: dict[str, object] = {}
    if claim.traceparent is not None:
        extra["traceparent"] = claim.traceparent
    if stall_s is not None:
        extra["stall_s"] = stall_s
    if claim.uncharged:
        extra["tries"] = claim.attempt - claim.uncharged
    if claim.occurrence_at is not None:
        extra["occurrence"] = claim.occurrence_at
    if claim.previous is not None or claim.checkpoint is not None:
        words = json.loads(claim.previous) if claim.previous is not None else [None] * len(_PREVIOUS)
        extra["previous"] = {**dict(zip(_PREVIOUS, words, strict=True)), "checkpoint": claim.checkpoint}
    if claim.crashes >= ISOLATE_AT_CRASHES:
        extra["isolate"] = True
    return extra or None
