"""Results: what is stale, what is locked, what is kept, and what of a report may be written at all."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_SPLIT: Final = "unit/test_results_split.py::"
_GUARDS: Final = "store/test_result_guards.py::"
_REFUSED: Final = "store/test_refused.py::"
_DEATHS: Final = "store/test_dispatcher_deaths.py::"

RESULTS: Final = Guarded(
    "pulse_actors.dispatcher.writes.report",
    {
        _DEATHS + "test_its_jobs_are_free_when_all_of_it_is_dead": [
            (
                "ReportWriter.bury",
                ", commit=commit",
                "",
            ),
            (
                "ReportWriter.bury",
                "self._is_burying = False",
                "pass",
            ),
            (
                "ReportWriter.bury",
                "count_reaped(self._counters, endings, ended, began_s)",
                "pass",
            ),
            (
                "ReportWriter.bury",
                "self._wake(ended)",
                "pass",
            ),
        ],
        _DEATHS + "test_what_does_not_die_keeps_no_row_locked": [
            (
                "ReportWriter.bury",
                "anyio.move_on_after(HURRY_S), ",
                "",
            ),
            (
                "ReportWriter.bury",
                "        await dead.wait()\n",
                "",
            ),
        ],
        _DEATHS + "test_claims_that_it_never_heard_of": [
            (
                "ReportWriter.bury",
                "not self._is_burying",
                "True",
            ),
        ],
        _DEATHS + "test_what_cannot_be_written_at_once_is_written_later": [
            (
                "ReportWriter.bury",
                "ended is None",
                "not ended and False",
            ),
            (
                "ReportWriter.bury",
                ", suppress(UnavailableError)",
                "",
            ),
        ],
        _REFUSED + "test_many_refused_reports": [
            (
                "ReportWriter._write",
                "bool(batch.in_vain) or (self._is_mixed and bool(self._deferred))",
                "False",
            ),
            (
                "ReportWriter._write",
                "if self._is_mixed:",
                "if False:",
            ),
            (
                "_ReportBatch.complete",
                ", raises=False",
                "",
            ),
        ],
        _REFUSED + "test_nobody_waits_for_a_refused_report": [
            (
                "ReportWriter._note_refused",
                "self._registry.refused | {pair",
                "{} and {pair",
            ),
            (
                "ReportWriter._note_refused",
                " if pair[0] in self._refused}",
                "}",
            ),
        ],
        _GUARDS + "test_what_is_stale_is_told": [
            (
                "ReportWriter.accept",
                "self._registry.reporting.update(report.pairs)",
                "pass",
            ),
            (
                "ReportWriter._write",
                " if pair not in batch.written",
                "",
            ),
            (
                "ReportWriter._answer",
                "if stale:",
                "if False:",
            ),
            (
                "ReportWriter._answer",
                "self._registry.reporting.difference_update(pairs)",
                "pass",
            ),
            (
                "ReportWriter._answer",
                "self._registry.free(report.worker, pairs)",
                "pass",
            ),
        ],
        _GUARDS + "test_what_is_written_is_not_told_of": [
            (
                "ReportWriter._answer",
                "if stale:",
                "if True:",
            ),
            (
                "ReportWriter._write",
                "pair not in batch.written",
                "True",
            ),
            (
                "ReportWriter._write",
                "if batch.left:",
                "if True:",
            ),
        ],
        _GUARDS + "test_a_locked_row_holds_up_its_own_report_alone": [
            (
                "ReportWriter._write",
                "if self._kept:",
                "if False:",
            ),
            (
                "ReportWriter._write",
                "if batch.left:",
                "if False:",
            ),
            (
                "ReportWriter._write",
                "if left:",
                "if True:",
            ),
            (
                "ReportWriter._bring_back",
                "if one.left <= free:",
                "if False:",
            ),
            (
                "ReportWriter._write",
                "self._kept |= batch.written.intersection(item.pairs)",
                "pass",
            ),
            (
                "ReportWriter._write",
                " if batch.left.isdisjoint(report.pairs)",
                "",
            ),
            (
                "ReportWriter._answer",
                "self._kept.difference_update(pairs)",
                "pass",
            ),
        ],
        _GUARDS + "test_a_lock_is_waited_for_once": [
            (
                "ReportWriter._write",
                "await self._locked_among(items) if self._deferred else set()",
                "set()",
            ),
            (
                "ReportWriter._bring_back",
                "if one.left <= free:",
                "if True:",
            ),
            (
                "_ReportBatch.complete",
                " if row[:2] not in self.left]",
                "]",
            ),
            (
                "_ReportBatch.end",
                " if row[:2] not in self.left]",
                "]",
            ),
            (
                "ReportWriter._locked_among",
                "pair[0] not in free",
                "pair[0] in free",
            ),
        ],
        _GUARDS + "test_what_is_locked_is_looked_at_again": [
            (
                "ReportWriter._write",
                "self._has_deferred.set()",
                "pass",
            ),
            (
                "ReportWriter.run",
                "while self._deferred:",
                "if self._deferred:",
            ),
            (
                "ReportWriter.run",
                "while self._deferred:",
                "while False:",
            ),
            (
                "ReportWriter.run",
                "with suppress(UnavailableError):",
                "if True:",
            ),
        ],
        _GUARDS + "test_who_cannot_be_asked_what_is_locked": [
            (
                "ReportWriter._bring_back",
                "self._deferred += aside",
                "pass",
            ),
            (
                "ReportWriter._locked_among",
                "with suppress(UnavailableError):",
                "if True:",
            ),
        ],
        _GUARDS + "test_an_obituary_of_a_locked_row_is_written_later": [
            (
                "ReportWriter._write",
                "if isinstance(item, PendingReport)]",
                "if True]",
            ),
            (
                "ReportWriter._write",
                "if left:",
                "if False:",
            ),
            (
                "_ReportBatch._leave",
                "self.left.add((one.row.id, one.row.attempt))",
                "pass",
            ),
        ],
        _GUARDS + "test_a_worker_that_said_how_it_ended_did_not_crash": [
            (
                "ReportWriter._write",
                "            if isinstance(item, Obituary)\n",
                "",
            ),
            (
                "ReportWriter._write",
                "            if (ending.id, ending.attempt) not in self._registry.reporting",
                "",
            ),
        ],
        _GUARDS + "test_a_dead_letter_is_nothing_to_claim": [
            (
                "ReportWriter._wake",
                'one.status != "DEAD_LETTERED"',
                "True",
            ),
            (
                "ReportWriter._wake",
                'one.status != "DEAD_LETTERED"',
                "False",
            ),
            (
                "ReportWriter._wake",
                "due_s=one.due_s",
                "due_s=None",
            ),
        ],
        "store/test_swallowed.py::test_a_constraint_that_is_not_pulses": [
            (
                "_ReportBatch.complete.alone",
                "again.sqlstate.startswith(CONSTRAINTS)",
                "False",
            ),
        ],
        _GUARDS + "test_progress_that_cannot_be_stored_costs_nothing_else": [
            (
                "_ReportBatch.complete.alone",
                "error if bad.progress is None else await _without_progress(bad, together)",
                "error",
            ),
            (
                "_ReportBatch.end.alone",
                "bad.progress is not None",
                "False",
            ),
        ],
        _GUARDS + "test_a_result_that_cannot_be_stored_is_an_error": [
            (
                "_ReportBatch.end",
                "(*endings, *self._rejected)",
                "endings",
            ),
        ],
        _REFUSED + "test_reports": [
            (
                "ReportWriter._bring_back",
                "if one.not_before_s <= now_s",
                "if False",
            ),
            (
                "ReportWriter._bring_back",
                "if one.not_before_s > now_s",
                "if False",
            ),
            (
                "_ReportBatch._leave",
                "if one.error is not None:",
                "if False:",
            ),
            (
                "_ReportBatch._leave",
                "self.refused if one.is_blamed else self.in_vain",
                "self.in_vain",
            ),
            (
                "ReportWriter._note_refused",
                "if again:",
                "if False:",
            ),
            (
                "_ReportBatch.complete.alone",
                "if again is None:",
                "if True:",
            ),
        ],
        _REFUSED + "test_a_report_that_is_refused_stays_aside": [
            (
                "ReportWriter._note_refused",
                "if batch.refused:",
                "if False:",
            ),
            (
                "ReportWriter._note_refused",
                "if job not in self._refused:",
                "if True:",
            ),
            (
                "ReportWriter._note_refused",
                "with suppress(UnavailableError):",
                "if True:",
            ),
            (
                "ReportWriter._write",
                "len(batch.left) > len(refused)",
                "True",
            ),
            (
                "ReportWriter._write",
                "LOCKED_PAUSE_S if left.isdisjoint(refused) else REFUSED_PAUSE_S",
                "LOCKED_PAUSE_S",
            ),
        ],
        _GUARDS + "test_progress_and_the_rest_cannot_be_stored": [
            (
                "_ReportBatch.end.alone",
                " and await _without_progress(bad, together) is None",
                "",
            ),
            (
                "_without_progress",
                "if not error.is_value:",
                "if True:",
            ),
        ],
        "store/test_visit_guards.py::test_a_process_brings_no_more_than_has_room": [
            (
                "ReportWriter._answer",
                "report.settled()",
                "pass",
            ),
        ],
        "store/test_dispatcher_silence.py::test_what_has_lapsed_for_a_living_worker_is_free": [
            (
                "ReportWriter._free",
                "if worker is not None:",
                "if False:",
            ),
            (
                "ReportWriter._free",
                "(ending.id, ending.attempt) in ended",
                "False",
            ),
        ],
        "store/test_dispatcher_deaths.py::test_a_death_ends_what_was_held": [
            (
                "ReportWriter._free",
                "if worker is not None:",
                "if True:",
            ),
        ],
        "store/test_dispatcher_silence.py::test_what_may_run_does_not_lapse": [
            (
                "ReportWriter._free",
                "(ending.id, ending.attempt) in ended",
                "True",
            ),
        ],
    },
    without={
        ("_ReportBatch.complete", "self.left"): "only faster",
        ("ReportWriter._bring_back", "aside"): "only faster",
        ("ReportWriter._note_refused", "self._refused"): "only faster",
        ("ReportWriter._note_refused", "batch.refused"): "only faster",
    },
)


REPORT_ROWS: Final = Guarded(
    "pulse_actors.dispatcher.writes.report_rows",
    {
        _SPLIT + "test_long_texts_weigh_as_many_rows_as_they_have_pages": [
            (
                "weight_of",
                "isinstance(item, Obituary)",
                "False",
            ),
            (
                "weight_of",
                " + _chars(one) // ROW_BYTES",
                "",
            ),
            (
                "_chars",
                "if isinstance(one.detail, tuple) else",
                "if False else",
            ),
            (
                "_chars",
                " if isinstance(text, str)",
                "",
            ),
            (
                "_chars",
                ", extra.progress",
                "",
            ),
            (
                "_chars",
                ", extra.stack",
                "",
            ),
            (
                "_chars",
                "one.extra or ResultExtra()",
                "ResultExtra()",
            ),
        ],
        _SPLIT + "test_reports_of_many_workers_are_merged": [
            (
                "split",
                'result.outcome == "ok"',
                "True",
            ),
            (
                "split",
                'result.outcome == "ok"',
                "False",
            ),
        ],
        _SPLIT + "test_a_success_keeps_its_result_as_it_is": [
            (
                "split",
                "text is not None and ",
                "",
            ),
            (
                "_progress",
                "extra is not None and ",
                "",
            ),
            (
                "split",
                "if isinstance(result.detail, str) else",
                "if False else",
            ),
        ],
        _SPLIT + "test_a_result_that_is_too_large_is_an_error": [
            (
                "split",
                " and (size_bytes := excess(text, MAX_RESULT_BYTES))",
                " and (size_bytes := 0)",
            ),
        ],
        _SPLIT + "test_a_progress_that_prints_too_long_is_left_out": [
            (
                "_progress",
                " and comes_back(extra.progress)",
                "",
            ),
        ],
        _SPLIT + "test_each_outcome_has_its_ending": [
            (
                "ending_of",
                'case ("retry", (',
                'case ("", (',
            ),
            (
                "ending_of",
                'case ("snooze", float',
                'case ("", float',
            ),
            (
                "ending_of",
                'case ("crash", (',
                'case ("", (',
            ),
            (
                "ending_of",
                "case (_, str(reason)):",
                "case (0, str(reason)):",
            ),
            (
                "ending_of",
                "if text is not None:",
                "if True:",
            ),
            (
                "ending_of",
                "if text is not None:",
                "if False:",
            ),
            (
                "ending_of",
                "code is not None and ",
                "",
            ),
            (
                "ending_of",
                "result.extra or ResultExtra()",
                "result.extra",
            ),
            (
                "ending_of",
                "None if extra.stack is None else ",
                "",
            ),
            (
                "clean",
                ' or "no reason given"',
                "",
            ),
        ],
        _SPLIT + "test_an_exit_code_that_no_column_holds_is_left_out": [
            (
                "ending_of",
                "not -MAX_CODE <= code <= MAX_CODE",
                "not code <= MAX_CODE",
            ),
            (
                "ending_of",
                "not -MAX_CODE <= code <= MAX_CODE",
                "not -MAX_CODE <= code",
            ),
            (
                "ending_of",
                "not -MAX_CODE <= code <= MAX_CODE",
                "not -MAX_CODE < code < MAX_CODE",
            ),
            (
                "ending_of",
                "if isinstance(signal_or_code, int) else",
                "if False else",
            ),
        ],
        _SPLIT + "test_what_was_told_beside_a_failure": [
            (
                "ending_of",
                "kind is EndingKind.ERROR and ",
                "",
            ),
            (
                "ending_of",
                " and extra.stopped in _STOPS",
                "",
            ),
            (
                "ending_of",
                "clean(extra.stack)",
                "extra.stack",
            ),
            (
                "ending_of",
                "result.extra or ResultExtra()",
                "ResultExtra()",
            ),
        ],
        _SPLIT + "test_cleaned_text_can_be_stored": [
            (
                "clean",
                '_UNSTORABLE.sub("\\N{REPLACEMENT CHARACTER}", text[:MAX_ERROR_BYTES])',
                "text[:MAX_ERROR_BYTES]",
            ),
        ],
        _SPLIT + "test_cleaned_text_is_cut_to_64_kib": [
            (
                "clean",
                "storable.encode()[:MAX_ERROR_BYTES]",
                "storable.encode()",
            ),
        ],
    },
)
