"""Mutants of the functions in schema.sql: of schedules, of the policy of topics, of the gate."""

from __future__ import annotations

from typing import Final

from pulse.store.admin.schema import schema_sql
from tests.mutants.mutant import SCHEMA, Mutant, swap

_SCHEDULES: Final = "test_sql_schedules.py::"
_CREATE: Final = _SCHEDULES + "test_create"
_NULLS: Final = _SCHEDULES + "test_null_is_the_default"
_SET: Final = _SCHEDULES + "test_set"
_UPDATE: Final = _SCHEDULES + "test_update_sets_each"
_WHEN: Final = _SCHEDULES + "test_set_when"
_REFUSED: Final = _SCHEDULES + "test_what_cannot_be_set"
_BAD: Final = _SCHEDULES + "test_bad_input"
_TRIGGERED: Final = _SCHEDULES + "test_a_triggered_job_is_resolved"
_TOPICS: Final = "test_topic_policy.py::"
_BAD_TOPIC: Final = _TOPICS + "test_what_set_topic_refuses"
_WAITS: Final = _TOPICS + "test_sql_and_python_wait_alike"
_OPTIONS: Final = (
    "args",
    "topic",
    "max_attempts",
    "timeout_s",
    "starts_at",
    "ends_at",
    "jitter_s",
    "catch_up",
    "overlap",
)
_NEVER: Final = "WHEN false THEN"
_CHECKS: Final = (
    "WHEN s.timezone IS NOT NULL AND s.cron IS NULL THEN",
    "WHEN s.cron !~ '^\\s*(@[A-Za-z]+|\\S+(\\s+\\S+){4,5})\\s*$'\n            THEN",
    "WHEN s.every_s < 0.1 OR s.every_s > 1e9 THEN",
    "WHEN s.jitter_s < 0 OR s.jitter_s > 86400 THEN",
    "WHEN s.jitter_s > s.every_s THEN",
    "WHEN s.run_at IS NOT NULL AND num_nonnulls(s.starts_at, s.ends_at) > 0\n            THEN",
    "WHEN s.ends_at < s.starts_at\n            THEN",
    "WHEN s.catch_up NOT IN ('skip', 'latest', 'all') THEN",
    "WHEN s.overlap NOT IN ('allow', 'skip', 'queue', 'cancel')\n            THEN",
    "WHEN length(s.topic) NOT BETWEEN 1 AND 200 THEN",
    "WHEN jsonb_typeof(s.args) IS DISTINCT FROM 'object'\n            THEN",
    "WHEN s.max_attempts NOT BETWEEN 1 AND 10000 THEN",
    "WHEN NOT (s.timeout_s > 0 AND s.timeout_s <= 1e9)\n            THEN",
)
_OCCURS: Final = "(new.kind, new.cron, new.timezone, new.every_s, new.run_at, new.starts_at, new.ends_at)"
_LEFT: Final = (
    "num_nonnulls(t.max_attempts, t.max_crashes, t.timeout_s, t.stall_s, t.lease_s, t.retention_s, t.retention_dead_s, "
    "t.ageing_s,"
)


def _in(function: str, text: str, instead: str, killer: str) -> Mutant:
    """A change of one function: with so many lines before *text* that what is replaced is there once in the schema."""
    whole = schema_sql()
    begin = whole.index(f"CREATE FUNCTION pulse.{function}(")
    start = whole.index(text, begin, whole.index("\n$$;", begin))
    first = start
    while whole.count(whole[first : start + len(text)]) > 1:
        first = whole.rindex("\n", 0, first)
    before = whole[first:start]
    return Mutant(SCHEMA, ((before + text, before + instead),), killer)


