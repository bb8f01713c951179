"""Claims: when they are made, from where, and what must not be handed out."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_CLAIMS: Final = "store/test_dispatcher_claims.py::"
_GUARDS: Final = "store/test_claim_guards.py::"
_REFUSED: Final = "store/test_refused.py::"
_SUBMITS: Final = "store/test_submit_and_claim.py::"
_FULL: Final = "if full:\n            "
_DEEDS: Final = ("self._cursors.full_begins", "self._cursors.full_done")

_DUE: Final = "unit/test_due.py::"

SIGNAL: Final = Guarded(
    "pulse_actors.dispatcher.claims.work_signal",
    {
        _GUARDS + "test_a_wake_that_names_no_level": [
            (
                "WorkSignal.wake_recent",
                "delay_s <= 0",
                "False",
            ),
            (
                "WorkSignal.wake_recent",
                "delay_s <= 0",
                "True",
            ),
            (
                "WorkSignal.wake_recent",
                "self._due.add(None, delay_s, time.monotonic())",
                "True",
            ),
        ],
        _GUARDS + "test_a_wake_that_names_its_level": [
            (
                "WorkSignal.wake_level",
                "delay_s <= 0",
                "False",
            ),
            (
                "WorkSignal.wake_level",
                "delay_s <= 0",
                "True",
            ),
            (
                "WorkSignal.wake_level",
                "self._due.add(level, delay_s, time.monotonic())",
                "True",
            ),
        ],
        _GUARDS + "test_what_became_due_during_a_claim": [
            (
                "WorkSignal.take_due",
                "return bool(passed)",
                "return False",
            ),
            (
                "WorkSignal.take_due",
                "level is None",
                "False",
            ),
            (
                "WorkSignal.take_due",
                "level is None",
                "True",
            ),
        ],
        _GUARDS + "test_what_is_due_later_is_waited_for": [
            (
                "WorkSignal.take_due",
                "return bool(passed)",
                "return True",
            ),
            (
                "WorkSignal.wait",
                "self._due.cut(pause_s, now_s)",
                "pause_s",
            ),
        ],
        "store/test_news.py::test_work_is_told_where_nobody_has_room": [
            ("WorkSignal.plan_made", "if left:", "if True:"),
            ("WorkSignal.plan_made", "if left:", "if False:"),
            ("WorkSignal.plan_made", ", set()", ", self._left"),
        ],
        "store/test_news.py::test_claims_tell_what_they_leave": [
            (
                "WorkSignal.wake_level",
                "self._left.add(level.topic)",
                "pass",
            ),
        ],
        _GUARDS + "test_who_comes_to_topics_that_others_serve_wants_no_full_claim": [
            (
                "WorkSignal.came",
                " if one is not worker",
                "",
            ),
            (
                "WorkSignal.came",
                "served.issuperset(worker.facts.topics)",
                "True",
            ),
            (
                "WorkSignal.came",
                "served.issuperset(worker.facts.topics)",
                "False",
            ),
        ],
        _SUBMITS + "test_when_claims_are_at_rest": [
            (
                "WorkSignal.wait",
                "self._is_waiting = has_room",
                "self._is_waiting = True",
            ),
            (
                "WorkSignal.wait",
                "self._is_waiting = False",
                "pass",
            ),
        ],
        _SUBMITS + "test_what_waits_for_its_claim": [
            (
                "WorkSignal.is_at_rest",
                " and not self._event.is_set()",
                "",
            ),
            ("WorkSignal.is_at_rest", "self._is_waiting", "True"),
        ],
        _DUE + "test_what_is_remembered": [
            ("DueTimes.add", "delay_s >= FAR_S or ", ""),
            ("DueTimes.add", "delay_s >= FAR_S", "delay_s > FAR_S"),
            ("DueTimes.add", " or len(self._heap) >= MAX_TIMES", ""),
            ("DueTimes.add", ">= MAX_TIMES", "> MAX_TIMES"),
        ],
        _DUE + "test_what_is_due": [
            ("DueTimes.passed", "while self._heap and ", "while "),
            ("DueTimes.passed", " and self._heap[0][0] <= now_s", ""),
            ("DueTimes.passed", "<= now_s", "< now_s"),
            ("DueTimes.cut", " if self._heap else pause_s", ""),
            ("DueTimes.cut", "min(pause_s, self._heap[0][0] - now_s)", "pause_s"),
            ("DueTimes.cut", "min(pause_s, self._heap[0][0] - now_s)", "self._heap[0][0] - now_s"),
        ],
    },
    without={("WorkSignal.plan_made", "self._left"): "only faster"},
)


CLAIMS: Final = Guarded(
    "pulse_actors.dispatcher.claims.loop",
    {
        _GUARDS + "test_what_became_due_during_a_claim": [
            ("ClaimLoop._pause", "self._signal.take_due(now_s)", "False"),
        ],
        _CLAIMS + "test_a_claim_whose_answer_was_lost": [
            ("ClaimLoop.pass_once", "if not self._in_doubt.is_settled:", "if False:"),
        ],
        _GUARDS + "test_without_room_nobody_polls": [
            (
                "ClaimLoop._pause",
                "not self._registry.closed and ",
                "",
            ),
            (
                "ClaimLoop._pause",
                "worker.credit\n            and ",
                "",
            ),
            (
                "ClaimLoop._pause",
                "if has_room else",
                "if False else",
            ),
            (
                "ClaimLoop._pause",
                "if has_room else",
                "if True else",
            ),
        ],
        "store/test_news.py::test_claims_tell_what_they_leave": [
            (
                "ClaimLoop._claimed",
                "len(claims) == len(plan.seats) or ",
                "",
            ),
            (
                "ClaimLoop._claimed",
                "if more:",
                "if False:",
            ),
        ],
        _CLAIMS + "test_a_claim_of_a_topic_that_ages_is_repeated": [
            (
                "ClaimLoop._claimed",
                "claims and ageing_s and",
                "ageing_s and",
            ),
            (
                "ClaimLoop._claimed",
                "claims and ageing_s and not ageing_s.keys().isdisjoint(plan.topics)",
                "False",
            ),
            (
                "ClaimLoop._claimed",
                " and not ageing_s.keys().isdisjoint(plan.topics)",
                "",
            ),
        ],
        _CLAIMS + "test_what_looking_everywhere_costs": [
            (
                "ClaimLoop.pass_once",
                "ended_s - cost_s if is_done else began_s",
                "began_s",
            ),
            (
                "ClaimLoop._claim_all",
                "starts is None or window is not None",
                "True",
            ),
            (
                "ClaimLoop._claim_all",
                "starts is None or",
                "False or",
            ),
            (
                "ClaimLoop._claim_all",
                "cost_s = await self._survey()",
                "await self._survey()",
            ),
        ],
        _CLAIMS + "test_a_claim_that_ended_because_of_its_size": [
            (
                "ClaimLoop._claimed",
                " or sum(map(_weight, claims)) > PART_CHARS",
                "",
            ),
        ],
        _CLAIMS + "test_many_topics_with_little_work": [
            (
                "ClaimLoop._starts",
                " and len(plan.topics) <= FEW_TOPICS",
                "",
            ),
            (
                "ClaimLoop._claimed",
                "plan.topics if starts is None else starts, version",
                "(), version",
            ),
            (
                "ClaimLoop._claimed",
                " and len(plan.topics) > FEW_TOPICS and len(starts) == LEVELS_MAX",
                "",
            ),
            (
                "ClaimLoop._claimed",
                " and len(starts) == LEVELS_MAX",
                "",
            ),
            (
                "ClaimLoop._claimed",
                "starts is not None and len(plan.topics)",
                "False and len(plan.topics)",
            ),
        ],
        _CLAIMS + "test_many_topics_are_served_in_turn": [
            (
                "ClaimLoop._claim_all",
                "full and any(len(plan.topics) > FEW_TOPICS for plan in plans)",
                "False",
            ),
            (
                "ClaimLoop._survey",
                " and head.level.topic in served",
                "",
            ),
            (
                "ClaimLoop._survey",
                "head.is_due and ",
                "",
            ),
            (
                "ClaimLoop._survey",
                "self._cursors.surveyed([head.level for head in heads])",
                "pass",
            ),
        ],
        _GUARDS + "test_a_full_claim_is_followed_by_another": [
            (
                "ClaimLoop.run",
                "if not more:",
                "if True:",
            ),
            (
                "ClaimLoop.run",
                "if not more:",
                "if False:",
            ),
        ],
        _GUARDS + "test_the_first_claim_is_full_and_the_next_is_not": [
            (
                "ClaimLoop.pass_once",
                "self._cursors.is_full_due(began_s)",
                "True",
            ),
            (
                "ClaimLoop.pass_once",
                "self._cursors.is_full_due(began_s)",
                "False",
            ),
            (
                "ClaimLoop._starts",
                "if full and len",
                "if len",
            ),
            (
                "ClaimLoop._starts",
                "if full and len(plan.topics) <= FEW_TOPICS:",
                "if False:",
            ),
            (
                "ClaimLoop.pass_once",
                "if full:\n            self._cursors.full_begins",
                "if False:\n            self._cursors.full_begins",
            ),
            (
                "ClaimLoop._claimed",
                "self._cursors.claimed(claims, more=more)",
                "pass",
            ),
            (
                "ClaimLoop._claimed",
                "if more:",
                "if True:",
            ),
        ],
        _REFUSED + "test_claims": [
            (
                "ClaimLoop._claim_readable",
                "if await self._refused_jobs.search(plan, starts):",
                "if False:",
            ),
            (
                "ClaimLoop._claim_readable",
                "self._cursors.want_full()",
                "pass",
            ),
        ],
        _REFUSED + "test_what_is_not_believed": [
            (
                "ClaimLoop._claim_readable",
                "not error.is_sure and ",
                "not error.is_sure or ",
            ),
            (
                "ClaimLoop._claim_readable",
                "self._quarantine.is_refused(plan.topics, full=is_full)",
                "True",
            ),
            (
                "ClaimLoop._claim_readable",
                "unbelieved.append(error.error)",
                "raise error.error from error",
            ),
            (
                "ClaimLoop.pass_once",
                "unbelieved or not is_done",
                "not is_done",
            ),
            (
                "ClaimLoop.pass_once",
                "if unbelieved:",
                "if False:",
            ),
        ],
        _REFUSED + "test_a_search_has_no_cost": [
            (
                "ClaimLoop._claim_readable",
                "not error.is_sure and ",
                "",
            ),
            (
                "ClaimLoop._claim_readable",
                "return True, 0.0",
                "return True, time.monotonic() - began_s",
            ),
        ],
        _GUARDS + "test_topics_that_are_claimed_together_go_on": [
            (
                "ClaimLoop._claim_all",
                "self._quarantine.divided(plans, plan_again, time.monotonic())",
                "plans",
            ),
        ],
        _GUARDS + "test_nothing_is_looked_for_until_a_topic_can_be_read_again": [
            (
                "ClaimLoop._pause",
                "\n            and not (quarantine is not None and quarantine.holds(worker.facts.topics, now_s))",
                "",
            ),
            (
                "ClaimLoop._pause",
                "worker.facts.topics\n            and not",
                "not",
            ),
            (
                "ClaimLoop.pass_once",
                " if not self._quarantine.holds(plan.topics, began_s)]",
                "]",
            ),
            (
                "ClaimLoop._pause",
                "not (quarantine is not None and quarantine.holds(worker.facts.topics, now_s))",
                "False",
            ),
        ],
        _GUARDS + "test_a_full_claim_that_failed_is_made_up_for": [
            (
                "ClaimLoop._pause",
                "if quarantine is not None and quarantine.has_missed(now_s):",
                "if False:",
            ),
        ],
        _GUARDS + "test_a_job_that_cannot_be_read_in_time": [
            (
                "ClaimLoop._claim_readable",
                "starts is None",
                "False",
            ),
            (
                "ClaimLoop._claim_readable",
                "if not ran_too_long(error):",
                "if True:",
            ),
            (
                "ClaimLoop._claim_readable",
                "if not ran_too_long(error):",
                "if False:",
            ),
            (
                "ClaimLoop._claim_readable",
                "lasts=False",
                "lasts=True",
            ),
            (
                "ClaimLoop._bar",
                "self._signal.wake_recent(",
                "(",
            ),
            (
                "ClaimLoop._claim_readable",
                "self._quarantine.succeeded(plan.topics, full=is_full)",
                "pass",
            ),
        ],
        _GUARDS + "test_much_work_behind_the_cursor": [
            (
                "ClaimLoop._claimed",
                "claimed(claims, more=more)",
                "claimed(claims)",
            ),
        ],
        _GUARDS + "test_where_full_claims_are_dear_windows_find_the_rest": [
            (
                "ClaimLoop._starts",
                "if window is None:",
                "if True:",
            ),
            (
                "ClaimLoop.pass_once",
                "self._cursors.window_due(began_s) if plans and not full else None",
                "None",
            ),
            (
                "ClaimLoop.pass_once",
                "elif window is not None:",
                "elif False:",
            ),
            (
                "ClaimLoop.pass_once",
                "if window is not None:\n                self",
                "if False:\n                self",
            ),
        ],
        _GUARDS + "test_a_window_that_fails_has_its_cost": [
            (
                "ClaimLoop.pass_once",
                "            if window is not None:\n                self",
                "            if done and window is not None:\n                self",
            ),
        ],
        _GUARDS + "test_a_claim_that_did_not_bring_all_it_could": [
            (
                "ClaimLoop._claimed",
                "len(claims) == len(plan.seats)",
                "True",
            ),
        ],
        _GUARDS + "test_where_nothing_is_known_nothing_is_asked": [
            (
                "ClaimLoop._claim_all",
                "starts == []",
                "False",
            ),
        ],
        _GUARDS + "test_where_nothing_waits_nothing_is_claimed": [
            (
                "ClaimLoop._starts",
                "self._cursors.is_empty(plan.topics, time.monotonic())",
                "False",
            ),
            (
                "ClaimLoop._claimed",
                "self._cursors.emptied(plan.topics)",
                "pass",
            ),
        ],
        _GUARDS + "test_a_pass_without_workers_is_no_full_claim": [
            (
                "ClaimLoop.pass_once",
                "bool(plans) and ",
                "",
            ),
        ],
        _GUARDS + "test_dispatch_that_closes_while_a_claim_waits_for_its_turn": [
            (
                "ClaimLoop._claim_all",
                "self._registry.closed",
                "False",
            ),
        ],
        _CLAIMS + "test_a_pass_hands_out_what_is_due": [
            (
                "ClaimLoop._claimed",
                "len(claims) == len(plan.seats)",
                "False",
            ),
        ],
        _CLAIMS + "test_a_full_claim_that_fails_is_not_repeated_at_once": [
            (
                "ClaimLoop.pass_once",
                "unbelieved or not is_done",
                "unbelieved",
            ),
        ],
        _CLAIMS + "test_a_full_claim_that_fails_has_its_cost": [
            (
                "ClaimLoop.pass_once",
                "ended_s - cost_s if is_done else began_s",
                "ended_s - cost_s",
            ),
            (
                "ClaimLoop.pass_once",
                _FULL + "    self._cursors.full_done",
                "if False:\n                self._cursors.full_done",
            ),
        ],
    },
    without={
        ("ClaimLoop._pause", "self._quarantine.is_active"): "only faster: nothing follows from no failure",
        ("ClaimLoop.pass_once", "self._quarantine.is_active"): "likewise",
        ("ClaimLoop._claim_all", "self._quarantine.is_active"): "likewise",
        ("ClaimLoop._claim_readable", "self._quarantine.is_active"): "likewise",
        (
            "ClaimLoop._starts",
            "len(plan.topics) <= FEW_TOPICS",
        ): "only faster: of many, those with work are named anyway",
    },
)


HANDOUT: Final = Guarded(
    "pulse_actors.dispatcher.claims.handout",
    {
        _GUARDS + "test_a_frame_holds_one_job_at_least": [
            ("_parts", " and index > start", ""),
            ("_parts", "start, size = index, length_of(claim)", "start, size = index, 0"),
        ],
        _GUARDS + "test_what_a_job_is_told_beside_its_args": [
            ("_extra", "if claim.uncharged:", "if False:"),
            ("_extra", "if claim.uncharged:", "if True:"),
            ("_extra", "claim.attempt == 1 and ", ""),
            ("_extra", " and claim.occurrence_at is None", ""),
            ("_extra", " and claim.traceparent is None", ""),
            ("_extra", "if claim.traceparent is not None:", "if True:"),
            ("_extra", "claim.occurrence_at is not None", "claim.occurrence_at"),
            ("_extra", "if claim.previous is not None or ", "if "),
            ("_extra", " or claim.checkpoint is not None", ""),
            (
                "_extra",
                "json.loads(claim.previous) if claim.previous is not None else",
                "json.loads(claim.previous) if True else",
            ),
            ("_extra", "claim.crashes >= ISOLATE_AT_CRASHES", "claim.crashes > ISOLATE_AT_CRASHES"),
            ("_extra", "claim.crashes >= ISOLATE_AT_CRASHES", "claim.crashes"),
            ("_extra", "return extra or None", "return {**extra}"),
        ],
        _GUARDS + "test_a_topic_of_its_own_rules": [
            ("_extra", "stall_s is None", "True"),
            ("_extra", "if stall_s is not None:", "if False:"),
            ("_extra", "if stall_s is not None:", "if True:"),
            (
                "Handout._lengthen",
                "claim.topic in leases",
                "False",
            ),
            (
                "Handout._lengthen",
                "if longer:",
                "if False:",
            ),
            (
                "Handout._lengthen",
                "if longer:",
                "if True:",
            ),
        ],
        _GUARDS + "test_what_a_refused_claim_took": [
            (
                "Handout._take_back",
                "if error.may_be_done:",
                "if True:",
            ),
            (
                "Handout._take_back",
                "if error.may_be_done:",
                "if False:",
            ),
            (
                "Handout._take_back",
                " if worker is not None",
                "",
            ),
            (
                "Handout._take_back",
                "if pair not in listed",
                "if True",
            ),
            (
                "Handout._take_back",
                "self._registry.listed(*workers)",
                "set()",
            ),
            (
                "Handout._take_back",
                "EndingKind.UNASSIGNED",
                "EndingKind.RELEASED",
            ),
            (
                "Handout._take_back",
                "self._in_doubt.confirm(plan.workers)",
                "pass",
            ),
        ],
        _REFUSED + "test_a_name_that_cannot_be_read": [
            (
                "Handout.fetch",
                "await self._take_back(plan, error)",
                "pass",
            ),
        ],
        _GUARDS + "test_a_cancel_while_a_lease_is_made_longer": [
            (
                "Handout.take",
                (
                    "        await self._lengthen(plan, claims)\n        wanted = [claim for claim in claims"
                    " if (claim.id, claim.attempt) not in self._canceled]\n"
                ),
                (
                    "        wanted = [claim for claim in claims if (claim.id, claim.attempt) not in self._canceled]\n"
                    "        await self._lengthen(plan, claims)\n"
                ),
            ),
        ],
        _REFUSED + "test_what_says_away_of_one_topic": [
            (
                "Handout.fetch",
                "if refusal is None:",
                "if True:",
            ),
        ],
        _REFUSED + "test_what_is_said_of_a_claim_that_was_made": [
            (
                "Handout.fetch",
                "await self._in_doubt.settle()",
                "pass",
            ),
        ],
        _CLAIMS + "test_a_claim_whose_answer_was_lost": [
            (
                "Handout.fetch",
                "self.begin(plan)",
                "pass",
            ),
            (
                "Handout._hand_out",
                "self._in_doubt.expect(heirs)",
                "pass",
            ),
        ],
        _CLAIMS + "test_a_job_that_is_canceled_while_it_is_claimed": [
            (
                "Handout.take",
                " if (claim.id, claim.attempt) not in self._canceled",
                "",
            ),
            (
                "Handout.take",
                "(claim.id, claim.attempt) not in",
                "(claim.id, 0) not in",
            ),
            (
                "Handout._hand_out",
                " and (claim.id, claim.attempt) not in self._canceled",
                "",
            ),
        ],
        _CLAIMS + "test_a_pass_hands_out_what_is_due": [
            (
                "Handout.take",
                "if wanted:",
                "if False:",
            ),
        ],
        _CLAIMS + "test_a_job_goes_to_who_names_it": [
            (
                "Handout._hand_out",
                "if placement.moved:",
                "if False:",
            ),
            (
                "Handout._assign_or_return",
                "self._registry.get(heir) is not None",
                "False",
            ),
        ],
        _GUARDS + "test_a_job_that_was_taken_away_while_it_is_passed_on": [
            (
                "Handout._hand_out",
                "claim.id in moved and ",
                "",
            ),
        ],
        _GUARDS + "test_passing_on_to_nobody_new": [
            (
                "Handout._hand_out",
                "if placement.moved:",
                "if True:",
            ),
            (
                "Handout._hand_out",
                "if placement.returned:",
                "if True:",
            ),
        ],
        _CLAIMS + "test_a_worker_that_leaves_while_it_is_claimed_for": [
            (
                "Handout._hand_out",
                "if placement.returned:",
                "if False:",
            ),
            (
                "Handout._assign_or_return",
                "self._registry.get(heir) is not None",
                "True",
            ),
        ],
        _GUARDS + "test_a_job_whose_canceled_attempt_runs_yet": [
            (
                "Handout._hand_out",
                " and self._may_run_yet(claim.previous)",
                " and False",
            ),
            (
                "Handout._hand_out",
                "place(self._registry, plan, claims, running)",
                "place(self._registry, plan, claims)",
            ),
        ],
        _CLAIMS + "test_nothing_is_claimed_after_the_close": [
            (
                "Handout._hand_out",
                "claim.previous is not None and ",
                "",
            ),
        ],
        _GUARDS + "test_which_attempts_may_run_yet": [
            (
                "Handout._may_run_yet",
                "not is_unended(outcome, error) or ",
                "",
            ),
            (
                "is_unended",
                "outcome in UNENDED or ",
                "",
            ),
            (
                "is_unended",
                " or error == WENT_BACK",
                "",
            ),
            (
                "Handout._may_run_yet",
                "not isinstance(worker, str) or ",
                "",
            ),
            (
                "Handout._may_run_yet",
                " or self._registry.get(worker) is not None",
                "",
            ),
            (
                "Handout._may_run_yet",
                "self._host is not None and ",
                "",
            ),
            (
                "Handout._may_run_yet",
                " and identities.is_in_hand(self._host, worker)",
                "",
            ),
        ],
        _CLAIMS + "test_long_args_are_spread_over_frames": [
            ("_parts", "size > ASSIGN_CHARS", "False"),
            (
                "Handout._assign",
                "worker.jobs.sent(len(parts))",
                "pass",
            ),
            (
                "Handout._assign",
                "sent(len(parts))",
                "sent(1)",
            ),
        ],
        _SUBMITS + "test_a_cancel_of_another_time": [
            (
                "Handout.begin",
                "self._canceled.clear()",
                "pass",
            ),
        ],
    },
    without={
        ("Handout._assign", "worker is None"): "cannot be: nothing was awaited since the placement",
    },
)


SUBMITS: Final = Guarded(
    "pulse_actors.dispatcher.writes.submit",
    {
        "store/test_swallowed.py::test_requests": [
            (
                "SubmitWriter._submit",
                "refuse_swallowed(len(jobs), sum(wake.jobs for wake in woken))",
                "True",
            ),
            (
                "SubmitWriter._submit_and_claim",
                "refuse_swallowed(len(jobs), len(claims) + len(woken))",
                "True",
            ),
        ],
        _SUBMITS + "test_what_waits_for_its_claim": [
            (
                "SubmitWriter._may_hand_out",
                "not self._signal.is_at_rest or ",
                "",
            ),
            (
                "SubmitWriter._may_hand_out",
                " or self._in_doubt",
                "",
            ),
            (
                "SubmitWriter._may_hand_out",
                "len(jobs) > self._batch or ",
                "",
            ),
            (
                "SubmitWriter._may_hand_out",
                "job.run_at is not None or ",
                "",
            ),
            (
                "SubmitWriter._may_hand_out",
                " or job.delay_s",
                "",
            ),
            (
                "SubmitWriter._may_hand_out",
                "all(excess(job.args, ASSIGN_CHARS // len(jobs)) is None for job in jobs)",
                "True",
            ),
            (
                "SubmitWriter._plan_for",
                "len(plan.seats) == len(jobs) and ",
                "",
            ),
            (
                "SubmitWriter._plan_for",
                " and len(plan.topics) <= FEW_TOPICS",
                "",
            ),
            (
                "SubmitWriter._plan_for",
                " and topics.issubset(plan.topics)",
                "",
            ),
            (
                "SubmitWriter.submit",
                "if plan is None:",
                "if False:",
            ),
        ],
        _SUBMITS + "test_a_submit_does_not_wait_for_a_claim": [
            (
                "SubmitWriter._may_hand_out",
                " or self._in_doubt.is_claiming",
                "",
            ),
        ],
        _SUBMITS + "test_a_job_that_finds_a_free_worker": [
            (
                "SubmitWriter.submit",
                "if not self._may_hand_out(jobs):",
                "if True:",
            ),
            (
                "SubmitWriter.submit",
                "if plan is None:",
                "if True:",
            ),
            (
                "SubmitWriter.submit",
                "if self._in_doubt.is_unconfirmed:",
                "if True:",
            ),
        ],
        _SUBMITS + "test_a_job_that_names_no_topic": [
            (
                "SubmitWriter._plan_for",
                " if job.topic is not None",
                "",
            ),
        ],
        _SUBMITS + "test_an_answer_that_was_lost": [
            (
                "SubmitWriter.submit",
                "if self._in_doubt.is_unconfirmed:",
                "if False:",
            ),
            (
                "SubmitWriter._submit_and_claim",
                "self._handout.begin(plan)",
                "pass",
            ),
        ],
        _SUBMITS + "test_a_job_that_cannot_be_stored": [
            (
                "SubmitWriter._submit_and_claim",
                "self._in_doubt.confirm(plan.workers)",
                "pass",
            ),
        ],
        _SUBMITS + "test_a_job_that_cannot_be_handed_out": [
            (
                "SubmitWriter.submit",
                "if woken is None",
                "if False",
            ),
            (
                "SubmitWriter._submit_and_claim",
                "error.sqlstate == UNIQUE_VIOLATION",
                "True",
            ),
        ],
        _SUBMITS + "test_an_answer_that_cannot_be_read": [
            (
                "SubmitWriter._submit_and_claim",
                "if error.may_be_done:",
                "if False:",
            ),
        ],
        _SUBMITS + "test_a_worker_that_has_fallen_silent": [
            (
                "SubmitWriter._plan_for",
                "self._handout.note_silence()",
                "pass",
            ),
        ],
    },
    is_part=True,
)


DOUBTS: Final = Guarded(
    "pulse_actors.dispatcher.claims.doubts",
    {
        "store/test_dispatcher_overdue.py::test_what_a_worker_came_with_has_a_limit_once_it_is_known": [
            ("InDoubtClaims.settle", "if self._deadlines is not None:", "if False:"),
        ],
        _CLAIMS + "test_a_claim_whose_answer_was_lost": [
            ("InDoubtClaims.settle", "self._registry.listed(worker)", "set()"),
            ("InDoubtClaims.settle", "if pair not in listed_of[worker.identity]", "if False"),
            (
                "InDoubtClaims.is_settled",
                "not self._in_doubt and ",
                "",
            ),
        ],
        _CLAIMS + "test_doubts_about_a_row_that_somebody_has_locked": [
            ("InDoubtClaims.settle", " | stuck", ""),
        ],
        "store/test_dispatcher_silence.py::test_what_a_worker_that_is_not_connected_was_never_given": [
            ("InDoubtClaims.give_back_unknown", "self._registry.listed(worker)", "set(worker.held)"),
            (
                "InDoubtClaims.give_back_unknown",
                "self._registry.listed(worker)",
                "self._registry.reporting",
            ),
            (
                "InDoubtClaims._give_back",
                "self._signal.wake_level(Level(ended.topic, ended.priority), ended.delay_s)",
                "pass",
            ),
        ],
        _GUARDS + "test_doubts_about_somebody_who_has_left": [
            ("InDoubtClaims.settle", " if one is not None", ""),
            ("InDoubtClaims.settle", "(self._doubted - asked)", "self._doubted"),
        ],
        _GUARDS + "test_a_lost_claim_may_commit_later": [
            ("InDoubtClaims.settle", "if worker.identity in self._in_doubt:", "if True:"),
            ("InDoubtClaims.settle", "if worker.identity in self._in_doubt:", "if False:"),
            ("InDoubtClaims.settle", "self._in_doubt -= asked", "pass"),
        ],
        _CLAIMS + "test_what_a_worker_does_not_list_is_given_back": [
            ("InDoubtClaims.give_back_unlisted", "for pair in running if pair not in listed", "for pair in running"),
            (
                "InDoubtClaims.give_back_unlisted",
                " for pair, job in running.items() if pair in listed",
                " for pair, job in running.items()",
            ),
            ("InDoubtClaims._give_back", "if not unlisted:", "if True:"),
        ],
        _GUARDS + "test_nothing_to_give_back_is_not_told": [
            ("InDoubtClaims._give_back", "if not unlisted:", "if False:"),
        ],
        "store/test_dispatcher_silence.py::test_what_a_speaking_worker_was_never_given": [
            (
                "InDoubtClaims.is_settled",
                " and not self._doubted",
                "",
            ),
        ],
    },
)
BARRED: Final = Guarded(
    "pulse_actors.dispatcher.claims.quarantine",
    {
        "unit/test_barred.py::test_it_is_active_as_long_as_something_may_follow": [
            ("Quarantine.succeeded", "self._pauses or ", ""),
            ("Quarantine.succeeded", "self._full or ", ""),
            ("Quarantine.succeeded", "self._apart or ", ""),
            ("Quarantine.succeeded", " or self._unbelieved", ""),
            ("Quarantine.is_refused", "self.is_active = True", "pass"),
        ],
        "unit/test_barred.py::test_a_claim_that_looks_elsewhere_proves_nothing": [
            ("Quarantine.succeeded", "for kind in (full, False)", "for kind in (True, False)"),
        ],
        "unit/test_barred.py::test_what_is_heard_each_time_is_believed": [
            ("Quarantine.succeeded", "for kind in (full, False)", "for kind in (full,)"),
            ("Quarantine.is_refused", "self._unbelieved[frozenset(topics), full] >= STUBBORN", "True"),
            ("Quarantine.is_refused", "self._unbelieved[frozenset(topics), full] += 1", "pass"),
        ],
        "unit/test_barred.py::test_what_may_have_passed_is_tried_again_soon": [
            ("Quarantine.failed", "REFUSED_S if lasts else ", ""),
            ("Quarantine.failed", "REFUSED_S if lasts else", "REFUSED_S if True else"),
            ("Quarantine.failed", "min(LONGEST_S, 2 * before_s)", "2 * before_s"),
            ("Quarantine.parts", "now_s < self._pauses", "now_s <= self._pauses"),
        ],
        "unit/test_barred.py::test_the_topic_is_found": [
            ("Quarantine.failed", "lasts or pause_s", "pause_s"),
            ("Quarantine.failed", "len(key) > 1 and (wholes or lasts or pause_s >= LONGEST_S)", "False"),
            ("Quarantine.failed", "len(key) > 1 and ", ""),
            ("Quarantine.parts", "if self._are_apart(key, now_s):", "if False:"),
            ("Quarantine.parts", "sorted(key)", "topics"),
            ("Quarantine._are_apart", " or any(frozenset((topic,)) in self._pauses for topic in key)", ""),
            ("Quarantine._are_apart", "now_s < until_s or ", ""),
            ("Quarantine._are_apart", "if until_s is None:", "if False:"),
            ("Quarantine.holds", "not self.parts(topics, now_s)", "True"),
            ("Quarantine._are_apart", "        del self._apart[key]\n", ""),
        ],
        "unit/test_barred.py::test_a_slow_time_divides_nothing_soon": [
            ("Quarantine.failed", "wholes or lasts or pause_s >= LONGEST_S", "True"),
            ("Quarantine.failed", "            self._pauses.pop(key, None)\n", ""),
        ],
        "unit/test_barred.py::test_claims_of_parts_are_made_one_behind_the_other": [
            ("Quarantine.divided", "if parts == [plan.topics]:", "if False:"),
            ("Quarantine.divided", " if one.topics == plan.topics", ""),
            ("Quarantine.divided", "if rest is not None:", "if True:"),
        ],
        "unit/test_barred.py::test_each_topic_is_first_in_its_turn": [
            ("Quarantine.divided", ", key=lambda part: plan.topics[0] not in part", ""),
            ("Quarantine.divided", "tuple(topic for topic in plan.topics if topic in part)", "part"),
        ],
        "unit/test_barred.py::test_a_slow_job_is_found_soon": [
            ("Quarantine.failed", "wholes or ", ""),
            ("Quarantine.failed", " if key < one", ""),
            ("Quarantine.failed", "[*wholes, key]", "[key]"),
        ],
        "unit/test_barred.py::test_what_was_to_look_at_everything_is_to_be_made_up_for": [
            ("Quarantine.failed", "if full:", "if True:"),
            ("Quarantine.failed", "if full:", "if False:"),
            ("Quarantine.has_missed", "self._full -= over", "pass"),
            ("Quarantine.has_missed", " if now_s >= self._pauses.get(key, (now_s, 0.0, False))[0]", ""),
        ],
        "unit/test_barred.py::test_others_go_on": [
            ("Quarantine.is_quarantined", "now_s < until_s and ", ""),
            ("Quarantine.is_quarantined", " and (lasts or pause_s >= LONGEST_S)", ""),
            ("Quarantine.is_quarantined", "lasts or ", ""),
            ("Quarantine.succeeded", "self._pauses.pop(key, None)", "self._pauses.clear()"),
        ],
    },
    without={
        ("Quarantine.holds", "bool(self._pauses)"): "only faster",
    },
)
