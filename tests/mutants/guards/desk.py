"""The dispatcher's book: who may get what, and what becomes of a claim that its seat cannot run."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_DESK: Final = "unit/test_desk.py::"

DESK: Final = Guarded(
    "pulse_actors.dispatcher.workers.registry",
    {
        "store/test_visit_guards.py::test_a_drain": [
            ("WorkerRegistry.close", "self.closed or reconnect", "reconnect"),
            ("WorkerRegistry.close", "self.closed or reconnect", "self.closed"),
        ],
        "unit/test_policies.py::test_stalls": [("WorkerRegistry.stall_s", "own or ", "")],
        "unit/test_policies.py::test_fates": [("WorkerRegistry.by_fate", "if not keeps:", "if True:")],
        "unit/test_desk.py::test_where_a_job_waited": [
            (
                "WorkerRegistry.topic_of",
                "None if worker is None else ",
                "",
            ),
            (
                "WorkerRegistry.topic_of",
                '"" if held is None else ',
                "",
            ),
        ],
        _DESK + "test_a_silent_worker_gets_no_more": [
            (
                "WorkerRegistry.note_silence",
                " and not one.contact.silent",
                "",
            ),
            (
                "WorkerRegistry.note_silence",
                " and one.contact.heard_s < since_s",
                "",
            ),
            (
                "WorkerRegistry.note_silence",
                "            worker.contact.fall_silent()\n",
                "            pass\n",
            ),
        ],
        _DESK + "test_an_idle_worker_need_not_speak": [
            (
                "WorkerRegistry.note_silence",
                "one.held and ",
                "",
            ),
        ],
        _DESK + "test_who_is_known": [
            (
                "WorkerRegistry.find",
                "self._workers.get(identity) or ",
                "",
            ),
            (
                "WorkerRegistry.find",
                " or self.strangers.get(identity)",
                "",
            ),
            (
                "WorkerRegistry.find",
                " or self.away.get(identity)",
                "",
            ),
            (
                "WorkerRegistry.find",
                "self._workers.get(identity) or self.away.get(identity) or self.strangers",
                "self.strangers.get(identity) or self.away.get(identity) or self._workers",
            ),
            (
                "WorkerRegistry.unconnected",
                " if one.facts.session == session",
                "",
            ),
            (
                "WorkerRegistry.unconnected",
                "*self.away.values()",
                "*()",
            ),
            (
                "WorkerRegistry.unconnected",
                "*self.strangers.values()",
                "*()",
            ),
            (
                "WorkerRegistry.has_met",
                "identity in self._newest",
                "True",
            ),
            (
                "WorkerRegistry.has_met",
                "identity in self._newest",
                "False",
            ),
        ],
        _DESK + "test_a_superseded_worker_does_not_remove_its_successor": [
            (
                "WorkerRegistry.leave",
                "self._workers.get(worker.identity) is worker",
                "True",
            ),
        ],
        _DESK + "test_the_newest_connection_counts": [
            (
                "WorkerRegistry.is_newest",
                "number < self._newest.get(identity, 0)",
                "False",
            ),
            (
                "WorkerRegistry.is_newest",
                "number < self._newest.get(identity, 0)",
                "number <= self._newest.get(identity, 0)",
            ),
            (
                "WorkerRegistry.is_newest",
                "        self._newest[identity] = number\n",
                "",
            ),
        ],
        _DESK + "test_not_every_connection_is_remembered": [
            (
                "WorkerRegistry.is_newest",
                "len(self._newest) >= NEWEST_MAX",
                "False",
            ),
            (
                "WorkerRegistry.is_newest",
                "len(self._newest) >= NEWEST_MAX",
                "len(self._newest) > NEWEST_MAX",
            ),
            (
                "WorkerRegistry.is_newest",
                "        self._newest.pop(identity, None)  # the newest come last\n",
                "",
            ),
        ],
        _DESK + "test_who_is_away_still_holds_its_jobs": [
            (
                "WorkerRegistry.leave",
                "if worker.watched and worker.held:",
                "if False:",
            ),
            (
                "WorkerRegistry.leave",
                "worker.watched and ",
                "",
            ),
            (
                "WorkerRegistry.leave",
                " and worker.held",
                "",
            ),
            (
                "WorkerRegistry.join",
                "        self.away.pop(worker.identity, None)\n",
                "",
            ),
            (
                "WorkerRegistry.everybody",
                ", *self.away.values()",
                "",
            ),
        ],
        "store/test_witness.py::test_what_may_run_yet_is_handed_out_to_nobody": [
            (
                "WorkerRegistry.running_in_hand",
                " or pair in self.lost",
                "",
            ),
        ],
        _DESK + "test_what_runs_in_hand": [
            (
                "WorkerRegistry.running_in_hand",
                " if one.watched or pair in self.lost",
                "",
            ),
            (
                "WorkerRegistry.running_in_hand",
                ".intersection(jobs)",
                "",
            ),
            (
                "WorkerRegistry.everybody",
                ", *self.strangers.values()",
                "",
            ),
        ],
        _DESK + "test_what_a_worker_came_with_is_learned": [
            (
                "WorkerRegistry.learn",
                "pair in worker.held and ",
                "",
            ),
            (
                "WorkerRegistry.learn",
                " and not worker.held[pair].name",
                "",
            ),
            (
                "WorkerRegistry.learn",
                " if worker.held[pair].started",
                "",
            ),
        ],
        _DESK + "test_who_holds_a_job": [
            (
                "WorkerRegistry.holder_of",
                " if one == job",
                "",
            ),
            (
                "WorkerRegistry.holder_of",
                "key=lambda pair: pair[1]",
                "key=lambda pair: -pair[1]",
            ),
        ],
        _DESK + "test_the_parent_of_a_process": [
            (
                "WorkerRegistry.parent_of",
                "one.facts.pid == pid and ",
                "",
            ),
            (
                "WorkerRegistry.parent_of",
                " and not one.facts.topics",
                "",
            ),
        ],
        _DESK + "test_held_until_answered": [
            (
                "WorkerRegistry.held_among",
                ".intersection(jobs)",
                "",
            ),
            (
                "WorkerRegistry.started",
                "held is not None",
                "True",
            ),
            (
                "WorkerRegistry.started",
                "held.apart or pair in apart",
                "held.apart",
            ),
            (
                "WorkerRegistry.started",
                "held.apart or pair in apart",
                "pair in apart",
            ),
            (
                "WorkerRegistry.started",
                "                held.started = True\n",
                "",
            ),
            (
                "WorkerRegistry.started",
                "held.since_s or heard_s",
                "held.since_s",
            ),
            (
                "WorkerRegistry.started",
                "held.since_s or heard_s",
                "heard_s",
            ),
        ],
        _DESK + "test_a_closed_book_plans_nothing": [
            (
                "WorkerRegistry.plan",
                "if self.closed:",
                "if False:",
            ),
        ],
        _DESK + "test_workers_with_the_same_topics_share_a_claim": [
            (
                "WorkerRegistry.plan",
                "worker.credit > 0 and ",
                "",
            ),
        ],
        _DESK + "test_a_worker_without_topics_or_capacity_is_not_planned_for": [
            (
                "WorkerRegistry.plan",
                " and worker.facts.topics",
                "",
            ),
        ],
        _DESK + "test_topics_take_turns": [
            (
                "WorkerRegistry._claim_for",
                "self._turn % len(topics)",
                "0",
            ),
        ],
        _DESK + "test_who_must_end_in_time": [
            (
                "WorkerRegistry.started",
                "held.timeout_s is not None or ",
                "",
            ),
            (
                "WorkerRegistry.started",
                " or held.stall_s is not None",
                "",
            ),
            (
                "WorkerRegistry.started",
                "held.timeout_s is not None or held.stall_s is not None",
                "True",
            ),
        ],
        _DESK + "test_a_promise_is_the_handlers_else_the_topics": [
            (
                "WorkerRegistry.started",
                "held.stall_s is None",
                "False",
            ),
            (
                "WorkerRegistry.started",
                "held.stall_s is None",
                "True",
            ),
        ],
        _DESK + "test_jobs_are_dealt_in_turn": [
            (
                "deal",
                "len(credits_) == 1",
                "len(credits_)",
            ),
            (
                "deal",
                "while len(seats) < limit",
                "while len(seats) + 1 < limit",
            ),
            (
                "deal",
                "any(left)",
                "all(left)",
            ),
            (
                "deal",
                "if free and ",
                "if ",
            ),
            (
                "deal",
                "if free and len(seats) < limit",
                "if free",
            ),
        ],
    },
)


RECORDS: Final = Guarded(
    "pulse_actors.dispatcher.workers.records",
    {
        "store/test_visit_guards.py::test_a_drain": [
            (
                "RegisteredWorker.drain",
                "if not self.draining:",
                "if True:",
            ),
            (
                "RegisteredWorker.drain",
                "self.leaving or not reconnect",
                "not reconnect",
            ),
            (
                "RegisteredWorker.drain",
                "self.leaving or not reconnect",
                "self.leaving",
            ),
        ],
        "store/test_visit_guards.py::test_the_first_heartbeats_are_doubted": [
            (
                "Contact.has_doubtful_beat",
                "if not self.doubtful_beats:",
                "if False:",
            ),
            (
                "Contact.has_doubtful_beat",
                "self.doubtful_beats -= 1",
                "pass",
            ),
        ],
        "store/test_lease_guards.py::test_where_nothing_is_lost_nothing_is_said": [
            (
                "Contact.extend",
                "max(self.extended_s, at_s)",
                "at_s",
            ),
        ],
        _DESK + "test_credit_is_capacity_minus_held": [
            (
                "RegisteredWorker.credit",
                "max(0, self.capacity - len(self.jobs.held))",
                "self.capacity - len(self.jobs.held)",
            ),
            (
                "RegisteredWorker.credit",
                " - len(self.jobs.held)",
                "",
            ),
        ],
        _DESK + "test_a_draining_worker_has_no_credit": [
            (
                "RegisteredWorker.credit",
                "self.draining or ",
                "",
            ),
        ],
        _DESK + "test_a_worker_with_hanging_handlers_gets_no_more": [
            (
                "RegisteredWorker.credit",
                "self.closing or ",
                "",
            ),
        ],
        _DESK + "test_who_does_not_read_gets_no_more": [
            (
                "RegisteredWorker.credit",
                " or self.link.backlog_bytes > BACKLOG_BYTES",
                "",
            ),
            (
                "RegisteredWorker.credit",
                "backlog_bytes > BACKLOG_BYTES",
                "backlog_bytes >= BACKLOG_BYTES",
            ),
        ],
        _DESK + "test_a_silent_worker_gets_no_more": [
            (
                "RegisteredWorker.credit",
                " or self.contact.silent",
                "",
            ),
            (
                "Contact.hear",
                "= self.silent, now_s, False",
                "= self.silent, now_s, self.silent",
            ),
            (
                "Contact.hear",
                "= self.silent, now_s, False",
                "= self.silent, self.heard_s, False",
            ),
        ],
        _DESK + "test_who_speaks_for_a_worker": [
            (
                "Contact.hear",
                "if itself:",
                "if True:",
            ),
            (
                "Contact.hear",
                "if itself:",
                "if False:",
            ),
        ],
        "store/test_lease_guards.py::test_a_session_over_tcp_is_nobodys_of_here": [
            (
                "RegisteredWorker.is_remote",
                "self.facts.source is not None",
                "False",
            ),
        ],
    },
)


PLACEMENT: Final = Guarded(
    "pulse_actors.dispatcher.claims.placement",
    {
        _DESK + "test_a_job_whose_earlier_attempt_runs_yet_waits": [
            (
                "place",
                "if claim.id in held:",
                "if False:",
            ),
            (
                "place",
                "registry.running_in_hand(again) | running if again else running",
                "running",
            ),
            (
                "place",
                "registry.running_in_hand(again) | running if again",
                "registry.running_in_hand(again) if again",
            ),
            (
                "place",
                "ALL_BUSY_MIN_S * 2.0 ** given_back(claim)",
                "ALL_BUSY_MIN_S",
            ),
            (
                "place",
                "2.0 ** given_back(claim)",
                "2.0 ** claim.uncharged",
            ),
        ],
        _DESK + "test_what_no_frame_can_carry_is_a_dead_letter": [
            (
                "place",
                "_is_too_long(claim)",
                "False",
            ),
            (
                "length_of",
                ' + len(claim.checkpoint or "")',
                "",
            ),
            (
                "_bytes_of",
                'claim.checkpoint or ""',
                '""',
            ),
            (
                "_bytes_of",
                "len(text.encode())",
                "len(text)",
            ),
            (
                "_discarded",
                "if claim.checkpoint",
                "if True",
            ),
            (
                "_discarded",
                "if claim.checkpoint",
                "if False",
            ),
        ],
        _DESK + "test_what_the_last_attempt_left_counts_as_well": [
            (
                "length_of",
                ' + len(claim.previous or "")',
                "",
            ),
            (
                "_bytes_of",
                ', claim.previous or "")',
                ")",
            ),
        ],
        _DESK + "test_what_just_fits_is_assigned": [
            (
                "_is_too_long",
                " and _bytes_of(claim) > CLAIM_MAX_BYTES",
                "",
            ),
            (
                "_is_too_long",
                "_bytes_of(claim) > CLAIM_MAX_BYTES",
                "_bytes_of(claim) >= CLAIM_MAX_BYTES",
            ),
        ],
        _DESK + "test_a_claim_for_a_worker_that_left_is_put_back_at_once": [
            (
                "place",
                "seat in names and ",
                "",
            ),
            (
                "_returned",
                " or registry.get(fence.worker) is None",
                "",
            ),
        ],
        _DESK + "test_a_claim_that_its_seat_does_not_name_goes_to_an_heir": [
            (
                "place",
                " and claim.name in names[seat]",
                "",
            ),
            (
                "_heir",
                "max(able, key=lambda identity: free[identity], default=None)",
                "able[0] if able else None",
            ),
        ],
        _DESK + "test_capacity_that_was_lowered_meanwhile_is_respected": [
            (
                "place",
                " and free[seat] > 0",
                "",
            ),
            (
                "place",
                "            free[seat] -= 1\n",
                "",
            ),
        ],
        _DESK + "test_a_name_whose_workers_are_busy_comes_back_soon": [
            (
                "place",
                "if heir is not None:",
                "if True:",
            ),
            (
                "_heir",
                " if free[identity] > 0",
                "",
            ),
            (
                "_returned",
                "if _naming(registry, claim):",
                "if False:",
            ),
        ],
        _DESK + "test_an_heir_is_not_overfilled": [
            (
                "place",
                "            free[heir] -= 1\n",
                "",
            ),
        ],
        _DESK + "test_busy_names_come_back_later_and_later": [
            (
                "_returned",
                "min(ALL_BUSY_MAX_S, ALL_BUSY_MIN_S * longer)",
                "ALL_BUSY_MIN_S",
            ),
        ],
        _DESK + "test_a_name_served_on_another_topic_is_not_served": [
            (
                "_naming",
                " and claim.topic in one.facts.topics",
                "",
            ),
        ],
        _DESK + "test_a_name_that_nobody_serves_is_put_back_later_and_later": [
            (
                "_naming",
                "claim.name in one.facts.names and ",
                "",
            ),
            (
                "_returned",
                "given_back(claim)",
                "claim.uncharged",
            ),
            (
                "_returned",
                "if _naming(registry, claim):",
                "if True:",
            ),
        ],
        _DESK + "test_a_claim_that_comes_after_the_close_is_put_back_at_once": [
            (
                "_returned",
                "registry.closed or ",
                "",
            ),
        ],
    },
    without={
        (
            "_is_too_long",
            "length_of(claim) * _WIDEST_CHAR_BYTES > CLAIM_MAX_BYTES",
        ): "saves encoding texts that are short however wide their characters are",
        ("place", "claim.attempt > 1"): "saves a look: of a first attempt there is no earlier one",
    },
)
