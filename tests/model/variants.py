"""Which models must hold, and which must not: each guard taken out in turn, with the property that then breaks."""

from __future__ import annotations

from typing import Final

from tests.model.spin import FOR_EVER, Variant

HOLD: Final = (
    Variant("fence", floor=500_000),
    Variant("fence", ("CLAIMS=2", "FENCE_WITHOUT_STATUS"), floor=10_000),  # the CHECK on the lease replaces it
    Variant("reconnect", ("CANCELS=1",), floor=500_000),
    Variant("reconnect", ("FAULTS=3",), floor=400_000),
    Variant("reconnect", ("FAULTS=1", "CANCELS=1", "ELSEWHERE", "NO_KILLS"), floor=50_000),
    Variant("reconnect", ("NOTHING_IS_LATE", "NO_DOUBTS"), floor=15_000),  # doubts are for what commits late
    Variant("ladder", floor=20_000),
    Variant("ladder", ("OTHER_USER",), floor=50_000),
    Variant("ladder", ("IN_A_CHILD",), floor=2_000),
    Variant("ladder", ("ONE_HOST", "HANDS_OUT_BLINDLY"), floor=10_000),  # only other hosts end what lives here
    Variant("ladder", live=True, floor=40_000),
    Variant("ladder", ("OTHER_USER",), live=True, floor=80_000),
    Variant("ladder", ("ONE_HOST",), live=True, floor=20_000),
    Variant("outage", floor=100_000),
    Variant("outage", ("OUTAGES=0", "STEPS=2", "RESTARTS=0"), floor=300_000),
    Variant("outage", ("OUTAGES=0", "LOCKS=1"), floor=100_000),
    Variant("outage", live=True, floor=150_000),
    Variant("epoch", ("RESTORES=2",), floor=300_000),
    Variant("epoch", ("TICKS=2",), floor=50_000),
    Variant("epoch", ("CUTS=1",), floor=250_000),
    Variant("epoch", ("RESTARTS=1", "TICKS=2"), floor=50_000),
    Variant("epoch", ("JOINS",), floor=10_000),
    Variant("epoch", ("IN_PLACE", "TICKS=2"), floor=5_000),
    Variant("limits", floor=40_000),
    Variant("limits", ("CHANGES=3",), floor=100_000),
    Variant("limits", ("CHANGES=1", "CLAIMS=3"), floor=500_000),
    Variant("limits", ("SEQUENCE", "CLAIMS=3"), floor=8_000),
    Variant("signals", floor=200_000),
    Variant("joins", floor=300),
    Variant("joins", ("NO_HAND", "NOBODY_WALKS"), floor=100),  # the walk is for what pulse has not ended itself
)

