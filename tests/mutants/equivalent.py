"""
Changes that no test can see, each with the reason: what they take away is guarded a second time.

``python -m tests.mutants --equivalent`` runs all tests that find mutants with each of them: one that fails is none.
"""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import SCHEMA, Mutant, cut, swap

_ALL: Final = ""  # every test that finds a mutant

EQUIVALENT: Final[dict[Mutant, str]] = {
    swap("claim_jobs", " AND j.status::text IN ('PENDING', 'RETRYING') AND s.", " AND s.", _ALL): (
        "the row is locked and its status was looked at under the lock; a mutant without both is found"
    ),
    swap("claim_jobs", "ORDER BY j.next_run_at LIMIT $2 FOR", "LIMIT $2 FOR", _ALL): (
        "on a hot connection the rows of a level come from idx_jobs_claim, which is in this order"
    ),
    swap("claim_jobs", "ORDER BY j.next_run_at LIMIT $2 FOR", "ORDER BY j.next_run_at FOR", _ALL): (
        "the LIMIT outside of it stops the scan as early; this one is for the planner"
    ),
    swap("claim_jobs", "CASE WHEN j.attempts > 1 THEN (", "CASE WHEN true THEN (", _ALL): (
        "saves a look into the history that finds nothing"
    ),
    swap("retry_jobs", "t.id AND j.status::text IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELED')", "t.id", _ALL): (
        "the rows are locked and their status was looked at under the lock; a mutant without both is found"
    ),
    swap("cancel_jobs", "t.id AND j.status::text IN ('PENDING', 'RETRYING', 'RUNNING')", "t.id", _ALL): "the same",
    swap(
        "fire_schedules",
        "s.id = d.id AND s.next_run_at = d.next_run_at AND s.revision = d.revision AND NOT s.paused",
        "s.id = d.id",
        _ALL,
    ): "the same",
    swap(
        "next_schedule", "s.next_run_at IS NOT NULL AND ", "", _ALL
    ): "min() passes over NULL; written out for the partial index",
    swap("cancel_jobs", "c ON c.id = t.id WHERE", "c ON true WHERE", _ALL): (
        "all of the locked rows are changed, and the primary key leaves one row of history for each"
    ),
    swap(SCHEMA, "LANGUAGE sql VOLATILE STRICT", "LANGUAGE sql VOLATILE", _ALL): (
        "where nobody has a back-off, the statement comes to quadratic, as the function would"
    ),
    cut("note_handlers", "ORDER BY d.name\n", _ALL): "the store sorts the names before",
    cut("get_gate", " ORDER BY g.topic", _ALL): "the caller makes a dictionary of it",
}
