"""The topic policies that the dispatcher keeps in memory, arranged for look-up by topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pulse.common.backoff import ALLOWED, is_backoff
from pulse.errors import ProtocolError
from pulse.store.operators.policies import LivePolicy

LEAST_AGEING_S: Final = 0.001  # with a smaller one, waiting since the year 1 would overflow a number


class TopicPolicies:
    """
    The policies of all topics, by option.

    Args:
        live: The options that are set; '' is the server.

    Attributes:
        stalls: Longest time without progress.
        stall_s: The server's, for all other topics.
        has_stalls: Whether there is any of these.
        leases: Leases that are longer than the server's.
        keeps: Whether completed jobs are kept for a while.
        ageing_s: Of topics that age: how many seconds of waiting are worth one priority.
    """

    def __init__(self, live: Mapping[str, LivePolicy], lease_s: float = 0.0) -> None:
        topics = {topic: policy for topic, policy in live.items() if topic}
        self.stalls: Final = {one: policy.stall_s for one, policy in topics.items() if policy.stall_s is not None}
        self.stall_s: Final = live[""].stall_s if "" in live else None
        self.has_stalls: Final = bool(self.stalls) or self.stall_s is not None
        self.leases: Final = {
            one: policy.lease_s
            for one, policy in topics.items()
            if policy.lease_s is not None and policy.lease_s > lease_s
        }
        ageing = {one: policy.ageing_s or 0.0 for one, policy in topics.items()}
        self.ageing_s: Final = {one: max(age_s, LEAST_AGEING_S) for one, age_s in ageing.items() if age_s > 0}
        self.keeps: Final = {
            one: policy.retention_s > 0 for one, policy in topics.items() if policy.retention_s is not None
        }


def check_backoff(name: str, backoff: str | None, request: int | None) -> None:
    """
    Check a handler's back-off.

    Raises:
        ProtocolError: It is not a back-off.
    """
    if backoff is not None and not is_backoff(backoff):
        message = f'hello: backoff of handler "{name:.60}" is {backoff!r:.60}; allowed are {ALLOWED}'
        raise ProtocolError(message, request=request)
