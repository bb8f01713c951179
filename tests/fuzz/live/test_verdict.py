"""The verdict on an attack: each rule can fail."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.fuzz.live.gauges import Turns, Use, Window
from tests.fuzz.live.verdict import Measured, judge, most_at_once

MIB = 1024 * 1024
QUIET = {what: [0.002] * 99 + [0.004] for what in ("submit", "get", "job")}
GOOD = Measured(
    before={"dispatcher": Use(50 * MIB, 30)}, after={"dispatcher": Use(69 * MIB, 37)}, peak_bytes=80 * MIB,
    quiet=QUIET, attacked={"attacked": {what: [0.003] * 98 + [0.008] * 2 for what in QUIET}},
    pids=({"supervisor": 1, "dispatcher": 2}, {"supervisor": 1, "dispatcher": 2}), frames=1000, wanted=1000,
    connections=10,
)  # fmt: skip


def broken(found: Measured) -> list[str]:
    return [rule.what for rule in judge(found) if not rule.holds]


def test_all_is_well() -> None:
    assert broken(GOOD) == []
    assert all(rule.line().startswith("ok") for rule in judge(GOOD))


@pytest.mark.parametrize(("rule", "changes"), [
    ("frames that were read", {"frames": 999}),
    ("deaths of supervisor and actors", {"restarts": 1}),
    ("deaths of supervisor and actors", {"pids": ({"supervisor": 1, "pause": 2}, {"supervisor": 1, "pause": 3})}),
    ("deaths of supervisor and actors", {"pids": ({"supervisor": 1, "pause": 2}, {"supervisor": 1})}),
    ("memory of dispatcher", {"after": {"dispatcher": Use(71 * MIB, 30)}}),
    ("descriptors of dispatcher", {"after": {"dispatcher": Use(50 * MIB, 39)}}),
    ("p99 of get, attacked", {"attacked": {"attacked": {**QUIET, "get": [0.002] * 98 + [0.0081] * 2}}}),
    ("p99 of job, attacked", {"attacked": {"attacked": {"submit": [0.001], "get": [0.001]}}}),
    ("jobs lost or changed", {"jobs": ["gone"]}),
    ("jobs at once, in all", {"limit": [("in all", 3, 2)]}),
    ("jobs at once, of a group", {"limit": [("in all", 2, 2), ("of a group", 0, 1)]}),
    ("violations found by pulse check", {"checked": ["leases: wrong"]}),
    ("answers `internal`", {"complaints": [{"message": "no"}]}),
    ("exceptions in the log", {"unforeseen": ["visit_failed"]}),
])  # fmt: skip
def test_each_rule_can_be_broken(rule: str, changes: dict[str, Any]) -> None:
    assert broken(dataclasses.replace(GOOD, **changes)) == [rule]


def test_without_a_bar_latencies_are_told_only() -> None:
    """The short form measures them, and requires nothing."""
    slow = {"attacked": {what: [9.0] for what in QUIET}}
    assert broken(dataclasses.replace(GOOD, attacked=slow, times=None)) == []


def test_how_many_ran_at_once() -> None:
    first, second, third, last = (datetime(2030, 1, 1, 0, 0, second, tzinfo=UTC) for second in range(4))
    assert most_at_once([]) == 0
    assert most_at_once([(first, second), (second, third), (third, last)]) == 1
    assert most_at_once([(second, third), (first, last)]) == 2
    assert most_at_once([(first, third), (second, last), (third, last)]) == 2


def test_an_attack_rests() -> None:
    """Every process computes the same rests from the same clock; only whole ones are quiet, from their settling on."""
    turns = Turns(begin_s=100.0, attack_s=30.0, rest_s=10.0, settle_s=4.0)
    assert [turns.left_s(at_s) for at_s in (100.0, 129.9, 130.0, 139.0, 140.0, 175.0)] == [
        0.0, 0.0, 10.0, 1.0, 0.0, 5.0,
    ]  # fmt: skip
    first, second = Window(100.0, 130.0), Window(140.0, 170.0)
    assert turns.windows(120.0) == ([Window(100.0, 120.0)], [])
    assert turns.windows(139.9) == ([first], [])
    assert turns.windows(140.0) == ([first], [Window(134.0, 140.0)])
    assert turns.windows(190.0) == ([first, second, Window(180.0, 190.0)], [Window(134.0, 140.0), Window(174.0, 180.0)])
