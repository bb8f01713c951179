"""The turns of groups: what the next claim names, and what each answer does to that."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pytest

from pulse.store.limit_claims import Blocked, GroupHead
from pulse.store.rows import Claim, GroupLevel
from pulse_actors.dispatcher.claims import group_turns
from pulse_actors.dispatcher.claims.cursors import BACK_S
from pulse_actors.dispatcher.claims.group_turns import FIRST, NEVER, GroupTurns

A: Final = GroupLevel("t", "a", 0)
B: Final = GroupLevel("t", "b", 0)
PLAIN: Final = GroupLevel("t", None, 0)
OTHER: Final = GroupLevel("u", "a", 0)


def claim_of(level: GroupLevel, due_s: float = 100.0) -> Claim:
    return Claim(bytes(16), 1, "n", level.topic, "{}", None, level.priority, due_s, 0, 0, group_key=level.group)


class Turns(GroupTurns):
    """With shorter calls."""

    def __init__(self, *levels: GroupLevel, limits: Iterable[str] = ()) -> None:
        super().__init__(1.0)
        self.set_limits(dict.fromkeys(limits, "api"))
        for level in levels:
            self.learn(level, 50.0)

    def named(self, now_s: float = 0.0) -> list[GroupLevel]:
        return [level for level, _ in self.starts(["t", "u"], now_s)]

    def answer(
        self, *claims: Claim, blocked: Iterable[Blocked] = (), most: int = 10, is_full: bool = False, now_s: float = 0.0
    ) -> bool:
        starts, version = self.starts(["t", "u"], now_s), self.begin()
        return self.claimed(starts, claims, blocked, most=most, is_full=is_full, version=version, now_s=now_s)


def full(level: GroupLevel, *, of_limit: bool = False) -> Blocked:
    return Blocked(level, "full", None, of_limit)


def test_topics_take_turns_too_and_a_claim_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(A, B, OTHER)
    assert turns.named() == [A, OTHER, B]
    monkeypatch.setattr(group_turns, "LEVELS_MAX", 2)
    assert turns.named() == [A, OTHER]
    assert turns.starts(["u"], 0.0) == [(OTHER, 50.0 - BACK_S)]


def test_all_levels_of_a_group_are_named_the_best_first() -> None:
    low, high = A._replace(priority=-5), A._replace(priority=5)
    assert Turns(low, high, A, B).named() == [high, A, low, B]


def test_who_got_jobs_goes_behind_the_others() -> None:
    turns = Turns(A, B)
    assert turns.answer(claim_of(A), is_full=True)
    assert turns.named() == [B, A]


def test_a_level_without_jobs_is_forgotten_unless_it_got_some_since() -> None:
    turns = Turns(A, B)
    starts, version = turns.starts(["t"], 0.0), turns.begin()
    turns.learn(B)
    assert turns.claimed(starts, [], [], most=1, is_full=False, version=version, now_s=0.0)
    assert turns.named() == [B]
    assert not turns.answer()
    assert not turns.named()
    assert not turns.levels


@pytest.mark.parametrize(("most", "is_full", "left"), [(2, False, []), (1, False, [A]), (2, True, [A, B])])
def test_what_a_claim_has_not_emptied_stays(most: int, is_full: bool, left: list[GroupLevel]) -> None:
    turns = Turns(A, B)
    turns.answer(claim_of(A), most=most, is_full=is_full)
    assert sorted(turns.named()) == left


def test_under_a_limit_jobs_may_be_left_although_a_claim_was_not_full() -> None:
    """They had no slot: only a claim that takes nothing shows that there are none."""
    turns = Turns(A, B, limits="t")
    assert turns.answer(claim_of(A))
    assert turns.named() == [B, A]
    assert not turns.answer()
    assert not turns.named()


def test_a_full_group_waits_for_an_end_in_it() -> None:
    turns = Turns(A, B, limits="t")
    assert turns.answer(claim_of(B), blocked=[full(A)])
    turns.learn(A)
    assert turns.named(1e9) == [B]
    turns.freed("t", "b")
    assert turns.named(1e9) == [B]
    turns.freed("t", "a")
    assert turns.named() == [B, A]


@pytest.mark.parametrize("of_limit", [False, True])
def test_a_slot_that_is_freed_while_a_claim_runs_is_looked_at_again(of_limit: bool) -> None:
    """The claim may not have seen it yet."""
    turns = Turns(A, limits="t")
    starts, version = turns.starts("t", 0.0), turns.begin()
    turns.freed("t", "a")
    blocked = [full(A, of_limit=of_limit)]
    assert turns.claimed(starts, [], blocked, most=1, is_full=False, version=version, now_s=0.0)
    assert turns.named() == [A]
    assert not turns.answer(blocked=blocked)
    assert not turns.named(1e9)


def test_a_full_limit_closes_all_its_topics_and_no_others() -> None:
    turns = Turns(A, PLAIN, OTHER, limits="t")
    turns.answer(claim_of(OTHER), blocked=[full(A, of_limit=True), full(PLAIN, of_limit=True)], is_full=True)
    assert turns.named(1e9) == [OTHER]
    assert not turns.has_turns(["t"])
    turns.freed("u", "a")  # has no limit
    assert not turns.has_turns(["t"])
    turns.freed("t", None)
    assert turns.has_turns(["t"])
    assert set(turns.named()) == {A, PLAIN, OTHER}


@pytest.mark.parametrize("of_limit", [False, True])
@pytest.mark.parametrize(("verdict", "retry_s", "until_s"), [("rate", 3.0, 13.0), ("busy", None, 10.002)])
def test_a_token_or_a_turn_of_another_host_is_waited_for(
    of_limit: bool,
    verdict: str,
    retry_s: float | None,
    until_s: float,
) -> None:
    turns = Turns(A, limits="t")
    turns.answer(blocked=[Blocked(A, verdict, retry_s, of_limit)], now_s=10.0)
    turns.freed("t", "a")  # is no token
    assert turns.named(until_s - 0.001) == []
    assert turns.opens_s() == pytest.approx(until_s)
    assert turns.named(until_s) == [A]
    assert turns.opens_s() == NEVER


def test_what_was_closed_for_longer_meanwhile_does_not_open() -> None:
    turns = Turns(A, limits="t")
    turns.answer(blocked=[Blocked(A, "rate", 1.0, of_limit=False)])
    turns.set_limits(turns.limits)
    turns.answer(blocked=[Blocked(A, "rate", 5.0, of_limit=False)])
    assert not turns.named(2.0)
    assert turns.named(5.0) == [A]


def test_changed_policies_open_everything() -> None:
    turns = Turns(A, OTHER, limits="tu")
    turns.answer(blocked=[full(A), full(OTHER, of_limit=True)])
    turns.set_limits({"t": "api"})
    assert turns.named() == [A, OTHER]


def test_slots_are_told_once_unless_a_claim_here_takes_one() -> None:
    turns = Turns(A, limits="t")
    turns.freed("t", "a")
    assert (turns.has_left_slots(), turns.has_left_slots()) == (True, False)
    turns.freed("t", "a")
    turns.answer(claim_of(A))
    assert not turns.has_left_slots()


def test_claims_go_on_where_they_were_unless_an_earlier_job_came() -> None:
    turns = Turns(A)
    turns.answer(claim_of(A, 100.0), claim_of(A, 90.0), is_full=True)
    assert turns.starts("t", 0.0) == [(A, 100.0 - BACK_S)]
    turns.learn(A)
    assert turns.starts("t", 0.0) == [(A, 100.0 - BACK_S)]
    turns.learn(A, 70.0)
    turns.learn(A, 80.0)
    assert turns.starts("t", 0.0) == [(A, 70.0 - BACK_S)]


def test_a_job_that_came_just_now_is_found_by_the_last_seconds() -> None:
    turns = Turns()
    turns.learn(A)
    assert turns.starts("t", 0.0) == [(A, None)]
    turns.learn(A, 70.0)
    assert turns.starts("t", 0.0) == [(A, None)]
    turns.found(A, 70.0)
    assert turns.starts("t", 0.0) == [(A, 70.0 - BACK_S)]
    turns.answer(claim_of(A, 80.0), claim_of(B, 80.0), is_full=True)  # B is unknown: a race with its end
    assert turns.starts("t", 0.0) == [(A, 80.0 - BACK_S)]


def test_only_so_many_groups_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_turns, "MAX_LEVELS", 1)
    assert Turns(A, A._replace(priority=1), B).named() == [B]


def head(level: GroupLevel, *, is_due: bool = True, is_full: bool = False) -> GroupHead:
    return GroupHead(level, 50.0, is_due, is_full)


def test_a_survey_finds_what_may_start_here() -> None:
    turns = Turns()
    later, elsewhere = A._replace(group="later"), A._replace(topic="x")
    heads = [head(A), head(B, is_full=True), head(later, is_due=False), head(elsewhere)]
    turns.surveyed(heads, ["t", "u"], 0.0, 0.0)
    assert turns.starts(["t", "x"], 0.0) == [(A, 50.0 - BACK_S)]


def test_a_survey_opens_what_has_room_but_not_what_waits_for_a_token() -> None:
    turns = Turns(A, B, OTHER, limits="tu")
    turns.limits = {"t": "api", "u": "web"}
    turns.answer(blocked=[full(A), Blocked(B, "rate", 60.0, of_limit=False), full(OTHER, of_limit=True)])
    assert not turns.named()
    assert turns.survey_begins()
    assert turns.named() == [OTHER]
    turns.surveyed([head(A), head(B)], "t", 0.0, 0.0)
    assert turns.named() == [A, OTHER]


def test_a_survey_goes_on_where_a_part_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_turns, "SURVEY", 2)
    turns = Turns(A, limits="t")
    turns.answer(blocked=[full(A, of_limit=True)])
    assert turns.survey_from() == FIRST
    turns.survey_begins()
    turns.surveyed([head(OTHER), head(OTHER)], (), 0.0, 0.0)
    assert turns.survey_from() == OTHER
    turns.answer(blocked=[full(A, of_limit=True)])
    turns.want_survey()
    assert not turns.survey_begins()
    assert not turns.has_turns("t")  # only a whole survey looks at it again
    turns.surveyed([head(OTHER)], (), 0.0, 0.0)
    assert turns.survey_from() == FIRST
    assert turns.survey_at_s == 0.0  # it was wanted since


@pytest.mark.parametrize(("took_s", "wanted", "next_s"), [
    (0.0, False, 1.0), (0.0, True, 0.0), (0.04, False, 1.96), (0.04, True, 0.16),
    (0.1, False, 99.9), (0.1, True, 9.9), (100.0, True, 10.0), (100.0, False, 1000.0),
])  # fmt: skip
def test_surveys_take_a_share_of_the_time(took_s: float, wanted: bool, next_s: float) -> None:
    turns = Turns()
    turns.survey_begins()
    turns.surveyed([], (), 1000.0 - took_s, 1000.0)
    if wanted:
        turns.want_survey()
    assert turns.survey_at_s == pytest.approx(1000.0 + next_s)
