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

CLAIMS: Final = Guarded(
    "pulse_actors.dispatcher.claims.loop",
    {
        _GUARDS + "test_a_wake_that_names_no_level": [
            ("Claims.wake_recent", "delay_s <= 0", "False"),
            ("Claims.wake_recent", "delay_s <= 0", "True"),
            ("Claims.wake_recent", "self._due.add(None, delay_s, time.monotonic())", "True"),
        ],
        _GUARDS + "test_a_wake_that_names_its_level": [
            ("Claims.wake_level", "delay_s <= 0", "False"),
            ("Claims.wake_level", "delay_s <= 0", "True"),
            ("Claims.wake_level", "self._due.add(level, delay_s, time.monotonic())", "True"),
        ],
        _GUARDS + "test_what_became_due_during_a_claim": [
            ("Claims._pause", "if passed:", "if False:"),
            ("Claims._pause", "level is None", "False"),
            ("Claims._pause", "level is None", "True"),
        ],
        _GUARDS + "test_what_is_due_later_is_waited_for": [
            ("Claims._pause", "if passed:", "if True:"),
            ("Claims._pause", "self._due.cut(pause_s, now_s)", "pause_s"),
        ],
        _GUARDS + "test_without_room_nobody_polls": [
            ("Claims._pause", "not self._desk.closed and ", ""),
            ("Claims._pause", "worker.credit and ", ""),
            ("Claims._pause", "if has_room else", "if False else"),
            ("Claims._pause", "if has_room else", "if True else"),
        ],
        _GUARDS + "test_a_topic_of_its_own_rules": [
            ("Claims._lengthen", "claim.topic in leases", "False"),
            ("Claims._lengthen", "if longer:", "if False:"),
            ("Claims._lengthen", "if longer:", "if True:"),
        ],
        "store/test_swallowed.py::test_requests": [
            ("Claims._submit", "refuse_swallowed(len(jobs), sum(wake.jobs for wake in woken))", "True"),
            ("Claims._submit_and_claim", "refuse_swallowed(len(jobs), len(claims) + len(woken))", "True"),
        ],
        _SUBMITS + "test_what_waits_for_its_claim": [
            ("Claims._may_hand_out", "not self._is_at_rest or ", ""),
            ("Claims._may_hand_out", "self._wake.is_set() or ", ""),
            ("Claims._may_hand_out", " or self._in_doubt", ""),
            ("Claims._may_hand_out", " or self._doubted", ""),
            ("Claims._may_hand_out", "len(jobs) > self._batch or ", ""),
            ("Claims._may_hand_out", "job.run_at is not None or ", ""),
            ("Claims._may_hand_out", " or job.delay_s", ""),
            (
                "Claims._may_hand_out",
                "all(excess(job.args, ASSIGN_CHARS // len(jobs)) is None for job in jobs)",
                "True",
            ),
            ("Claims._plan_for", "len(plan.seats) == len(jobs) and ", ""),
            ("Claims._plan_for", " and len(plan.topics) <= FEW_TOPICS", ""),
            ("Claims._plan_for", " and topics.issubset(plan.topics)", ""),
            ("Claims.submit", "if plan is None:", "if False:"),
        ],
        _SUBMITS + "test_a_submit_does_not_wait_for_a_claim": [
            ("Claims._may_hand_out", " or self.lock.locked()", ""),
        ],
        _SUBMITS + "test_a_job_that_finds_a_free_worker": [
            ("Claims.submit", "if not self._may_hand_out(jobs):", "if True:"),
            ("Claims.submit", "if plan is None:", "if True:"),
            ("Claims.submit", "if self._in_doubt:", "if True:"),
        ],
        _SUBMITS + "test_a_job_that_names_no_topic": [
            ("Claims._plan_for", " if job.topic is not None", ""),
        ],
        _SUBMITS + "test_an_answer_that_was_lost": [
            ("Claims.submit", "if self._in_doubt:", "if False:"),
            ("Claims._submit_and_claim", "self._in_doubt.update(plan.workers)", "pass"),
        ],
        _SUBMITS + "test_a_job_that_cannot_be_stored": [
            ("Claims._submit_and_claim", "self._in_doubt.difference_update(plan.workers)", "pass"),
        ],
        _SUBMITS + "test_a_job_that_cannot_be_handed_out": [
            ("Claims.submit", "if woken is None", "if False"),
            ("Claims._submit_and_claim", "error.sqlstate == UNIQUE_VIOLATION", "True"),
        ],
        _SUBMITS + "test_an_answer_that_cannot_be_read": [
            ("Claims._submit_and_claim", "if error.may_be_done:", "if False:"),
        ],
        _GUARDS + "test_what_a_refused_claim_took": [
            ("Claims._take_back", "if error.may_be_done:", "if True:"),
            ("Claims._take_back", "if error.may_be_done:", "if False:"),
            ("Claims._take_back", " if worker is not None", ""),
            ("Claims._take_back", "if pair not in listed", "if True"),
            ("Claims._take_back", "self._desk.reporting.union(*(worker.held for worker in workers))", "set()"),
            ("Claims._take_back", "EndingKind.UNASSIGNED", "EndingKind.RELEASED"),
            ("Claims._take_back", "self._in_doubt.difference_update(plan.workers)", "pass"),
        ],
        _REFUSED + "test_a_name_that_cannot_be_read": [
            ("Claims._fetch", "await self._take_back(plan, error)", "pass"),
        ],
        _SUBMITS + "test_a_cancel_of_another_time": [
            ("Claims._submit_and_claim", "self._canceled.clear()", "pass"),
        ],
        _SUBMITS + "test_a_worker_that_has_fallen_silent": [
            ("Claims._plan_for", "self._note_silence()", "pass"),
        ],
        _SUBMITS + "test_when_claims_are_at_rest": [
            ("Claims._pause", "self._is_at_rest = has_room", "self._is_at_rest = True"),
            ("Claims._pause", "self._is_at_rest = False", "pass"),
        ],
        "store/test_news.py::test_claims_tell_what_they_leave": [
            ("Claims._claimed", "len(claims) == len(plan.seats) or ", ""),
            ("Claims._claimed", "if more:", "if False:"),
            ("Claims.wake_level", "self.work_left((level.topic,))", "pass"),
        ],
        _CLAIMS + "test_a_claim_of_a_topic_that_ages_is_repeated": [
            ("Claims._claimed", "claims and ageing_s and", "ageing_s and"),
            ("Claims._claimed", "claims and ageing_s and not ageing_s.keys().isdisjoint(plan.topics)", "False"),
            ("Claims._claimed", " and not ageing_s.keys().isdisjoint(plan.topics)", ""),
        ],
        _CLAIMS + "test_what_looking_everywhere_costs": [
            ("Claims.pass_once", "ended_s - cost_s if is_done else began_s", "began_s"),
            ("Claims._claim_all", "starts is None or window is not None", "True"),
            ("Claims._claim_all", "starts is None or", "False or"),
            ("Claims._claim_all", "cost_s = await self._survey()", "await self._survey()"),
        ],
        _CLAIMS + "test_a_claim_that_ended_because_of_its_size": [
            ("Claims._claimed", " or sum(map(_weight, claims)) > PART_CHARS", ""),
        ],
        _CLAIMS + "test_many_topics_with_little_work": [
            ("Claims._starts", " and len(plan.topics) <= FEW_TOPICS", ""),
            ("Claims._claimed", "plan.topics if starts is None else starts, news_count", "(), news_count"),
            ("Claims._claimed", " and len(plan.topics) > FEW_TOPICS and len(starts) == LEVELS_MAX", ""),
            ("Claims._claimed", " and len(starts) == LEVELS_MAX", ""),
            ("Claims._claimed", "starts is not None and len(plan.topics)", "False and len(plan.topics)"),
        ],
        _CLAIMS + "test_many_topics_are_served_in_turn": [
            ("Claims._claim_all", "full and any(len(plan.topics) > FEW_TOPICS for plan in plans)", "False"),
            ("Claims._survey", " and head.level.topic in served", ""),
            ("Claims._survey", "head.is_due and ", ""),
            ("Claims._survey", "self._cursors.surveyed([head.level for head in heads])", "pass"),
        ],
        _GUARDS + "test_a_full_claim_is_followed_by_another": [
            ("Claims.run", "if not more:", "if True:"),
            ("Claims.run", "if not more:", "if False:"),
        ],
        _GUARDS + "test_the_first_claim_is_full_and_the_next_is_not": [
            ("Claims.pass_once", "self._cursors.is_full_due(began_s)", "True"),
            ("Claims.pass_once", "self._cursors.is_full_due(began_s)", "False"),
            ("Claims._starts", "if full and len", "if len"),
            ("Claims._starts", "if full and len(plan.topics) <= FEW_TOPICS:", "if False:"),
            (
                "Claims.pass_once",
                "if full:\n            self._cursors.full_begins",
                "if False:\n            self._cursors.full_begins",
            ),
            ("Claims._claimed", "self._cursors.claimed(claims, more=more)", "pass"),
            ("Claims._claimed", "if more:", "if True:"),
        ],
        _GUARDS + "test_a_cancel_while_a_lease_is_made_longer": [
            (
                "Claims._take",
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
        _REFUSED + "test_claims": [
            ("Claims._claim_readable", "if await self.bad_jobs.search(plan, starts):", "if False:"),
            ("Claims._claim_readable", "self._cursors.want_full()", "pass"),
        ],
        _REFUSED + "test_what_says_away_of_one_topic": [
            ("Claims._fetch", "if refusal is None:", "if True:"),
        ],
        _REFUSED + "test_what_is_not_believed": [
            ("Claims._claim_readable", "not error.is_sure and ", "not error.is_sure or "),
            ("Claims._claim_readable", "self.barred.is_refused(plan.topics, full=is_full)", "True"),
            ("Claims._claim_readable", "unbelieved.append(error.error)", "raise error.error from error"),
            ("Claims.pass_once", "unbelieved or not is_done", "not is_done"),
            ("Claims.pass_once", "if unbelieved:", "if False:"),
        ],
        _REFUSED + "test_what_is_said_of_a_claim_that_was_made": [
            ("Claims._fetch", "await self._settle_doubts()", "pass"),
        ],
        _REFUSED + "test_a_search_has_no_cost": [
            ("Claims._claim_readable", "not error.is_sure and ", ""),
            ("Claims._claim_readable", "return True, 0.0", "return True, time.monotonic() - began_s"),
        ],
        _GUARDS + "test_topics_that_are_claimed_together_go_on": [
            (
                "Claims._claim_all",
                "self.barred.divided(plans, lambda: self._desk.plan(self._batch, again=True), time.monotonic())",
                "plans",
            ),
        ],
        _GUARDS + "test_nothing_is_looked_for_until_a_topic_can_be_read_again": [
            ("Claims._pause", " and not self.barred.are_barred(worker.topics, now_s)", ""),
            ("Claims._pause", "worker.topics and not", "not"),
            ("Claims.pass_once", " if not self.barred.are_barred(plan.topics, began_s)]", "]"),
            ("Claims._pause", "not self.barred.are_barred(worker.topics, now_s)", "False"),
        ],
        _GUARDS + "test_a_full_claim_that_failed_is_made_up_for": [
            ("Claims._pause", "if self.barred.has_missed(now_s):", "if False:"),
        ],
        _GUARDS + "test_a_job_that_cannot_be_read_in_time": [
            ("Claims._claim_readable", "starts is None", "False"),
            ("Claims._claim_readable", "if not ran_too_long(error):", "if True:"),
            ("Claims._claim_readable", "if not ran_too_long(error):", "if False:"),
            ("Claims._claim_readable", "lasts=False", "lasts=True"),
            ("Claims._bar", "self.wake_recent(", "("),
            ("Claims._claim_readable", "self.barred.succeeded(plan.topics, full=is_full)", "pass"),
        ],
        _GUARDS + "test_much_work_behind_the_cursor": [
            ("Claims._claimed", "claimed(claims, more=more)", "claimed(claims)"),
        ],
        _GUARDS + "test_where_full_claims_are_dear_windows_find_the_rest": [
            ("Claims._starts", "if window is None:", "if True:"),
            ("Claims.pass_once", "self._cursors.window_due(began_s) if plans and not full else None", "None"),
            ("Claims.pass_once", "elif window is not None:", "elif False:"),
            ("Claims.pass_once", "if window is not None:\n                self", "if False:\n                self"),
        ],
        _GUARDS + "test_who_comes_to_topics_that_others_serve_wants_no_full_claim": [
            ("Claims.came", " if one is not worker", ""),
            ("Claims.came", "served.issuperset(worker.topics)", "True"),
            ("Claims.came", "served.issuperset(worker.topics)", "False"),
        ],
        _GUARDS + "test_a_window_that_fails_has_its_cost": [
            (
                "Claims.pass_once",
                "            if window is not None:\n                self",
                "            if done and window is not None:\n                self",
            ),
        ],
        _GUARDS + "test_a_claim_that_did_not_bring_all_it_could": [
            ("Claims._claimed", "len(claims) == len(plan.seats)", "True"),
        ],
        _GUARDS + "test_where_nothing_is_known_nothing_is_asked": [
            ("Claims._claim_all", "starts == []", "False"),
        ],
        _GUARDS + "test_where_nothing_waits_nothing_is_claimed": [
            ("Claims._starts", "self._cursors.is_empty(plan.topics, time.monotonic())", "False"),
            ("Claims._claimed", "self._cursors.emptied(plan.topics)", "pass"),
        ],
        _GUARDS + "test_a_pass_without_workers_is_no_full_claim": [
            ("Claims.pass_once", "bool(plans) and ", ""),
        ],
        _GUARDS + "test_dispatch_that_closes_while_a_claim_waits_for_its_turn": [
            ("Claims._claim_all", "self._desk.closed", "False"),
        ],
        _CLAIMS + "test_a_claim_whose_answer_was_lost": [
            ("Claims.pass_once", "self._in_doubt or ", ""),
            ("Claims._fetch", "self._in_doubt.update(plan.workers)", "pass"),
            ("Claims._hand_out", "self._in_doubt.update(heirs)", "pass"),
        ],
        "store/test_dispatcher_silence.py::test_what_a_speaking_worker_was_never_given": [
            ("Claims.pass_once", " or self._doubted", ""),
        ],
        _CLAIMS + "test_a_job_that_is_canceled_while_it_is_claimed": [
            ("Claims._take", " if (claim.id, claim.attempt) not in self._canceled", ""),
            ("Claims._take", "(claim.id, claim.attempt) not in", "(claim.id, 0) not in"),
        ],
        _CLAIMS + "test_a_pass_hands_out_what_is_due": [
            ("Claims._claimed", "len(claims) == len(plan.seats)", "False"),
            ("Claims._take", "if wanted:", "if False:"),
        ],
        _CLAIMS + "test_a_job_goes_to_who_names_it": [
            ("Claims._hand_out", "if placement.moved:", "if False:"),
            ("Claims._assign_or_return", "self._desk.get(heir) is not None", "False"),
        ],
        _CLAIMS + "test_a_job_that_is_canceled_while_it_is_passed_on": [
            ("Claims._hand_out", " and (claim.id, claim.attempt) not in self._canceled", ""),
        ],
        _GUARDS + "test_a_job_that_was_taken_away_while_it_is_passed_on": [
            ("Claims._hand_out", "claim.id in moved and ", ""),
        ],
        _GUARDS + "test_passing_on_to_nobody_new": [
            ("Claims._hand_out", "if placement.moved:", "if True:"),
            ("Claims._hand_out", "if placement.returned:", "if True:"),
        ],
        _CLAIMS + "test_a_seat_that_leaves_meanwhile": [
            ("Claims._hand_out", "if placement.returned:", "if False:"),
        ],
        _CLAIMS + "test_an_heir_that_leaves_meanwhile": [
            ("Claims._assign_or_return", "self._desk.get(heir) is not None", "True"),
        ],
        _GUARDS + "test_a_job_whose_canceled_attempt_runs_yet": [
            ("Claims._hand_out", " and self._may_run_yet(claim.previous)", " and False"),
            ("Claims._hand_out", "place(plan, claims, running)", "place(plan, claims)"),
        ],
        _CLAIMS + "test_nothing_is_claimed_after_the_close": [
            ("Claims._hand_out", "claim.previous is not None and ", ""),
        ],
        _GUARDS + "test_which_attempts_may_run_yet": [
            ("Claims._may_run_yet", "not is_unended(outcome, error) or ", ""),
            ("is_unended", "outcome in UNENDED or ", ""),
            ("is_unended", " or error == WENT_BACK", ""),
            ("Claims._may_run_yet", "not isinstance(worker, str) or ", ""),
            ("Claims._may_run_yet", " or self._desk.get(worker) is not None", ""),
            ("Claims._may_run_yet", "self._host is not None and ", ""),
            ("Claims._may_run_yet", " and identities.is_in_hand(self._host, worker)", ""),
        ],
        _CLAIMS + "test_a_full_claim_that_fails_is_not_repeated_at_once": [
            ("Claims.pass_once", "unbelieved or not is_done", "unbelieved"),
        ],
        _CLAIMS + "test_a_full_claim_that_fails_has_its_cost": [
            ("Claims.pass_once", "ended_s - cost_s if is_done else began_s", "ended_s - cost_s"),
            (
                "Claims.pass_once",
                _FULL + "    self._cursors.full_done",
                "if False:\n                self._cursors.full_done",
            ),
        ],
        _CLAIMS + "test_long_args_are_spread_over_frames": [
            ("Claims._assign", "worker.assigns += len(parts)", "pass"),
            ("Claims._assign", "+= len(parts)", "+= 1"),
        ],
    },
    without={
        ("Claims._starts", "len(plan.topics) <= FEW_TOPICS"): "only faster: of many, those with work are named anyway",
        ("Claims._assign", "worker is None"): "cannot be: nothing was awaited since the placement",
    },
)

_DUE: Final = "unit/test_due.py::"

DUE: Final = Guarded(
    "pulse_actors.dispatcher.claims.due_times",
    {
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
)

ASSIGNMENTS: Final = Guarded(
    "pulse_actors.dispatcher.claims.assign_frames",
    {
        _CLAIMS + "test_long_args_are_spread_over_frames": [
            ("_parts", "size > ASSIGN_CHARS", "False"),
        ],
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
        ],
    },
)
DOUBTS: Final = Guarded(
    "pulse_actors.dispatcher.claims.doubts",
    {
        _CLAIMS + "test_a_claim_whose_answer_was_lost": [
            ("Doubts._settle_doubts", "self._desk.reporting.union(worker.held)", "set()"),
            ("Doubts._settle_doubts", "if pair not in listed_of[worker.identity]", "if False"),
        ],
        _CLAIMS + "test_doubts_about_a_row_that_somebody_has_locked": [
            ("Doubts._settle_doubts", " | stuck", ""),
        ],
        "store/test_dispatcher_silence.py::test_what_a_worker_that_is_not_connected_was_never_given": [
            ("Doubts.give_back_unknown", "self._desk.reporting.union(worker.held)", "set(worker.held)"),
            ("Doubts.give_back_unknown", "self._desk.reporting.union(worker.held)", "self._desk.reporting"),
            ("Doubts._give_back", "self.wake_level(Level(ended.topic, ended.priority), ended.delay_s)", "pass"),
        ],
        _GUARDS + "test_doubts_about_somebody_who_has_left": [
            ("Doubts._settle_doubts", " if one is not None", ""),
            ("Doubts._settle_doubts", "(self._doubted - asked)", "self._doubted"),
        ],
        _GUARDS + "test_a_lost_claim_may_commit_later": [
            ("Doubts._settle_doubts", "if worker.identity in self._in_doubt:", "if True:"),
            ("Doubts._settle_doubts", "if worker.identity in self._in_doubt:", "if False:"),
            ("Doubts._settle_doubts", "self._in_doubt -= asked", "pass"),
        ],
        _CLAIMS + "test_what_a_worker_does_not_list_is_given_back": [
            ("Doubts.give_back_unlisted", "for pair in running if pair not in listed", "for pair in running"),
            (
                "Doubts.give_back_unlisted",
                " for pair, job in running.items() if pair in listed",
                " for pair, job in running.items()",
            ),
            ("Doubts._give_back", "if not unlisted:", "if True:"),
        ],
        _GUARDS + "test_nothing_to_give_back_is_not_told": [
            ("Doubts._give_back", "if not unlisted:", "if False:"),
        ],
    },
)
BARRED: Final = Guarded(
    "pulse_actors.dispatcher.claims.quarantine",
    {
        "unit/test_barred.py::test_a_claim_that_looks_elsewhere_proves_nothing": [
            ("Barred.succeeded", "for kind in (full, False)", "for kind in (True, False)"),
        ],
        "unit/test_barred.py::test_what_is_heard_each_time_is_believed": [
            ("Barred.succeeded", "for kind in (full, False)", "for kind in (full,)"),
            ("Barred.is_refused", "self._unbelieved[frozenset(topics), full] >= STUBBORN", "True"),
            ("Barred.is_refused", "self._unbelieved[frozenset(topics), full] += 1", "pass"),
            ("Barred.succeeded", "self._pauses or self._unbelieved", "self._pauses"),
        ],
        "unit/test_barred.py::test_what_may_have_passed_is_tried_again_soon": [
            ("Barred.failed", "REFUSED_S if lasts else ", ""),
            ("Barred.failed", "REFUSED_S if lasts else", "REFUSED_S if True else"),
            ("Barred.failed", "min(LONGEST_S, 2 * before_s)", "2 * before_s"),
            ("Barred.succeeded", "self._pauses or self._unbelieved", "self._unbelieved"),
            ("Barred.parts", "now_s < self._pauses", "now_s <= self._pauses"),
        ],
        "unit/test_barred.py::test_the_topic_is_found": [
            ("Barred.failed", "lasts or pause_s", "pause_s"),
            ("Barred.failed", "len(key) > 1 and (wholes or lasts or pause_s >= LONGEST_S)", "False"),
            ("Barred.failed", "len(key) > 1 and ", ""),
            ("Barred.parts", "if self._are_apart(key, now_s):", "if False:"),
            ("Barred.parts", "sorted(key)", "topics"),
            ("Barred._are_apart", " or any(frozenset((topic,)) in self._pauses for topic in key)", ""),
            ("Barred._are_apart", "now_s < until_s or ", ""),
            ("Barred._are_apart", "if until_s is None:", "if False:"),
            ("Barred.are_barred", "not self.parts(topics, now_s)", "True"),
            ("Barred._are_apart", "        del self._apart[key]\n", ""),
        ],
        "unit/test_barred.py::test_a_slow_time_divides_nothing_soon": [
            ("Barred.failed", "wholes or lasts or pause_s >= LONGEST_S", "True"),
            ("Barred.failed", "            self._pauses.pop(key, None)\n", ""),
        ],
        "unit/test_barred.py::test_claims_of_parts_are_made_one_behind_the_other": [
            ("Barred.divided", "if parts == [plan.topics]:", "if False:"),
            ("Barred.divided", " if one.topics == plan.topics", ""),
            ("Barred.divided", "if rest is not None:", "if True:"),
        ],
        "unit/test_barred.py::test_each_topic_is_first_in_its_turn": [
            ("Barred.divided", ", key=lambda part: plan.topics[0] not in part", ""),
            ("Barred.divided", "tuple(topic for topic in plan.topics if topic in part)", "part"),
        ],
        "unit/test_barred.py::test_a_slow_job_is_found_soon": [
            ("Barred.failed", "wholes or ", ""),
            ("Barred.failed", " if key < one", ""),
            ("Barred.failed", "[*wholes, key]", "[key]"),
        ],
        "unit/test_barred.py::test_what_was_to_look_at_everything_is_to_be_made_up_for": [
            ("Barred.failed", "if full:", "if True:"),
            ("Barred.failed", "if full:", "if False:"),
            ("Barred.has_missed", "self._full -= over", "pass"),
            ("Barred.has_missed", " if now_s >= self._pauses.get(key, (now_s, 0.0, False))[0]", ""),
        ],
        "unit/test_barred.py::test_others_go_on": [
            ("Barred.is_barred", "now_s < until_s and ", ""),
            ("Barred.is_barred", " and (lasts or pause_s >= LONGEST_S)", ""),
            ("Barred.is_barred", "lasts or ", ""),
            ("Barred.succeeded", "self._pauses.pop(key, None)", "self._pauses.clear()"),
        ],
    },
    without={
        ("Barred.are_barred", "bool(self._pauses)"): "only faster",
    },
)
