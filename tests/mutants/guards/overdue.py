"""Limits that were passed: who is judged, who is let finish, and whose stack it is."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_OVERDUE: Final = "store/test_dispatcher_overdue.py::"

DEADLINES: Final = Guarded(
    "pulse_actors.dispatcher.workers.deadlines",
    {
        _OVERDUE + "test_what_has_a_limit_is_watched": [
            (
                "HandlerDeadlines.started",
                "held.timeout_s is not None",
                "False",
            ),
            (
                "HandlerDeadlines.started",
                "held.timeout_s is not None",
                "True",
            ),
            (
                "HandlerDeadlines.started",
                "held.stall_s is not None",
                "False",
            ),
            (
                "HandlerDeadlines.started",
                "held.stall_s is not None",
                "True",
            ),
        ],
        _OVERDUE + "test_who_cannot_be_killed_is_not_watched": [
            (
                "HandlerDeadlines.started",
                "not worker.watched",
                "False",
            ),
        ],
        _OVERDUE + "test_what_has_ended_is_forgotten": [
            (
                "HandlerDeadlines._add",
                "len(self._heap) >= self._sweep_at",
                "False",
            ),
            (
                "HandlerDeadlines._sweep",
                "filter(self.is_running, self._heap)",
                "self._heap",
            ),
            (
                "HandlerDeadlines._sweep",
                "filter(self.is_running, self._heap)",
                "[]",
            ),
        ],
        _OVERDUE + "test_what_is_told_again_is_kept_once": [
            (
                "HandlerDeadlines._sweep",
                "sorted(earliest.values())",
                "sorted(running)",
            ),
            (
                "HandlerDeadlines._sweep",
                ", reverse=True",
                "",
            ),
            (
                "HandlerDeadlines._sweep",
                ", due.kind",
                "",
            ),
        ],
        _OVERDUE + "test_a_handler_that_has_ended_is_nobodys_guilt": [
            (
                "HandlerDeadlines.is_running",
                "worker.held.get(due.pair) is due.held and ",
                "",
            ),
            (
                "HandlerDeadlines.is_running",
                "worker.held.get(due.pair) is due.held",
                "due.pair in worker.held",
            ),
        ],
        _OVERDUE + "test_a_result_without_room_came_in_time": [
            (
                "HandlerDeadlines.is_running",
                "if due.held.ended:",
                "if False:",
            ),
        ],
        _OVERDUE + "test_progress_moves_the_limit": [
            (
                "HandlerDeadlines.is_put_off",
                "due.kind is not EndingKind.STALLED or",
                "True or",
            ),
            (
                "HandlerDeadlines.is_put_off",
                " or self._stalled_at_s(due.held) <= now_s",
                "",
            ),
        ],
        _OVERDUE + "test_progress_does_not_move_a_time_limit": [
            (
                "HandlerDeadlines.is_put_off",
                "due.kind is not EndingKind.STALLED or ",
                "",
            ),
        ],
        _OVERDUE + "test_what_has_ended_and_is_not_written_yet": [
            (
                "HandlerDeadlines.is_running",
                "due.pair in self._registry.reporting",
                "False",
            ),
        ],
        _OVERDUE + "test_what_runs_apart_has_time_to_begin": [
            (
                "HandlerDeadlines.started",
                "BEGIN_S if held.apart else 0.0",
                "0.0",
            ),
            (
                "HandlerDeadlines.started",
                "BEGIN_S if held.apart else 0.0",
                "BEGIN_S",
            ),
        ],
        _OVERDUE + "test_a_worker_that_came_back_is_watched_anew": [
            (
                "HandlerDeadlines.is_running",
                " and self._registry.find(worker.identity) is worker",
                "",
            ),
        ],
        _OVERDUE + "test_limits_pass_by_themselves": [
            (
                "HandlerDeadlines.passed",
                "if self._heap and ",
                "if ",
            ),
            (
                "HandlerDeadlines.passed",
                " and self._heap[0].at_s <= now_s",
                "",
            ),
            (
                "HandlerDeadlines.wait",
                "if self._heap else None",
                "if True else None",
            ),
            (
                "HandlerDeadlines.wait",
                "if self._heap else None",
                "if False else None",
            ),
            (
                "HandlerDeadlines._add",
                "self._heap[0].number == self._count",
                "False",
            ),
        ],
    },
)


OVERDUE: Final = Guarded(
    "pulse_actors.dispatcher.liveness.hung_handlers",
    {
        _OVERDUE + "test_limits_pass_by_themselves": [
            ("HungHandlers.run", "while (due := self._deadlines.passed(now_s)) is not None:", "while due := None:"),
        ],
        _OVERDUE + "test_a_handler_that_has_ended_is_nobodys_guilt": [
            (
                "HungHandlers._due",
                "not self._deadlines.is_running(due) or ",
                "",
            ),
        ],
        _OVERDUE + "test_a_result_without_room_ends_a_verdict": [
            (
                "HungHandlers._close",
                " if not worker.held[pair].ended",
                "",
            ),
        ],
        _OVERDUE + "test_a_result_without_room_came_in_time": [
            (
                "note_ended",
                "if held is not None:",
                "if True:",
            ),
        ],
        "store/test_visit_guards.py::test_what_a_heartbeat_does_not_list": [
            (
                "note_beat",
                "held.unlisted += 1",
                "pass",
            ),
            (
                "note_beat",
                "held.unlisted = 0",
                "pass",
            ),
            (
                "note_beat",
                "if pair in listed:",
                "if False:",
            ),
            (
                "note_beat",
                "assigns is None or ",
                "assigns is not None and ",
            ),
        ],
        "store/test_visit_guards.py::test_a_heartbeat_older_than_the_frame_of_a_job": [
            (
                "note_beat",
                "assigns >= held.assign",
                "True",
            ),
            (
                "note_beat",
                "assigns >= held.assign",
                "assigns > held.assign",
            ),
        ],
        _OVERDUE + "test_progress_moves_the_limit": [
            (
                "_forced_ending",
                "due.kind is EndingKind.TIMEOUT",
                "True",
            ),
            ("HungHandlers._due", "self._deadlines.is_put_off(due, now_s)", "False"),
        ],
        _OVERDUE + "test_progress_does_not_move_a_time_limit": [
            (
                "_forced_ending",
                "due.kind is EndingKind.TIMEOUT",
                "False",
            ),
        ],
        _OVERDUE + "test_two_that_hang_are_judged_together": [
            (
                "HungHandlers._due",
                "if id(due.worker) in self._closing:",
                "if False:",
            ),
            (
                "HungHandlers._due",
                "due.worker.jobs.forced_endings[due.pair] = _forced_ending(due, None)",
                "pass",
            ),
            (
                "HungHandlers._close",
                "worker.jobs.forced_endings[due.pair] = _forced_ending(",
                "_ = _forced_ending(",
            ),
            (
                "HungHandlers._close",
                "None if shown is None else ",
                "",
            ),
            (
                "HungHandlers._close",
                "if hanging:",
                "if False:",
            ),
        ],
        _OVERDUE + "test_who_comes_back_while_it_is_judged_is_judged_anew": [
            (
                "HungHandlers._due",
                "if id(due.worker) in self._closing:",
                "if self._closing:",
            ),
        ],
        _OVERDUE + "test_a_handler_that_ends_after_all": [
            (
                "HungHandlers._close",
                " & self._running(worker)",
                "",
            ),
            (
                "HungHandlers._close",
                "if hanging:",
                "if True:",
            ),
            (
                "HungHandlers._close",
                "worker.begin_closing()",
                "pass",
            ),
            (
                "HungHandlers._close",
                "worker.end_closing()",
                "pass",
            ),
            (
                "HungHandlers._close",
                "worker.jobs.forced_endings.clear()",
                "pass",
            ),
            (
                "HungHandlers._running",
                " - self._registry.reporting",
                "",
            ),
        ],
        _OVERDUE + "test_siblings_may_finish": [
            (
                "HungHandlers._empty",
                " if not held.started",
                "",
            ),
            (
                "HungHandlers._empty",
                "if waiting:",
                "if False:",
            ),
            (
                "HungHandlers._empty",
                "not worker.jobs.forced_endings.keys() >= self._running(worker)",
                "True",
            ),
            (
                "HungHandlers._empty",
                "not worker.jobs.forced_endings.keys() >= self._running(worker)",
                "False",
            ),
        ],
        _OVERDUE + "test_nothing_is_recalled_where_nothing_waits": [
            (
                "HungHandlers._empty",
                "if waiting:",
                "if True:",
            ),
        ],
        _OVERDUE + "test_what_counts_as_progress": [
            (
                "note_progress",
                "if beat.text is not None else",
                "if True else",
            ),
            (
                "note_progress",
                "if held is not None:",
                "if True:",
            ),
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
            ("StackRequests.take", "best.pid or worker.facts.pid", "worker.facts.pid"),
            ("StackRequests.take", "best.pid or worker.facts.pid", "best.pid"),
        ],
    },
    without={
        ("StackRequests.answer", "number is not None"): "for the type checkers: nobody waits under the number None",
        ("StackRequests.take", "best.stack is None"): "for the type checkers: the best has one",
    },
)
