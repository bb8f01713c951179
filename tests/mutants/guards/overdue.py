"""Limits that were passed: who is judged, who is let finish, and whose stack it is."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_OVERDUE: Final = "store/test_dispatcher_overdue.py::"

OVERDUE: Final = Guarded(
    "pulse_actors.dispatcher.liveness.hung_handlers",
    {
        _OVERDUE + "test_what_has_a_limit_is_watched": [
            ("HungHandlers.started", "held.timeout_s is not None", "False"),
            ("HungHandlers.started", "held.timeout_s is not None", "True"),
            ("HungHandlers.started", "held.stall_s is not None", "False"),
            ("HungHandlers.started", "held.stall_s is not None", "True"),
        ],
        _OVERDUE + "test_who_cannot_be_killed_is_not_watched": [
            ("HungHandlers.started", "not worker.watched", "False"),
        ],
        _OVERDUE + "test_what_has_ended_is_forgotten": [
            ("HungHandlers._add", "len(self._heap) >= self._sweep_at", "False"),
            ("HungHandlers._sweep", "filter(self._is_running, self._heap)", "self._heap"),
            ("HungHandlers._sweep", "filter(self._is_running, self._heap)", "[]"),
        ],
        _OVERDUE + "test_what_is_told_again_is_kept_once": [
            ("HungHandlers._sweep", "sorted(earliest.values())", "sorted(running)"),
            ("HungHandlers._sweep", ", reverse=True", ""),
            ("HungHandlers._sweep", ", due.kind", ""),
        ],
        _OVERDUE + "test_a_handler_that_has_ended_is_nobodys_guilt": [
            ("HungHandlers._is_running", "worker.held.get(due.pair) is due.held and ", ""),
            ("HungHandlers._is_running", "worker.held.get(due.pair) is due.held", "due.pair in worker.held"),
            ("HungHandlers._due", "if not self._is_running(due):", "if False:"),
        ],
        _OVERDUE + "test_a_result_without_room_ends_a_verdict": [
            ("HungHandlers._close", " if not worker.held[pair].ended", ""),
        ],
        _OVERDUE + "test_a_result_without_room_came_in_time": [
            ("HungHandlers._is_running", "if due.held.ended:", "if False:"),
            ("note_ended", "if held is not None:", "if True:"),
        ],
        _OVERDUE + "test_a_worker_that_came_back_is_watched_anew": [
            ("HungHandlers._is_running", " and self._process_watch.watched(worker.identity) is worker", ""),
        ],
        "store/test_visit_guards.py::test_what_a_heartbeat_does_not_list": [
            ("note_beat", "held.unlisted += 1", "pass"),
            ("note_beat", "held.unlisted = 0", "pass"),
            ("note_beat", "if pair in listed:", "if False:"),
            ("note_beat", "assigns is None or ", "assigns is not None and "),
        ],
        "store/test_visit_guards.py::test_a_heartbeat_older_than_the_frame_of_a_job": [
            ("note_beat", "assigns >= held.assign", "True"),
            ("note_beat", "assigns >= held.assign", "assigns > held.assign"),
        ],
        _OVERDUE + "test_progress_moves_the_limit": [
            ("HungHandlers._due", "due.kind is EndingKind.STALLED and", "False and"),
            ("HungHandlers._due", " and self._stalled_at_s(due.held) > now_s", ""),
            ("_forced_ending", "due.kind is EndingKind.TIMEOUT", "True"),
        ],
        _OVERDUE + "test_progress_does_not_move_a_time_limit": [
            ("HungHandlers._due", "due.kind is EndingKind.STALLED and ", ""),
            ("_forced_ending", "due.kind is EndingKind.TIMEOUT", "False"),
        ],
        _OVERDUE + "test_two_that_hang_are_judged_together": [
            ("HungHandlers._due", "if id(due.worker) in self._closing:", "if False:"),
            ("HungHandlers._due", "due.worker.forced_endings[due.pair] = _forced_ending(due, None)", "pass"),
            ("HungHandlers._close", "worker.forced_endings[due.pair] = _forced_ending(", "_ = _forced_ending("),
            ("HungHandlers._close", "None if shown is None else ", ""),
            ("HungHandlers._close", "if hanging:", "if False:"),
        ],
        _OVERDUE + "test_who_comes_back_while_it_is_judged_is_judged_anew": [
            ("HungHandlers._due", "if id(due.worker) in self._closing:", "if self._closing:"),
        ],
        _OVERDUE + "test_a_handler_that_ends_after_all": [
            ("HungHandlers._close", " & self._running(worker)", ""),
            ("HungHandlers._close", "if hanging:", "if True:"),
            ("HungHandlers._close", "worker.closing = True", "pass"),
            ("HungHandlers._close", "worker.closing = False", "pass"),
            ("HungHandlers._close", "worker.forced_endings.clear()", "pass"),
        ],
        _OVERDUE + "test_siblings_may_finish": [
            ("HungHandlers._empty", " if not held.started", ""),
            ("HungHandlers._empty", "if waiting:", "if False:"),
            ("HungHandlers._empty", "not worker.forced_endings.keys() >= self._running(worker)", "True"),
            ("HungHandlers._empty", "not worker.forced_endings.keys() >= self._running(worker)", "False"),
        ],
        _OVERDUE + "test_what_has_ended_and_is_not_written_yet": [
            ("HungHandlers._is_running", "due.pair in self._registry.reporting", "False"),
        ],
        _OVERDUE + "test_a_result_that_comes_while_its_stack_is_taken": [
            ("HungHandlers._running", " - self._registry.reporting", ""),
        ],
        _OVERDUE + "test_what_runs_apart_has_time_to_begin": [
            ("HungHandlers.started", "BEGIN_S if held.apart else 0.0", "0.0"),
            ("HungHandlers.started", "BEGIN_S if held.apart else 0.0", "BEGIN_S"),
        ],
        _OVERDUE + "test_nothing_is_recalled_where_nothing_waits": [
            ("HungHandlers._empty", "if waiting:", "if True:"),
        ],
        _OVERDUE + "test_limits_pass_by_themselves": [
            ("HungHandlers.run", "while self._heap and ", "while "),
            ("HungHandlers.run", "while self._heap and self._heap[0].at_s <= now_s:", "while self._heap:"),
            ("HungHandlers.run", "if self._heap else None", "if True else None"),
            ("HungHandlers.run", "if self._heap else None", "if False else None"),
            ("HungHandlers._add", "self._heap[0].number == self._count", "False"),
        ],
        _OVERDUE + "test_what_counts_as_progress": [
            ("note_progress", "if beat.text is not None else", "if True else"),
            ("note_progress", "if held is not None:", "if True:"),
        ],
    },
)

STACKS: Final = Guarded(
    "pulse_actors.dispatcher.liveness.stack_requests",
    {
        _OVERDUE + "test_without_a_pool_parent_only_the_worker_can_tell": [
            ("StackRequests.take", "if parent is not None:", "if True:"),
            ("StackRequests.take", "best is None or ", ""),
        ],
        _OVERDUE + "test_stacks_come_from_the_pool_parent": [
            ("StackRequests.take", "if parent is not None:", "if False:"),
            ("StackRequests.answer", " and question.identity == worker.identity", ""),
            ("StackRequests.answer", "question is not None and ", ""),
        ],
        _OVERDUE + "test_a_worker_that_answers_knows_best": [
            ("StackRequests.take", "one is not None and one.stack", "one is not None"),
            ("StackRequests.take", "one is not None and ", ""),
            ("StackRequests.take", "                with anyio.move_on_after(ALIVE_S):", "                if False:"),
            ("StackRequests.take", "best.pid or worker.pid", "worker.pid"),
            ("StackRequests.take", "best.pid or worker.pid", "best.pid"),
        ],
    },
    without={
        ("StackRequests.answer", "number is not None"): "for the type checkers: nobody waits under the number None",
        ("StackRequests.take", "best.stack is None"): "for the type checkers: the best has one",
    },
)
