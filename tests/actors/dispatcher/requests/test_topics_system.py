"""Policies, pauses with an end and expiry, on the raw wire, and their effects there."""

from __future__ import annotations

import os
import pwd
import time
from typing import Any, Final

import pytest

from tests.support.systems.system import Peer, System, new_job
from tests.support.waiting import until

pytestmark = [pytest.mark.postgres, pytest.mark.process, pytest.mark.system]

SETTINGS: Final = {"PULSE_POLL_S": "60"}
SOON_S: Final = 1.0


def test_a_policy_is_set_shown_and_unset(system: System, client: Peer, topic: str) -> None:
    """Each effective value has its source; handlers of the topic show what they declare."""
    handlers = {f"h{topic}": {"topic": topic, "backoff": "fixed:1"}}
    with system.worker("says", topics=[topic], names=list(handlers), handlers=handlers):
        answer = client.call("topics.set", topic=topic, policy={"max_attempts": 3, "lease_s": 300.0})["topic"]
        assert answer == client.call("topics.get", topic=topic)["topic"]
        assert answer["handlers"] == [{"name": f"h{topic}", "backoff": "fixed:1"}]
    policy: dict[str, Any] = answer["policy"]
    assert policy["max_attempts"] == {"value": 3, "source": "topic"}
    assert policy["lease_s"] == {"value": 300.0, "source": "topic"}
    assert policy["backoff"] == {"value": "quadratic", "source": "server"}
    assert policy["retention_s"] == {"value": 604800.0, "source": "server"}
    assert policy["timeout_s"] == {"value": None, "source": None}
    assert topic in [one["topic"] for one in client.call("topics.list", limit=1000)["topics"]]
    answer = client.call("topics.unset", topic=topic, options=["lease_s"])["topic"]
    assert [answer["policy"][one]["source"] for one in ("max_attempts", "lease_s")] == ["topic", "server"]
    client.call("topics.unset", topic=topic)
    assert topic not in [one["topic"] for one in client.call("topics.list", limit=1000)["topics"]]


def test_what_others_set_is_known_within_a_second(system: System, client: Peer, topic: str) -> None:
    """A plain UPDATE reaches the dispatcher's memory: the next job carries the stall of its topic."""
    with system.worker("told", topics=[topic]) as worker:
        system.rows("INSERT INTO pulse.topics (topic, stall_s) VALUES ($1, 77.5)", topic)
        began_s = time.monotonic()

        def is_told() -> bool:
            (job,) = client.submit(new_job(topic=topic))
            (assigned,) = worker.jobs(1)
            worker.done((job, 1))
            return bool(assigned[7] == {"stall_s": 77.5})

        until(is_told, "told")
        assert time.monotonic() - began_s < SOON_S + 1.0


def test_who_has_paused_and_until_when(system: System, client: Peer, topic: str) -> None:
    """The kernel names the account; the end comes by itself, and wakes the workers."""
    name = pwd.getpwuid(os.getuid()).pw_name
    with system.worker("waits", topics=[topic]) as worker:
        gate = client.call("dispatch.pause", topic=topic, reason="why", for_s=1.0)["topics"][topic]
        assert (gate["reason"], gate["paused_by"]) == ("why", f"uid {os.getuid()} ({name})")
        assert gate["paused_until"] == pytest.approx(gate["paused_at"] + 1.0, abs=0.1)
        (job,) = client.submit(new_job(topic=topic))
        (assigned,) = worker.jobs(1)
        assert assigned[0] == job
        started = system.row(job)["started_at"].timestamp()
        assert gate["paused_until"] <= started < gate["paused_until"] + SOON_S
        worker.done((job, 1))
    assert topic not in client.call("dispatch.status")["topics"]
    until(lambda: system.log("pause_expired", topic=topic), "log")


@pytest.mark.parametrize(("fields", "message"), [
    ({"until": 1.0}, "until is 1 (Unix seconds); a time in the future is allowed"),
    ({"until": 4e9, "for_s": 1.0}, "until and for_s are both given; one of them is allowed"),
    ({"for_s": -1.0}, "dispatch.pause: for_s is -1.0; allowed is a number above 0, up to 1,000,000,000"),
])  # fmt: skip
def test_a_bad_pause_is_refused(client: Peer, topic: str, fields: dict[str, float], message: str) -> None:
    assert client.refusal("dispatch.pause", topic=topic, **fields) == ("bad_request", message)
    assert topic not in client.call("dispatch.status")["topics"]
