"""What is decided about workers that let their leases run out."""

from __future__ import annotations

import pytest

from pulse_actors.dispatcher.deaths import stranger
from pulse_actors.dispatcher.silence import Verdict, judge
from pulse_actors.identity import Host

LEASE_S = 30.0
NOW_S = 1000.0


@pytest.mark.parametrize(
    ("beaten_ago_s", "extended_ago_s", "left_s", "awake_ago_s", "verdict"),
    [
        (25.0, 25.0, 5.0, 500.0, Verdict.HOLD),  # it missed a beat or two
        (29.9, 29.9, 0.1, 500.0, Verdict.HOLD),
        (30.0, 30.0, 0.0, 500.0, Verdict.KILL),
        (90.0, 90.0, 29.0, 500.0, Verdict.KILL),  # its lease was renewed in its stead
        (90.0, 90.0, -60.0, 5.0, Verdict.HOLD),  # who has just woken up has not heard what was said meanwhile
        (5.0, 5.0, 5.0, 500.0, Verdict.LEAVE),  # it beats, and does not list what runs out: that may run out
        (5.0, 5.0, -0.1, 500.0, Verdict.END),
        (5.0, 40.0, 5.0, 500.0, Verdict.HOLD),  # it beats, and the database did not take it
        (5.0, 40.0, -10.0, 500.0, Verdict.HOLD),
        (5.0, 24.0, 5.0, 500.0, Verdict.HOLD),  # what it listed then is what is about to run out
    ],
)
def test_verdicts(
    beaten_ago_s: float, extended_ago_s: float, left_s: float, awake_ago_s: float, verdict: Verdict
) -> None:
    """By its last beat, by the last one that the database took, and by what is left of its first lease."""
    worker = stranger(Host("h", "b", 1), "h/b/1/0.0/w", 0)
    worker.beaten_s, worker.extended_s = NOW_S - beaten_ago_s, NOW_S - extended_ago_s
    assert judge(worker, left_s=left_s, awake_s=NOW_S - awake_ago_s, now_s=NOW_S, lease_s=LEASE_S) is verdict
