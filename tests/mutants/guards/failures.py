"""What an error of the database means, and what is done about it: retried, halved, set aside, told."""

from __future__ import annotations

from typing import Final

from tests.mutants.code import Guarded

_POOL: Final = "store/test_pool.py::"
_BAD: Final = "store/test_bad_rows.py::"
_MERGING: Final = "store/test_unwritten.py::"
_REFUSED: Final = "store/test_refused.py::"
_FAILING: Final = "unit/test_failing_statements.py::"

FAILURES: Final = Guarded(
    "pulse.store.failures",
    {
        _POOL + "test_a_statement_at_fault": [
            ("meaning_of", "state in VALUE_SQLSTATES or state[:2] in VALUE_CLASSES", "False"),
            ("is_safe_after", '(error.sqlstate or "")[:2] not in UNSAFE_CLASSES', "False"),
            ("is_safe_after", '(error.sqlstate or "")[:2] not in UNSAFE_CLASSES', "True"),
        ],
        _POOL + "test_an_answer_that_cannot_be_read": [
            ("is_safe_after", " and not isinstance(error, UnreadableAnswerError)", ""),
            ("meaning_of", "if isinstance(error, UnreadableAnswerError):", "if False:"),
            ("error_of", "is_done = isinstance(error, UnreadableAnswerError)", "is_done = False"),
        ],
        _POOL + "test_away_of_one_statement_alone": [
            ("error_of", "failure.times < STUBBORN", "True"),
            ("error_of", "failure.times < STUBBORN", "False"),
            ("meaning_of", "state in AWAY_SQLSTATES or ", ""),
        ],
        _POOL + "test_a_connection_that_breaks_each_time": [
            ("_is_said_of_statement", 'getattr(error, "severity", None) is not None and ', ""),
        ],
        _POOL + "test_what_succeeds_is_refused_no_more": [
            ("Failing.succeeded", "if self._of:", "if False:"),
            ("Failing.refused", "known.times + 1", "1"),
        ],
        _BAD + "test_other_errors_are_not_bad_rows": [
            ("error_of", "if meaning is Meaning.CONTESTED:", "if False:"),
            ("meaning_of", "state in CONTESTED_SQLSTATES", "False"),
        ],
        _BAD + "test_complete": [
            ("meaning_of", "state in VALUE_SQLSTATES or ", ""),
        ],
        _MERGING + "test_a_part_that_hears_away": [
            ("refusal_of", "if not _is_said_of_statement(cause):", "if False:"),
            ("_is_said_of_statement", ' and hasattr(error, "statement")', ""),
        ],
        _REFUSED + "test_a_claim_that_waits": [
            ("refusal_of", "took_s >= AT_ONCE_S", "False"),
        ],
        _REFUSED + "test_what_says_away_of_one_topic": [
            ("refusal_of", "if took_s is None else", "or"),
        ],
    },
    is_part=True,
)
MERGING: Final = Guarded(
    "pulse_actors.shared.row_writes",
    {
        _MERGING + "test_a_locked_row_waits_alone": [
            ("_Writing.write", "if locked:", "if False:"),
            ("_Writing.write", "if row.id not in free", "if False"),
        ],
        _MERGING + "test_what_is_refused_is_found": [
            ("_Writing._refuse", "if error.is_value:", "if False:"),
            ("_Writing._refuse", "except StatementError as again:", "except KeyError as again:"),
            ("_Writing._refuse", "self.left.append(UnwrittenRow(row, error))", "pass"),
        ],
        _MERGING + "test_whatever_row_it_is": [
            ("_Writing._refuse", "self._refused >= IN_VAIN and not self._has_written", "False"),
        ],
        _REFUSED + "test_reports": [
            ("_Writing._refuse", " and not self._has_written", ""),
        ],
        _MERGING + "test_those_that_are_refused_stand_beside_each_other": [
            ("_Writing.write", "self._is_split, rows = True, spread(rows)", "self._is_split = True"),
        ],
        _MERGING + "test_a_part_that_hears_away": [
            ("_Writing.write", "refusal_of(error) if self._is_split else error", "error"),
            ("_Writing.write", "refusal_of(error) if self._is_split else error", "refusal_of(error)"),
        ],
    },
    is_part=True,
)
BAD_JOBS: Final = Guarded(
    "pulse_actors.dispatcher.claims.refused_jobs",
    {
        _REFUSED + "test_claims": [
            ("_RefusedSearch.through", "if len(suspects) == 1:", "if False:"),
            ("RefusedJobs.try_next", "if found.suspect is None:", "if True:"),
            ("RefusedJobs._set_aside", "if not bad:", "if True:"),
        ],
        _REFUSED + "test_a_bad_job_that_one_place_waits_for": [
            ("_RefusedSearch.is_about_none", "if await self._refusal([one]) is None:", "if False:"),
        ],
        _REFUSED + "test_what_a_search_finds_before_a_lock": [
            ("RefusedJobs._search", "await self._set_aside(search.bad, None)", "pass"),
        ],
        _REFUSED + "test_what_is_let_go_with_another": [
            ("RefusedJobs.try_next", "self._signal.wake()", "pass"),
            ("RefusedJobs.try_next", "await self._aside.readmit_like(found.sqlstate)", "pass"),
        ],
        _REFUSED + "test_what_is_set_aside_is_told_once": [
            ("RefusedJobs._set_aside", "if one.id not in new:", "if False:"),
            ("RefusedJobs._search", "MOST_BLAMED if is_about_none else None", "None"),
        ],
        _REFUSED + "test_many_jobs_that_one_place_waits_for": [
            ("RefusedJobs._search", "max(len(plan.seats), LOOKED_AT)", "len(plan.seats)"),
            ("_RefusedSearch.is_about_none", "bool(others) or ", ""),
        ],
        _REFUSED + "test_what_is_reported_is_nobodys_turn": [
            ("RefusedJobs._forget", 'found.status == "RUNNING" and found.statement != CLAIM', "False"),
        ],
        _REFUSED + "test_what_was_refused_something_else": [
            ("RefusedJobs.try_next", "claimed or found.statement != CLAIM", "False"),
            ("RefusedJobs.try_next", "return is_let_go", "return claimed"),
        ],
        "store/test_claim_guards.py::test_a_topic_that_cannot_be_read": [
            ("RefusedJobs.search", "except StatementError:", "except KeyError:"),
        ],
    },
    is_part=True,
)
EXPIRY: Final = Guarded(
    "pulse_actors.watchdog.expiry",
    {
        _REFUSED + "test_late_jobs_that_are_refused": [
            ("_Sweep._blame", "(LATER_S, MOST_BLAMED) if self._is_in_vain", "(0.0, 0) if self._is_in_vain"),
        ],
        _REFUSED + "test_each_late_job_is_refused": [
            ("_Sweep.some", "refused >= IN_VAIN", "False"),
            ("_Sweep._blame", "(LATER_S, MOST_BLAMED) if self._is_in_vain", "(LATER_S, None) if self._is_in_vain"),
        ],
    },
    is_part=True,
)
FAILING: Final = Guarded(
    "pulse_actors.dispatcher.monitoring.refused_statements",
    {
        _FAILING + "test_what_other_actors_tell": [
            ("RefusedStatements.findings", "if now_s - heard_s < OLD_S else []", ""),
            ("RefusedStatements.heard", "except (TypeError, msgspec.ValidationError):", "except KeyError:"),
        ],
        _FAILING + "test_the_first_refusal_is_no_finding": [
            ("RefusedStatements.findings", " if one.times >= MANY", ""),
            ("RefusedStatements.findings", "found.state is State.OK", "False"),
        ],
    },
)
