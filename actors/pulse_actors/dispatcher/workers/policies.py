"""What the dispatcher keeps in memory of the topics' policies, as it is asked for: by topic, and nothing to decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pulse.common.backoff import ALLOWED, is_backoff
from pulse.errors import ProtocolError
from pulse.store.operators.policies import LivePolicy
from pulse.store.rows import Completion

LEAST_AGEING_S: Final = 0.001  # below it waiting since the year 1 would be worth more than a number can hold


class TopicPolicies:
    """
    The policies of all topics, by what they are about.

    Args:
        live: What is set; '' is the server.
        lease_s: Length of the server's leases.

    Attributes:
        leases: Leases that are longer than the server's.
        keeps: Whether completed jobs are kept for a while.
        ageing_s: Of topics that age: how many seconds of waiting are worth one priority.
    """

    def __init__(self, live: Mapping[str, LivePolicy], lease_s: float = 0.0) -> None:
        topics = {topic: policy for topic, policy in live.items() if topic}
        self._stalls: Final = {one: policy.stall_s for one, policy in topics.items() if policy.stall_s is not None}
        self._stall_s: Final = live[""].stall_s if "" in live else None
        self.leases: Final = {
            one: policy.lease_s for one, policy in topics.items() if (policy.lease_s or 0.0) > lease_s
        }
        ageing = {one: policy.ageing_s or 0.0 for one, policy in topics.items()}
        self.ageing_s: Final = {one: max(age_s, LEAST_AGEING_S) for one, age_s in ageing.items() if age_s > 0}
        self.keeps: Final = {
            one: policy.retention_s > 0 for one, policy in topics.items() if policy.retention_s is not None
        }

    def stall_s(self, topic: str, own: float | None = None) -> float | None:
        """How long a handler of *topic* may be silent: its *own* promise, else the topic's, else the server's."""
        return own or self._stalls.get(topic, self._stall_s)

    def lease_s(self, topic: str, lease_s: float) -> float:
        """Length of the leases of *topic*; *lease_s*: the server's."""
        return self.leases.get(topic) or lease_s

    def by_fate(
        self, done: Sequence[Completion], topic_of: Callable[[Completion], str], *, keep: bool
    ) -> list[tuple[bool, Sequence[Completion]]]:
        """
        What is kept of *done* for a while, and what is not.

        Args:
            done: Completed attempts.
            topic_of: Where one of them waited.
            keep: What is done with jobs of topics that say nothing.
        """
        if not self.keeps:
            return [(keep, done)]
        fates: dict[bool, list[Completion]] = {}
        for one in done:
            fates.setdefault(self.keeps.get(topic_of(one), keep), []).append(one)
        return list(fates.items())


def check_backoff(name: str, backoff: str | None, request: int | None) -> None:
    """
    Whether a handler may wait so.

    Raises:
        ProtocolError: It says what is no back-off.
    """
    if backoff is not None and not is_backoff(backoff):
        message = f'hello: backoff of handler "{name:.60}" is {backoff!r:.60}; allowed are {ALLOWED}'
        raise ProtocolError(message, request=request)
