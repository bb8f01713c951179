"""Limits that were passed: who is judged, who is let finish, and whose stack it is."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_OVERDUE: Final = "store/test_dispatcher_overdue.py::"

OVERDUE: Final = Guarded(
    "pulse_actors.dispatcher.liveness.hung_handlers",
    {
        _OVERDUE + "test_what_has_a_limit_is_watched": [
            ("Overdue.started", "held.timeout_s is not None", "False"),
            ("Overdue.started", "held.timeout_s is not None", "True"),
            ("Overdue.started", "held.stall_s is not None", "False"),
            ("Overdue.started", "held.stall_s is not None", "True"),
        ],
        _OVERDUE + "test_who_cannot_be_killed_is_not_watched": [
            ("Overdue.started", "not worker.watched", "False"),
        ],
        _OVERDUE + "test_what_has_ended_is_forgotten": [
            ("Overdue._add", "len(self._heap) >= self._sweep_at", "False"),
            ("Overdue._sweep", "filter(self._is_running, self._heap)", "self._heap"),
            ("Overdue._sweep", "filter(self._is_running, self._heap)", "[]"),
        ],
        _OVERDUE + "test_what_is_told_again_is_kept_once": [
            ("Overdue._sweep", "sorted(earliest.values())", "sorted(running)"),
            ("Overdue._sweep", ", reverse=True", ""),
            ("Overdue._sweep", ", due.kind", ""),
        ],
        _OVERDUE + "test_a_handler_that_has_ended_is_nobodys_guilt": [
            ("Overdue._is_running", "worker.held.get(due.pair) is due.held and ", ""),
            ("Overdue._is_running", "worker.held.get(due.pair) is due.held", "due.pair in worker.held"),
            ("Overdue._due", "if not self._is_running(due):", "if False:"),
        ],
        _OVERDUE + "test_a_result_without_room_ends_a_verdict": [
            ("Overdue._close", " if not worker.held[pair].ended", ""),
        ],
        _OVERDUE + "test_a_result_without_room_came_in_time": [
            ("Overdue._is_running", "if due.held.ended:", "if False:"),
            ("note_ended", "if held is not None:", "if True:"),
        ],
        _OVERDUE + "test_a_worker_that_came_back_is_watched_anew": [
            ("Overdue._is_running", " and self._deaths.watched(worker.identity) is worker", ""),
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
            ("Overdue._due", "due.kind is EndingKind.STALLED and", "False and"),
            ("Overdue._due", " and self._stalled_at_s(due.held) > now_s", ""),
            ("_sentence", "due.kind is EndingKind.TIMEOUT", "True"),
        ],
        _OVERDUE + "test_progress_does_not_move_a_time_limit": [
            ("Overdue._due", "due.kind is EndingKind.STALLED and ", ""),
            ("_sentence", "due.kind is EndingKind.TIMEOUT", "False"),
        ],
        _OVERDUE + "test_two_that_hang_are_judged_together": [
            ("Overdue._due", "if id(due.worker) in self._closing:", "if False:"),
            ("Overdue._due", "due.worker.sentences[due.pair] = _sentence(due, None)", "pass"),
            ("Overdue._close", "worker.sentences[due.pair] = _sentence(", "_ = _sentence("),
            ("Overdue._close", "None if shown is None else ", ""),
            ("Overdue._close", "if hanging:", "if False:"),
        ],
        _OVERDUE + "test_who_comes_back_while_it_is_judged_is_judged_anew": [
            ("Overdue._due", "if id(due.worker) in self._closing:", "if self._closing:"),
        ],
        _OVERDUE + "test_a_handler_that_ends_after_all": [
            ("Overdue._close", " & self._running(worker)", ""),
            ("Overdue._close", "if hanging:", "if True:"),
            ("Overdue._close", "worker.closing = True", "pass"),
            ("Overdue._close", "worker.closing = False", "pass"),
            ("Overdue._close", "worker.sentences.clear()", "pass"),
        ],
        _OVERDUE + "test_siblings_may_finish": [
            ("Overdue._empty", " if not held.started", ""),
            ("Overdue._empty", "if waiting:", "if False:"),
            ("Overdue._empty", "not worker.sentences.keys() >= self._running(worker)", "True"),
            ("Overdue._empty", "not worker.sentences.keys() >= self._running(worker)", "False"),
        ],
        _OVERDUE + "test_what_has_ended_and_is_not_written_yet": [
            ("Overdue._is_running", "due.pair in self._desk.reporting", "False"),
        ],
        _OVERDUE + "test_a_result_that_comes_while_its_stack_is_taken": [
            ("Overdue._running", " - self._desk.reporting", ""),
        ],
        _OVERDUE + "test_what_runs_apart_has_time_to_begin": [
            ("Overdue.started", "BEGIN_S if held.apart else 0.0", "0.0"),
            ("Overdue.started", "BEGIN_S if held.apart else 0.0", "BEGIN_S"),
        ],
        _OVERDUE + "test_nothing_is_recalled_where_nothing_waits": [
            ("Overdue._empty", "if waiting:", "if True:"),
        ],
        _OVERDUE + "test_limits_pass_by_themselves": [
            ("Overdue.run", "while self._heap and ", "while "),
            ("Overdue.run", "while self._heap and self._heap[0].at_s <= now_s:", "while self._heap:"),
            ("Overdue.run", "if self._heap else None", "if True else None"),
            ("Overdue.run", "if self._heap else None", "if False else None"),
            ("Overdue._add", "self._heap[0].number == self._count", "False"),
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
            ("Stacks.take", "if parent is not None:", "if True:"),
            ("Stacks.take", "best is None or ", ""),
        ],
        _OVERDUE + "test_stacks_come_from_the_pool_parent": [
            ("Stacks.take", "if parent is not None:", "if False:"),
            ("Stacks.answer", " and question.identity == worker.identity", ""),
            ("Stacks.answer", "question is not None and ", ""),
        ],
        _OVERDUE + "test_a_worker_that_answers_knows_best": [
            ("Stacks.take", "one is not None and one.stack", "one is not None"),
            ("Stacks.take", "one is not None and ", ""),
            ("Stacks.take", "                with anyio.move_on_after(ALIVE_S):", "                if False:"),
            ("Stacks.take", "best.pid or worker.pid", "worker.pid"),
            ("Stacks.take", "best.pid or worker.pid", "best.pid"),
        ],
    },
    without={
        ("Stacks.answer", "number is not None"): "for the type checkers: nobody waits under the number None",
        ("Stacks.take", "best.stack is None"): "for the type checkers: the best has one",
    },
)
