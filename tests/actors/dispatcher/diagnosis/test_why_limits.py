"""Why a job waits under limits: each reason, when it applies, and which of several comes first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest
from msgspec import structs

from pulse.store.reading.limits import GroupTurn, LimitFacts, SlotUsage
from pulse_actors.dispatcher.diagnosis.reasons import Cause
from pulse_actors.dispatcher.diagnosis.why import explain
from tests.actors.dispatcher.diagnosis.test_reasons import FULL, JOB, KNOWN, LAST, NOW, served_by

DEAD: Final = bytes(16)
GROUPED: Final = structs.replace(JOB, group_key="tenant-7")
PUT_OFF: Final = "is put off until 2030-03-17T17:47:00Z (in 20 s)"
CHANGE: Final = "To change it: pulse ctl limits set api"


def why(limits: LimitFacts | None = None, **columns: Any) -> list[Cause]:
    known = columns.pop("known", KNOWN)
    return explain(
        structs.replace(GROUPED, limits=structs.replace(limits or LimitFacts(), limit="api"), **columns), known
    )


def codes(limits: LimitFacts | None = None, **columns: Any) -> list[str]:
    return [reason.code for reason in why(limits, **columns)]


def test_a_limit_is_full() -> None:
    (reason,) = why(LimitFacts(total=SlotUsage(50, 50, (LAST.bytes, DEAD))))
    assert (reason.code, reason.details["holders"]) == ("limit_full", [LAST.bytes, DEAD])
    assert reason.text == (f'Its limit "api" is full: 50 of 50 run: {LAST}, 00000000-0000-0000-0000-000000000000, ….')
    assert reason.advice == f"Wait until one ends; more workers do not help. {CHANGE}"
    assert codes(LimitFacts(total=SlotUsage(50, 49, (DEAD,)))) == ["ready"]


def test_a_group_is_full() -> None:
    (reason,) = why(LimitFacts(group=SlotUsage(2, 2, (LAST.bytes, LAST.bytes))))
    assert (reason.code, reason.details["group_key"]) == ("group_full", "tenant-7")
    assert reason.text == f'Its group "tenant-7" is full: 2 of 2 run: {LAST}, {LAST}.'
    assert reason.advice.endswith(f"{CHANGE} --group tenant-7")
    assert codes(LimitFacts(group=SlotUsage(2, 1, (DEAD,)))) == ["ready"]


def test_nothing_may_start() -> None:
    """A concurrency of 0 is a pause: it comes first, and before the job is due."""
    total, group = LimitFacts(total=SlotUsage(0, 0)), LimitFacts(group=SlotUsage(0, 0))
    assert [why(limits)[0].text for limits in (total, group)] == [
        'Nothing starts under limit "api": its concurrency is 0.',
        'Its group "tenant-7" is paused: limit "api" gives it a concurrency of 0.',
    ]
    assert [why(limits)[0].advice for limits in (total, group)] == [CHANGE, f"{CHANGE} --group tenant-7"]
    assert [codes(limits) for limits in (total, group)] == [["limit_paused"], ["group_paused"]]
    assert codes(total, known=served_by()) == ["limit_paused", "no_worker"]
    assert codes(group, next_run_at=NOW + 9) == ["group_paused", "not_due"]
    assert codes(total, next_run_at=NOW + 9) == ["limit_paused", "not_due"]


def test_there_is_no_token() -> None:
    """The later of the two tokens counts."""
    (reason,) = why(LimitFacts(total=SlotUsage(retry_s=0.4), group=SlotUsage(retry_s=0.3)))
    assert (reason.code, reason.details) == ("rate", {"limit": "api", "retry_s": 0.4, "group_key": None})
    assert reason.text.startswith('The rate of limit "api" is used up: next in 0.4 s.')
    assert reason.advice == CHANGE
    for total in (SlotUsage(), SlotUsage(retry_s=0.4)):
        (reason,) = why(LimitFacts(total=total, group=SlotUsage(retry_s=7.0)))
        assert (reason.details["retry_s"], reason.details["group_key"]) == (7.0, "tenant-7")
        assert 'of group "tenant-7" under limit "api" is used up: next in 7 s.' in reason.text


@pytest.mark.parametrize(("place", "slots", "how"), [
    (GroupTurn("halt", LAST.bytes), SlotUsage(1, 0), "waits"),
    (GroupTurn("continue", LAST.bytes, NOW), SlotUsage(1, 0), "waits"),
    (GroupTurn("continue", LAST.bytes, NOW + 20), SlotUsage(1, 0), PUT_OFF),
    (GroupTurn("continue", DEAD, NOW + 20), SlotUsage(1, 1, (LAST.bytes,)), "runs"),
    (GroupTurn("continue"), SlotUsage(1, 1, (LAST.bytes,)), "runs"),
])  # fmt: skip
def test_another_job_of_its_sequence_comes_first(place: GroupTurn, slots: SlotUsage, how: str) -> None:
    (reason,) = why(LimitFacts(group=slots, sequence=place))
    assert (reason.code, reason.advice) == ("sequence", f"pulse ctl jobs why {LAST}")
    assert reason.text == (
        f'The jobs of group "tenant-7" run one by one, in sequence; before it comes {LAST}, which {how}.'
    )
    assert (reason.details["is_running"], reason.details["put_off_until"] is None) == (how == "runs", "put" not in how)
    assert codes(LimitFacts(group=slots, sequence=place), next_run_at=NOW + 9) == ["not_due"]


def test_it_is_the_first_of_its_sequence() -> None:
    assert codes(LimitFacts(group=SlotUsage(1, 0), sequence=GroupTurn("halt"))) == ["ready"]


def test_a_dead_letter_halts_its_sequence() -> None:
    halted = LimitFacts(group=SlotUsage(1, 0), sequence=GroupTurn("halt", halted_by=LAST.bytes))
    (reason,) = why(halted)
    assert (reason.code, reason.details["dead_letter"]) == ("halted", LAST.bytes)
    assert reason.text == f'The sequence of group "tenant-7" is halted by a dead letter, {LAST}: nothing of it starts.'
    for command in (f"pulse ctl jobs retry {LAST}", f"pulse ctl jobs delete {LAST}", "sequence=continue"):
        assert command in reason.advice
    assert codes(halted, next_run_at=NOW + 9) == ["halted", "not_due"]


def test_its_place_in_its_group() -> None:
    (reason,) = why(before=3)
    assert (reason.code, reason.details) == ("behind", {"before": 3, "group_key": "tenant-7"})
    assert reason.text == (
        '3 jobs of group "tenant-7", topic "images", come first: of higher priority, or due earlier. '
        "The groups of a topic take turns."
    )
    ageing = replace(KNOWN, is_ageing=True)
    assert "topic ages" in why(before=3, known=ageing)[0].text
    in_sequence = LimitFacts(sequence=GroupTurn("halt", LAST.bytes), group=SlotUsage(1, 0))
    assert "topic ages" not in why(in_sequence, before=3, known=ageing)[1].text


def test_the_order() -> None:
    """What a person must end comes first, and what more workers do not help against before full workers."""
    slots = SlotUsage(1, 1, (LAST.bytes,), retry_s=3.0)
    limits = LimitFacts(total=slots, group=slots, sequence=GroupTurn("halt", halted_by=DEAD))
    assert codes(limits, known=served_by(FULL), before=2, paused_at=NOW) == [
        "paused", "halted", "limit_full", "sequence", "rate", "full", "behind",
    ]  # fmt: skip
    assert codes(structs.replace(limits, sequence=None)) == ["limit_full", "group_full", "rate"]
