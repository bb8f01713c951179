"""The dispatcher's book: who may get what, and what becomes of a claim that its seat cannot run."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_DESK: Final = "unit/test_desk.py::"
_RUNS: Final = "worker is not None and claim.name in worker.names and room[seat] > 0"
_TOO_LONG: Final = "length_of(claim) * _WIDEST_CHAR_BYTES > CLAIM_MAX_BYTES and _bytes_of(claim) > CLAIM_MAX_BYTES"

DESK: Final = Guarded(
    "pulse_actors.dispatcher.workers.registry",
    {
        _DESK + "test_credit_is_capacity_minus_held": [
            ("Worker.credit", "max(0, self.capacity - len(self.held))", "self.capacity - len(self.held)"),
            ("Worker.credit", " - len(self.held)", ""),
        ],
        _DESK + "test_a_draining_worker_has_no_credit": [
            ("Worker.credit", "self.draining or ", ""),
        ],
        _DESK + "test_a_worker_with_hanging_handlers_gets_no_more": [
            ("Worker.credit", "self.closing or ", ""),
        ],
        _DESK + "test_who_does_not_read_gets_no_more": [
            ("Worker.credit", " or self.link.backlog_bytes > BACKLOG_BYTES", ""),
            ("Worker.credit", "backlog_bytes > BACKLOG_BYTES", "backlog_bytes >= BACKLOG_BYTES"),
        ],
        _DESK + "test_a_silent_worker_gets_no_more": [
            ("Worker.credit", " or self.silent", ""),
            ("Worker.hear", "= self.silent, now_s, False", "= self.silent, now_s, self.silent"),
            ("Worker.hear", "= self.silent, now_s, False", "= self.silent, self.heard_s, False"),
            ("Desk.note_silence", " and not one.silent", ""),
            ("Desk.note_silence", " and one.heard_s < since_s", ""),
            ("Desk.note_silence", "            worker.silent = True\n", "            pass\n"),
        ],
        _DESK + "test_who_speaks_for_a_worker": [
            ("Worker.hear", "if itself:", "if True:"),
            ("Worker.hear", "if itself:", "if False:"),
        ],
        _DESK + "test_an_idle_worker_need_not_speak": [
            ("Desk.note_silence", "one.held and ", ""),
        ],
        _DESK + "test_who_is_known": [
            ("Desk.known", "self._workers.get(identity) or ", ""),
            ("Desk.known", " or self.strangers.get(identity)", ""),
            ("Desk.known", " or self.away.get(identity)", ""),
            (
                "Desk.known",
                "self._workers.get(identity) or self.away.get(identity) or self.strangers",
                "self.strangers.get(identity) or self.away.get(identity) or self._workers",
            ),
            ("Desk.unconnected", " if one.session == session", ""),
            ("Desk.unconnected", "*self.away.values()", "*()"),
            ("Desk.unconnected", "*self.strangers.values()", "*()"),
            ("Desk.has_met", "identity in self._newest", "True"),
            ("Desk.has_met", "identity in self._newest", "False"),
        ],
        _DESK + "test_a_superseded_worker_does_not_remove_its_successor": [
            ("Desk.leave", "self._workers.get(worker.identity) is worker", "True"),
        ],
        _DESK + "test_the_newest_connection_counts": [
            ("Desk.is_newest", "number < self._newest.get(identity, 0)", "False"),
            ("Desk.is_newest", "number < self._newest.get(identity, 0)", "number <= self._newest.get(identity, 0)"),
            ("Desk.is_newest", "        self._newest[identity] = number\n", ""),
        ],
        _DESK + "test_not_every_connection_is_remembered": [
            ("Desk.is_newest", "len(self._newest) >= NEWEST_MAX", "False"),
            ("Desk.is_newest", "len(self._newest) >= NEWEST_MAX", "len(self._newest) > NEWEST_MAX"),
            ("Desk.is_newest", "        self._newest.pop(identity, None)  # the newest come last\n", ""),
        ],
        _DESK + "test_who_is_away_still_holds_its_jobs": [
            ("Desk.leave", "if worker.watched and worker.held:", "if False:"),
            ("Desk.leave", "worker.watched and ", ""),
            ("Desk.leave", " and worker.held", ""),
            ("Desk.join", "        self.away.pop(worker.identity, None)\n", ""),
            ("Desk.everybody", ", *self.away.values()", ""),
        ],
        "store/test_witness.py::test_what_may_run_yet_is_handed_out_to_nobody": [
            ("Desk.running_in_hand", " or pair in self.lost", ""),
        ],
        _DESK + "test_what_runs_in_hand": [
            ("Desk.running_in_hand", " if one.watched or pair in self.lost", ""),
            ("Desk.running_in_hand", ".intersection(jobs)", ""),
            ("Desk.everybody", ", *self.strangers.values()", ""),
        ],
        _DESK + "test_a_job_whose_earlier_attempt_runs_yet_waits": [
            ("Desk.place", "if claim.id in held:", "if False:"),
            ("Desk.place", "self.running_in_hand(again) | running if again else running", "running"),
            ("Desk.place", "self.running_in_hand(again) | running if again", "self.running_in_hand(again) if again"),
            ("Desk.place", "ALL_BUSY_MIN_S * 2.0 ** given_back(claim)", "ALL_BUSY_MIN_S"),
            ("Desk.place", "2.0 ** given_back(claim)", "2.0 ** claim.uncharged"),
        ],
        _DESK + "test_what_a_worker_came_with_is_learned": [
            ("Desk.learn", "pair in worker.held and ", ""),
            ("Desk.learn", " and not worker.held[pair].name", ""),
            ("Desk.learn", " if worker.held[pair].started", ""),
        ],
        _DESK + "test_who_holds_a_job": [
            ("Desk.holder_of", " if one == job", ""),
            ("Desk.holder_of", "key=lambda pair: pair[1]", "key=lambda pair: -pair[1]"),
        ],
        _DESK + "test_the_parent_of_a_process": [
            ("Desk.parent_of", "one.pid == pid and ", ""),
            ("Desk.parent_of", " and not one.topics", ""),
        ],
        _DESK + "test_held_until_answered": [
            ("Desk.held_among", ".intersection(jobs)", ""),
            ("Desk.started", "held is not None", "True"),
            ("Desk.started", "held.apart or pair in apart", "held.apart"),
            ("Desk.started", "held.apart or pair in apart", "pair in apart"),
            ("Desk.started", "                held.started = True\n", ""),
            ("Desk.started", "held.since_s or worker.heard_s", "held.since_s"),
            ("Desk.started", "held.since_s or worker.heard_s", "worker.heard_s"),
        ],
        _DESK + "test_a_closed_book_plans_nothing": [
            ("Desk.plan", "if self.closed:", "if False:"),
        ],
        _DESK + "test_workers_with_the_same_topics_share_a_claim": [
            ("Desk.plan", "worker.credit > 0 and ", ""),
        ],
        "store/test_lease_guards.py::test_a_session_over_tcp_is_nobodys_of_here": [
            ("Worker.is_remote", "self.source is not None", "False"),
        ],
        _DESK + "test_a_worker_without_topics_or_capacity_is_not_planned_for": [
            ("Desk.plan", " and worker.topics", ""),
        ],
        _DESK + "test_topics_take_turns": [
            ("Desk._claim_for", "self._turn % len(topics)", "0"),
        ],
        _DESK + "test_what_no_frame_can_carry_is_a_dead_letter": [
            ("Desk.place", "_is_too_long(claim)", "False"),
            ("length_of", ' + len(claim.checkpoint or "")', ""),
            ("_bytes_of", 'claim.checkpoint or ""', '""'),
            ("_bytes_of", "len(text.encode())", "len(text)"),
            ("_discarded", "if claim.checkpoint", "if True"),
            ("_discarded", "if claim.checkpoint", "if False"),
        ],
        _DESK + "test_what_the_last_attempt_left_counts_as_well": [
            ("length_of", ' + len(claim.previous or "")', ""),
            ("_bytes_of", ', claim.previous or "")', ")"),
        ],
        _DESK + "test_what_just_fits_is_assigned": [
            ("_is_too_long", " and _bytes_of(claim) > CLAIM_MAX_BYTES", ""),
            ("_is_too_long", "_bytes_of(claim) > CLAIM_MAX_BYTES", "_bytes_of(claim) >= CLAIM_MAX_BYTES"),
        ],
        _DESK + "test_a_claim_for_a_worker_that_left_is_put_back_at_once": [
            ("Desk.place", "worker is not None and ", ""),
            ("Desk._returned", " or fence.worker not in self._workers", ""),
        ],
        _DESK + "test_a_claim_that_its_seat_does_not_name_goes_to_an_heir": [
            ("Desk.place", " and claim.name in worker.names", ""),
            ("Desk._heir", "max(able, key=lambda identity: room[identity], default=None)", "able[0] if able else None"),
        ],
        _DESK + "test_capacity_that_was_lowered_meanwhile_is_respected": [
            ("Desk.place", " and room[seat] > 0", ""),
            ("Desk.place", "                room[seat] -= 1\n", ""),
        ],
        _DESK + "test_a_name_whose_workers_are_busy_comes_back_soon": [
            ("Desk.place", "if heir is not None:", "if True:"),
            ("Desk._heir", " if room[identity] > 0", ""),
            ("Desk._returned", "if self._naming(claim):", "if False:"),
        ],
        _DESK + "test_an_heir_is_not_overfilled": [
            ("Desk.place", "                room[heir] -= 1\n", ""),
        ],
        _DESK + "test_busy_names_come_back_later_and_later": [
            ("Desk._returned", "min(ALL_BUSY_MAX_S, ALL_BUSY_MIN_S * longer)", "ALL_BUSY_MIN_S"),
        ],
        _DESK + "test_a_name_served_on_another_topic_is_not_served": [
            ("Desk._naming", " and claim.topic in one.topics", ""),
        ],
        _DESK + "test_a_name_that_nobody_serves_is_put_back_later_and_later": [
            ("Desk._naming", "claim.name in one.names and ", ""),
            ("Desk._returned", "given_back(claim)", "claim.uncharged"),
            ("Desk._returned", "if self._naming(claim):", "if True:"),
        ],
        _DESK + "test_a_claim_that_comes_after_the_close_is_put_back_at_once": [
            ("Desk._returned", "self.closed or ", ""),
        ],
        _DESK + "test_who_must_end_in_time": [
            ("Desk.started", "held.timeout_s is not None or ", ""),
            ("Desk.started", " or held.stall_s is not None", ""),
            ("Desk.started", "held.timeout_s is not None or held.stall_s is not None", "True"),
        ],
        _DESK + "test_a_promise_is_the_handlers_else_the_topics": [
            ("Desk.started", "held.stall_s is None", "False"),
            ("Desk.started", "held.stall_s is None", "True"),
        ],
        _DESK + "test_jobs_are_dealt_in_turn": [
            ("deal", "len(credits_) == 1", "len(credits_)"),
            ("deal", "while len(seats) < limit", "while len(seats) + 1 < limit"),
            ("deal", "any(left)", "all(left)"),
            ("deal", "if free and ", "if "),
            ("deal", "if free and len(seats) < limit", "if free"),
        ],
    },
    without={
        ("_is_too_long", "length_of(claim) * _WIDEST_CHAR_BYTES > CLAIM_MAX_BYTES"): (
            "saves encoding texts that are short however wide their characters are"
        ),
        ("Desk.place", "claim.attempt > 1"): "saves a look: of a first attempt there is no earlier one",
    },
)
