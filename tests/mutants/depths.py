"""Mutants of the statements that count what waits, and of those that carry a trace."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, cut, swap

_DEPTHS: Final = "test_reads.py::"
_COUNTED: Final = _DEPTHS + "test_what_waits_and_what_runs_is_counted"
_TOGETHER: Final = _DEPTHS + "test_topics_beyond_the_limit_are_told_together"
_SAMPLED: Final = _DEPTHS + "test_many_are_estimated"
_TRACES: Final = "test_claim.py::"
COUNT: Final = "count_waiting"
SAMPLE: Final = "sample_waiting"
MUTANTS: Final[list[Mutant]] = [
    cut(COUNT, " WHERE j.status IN ('PENDING', 'RETRYING')", _COUNTED),
    cut(COUNT, " WHERE j.status = 'RUNNING'", _COUNTED),
    swap(COUNT, "w.next_run_at <= c.at) AS ready", "true) AS ready", _COUNTED),
    swap(COUNT, "w.next_run_at > c.at) AS scheduled", "true) AS scheduled", _COUNTED),
    swap(COUNT, "min(w.next_run_at) FILTER (WHERE w.next_run_at <= c.at)", "min(w.next_run_at)", _COUNTED),
    swap(COUNT, "<= $2 AS is_large", "<= $2 + 1 AS is_large", _TOGETHER),
    swap(COUNT, "sum(p.ready) + sum(p.running) DESC", "sum(p.ready) + sum(p.running)", _TOGETHER),
    swap(COUNT, "clock c LEFT JOIN", "clock c JOIN", _DEPTHS + "test_nothing_waits"),
    swap(SAMPLE, "clock c LEFT JOIN told", "clock c JOIN told", _DEPTHS + "test_nothing_waits"),
    swap(SAMPLE, "* c.each AS ready", "AS ready", _SAMPLED),
    swap(SAMPLE, "* c.each AS scheduled", "AS scheduled", _SAMPLED),
    swap(SAMPLE, "CASE WHEN k.is_exact THEN k.ready ELSE greatest(k.ready, g.ready) END", "g.ready", _SAMPLED),
    swap(SAMPLE, "AS n(topic)\n", "AS n(topic) WHERE false\n", _SAMPLED),
    cut(SAMPLE, "v.topic = k.topic AND ", _SAMPLED),
    cut(SAMPLE, "j.priority < v.priority AND ", _SAMPLED),
    swap("submit_jobs", "d.traceparent,\n", "NULL,\n", _TRACES + "test_from_a_submit_to_the_claim"),
    swap("submit_again", "d.traceparent,\n", "NULL,\n", _TRACES + "test_from_a_submit_to_the_claim"),
    swap("submit_and_claim", "n.traceparent,", "NULL,", _TRACES + "test_handed_out_by_the_submit"),
    swap("claim_jobs", "55 THEN j.traceparent END", "55 THEN NULL END", _TRACES + "test_from_a_submit_to_the_claim"),
    swap(
        "claim_jobs",
        "CASE WHEN octet_length(j.traceparent) <= 55 THEN j.traceparent END",
        "j.traceparent",
        _TRACES + "test_what_was_written_past_the_functions",
    ),
]
