"""What the dispatcher keeps in memory of the topics' policies."""

from __future__ import annotations

import pytest

from pulse.errors import ProtocolError
from pulse.store.operators.policies import LivePolicy
from pulse.store.rows import Completion
from pulse_actors.dispatcher.workers.policies import TopicPolicies, check_backoff

LIVE = {
    "": LivePolicy(stall_s=9.0, lease_s=500.0),
    "a": LivePolicy(stall_s=5.0, lease_s=90.0, retention_s=0.0),
    "b": LivePolicy(lease_s=30.0, retention_s=60.0),
    "c": LivePolicy(ageing_s=1.0),
}


def test_stalls() -> None:
    """The topic's, else the server's, else none."""
    rules = TopicPolicies(LIVE, 30.0)
    assert [rules.stall_s(topic) for topic in "abcx"] == [5.0, 9.0, 9.0, 9.0]
    assert rules.stall_s("a", 1.0) == 1.0
    assert TopicPolicies({}).stall_s("a") is None


def test_leases() -> None:
    """Those that are longer than the server's, whose own is a setting."""
    rules = TopicPolicies(LIVE, 30.0)
    assert rules.leases == {"a": 90.0}
    assert [rules.lease_s(topic, 30.0) for topic in "abcx"] == [90.0, 30.0, 30.0, 30.0]


def test_ageing() -> None:
    """Of topics that have it; 0 is strict order, and what is next to it no number that breaks a claim."""
    live = {**LIVE, "d": LivePolicy(ageing_s=0.0), "e": LivePolicy(ageing_s=1e-307)}
    assert TopicPolicies(live).ageing_s == {"c": 1.0, "e": 0.001}


def test_fates() -> None:
    """Completed jobs are kept as their topic has it, else as the server does; in one piece where no topic says."""
    done = [Completion(topic.encode() * 16, 1, "w", None) for topic in "abcab"]

    def topic_of(one: Completion) -> str:
        return one.id[:1].decode()

    for keep in (True, False):
        assert TopicPolicies({}).by_fate(done, topic_of, keep=keep) == [(keep, done)]
        found = TopicPolicies(LIVE).by_fate(done, topic_of, keep=keep)
        kept, gone = (["b", "c", "b"], ["a", "a"]) if keep else (["b", "b"], ["a", "c", "a"])
        assert {fate: [topic_of(one) for one in some] for fate, some in found} == {True: kept, False: gone}
    assert TopicPolicies(LIVE).by_fate([], topic_of, keep=True) == []


def test_back_offs_of_a_hello() -> None:
    """A bad one is refused with the handler's name, the word and what is allowed."""
    check_backoff("n", None, 1)
    check_backoff("n", "fixed:5", 1)
    with pytest.raises(ProtocolError, match=r'^hello: backoff of handler "n" is .soon.; allowed are quadratic'):
        check_backoff("n", "soon", 1)
