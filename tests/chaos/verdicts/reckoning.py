"""
Which occurrences of schedules must have fired, must not, and may have; pure, so that each rule can be seen to fail.

What operators asked for (`calls`) tells for each moment which rule a schedule had, and whether it was paused, or that
this is not certain: between a call and its acknowledgement. Who fired anything at some moment was at work then, and had
looked at all schedules: with that, and with nothing that pulse says of itself, every occurrence that is missing is held
against its ``catch_up``.

- ``all``: each fires, oldest first. One is missing if a later one of the same rule has fired, or if the scheduler was
  at work since then, while the schedule was not paused.
- ``latest``, ``skip``: one must fire if the scheduler was at work between the time at which it was due and the one at
  which the next one was; of ``skip`` not where it was late by then.
- With overlap ``skip`` none must fire while the one before it was not finished.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from math import inf
from typing import Final
from uuid import UUID

from tests.chaos.verdicts.calls import MARGIN_S, Call, counted
from tests.chaos.verdicts.timetable import Rule

SETTLED_S: Final = 2.0  # behind a change: SQL knows no cron, the scheduler reckons within a second
SOON_S: Final = 1.0  # between two looks of a scheduler that is at work, on a busy machine
GRACE_S: Final = 5.0  # what is late by more, `skip` passes over
LOST_S: Final = 2.0  # between a scheduler's look and its statement


@dataclass(frozen=True, slots=True)
class Fired:
    """
    A job of a schedule.

    Attributes:
        occurrence_us: Unix microseconds; None: it was triggered.
        began_s: When the statement began that made it, Unix seconds.
        made_s: When it was made.
        ended_s: When it was finished; infinite: it is not.
    """

    job: UUID
    schedule: UUID
    occurrence_us: int | None
    began_s: float
    made_s: float
    ended_s: float = inf


@dataclass(frozen=True, slots=True)
class Span:
    """The time of a rule: it may be in force from ``asked_s`` to ``gone_s``, and is from ``done_s`` to ``until_s``."""

    rule: Rule
    asked_s: float
    done_s: float
    until_s: float
    gone_s: float
    is_first: bool


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause, by the same four times."""

    asked_s: float
    done_s: float
    until_s: float
    gone_s: float


@dataclass(frozen=True, slots=True)
class Reckoned:
    """What is wrong, rule by rule, and how much was looked at."""

    wrong: Mapping[str, Sequence[str]]
    counts: Mapping[str, int]


def reckon(calls: Mapping[str, Sequence[Call]], jobs: Sequence[Fired], until_s: float) -> Reckoned:
    """
    Hold what fired against what was asked for.

    Args:
        calls: Of schedules, by schedule.
        jobs: Every job of a schedule, also of those that no call speaks of.
        until_s: When the harness stopped all of them.
    """
    fired: dict[UUID, list[Fired]] = defaultdict(list)
    for job in jobs:
        fired[job.schedule].append(job)
    seen_s = sorted(job.began_s for job in jobs if job.occurrence_us is not None)
    wrong: dict[str, list[str]] = defaultdict(list)
    must = 0
    for target, some in calls.items():
        schedule = _Schedule(UUID(target), some, fired[UUID(target)], seen_s, until_s)
        must += sum(len(list(schedule.due(span))) for span in schedule.spans)
        for rule, found in schedule.rules().items():
            wrong[rule] += found
    counts = {
        "occurrences fired": len(seen_s),
        "occurrences reckoned": must,
        "schedules": len(calls),
        **counted([call for some in calls.values() for call in some]),
    }
    return Reckoned({rule: found for rule, found in wrong.items() if found}, counts)