BREAK: Final = (
    # Fence, token, endings.
    Variant("fence", ("FENCE_ON_OWNER_ONLY",), "stale_writes_change_nothing"),
    Variant("fence", ("FENCE_ON_ATTEMPT_ONLY",), "stale_writes_change_nothing"),
    Variant("fence", ("FENCE_ON_ATTEMPT_ONLY",), "terminal_is_final"),
    Variant("fence", ("FENCE_ON_ATTEMPT_ONLY",), "a_job_is_completed_once"),
    Variant("fence", ("ROW_KEEPS_ITS_LEASE", "FENCE_WITHOUT_STATUS"), "stale_writes_change_nothing"),
    Variant("fence", ("FENCE_WITHOUT_OWNER",), "stale_writes_change_nothing"),
    Variant("fence", ("ROW_KEEPS_ITS_LEASE",), "running_means_leased"),
    Variant("fence", ("RETRY_RESETS_ATTEMPTS",), "the_token_grows_by_one"),
    Variant("fence", ("RETRY_RESETS_ATTEMPTS",), "stale_writes_change_nothing"),
    Variant("fence", ("GIVE_BACK_LOWERS_ATTEMPTS",), "stale_writes_change_nothing"),
    Variant("fence", ("GIVE_BACK_IS_CHARGED",), "budgets_are_kept"),
    Variant("fence", ("REAP_WITHOUT_LOOKING_AGAIN",), "only_lapsed_leases_are_reaped"),
    Variant("fence", ("TAKEN_WITHOUT_ATTEMPT",), "a_taken_report_completed_it"),
    # Claims, hello, reports, deaths, an operator.
    Variant(
        "reconnect", ("NOTHING_IS_LATE", "NO_DOUBTS", "HELLO_GIVES_NOTHING_BACK"), "no_attempt_waits_for_its_lease"
    ),
    Variant("reconnect", ("HELLO_IGNORES_REPORTS",), "finished_work_counts"),
    Variant("reconnect", ("HELLO_WITHOUT_LOCK",), "one_attempt_runs_at_a_time"),
    Variant("reconnect", ("NO_DOUBTS",), "no_attempt_waits_for_its_lease"),
    Variant("reconnect", ("DOUBT_ONCE",), "no_attempt_waits_for_its_lease"),
    Variant("reconnect", ("GIVES_BACK_WHAT_IS_HELD",), "what_is_held_is_not_given_back"),
    Variant("reconnect", ("LOCK_IS_KEPT",), "no_job_is_left_waiting"),
    Variant("reconnect", ("OBITUARY_BEFORE_LAST_WORDS",), "finished_work_counts"),
    Variant("reconnect", ("OBITUARY_BEFORE_REPORTS",), "finished_work_counts"),
    Variant("reconnect", ("NAMED_AFTER_CALL",), "a_started_attempt_is_charged"),
    Variant("reconnect", ("CHARGES_THE_WAITING",), "a_waiting_attempt_is_not_charged"),
    Variant("reconnect", ("CANCELS=1", "RETRY_WHILE_HELD"), "one_attempt_runs_at_a_time"),
    Variant("reconnect", ("CANCELS=1", "RETRY_WHILE_ABSENT"), "one_attempt_runs_at_a_time"),
    Variant("reconnect", ("CANCELS=1", "ELSEWHERE", "NO_KILLS", "HANDS_OUT_BLINDLY"), "one_attempt_runs_at_a_time"),
    Variant("reconnect", ("CANCELS=1", "FENCE_ON_OWNER_ONLY"), "completed_work_was_done"),
    # Kill, then requeue.
    Variant("ladder", ("REAP_BEFORE_DEATH",), "hosts_overlap_only_after_a_lapse"),
    Variant("ladder", ("ONE_HOST", "HANDS_OUT_BLINDLY", "REAP_BEFORE_DEATH"), "one_attempt_runs_on_a_host"),
    Variant("ladder", ("RELEASE_BEFORE_DEATH",), "hosts_overlap_only_after_a_lapse"),
    Variant("ladder", ("ONE_HOST", "HANDS_OUT_BLINDLY", "RELEASE_BEFORE_DEATH"), "one_attempt_runs_on_a_host"),
    Variant("ladder", ("REAPS_THE_LIVING",), "hosts_overlap_only_after_a_lapse"),
    Variant("ladder", ("ONE_HOST", "HANDS_OUT_BLINDLY", "REAPS_THE_LIVING"), "one_attempt_runs_on_a_host"),
    Variant("ladder", ("REAP_WITHOUT_LOOKING_AGAIN",), "only_lapsed_leases_are_reaped"),
    Variant("ladder", ("NO_RENEWAL",), "a_silent_worker_keeps_its_lease"),
    Variant("ladder", ("RENEWAL_AFTER_LAPSE",), "a_silent_worker_keeps_its_lease"),
    Variant("ladder", ("HOLDS_BY_SILENCE",), "a_silent_worker_keeps_its_lease"),
    Variant("ladder", ("STRANGERS_ARE_FORGOTTEN",), "a_silent_worker_keeps_its_lease"),
    Variant("ladder", ("HANDS_OUT_BLINDLY",), "one_attempt_runs_on_a_host"),
    Variant("ladder", ("IN_A_CHILD", "GROUP_LIVES_ON"), "one_attempt_runs_on_a_host"),
    Variant("ladder", ("NEVER_KILLS",), FOR_EVER, live=True),
    Variant("ladder", ("ONE_HOST", "STRANGERS_ARE_FORGOTTEN"), FOR_EVER, live=True),
    # No mass reaping. A gap of 6 is the whole lease, 3 what a beat leaves of it.
    Variant("outage", ("NO_GUARD",), "a_beating_worker_is_not_reaped"),
    Variant("outage", ("GAP=6",), "a_beating_worker_is_not_reaped"),
    Variant("outage", ("GAP=4",), "a_beating_worker_is_not_reaped"),
    Variant("outage", ("WAIT_IN_MEMORY",), "a_beating_worker_is_not_reaped"),
    Variant("outage", ("WATCHDOGS=1", "WAIT_IN_MEMORY"), "a_beating_worker_is_not_reaped"),
    Variant("outage", ("OUTAGES=0", "STEPS=2", "RESTARTS=0", "CLOCK_IS_TRUSTED"), "a_beating_worker_is_not_reaped"),
    Variant("outage", ("WAITS_ONE_SWEEP",), "a_beating_worker_is_not_reaped"),
    Variant("outage", ("REAPS_AS_OF_NOW",), "a_beating_worker_is_not_reaped"),
    Variant("outage", ("OUTAGES=0", "LOCKS=1", "MARKS_UNDER_A_LOCK"), "a_beating_worker_is_not_reaped"),
    Variant("outage", ("GAP=6", "SWEEP=4"), "a_beating_worker_is_not_reaped"),  # sweeps too rare for any gap: not safe
    Variant("outage", ("WATCHDOGS=1", "SWEEP=4"), FOR_EVER, live=True),  # ... or nothing is ever reaped
    # The database goes back.
    Variant("epoch", ("FLOOR_STAYS",), "no_pair_is_handed_out_twice"),
    Variant("epoch", ("FLOOR_STAYS",), "a_report_closes_its_own_run"),
    Variant("epoch", ("FLOOR_FOR_OLD_ROWS_ONLY",), "no_pair_is_handed_out_twice"),  # a job that is submitted again
    Variant("epoch", ("PAIRS_ARE_FORGOTTEN",), "no_pair_is_handed_out_twice"),  # what was lost is younger than a tick
    Variant("epoch", ("IN_PLACE", "CLAIMS_WITHOUT_COUNTER"), "no_pair_is_handed_out_twice"),
    Variant("epoch", ("IN_PLACE", "CLAIMS_WITHOUT_COUNTER"), "a_report_closes_its_own_run"),
    Variant("epoch", ("RESTORES=2", "COMES_BLINDLY"), "no_pair_is_handed_out_twice"),
    Variant("epoch", ("IN_PLACE", "TICKS=2", "TICKS_BLINDLY"), "no_pair_is_handed_out_twice"),
    Variant("epoch", ("NO_GATE",), "no_pair_is_handed_out_twice"),
    Variant("epoch", ("NO_GATE",), "hosts_overlap_only_after_a_cut"),
    Variant("epoch", ("GATE_OF_EPOCHS_ONLY",), "hosts_overlap_only_after_a_cut"),
    Variant("epoch", ("IN_PLACE", "GATE_OF_LOOKS_ONLY"), "hosts_overlap_only_after_a_cut"),
    Variant("epoch", ("JOINS", "PEERS_ARE_FORGOTTEN"), "hosts_overlap_only_after_a_cut"),
    Variant("epoch", ("NOTHING_IS_PUT_OFF",), "hosts_overlap_only_after_a_cut"),
    Variant("epoch", ("CUTS=1", "HANDS_OUT_BLINDLY"), "one_attempt_runs_on_a_host"),
    Variant("epoch", ("REMEMBERED_BEFORE_COMMIT",), "no_epoch_without_cause"),
    Variant("epoch", ("RESTARTS=1", "TICKS=2", "LOST_PAIRS_COUNT"), "no_epoch_without_cause"),
    Variant("epoch", ("ROWS_STAY_RUNNING",), "no_attempt_waits_for_its_lease"),
    Variant("epoch", ("LOOKS_AT_PAIRS_ONLY",), "no_attempt_waits_for_its_lease"),
    Variant("epoch", ("CUTS=1", "GATE_WITHOUT_END"), "every_job_ends"),
    Variant("epoch", ("JUMP_IS_CHARGED",), "a_lost_attempt_is_not_charged"),
    # Limits: old snapshots, and claims that do not know the limit yet.
    Variant("limits", ("CLAIMS_ARE_NOT_COMPARED",), "no_more_run_than_the_limit"),
    Variant("limits", ("ROW_IS_NOT_LOCKED",), "no_more_run_than_the_limit"),
    Variant("limits", ("TABLE_IS_NOT_LOCKED",), "what_runs_is_counted"),
    Variant("limits", ("SEQUENCE", "HEAD_IS_SKIPPED"), "a_sequence_is_in_order"),
    Variant("limits", ("SEQUENCE", "SEQUENCE_WITHOUT_SLOT"), "a_sequence_is_in_order"),
    # Signals: the commit of a sender beside the end of an attempt that waits.
    Variant("signals", ("COUNT_IS_NOT_COMPARED",), "nobody_waits_beside_a_signal"),
    Variant("signals", ("COUNT_IS_READ_LATER",), "nobody_waits_beside_a_signal"),
    Variant("signals", ("SIGNAL_WAKES_NOBODY",), "nobody_waits_beside_a_signal"),
    Variant("signals", ("HAD_ARE_FORGOTTEN",), "each_signal_goes_to_one_wait"),
    Variant("signals", ("DECISION_IS_NOT_KEPT",), "a_wait_keeps_what_it_got"),
    Variant("signals", ("CHECKPOINTS_ARE_NOT_FENCED",), "a_wait_keeps_what_it_got"),
    Variant("signals", ("OVER_FOR_ALL",), "a_wait_has_its_time"),
    # Dependencies: the commit of a child beside the ends of its parents.
    Variant("joins", ("NO_HAND", "NOBODY_WALKS", "JOINS_WITHOUT_LOOK"), "no_child_waits_for_ever"),
    Variant("joins", ("NO_HAND", "NOBODY_WALKS", "JOINS_WITHOUT_LOCK"), "no_child_waits_for_ever"),
    Variant("joins", ("NO_HAND", "NOBODY_WALKS", "SETTLES_BY_THE_SNAPSHOT"), "no_child_waits_for_ever"),
    Variant("joins", ("NO_HAND", "NOBODY_WALKS", "NO_PARENT_TELLS"), "no_child_waits_for_ever"),
    Variant("joins", ("NOBODY_WALKS",), "no_child_waits_for_ever"),
    Variant("joins", ("OVER_IS_FORGOTTEN",), "no_child_starts_early"),
    Variant("joins", ("DEPENDENCIES_ARE_NOT_LOCKED",), "no_child_starts_early"),
)
