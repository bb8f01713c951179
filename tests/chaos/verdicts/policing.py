"""
Whether policies, pauses and expiry held while operators changed them; pure, so that each rule can be seen to fail.

What operators asked for (`calls`) tells which values of an option may have been in force in any stretch of time. What
the database's record says of claims and of ends is held against that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Final
from uuid import UUID

from tests.chaos.verdicts.calls import GATE, MARGIN_S, POLICY, Call, counted

CLOSED_S: Final = (
    0.2  # behind the acknowledgement of a pause: nothing is claimed any more; both clocks are of one machine
)
SWEPT_S: Final = (
    20.0  # behind its time a job is a dead letter: a sweep a second, and as long as a fault takes them away
)
EXACT_S: Final = 0.002
CHARGED: Final = frozenset({"error", "timeout", "stalled", "lease_expired"})  # outcomes that wait as the back-off says
ASKS: Final = {"snoozed": 1, "retry": 0}  # outcomes whose handler said how long: what each adds to `uncharged`
Value = int | float | str | None


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim: when its statement began, and the time at which its job started; Unix seconds, as all times here."""

    job: UUID
    attempt: int
    topic: str
    began_s: float
    started_s: float


@dataclass(frozen=True, slots=True)
class Ended:
    """
    The end of an attempt that did not succeed.

    Attributes:
        tries: Charged ones, this one included where it is.
        uncharged: What it added to those that are not.
        waits_s: Until the job is due again.
        asked_s: How long its handler wanted it to wait; None: it said nothing of that.
    """

    job: UUID
    attempt: int
    topic: str
    name: str
    outcome: str
    status: str
    began_s: float
    ended_s: float
    tries: int
    uncharged: int
    crashes: int
    waits_s: float
    asked_s: float | None = None


@dataclass(frozen=True, slots=True)
class Governed:
    """
    A job as it is in the end.

    Attributes:
        submitted_s: From when to when it was submitted: asked for, and acknowledged.
        expires_s: When it is too late to start it; infinite: never.
        ended_s: When it was finished.
        is_expired: Its history says so.
        freed_s: When its last attempt ended, or an operator started it anew; 0: none, nobody.
    """

    job: UUID
    topic: str
    name: str
    status: str
    submitted_s: tuple[float, float]
    max_attempts: int
    timeout_s: float | None
    expires_s: float = inf
    ended_s: float = inf
    is_expired: bool = False
    freed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Police:
    """What is wrong, rule by rule, and how much was looked at."""

    wrong: Mapping[str, Sequence[str]]
    counts: Mapping[str, int]


def police(
    calls: Mapping[str, Sequence[Call]],
    jobs: Sequence[Governed],
    claims: Sequence[Claimed],
    ends: Sequence[Ended],
    governed: Mapping[str, frozenset[str]],
) -> Police:
    """
    Hold what was claimed and how it ended against what was asked for.

    Args:
        calls: Of gates and policies, by their names.
        jobs: Every job that a producer submitted.
        claims: Every claim.
        ends: Every end of an attempt but success.
        governed: Names of handlers that say nothing of an option themselves, by topic.
    """
    mine = [job for job in jobs if job.name in governed.get(job.topic, ())]
    failed = [end for end in ends if end.name in governed.get(end.topic, ())]
    rules = {
        "a job has the budget that was in force": _budgets(calls, mine),
        "a crash budget is the one in force": _crashes(calls, failed),
        "a failed try waits as the back-off in force says": _waits(calls, failed),
        "who says how long to wait is obeyed, and a snooze charged to nobody": _asked(ends),
        "nothing is claimed while its topic is paused": _closed(calls, claims),
        "nothing starts after its time": _late(jobs, claims),
        "what was not started in time is a dead letter soon": _swept(jobs),
    }
    wrong = {rule: found for rule, violations in rules.items() if (found := list(violations))}
    every = [call for some in calls.values() for call in some]
    counts = {
        **counted(every),
        "expired": sum(job.is_expired for job in jobs),
    }
    return Police(wrong, counts)


def possible(calls: Sequence[Call], option: str, from_s: float, to_s: float) -> set[Value]:
    """The values of *option* that may have been in force at some time of a stretch; None: it was not set."""
    found: set[Value] = {None}
    for call in calls:
        if call.what == "set" and option in call.facts["policy"]:
            value = call.facts["policy"][option]
            if call.done_s <= from_s - MARGIN_S:
                found = {value}
            elif call.asked_s <= to_s + MARGIN_S:
                found.add(value)
    return found


def waits(word: str, tries: int) -> tuple[float, float]:
    """The least and the longest wait after so many charged tries, as documented: docs/handlers.md."""
    kind, _, rest = word.partition(":")
    numbers = [float(one) for one in rest.replace(":", ",").split(",") if one]
    match kind:
        case "fixed":
            return numbers[0], numbers[0]
        case "list":
            wait_s = numbers[min(tries, len(numbers)) - 1]
            return wait_s, wait_s
        case "exponential":
            first_s, longest_s = (*numbers, *(1.0, 3600.0)[len(numbers) :])
            whole_s = min(longest_s, first_s * 2 ** (tries - 1))
            return whole_s / 2, whole_s
        case _:
            unit_s = numbers[0] if numbers else 1.0
            return unit_s * tries**2, unit_s * tries**2


