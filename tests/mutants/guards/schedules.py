"""Schedules: which wall-clock times are which instants, which missed occurrences fire, and when a scheduler rests."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_CRON: Final = "unit/test_cron.py::"
_CATCH_UP: Final = "unit/test_catchup.py::"
_CATCHING_UP: Final = "store/test_catching_up.py::"
_TURNS: Final = "store/test_actor_turns.py::"

CRON: Final = Guarded(
    "pulse_actors.shared.cron",
    {
        _CRON + "test_days_on_which_the_clock_changes": [
            ("_is_interval", ' or "/" in field', ""),
            ("_is_interval", "[:-3]", "[:1]"),
            ("_Clock.after", " if self.repeats else None", ""),
            ("_Clock._once", "if before_s < after_s:", "if False:"),
            ("_Clock._once", "if found - before_s > unix_s:", "if True:"),
        ],
        _CRON + "test_bad_zones_are_refused": [
            ("_zone", "name not in _NO_ZONES and ", ""),
            ("_zone", " and not name.startswith(_NO_TREES)", ""),
        ],
        _CRON + "test_many_times_that_exist_twice": [
            ("_is_interval", '"*" in field or ', ""),
            ("_Clock._again", "not after_s < before_s == offset_s", "True"),
        ],
    },
    is_part=True,
)

CATCH_UP: Final = Guarded(
    "pulse_actors.scheduler.catchup",
    {
        _CATCH_UP + "test_what_was_reckoned_for_another_cursor_is_not_believed": [
            ("_is_known", " and late_us <= GRACE_S * 1e6", ""),
        ],
        _CATCH_UP + "test_what_was_not_reckoned_yet_is": [
            ("_is_known", " and due.is_reckoned", ""),
        ],
        _CATCH_UP + "test_skip": [
            ("firing_of", 'due.catch_up == "skip" and _late_us(due, fires_us) > GRACE_S * 1e6', "False"),
            ("firing_of", " and _late_us(due, fires_us) > GRACE_S * 1e6", ""),
        ],
        _CATCH_UP + "test_skip_leaves_what_its_jitter_puts_off": [
            ("firing_of", "_late_us(due, fires_us) > GRACE_S", "_late_us(due, cursor_us) > GRACE_S"),
        ],
        _CATCH_UP + "test_latest": [
            ("firing_of", "following_us is not None and _is_due(due, following_us)", "False"),
        ],
        _CATCH_UP + "test_all": [
            ("_of_missed", 'MAX_CATCH_UP if due.catch_up == "all" else 1', "1"),
            ("_of_missed", "[-limit:]", ""),
            ("_of_missed", "rule.at_most(cursor_us, due.now_us) <= limit", "True"),
        ],
        _CATCH_UP + "test_all_goes_through_nothing": [
            ("_of_missed", "rule.at_most(cursor_us, due.now_us) <= limit", "False"),
        ],
        _CATCH_UP + "test_jitter": [
            ("_late_us", "jittered_us(due.id, occurrence_us, due.jitter_s)", "occurrence_us"),
            ("_of_missed", "limit + _UNDUE", "limit"),
            ("_of_missed", "takewhile(lambda one: _is_due(due, one), near)", "near"),
        ],
        _CATCH_UP + "test_occurrences_fire_in_their_order": [
            ("_of_missed", "takewhile(", "filter("),
        ],
        _CATCH_UP + "test_a_jitter_longer_than_the_interval": [
            ("rule_of", "rule.check_jitter()", "pass"),
        ],
    },
    is_part=True,
)

SCHEDULER: Final = Guarded(
    "pulse_actors.scheduler.actor",
    {
        _TURNS + "test_a_cursor_that_was_set_back_does_not_fire_twice": [
            ("Scheduler._tell", " and one.level is not None", ""),
        ],
        _TURNS + "test_long_firing_is_cut_into_turns": [
            ("Scheduler.turn", " and monotonic() <= end_s", ""),
        ],
        _TURNS + "test_schedules_that_are_refused_stop_no_others": [
            ("Scheduler._due", "(others or [due[one] for one in self._refused])", "[*due.values()]"),
            ("Scheduler._due", "FIRE_LIMIT + len(self._refused)", "FIRE_LIMIT"),
        ],
        _TURNS + "test_few_are_tried_where_each_is_refused": [
            ("Scheduler._fire_readable", "self._in_vain += 1", "pass"),
        ],
        _TURNS + "test_what_is_refused_keeps_nobody_from_being_reckoned": [
            ("Scheduler.turn", "if work.reckon:", "if False:"),
        ],
        _CATCHING_UP + "test_a_queue_lets_short_jobs_go_soon": [
            ("Scheduler._release", "SOON_S if released else", ""),
            ("Scheduler._release", "min(WAIT_S, 2 * self._wait_s)", "WAIT_S"),
            ("Scheduler._release", "min(WAIT_S, 2 * self._wait_s)", "2 * self._wait_s"),
            ("_pause_s", "wait_s if work.waiting else LOOK_S", "LOOK_S"),
        ],
    },
    is_part=True,
)
