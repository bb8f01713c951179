"""Mutants of the statements for operators and policy, and of schema.sql."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import SCHEMA, Mutant, cut, swap
from tests.store.checks import CHECKS

CANCEL: Final = "cancel_jobs"
RETRY: Final = "retry_jobs"
_PAUSES: Final = "test_operators.py::"
_EXPIRY: Final = "test_expiry.py::"
_TOPICS: Final = "test_topic_policy.py::"
_ONE: Final = "test_one_option_at_a_time"
_ALL_OF_IT: Final = (
    "topic, excluded.max_attempts, excluded.timeout_s, excluded.max_crashes, excluded.stall_s, excluded.backoff)"
)
_NEWEST: Final = _PAUSES + "test_the_newest_says_who_and_until_when"
_ANEW: Final = _PAUSES + "test_a_pause_after_one_that_ended_begins_anew"
_OPS: Final = "test_operators.py::"
_SCHEDULES: Final = "test_schedules.py::"
_READS: Final = "test_reads.py::"
_SQL: Final = "test_sql_submit.py::"
_WAKE: Final = _SQL + "test_workers_are_woken_once_in_a_while"
_FULL: Final = "test_news.py::"
_MEETING: Final = "test_interleavings.py::test_committed"
_ACTIVE: Final = "('PENDING', 'RETRYING', 'RUNNING')"
_FINISHED: Final = "('COMPLETED', 'DEAD_LETTERED', 'CANCELED')"
_LOCK: Final = "\n    ORDER BY j.id FOR UPDATE"


def target(name: str, statuses: str, done: str, refused: str) -> list[Mutant]:
    """What cancel, retry, delete and change have in common: two looks at the status, and a lock between them."""
    first, second = (
        f"ANY ($1::uuid[]) AND j.status::text IN {statuses}",
        f"j.id = t.id AND j.status::text IN {statuses}",
    )
    both = ((first, "ANY ($1::uuid[])"), (second, "j.id = t.id"))
    words = statuses.strip("()").split(", ")
    fewer = [f"({', '.join(word for word in words if word != left_out)})" for left_out in words]
    return [
        Mutant(name, both, refused),
        *(swap(name, first, first.replace(statuses, less), done) for less in fewer),
        *(swap(name, second, second.replace(statuses, less), done) for less in fewer),
        cut(name, _LOCK, "test_lock_order.py::test_updates"),
        Mutant(name, ((_LOCK, ""), (second, "j.id = t.id")), _MEETING),
        swap(name, "j.id = ANY ($1::uuid[])", "$1::uuid[] IS NOT NULL", refused),
        swap(name, "WHERE j.id = t.id AND", "WHERE", refused),
    ]


OPERATORS: Final = [
    *target(CANCEL, _ACTIVE, _OPS + "test_cancel", _OPS + "test_a_finished_job_is_not_canceled"),
    *target(RETRY, _FINISHED, _OPS + "test_retry", _OPS + "test_an_active_job_is_not_retried"),
    cut(CANCEL, " FOR UPDATE", _MEETING),
    cut(CANCEL, " WHERE t.status = 'RUNNING'", _OPS + "test_cancel"),
    cut(CANCEL, "    ON CONFLICT (job_id, attempt) DO NOTHING\n", _OPS + "test_cancel_keeps_history"),
    cut(CANCEL, ", locked_by = NULL, lease_until = NULL", _OPS + "test_cancel"),
    swap(CANCEL, "completed_at = coalesce($2, clock_timestamp())", "completed_at = now()", _OPS + "test_cancel"),
    cut(RETRY, "uncharged = j.attempts, ", _OPS + "test_retry"),
    cut(RETRY, "crashes = 0, ", _OPS + "test_retry"),
    swap(RETRY, "next_run_at = coalesce($2, clock_timestamp()), ", "", _OPS + "test_retry"),
    *(cut(RETRY, f", {column} = NULL", _OPS + "test_retry") for column in ("progress", "checkpoint")),
    cut(RETRY, "result = NULL, ", _OPS + "test_retry"),
    swap("get_gate", "WHERE g.paused AND (", "WHERE (", _OPS + "test_pause_and_resume"),
    swap("get_gate", "g.paused_until > coalesce", "g.paused_until < coalesce", _PAUSES + "test_a_pause_ends_by_itself"),
    swap(
        "pause_dispatch",
        "CASE WHEN g.paused_until <= excluded.paused_at THEN excluded.reason",
        "CASE WHEN false THEN excluded.reason",
        _ANEW,
    ),
    swap(
        "pause_dispatch",
        "CASE WHEN g.paused_until <= excluded.paused_at THEN excluded.paused_at",
        "CASE WHEN false THEN excluded.paused_at",
        _ANEW,
    ),
    swap("pause_dispatch", "paused_by = excluded.paused_by, ", "", _NEWEST),
    swap(
        "pause_dispatch",
        "paused_until = excluded.paused_until,\n",
        "\n",
        _PAUSES + "test_the_newest_says_who_and_until_when",
    ),
    cut("resume_dispatch", ", paused_until = NULL", _OPS + "test_pause_and_resume"),
    Mutant(
        "expire_pauses",
        (
            (
                "    WHERE g.paused AND g.paused_until <= coalesce($1, clock_timestamp()) ORDER",
                "    WHERE g.paused ORDER",
            ),
            (" AND g.paused AND g.paused_until <= coalesce($1, clock_timestamp())\n", "\n"),
        ),
        _PAUSES + "test_what_is_cleared",
    ),
    swap("expire_pauses", "pulse.tell('pulse_gate', topic)", "length(topic)", _PAUSES + "test_its_end_is_told"),
    *(
        cut("expire_jobs", text, _EXPIRY + killer)
        for text, killer in (
            (" AND j.expires_at <= coalesce($2, now())", "test_who_expires"),
            (" SKIP LOCKED", "test_a_row_that_is_locked_waits_for_the_next_look"),
        )
    ),
    swap(
        "expire_jobs",
        "WHERE j.status IN ('PENDING', 'RETRYING')",
        "WHERE j.status <> 'CANCELED'",
        _EXPIRY + "test_who_expires",
    ),
    swap("expire_jobs", "LIMIT $1", "LIMIT $1 + 1", _EXPIRY + "test_some_at_a_time"),
    swap("expire_jobs", "SELECT c.id, 0,", "SELECT c.id, 1,", _EXPIRY + "test_what_an_expired_job_says"),
    swap(
        RETRY,
        "CASE WHEN j.expires_at > coalesce($2, clock_timestamp()) THEN j.expires_at END",
        "j.expires_at",
        _EXPIRY + "test_a_retry_drops_an_expiry_that_is_over",
    ),
    swap(
        RETRY,
        "CASE WHEN j.expires_at > coalesce($2, clock_timestamp()) THEN j.expires_at END",
        "NULL",
        _EXPIRY + "test_a_retry_drops_an_expiry_that_is_over",
    ),
    *(
        swap("set_topic", "pulse.set_topic($1, $2::text::jsonb)", "length($1 || $2)", _TOPICS + killer)
        for killer in ("test_what_is_set", "test_what_set_topic_refuses")
    ),
    cut(SCHEMA, "    NEW.paused_until := NULL;\n", _PAUSES + "test_a_plain_update_opens_and_closes"),
    swap(SCHEMA, "PERFORM pulse.tell('pulse_gate', 'topics')", "NULL", _TOPICS + "test_a_change_is_told"),
    *(
        swap(
            SCHEMA,
            f"CASE WHEN policy ? '{name}' THEN excluded.{name} ELSE t.{name} END",
            f"excluded.{name}",
            _TOPICS + _ONE,
        )
        for name in (
            "max_attempts",
            "max_crashes",
            "timeout_s",
            "stall_s",
            "lease_s",
            "retention_s",
            "ageing_s",
            "backoff",
        )
    ),
    swap(
        "pause_dispatch",
        "coalesce(g.paused_at, excluded.paused_at)",
        "excluded.paused_at",
        _OPS + "test_a_second_pause_keeps_the_first_ones_time",
    ),
    swap(
        "pause_dispatch",
        "coalesce(excluded.reason, g.reason)",
        "excluded.reason",
        _OPS + "test_a_second_pause_keeps_the_first_ones_time",
    ),
    swap(
        "pause_dispatch",
        "coalesce(excluded.reason, g.reason)",
        "coalesce(g.reason, excluded.reason)",
        _OPS + "test_a_second_pause_keeps_the_first_ones_time",
    ),
    swap("pause_dispatch", "pulse.tell('pulse_gate', topic)", "length(topic)", _OPS + "test_the_gate_tells_others"),
    swap("resume_dispatch", "pulse.tell('pulse_gate', topic)", "length(topic)", _OPS + "test_the_gate_tells_others"),
    cut("resume_dispatch", " AND g.paused", _OPS + "test_pause_and_resume"),
    swap("resume_dispatch", "g.topic = $1", "$1 >= ''", _OPS + "test_pause_and_resume"),
    cut("resume_dispatch", "reason = NULL, ", _OPS + "test_a_pause_after_a_resume_begins_anew"),
    swap(
        "note_handlers",
        "   OR h.seen_at < excluded.seen_at - interval '1 minute'",
        "   OR true",
        _OPS + "test_unchanged_handlers_are_rarely_written",
    ),
    cut(
        "note_handlers",
        "   OR h.seen_at < excluded.seen_at - interval '1 minute'",
        _OPS + "test_unchanged_handlers_are_rarely_written",
    ),
    *(
        Mutant(
            "note_handlers",
            ((f"(h.{text}", f"(h.{less}"), (f"(excluded.{there}", f"(excluded.{rest}")),
            _OPS + "test_unchanged_handlers_are_rarely_written",
        )
        for text, less, there, rest in (
            (
                "topic, h.max_attempts, h.timeout_s, h.max_crashes, h.stall_s, h.backoff)",
                "max_attempts, h.timeout_s, h.max_crashes, h.stall_s, h.backoff)",
                _ALL_OF_IT,
                "max_attempts, excluded.timeout_s, excluded.max_crashes, excluded.stall_s, excluded.backoff)",
            ),
            (
                "topic, h.max_attempts, h.timeout_s, h.max_crashes, h.stall_s, h.backoff)",
                "topic, h.timeout_s, h.max_crashes, h.stall_s, h.backoff)",
                _ALL_OF_IT,
                "topic, excluded.timeout_s, excluded.max_crashes, excluded.stall_s, excluded.backoff)",
            ),
            (
                "topic, h.max_attempts, h.timeout_s, h.max_crashes, h.stall_s, h.backoff)",
                "topic, h.max_attempts, h.max_crashes, h.stall_s, h.backoff)",
                _ALL_OF_IT,
                "topic, excluded.max_attempts, excluded.max_crashes, excluded.stall_s, excluded.backoff)",
            ),
            (
                "topic, h.max_attempts, h.timeout_s, h.max_crashes, h.stall_s, h.backoff)",
                "topic, h.max_attempts, h.timeout_s, h.stall_s, h.backoff)",
                _ALL_OF_IT,
                "topic, excluded.max_attempts, excluded.timeout_s, excluded.stall_s, excluded.backoff)",
            ),
            (
                "topic, h.max_attempts, h.timeout_s, h.max_crashes, h.stall_s, h.backoff)",
                "topic, h.max_attempts, h.timeout_s, h.max_crashes, h.backoff)",
                _ALL_OF_IT,
                "topic, excluded.max_attempts, excluded.timeout_s, excluded.max_crashes, excluded.backoff)",
            ),
            (
                "topic, h.max_attempts, h.timeout_s, h.max_crashes, h.stall_s, h.backoff)",
                "topic, h.max_attempts, h.timeout_s, h.max_crashes, h.stall_s)",
                _ALL_OF_IT,
                "topic, excluded.max_attempts, excluded.timeout_s, excluded.max_crashes, excluded.stall_s)",
            ),
        )
    ),
    cut("mark_sweep", " FOR UPDATE", _OPS + "test_two_sweeps_at_once"),
    swap(
        "mark_sweep",
        "UPDATE pulse.jobs j SET lease_until = j.lease_until WHERE false",
        "SELECT FROM pulse.jobs WHERE false",
        "test_watchdog_guards.py::test_no_sweep_begins_while_nobody_can_beat",
    ),
    swap("doubt_leases", "GREATEST(m.wait_until, ", "(", _OPS + "test_doubted_leases"),
    swap("doubt_leases", "interval '1 second'", "interval '0 second'", _OPS + "test_doubted_leases"),
    swap(
        "mark_sweep",
        "WHEN b.now - b.swept_at > $1",
        "WHEN false AND b.now - b.swept_at > $1",
        _OPS + "test_sweeps_are_marked",
    ),
    swap(
        "mark_sweep",
        "ELSE LEAST(m.wait_until, b.now + $2 * interval '1 second') END",
        "ELSE '-infinity' END",
        _OPS + "test_sweeps_are_marked",
    ),
    swap(
        "mark_sweep",
        "LEAST(m.wait_until, b.now + $2 * interval '1 second')",
        "m.wait_until",
        _OPS + "test_a_wait_is_no_longer_than_it_was_to_be",
    ),
    swap("mark_sweep", "m.swept_at - b.swept_at", "m.swept_at - m.swept_at", _OPS + "test_sweeps_are_marked"),
    swap("mark_sweep", "coalesce($3, clock_timestamp())", "coalesce($3, m.swept_at)", _OPS + "test_sweeps_are_marked"),
    cut(
        "set_server_defaults",
        "\nWHERE (t.max_attempts, t.max_crashes, t.backoff) IS DISTINCT FROM "
        "(excluded.max_attempts, excluded.max_crashes, excluded.backoff)",
        _OPS + "test_server_defaults",
    ),
    swap(
        "set_server_defaults",
        "(t.max_attempts, t.max_crashes, t.backoff) IS DISTINCT FROM "
        "(excluded.max_attempts, excluded.max_crashes, excluded.backoff)",
        "t.max_attempts <> excluded.max_attempts",
        _OPS + "test_server_defaults",
    ),
    swap(
        "set_server_defaults",
        "(t.max_attempts, t.max_crashes, t.backoff) IS DISTINCT FROM "
        "(excluded.max_attempts, excluded.max_crashes, excluded.backoff)",
        "t.max_crashes <> excluded.max_crashes",
        _OPS + "test_server_defaults",
    ),
    swap("note_host", "DO UPDATE SET seen_at = clock_timestamp()", "DO NOTHING", _OPS + "test_hosts"),
    swap("job_statuses", "j.attempts FROM", "j.uncharged FROM", _OPS + "test_statuses"),
]

READS: Final = [
    swap(
        "get_job",
        "ORDER BY a.ended_at, a.attempt",
        "ORDER BY a.ended_at DESC, a.attempt DESC",
        _READS + "test_one_job",
    ),
    cut("schema_version", " DESC", "test_schema.py::test_a_newer_schema_is_refused"),
    swap(
        "schema_lock",
        "pg_advisory_xact_lock(hashtextextended('pulse schema', 0))",
        "1",
        "test_schema.py::test_waiting_for_a_migration_ends",
    ),
    cut(
        "schema_limits",
        ", set_config('statement_timeout', '0', true)",
        "test_upgrades.py::test_an_upgrade_takes_its_time",
    ),
    cut(
        "schema_limits",
        ", set_config('search_path', 'pg_catalog, pg_temp', true)",
        "test_roles_made.py::test_one_who_may_not_make_roles",
    ),
]


def _dropped(what: str, killer: str) -> Mutant:
    """The schema with *what* dropped from it behind the tables."""
    end = "CREATE INDEX idx_audit_at ON pulse.audit (at, id);\n"
    return Mutant(
        SCHEMA,
        ((end, f"{end}ALTER TABLE pulse.{what};\n" if " " in what else f"{end}DROP INDEX pulse.{what};\n"),),
        killer,
    )


_POLICY: Final = _SQL + "test_policy_is_resolved"
_TOPIC: Final = _SQL + "test_topic_is_resolved"
_OTHER: Final = _SQL + "test_another_job_under_the_same_id"

SQL: Final = [
    *(_dropped(f"{check.table} DROP CONSTRAINT {check.name}", "test_schema.py::test_check") for check in CHECKS),
    _dropped("jobs DROP CONSTRAINT jobs_pkey", "test_schema.py::test_keys_are_unique"),
    _dropped("attempts DROP CONSTRAINT attempts_pkey", "test_schema.py::test_keys_are_unique"),
    _dropped("idx_jobs_claim", "test_plans.py::test_claim_reads_a_range_of_its_index"),
    swap(
        SCHEMA,
        "ON pulse.jobs (started_at) WHERE status = 'RUNNING'",
        "ON pulse.jobs (started_at, lease_until) WHERE status = 'RUNNING'",
        "test_plans.py::test_heartbeats_are_hot",
    ),
    swap(SCHEMA, "submit.max_attempts, submit.timeout_s) AS o", "NULL, submit.timeout_s) AS o", _POLICY),
    swap(SCHEMA, "submit.max_attempts, submit.timeout_s) AS o", "submit.max_attempts, NULL) AS o", _POLICY),
    *(
        swap(SCHEMA, f"coalesce(g.{field}, h.{field}, t.{field}, (", f"coalesce({less}, (", _POLICY)
        for field in ("max_attempts", "timeout_s")
        for less in (
            f"h.{field}, t.{field}",
            f"g.{field}, t.{field}",
            f"g.{field}, h.{field}",
        )
    ),
    *(
        swap(SCHEMA, f"coalesce(own_{field}, h.{field}, t.{field}, s.{field})", f"coalesce({less})", _POLICY)
        for field in ("max_attempts", "timeout_s")
        for less in (
            f"h.{field}, t.{field}, s.{field}",
            f"own_{field}, t.{field}, s.{field}",
            f"own_{field}, h.{field}, s.{field}",
            f"own_{field}, h.{field}, t.{field}, 1",
        )
    ),
    swap(
        SCHEMA,
        "g.name, coalesce(g.topic, h.topic, 'default'), g.args",
        "g.name, coalesce(g.topic, 'default'), g.args",
        _TOPIC,
    ),
    swap(
        SCHEMA,
        "SELECT coalesce(own_topic, h.topic, 'default')",
        "SELECT coalesce(own_topic, 'default')",
        _TOPIC,
    ),
    swap(SCHEMA, "t.topic = coalesce(g.topic, h.topic, 'default')", "t.topic = coalesce(g.topic, 'default')", _TOPIC),
    swap(
        SCHEMA,
        "t.topic = coalesce(own_topic, h.topic, 'default')",
        "t.topic = coalesce(own_topic, 'default')",
        _TOPIC,
    ),
    swap(
        SCHEMA, "coalesce(g.run_at, began)", "coalesce(g.run_at, clock_timestamp())", _SQL + "test_order_of_a_document"
    ),
    cut(SCHEMA, " + (g.place - 1) * interval '1 microsecond'", _SQL + "test_order_of_a_document"),
    cut(SCHEMA, "        ORDER BY g.id\n", "test_lock_order.py::test_submit_many"),
    swap(
        SCHEMA,
        "array_agg(g.id ORDER BY g.place)",
        "array_agg(g.id ORDER BY g.place DESC)",
        _SQL + "test_order_of_a_document",
    ),
    cut(
        SCHEMA,
        "        ON CONFLICT DO NOTHING  -- and RETURNING no column: who may only submit may read none\n",
        _SQL + "test_the_same_submit_twice",
    ),
    swap(
        SCHEMA,
        "    ON CONFLICT DO NOTHING;  -- without a column that would have to be readable",
        ";",
        _SQL + "test_the_same_submit_twice",
    ),
    *(
        cut(SCHEMA, f"{'' if column == 'topic' else ' '}AND j.{column} = {function}.{column}", killer)
        for function, killer in (
            ("is_stored", _OTHER),
            ("is_stored_unseen", "test_roles.py::test_submitting"),
        )
        for column in ("name", "topic", "args")
    ),
    swap(
        SCHEMA,
        "NOT pulse.is_stored(g.id, g.name, coalesce(g.topic, h.topic, 'default')",
        "NOT pulse.is_stored(g.id, g.name, coalesce(g.topic, 'default')",
        _SQL + "test_a_topic_left_out_is_compared_as_resolved",
    ),
    swap(
        SCHEMA,
        "SELECT o.topic FROM pulse.resolved_options(submit.name, submit.topic, NULL, NULL) AS o",
        "coalesce(submit.topic, 'default')",
        _SQL + "test_a_topic_left_out_is_compared_as_resolved",
    ),
    cut(
        SCHEMA,
        "REVOKE ALL ON FUNCTION pulse.is_stored_unseen(uuid, text, text, jsonb) FROM PUBLIC;",
        "test_roles_made.py::test_who_may_read_reads_himself",
    ),
    swap(
        SCHEMA,
        "IF (SELECT bool_and(has_column_privilege(",
        "IF false AND (SELECT bool_and(has_column_privilege(",
        "test_roles_made.py::test_who_may_read_reads_himself",
    ),
    swap(SCHEMA, "jsonb_typeof(jobs) <> 'array'", "false", _SQL + "test_what_submit_many_refuses"),
    swap(SCHEMA, "WHERE jsonb_typeof(job) <> 'object' LIMIT 1", "WHERE false", _SQL + "test_what_submit_many_refuses"),
    swap(SCHEMA, "WHERE k <> ALL (", "WHERE false AND k <> ALL (", _SQL + "test_what_submit_many_refuses"),
    swap(
        SCHEMA,
        "submit.name IS NULL OR length(submit.name) NOT BETWEEN 1 AND 200",
        "false",
        _SQL + "test_what_submit_refuses",
    ),
    swap(SCHEMA, "jsonb_typeof(submit.args) IS DISTINCT FROM 'object'", "false", _SQL + "test_what_submit_refuses"),
    swap(SCHEMA, "submit.priority NOT BETWEEN -100 AND 100", "false", _SQL + "test_what_submit_refuses"),
    cut(
        SCHEMA,
        "    IF fresh > 0 THEN\n        PERFORM pulse.notify_work();\n    END IF;\n",
        _SQL + "test_workers_are_woken",
    ),
    swap(SCHEMA, "IF fresh > 0 THEN", "IF true THEN", _SQL + "test_workers_are_woken"),
    swap(
        SCHEMA,
        "PERFORM pulse.notify_work();\n    ELSIF",
        "PERFORM 1;\n    ELSIF",
        _SQL + "test_workers_are_woken",
    ),
    swap(SCHEMA, "NOT BETWEEN 0 AND 50 FROM", "NOT BETWEEN -10000 AND 50 FROM", _WAKE),
    swap(SCHEMA, "NOT BETWEEN 0 AND 50 FROM", "NOT BETWEEN 0 AND 5000 FROM", _WAKE),
    swap(SCHEMA, "now_ms - last_value NOT BETWEEN 0 AND 50", "true", _WAKE),
    cut(SCHEMA, "\n       AND current_setting('pulse.notify', true) IS DISTINCT FROM 'off'", _WAKE),
    swap(SCHEMA, "IS DISTINCT FROM 'off'", "<> 'off'", _WAKE),
    cut(SCHEMA, "setval('pulse.work_notified', now_ms), ", _WAKE),
    *(
        swap(SCHEMA, "pg_notification_queue_usage() < 0.5", other, _FULL + killer)
        for other, killer in (
            ("true", "test_all_that_tells_goes_on"),
            ("pg_notification_queue_usage() < 0.6", "test_half_full_is_enough_to_be_silent"),
            ("pg_notification_queue_usage() < 0.25", "test_half_full_is_enough_to_be_silent"),
        )
    ),
    *(
        swap(one, "pulse.tell(", "pg_notify(", _FULL + "test_all_that_tells_goes_on")
        for one in ("pause_dispatch", "resume_dispatch", "expire_pauses", "notify_work")
    ),
    swap(
        "notify_work",
        "pulse.tell('pulse_work', $1)",
        "length($1)",
        "test_news.py::test_work_is_told_where_nobody_has_room",
    ),
    Mutant(SCHEMA, (("52, 1), 53, 1)", "52, 0), 53, 1)"),), "test_schema.py::test_uuid7", old=True),
    Mutant(SCHEMA, (("52, 1), 53, 1)", "52, 1), 53, 0)"),), "test_schema.py::test_uuid7", old=True),
    Mutant(SCHEMA, (("int8send(floor(", "int8send(ceil("),), "test_schema.py::test_uuid7", old=True),
    Mutant(SCHEMA, (("bigint) FROM 3)", "bigint) FROM 2)"),), "test_schema.py::test_uuid7", old=True),
]

_KEPT: Final = "test_retention.py::"
_OWN: Final = _KEPT + "test_a_topic_keeps_its_own_time"
_OLD: Final = _KEPT + "test_a_job_goes_when_its_time_is_over"
_STALE: Final = _KEPT + "test_a_stale_success_deletes_nothing"
FORGET: Final = "forget_jobs"
FORGOTTEN: Final = "complete_and_forget"
RETENTION: Final = [
    swap(FORGET, "j.id >= $1", "j.id > $1", _KEPT + "test_a_window_of_the_table"),
    swap(FORGET, "j.id >= $1", "$1::uuid IS NOT NULL", _KEPT + "test_a_window_of_the_table"),
    swap(FORGET, "LIMIT $2", "LIMIT $2 + 1", _KEPT + "test_a_window_of_the_table"),
    cut(FORGET, " AND EXISTS (SELECT FROM mine)", _KEPT + "test_one_at_a_time"),
    cut(FORGET, " FOR UPDATE SKIP LOCKED", _KEPT + "test_one_at_a_time"),
    cut(FORGET, " SKIP LOCKED", _KEPT + "test_one_at_a_time"),
    cut(FORGET, "j.id BETWEEN w.id AND w.id AND ", _KEPT + "test_a_window_of_the_table"),
    cut(
        FORGET,
        " AND j.status::text IN ('COMPLETED', 'CANCELED', 'DEAD_LETTERED')",
        _KEPT + "test_what_has_not_ended_stays",
    ),
    swap(FORGET, "'COMPLETED', 'CANCELED', 'DEAD", "'COMPLETED', 'DEAD", _OLD),
    swap(FORGET, "coalesce((SELECT t.retention_s", "coalesce((SELECT NULL::float8", _OWN),
    swap(FORGET, "coalesce((SELECT t.retention_dead_s", "coalesce((SELECT NULL::float8", _OWN),
    swap(FORGET, "NOT EXISTS (SELECT FROM pulse.topics", "EXISTS (SELECT FROM pulse.topics", _OWN),
    swap(FORGET, "j.completed_at < coalesce", "j.completed_at <= coalesce", _OLD),
    swap(FORGET, "WHEN 'DEAD_LETTERED' THEN $4::float8", "WHEN 'DEAD_LETTERED' THEN 0 * $4::float8 + $3::float8", _OLD),
    cut(FORGET, " WHERE a.job_id BETWEEN g.id AND g.id", _KEPT + "test_the_history_goes_with_its_job"),
    cut(FORGET, " EXCEPT SELECT g.id FROM gone g", _OLD),
    cut(FORGOTTEN, "j.id BETWEEN d.id AND d.id AND ", _KEPT + "test_a_success_that_nothing_is_kept_of"),
    cut(FORGOTTEN, " AND j.status::text = 'RUNNING'", _STALE),
    cut(FORGOTTEN, " AND j.locked_by = d.worker", _STALE),
    cut(FORGOTTEN, " AND j.attempts = d.attempt", _STALE),
    swap(FORGOTTEN, "j.attempts = d.attempt", "j.attempts <= d.attempt", _STALE),
    swap(FORGOTTEN, "j.attempts = d.attempt", "j.attempts >= d.attempt", _STALE),
    cut(FORGOTTEN, " AND a.job_id BETWEEN g.id AND g.id", _KEPT + "test_a_success_that_nothing_is_kept_of"),
    swap(FORGOTTEN, "g.attempts > 1", "g.attempts > 2", _KEPT + "test_a_success_that_nothing_is_kept_of"),
    cut(FORGOTTEN, " OR g.last_error IS NOT NULL", _KEPT + "test_a_success_of_what_had_expired"),
]

MUTANTS: Final = [*OPERATORS, *READS, *SQL, *RETENTION]
