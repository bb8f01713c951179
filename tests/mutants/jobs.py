"""Mutants of the statements that submit, claim and end."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, cut, swap

CLAIM: Final = "claim_jobs"
END: Final = "end_attempts"
_OUTER: Final = "j.status::text IN ('PENDING', 'RETRYING') AND s.before_bytes"
_NOT_OVER: Final = "coalesce(g.paused_until > coalesce($16, now()), true)"
_WAIT: Final = "test_topic_policy.py::test_whose_back_off_counts"
_BECOMES: Final = "test_endings.py::test_what_becomes_of_it"


def _submits(name: str) -> list[Mutant]:
    policy, topic = "test_submit.py::test_policy_is_resolved", "test_submit.py::test_topic_is_resolved"
    due, wake = "test_submit.py::test_when_it_is_due", "test_submit.py::test_what_to_wake"
    return [
        cut(name, "    ORDER BY d.id\n", "test_lock_order.py::test_inserts"),
        *(cut(name, f"{level}.{field}, ", policy) for level in "dht" for field in ("max_attempts", "timeout_s")),
        swap(name, "coalesce(d.topic, h.topic, 'default') AS", "coalesce(d.topic, 'default') AS", topic),
        swap(name, "coalesce(d.topic, h.topic, 'default') AS", "coalesce(h.topic, d.topic, 'default') AS", topic),
        swap(name, "t.topic = coalesce(d.topic, h.topic, 'default')", "t.topic = coalesce(d.topic, 'default')", topic),
        swap(name, "h.name = d.name", "true", topic),
        swap(name, "coalesce(d.priority, 0)", "0", wake),
        swap(name, "coalesce(d.priority, 0)", "d.priority", due),
        cut(name, "\n               + (d.place - 1) * interval '1 microsecond'", due),
        cut(name, " + coalesce(d.delay_s, 0) * interval '1 second'", due),
        swap(name, "coalesce(to_timestamp(d.run_at), coalesce($13, now())", "coalesce(NULL, coalesce($13, now())", due),
        cut(name, " FILTER (WHERE next_run_at <= coalesce($13, now()) + interval '1 second')", wake),
        swap(name, " + interval '1 second'))::float8\n", ")::float8\n", wake),
        swap(name, "count(*)::int AS jobs", "1 AS jobs", wake),
    ]


BOTH: Final = "submit_and_claim"
_BOTH: Final = "test_submit_and_claim.py::"
_POLICY: Final = "test_submit.py::test_policy_is_resolved"
SUBMIT_AND_CLAIM: Final = [
    cut(BOTH, "ORDER BY n.id\n", "test_lock_order.py::test_inserts"),
    *(cut(BOTH, f"{level}.{field}, ", _POLICY) for level in "dht" for field in ("max_attempts", "timeout_s")),
    swap(
        BOTH,
        "coalesce(d.topic, h.topic, 'default') AS",
        "coalesce(d.topic, 'default') AS",
        "test_submit.py::test_topic_is_resolved",
    ),
    swap(
        BOTH,
        "t.topic = coalesce(d.topic, h.topic, 'default')",
        "t.topic = coalesce(d.topic, 'default')",
        "test_submit.py::test_topic_is_resolved",
    ),
    swap(BOTH, "h.name = d.name", "true", "test_submit.py::test_topic_is_resolved"),
    swap(BOTH, "coalesce(d.priority, 0)", "0", _BOTH + "test_a_job_is_handed_out_as_by_a_claim"),
    cut(BOTH, " + (d.place - 1) * interval '1 microsecond'", _BOTH + "test_a_job_is_handed_out_as_by_a_claim"),
    swap(BOTH, "$12 * interval '1 second'", "$12 * interval '0 seconds'", _BOTH + "test_the_clock_is_the_databases"),
    swap(BOTH, "ANY ($11::text[])", "ANY ($11::text[] || r.topic)", _BOTH + "test_a_topic_that_they_do_not_serve"),
    swap(BOTH, "('', r.topic)", "(r.topic)", _BOTH + "test_a_pause"),
    swap(BOTH, "('', r.topic)", "('')", _BOTH + "test_a_pause"),
    swap(BOTH, "g.paused AND g.topic", "g.topic", _BOTH + "test_a_gate_that_was_opened"),
    cut(
        BOTH,
        "\n                                 AND coalesce(g.paused_until > coalesce($19, now()), true)",
        _BOTH + "test_a_pause",
    ),
    swap(BOTH, "g.paused_until > ", "g.paused_until >= ", _BOTH + "test_a_pause"),
    cut(
        BOTH,
        " AND coalesce(r.expires_at > greatest((SELECT c.at FROM clock c), r.due_at), true)",
        _BOTH + "test_what_has_expired",
    ),
    swap(BOTH, "r.expires_at > ", "r.expires_at >= ", _BOTH + "test_what_has_expired"),
    swap(BOTH, "RETURNING", "ON CONFLICT (id) DO NOTHING RETURNING", _BOTH + "test_all_or_none"),
]
SUBMIT: Final = [
    *_submits("submit_jobs"),
    *_submits("submit_again"),
    swap(
        "submit_jobs",
        "RETURNING",
        "ON CONFLICT (id) DO NOTHING RETURNING",
        "test_submit.py::test_an_id_that_exists_refuses_the_whole_submit",
    ),
    cut(
        "submit_again",
        "    ON CONFLICT (id) DO NOTHING\n",
        "test_submit.py::test_a_repeated_submit_inserts_what_is_missing",
    ),
    *(
        cut("submitted_differently", text, "test_submit.py::test_another_job_under_the_same_id_is_a_conflict")
        for text in (
            "j.name <> d.name OR ",
            "j.topic <> coalesce(d.topic, h.topic, 'default') OR ",
            " OR j.args <> d.args::jsonb",
        )
    ),
    swap(
        "submitted_differently",
        "j.args <> d.args::jsonb",
        "j.args::text <> d.args",
        "test_submit.py::test_args_are_compared_as_json",
    ),
    cut("submitted_differently", "j.id IS NULL OR ", "test_swallowed.py::test_a_submit_that_is_repeated"),
    swap(
        "submitted_differently", "j.id = d.id", "true", "test_submit.py::test_a_repeated_submit_inserts_what_is_missing"
    ),
    swap(
        "submitted_differently",
        "coalesce(d.topic, h.topic,",
        "coalesce(d.topic,",
        "test_submit.py::test_a_topic_that_the_handler_names_is_the_same_job",
    ),
]

_LEVELS: Final = "test_dispatcher_claims.py::test_levels_are_found_by_a_loose_scan"
LEVELS: Final = [
    cut("find_levels", " AND j.priority < l.priority", _LEVELS),
    swap("find_levels", "j.topic = l.topic AND j.priority", "j.priority", _LEVELS),
    swap("find_levels", "j.topic > l.topic AND ", "", _LEVELS),
    swap("find_levels", "l.place < $3", "l.place <= $3", _LEVELS),
    swap("find_levels", "next_run_at <= coalesce", "next_run_at < coalesce", _LEVELS),
    cut("find_levels", " WHERE place > 0", _LEVELS),
]
_STRICTLY: Final = " FOR UPDATE SKIP LOCKED) AS p\n    LIMIT $2)"
_AGEING: Final = " FOR UPDATE SKIP LOCKED) AS p\n    ORDER"
_AGE: Final = "test_ageing.py::"
_RANK: Final = _AGE + "test_the_highest_rank_comes_first"
_TIES: Final = _AGE + "test_equal_ranks_are_served_in_the_order_of_the_topics"
_READ: Final = "test_plans.py::test_claim_costs_the_same_behind_what_is_not_due"
CLAIMS: Final = [
    swap(CLAIM, "g.paused AND g.topic IN ('', t", "g.topic IN ('', t", "test_claim.py::test_a_claim_opens_the_lease"),
    *(
        swap(
            CLAIM,
            f"IN ('', {level}.topic)\n                        AND {_NOT_OVER}",
            f"IN ('', {level}.topic)",
            "test_operators.py::test_a_pause_ends_by_itself",
        )
        for level in "tk"
    ),
    cut(
        CLAIM,
        "\n          AND (j.expires_at IS NULL OR j.expires_at > (SELECT c.at FROM clock c))",
        "test_expiry.py::test_what_has_expired_is_not_claimed",
    ),
    cut(
        CLAIM,
        "\n          AND (q.expires_at IS NULL OR q.expires_at > (SELECT c.at FROM clock c))",
        "test_expiry.py::test_what_has_expired_is_not_claimed_where_topics_age",
    ),
    swap(
        CLAIM,
        "j.expires_at > (SELECT",
        "j.expires_at >= (SELECT",
        "test_expiry.py::test_what_has_expired_is_not_claimed",
    ),
    swap(CLAIM, "g.paused AND g.topic IN ('', k", "g.topic IN ('', k", "test_claim.py::test_known_levels"),
    swap(CLAIM, "('', k.topic)", "(k.topic)", "test_claim.py::test_the_gate"),
    swap(CLAIM, "('', k.topic)", "('')", "test_claim.py::test_the_gate"),
    cut(CLAIM, "j.next_run_at >= l.from_at AND ", "test_claim.py::test_known_levels"),
    swap(CLAIM, "- interval '5 seconds'", "- interval '0 seconds'", "test_claim.py::test_known_levels"),
    swap(CLAIM, "('', t.topic)", "(t.topic)", "test_claim.py::test_the_gate"),
    swap(CLAIM, "('', t.topic)", "('')", "test_claim.py::test_the_gate"),
    swap(
        CLAIM, "WHERE j.topic = o.topic AND", "WHERE", "test_plans.py::test_claim_costs_the_same_behind_what_is_not_due"
    ),
    swap(
        CLAIM,
        "o.topic AND j.status IN ('PENDING', 'RETRYING')",
        "o.topic",
        "test_plans.py::test_claim_reads_a_range_of_its_index",
    ),
    swap(
        CLAIM,
        "l.topic AND j.status IN ('PENDING', 'RETRYING')",
        "l.topic",
        "test_plans.py::test_claim_costs_the_same_behind_what_is_not_due",
    ),
    swap(CLAIM, "ORDER BY j.priority DESC LIMIT 1) AS", "ORDER BY j.priority LIMIT 1) AS", "test_claim.py::test_order"),
    swap(
        CLAIM,
        "l.priority ORDER BY j.priority DESC LIMIT 1)",
        "l.priority ORDER BY j.priority LIMIT 1)",
        "test_claim.py::test_a_batch_is_what_comes_first",
    ),
    swap(CLAIM, "ORDER BY priority DESC, place)", "ORDER BY place)", "test_claim.py::test_order"),
    swap(CLAIM, "ORDER BY priority DESC, place)", "ORDER BY priority DESC, place DESC)", "test_claim.py::test_order"),
    swap(
        CLAIM,
        "WHERE j.topic = l.topic AND j.priority = l.priority",
        "WHERE j.topic = l.topic",
        "test_claim.py::test_order",
    ),
    swap(
        CLAIM,
        "WHERE j.topic = l.topic AND j.priority = l.priority",
        "WHERE j.priority = l.priority",
        "test_claim.py::test_only_the_topics_asked_for",
    ),
    swap(
        CLAIM,
        "l.priority AND j.status IN ('PENDING', 'RETRYING')",
        "l.priority",
        "test_claim.py::test_only_waiting_jobs_are_claimed",
    ),
    swap(
        CLAIM,
        "l.priority AND j.status IN ('PENDING', 'RETRYING')",
        "l.priority AND j.status IN ('PENDING')",
        "test_claim.py::test_a_claim_opens_the_lease",
    ),
    swap(
        CLAIM,
        "l.priority AND j.status IN ('PENDING', 'RETRYING')",
        "l.priority AND j.status IN ('RETRYING')",
        "test_claim.py::test_a_claim_opens_the_lease",
    ),
    cut(CLAIM, " AND j.next_run_at <= coalesce($16, now())", "test_claim.py::test_only_due_jobs_are_claimed"),
    swap(
        CLAIM,
        "j.next_run_at <= coalesce($16, now())",
        "j.next_run_at < coalesce($16, now())",
        "test_claim.py::test_only_due_jobs_are_claimed",
    ),
    swap(
        CLAIM,
        "j.next_run_at <= coalesce($16, now())",
        "j.next_run_at <= now()",
        "test_claim.py::test_only_due_jobs_are_claimed",
    ),
    swap(
        CLAIM,
        "j.next_run_at <= coalesce($16, now())",
        "j.next_run_at <= coalesce($16, timestamptz 'infinity')",
        "test_claim.py::test_the_database_clock_decides",
    ),
    swap(
        CLAIM,
        "ORDER BY j.next_run_at LIMIT",
        "ORDER BY j.next_run_at DESC LIMIT",
        "test_claim.py::test_a_batch_is_what_comes_first",
    ),
    swap(CLAIM, _STRICTLY, ") AS p\n    LIMIT $2)", "test_claim.py::test_claims_never_wait_for_each_other"),
    swap(CLAIM, _STRICTLY, " FOR UPDATE) AS p\n    LIMIT $2)", "test_claim.py::test_claims_never_wait_for_each_other"),
    swap(CLAIM, _STRICTLY, " FOR UPDATE SKIP LOCKED) AS p)", "test_claim.py::test_a_batch_is_what_comes_first"),
    Mutant(
        CLAIM,
        ((_STRICTLY, ") AS p\n    LIMIT $2)"), (_OUTER, "s.before_bytes")),
        "test_claim.py::test_a_claim_sees_what_happened_since_it_began",
    ),
    cut(CLAIM, " AND s.before_bytes < 8388608", "test_claim.py::test_a_claim_ends_after_so_many_bytes"),
    swap(CLAIM, "OVER place - size AS", "OVER place AS", "test_claim.py::test_a_claim_ends_after_so_many_bytes"),
    swap(CLAIM, "octet_length(j.args::text) ELSE", "2000 ELSE", "test_claim.py::test_a_claim_ends_after_so_many_bytes"),
    cut(
        CLAIM,
        " OR pg_column_compression(j.args) IS NOT NULL",
        "test_claim.py::test_what_is_stored_otherwise_counts_as_it_is_printed",
    ),
    cut(
        CLAIM,
        " + coalesce(octet_length(j.checkpoint::text), 0)",
        "test_claim.py::test_what_is_stored_otherwise_counts_as_it_is_printed",
    ),
    cut(
        CLAIM,
        "\n               + coalesce(octet_length(to_json(j.last_error)::text), 0)",
        "test_claim.py::test_what_is_stored_otherwise_counts_as_it_is_printed",
    ),
    cut(
        CLAIM,
        " + coalesce(octet_length(j.progress::text), 0)",
        "test_claim.py::test_what_is_stored_otherwise_counts_as_it_is_printed",
    ),
    swap(
        CLAIM,
        "pg_column_size(j.args) > 2000 OR ",
        "false OR ",
        "test_claim.py::test_what_is_stored_otherwise_counts_as_it_is_printed",
    ),
    swap(
        CLAIM,
        "WINDOW place AS (ORDER BY rank DESC, next_run_at, id)",
        "WINDOW place AS (ORDER BY next_run_at, id)",
        "test_claim.py::test_seats",
    ),
    swap(
        CLAIM,
        "WINDOW place AS (ORDER BY rank DESC, next_run_at, id)",
        "WINDOW place AS (ORDER BY rank DESC, next_run_at DESC, id)",
        "test_claim.py::test_seats",
    ),
    swap(
        CLAIM,
        "WINDOW place AS (ORDER BY rank DESC, next_run_at, id)",
        "WINDOW place AS (ORDER BY rank DESC, next_run_at, id DESC)",
        "test_model.py::test_the_store_does_what_the_model_does",
    ),
    swap(
        CLAIM,
        "attempts = greatest(j.attempts, s.floor) + 1",
        "attempts = greatest(j.attempts, s.floor, 1)",
        "test_claim.py::test_a_claim_opens_the_lease",
    ),
    swap(
        CLAIM,
        "started_at = (SELECT c.at FROM clock c)",
        "started_at = now()",
        "test_claim.py::test_a_claim_opens_the_lease",
    ),
    swap(
        CLAIM,
        "started_at = (SELECT c.at FROM clock c)",
        "started_at = coalesce($16, clock_timestamp())",
        "test_expiry.py::test_what_expires_while_a_claim_works",
    ),
    swap(
        CLAIM,
        "SELECT coalesce($16, clock_timestamp()) AS at\n",
        "SELECT coalesce($16, now()) AS at\n",
        "test_expiry.py::test_what_expires_while_a_claim_waits",
    ),
    swap(
        CLAIM,
        "q.expires_at > (SELECT c.at FROM clock c)",
        "q.expires_at > coalesce($16, now())",
        "test_expiry.py::test_what_expires_while_a_claim_waits",
    ),
    swap(
        CLAIM,
        "j.expires_at > (SELECT c.at FROM clock c)",
        "j.expires_at > coalesce($16, now())",
        "test_expiry.py::test_what_expires_while_a_claim_waits",
    ),
    swap(
        CLAIM,
        "+ $5 * interval '1 second'",
        "+ 0 * $5 * interval '1 second'",
        "test_claim.py::test_a_claim_opens_the_lease",
    ),
    swap(
        CLAIM,
        "lease_until = coalesce($16, clock_timestamp())",
        "lease_until = coalesce($16, timestamptz '2000-01-01')",
        "test_claim.py::test_the_database_clock_decides",
    ),
    cut(CLAIM, ",\n    progress = NULL", "test_claim.py::test_a_claim_opens_the_lease"),
    swap(CLAIM, "WHERE j.id BETWEEN s.id AND s.id AND", "WHERE", "test_claim.py::test_a_batch_is_what_comes_first"),
    swap(CLAIM, "j.id BETWEEN s.id AND s.id", "j.id = s.id", "test_plans.py::test_claim_reads_a_range_of_its_index"),
    swap(
        CLAIM,
        "a.attempt < j.attempts ORDER BY a.attempt DESC",
        "a.attempt < j.attempts ORDER BY a.attempt",
        "test_claim.py::test_a_claim_tells_the_attempt_before",
    ),
    cut(CLAIM, "a.job_id = j.id AND ", "test_claim.py::test_a_claim_tells_the_attempt_before"),
    swap(CLAIM, "WHERE $9::float8[] IS NULL ORDER", "ORDER", _RANK),
    cut(CLAIM, "\n    WHERE $9::float8[] IS NOT NULL", _READ),
    swap(CLAIM, "OFFSET $2 - 1 LIMIT 1", "OFFSET $2 - 2 LIMIT 1", _RANK),
    swap(CLAIM, "OFFSET $2 - 1 LIMIT 1", "LIMIT 1", _RANK),
    swap(CLAIM, "r.priority >= coalesce((SELECT rank FROM bar), r.priority)", "false", _RANK),
    swap(CLAIM, "coalesce((SELECT rank FROM bar), r.priority)", "(SELECT rank FROM bar)", _RANK),
    swap(CLAIM, "least(((SELECT rank FROM bar) - r.priority) * r.age_s, 6.4e10)", "6.4e10", _RANK),
    swap(CLAIM, " - r.priority) * r.age_s, 6.4e10)", " - r.priority) * r.age_s, 1e300)", _RANK),
    swap(CLAIM, "q.topic = c.topic AND ", "", _RANK),
    swap(CLAIM, "q.priority = c.priority AND ", "", _RANK),
    swap(CLAIM, "c.priority AND q.status IN ('PENDING', 'RETRYING')", "c.priority", _RANK),
    swap(CLAIM, " AND q.next_run_at <= c.until_at", "", _RANK),
    swap(CLAIM, _AGEING, ") AS p\n    ORDER", _AGE + "test_what_somebody_has_locked_is_passed_over"),
    swap(CLAIM, _AGEING, " FOR UPDATE) AS p\n    ORDER", _AGE + "test_what_somebody_has_locked_is_passed_over"),
    swap(CLAIM, "ORDER BY 4 DESC, c.place, p.next_run_at", "ORDER BY c.place, p.next_run_at", _RANK),
    swap(CLAIM, "ORDER BY 4 DESC, c.place, p.next_run_at", "ORDER BY 4 DESC, p.next_run_at", _TIES),
    swap(CLAIM, "c.place, p.next_run_at LIMIT $2)", "c.place, p.next_run_at)", _RANK),
    swap(
        CLAIM,
        "ORDER BY rank DESC, next_run_at, id)",
        "ORDER BY next_run_at DESC, id)",
        _AGE + "test_seats_are_dealt_by_rank",
    ),
]


def _fence(name: str, alias: str = "d") -> list[Mutant]:
    return [
        cut(name, f"j.id BETWEEN {alias}.id AND {alias}.id AND ", "test_guards.py::test_the_holder_may_write"),
        swap(
            name,
            f"WHERE j.id BETWEEN {alias}.id AND {alias}.id",
            f"WHERE j.id = {alias}.id",
            "test_plans.py::test_attempts_are_found_by_key",
        ),
        cut(name, " AND j.status::text = 'RUNNING'", "test_guards.py::test_only_a_running_row_is_written"),
        cut(name, f" AND j.locked_by = {alias}.worker", "test_guards.py::test_a_stale_write_changes_nothing"),
        cut(name, f" AND j.attempts = {alias}.attempt", "test_guards.py::test_a_stale_write_changes_nothing"),
        swap(
            name,
            f"j.attempts = {alias}.attempt",
            f"j.attempts >= {alias}.attempt",
            "test_guards.py::test_an_operators_retry_leaves_no_hole",
        ),
        swap(
            name,
            f"j.attempts = {alias}.attempt",
            f"j.attempts <= {alias}.attempt",
            "test_guards.py::test_a_stale_write_changes_nothing",
        ),
    ]


FENCES: Final = [
    *(
        mutant
        for name in ("move_claims", "complete_jobs", "extend_leases", "save_checkpoints")
        for mutant in _fence(name)
    ),
    *_fence(END, "e"),
    swap(
        "complete_jobs", "coalesce(d.progress::jsonb, j.progress)", "d.progress::jsonb", "test_guards.py::test_complete"
    ),
    swap("complete_jobs", "coalesce($6, clock_timestamp())", "now()", "test_guards.py::test_complete"),
    swap(
        "extend_leases", "coalesce(d.progress::jsonb, j.progress)", "d.progress::jsonb", "test_guards.py::test_extend"
    ),
    swap(
        "extend_leases",
        "clock_timestamp()) + interval '1 second'",
        "clock_timestamp()) + 0 * interval '1 second'",
        "test_guards.py::test_extend",
    ),
    cut("completed_at_attempt", " AND j.status::text = 'COMPLETED'", "test_guards.py::test_completed_already"),
    cut("completed_at_attempt", " AND j.attempts = d.attempt", "test_guards.py::test_completed_already"),
    swap("completed_at_attempt", "j.id BETWEEN d.id AND d.id", "true", "test_guards.py::test_completed_already"),
    cut("lapsed_attempts", "j.status = 'RUNNING' AND ", "test_guards.py::test_lapsed_looks_at_the_status"),
    cut("lapsed_attempts", " AND j.lease_until < coalesce($3, clock_timestamp())", "test_guards.py::test_lapsed"),
    swap("lapsed_attempts", "j.lease_until <", "j.lease_until <=", "test_guards.py::test_lapsed"),
    swap(
        "lapsed_attempts",
        "ORDER BY j.started_at LIMIT",
        "ORDER BY j.started_at DESC LIMIT",
        "test_guards.py::test_lapsed",
    ),
    swap("lapsed_attempts", "j.locked_by <> ALL ($2::text[])", "$2::text[] IS NOT NULL", "test_guards.py::test_lapsed"),
    swap("lapsed_attempts", "ORDER BY l.id", "ORDER BY l.id DESC", "test_guards.py::test_lapsed"),
    cut("running_of_worker", "j.status = 'RUNNING' AND ", "test_guards.py::test_running_of"),
    swap("running_of_worker", "textsend(j.name)", "j.name", "test_guards.py::test_running_of"),
    swap("leases_of_workers", "textsend(j.name)", "j.name", "test_guards.py::test_running_of"),
    swap("running_of_worker", "j.locked_by = $1", "$1 <> ''", "test_guards.py::test_running_of"),
    cut("leases_of_workers", "j.status = 'RUNNING' AND ", "test_guards.py::test_running_of"),
    swap(
        "leases_of_workers",
        "j.locked_by = ANY ($1::text[])",
        "$1::text[] IS NOT NULL",
        "test_guards.py::test_running_of",
    ),
    swap(
        "leases_of_workers",
        "coalesce($2, clock_timestamp())",
        "coalesce($2, j.lease_until)",
        "test_guards.py::test_running_of",
    ),
    swap(
        "leases_of_workers", "coalesce($2, clock_timestamp())", "clock_timestamp()", "test_guards.py::test_running_of"
    ),
    cut("running_workers", " WHERE j.status = 'RUNNING'", "test_guards.py::test_running_of"),
    cut("running_workers", "DISTINCT ", "test_guards.py::test_running_of"),
]

ENDS: Final = [
    swap(
        END,
        "JOIN pulse.jobs j ON j.id BETWEEN d.id AND d.id",
        "JOIN pulse.jobs j ON j.id = d.id",
        "test_plans.py::test_attempts_are_found_by_key",
    ),
    swap(
        END,
        "JOIN pulse.jobs j ON j.id BETWEEN d.id AND d.id",
        "CROSS JOIN pulse.jobs j",
        "test_endings.py::test_the_crash_budget_is_resolved",
    ),
    cut(
        END,
        "\n      AND (e.outcome <> 'lease_expired' OR j.lease_until < e.at)",
        "test_guards.py::test_a_living_lease_is_never_reaped",
    ),
    swap(END, "j.lease_until < e.at", "j.lease_until <= e.at", "test_guards.py::test_a_living_lease_is_never_reaped"),
    cut(END, "e.outcome <> 'lease_expired' OR ", "test_endings.py::test_the_crash_budget_is_resolved"),
    swap(END, "coalesce(d.delay_s, CASE", "coalesce(NULL, CASE", _BECOMES),
    swap(END, "WHEN 'released' THEN 0 WHEN", "WHEN", _BECOMES),
    swap(END, "WHEN 'crashed' THEN j.crashes ^ 2", "WHEN 'crashed' THEN (j.crashes + 1) ^ 2", _BECOMES),
    swap(END, "(d.attempt - j.uncharged) ^ 2) END)", "d.attempt ^ 2) END)", _BECOMES),
    swap(END, "WHEN 'discarded' THEN true", "WHEN 'discarded' THEN false", _BECOMES),
    cut(END, "WHEN 'released' THEN false", _BECOMES),
    cut(END, "WHEN 'snoozed' THEN false", _BECOMES),
    swap(END, "j.crashes + 1 >= coalesce(", "j.crashes >= coalesce(", _BECOMES),
    swap(END, "j.crashes + 1 >= coalesce(", "j.crashes + 1 > coalesce(", _BECOMES),
    cut(
        END,
        "(SELECT h.max_crashes FROM pulse.handlers h WHERE h.name = j.name),",
        "test_endings.py::test_the_crash_budget_is_resolved",
    ),
    cut(
        END,
        "(SELECT t.max_crashes FROM pulse.topics t WHERE t.topic = j.topic),",
        "test_endings.py::test_the_crash_budget_is_resolved",
    ),
    swap(
        END,
        "(SELECT t.max_crashes FROM pulse.topics t WHERE t.topic = '')",
        "3",
        "test_endings.py::test_the_crash_budget_is_resolved",
    ),
    swap(END, "ELSE d.attempt - j.uncharged >= j.max_attempts", "ELSE d.attempt >= j.max_attempts", _BECOMES),
    swap(
        END, "ELSE d.attempt - j.uncharged >= j.max_attempts", "ELSE d.attempt - j.uncharged > j.max_attempts", _BECOMES
    ),
    swap(
        END, "IN ('released', 'unassigned', 'snoozed', 'crashed')", "IN ('unassigned', 'snoozed', 'crashed')", _BECOMES
    ),
    swap(END, "IN ('released', 'unassigned', 'snoozed', 'crashed')", "IN ('released', 'snoozed', 'crashed')", _BECOMES),
    swap(
        END, "IN ('released', 'unassigned', 'snoozed', 'crashed')", "IN ('released', 'unassigned', 'crashed')", _BECOMES
    ),
    swap(
        END, "IN ('released', 'unassigned', 'snoozed', 'crashed')", "IN ('released', 'unassigned', 'snoozed')", _BECOMES
    ),
    cut(END, "WHEN 'unassigned' THEN 0 ", _BECOMES),
    *(
        swap(
            END, text, text.replace("SELECT h.backoff", "SELECT NULL").replace("SELECT t.backoff", "SELECT NULL"), _WAIT
        )
        for text in (
            "SELECT h.backoff FROM pulse.handlers h WHERE h.name = j.name AND h.backoff IS NOT NULL",
            "SELECT t.backoff FROM pulse.topics t WHERE t.topic = j.topic AND t.backoff IS NOT NULL",
            "SELECT t.backoff FROM pulse.topics t WHERE t.topic = '' AND t.backoff IS NOT NULL",
        )
    ),
    swap(END, "h.name = j.name AND h.backoff", "h.backoff", _WAIT),
    swap(END, "EXISTS (SELECT FROM pulse.topics t WHERE t.backoff IS NOT NULL)", "false", _WAIT),
    swap(END, "EXISTS (SELECT FROM pulse.handlers h WHERE h.backoff IS NOT NULL)", "false", _WAIT),
    swap(
        END,
        "d.attempt - j.uncharged),",
        "d.attempt),",
        _WAIT,
    ),
    cut(END, "WHEN 'unassigned' THEN false", _BECOMES),
    cut(END, "    WHERE outcome <> 'unassigned'\n", "test_endings.py::test_no_history_of_what_nobody_saw"),
    cut(END, " AND NOT e.crashed", _BECOMES),
    cut(END, " AND e.attempt = j.uncharged + 1", _BECOMES),
    swap(
        END, "CASE WHEN e.dead THEN j.next_run_at ELSE e.at", "CASE WHEN false THEN j.next_run_at ELSE e.at", _BECOMES
    ),
    swap(
        END, "completed_at = CASE WHEN e.dead THEN e.at END", "completed_at = CASE WHEN e.dead THEN now() END", _BECOMES
    ),
    swap(END, "uncharged = j.uncharged + e.uncharged::int", "uncharged = j.uncharged", _BECOMES),
    swap(END, "crashes = j.crashes + e.crashed::int", "crashes = j.crashes", _BECOMES),
    swap(END, "coalesce(e.error, j.last_error)", "e.error", "test_endings.py::test_no_error_keeps_the_last_one"),
    swap(END, "coalesce(e.error, j.last_error)", "j.last_error", _BECOMES),
    swap(END, "coalesce(e.progress::jsonb, j.progress)", "e.progress::jsonb", "test_endings.py::test_last_progress"),
    swap(END, "coalesce(e.progress::jsonb, j.progress)", "j.progress", "test_endings.py::test_last_progress"),
    swap(
        END,
        "coalesce($12, clock_timestamp())",
        "coalesce($12, timestamptz '2000-01-01')",
        "test_endings.py::test_the_database_clock_decides",
    ),
    cut(END, "    ON CONFLICT (job_id, attempt) DO NOTHING\n", "test_endings.py::test_history_is_never_rewritten"),
    swap(END, "outcome <> 'unassigned'", "outcome NOT IN ('unassigned', 'released')", "test_endings.py::test_history"),
]

_LOCKED: Final = "test_unwritten.py::test_a_lock_is_told_from_an_outage"
LOCKS: Final = [
    cut("lockable_jobs", " FOR UPDATE SKIP LOCKED", _LOCKED),
    cut("lockable_jobs", " SKIP LOCKED", _LOCKED),
    swap("lockable_jobs", "WHERE NOT EXISTS (SELECT FROM pulse.jobs j WHERE j.id = d.id)", "WHERE false", _LOCKED),
]

MUTANTS: Final = [*SUBMIT, *SUBMIT_AND_CLAIM, *CLAIMS, *LEVELS, *FENCES, *ENDS, *LOCKS]
