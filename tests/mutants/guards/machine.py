"""The restart machine of the supervisor: its conditions, and what it remembers and forgets."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_START: Final = "unit/test_supervisor_machine.py::TestStart::"
_SILENCE: Final = "unit/test_supervisor_machine.py::TestSilence::"
_RESTART: Final = "unit/test_supervisor_machine.py::TestRestart::"
_STOP: Final = "unit/test_supervisor_machine.py::TestStop::"
_TABLE: Final = "unit/test_supervisor_machine.py::TestTable::"

MACHINE: Final = Guarded(
    "pulse_supervisor.children.lifecycle",
    {
        _TABLE + "test_what_can_happen_when": [
            ("step", "handler is None", "False"),
            ("accepts", "type(event) in TABLE[state.phase]", "True"),
        ],
        _START + "test_a_want_of_descriptors_is_waited_for": [("_spawn_failed", "if event.passes:", "if False:")],
        _START + "test_waiting_for_settings_has_no_deadline": [
            ("ChildState.deadline_s", " if time_s is not None", ""),
            ("_greeted", "due_s=None", "due_s=state.due_s"),
        ],
        _START + "test_an_actor_goes_through_hello_and_settings_to_ready": [
            ("_spawned", "child.kind in {ChildKind.POOL, ChildKind.SERVICE}", "True"),
        ],
        _START + "test_a_pool_runs_as_soon_as_it_is_spawned": [
            ("_spawned", "child.kind in {ChildKind.POOL, ChildKind.SERVICE}", "False"),
            ("_spawned", "if child.limits", "if True"),
        ],
        _START + "test_a_busy_import_is_not_silence": [
            ("_spawned", "if child.limits", "if False"),
        ],
        _START + "test_no_hello_at_boot_stops_everything_with_a_reason": [
            ("_overdue", "if state.boot", "if False"),
            ("_spawned", "spawned_s=now_s, ", ""),
        ],
        _START + "test_a_restarted_actor_that_says_no_hello_is_one_more_death": [
            ("_overdue", "if state.boot", "if True"),
        ],
        _START + "test_only_the_first_start_is_a_boot": [
            ("_dead", "boot=False", "boot=state.boot"),
            ("_spawn", "boot=state.boot, ", ""),
        ],
        _START + "test_not_ready_at_boot_stops_everything_with_a_reason": [
            ("_briefed", "if state.boot else None", "if False else None"),
            ("_silent_or_overdue", "state.silent_by_s <= now_s", "True"),
        ],
        _START + "test_a_restarted_actor_may_prime_for_ever_as_long_as_it_answers": [
            ("_briefed", "if state.boot else None", "if True else None"),
            ("_pong", "state.phase is ChildPhase.RUNNING", "True"),
        ],
        _START + "test_priming_may_be_slow_but_not_silent": [
            ("_briefed", "now_s + child.limits.priming_pong_s", "None"),
            ("_briefed", "priming_pong_s", "pong_s"),
        ],
        _START + "test_a_database_that_is_ready_may_be_silent": [
            ("_ready", "if child.limits", "if True"),
            ("_ready", "due_s=None", "due_s=1.0"),
        ],
        _SILENCE + "test_a_silent_actor_is_killed_and_started_again": [
            ("_ready", "if child.limits", "if False"),
            ("_silent_or_overdue", "state.silent_by_s is not None and state.silent_by_s <= now_s", "False"),
            ("_kill", "silent_by_s=None", "silent_by_s=state.silent_by_s"),
            ("_kill", "again=True", "again=False"),
            ("_kill", "child.at_once[-1:]", "child.stop"),
        ],
        _SILENCE + "test_a_database_that_misbehaves_is_killed_at_once": [
            ("_kill", "child.at_once[-1:]", "child.at_once"),
        ],
        _SILENCE + "test_every_pong_buys_three_seconds": [
            ("_pong", "state.phase is ChildPhase.RUNNING", "False"),
            ("_pong", "event.turn_age_s > child.limits.turn_s", "True"),
        ],
        _SILENCE + "test_a_stuck_turn_is_as_bad_as_silence": [
            ("_pong", "event.turn_age_s > child.limits.turn_s", "False"),
        ],
        _SILENCE + "test_a_long_turn_is_not_stuck_yet": [
            ("_pong", "event.turn_age_s > child.limits.turn_s", "event.turn_age_s >= child.limits.turn_s"),
        ],
        _SILENCE + "test_the_supervisors_own_sleep_is_nobodys_fault": [
            ("_slept", "state.silent_by_s + event.slept_s", "state.silent_by_s"),
            ("_slept", "None if state.due_s is None else ", ""),
        ],
        _SILENCE + "test_sleep_moves_every_deadline_and_makes_none": [
            ("_slept", "state.due_s + event.slept_s", "state.due_s"),
            ("_slept", "None if state.silent_by_s is None else ", ""),
        ],
        _SILENCE + "test_a_kill_for_silence_counts_against_the_intensity": [
            ("_ended", "state.fault is None", "True"),
            ("_kill", "fault=fault", "fault=None"),
        ],
        _RESTART + "test_six_deaths_in_a_minute_stop_everything_with_70": [
            ("_restart", "log.exceeds(child.intensity)", "False"),
            ("_spawn", ", log=state.log", ""),
        ],
        _RESTART + "test_deaths_that_are_far_apart_never_stop_anything": [
            ("_restart", "log.exceeds(child.intensity)", "True"),
            ("_dead", ", restarts=state.restarts", ""),
        ],
        _RESTART + "test_the_second_restart_waits_a_little": [
            ("_restart", "delay_s == 0", "True"),
            ("_restart", ", due_s=now_s + delay_s", ""),
        ],
        _RESTART + "test_the_first_restart_waits_for_nothing": [
            ("_restart", "delay_s == 0", "False"),
        ],
        _RESTART + "test_exit_code_78_stops_everything_with_the_childs_own_words": [
            ("_died", "event.code in {CHILD_REFUSES, CHILD_MEETS_POOLER}", "event.code == CHILD_MEETS_POOLER"),
            ("_died", "EXIT_CONFIG if event.code == CHILD_MEETS_POOLER else EXIT_REFUSED", "EXIT_CONFIG"),
            ("_died", "state.fault or ", ""),
            ("_refused", "fault=event.message", "fault=None"),
        ],
        _RESTART + "test_exit_code_76_is_told_to_the_service_manager_as_one_that_does_not_pass": [
            ("_died", "event.code in {CHILD_REFUSES, CHILD_MEETS_POOLER}", "event.code == CHILD_REFUSES"),
            ("_died", "EXIT_CONFIG if event.code == CHILD_MEETS_POOLER else EXIT_REFUSED", "EXIT_REFUSED"),
        ],
        _RESTART + "test_exit_code_78_without_a_word_still_has_a_clear_line": [
            ("_died", ' or f"{child.name} refuses to run (exit code {event.code})"', ' or ""'),
        ],
        _RESTART + "test_the_database_is_no_reason_to_give_up": [
            ("_died", "event.code == CHILD_LACKS_DATABASE", "False"),
        ],
        _RESTART + "test_a_hopeless_end_stops_everything": [
            ("_died", "if event.hopeless or ", "if "),
            ("_died", "= event.hopeless or ", "= "),
        ],
        _RESTART + "test_a_transient_child_that_ends_well_stays_away": [
            ("_died", "child.restart.applies(normal=event.code == 0)", "True"),
            ("_died", "event.code == 0", "False"),
        ],
        _RESTART + "test_a_transient_child_that_fails_comes_back": [
            ("_died", "event.code == 0", "True"),
        ],
        _RESTART + "test_a_restart_that_was_asked_for_counts_for_nothing": [
            ("_ended", "state.fault is None", "False"),
            ("_ended", "replace(state, boot=False)", "state"),
            ("_spawn", "if state.boot", "if False"),
            ("_restart_asked", "again=True", "again=False"),
        ],
        _RESTART + "test_what_it_said_before_is_no_fault_of_a_restart_that_was_asked_for": [
            ("_stop", "fault=None, ", ""),
        ],
        _RESTART + "test_a_stop_does_not_wipe_out_what_counts": [
            ("_dead", ", log=state.log", ""),
        ],
        _RESTART + "test_stop_wins_over_restart": [
            ("_stop_for_good", "again=False", "again=True"),
            ("_ended", "not state.again", "False"),
        ],
        _RESTART + "test_restarts_are_counted_from_the_second_start_on": [
            ("_spawn", "if state.boot", "if True"),
        ],
        _STOP + "test_an_actor_is_asked_then_told_then_killed": [
            ("_stop", "state.phase is ChildPhase.RUNNING", "False"),
            ("_stop", "rung.signal is not None or ", "rung.signal is not None and "),
            ("_climb", "rung.signal is None", "False"),
            ("_climb", "rungs=rungs, due_s=now_s + rung.wait_s)", "rungs=state.rungs, due_s=now_s + rung.wait_s)"),
        ],
        _STOP + "test_an_actor_that_is_not_ready_is_not_asked": [
            ("_stop", "state.phase is ChildPhase.RUNNING", "True"),
            ("_stop", " if rung.signal is not None or listens", ""),
        ],
        _STOP + "test_who_stops_may_be_silent": [
            ("_stop", ", silent_by_s=None", ""),
            ("_stop_now", ", silent_by_s=None", ""),
        ],
        _STOP + "test_stop_is_for_good": [
            ("_stop", "again=False", "again=True"),
            ("_stop_now", "again=False, ", ""),
        ],
        _STOP + "test_at_once_may_have_to_wait": [
            ("_stop_now", "event.not_before_s > now_s", "False"),
            ("_stop_now", "if not rungs:", "if False:"),
            ("_stop_now", ", due_s=event.not_before_s", ""),
        ],
        _STOP + "test_at_once_means_sigkill_for_an_actor": [
            ("_stop_now", "child.at_once", "child.stop"),
        ],
        _STOP + "test_at_once_goes_on_where_the_patient_ladder_stands": [
            ("_stop_now", " if rung.signal not in state.sent", ""),
            ("_climb", ", sent=sent", ""),
            ("_stop_now", "event.not_before_s > now_s", "True"),
            ("_climb", "(*state.sent, rung.signal)", "(rung.signal,)[:0]"),
        ],
        _STOP + "test_who_is_told_again_is_not_asked_again": [
            ("_climb", "(*state.sent, rung.signal)", "(rung.signal,)"),
        ],
        _STOP + "test_what_survives_sigkill_is_reported_and_not_waited_for": [
            ("_next_rung", "if state.rungs:", "if True:"),
            ("_next_rung", "if state.again:", "if True:"),
            ("_next_rung", "phase=ChildPhase.FAILED, ", ""),
        ],
        _STOP + "test_nothing_is_started_beside_a_process_that_cannot_be_killed": [
            ("_next_rung", "if state.again:", "if False:"),
            ("_unkillable_died", "ChildPhase.FAILED", "ChildPhase.WAITING"),
        ],
        _STOP + "test_postgres_is_stopped_fast_then_immediately_then_by_force": [
            ("_next_rung", "if state.rungs:", "if False:"),
            ("_climb", "rungs=rungs, due_s=now_s + rung.wait_s, sent", "due_s=now_s + rung.wait_s, sent"),
        ],
    },
    without={
        ("_briefed", "child.limits is not None"): "an assertion for the type checkers; no other child is greeted",
        ("_pong", "child.limits is not None"): "an assertion for the type checkers; no other child is pinged",
    },
)
