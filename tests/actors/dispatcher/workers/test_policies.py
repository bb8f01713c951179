"""What the dispatcher keeps in memory of the topics' policies."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pulse.errors import ProtocolError
from pulse.store.operators.policies import LivePolicy
from pulse.store.rows import Completion
from pulse_actors.dispatcher.workers.policies import TopicPolicies, check_backoff
from pulse_actors.dispatcher.workers.records import HeldJob
from pulse_actors.dispatcher.workers.registry import WorkerRegistry
from tests.support.store.recovery_kit import new_worker

LIVE = {
    "": LivePolicy(stall_s=9.0, lease_s=500.0), "a": LivePolicy(stall_s=5.0, lease_s=90.0, retention_s=0.0),
    "b": LivePolicy(lease_s=30.0, retention_s=60.0), "c": LivePolicy(ageing_s=1.0),
}  # fmt: skip


def book(live: Mapping[str, LivePolicy]) -> WorkerRegistry:
    registry = WorkerRegistry()
    registry.policies = TopicPolicies(live, 30.0)
    return registry


def test_stalls() -> None:
    registry = book(LIVE)
    assert [registry.stall_s(topic) for topic in "abcx"] == [5.0, 9.0, 9.0, 9.0]
    assert registry.stall_s("a", 1.0) == 1.0
    assert book({}).stall_s("a") is None
    for live, has_stalls in (({}, False), ({"": LIVE[""]}, True), ({"a": LIVE["a"]}, True), ({"b": LIVE["b"]}, False)):
        assert TopicPolicies(live).has_stalls is has_stalls


def test_leases() -> None:
    assert TopicPolicies(LIVE, 30.0).leases == {"a": 90.0}


def test_ageing() -> None:
    """Of topics that have it; 0 is strict order, and tiny values do not break a claim."""
    live = {**LIVE, "d": LivePolicy(ageing_s=0.0), "e": LivePolicy(ageing_s=1e-307)}
    assert TopicPolicies(live).ageing_s == {"c": 1.0, "e": 0.001}


def test_fates() -> None:
    done, worker = [Completion(topic.encode() * 16, 1, "w", None) for topic in "abcab"], new_worker("w")
    worker.held.update({(one.id, 1): HeldJob("n", _topic_of(one)) for one in done})
    for keep in (True, False):
        assert book({}).by_fate(done, keep=keep) == [(keep, done)]
        registry = book(LIVE)
        registry.join(worker)
        found = registry.by_fate(done, keep=keep)
        kept, gone = (["b", "c", "b"], ["a", "a"]) if keep else (["b", "b"], ["a", "c", "a"])
        assert {fate: [_topic_of(one) for one in some] for fate, some in found} == {True: kept, False: gone}
    assert book(LIVE).by_fate([], keep=True) == []


def _topic_of(one: Completion) -> str:
    return one.id[:1].decode()


def test_back_offs_of_a_hello() -> None:
    check_backoff("n", None, 1)
    check_backoff("n", "fixed:5", 1)
    with pytest.raises(ProtocolError, match=r'^hello: backoff of handler "n" is .soon.; allowed are quadratic'):
        check_backoff("n", "soon", 1)
