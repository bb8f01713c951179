"""Mutants of the statements for schedules, and of the functions for them in schema.sql."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import SCHEMA, Mutant, cut, swap

FIRE: Final = "fire_schedules"
_SCHEDULES: Final = "test_schedules.py::"
_MEETING: Final = "test_interleavings.py::test_committed"
_HISTORIES: Final = "test_schedule_model.py::test_schedulers_fire_exactly_once"
_DUE_GUARD: Final = "WHERE s.next_run_at = d.cursor AND s.revision = d.revision AND NOT s.paused"
_MOVED_GUARD: Final = "s.next_run_at = d.next_run_at AND s.revision = d.revision AND NOT s.paused"
_HELD: Final = "j.status = 'PENDING' AND j.next_run_at = '9999-12-30 00:00+00'"
_OPEN: Final = "j.status::text IN ('PENDING', 'RETRYING', 'RUNNING')"
_OVERLAP: Final = "test_overlap.py::"
_SQL_SCHEDULES: Final = "test_sql_schedules.py::"
_RECKON: Final = "test_reckoning.py::"


MUTANTS: Final = [
    cut("create_schedule", "ON CONFLICT DO NOTHING\n", _SCHEDULES + "test_create_get_delete"),
    swap(
        "create_schedule",
        "$5 = 'cron' AND $10::timestamptz IS NOT NULL AND $14::timestamptz IS NULL",
        "false",
        _RECKON + "test_what_is_created_is_reckoned",
    ),
    swap("update_schedule", "s.revision = $22", "$22::int IS NOT NULL", _SCHEDULES + "test_update"),
    swap("update_schedule", "WHERE s.id = $1 AND", "WHERE $1::uuid IS NOT NULL AND", _SCHEDULES + "test_update"),
    cut("update_schedule", "revision = s.revision + 1, ", _SCHEDULES + "test_update"),
    swap("update_schedule", "CASE WHEN $23 THEN $10 ELSE s.next_run_at END", "$10", _SCHEDULES + "test_update"),
    swap("update_schedule", "CASE WHEN $23 THEN $14 ELSE s.following_run_at END", "$14", _SCHEDULES + "test_update"),
    swap("update_schedule", "undeclared_at = NULL, ", "", _SCHEDULES + "test_undeclare"),
    swap("update_schedule", ", error = NULL", "", _RECKON + "test_an_update_is_another_chance"),
    swap(
        "update_schedule", "s.reckon OR s.error IS NOT NULL", "s.reckon", _RECKON + "test_an_update_is_another_chance"
    ),
    swap(FIRE, "GREATEST(s.last_run_at, d.occurrence)", "d.occurrence", _SCHEDULES + "test_fires_set_back"),
    swap("pause_schedule", "WHERE s.id = $1", "WHERE $1::uuid IS NOT NULL", _SCHEDULES + "test_pause_and_resume"),
    swap(
        "trigger_schedule", "pulse.trigger_schedule($1, $2)", "pulse.trigger_schedule($1)", _SCHEDULES + "test_trigger"
    ),
    swap("delete_schedule", "pulse.delete_schedule($1)", "$1::uuid IS NOT NULL", _SCHEDULES + "test_create_get_delete"),
    swap(
        SCHEMA,
        "WHERE s.id = delete_schedule.id",
        "WHERE delete_schedule.id IS NOT NULL",
        _SCHEDULES + "test_delete_removes_one",
    ),
    swap(
        SCHEMA,
        "j.schedule_id = delete_schedule.id AND j.status = 'PENDING' AND j.next_run_at = '9999-12-30 00:00+00'",
        "j.schedule_id = delete_schedule.id AND j.status = 'PENDING'",
        _OVERLAP + "test_deleting_cancels_what_is_held",
    ),
    cut("due_schedules", "s.due_at <= coalesce($2, now()) AND ", _SCHEDULES + "test_due"),
    swap("due_schedules", "s.due_at <= coalesce", "s.due_at < coalesce", _SCHEDULES + "test_due"),
    swap("due_schedules", "s.due_at <= coalesce", "s.next_run_at <= coalesce", _SCHEDULES + "test_jitter"),
    cut("due_schedules", " AND NOT s.paused", _SCHEDULES + "test_a_paused_schedule_does_not_fire"),
    cut("due_schedules", " AND s.error IS NULL", _RECKON + "test_what_cannot_be_followed_does_not_fire"),
    swap("due_schedules", "ORDER BY s.due_at", "ORDER BY s.due_at DESC", _SCHEDULES + "test_due"),
    cut("next_schedule", " AND NOT s.paused", _SCHEDULES + "test_a_paused_schedule_does_not_fire"),
    cut("next_schedule", " AND s.error IS NULL", _RECKON + "test_what_cannot_be_followed_does_not_fire"),
    swap("next_schedule", "min(s.due_at)", "max(s.due_at)", _SCHEDULES + "test_next_due"),
    swap("next_schedule", "min(s.due_at)", "min(s.next_run_at)", _SCHEDULES + "test_jitter"),
    cut("next_schedule", " WHERE s.waiting > 0", _SCHEDULES + "test_next_due"),
    cut("next_schedule", " WHERE s.reckon", _SCHEDULES + "test_next_due"),
    *(
        Mutant(FIRE, ((_DUE_GUARD, due), (_MOVED_GUARD, moved)), killer)
        for due, moved, one in (
            (
                "WHERE s.revision = d.revision AND NOT s.paused",
                "s.revision = d.revision AND NOT s.paused",
                "test_an_occurrence_fires_once",
            ),
            (
                "WHERE s.next_run_at = d.cursor AND s.revision = d.revision",
                "s.next_run_at = d.next_run_at AND s.revision = d.revision",
                "test_a_paused_schedule_does_not_fire",
            ),
            (
                "WHERE s.next_run_at = d.cursor AND NOT s.paused",
                "s.next_run_at = d.next_run_at AND NOT s.paused",
                "test_what_was_reckoned_by_another_rule_does_not_fire",
            ),
        )
        for killer in (_SCHEDULES + one, _HISTORIES)
    ),
    Mutant(
        FIRE,
        (
            ("\n    ORDER BY s.id FOR UPDATE OF s", ""),
            (f"s.id = d.id AND {_MOVED_GUARD}", "s.id = d.id"),
        ),
        _MEETING,
    ),
    cut(FIRE, "\n    ORDER BY s.id FOR UPDATE OF s", "test_lock_order.py::test_updates"),
    swap(FIRE, "ORDER BY s.id FOR", "ORDER BY s.id DESC FOR", "test_lock_order.py::test_updates"),
    cut(FIRE, " AND d.there_id IS NULL", _SCHEDULES + "test_a_cursor_that_was_set_back_does_not_fire_again"),
    swap(
        FIRE,
        "coalesce(d.there_id, pulse.uuid7())",
        "pulse.uuid7()",
        _SCHEDULES + "test_a_cursor_that_was_set_back_does_not_fire_again",
    ),
    cut(FIRE, "x.schedule_id = s.id AND ", _SCHEDULES + "test_another_schedule_has_the_occurrence"),
    cut(FIRE, " AND x.occurrence = d.occurrence", _SCHEDULES + "test_another_schedule_has_the_occurrence"),
    swap(FIRE, "d.verdict IN ('fired', 'held') THEN GREATEST", "false THEN GREATEST", _SCHEDULES + "test_fire"),
    swap(FIRE, "d.verdict IN ('fired', 'held') THEN GREATEST", "true THEN GREATEST", _OVERLAP + "test_skip"),
    swap(
        FIRE,
        "SET next_run_at = d.next_at",
        "SET next_run_at = coalesce(d.next_at, s.next_run_at)",
        _SCHEDULES + "test_the_last_occurrence",
    ),
    swap(FIRE, "following_run_at = d.following_at", "following_run_at = NULL", _SCHEDULES + "test_fire"),
    swap(
        FIRE,
        "JOIN pulse.schedules s ON s.id = d.id",
        "CROSS JOIN pulse.schedules s",
        _SCHEDULES + "test_each_of_a_batch_is_judged_alone",
    ),
    swap(
        FIRE,
        "FROM judged d WHERE s.id = d.id AND",
        "FROM judged d WHERE",
        _SCHEDULES + "test_each_of_a_batch_is_judged_alone",
    ),
    *(
        cut(FIRE, f"{level}.{field}, ", _SCHEDULES + "test_policy_is_resolved_when_it_fires")
        for level in "ht"
        for field in ("max_attempts", "timeout_s")
    ),
    *(
        swap(
            FIRE,
            f"coalesce(d.{field}, h.{field}",
            f"coalesce(h.{field}",
            _SCHEDULES + "test_policy_is_resolved_when_it_fires",
        )
        for field in ("max_attempts", "timeout_s")
    ),
    swap(
        FIRE,
        "coalesce(d.topic, h.topic, 'default') AS",
        "coalesce(d.topic, 'default') AS",
        _SCHEDULES + "test_topic_is_resolved_when_it_fires",
    ),
    swap(
        FIRE,
        "coalesce(d.topic, h.topic, 'default') AS",
        "coalesce(h.topic, d.topic, 'default') AS",
        _SCHEDULES + "test_topic_is_resolved_when_it_fires",
    ),
    swap(
        FIRE,
        "t.topic = coalesce(d.topic, h.topic, 'default')",
        "t.topic = coalesce(d.topic, 'default')",
        _SCHEDULES + "test_topic_is_resolved_when_it_fires",
    ),
    swap(FIRE, "d.overlap IN ('allow', 'cancel')", "d.overlap = 'cancel'", _OVERLAP + "test_allow"),
    swap(FIRE, "WHEN d.occurrence IS NULL THEN 'passed'", "WHEN false THEN 'passed'", _SCHEDULES + "test_passing_over"),
    cut(FIRE, "d.waiting > 0 OR ", _OVERLAP + "test_what_is_held_keeps_its_turn"),
    swap(FIRE, "d.waiting < d.most_held", "true OR d.waiting < d.most_held", _OVERLAP + "test_a_queue_is_bounded"),
    swap(
        FIRE,
        "WHEN 'all' THEN $8::int ELSE",
        "WHEN '' THEN $8::int ELSE",
        _OVERLAP + "test_a_queue_that_makes_up_for_all",
    ),
    swap(FIRE, "$8::int ELSE $7::int", "$8::int ELSE greatest($7::int, $8::int)", _OVERLAP + "test_a_queue_is_bounded"),
    swap(FIRE, "WHEN d.overlap = 'skip' THEN 'skipped'", "WHEN false THEN 'skipped'", _OVERLAP + "test_skip"),
    swap(
        FIRE,
        f"d.last_job_id\n{' ' * 43}AND {_OPEN}",
        "d.last_job_id",
        _OVERLAP + "test_skip_goes_on_when_it_is_finished",
    ),
    swap(
        FIRE,
        "CASE WHEN d.verdict = 'fired' THEN d.job_id ELSE s.last_job_id END",
        "d.job_id",
        _OVERLAP + "test_queue",
    ),
    cut(FIRE, "d.overlap = 'cancel' AND ", _OVERLAP + "test_allow"),
    cut(FIRE, "    WHERE m.old_job_id <> m.job_id", _OVERLAP + "test_a_cursor_that_was_set_back_cancels_nothing"),
    Mutant(
        FIRE,
        (
            ("m.old_job_id AND j.status::text IN ('PENDING', 'RETRYING', 'RUNNING')", "m.old_job_id"),
            ("j.id = o.id AND j.status::text IN ('PENDING', 'RETRYING', 'RUNNING')", "j.id = o.id"),
        ),
        _OVERLAP + "test_cancel_leaves_what_is_finished",
    ),
    cut(FIRE, " WHERE o.status = 'RUNNING'", _OVERLAP + "test_cancel"),
    cut(FIRE, ", locked_by = NULL, lease_until = NULL", _OVERLAP + "test_cancel"),
    cut("release_held", "s.waiting > 0 AND ", _OVERLAP + "test_release_is_of_one_schedule"),
    *(
        swap(
            "release_held",
            "NOT EXISTS (SELECT FROM pulse.jobs j",
            "true OR NOT EXISTS (SELECT FROM pulse.jobs j",
            killer,
        )
        for killer in (_OVERLAP + "test_queue", _HISTORIES)
    ),
    cut(
        "fire_schedules",
        " AND q.status = 'PENDING' AND q.next_run_at = '9999-12-30 00:00+00'",
        _OVERLAP + "test_a_queue_is_bounded",
    ),
    swap("fire_schedules", "q.schedule_id = d.id AND q.status", "q.status", _OVERLAP + "test_a_queue_is_bounded"),
    swap("release_held", "ORDER BY j.occurrence", "ORDER BY j.occurrence DESC", _OVERLAP + "test_queue"),
    swap(
        "release_held",
        f"j.schedule_id = r.id AND {_HELD}",
        "j.schedule_id = r.id",
        _OVERLAP + "test_a_held_job_that_was_canceled_is_passed_over",
    ),
    swap("release_held", "j.schedule_id = r.id AND", "", _OVERLAP + "test_release_is_of_one_schedule"),
    swap("release_held", "last_job_id = coalesce(h.job_id, s.last_job_id), ", "", _OVERLAP + "test_queue"),
    swap(
        "release_held",
        "GREATEST(h.jobs - 1, 0)",
        "GREATEST(s.waiting - 1, 0)",
        _OVERLAP + "test_a_held_job_that_was_canceled_is_passed_over",
    ),
    cut("unreckoned_schedules", " WHERE s.reckon", _RECKON + "test_what_is_created_is_reckoned"),
    *(
        cut("reckon_schedules", "s.next_run_at IS NOT DISTINCT FROM d.cursor AND ", killer)
        for killer in (_RECKON + "test_what_was_reckoned_for_another_cursor", _HISTORIES)
    ),
    *(
        cut("reckon_schedules", " AND s.revision = d.revision", killer)
        for killer in (_RECKON + "test_what_was_reckoned_for_another_rule", _HISTORIES)
    ),
    swap(
        "reckon_schedules",
        "s.revision = d.revision\n",
        "s.revision = d.revision AND s.error IS NULL\n",
        _RECKON + "test_what_is_mended_by_hand_is_followed_again",
    ),
    cut("reckon_schedules", "\n    ORDER BY s.id FOR UPDATE OF s", "test_lock_order.py::test_updates"),
    swap("reckon_schedules", "WHERE s.id = m.id", "WHERE m.id IS NOT NULL", _RECKON + "test_each_is_reckoned_alone"),
    swap("undeclare_schedules", "s.declared_by = $1", "$1::text IS NOT NULL", _SCHEDULES + "test_undeclare"),
    cut("undeclare_schedules", " AND s.undeclared_at IS NULL", _SCHEDULES + "test_undeclare"),
    cut("undeclare_schedules", " AND NOT s.key = ANY ($2::text[])", _SCHEDULES + "test_undeclare"),
    swap(
        "list_schedules",
        "(s.created_at, s.id) < ($1, $2::uuid)",
        "(s.created_at, s.id) <= ($1, $2::uuid)",
        _SCHEDULES + "test_pages",
    ),
    swap("list_schedules", "ORDER BY s.created_at DESC", "ORDER BY s.created_at", _SCHEDULES + "test_pages"),
    swap(
        SCHEMA,
        "WHERE s.id = pause_schedule.id",
        "WHERE pause_schedule.id IS NOT NULL",
        _SQL_SCHEDULES + "test_pause_resume_delete",
    ),
    swap(
        SCHEMA,
        "WHERE s.id = resume_schedule.id",
        "WHERE resume_schedule.id IS NOT NULL",
        _SQL_SCHEDULES + "test_pause_resume_delete",
    ),
    swap(
        SCHEMA,
        "        next_run_at = CASE WHEN is_else THEN NULL ELSE s.next_run_at END,\n",
        "",
        _SQL_SCHEDULES + "test_update",
    ),
    swap(SCHEMA, "CASE WHEN is_else THEN NULL ELSE s.next_run_at END", "NULL", _SQL_SCHEDULES + "test_update"),
    swap(
        SCHEMA,
        "revision = s.revision + 1, error = NULL,\n",
        "error = NULL,\n",
        _SQL_SCHEDULES + "test_update",
    ),
    cut(SCHEMA, " OR new.jitter_s > s.jitter_s", _SQL_SCHEDULES + "test_more_jitter_is_looked_at"),
    swap(SCHEMA, "s.jitter_s > s.every_s", "false", _SQL_SCHEDULES + "test_what_does_not_fit_any_more"),
    swap(
        SCHEMA,
        "    IF priority NOT BETWEEN -100 AND 100 THEN",
        "    IF false THEN",
        _SQL_SCHEDULES + "test_bad_input",
    ),
]
