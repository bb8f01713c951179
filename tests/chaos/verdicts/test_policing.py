"""The rules of policies, pauses and expiry: each notices what breaks it, and what may happen breaks none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from uuid import UUID

import pytest

from pulse.common.backoff import backoff_s
from tests.chaos.verdicts.calls import GATE, POLICY, Call
from tests.chaos.verdicts.policing import Claimed, Ended, Governed, police, possible, waits

A, B, C, D = (UUID(int=number) for number in range(1, 5))
TOPIC = "topic"
TARGET = POLICY + TOPIC
FIRST = {"max_attempts": 2, "max_crashes": 2, "backoff": "fixed:1", "timeout_s": 5.0}
LATER = {"max_attempts": 3, "max_crashes": 4, "backoff": "list:2,3", "timeout_s": 9.0}
CALLS: Mapping[str, list[Call]] = {
    TARGET: [
        Call(TARGET, "set", 0, 1, facts={"policy": FIRST}),
        Call(TARGET, "set", 20, 21, facts={"policy": LATER}),
    ],
    GATE + TOPIC: [
        Call(GATE + TOPIC, "close", 30, 30.5, facts={"for_s": None}),
        Call(GATE + TOPIC, "open", 35, 35.5),
        Call(GATE + TOPIC, "close", 40, 40.5, facts={"for_s": 2.0}),
    ],
    GATE: [Call(GATE, "close", 50, 51, facts={"for_s": 3.0})],
}
EARLY = Governed(A, TOPIC, "n", "COMPLETED", (5, 5.1), 2, 5.0)
LATE = Governed(B, TOPIC, "n", "COMPLETED", (25, 25.1), 3, 9.0)
MAYBE = Governed(C, TOPIC, "n", "COMPLETED", (20.2, inf), 3, 5.0)
EXPIRED = Governed(D, TOPIC, "n", "DEAD_LETTERED", (25, 25.1), 3, 9.0, 28.0, 29.0, is_expired=True)
JOBS = [EARLY, LATE, MAYBE, EXPIRED]
CLAIMS = [
    Claimed(A, 1, TOPIC, 6, 6),
    Claimed(D, 1, TOPIC, 27, 27.9),
    Claimed(B, 1, TOPIC, 30.4, 30.4),
    Claimed(B, 2, TOPIC, 35.2, 35.2),
    Claimed(B, 3, TOPIC, 42.1, 42.1),
    Claimed(C, 1, "other", 33, 33),
    Claimed(C, 2, "other", 53.1, 53.1),
]
FAILED = Ended(A, 1, TOPIC, "n", "error", "RETRYING", 7, 7, 1, 0, 0, 1.0)
ENDS = [
    FAILED,
    replace(FAILED, began_s=25, ended_s=25, tries=2, waits_s=3.0),
    replace(FAILED, began_s=20.5, ended_s=20.5, waits_s=2.0),
    replace(FAILED, outcome="retry", waits_s=0.3, asked_s=0.3),
    replace(FAILED, outcome="snoozed", status="PENDING", uncharged=1, waits_s=0.4, asked_s=0.4),
    replace(FAILED, outcome="crashed", uncharged=1, crashes=1, waits_s=0.0),
    replace(FAILED, outcome="crashed", status="DEAD_LETTERED", uncharged=1, crashes=2),
    replace(FAILED, outcome="crashed", uncharged=1, crashes=3, began_s=20.5, ended_s=20.5),
    replace(FAILED, outcome="discarded", status="DEAD_LETTERED"),
    replace(FAILED, topic="other", waits_s=77.0),
]
NAMES = {TOPIC: frozenset({"n"})}


def test_all_went_well() -> None:
    """What may happen violates nothing."""
    found = police(CALLS, JOBS, CLAIMS, ENDS, NAMES)
    assert found.wrong == {}
    assert (found.counts["operator calls"], found.counts["expired"]) == (6, 1)


@pytest.mark.parametrize(
    ("rule", "one"),
    [
        ("a job has the budget", replace(EARLY, max_attempts=3)),
        ("a job has the budget", replace(EARLY, timeout_s=9.0)),
        ("a job has the budget", replace(LATE, timeout_s=None)),
        ("a job has the budget", replace(MAYBE, max_attempts=4)),
        ("a crash budget", replace(FAILED, outcome="crashed", crashes=2)),
        ("a crash budget", replace(FAILED, outcome="crashed", crashes=1, status="DEAD_LETTERED")),
        ("a crash budget", replace(FAILED, outcome="crashed", crashes=4, began_s=20.5, ended_s=20.5)),
        (
            "a crash budget",
            replace(FAILED, outcome="crashed", crashes=3, status="DEAD_LETTERED", began_s=25, ended_s=25),
        ),
        ("a failed try", replace(FAILED, waits_s=2.0)),
        ("a failed try", replace(FAILED, waits_s=0.9)),
        ("a failed try", replace(FAILED, outcome="timeout", began_s=25, ended_s=25)),
        ("a failed try", replace(FAILED, outcome="lease_expired", waits_s=3.0, began_s=20.5, ended_s=20.5)),
        ("who says", replace(FAILED, outcome="retry", waits_s=1.0, asked_s=0.3)),
        ("who says", replace(FAILED, outcome="retry", waits_s=0.3, asked_s=0.3, uncharged=1)),
        ("who says", replace(FAILED, outcome="snoozed", waits_s=0.3, asked_s=0.3)),
        ("nothing is claimed", Claimed(A, 2, TOPIC, 31, 31)),
        ("nothing is claimed", Claimed(A, 2, TOPIC, 34.8, 34.8)),
        ("nothing is claimed", Claimed(A, 2, TOPIC, 41.5, 41.5)),
        ("nothing is claimed", Claimed(A, 2, "other", 52, 52)),
        ("nothing starts", Claimed(D, 2, TOPIC, 27, 28.0)),
        ("what was not started", replace(EXPIRED, ended_s=27.9)),
        ("what was not started", replace(EXPIRED, ended_s=60.0)),
        ("what was not started", replace(EXPIRED, status="COMPLETED")),
    ],
)
def test_a_violation_is_noticed(rule: str, one: Governed | Claimed | Ended) -> None:
    """Each rule has something that breaks it."""
    jobs = [*JOBS, one] if isinstance(one, Governed) else JOBS
    claims = [*CLAIMS, one] if isinstance(one, Claimed) else CLAIMS
    ends = [*ENDS, one] if isinstance(one, Ended) else ENDS
    [found] = police(CALLS, jobs, claims, ends, NAMES).wrong
    assert found.startswith(rule)


def test_what_is_not_known_is_not_wrong() -> None:
    """Before anything is set, and of handlers that say themselves what they want, nothing is said."""
    jobs = [replace(EARLY, submitted_s=(-2, -1), max_attempts=9), replace(EARLY, name="other", max_attempts=9)]
    ends = [replace(FAILED, began_s=0, ended_s=0, waits_s=9), replace(FAILED, name="other", waits_s=9)]
    lost = {GATE + TOPIC: [Call(GATE + TOPIC, "close", 3, facts={"for_s": None})]}
    claims = [Claimed(A, 1, TOPIC, 6, 6)]
    assert police({**CALLS, **lost}, jobs, claims, ends, NAMES).wrong == {}
    retried = replace(EXPIRED, status="COMPLETED", expires_s=inf)
    freed = replace(EXPIRED, ended_s=60.0, freed_s=59.0)
    assert police(CALLS, [retried, freed], [], [], NAMES).wrong == {}


def test_what_may_have_been_in_force() -> None:
    """Before a call the old value, since its acknowledgement the new one; in between, or without one, both."""
    some = CALLS[TARGET]
    assert possible(some, "max_attempts", -3, -2) == {None}
    assert possible(some, "max_attempts", 0.5, 0.6) == {None, 2}
    assert possible(some, "max_attempts", 2, 19) == {2}
    assert possible(some, "max_attempts", 2, 25) == {2, 3}
    assert possible(some, "max_attempts", 22, 25) == {3}
    assert possible([some[0], replace(some[1], done_s=inf)], "max_attempts", 99, 99) == {2, 3}
    assert possible(some, "stall_s", 2, 25) == {None}


@pytest.mark.parametrize(
    "word", ["quadratic", "quadratic:0.3", "fixed:2", "list:1,5", "exponential", "exponential:2", "exponential:2:9"]
)
def test_the_waits_are_those_of_pulse(word: str) -> None:
    """Both reckon the same back-off."""
    for tries in range(1, 6):
        least_s, longest_s = waits(word, tries)
        drawn = [backoff_s(word, tries) for _ in range(200)]
        assert least_s <= min(drawn)
        assert max(drawn) <= longest_s
        assert longest_s - least_s == 0 or max(drawn) - min(drawn) > 0.9 * (longest_s - least_s)
