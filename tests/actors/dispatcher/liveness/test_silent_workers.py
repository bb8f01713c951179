"""Decisions about workers that let their leases run out."""

from __future__ import annotations

import pytest

from pulse_actors.dispatcher.liveness.process_watch import stranger
from pulse_actors.dispatcher.liveness.silent_workers import LeaseAction, judge
from pulse_actors.shared.identity import Host

LEASE_S = 30.0
NOW_S = 1000.0


@pytest.mark.parametrize(("beaten_ago_s", "awake_ago_s", "verdict"), [
    (0.0, 500.0, LeaseAction.LEAVE),
    (20.9, 500.0, LeaseAction.LEAVE),
    (21.0, 500.0, LeaseAction.HOLD),  # it missed two beats
    (29.9, 500.0, LeaseAction.HOLD),
    (30.0, 500.0, LeaseAction.KILL),
    (90.0, 5.0, LeaseAction.HOLD),  # who has just woken up has not heard what was said meanwhile
    (90.0, 30.0, LeaseAction.KILL),
])  # fmt: skip
def test_verdicts(beaten_ago_s: float, awake_ago_s: float, verdict: LeaseAction) -> None:
    worker = stranger(Host("h", "b", 1), "h/b/1/0.0/w", 0)
    worker.contact.beaten_s = worker.contact.extended_s = NOW_S - beaten_ago_s
    assert judge(worker, awake_s=NOW_S - awake_ago_s, now_s=NOW_S, lease_s=LEASE_S) is verdict
