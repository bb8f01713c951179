"""Mutants of the statement that tells why a job does not run."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, cut, swap

_WHY: Final = "test_why.py::"
WHY_JOB: Final = "why_job"
MUTANTS: Final[list[Mutant]] = [
    cut(WHY_JOB, "j.schedule_id IS NOT NULL AND ", _WHY + "test_held_behind_its_schedule"),
    swap(WHY_JOB, "WHERE b.held AND q.", "WHERE q.", _WHY + "test_held_behind_its_schedule"),
    swap(WHY_JOB, " AND b.held\n", "\n", _WHY + "test_held_behind_its_schedule"),
    swap(WHY_JOB, "q.occurrence < b.", "q.occurrence <= b.", _WHY + "test_held_behind_its_schedule"),
    cut(WHY_JOB, " AND b.next_run_at <= b.now", _WHY + "test_who_comes_first_of_what_is_not_due"),
    cut(WHY_JOB, " - interval '1 microsecond'", _WHY + "test_who_comes_first"),
    swap(WHY_JOB, "ELSE b.now END", "ELSE 'infinity' END", _WHY + "test_who_comes_first"),
    cut(WHY_JOB, "q.topic = v.topic AND ", _WHY + "test_who_comes_first"),
    Mutant(  # either of the two bounds the count
        WHY_JOB,
        (
            ("ORDER BY q.next_run_at LIMIT $2)", "ORDER BY q.next_run_at)"),
            ("LIMIT $2) AS o) AS before", ") AS o) AS before"),
        ),
        _WHY + "test_among_many_that_wait",
    ),
    cut(WHY_JOB, " AND b.attempts > 0", _WHY + "test_what_expired_before_it_was_claimed"),
    swap(WHY_JOB, "coalesce(e.paused_until > b.now, true)", "true", _WHY + "test_pauses_that_are_over"),
    swap(WHY_JOB, "coalesce(t.paused_until > b.now, true)", "true", _WHY + "test_pauses_that_are_over"),
    swap(WHY_JOB, "left(j.last_error, 500)", "j.last_error", _WHY + "test_a_job_that_has_ended"),
    swap(WHY_JOB, "left(a.error, 500)", "a.error", _WHY + "test_after_an_error"),
    cut(
        WHY_JOB,
        "\n       AND o.boot = split_part(coalesce(b.locked_by, a.worker), '/', 2)",
        _WHY + "test_a_job_that_runs",
    ),
    swap(
        WHY_JOB,
        "split_part(coalesce(b.locked_by, a.worker), '/', 1)",
        "split_part(b.locked_by, '/', 1)",
        _WHY + "test_a_lease_that_lapsed",
    ),
    swap(WHY_JOB, "o.host <> $3 AND ", "$3 <> '' AND ", _WHY + "test_what_is_known_of_its_handler_and_of_hosts"),
    swap(WHY_JOB, "'1 minute'", "'2 minutes'", _WHY + "test_what_is_known_of_its_handler_and_of_hosts"),
    cut(WHY_JOB, "DISTINCT ", _WHY + "test_what_is_known_of_its_handler_and_of_hosts"),
]
