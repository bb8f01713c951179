"""Which of the ends that the server has written are failures to log. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pulse.store.rows import Ended, Ending, EndingKind, ExpiredJob
from pulse.system.failure_log import FailedAttempt

# Those that spend a budget, or end the job at once. What was given back or snoozed is no failure.
_FAILURES: Final = frozenset(EndingKind) - {EndingKind.RELEASED, EndingKind.UNASSIGNED, EndingKind.SNOOZED}


def failed_attempts(endings: Sequence[Ending], ended: Sequence[Ended]) -> list[FailedAttempt]:
    """
    The failures among *endings*.

    Args:
        endings: The ends that were to be written.
        ended: Those that were.
    """
    failures = {(one.id, one.attempt): one for one in endings if one.kind in _FAILURES}
    found: list[FailedAttempt] = []
    for one in ended:
        ending = failures.get((one.id, one.attempt))
        if ending is None:
            continue
        kind = EndingKind.LEASE_EXPIRED if ending.kind is EndingKind.SILENT else ending.kind
        found.append(
            FailedAttempt(
                one.id,
                one.name,
                one.topic,
                attempt=one.attempt,
                outcome=kind.value,
                error=ending.error or "",
                is_dead=one.status == "DEAD_LETTERED",
            )
        )
    return found


def expired_jobs(jobs: Sequence[ExpiredJob]) -> list[FailedAttempt]:
    """Jobs that were not started in time, as in their history: attempt 0 stands for no attempt."""
    return [FailedAttempt(*one[:3], attempt=0, outcome="expired", error=one.error, is_dead=True) for one in jobs]