class _Schedule:
    """One schedule, and what fired of it."""

    def __init__(
        self, identity: UUID, calls: Sequence[Call], jobs: Sequence[Fired], seen_s: Sequence[float], until_s: float
    ) -> None:
        self._id = identity
        self._calls = calls
        self._seen_s = seen_s
        self._until_s = until_s
        self._triggered = [job for job in jobs if job.occurrence_us is None]
        self._jobs = sorted((job for job in jobs if job.occurrence_us is not None), key=_occurrence)
        self._fired = {_occurrence(job) for job in self._jobs}
        self.spans = list(_spans(calls, until_s))
        self._pauses = list(_pauses(calls, until_s))

    def rules(self) -> dict[str, list[str]]:
        """What breaks each rule."""
        return {
            "an occurrence fires once": list(self._twice()),
            "what fires is an occurrence that is due": list(self._strange()),
            "nothing fires while a schedule is paused": list(self._paused()),
            "no occurrence is missing": [one for span in self.spans for one in self._missing(span)],
            "of what was missed no old one fires": list(self._old()),
            "each trigger makes one job": list(self._triggers()),
        }

    def due(self, span: Span) -> Iterator[int]:
        """The occurrences that were due while a rule was certainly in force."""
        from_s = span.done_s
        if span.rule.kind == "at" and span.is_first:
            from_s = -inf if span.done_s < inf else inf
        if from_s == inf:
            return
        for one in span.rule.between(max(from_s, span.rule.starts_s - 1), span.until_s):
            if span.rule.due_s(self._id, one) < span.until_s:
                yield one

    def _twice(self) -> Iterator[str]:
        for occurrence_us, count in Counter(map(_occurrence, self._jobs)).items():
            if count > 1:
                yield f"{self._name(occurrence_us)} has {count} jobs"

    def _strange(self) -> Iterator[str]:
        for job in self._jobs:
            occurrence_us = _occurrence(job)
            may = [span for span in self.spans if span.asked_s - MARGIN_S <= job.made_s <= span.gone_s + MARGIN_S]
            its = [span for span in may if span.rule.has(occurrence_us)]
            if not its:
                yield f"{self._name(occurrence_us)} fired at {_time(job.made_s)}, and no rule of that time names it"
            elif not any(span.rule.due_s(self._id, occurrence_us) <= job.made_s + 1e-5 for span in its):
                yield f"{self._name(occurrence_us)} fired at {_time(job.made_s)}, before it was due"
            elif occurrence_us / 1e6 < self.spans[0].asked_s - MARGIN_S and its[0].rule.kind != "at":
                yield f"{self._name(occurrence_us)} fired, and the schedule was made later"

    def _paused(self) -> Iterator[str]:
        for pause in self._pauses:
            for job in self._jobs:
                if pause.done_s + MARGIN_S < job.made_s < pause.until_s - MARGIN_S:
                    since = f"paused since {_time(pause.done_s)}"
                    yield f"{self._name(_occurrence(job))} fired at {_time(job.made_s)}, {since}"

    def _missing(self, span: Span) -> Iterator[str]:
        settled_s = self._settled_s(span)
        newest_us = max((_occurrence(job) for job in self._jobs if settled_s < job.made_s < span.until_s), default=0)
        for one in self.due(span):
            due_s = span.rule.due_s(self._id, one)
            if (
                one in self._fired
                or (one / 1e6 <= settled_s and span.rule.kind != "at")
                or self._has_overlapped(span, one)
            ):
                continue
            if span.rule.catch_up == "all":
                looked_s = self._looked(span, max(due_s, settled_s) + SOON_S, span.until_s)
                if one < newest_us and span.rule.has(newest_us):
                    yield f"{self._name(one)} is missing, and {self._name(newest_us)} has fired (all)"
                elif looked_s is not None:
                    yield f"{self._name(one)} is missing, and the scheduler was at work at {_time(looked_s)} (all)"
            else:
                next_s = span.rule.due_s(self._id, span.rule.after(one))
                late_s = due_s + GRACE_S - SOON_S if span.rule.catch_up == "skip" else inf
                looked_s = self._looked(span, max(due_s, settled_s) + SOON_S, min(next_s, late_s, span.until_s))
                if looked_s is not None:
                    how = f"the scheduler was at work at {_time(looked_s)} ({span.rule.catch_up})"
                    yield f"{self._name(one)} is missing, due at {_time(due_s)}, and {how}"

    def _settled_s(self, span: Span) -> float:
        """From when on a rule is known to the scheduler: at its second look, where SQL has left it to reckon."""
        if span.done_s == inf:
            return inf
        looked = bisect_left(self._seen_s, span.done_s + SETTLED_S)
        return self._seen_s[looked] + SETTLED_S if looked < len(self._seen_s) else inf

    def _looked(self, span: Span, from_s: float, to_s: float) -> float | None:
        """When somebody fired anything, while this schedule was neither paused nor changed for a moment."""
        for index in range(bisect_left(self._seen_s, from_s), bisect_left(self._seen_s, to_s)):
            seen_s = self._seen_s[index]
            if seen_s < span.until_s and not any(
                pause.asked_s <= seen_s + SOON_S and seen_s - SOON_S <= pause.gone_s for pause in self._pauses
            ):
                return seen_s
        return None

    def _has_overlapped(self, span: Span, occurrence_us: int) -> bool:
        """Whether it may have been passed over because of the one before."""
        if span.rule.overlap != "skip":
            return False
        before = [job for job in self._jobs if _occurrence(job) < occurrence_us]
        return bool(before) and before[-1].ended_s >= span.rule.due_s(self._id, occurrence_us)

    def _old(self) -> Iterator[str]:
        for job in self._jobs:
            occurrence_us = _occurrence(job)
            for span in self.spans:
                rule = span.rule
                if not (span.done_s < job.began_s < span.until_s and rule.has(occurrence_us)) or rule.catch_up == "all":
                    continue
                after_us = rule.after(occurrence_us)
                if rule.due_s(self._id, after_us) < job.began_s - LOST_S:
                    yield f"{self._name(occurrence_us)} fired at {_time(job.began_s)}, when a newer one was due"
                elif rule.catch_up == "skip" and job.began_s - rule.due_s(self._id, occurrence_us) > GRACE_S + LOST_S:
                    yield f"{self._name(occurrence_us)} fired at {_time(job.began_s)}, too late for skip"

    def _triggers(self) -> Iterator[str]:
        asked = [call for call in self._calls if call.what == "trigger"]
        there = {str(job.job) for job in self._triggered}
        made = [call.facts["makes"] for call in asked if call.done_s < inf]
        yield from (f"{job} was triggered, and is not there" for job in made if job not in there)
        strange = there - {call.facts["makes"] for call in asked}
        yield from (f"{job} was triggered by nobody" for job in strange)

    def _name(self, occurrence_us: int) -> str:
        return f"{self._id} of {_time(occurrence_us / 1e6)}"


def _spans(calls: Sequence[Call], until_s: float) -> Iterator[Span]:
    ruling = [call for call in calls if call.what in {"create", "change"}]
    for number, (call, following) in enumerate(pairwise([*ruling, None])):
        assert call is not None
        ends = (until_s, inf) if following is None else (following.asked_s, following.done_s)
        yield Span(Rule(**call.facts["rule"]), call.asked_s, call.done_s, *ends, is_first=number == 0)


def _pauses(calls: Sequence[Call], until_s: float) -> Iterator[Pause]:
    pauses = [call for call in calls if call.what in {"pause", "resume"}]
    for call, following in pairwise([*pauses, None]):
        assert call is not None
        if call.what == "pause":
            ends = (until_s, inf) if following is None else (following.asked_s, following.done_s)
            yield Pause(call.asked_s, call.done_s, *ends)


def _occurrence(job: Fired) -> int:
    assert job.occurrence_us is not None
    return job.occurrence_us


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%H:%M:%S.%f")[:-3] if unix_s < inf else "never"
