"""Proof of death: who is watched, what is waited for, who is charged, and what dies with a worker."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_PARTS: Final = "unit/test_deaths_parts.py::"
_DEATHS: Final = "store/test_dispatcher_deaths.py::"

DEATHS: Final = Guarded(
    "pulse_actors.dispatcher.liveness.process_watch",
    {
        _PARTS + "test_started_attempts_crash_and_the_others_are_given_back": [
            ("_end_of", "held.started and is_suspect and not worker.leaving", "False"),
            ("_end_of", "reason if was_hit else None", "reason"),
            ("_end_of", "held.started and (not worker.leaving", "(not worker.leaving"),
            ("_end_of", "if forced is not None", "if True"),
        ],
        _PARTS + "test_who_was_leaving_charges_nobody": [
            ("_end_of", " and not worker.leaving", ""),
        ],
        _PARTS + "test_who_had_a_process_of_its_own_did_not_kill_it": [
            ("_end_of", "is_suspect and ", ""),
            ("obituary", "is_suspect=pair in suspects", "is_suspect=True"),
            ("_end_of", "reason if was_hit else None", "None"),
            ("obituary", " and not one.apart", ""),
            ("_end_of", "(not worker.leaving or bool(worker.jobs.forced_endings))", "bool(worker.jobs.forced_endings)"),
        ],
        _PARTS + "test_where_nobody_else_ran_it_may_have_been_those_apart": [
            ("obituary", " or running.keys()", ""),
            ("_end_of", "held.started and is_suspect", "is_suspect"),
            ("obituary", "one.started and not one.apart", "not one.apart"),
        ],
        _PARTS + "test_what_had_ended_did_not_kill_it": [
            ("_end_of", "None if held.ended else ", ""),
            ("obituary", " if not one.ended", ""),
            ("obituary", "or running.keys()", "or held.keys()"),
        ],
        _DEATHS + "test_a_stranger_is_of_the_user_of_its_process": [
            ("stranger", "uid = identities.user_of(host, identity)", "uid = 0"),
        ],
        _DEATHS + "test_a_claim_for_it_that_is_committed_late": [
            ("ProcessWatch._bury", "self._tasks is not None", "False"),
        ],
        _DEATHS + "test_who_has_died_is_waited_for": [
            (
                "ProcessWatch.settle",
                'watch.is_over or processes.state(watch.worker.facts.pid) in {"Z", "X", ""}',
                "False",
            ),
            (
                "ProcessWatch.settle",
                'watch.is_over or processes.state(watch.worker.facts.pid) in {"Z", "X", ""}',
                "True",
            ),
        ],
        _PARTS + "test_a_sentence_is_carried_out": [
            ("_end_of", "forced is not None", "False"),
            ("_end_of", " or bool(worker.jobs.forced_endings)", ""),
            ("_end_of", ", stack=forced.stack", ""),
        ],
        _PARTS + "test_want_of_memory_is_named": [
            ("_describe", "status is not None and ", ""),
            ("_describe", " and os.WTERMSIG(status) == signal.SIGKILL", ""),
            ("_describe", "if killed and ", "if "),
            ("_describe", "not watch.worker.leaving and ", ""),
            ("_describe", "watch.oom_kills is not None and ", ""),
            ("_describe", " and watch.oom_kills.grew()", ""),
        ],
        _DEATHS + "test_a_stranger_is_released_only_while_it_is_one": [
            ("ProcessWatch.release", "watch is not None and ", ""),
            ("ProcessWatch.release", " and watch.worker is stranger", ""),
        ],
        _DEATHS + "test_a_stranger_that_drained_in_vain": [
            ("ProcessWatch._bury", "code == processes.UNFINISHED", "False"),
        ],
        _DEATHS + "test_who_has_ended_is_no_suspect": [
            ("ProcessWatch._bury", " if pair not in reporting", ""),
        ],
        _DEATHS + "test_a_death_ends_what_was_held": [
            ("ProcessWatch._bury", "status is None", "True"),
            ("ProcessWatch._bury", "if watch.is_stranger:", "if True:"),
            ("ProcessWatch._bury", "self._registry.leave(worker)", "pass"),
            ("ProcessWatch._bury", "            worker.link.close()\n", ""),
            ("ProcessWatch._write", "if endings:", "if False:"),
        ],
        _DEATHS + "test_an_end_that_the_kernel_does_not_tell": [
            ("ProcessWatch._bury", "None if status is None else ", ""),
        ],
        _DEATHS + "test_who_was_to_end_charges_nobody": [
            ("ProcessWatch._bury", "worker.bury()", "worker.draining, worker.leaving = True, False"),
            ("ProcessWatch._bury", "worker.bury()", "worker.leaving = worker.leaving or worker.draining"),
        ],
        _DEATHS + "test_who_is_buried_is_not_away_any_more": [
            [
                ("ProcessWatch._bury", "self._registry.away.pop(worker.identity, None)", "pass"),
                ("ProcessWatch._see_through", "self._registry.away.pop(worker.identity, None)", "pass"),
            ],
        ],
        _DEATHS + "test_a_kill_charges_whom_it_is_for": [
            ("ProcessWatch.kill", "        worker.expect_end()\n", ""),
            ("ProcessWatch.kill", "        self.signal(worker, signal.SIGKILL)\n", "        return\n"),
            ("_kill_group", "if worker.facts.leads_group:", "if False:"),
        ],
        _DEATHS + "test_its_group_dies_with_it": [
            ("ProcessWatch._bury", "_kill_group(worker)", "pass"),
            ("_kill_group", "if worker.facts.leads_group:", "if True:"),
        ],
        _DEATHS + "test_what_carries_its_mark_dies_with_it": [
            ("_end_tree", "worker.facts.mark is not None", "False"),
        ],
        _DEATHS + "test_its_jobs_are_free_when_all_of_it_is_dead": [
            ("ProcessWatch._bury", "            await _end_tree(worker)\n", ""),
        ],
        _DEATHS + "test_last_words_are_heard_out": [
            ("ProcessWatch._bury", "            await watch.hear_out()\n", ""),
        ],
        _DEATHS + "test_claims_that_it_never_heard_of": [
            ("ProcessWatch._bury", "if not watch.is_stranger:", "if False:"),
            ("ProcessWatch._unseen", " if pair not in seen", ""),
            ("ProcessWatch._unseen", "self._registry.listed(worker)", "self._registry.reporting"),
        ],
        _DEATHS + "test_an_end_is_told_louder_when_something_was_lost": [
            ("ProcessWatch._bury", "if endings:", "if True:"),
            ("ProcessWatch._bury", "if endings else", "if True else"),
            ("ProcessWatch._bury", "if endings else", "if False else"),
        ],
        _DEATHS + "test_who_says_hello_again_is_watched_anew": [
            ("ProcessWatch.signal", " or watch.worker is not worker", ""),
            ("ProcessWatch.kill", " or watch.worker is not worker", ""),
            ("ProcessWatch.wait_buried", " and watch.worker is worker", ""),
            ("ProcessWatch._watch", "older is not None", "False"),
            ("ProcessWatch._see_through", "self._watches.get(worker.identity) is watch", "True"),
        ],
        _DEATHS + "test_nobody_is_watched_under_another_name": [
            ("ProcessWatch.watched", "None if watch is None else ", ""),
            ("ProcessWatch.signal", "watch is None or ", ""),
            ("ProcessWatch.kill", "watch is None or ", ""),
            ("ProcessWatch.wait_buried", "watch is not None and ", ""),
        ],
        _DEATHS + "test_who_may_not_be_signalled_is_not_in_hand": [
            ("ProcessWatch.in_hand", "watch.worker.watched and ", ""),
            ("ProcessWatch._watch", "_may_kill(watch.pidfd)", "True"),
            ("_may_kill", "return False", "return True"),
        ],
        _DEATHS + "test_a_machine_that_does_not_count_its_kills": [
            ("ProcessWatch.note_oom_kills", "counted is not None", "True"),
        ],
        _DEATHS + "test_kills_are_counted_anew": [
            ("ProcessWatch.note_oom_kills", "counted.path not in counts", "True"),
            ("ProcessWatch.note_oom_kills", "counted.path not in counts", "not counts"),
        ],
        _DEATHS + "test_before_the_loops_run_nothing_is_watched": [
            ("ProcessWatch._watch", "self._tasks is None", "False"),
            ("ProcessWatch._watch", "            os.close(watch.pidfd)\n", ""),
        ],
        _DEATHS + "test_a_stranger_is_adopted_with_what_it_holds": [
            ("ProcessWatch._watch", "if watch.is_stranger:", "if False:"),
            ("ProcessWatch.adopt", "worker.held.update(held)", "pass"),
            ("ProcessWatch.adopt", "not processes.lives(*process)", "True"),
            ("ProcessWatch.adopt", "not identities.is_in_hand(host, identity)", "True"),
        ],
        _DEATHS + "test_who_is_watched_is_no_stranger": [
            ("ProcessWatch.adopt", "watched is not None", "False"),
            ("ProcessWatch._watch", "if watch.is_stranger:", "if True:"),
            ("ProcessWatch._watch", "        self._registry.strangers.pop(watch.worker.identity, None)\n", ""),
        ],
        _DEATHS + "test_who_is_not_in_hand_is_not_adopted": [
            ("ProcessWatch.adopt", " or not identities.is_in_hand(host, identity)", ""),
        ],
        _DEATHS + "test_a_pid_that_is_used_again_while_it_is_opened": [
            ("ProcessWatch.adopt", "not processes.lives(*process)", "False"),
            ("ProcessWatch.adopt", "            os.close(pidfd)\n", ""),
        ],
        _DEATHS + "test_a_stranger_dies_by_what_the_database_says": [
            ("ProcessWatch._bury", "code == processes.UNFINISHED", "True"),
            ("ProcessWatch._bury", "if watch.is_stranger:", "if False:"),
            (
                "ProcessWatch._see_through",
                "                    self._registry.strangers.pop(worker.identity, None)\n",
                "",
            ),
        ],
        _DEATHS + "test_who_knows_a_stranger_better_may_bury_it": [
            ("ProcessWatch.in_hand", " and not watch.is_over", ""),
            ("ProcessWatch._bury", "            await anyio.sleep(STRANGER_S)\n", ""),
        ],
    },
    without={
        ("ProcessWatch.adopt", "process is None"): "is_in_hand says the same of it; this one is for the type checkers",
        ("_describe", "os.WIFSIGNALED(status)"): "WTERMSIG of a process that was not signalled is never SIGKILL",
    },
)
