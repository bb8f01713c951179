"""The rules of schedules: each notices what breaks it, and what may happen breaks none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from math import inf
from uuid import UUID

import pytest

from pulse_actors.shared.recurrence import Recurrence, RecurrenceInput, jittered_us
from tests.chaos.load.ledger import Line
from tests.chaos.verdicts.calls import Call, calls
from tests.chaos.verdicts.reckoning import Fired, Reckoned, reckon
from tests.chaos.verdicts.timetable import Rule

S, TICK = UUID(int=1), UUID(int=2)
T = 1_800_000_000.0  # everything begins then
UNTIL_S = T + 60
LATEST = Rule("every", 4.0, T, catch_up="latest")
ALL = replace(LATEST, catch_up="all")
SKIP = replace(LATEST, catch_up="skip")
CREATED = Call(str(S), "create", T + 0.5, T + 0.6, facts={"rule": ALL.facts()})


def us(second: float) -> int:
    """A time as the database has it."""
    return round((T + second) * 1e6)


def fired(second: float, after_s: float = 0.01, *, of: UUID = S, ended_s: float = inf) -> Fired:
    """The occurrence at that second has fired, so much later."""
    made_s = T + second + after_s
    return Fired(UUID(int=us(second) + of.int * 10**18), of, us(second), made_s - 0.001, made_s, T + ended_s)


def created(rule: Rule) -> Call:
    """The schedule was made."""
    return replace(CREATED, facts={"rule": rule.facts()})


def call(what: str, asked: float, done: float = inf, **facts: object) -> Call:
    """The operator asked for that."""
    return Call(str(S), what, T + asked, T + done, facts=facts)


TICKS = [fired(second + 0.5, of=TICK) for second in range(60)]  # the scheduler is at work all the time
WHOLE = [fired(second) for second in range(4, 60, 4)]
ABSENT = [one for one in TICKS if not 20 < one.made_s - T < 31]  # but for these seconds


def judged(some: Sequence[Call], jobs: Sequence[Fired], ticks: Sequence[Fired] = TICKS) -> Reckoned:
    """What becomes of it."""
    return reckon({str(S): some}, [*jobs, *ticks], UNTIL_S)


def without(*seconds: float) -> list[Fired]:
    """All but some."""
    return [one for one in WHOLE if one.occurrence_us not in {us(second) for second in seconds}]


@pytest.mark.parametrize("rule", [ALL, LATEST, SKIP, replace(ALL, overlap="skip")])
def test_all_went_well(rule: Rule) -> None:
    """Each occurrence fired when it was due."""
    found = judged([created(rule)], WHOLE)
    assert found.wrong == {}
    assert found.counts["occurrences fired"] == len(WHOLE) + len(TICKS)
    assert found.counts["occurrences reckoned"] == len(WHOLE)


PAUSED = [CREATED, call("pause", 21, 21.1), call("resume", 30, 30.1)]
MADE_UP = [*without(24, 28), fired(24, 6.2), fired(28, 2.2)]
FASTER = replace(ALL, step_s=2.0)
CHANGED = [CREATED, call("change", 30.5, 30.6, rule=FASTER.facts())]
FASTER_FIRED = [one for one in WHOLE if (one.occurrence_us or 0) < us(31)] + [fired(one) for one in range(32, 60, 2)]


@pytest.mark.parametrize(
    ("some", "jobs", "ticks"),
    [
        # A gap explains what is missing: the scheduler was away, and fired the newest, all, or none that was late.
        ([created(LATEST)], [*without(20, 24, 28), fired(28, 3.2)], ABSENT),
        ([created(SKIP)], without(20, 24), ABSENT),
        ([CREATED], [*without(20, 24, 28), fired(20, 11), fired(24, 7.1), fired(28, 3.2)], ABSENT),
        # So does a pause, and what is not known of one.
        (PAUSED, MADE_UP, TICKS),
        ([created(LATEST), *PAUSED[1:]], [*without(24, 28), fired(28, 2.2)], TICKS),
        ([created(LATEST), call("pause", 21), call("resume", 30)], WHOLE, TICKS),
        ([created(LATEST), call("pause", 21, 27)], without(*range(24, 60, 4)), TICKS),
        # A change drops what has not fired yet; around it both rules may fire.
        (CHANGED, FASTER_FIRED, TICKS),
        ([CREATED, replace(CHANGED[1], done_s=T + 41)], WHOLE[:7] + [fired(one) for one in range(40, 60, 2)], TICKS),
        ([CREATED, replace(CHANGED[1], done_s=inf)], WHOLE, TICKS),
        ([CREATED, replace(CHANGED[1], done_s=inf)], FASTER_FIRED, TICKS),
        # The one before was not finished.
        ([created(replace(ALL, overlap="skip"))], [*without(16, 20, 24), fired(16, ended_s=24.5)], TICKS),
        # Nobody was at work at the end.
        ([CREATED], without(52, 56), [one for one in TICKS if one.made_s < T + 52]),
        ([call("create", 0.5, rule=ALL.facts())], [], TICKS),
        ([replace(CREATED, tries=2, done_s=T + 31)], WHOLE, TICKS),
    ],
)
def test_what_may_happen(some: list[Call], jobs: list[Fired], ticks: list[Fired]) -> None:
    """Nothing of it is wrong."""
    assert judged(some, jobs, ticks).wrong == {}


AT = Rule("at", 1.0, T + 10)
ENDING = replace(ALL, ends_s=T + 30)
JITTERED = replace(ALL, jitter_s=3.0)


@pytest.mark.parametrize(
    ("rule", "some", "jobs", "ticks"),
    [
        ("an occurrence fires once", [CREATED], [*WHOLE, replace(WHOLE[3], job=UUID(int=9))], TICKS),
        ("what fires", [CREATED], [*WHOLE, fired(21)], TICKS),
        ("what fires", [CREATED], [*without(20), fired(20, -0.01)], TICKS),
        ("what fires", [created(JITTERED)], WHOLE, TICKS),
        ("what fires", [created(ENDING)], WHOLE, TICKS),
        ("what fires", [created(replace(ALL, starts_s=T + 8))], WHOLE, TICKS),
        ("what fires", [replace(CREATED, asked_s=T + 5, done_s=T + 5.1)], [fired(4, 2), *WHOLE[1:]], TICKS),
        ("what fires", [call("create", 0.5, 0.6, rule=AT.facts())], [fired(10), fired(11)], TICKS),
        ("what fires", CHANGED, [*FASTER_FIRED, fired(26)], TICKS),
        ("what fires", [CREATED, call("change", 30.5, 30.6, rule=replace(ALL, step_s=5.0).facts())], WHOLE, TICKS),
        ("nothing fires", PAUSED, [*without(24, 28), fired(24), fired(28, 2.2)], TICKS),
        ("nothing fires", PAUSED[:2], WHOLE, TICKS),
        ("no occurrence", [CREATED], without(28), TICKS),
        ("no occurrence", [CREATED], without(56), TICKS),
        ("no occurrence", [CREATED], without(20, 24), ABSENT),
        ("no occurrence", [created(LATEST)], without(28), TICKS),
        ("no occurrence", [created(LATEST)], without(20, 24, 28), ABSENT),
        ("no occurrence", [created(SKIP)], without(28), TICKS),
        ("no occurrence", [created(SKIP)], without(20, 24, 32), ABSENT),
        ("no occurrence", PAUSED, without(24, 28), TICKS),
        ("no occurrence", PAUSED, [*without(24, 28), fired(28, 2.2)], TICKS),
        ("no occurrence", CHANGED, [one for one in FASTER_FIRED if one.occurrence_us != us(42)], TICKS),
        ("no occurrence", [call("create", 0.5, 0.6, rule=AT.facts())], [], TICKS),
        ("no occurrence", [created(replace(ALL, overlap="skip"))], [*without(16, 20), fired(16, ended_s=17)], TICKS),
        ("of what was missed", [created(LATEST)], [*without(20, 24, 28), fired(24, 7.1), fired(28, 3.2)], ABSENT),
        ("of what was missed", [created(replace(SKIP, step_s=20.0))], [fired(20, 11), fired(40)], ABSENT),
        ("each trigger", [CREATED, call("trigger", 9, 9.1, makes=str(UUID(int=7)))], WHOLE, TICKS),
        ("each trigger", [CREATED], [*WHOLE, replace(WHOLE[0], job=UUID(int=7), occurrence_us=None)], TICKS),
    ],
)
def test_a_violation_is_noticed(rule: str, some: list[Call], jobs: list[Fired], ticks: list[Fired]) -> None:
    """Each rule has something that breaks it."""
    found = judged(some, jobs, ticks)
    assert [one for one in found.wrong if one.startswith(rule)], found.wrong


def test_triggers() -> None:
    """One that was acknowledged is there, one that was not may be; neither is an occurrence."""
    jobs = [replace(WHOLE[0], job=UUID(int=number), occurrence_us=None) for number in (7, 8)]
    asked = [call("trigger", 9, 9.1, makes=str(UUID(int=7))), call("trigger", 10, makes=str(UUID(int=8)))]
    assert judged([CREATED, *asked], [*WHOLE, *jobs]).wrong == {}
    assert judged([CREATED, *asked], [*WHOLE, jobs[0]]).wrong == {}


@pytest.mark.parametrize("rule", [ALL, ENDING, JITTERED, Rule("cron", 5.0, T - 3), AT, replace(ALL, step_s=0.7)])
def test_the_timetable_is_that_of_pulse(rule: Rule) -> None:
    """Both reckon the same occurrences, and the same jitter."""
    theirs = Recurrence.checked(
        RecurrenceInput(
            cron=f"*/{rule.step_s:.0f} * * * * *" if rule.kind == "cron" else None,
            every_s=rule.step_s if rule.kind == "every" else None,
            at_s=rule.starts_s if rule.kind == "at" else None,
            starts_s=rule.starts_s if rule.kind != "at" else None,
            ends_s=rule.ends_s,
            jitter_s=rule.jitter_s,
        )
    )
    first = theirs.first(us(1.5))
    assert first is not None
    expected = [first, *islice(theirs.following(first), 99)]
    mine = list(rule.between(T + 1.5, expected[-1] / 1e6))
    assert mine == expected
    assert all(map(rule.has, mine))
    assert not any(rule.has(one + 1) for one in mine)
    for one in mine[:9]:
        assert round(rule.due_s(S, one) * 1e6) == pytest.approx(jittered_us(S.bytes, one, rule.jitter_s), abs=1)


def test_calls_of_the_ledger() -> None:
    """A call lasts from its first try to its answer; one that nobody answered has no end."""

    def line(act: str, number: int, at_s: float, **facts: object) -> Line:
        return Line(act, UUID(int=number), 0, 7, at_s, facts)

    lines = [
        line("asked", 1, 1.0, target="s", what="pause"),
        line("asked", 1, 21.0, target="s", what="pause"),
        line("done", 1, 22.0),
        line("asked", 2, 23.0, target="s", what="resume"),
        line("asked", 3, 2.0, target="gate of ", what="close", for_s=1.0),
        line("done", 3, 2.5),
    ]
    found = calls(lines, 100.0)
    assert [(one.what, one.asked_s, one.done_s, one.tries) for one in found["s"]] == [
        ("pause", 101.0, 122.0, 2),
        ("resume", 123.0, inf, 1),
    ]
    assert found["gate of "][0].facts["for_s"] == 1.0
