"""The worker's desk, its limits, its parent's watch, and how that asks where it is."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_DESK: Final = "unit/test_worker_desk.py::"
_PARTS: Final = "unit/test_worker_parts.py::"
_GUARDS: Final = "unit/test_worker_guards.py::"
_BEATS: Final = "process/test_worker_beats.py::"
_STACKS: Final = "unit/test_worker_stacks.py::"

DESK: Final = Guarded(
    "pulse.worker.session.ledger",
    {
        _GUARDS + "test_what_has_ended_does_not_wait_for_cells": [
            ("Ledger.waits_for_cells", "attempt.phase is Phase.QUEUED", "True"),
            ("Ledger.take_startable", "if attempt.phase is Phase.QUEUED:", "if True:"),
            ("Ledger.take_startable", "while queue and ", "while "),
        ],
        _GUARDS + "test_what_needs_no_cell_waits_for_none": [
            ("Ledger.cells_gone", "in self._queue if attempt.isolated", "in self._queue if True"),
        ],
        _GUARDS + "test_an_assignment_that_came_twice_starts_once": [
            ("Ledger.assign", "if pair in self._held:", "if False:"),
        ],
        _DESK + "test_an_unknown_handler_is_an_error_at_once": [
            ("Ledger.assign", "if handler is None:", "if False:"),
        ],
        _DESK + "test_draining": [
            ("Ledger.assign", "elif self.draining:", "elif False:"),
            ("Ledger.drain", "if attempt.phase is Phase.QUEUED:", "if False:"),
        ],
        _DESK + "test_isolated_ones_wait_until_cells_can_be_made": [
            ("Ledger.assign", "handler.isolate or ", ""),
            ("Ledger.assign", "job.extra is not None and ", ""),
            ("Ledger.assign", "job.extra is not None and wants_isolation(job.extra)", "False"),
            ("Ledger.assign", "self._queue if self._cells_ready else self._aside", "self._queue"),
            ("Ledger.assign", "self._queue if self._cells_ready else self._aside", "self._aside"),
        ],
        _DESK + "test_only_true_isolates": [
            ("Ledger.assign", "wants_isolation(job.extra)", "job.extra"),
        ],
        _DESK + "test_isolated_ones_wait_again_when_no_cells_can_be_made": [
            ("Ledger.cells_gone", "self._aside.extend(attempt for attempt in self._queue if attempt.isolated)", "pass"),
            ("Ledger.cells_gone", "if not attempt.isolated", "if True"),
        ],
        _DESK + "test_isolated_ones_fail_when_cells_can_never_be_made": [
            ("Ledger.cells_failed", "attempt.phase is Phase.QUEUED", "True"),
            ("Ledger.cells_failed", "attempt.phase is Phase.QUEUED", "False"),
        ],
        _DESK + "test_from_assignment_to_reported": [
            ("Ledger.take_startable", " and self._running < self._concurrency", ""),
            ("Ledger.take_startable", "self._running < self._concurrency", "self._running <= self._concurrency"),
            ("Ledger.take_startable", "if attempt.phase is Phase.QUEUED:", "if False:"),
        ],
        _DESK + "test_what_was_stopped_while_it_was_named_does_not_go_back": [
            ("Ledger.put_back", "attempt.stopped is not None or ", ""),
        ],
        _GUARDS + "test_drained_before_it_was_named": [
            ("Ledger.put_back", " or self.draining", ""),
        ],
        _DESK + "test_what_could_not_be_named_goes_back_in_order": [
            ("Ledger.put_back", "attempt.stopped is not None or self.draining", "True"),
            ("Ledger.put_back", "            self._running -= 1\n", ""),
        ],
        _GUARDS + "test_stops_and_recalls_of_nobody": [
            ("Ledger.stop", "if attempt is None:", "if False:"),
            ("Ledger.recall", "attempt is not None and ", ""),
            ("Ledger._saved", "result is not None", "True"),
        ],
        _GUARDS + "test_only_a_lost_attempt_is_lost": [
            ("Ledger.stop", 'if reason == "lost":', "if True:"),
            ("Ledger.stop", 'if reason == "lost":', "if False:"),
        ],
        _DESK + "test_stopping": [
            ("Ledger.stop", "case Phase.QUEUED:", "case -1:"),
            ("Ledger.stop", "case Phase.STARTED if", "case -1 if"),
            ("Ledger.stop", " if attempt.stopped is None", ""),
        ],
        _GUARDS + "test_which_attempt_runs": [
            ("Ledger.started_attempt", "attempt is not None and ", ""),
            ("Ledger.started_attempt", " and attempt.phase is Phase.STARTED", ""),
            ("Ledger.running_attempt", "attempt is not None and ", ""),
            ("Ledger.running_attempt", " and attempt.stopped is None", ""),
        ],
        _DESK + "test_what_waits_behind_long_ones_goes_back": [
            ("Ledger.give_back_waiting", "if attempt.phase is Phase.QUEUED]", "]"),
            ("Ledger.give_back_waiting", "not self.is_full or ", ""),
            ("Ledger.is_full", "self._running >= self._concurrency", "False"),
            ("Ledger.give_back_waiting", " or not waiting", ""),
        ],
        _DESK + "test_recall_takes_only_what_waits": [
            ("Ledger.recall", " and attempt.phase is Phase.QUEUED", ""),
        ],
        _GUARDS + "test_drained_what_had_been_given_back": [
            ("Ledger.drain", "attempt.phase is Phase.QUEUED", "True"),
            ("Ledger.started", " if attempt.phase is Phase.STARTED", ""),
        ],
        _GUARDS + "test_what_was_named_is_told_again": [
            ("Ledger.named", " if attempt.named", ""),
        ],
        _DESK + "test_a_result_waits_for_its_checkpoint": [
            ("Ledger._saved", "result is not None", "False"),
            ("Ledger._finish", " and attempt.checkpoint is None", ""),
            ("Ledger._finish_with_extra", "if attempt.is_saved:", "if True:"),
        ],
        _DESK + "test_a_refused_report": [
            ("Ledger.take_report", "if self._suspects else", "if False else"),
            ("Ledger.refused", "if passing:", "if False:"),
            ("Ledger.refused", "elif len(results) > 1:", "elif False:"),
            ("Ledger.refused", "elif len(results) > 1:", "elif True:"),
        ],
        _GUARDS + "test_an_empty_report_is_not_under_way": [
            ("Ledger.take_report", "if taken:", "if True:"),
        ],
        _GUARDS + "test_a_result_that_was_refused_alone_once_is_not_named_twice": [
            ("Ledger.refused", "result[:2], None)]", "result[:2], 1) or 1]"),
        ],
        _DESK + "test_progress_is_told_once": [
            ("Ledger._finish", "attempt.progress is None and ", ""),
            ("Ledger._finish_with_extra", "attempt.progress is not attempt.progress_sent", "False"),
            ("Ledger._finish_with_extra", "if extra:", "if False:"),
        ],
        _GUARDS + "test_progress_that_the_server_has_is_not_sent_again": [
            ("Ledger._finish_with_extra", "attempt.progress is not attempt.progress_sent", "True"),
            ("Ledger._finish_with_extra", "if extra:", "if True:"),
        ],
        _GUARDS + "test_who_was_stopped_says_why": [
            ("Ledger._finish", " and attempt.stopped is None", ""),
            ("Ledger._finish_with_extra", "attempt.stopped is not None", "False"),
            ("Ledger._finish_with_extra", "attempt.stack is not None", "True"),
        ],
        _DESK + "test_what_an_isolated_one_used_goes_with_its_result": [
            ("Ledger._finish_with_extra", "attempt.stack is not None", "False"),
            ("Ledger._finish_with_extra", "dict(used)", "{}"),
        ],
        _DESK + "test_reports_fit_into_frames": [
            ("Ledger._take_results", "if room < 0:", "if False:"),
            ("Ledger._take_results", "if count == 0:", "if False:"),
            ("Ledger._take_results", "if count == 0:", "if True:"),
        ],
    },
    is_part=True,
)

CHECKPOINTS: Final = Guarded(
    "pulse.worker.session.checkpoints",
    {
        _DESK + "test_the_newest_checkpoint_is_sent_once": [
            ("Checkpoints.take", "while self.new:", "while True:"),
            ("Checkpoints.answered", "if attempt.is_saved:", "if False:"),
        ],
        _GUARDS + "test_one_checkpoint_of_an_attempt_in_a_frame": [
            ("Checkpoints.take", " and attempt not in taken", ""),
            ("Checkpoints.take", "if size > room and taken:", "if size > room:"),
            ("Checkpoints.take", "if taken:\n            self", "if True:\n            self"),
        ],
        _GUARDS + "test_a_checkpoint_that_the_server_has_is_not_sent_again": [
            ("Checkpoints.take", "text is not None and text is not attempt.checkpoint_saved and ", ""),
        ],
        _DESK + "test_a_result_waits_for_its_checkpoint": [
            ("Checkpoints.answered", "if attempt.is_saved:", "if True:"),
        ],
        _DESK + "test_checkpoints_fit_into_frames": [
            ("Checkpoints.take", "if size > room and taken:", "if False:"),
        ],
        _DESK + "test_a_refused_checkpoint": [
            ("Checkpoints.refused", "if not passing:", "if True:"),
            ("Checkpoints.refused", "if not passing:", "if False:"),
        ],
    },
)

BEAT_SHEET: Final = Guarded(
    "pulse.worker.session.heartbeat",
    {
        _DESK + "test_progress_is_told_once": [
            ("HeartbeatBody.add", " or text is attempt.progress_sent", ""),
        ],
        _DESK + "test_a_heartbeat_is_bounded": [
            ("HeartbeatBody.add", "len(text) > self._room", "False"),
            ("HeartbeatBody.add", "            self.complete = False\n", ""),
        ],
    },
    without={
        ("HeartbeatBody.add", "text is None"): "for the type checkers: without progress there is none that was sent",
    },
)

DEADLINES: Final = Guarded(
    "pulse.worker.execution.deadlines",
    {
        _GUARDS + "test_which_limit_is_the_next": [
            ("Deadlines.watch", 'self._heap[0][0] if self._heap else float("inf")', 'float("inf")'),
            ("Deadlines.watch", "if self._heap else", "if True else"),
            ("Deadlines.watch", "timeout_s is not None", "True"),
            ("Deadlines.watch", "stall_s is not None", "True"),
            ("Deadlines.watch", "bool(self._heap) and ", ""),
            ("Deadlines.watch", "self._heap[0][0] < next_s", "self._heap[0][0] <= next_s"),
        ],
        _GUARDS + "test_an_ended_attempt_is_not_due": [
            ("Deadlines.due", "if attempt.phase is Phase.ENDED:", "if False:"),
        ],
        _PARTS + "test_deadlines_come_in_order": [
            ("Deadlines.watch", "timeout_s is not None", "False"),
            ("Deadlines.next_s", "while self._heap and ", "while "),
            ("Deadlines.next_s", "if self._heap else None", "if True else None"),
            ("Deadlines.due", "self._heap[0][0] <= now_s", "self._heap[0][0] < now_s"),
            ("Deadlines.due", "while self._heap and ", "while "),
        ],
        _PARTS + "test_deadlines_forget_what_has_ended": [
            ("Deadlines.next_s", "self._heap[0][2].phase is Phase.ENDED", "False"),
        ],
        _GUARDS + "test_what_has_ended_is_not_kept_behind_what_runs": [
            ("Deadlines._add", "len(self._heap) >= self._sweep_at", "False"),
            ("Deadlines._sweep", " if entry[2].phase is not Phase.ENDED", ""),
            ("Deadlines._sweep", "entry[2].phase is not Phase.ENDED", "False"),
        ],
        _PARTS + "test_a_stall_counts_from_the_last_word": [
            ("Deadlines.watch", "stall_s is not None", "False"),
            ("Deadlines.due", 'limit == "stalled" and ', "False and "),
            ("Deadlines.due", "(again_s := _silent_until_s(attempt)) > now_s", "(again_s := _silent_until_s(attempt))"),
            ("_silent_until_s", "attempt.stall_s or 0.0", "0.0"),
        ],
        _PARTS + "test_both_limits_of_one_attempt": [
            ("Deadlines.due", 'limit == "stalled" and ', ""),
        ],
    },
)

POLICY: Final = Guarded(
    "pulse.worker.pool.restart",
    {
        _PARTS + "test_what_follows_an_ending": [
            ("decide", "if refused:", "if False:"),
            ("decide", "stopping or ", ""),
            ("decide", " or drained", ""),
        ],
        _PARTS + "test_a_pool_gives_up_on_processes_that_never_worked_only": [
            ("next_delay_s", " and not worked", ""),
            ("next_delay_s", "log.exceeds(limits) and not worked", "False"),
        ],
        _GUARDS + "test_a_pool_of_workers_that_worked_goes_on": [
            ("next_delay_s", "log.exceeds(limits) and ", ""),
        ],
    },
)

BEATS: Final = Guarded(
    "pulse.worker.pool.proxy_heartbeat",
    {
        _GUARDS + "test_nobody_beats_before_a_session": [
            ("Watch.due_s", "self.session is None", "False"),
            ("ProxyHeartbeats.leavers", " if watch.session is not None", ""),
        ],
        _GUARDS + "test_the_stack_of_a_session": [
            ("ProxyHeartbeats.stack_of", "watch.session == session and ", ""),
            ("ProxyHeartbeats.stack_of", " and watch.take_stack is not None", ""),
        ],
        _PARTS + "test_the_parent_beats_for_the_silent_and_living": [
            ("ProxyHeartbeats.take_due", " and watch.due_s(self.heartbeat_s) <= now_s", ""),
            ("ProxyHeartbeats.take_due", "self._state_of(watch.pid) not in _STOPPED_OR_DEAD", "True"),
            ("ProxyHeartbeats.take_due", "watch.beaten_s = now_s", "pass"),
        ],
        _BEATS + "test_a_parent_whose_connection_was_good_is_back_soon": [
            ("mind", "time.monotonic() - since_s >= STABLE_S", "True"),
            ("mind", "time.monotonic() - since_s >= STABLE_S", "False"),
        ],
        _PARTS + "test_the_parent_is_in_time": [
            ("Watch.due_s", "self.answered_s + SILENT_BEATS * heartbeat_s", "self.answered_s + 3 * heartbeat_s"),
        ],
        _GUARDS + "test_a_server_that_answers_no_pings_is_left": [
            ("_Line._speak", "if now_s >= own_s:", "if False:"),
            ("_Line._ping", "if self._unheard >= MAX_UNHEARD_PINGS:", "if False:"),
            ("_Line._ping", "if self._unheard >= MAX_UNHEARD_PINGS:", "if self._unheard > MAX_UNHEARD_PINGS:"),
        ],
        _GUARDS + "test_each_leaver_is_told_once": [
            ("_Line._speak", "if now_s >= own_s:", "if True:"),
            ("_Line._give_notice", "if session not in self._noticed:", "if True:"),
            ("_Line._give_notice", "if session not in self._noticed:", "if False:"),
        ],
        _GUARDS + "test_only_who_asks_for_a_stack_gets_one": [
            ("_Line.run.read", 'if frame.kind == "stack":', "if True:"),
            ("_Line.run.read", 'if frame.kind == "stack":', "if False:"),
        ],
        _PARTS + "test_the_parent_gives_notice_of_all_who_have_a_session": [
            ("ProxyHeartbeats.leavers", "if self._leaving else", "if True else"),
            ("ProxyHeartbeats.leavers", "if self._leaving else", "if False else"),
        ],
    },
    without={
        (
            "ProxyHeartbeats.take_due",
            "watch.session is not None",
        ): "for the type checkers: else nothing is due",
    },
)

STACKS: Final = Guarded(
    "pulse.worker.execution.stacks",
    {
        _STACKS + "test_to_be_asked_harms_nobody": [
            (
                "listen",
                "faulthandler.register(STACK_SIGNAL, file=fd, all_threads=False",
                "faulthandler.register(STACK_SIGNAL, file=fd, all_threads=True",
            ),
            ("take", "filter(None, (others, main))", "filter(None, (main, others))"),
            ("_take_one", "    file.clear()\n", ""),
        ],
        _STACKS + "test_many_threads_are_cut": [
            ("take", "[: max(0, MAX_STACK_CHARS - len(main) - 1)]", ""),
        ],
        _STACKS + "test_threads_that_cannot_tell_are_left_out": [
            ("_take_one", "processes.is_blocking(pid, thread, STACK_SIGNAL):", "False:"),
            ("_take_one", " or time.monotonic() - asked_s > _SPEECHLESS_S", ""),
        ],
        _STACKS + "test_nobody_else_is_asked": [
            ("_take_one", "        signal.pidfd_send_signal(pidfd, 0)  # no other process has its number by now\n", ""),
        ],
        _STACKS + "test_a_dump_that_takes_its_time_is_waited_for": [
            ("_take_one", " or processes.is_blocking(pid, thread, STACK_SIGNAL)", ""),
        ],
        _STACKS + "test_another_process_is_asked": [
            ("take", " or processes.state(pid) in _NO_ANSWER", ""),
        ],
    },
    is_part=True,
)