MUTANTS: Final = [
    *(
        _in(
            name,
            "SET search_path = pg_catalog, pg_temp",
            "SET search_path = pulse, pg_catalog, pg_temp",
            "test_search_path.py::test_functions_put_into_the_schema_itself",
        )
        for name in ("note", "submit", "create_schedule")
    ),
    *(_in("check_schedule", check, _NEVER, _BAD) for check in _CHECKS),
    _in("check_schedule", "PERFORM now() AT TIME ZONE s.timezone;", "NULL;", _BAD),
    *(
        _in("check_schedule", text, instead, _BAD)
        for text, instead in (
            (" OR s.every_s > 1e9", ""),
            ("s.every_s < 0.1 OR ", ""),
            (" OR s.jitter_s > 86400", ""),
            ("s.jitter_s < 0 OR ", ""),
        )
    ),
    _in("create_schedule", "PERFORM pulse.check_schedule(new);", "NULL;", _BAD),
    _in("check_schedule", "s.name IS NULL OR length(s.name) NOT BETWEEN 1 AND 200", "false", _REFUSED),
    _in("check_schedule", "('run_at', s.run_at), ", "", _BAD),
    _in("check_schedule", "('starts_at', s.starts_at), ", "", _BAD),
    _in("check_schedule", ", ('ends_at', s.ends_at)", "", _BAD),
    _in("checked_priority", "priority NOT BETWEEN -100 AND 100", "false", _BAD),
    _in(
        "create_schedule",
        "create_schedule.run_at) <> 1 THEN",
        "create_schedule.run_at) > 1 THEN",
        _SCHEDULES + "test_one_rule",
    ),
    _in(
        "create_schedule",
        "create_schedule.run_at) <> 1 THEN",
        "create_schedule.run_at) < 1 THEN",
        _SCHEDULES + "test_one_rule",
    ),
    _in("create_schedule", "coalesce(create_schedule.id, pulse.uuid7())", "pulse.uuid7()", _CREATE),
    _in("create_schedule", "CASE WHEN new.kind = 'cron' THEN 'UTC' END", "NULL", _CREATE),
    *(
        _in("create_schedule", f"coalesce(create_schedule.{option}, {default})", f"create_schedule.{option}", _NULLS)
        for option, default in (("priority", "0"), ("jitter_s", "0"), ("catch_up", "'latest'"), ("overlap", "'allow'"))
    ),
    *(
        _in("create_schedule", f"new.{option} := create_schedule.{option};", "", _CREATE)
        for option in ("args", "topic", "max_attempts", "timeout_s", "starts_at", "ends_at")
    ),
    *(
        _in(name, "PERFORM pulse.tell('pulse_schedules', '');", "", _SCHEDULES + "test_what_is_made_is_told")
        for name in ("create_schedule", "set_schedule", "resume_schedule")
    ),
    _in("set_schedule", "jsonb_typeof(changes) IS DISTINCT FROM 'object'", "false", _REFUSED),
    _in("set_schedule", "WHERE key <> ALL (every)", "WHERE false", _REFUSED),
    _in("set_schedule", "given > 1", "given > 2", _REFUSED),
    _in("set_schedule", " FOR UPDATE", "", _SCHEDULES + "test_two_changes_at_once"),
    _in("set_schedule", "WHERE s.id = set_schedule.id FOR UPDATE", "FOR UPDATE", _SCHEDULES + "test_one_of_two_is_set"),
    _in("set_schedule", "WHERE s.id = set_schedule.id;", ";", _SCHEDULES + "test_one_of_two_is_set"),
    _in("set_schedule", "RETURN false;", "RETURN true;", _WHEN),
    _in("set_schedule", "IF given = 1 THEN", "IF false THEN", _WHEN),
    _in("set_schedule", "CASE WHEN changes->>'cron' IS NULL THEN", "CASE WHEN false THEN", _WHEN),
    _in("set_schedule", "CASE WHEN changes->>'cron' IS NULL THEN", "CASE WHEN true THEN", _WHEN),
    _in("set_schedule", ', "timezone": null', "", _WHEN),
    _in("set_schedule", '{"every_s": null, "run_at": null}', '{"run_at": null}', _WHEN),
    _in("set_schedule", '{"every_s": null, "run_at": null}', '{"every_s": null}', _WHEN),
    _in("set_schedule", "num_nonnulls(new.cron, new.every_s, new.run_at) = 0", "false", _REFUSED),
    _in("set_schedule", "PERFORM pulse.checked_priority((changes->>'priority')::int);", "", _REFUSED),
    _in("set_schedule", "coalesce(new.timezone, CASE new.kind WHEN 'cron' THEN 'UTC' END)", "new.timezone", _WHEN),
    *(
        _in("set_schedule", f"    new.{option} := coalesce(new.{option}, {default});\n", "", _SET)
        for option, default in (
            ("args", "'{}'"),
            ("priority", "0"),
            ("jitter_s", "0"),
            ("catch_up", "'latest'"),
            ("overlap", "'allow'"),
        )
    ),
    _in("set_schedule", "PERFORM pulse.check_schedule(new);", "", _REFUSED),
    *(
        _in("set_schedule", _OCCURS, _OCCURS.replace(f"new.{option}", f"old.{option}"), killer)
        for option, killer in (
            ("timezone", _SET),
            ("starts_at", _SET),
            ("ends_at", _SET),
            ("cron", _SCHEDULES + "test_another_rule_begins_anew"),
            ("every_s", _SCHEDULES + "test_another_rule_begins_anew"),
            ("run_at", _SCHEDULES + "test_another_rule_begins_anew"),
        )
    ),
    *(
        _in("set_schedule", f"{option} = new.{option},", "", _SET)
        for option in (
            "args",
            "topic",
            "priority",
            "max_attempts",
            "timeout_s",
            "timezone",
            "starts_at",
            "ends_at",
            "jitter_s",
            "catch_up",
            "overlap",
        )
    ),
    _in("set_schedule", "name = new.name, ", "", _SET),
    _in("set_schedule", "error = NULL,", "", _SCHEDULES + "test_a_jitter_that_is_too_long_for_cron"),
    _in(
        "set_schedule",
        "        following_run_at = CASE WHEN is_else THEN NULL ELSE s.following_run_at END,\n",
        "",
        _SET,
    ),
    _in("set_schedule", "CASE WHEN is_else THEN NULL ELSE s.following_run_at END", "NULL", _SET),
    _in("set_schedule", "reckon = is_else OR ", "reckon = ", _SET),
    _in("set_schedule", "s.reckon OR ", "", _SCHEDULES + "test_what_is_to_be_reckoned_stays_so"),
    _in("set_schedule", "s.error IS NOT NULL OR ", "", _SCHEDULES + "test_what_is_to_be_reckoned_stays_so"),
    _in("update_schedule", " WHERE value <> 'null'", "", _SCHEDULES + "test_update"),
    *(
        _in("update_schedule", f"'{option}', {option}", "'name', NULL", _UPDATE)
        for option in (*_OPTIONS, "priority", "timezone")
    ),
    _in(
        "update_schedule",
        "coalesce(jsonb_object_agg(key, value), '{}')",
        "jsonb_object_agg(key, value)",
        _SCHEDULES + "test_an_update_of_nothing",
    ),
    _in("pause_schedule", "RETURN false", "RETURN true", _SCHEDULES + "test_pause_resume_delete"),
    _in("resume_schedule", "RETURN false", "RETURN true", _SCHEDULES + "test_pause_resume_delete"),
    _in("delete_schedule", "RETURN false", "RETURN true", _SCHEDULES + "test_pause_resume_delete"),
    *(
        _in(
            "trigger_schedule",
            "pulse.resolved_options(m.name, m.topic, m.max_attempts, m.timeout_s)",
            f"pulse.resolved_options({instead})",
            _TRIGGERED,
        )
        for instead in (
            "'', m.topic, m.max_attempts, m.timeout_s",
            "m.name, NULL, m.max_attempts, m.timeout_s",
            "m.name, m.topic, NULL, m.timeout_s",
            "m.name, m.topic, m.max_attempts, NULL",
        )
    ),
    _in("trigger_schedule", " AND j.schedule_id = trigger_schedule.id", "", _SCHEDULES + "test_trigger"),
    _in("trigger_schedule", "    ON CONFLICT (id) DO NOTHING;", ";", _SCHEDULES + "test_trigger"),
    _in("trigger_schedule", "WHERE m.id = trigger_schedule.id", "WHERE true", _SCHEDULES + "test_trigger_is_of_one"),
    _in("trigger_schedule", "PERFORM pulse.notify_work();", "", _SCHEDULES + "test_a_trigger_is_told"),
    _in("set_topic", "topic IS NULL OR length(topic) > 200", "false", _BAD_TOPIC),
    _in("set_topic", "topic IS NULL OR ", "", _TOPICS + "test_what_sql_refuses"),
    _in("set_topic", "jsonb_typeof(policy) IS DISTINCT FROM 'object'", "false", _TOPICS + "test_what_sql_refuses"),
    _in("set_topic", "WHERE key <> ALL (every)", "WHERE false", _BAD_TOPIC),
    _in("set_topic", "topic = '' AND key <> ALL (mine)", "false", _BAD_TOPIC),
    _in("set_topic", "WHERE topic = '' AND key", "WHERE key", _TOPICS + "test_what_is_set"),
    _in("set_topic", "AND (NOT r.whole OR e.value::numeric = trunc(e.value::numeric))", "", _BAD_TOPIC),
    _in("set_topic", "e.value::numeric BETWEEN r.least AND r.most AND", "true AND", _BAD_TOPIC),
    _in("set_topic", "jsonb_typeof(e.value) <> 'null'\n      AND", "true AND", _TOPICS + "test_one_option_at_a_time"),
    _in(
        "set_topic",
        "coalesce((p.max_attempts)::int, s.max_attempts)",
        "(p.max_attempts)::int",
        _TOPICS + "test_the_server",
    ),
    _in(
        "set_topic",
        "coalesce((p.max_crashes)::int, s.max_crashes)",
        "(p.max_crashes)::int",
        _TOPICS + "test_the_server",
    ),
    _in("set_topic", " AND set_topic.topic = ''", "", _TOPICS + "test_what_is_set"),
    _in("set_topic", "WHEN policy ? 'retention_dead_s'", "WHEN true", _TOPICS + "test_one_option_at_a_time"),
    *(
        _in("set_topic", _LEFT, _LEFT.replace(f"t.{option},", "NULL,"), _TOPICS + "test_one_option_at_a_time")
        for option in (
            "max_attempts",
            "max_crashes",
            "timeout_s",
            "stall_s",
            "lease_s",
            "retention_s",
            "retention_dead_s",
            "ageing_s",
        )
    ),
    _in("backoff_s", "greatest(tries, 1), cardinality(d)", "tries, cardinality(d)", _WAITS),
    _in("backoff_s", "least(greatest(tries, 1), cardinality(d))", "greatest(tries, 1)", _WAITS),
    _in("backoff_s", "0.5 + random() / 2", "random()", _WAITS),
    _in("backoff_s", "3), '')::float8, 3600)", "3), '')::float8, 36)", _WAITS),
    _in("backoff_s", "2 ^ least(greatest(tries, 1) - 1, 40)", "2 ^ least(greatest(tries, 1), 40)", _WAITS),
    _in("backoff_s", "2 ^ least(greatest(tries, 1) - 1, 40)", "2 ^ (greatest(tries, 1) - 1)", _WAITS),
    _in("backoff_s", "tries::float8 ^ 2, 1e9", "tries::float8 ^ 2, 1e10", _WAITS),
    _in("open_gate", "    NEW.paused_by := NULL;\n", "", "test_operators.py::test_a_plain_update_opens_and_closes"),
    swap(
        SCHEMA,
        "FOR EACH ROW WHEN (NOT NEW.paused) EXECUTE",
        "FOR EACH ROW EXECUTE",
        "test_operators.py::test_the_newest_says_who_and_until_when",
    ),
    *(
        swap(
            SCHEMA,
            f"AFTER {events} ON pulse.topics",
            f"AFTER {fewer} ON pulse.topics",
            _TOPICS + "test_a_change_is_told",
        )
        for events in ("INSERT OR UPDATE OR DELETE OR TRUNCATE",)
        for fewer in (
            "UPDATE OR DELETE OR TRUNCATE",
            "INSERT OR DELETE OR TRUNCATE",
            "INSERT OR UPDATE OR TRUNCATE",
            "INSERT OR UPDATE OR DELETE",
        )
    ),
]
