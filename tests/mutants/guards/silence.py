"""Kill, then requeue: who is silent, what is done about it, and what lapses meanwhile."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_VERDICTS: Final = "unit/test_silence.py::test_verdicts"
_SILENCE: Final = "store/test_dispatcher_silence.py::"

SILENCE: Final = Guarded(
    "pulse_actors.dispatcher.liveness.silent_workers",
    {
        _VERDICTS: [
            ("judge", "if silent_s >= lease_s:", "if silent_s > lease_s:"),
            ("judge", "if silent_s >= lease_s:", "if False:"),
            (
                "judge",
                "if now_s - worker.contact.extended_s >= SILENT * lease_s",
                "if now_s - worker.contact.extended_s > SILENT * lease_s",
            ),
            ("judge", "if now_s - worker.contact.extended_s >= SILENT * lease_s", "if True"),
            ("judge", "if now_s - worker.contact.extended_s >= SILENT * lease_s", "if silent_s >= SILENT * lease_s"),
            ("judge", "max(worker.contact.beaten_s, awake_s)", "worker.contact.beaten_s"),
            ("judge", "max(worker.contact.beaten_s, awake_s)", "awake_s"),
        ],
        _SILENCE + "test_a_dispatcher_that_was_stopped_blames_nobody": [
            ("SilentWorkers.run", "now_s - looked_s > TOO_LATE * pause_s", "False"),
            ("SilentWorkers.run", "now_s - looked_s > TOO_LATE * pause_s", "looked_s > now_s"),
        ],
        _SILENCE + "test_the_living_of_the_start_are_watched": [
            ("SilentWorkers.run", "            await self.lapsed(living)\n", ""),
        ],
        _SILENCE + "test_who_is_connected_is_no_stranger": [
            ("SilentWorkers._lapsed", "self._registry.find(identity) or ", ""),
        ],
        _SILENCE + "test_what_has_lapsed_for_a_living_worker_is_free": [
            ("SilentWorkers._lapsed", " or self._process_watch.watched(identity)", ""),
        ],
        _SILENCE + "test_what_a_worker_that_is_not_connected_was_never_given": [
            ("SilentWorkers._lapsed", "elif self._registry.strangers.get(identity) is not worker:", "elif False:"),
            ("SilentWorkers._lapsed", "if self._registry.get(identity) is worker:", "if True:"),
        ],
        _SILENCE + "test_a_stranger_for_whom_somebody_else_beats": [
            ("SilentWorkers._look", "await self._hear_of_strangers()", "pass"),
            ("SilentWorkers._hear_of_strangers", "abs(until_s - stranger.contact.until_s) > CHANGED_S", "False"),
            ("SilentWorkers._hear_of_strangers", "abs(until_s - stranger.contact.until_s) > CHANGED_S", "True"),
        ],
        _SILENCE + "test_renewals_from_here_are_no_beats": [
            ("SilentWorkers._renew", "stranger.contact.expect_lapse(now_s + self._lease_s)", "pass"),
            ("SilentWorkers._look", "self._registry.strangers.get(worker.identity) is worker", "False"),
        ],
        _SILENCE + "test_a_lease_that_another_one_has_made_shorter": [
            (
                "SilentWorkers._hear_of_strangers",
                "abs(until_s - stranger.contact.until_s)",
                "until_s - stranger.contact.until_s",
            ),
        ],
        _SILENCE + "test_what_a_stranger_holds_is_asked_anew": [
            ("SilentWorkers._hear_of_strangers", "stranger.held.get(pair) or _held_by_lease(", "_held_by_lease("),
            (
                "SilentWorkers._hear_of_strangers",
                "stranger.held.get(pair) or _held_by_lease(",
                "stranger.held.get(pair, None) and _held_by_lease(",
            ),
        ],
        _SILENCE + "test_a_stranger_that_holds_nothing_any_more": [
            ("SilentWorkers._hear_of_strangers", "if not held:", "if False:"),
        ],
        _SILENCE + "test_strangers_while_the_database_is_away": [
            ("SilentWorkers._hear_of_strangers", "_beyond_doubt(strangers, asked_s)", "pass"),
        ],
        _SILENCE + "test_strangers_while_nobody_can_write": [
            ("SilentWorkers._look", "_beyond_doubt(strangers, now_s)", "pass"),
            ("SilentWorkers._renew", "if stranger.identity in locked", "if False"),
        ],
        _SILENCE + "test_a_row_that_somebody_has_locked": [
            (
                "SilentWorkers._renew",
                "await write_merged(self._store, renewals, together)",
                "await together(renewals)",
            ),
        ],
        _SILENCE + "test_who_dies_of_sigterm_has_let_its_lease_lapse": [
            ("SilentWorkers._kill", "                _force_endings(worker)  # it may die of SIGTERM\n", ""),
        ],
        _SILENCE + "test_who_answers_late_is_not_killed": [
            (
                "SilentWorkers._kill",
                "                    worker.jobs.forced_endings.clear()\n",
                "                    pass\n",
            ),
            ("SilentWorkers._kill", "await self._spoke(worker, began_s, TERM_S)", "False"),
        ],
        _SILENCE + "test_a_stranger_is_watched_and_renewed": [
            ("SilentWorkers._lapsed", "worker is None", "False"),
            ("SilentWorkers._lapsed", "stranger is not None", "True"),
            ("SilentWorkers._lapsed", "stranger is not None", "False"),
        ],
        _SILENCE + "test_what_may_run_does_not_lapse": [
            ("SilentWorkers._lapsed", "worker.contact.extended_s > time.monotonic() - BEATS * self._lease_s", "True"),
            ("SilentWorkers._lapsed", "BEATS * self._lease_s", "2 * self._lease_s"),
            ("SilentWorkers._lapsed", "held.unlisted >= UNLISTED and ", ""),
            ("SilentWorkers._lapsed", "held.unlisted >= UNLISTED", "held.unlisted >= UNLISTED - 1"),
        ],
        _SILENCE + "test_what_a_speaking_worker_does_not_list_lapses": [
            ("SilentWorkers._lapsed", "worker.contact.extended_s > time.monotonic() - BEATS * self._lease_s", "False"),
        ],
        _SILENCE + "test_what_a_speaking_worker_was_never_given": [
            ("SilentWorkers._lapsed", "self._in_doubt.doubt(identity)", "pass"),
        ],
        _SILENCE + "test_who_holds_nothing_need_not_beat": [
            ("SilentWorkers._look", "if not worker.held:", "if False:"),
        ],
        _SILENCE + "test_who_has_missed_beats_is_renewed": [
            ("SilentWorkers._look", "verdict is not LeaseAction.LEAVE", "True"),
            ("SilentWorkers._look", "verdict is not LeaseAction.LEAVE", "False"),
            ("SilentWorkers._look", "verdict is LeaseAction.KILL and ", ""),
            ("SilentWorkers._look", "await self._renew(renewals, strangers)", "pass"),
        ],
        _SILENCE + "test_a_process_that_does_not_die_is_waited_for": [
            ("SilentWorkers._kill", "await self._process_watch.wait_buried(worker)", "pass"),
        ],
        _SILENCE + "test_a_process_is_killed_once": [
            ("SilentWorkers._look", " and worker.identity not in self._being_killed", ""),
        ],
        _SILENCE + "test_who_is_silent_for_a_lease_is_killed": [
            ("SilentWorkers._look", "verdict is LeaseAction.KILL", "False"),
            ("_force_endings", "if held.started:", "if True:"),
            ("_force_endings", "if held.started:", "if False:"),
            ("SilentWorkers._spoke", "while time.monotonic() < until_s:", "while True:"),
        ],
        _SILENCE + "test_who_answers_is_not_told_to_end": [
            ("SilentWorkers._kill", "not await self._spoke(worker, began_s, ASK_S)", "True"),
            ("SilentWorkers._spoke", "worker.contact.beaten_s > since_s or ", ""),
            ("SilentWorkers._spoke", " or self._process_watch.watched(worker.identity) is not worker", ""),
        ],
        _SILENCE + "test_who_is_stopped_is_not_waited_for": [
            ("SilentWorkers._spoke", "processes.state(worker.facts.pid) in STOPPED", "False"),
        ],
    },
    without={
        ("SilentWorkers._hear_of_strangers", "strangers"): "saves a look: of nobody nothing is heard",
        (
            "SilentWorkers._hear_of_strangers",
            "stranger.contact.until_s is not None",
        ): "for the type checkers: it is renewed when it is adopted",
        (
            "SilentWorkers._lapsed",
            "pair not in self._registry.reporting",
        ): "ReportWriter leaves out what has been reported",
        ("SilentWorkers._lapsed", "endings"): "an obituary without endings writes nothing",
    },
)