def _budgets(calls: Mapping[str, Sequence[Call]], jobs: Sequence[Governed]) -> Iterator[str]:
    for job in jobs:
        for option, value in (("max_attempts", job.max_attempts), ("timeout_s", job.timeout_s)):
            allowed = possible(calls.get(POLICY + job.topic, ()), option, *job.submitted_s)
            if None not in allowed and value not in allowed:
                yield f"{job.job} ({job.name}) has {option} {value}, in force was {_words(allowed)}"


def _crashes(calls: Mapping[str, Sequence[Call]], ends: Sequence[Ended]) -> Iterator[str]:
    for end in ends:
        allowed = possible(calls.get(POLICY + end.topic, ()), "max_crashes", end.began_s, end.ended_s)
        numbers = [value for value in allowed if isinstance(value, int)]
        if end.outcome != "crashed" or None in allowed:
            continue
        is_dead = end.status == "DEAD_LETTERED"
        if (is_dead and end.crashes < min(numbers)) or (not is_dead and end.crashes >= max(numbers)):
            yield f"{_name(end)} is {end.status} after {end.crashes} crashes, in force was {_words(allowed)}"


def _waits(calls: Mapping[str, Sequence[Call]], ends: Sequence[Ended]) -> Iterator[str]:
    for end in ends:
        if end.outcome not in CHARGED or end.status != "RETRYING":
            continue
        words = possible(calls.get(POLICY + end.topic, ()), "backoff", end.began_s, end.ended_s)
        ranges = [waits(str(word), end.tries) for word in words if word is not None]
        if None not in words and not any(low - EXACT_S <= end.waits_s <= high + EXACT_S for low, high in ranges):
            yield f"{_name(end)} waits {end.waits_s:.3f} s after {end.tries} tries, in force was {_words(words)}"


def _asked(ends: Sequence[Ended]) -> Iterator[str]:
    for end in ends:
        if end.outcome not in ASKS or end.status not in {"RETRYING", "PENDING"}:
            continue
        if end.asked_s is not None and abs(end.waits_s - end.asked_s) > EXACT_S:
            yield f"{_name(end)} waits {end.waits_s:.3f} s and wanted {end.asked_s:.3f} s"
        if end.uncharged != ASKS[end.outcome]:
            yield f"{_name(end)} is {end.outcome} and adds {end.uncharged} to what is not charged"


def _closed(calls: Mapping[str, Sequence[Call]], claims: Sequence[Claimed]) -> Iterator[str]:
    by_topic: dict[str, list[Claimed]] = defaultdict(list)
    for claim in claims:
        by_topic[claim.topic].append(claim)
    for target, some in calls.items():
        topic = target.removeprefix(GATE)
        for from_s, to_s in _pauses(some):
            for claim in claims if topic == "" else by_topic[topic]:
                if from_s + CLOSED_S < claim.began_s < to_s - MARGIN_S:
                    after_s = claim.began_s - from_s
                    yield f"{claim.job} attempt {claim.attempt} was claimed {after_s:.3f} s into a pause"


def _pauses(calls: Sequence[Call]) -> Iterator[tuple[float, float]]:
    """From when to when a topic was certainly paused."""
    gates = [call for call in calls if call.what in {"close", "open"}]
    for call, following in pairwise([*gates, None]):
        assert call is not None
        if call.what == "close" and call.done_s < inf:
            lapses_s = call.asked_s + call.facts["for_s"] if call.facts.get("for_s") is not None else inf
            yield call.done_s, min(lapses_s, inf if following is None else following.asked_s)


def _late(jobs: Sequence[Governed], claims: Sequence[Claimed]) -> Iterator[str]:
    expires_s = {job.job: job.expires_s for job in jobs}
    for claim in claims:
        over_s = claim.started_s - expires_s.get(claim.job, inf)
        if over_s >= 0:
            yield f"{claim.job} attempt {claim.attempt} started {over_s:.6f} s after its time"


def _swept(jobs: Sequence[Governed]) -> Iterator[str]:
    for job in jobs:
        if job.is_expired and job.expires_s < inf:  # an operator's retry takes it away
            after_s = job.ended_s - max(job.expires_s, job.freed_s)
            if job.ended_s < job.expires_s or after_s > SWEPT_S or job.status != "DEAD_LETTERED":
                yield f"{job.job} is {job.status} {after_s:.3f} s after it could not be started any more"


def _words(values: set[Value]) -> str:
    return " or ".join(sorted(map(str, values)))


def _name(end: Ended) -> str:
    return f"{end.job} attempt {end.attempt} ({end.name}, {end.outcome})"
