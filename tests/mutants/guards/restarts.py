"""When a process that died comes back: which ends, how often, how soon."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_POLICY: Final = "unit/test_supervisor_policy.py::"

RESTARTS: Final = Guarded(
    "pulse.system.restart_policy",
    {
        _POLICY + "test_restart_kinds_are_those_of_otp": [
            ("Restart.applies", "self is Restart.PERMANENT or ", ""),
            ("Restart.applies", "self is Restart.PERMANENT", "True"),
            ("Restart.applies", "self is Restart.TRANSIENT and ", ""),
            ("Restart.applies", " and not normal", ""),
        ],
        _POLICY + "test_the_first_restart_is_immediate_and_later_ones_wait_longer_up_to_a_bound": [
            ("Delay.after", "earlier <= 0", "False"),
            ("Delay.after", "earlier <= 0", "earlier <= 1"),
            ("Delay.after", "min(self.longest_s, self.first_s * 2.0 ** min(earlier - 1, 30))", "self.first_s"),
        ],
        _POLICY + "test_a_delay_stays_bounded_however_many_came_before": [
            ("Delay.after", "min(earlier - 1, 30)", "(earlier - 1)"),
            ("Delay.after", "min(self.longest_s, ", "max(self.longest_s, "),
        ],
        _POLICY + "test_restarts_that_left_the_window_do_not_count": [
            ("RestartLog.record", " if now_s - at_s < intensity.window_s", ""),
            ("RestartLog.record", "now_s - at_s < intensity.window_s", "now_s - at_s <= intensity.window_s"),
            ("RestartLog.record", "now_s - at_s < intensity.window_s", "False"),
        ],
        _POLICY + "test_five_restarts_in_the_window_are_recovery_and_six_are_a_loop": [
            ("RestartLog.exceeds", "> intensity.max_restarts", ">= intensity.max_restarts"),
            ("RestartLog.exceeds", "len(self.at_s) > intensity.max_restarts", "False"),
        ],
    },
)
