"""Mutants of what the doctor asks a database (pulse/store/admin/doctor.sql)."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import DOCTOR, Mutant, cut, swap

# ruff: noqa: E501 - a mutant is a line

_ROWS: Final = "test_doctor_rows.py::"
_TEST: Final = "test_doctor.py::"
_ROLE: Final = _TEST + "test_settings_and_rights_of_a_role"
_XMIN: Final = _TEST + "test_who_keeps_a_snapshot"
_LOCKS: Final = _TEST + "test_locks"
_POOLER: Final = _TEST + "test_pooler"
_INDEXES: Final = _TEST + "test_indexes"
_TABLES: Final = _TEST + "test_tables"
_COUNTED: Final = _ROWS + "test_connections_are_counted"
_SCHEMA: Final = _TEST + "test_schema"
_PULSES: Final = _ROWS + "test_what_is_pulses"
_NEEDS: Final = "test_roles.py::test_a_server_has_what_it_needs_and_nothing_else"
_WHO: Final = _ROWS + "test_who_pulse_is"
_SNAPSHOTS: Final = _ROWS + "test_snapshots_of_this_database"
_TRANSACTIONS: Final = _ROWS + "test_transactions_of_this_database"
_HOLDERS: Final = _ROWS + "test_locks_that_matter"
_WORKERS: Final = _ROWS + "test_leases_by_worker"
_HOSTS: Final = _ROWS + "test_hosts_of_today"
_DUE: Final = _ROWS + "test_due_jobs_by_topic"
_LATE: Final = _ROWS + "test_late_schedules"
_REAP: Final = _ROWS + "test_when_a_watchdog_may_reap"
_HOUR: Final = _ROWS + "test_endings_of_the_last_hour"
_DEAD: Final = _ROWS + "test_dead_letters_of_the_last_hour"
_NEWEST: Final = _TEST + "test_only_the_newest_endings_are_looked_at"
_DIED: Final = _TEST + "test_what_died_where"
_ENDLESS: Final = _TEST + "test_what_nothing_would_end"
_QUEUE_FULL: Final = "test_news.py::test_the_doctor_names_who_keeps_it_full"
_ADDED: Final = _TEST + "test_what_others_have_added"
_HERE: Final = "a.datname = current_database()"

_SERVER: Final = [
    swap("limits", "set_config('statement_timeout', $1, true)", "set_config('statement_timeout', $1, false)", _POOLER),
    swap("limits", "set_config('lock_timeout', $2, true)", "set_config('lock_timeout', $2, false)", _POOLER),
    swap("limits", "'enable_seqscan', 'off', true", "'enable_seqscan', 'off', false", _POOLER),
    swap("limits", "'enable_bitmapscan', 'off', true", "'enable_bitmapscan', 'off', false", _POOLER),
    swap("limits", "set_config('lock_timeout', $2, true)", "$2 AS none", _LOCKS),
    swap("begin_probe", "$1, false", "$1, true", _POOLER),
    swap("settings", "s.reset_val", "s.boot_val", _ROLE),
    swap("connections", "CASE WHEN r.rolsuper THEN 0 ELSE", "CASE WHEN true THEN 0 ELSE", _COUNTED),
    swap("connections", "CASE WHEN r.rolsuper THEN 0 ELSE", "CASE WHEN false THEN 0 ELSE", _COUNTED),
    swap("connections", "a.backend_type = 'client backend') AS used", "true) AS used", _COUNTED),
    swap("connections", "a.usename = current_user AND", "", _COUNTED),
    swap("connections", "a.datname = d.datname AND", "", _COUNTED),
    swap("connections", "d.datname = current_database() AND", "d.datname = 'template1' AND", _COUNTED),
    cut("connections", "d.datname = current_database() AND ", _COUNTED),
    cut("connections", " AND r.rolname = current_user", _COUNTED),
    swap("rights", "'pg_read_all_stats', 'USAGE')", "'pg_monitor', 'USAGE') OR true", _ROLE),
    cut("rights", "\nWHERE to_regnamespace('pulse') IS NULL", _ROLE),
    swap("rights", "WHERE n.nspname = 'pulse'", "WHERE false", _ROLE),
    swap("rights", "('attempts', '{SELECT,INSERT,UPDATE,DELETE}')", "('attempts', '{SELECT,INSERT,UPDATE}')", _PULSES),
    swap("rights", "has_any_column_privilege(c.oid, 'UPDATE')", "has_table_privilege(c.oid, 'UPDATE')", _NEEDS),
    swap("rights", "ELSE has_table_privilege(c.oid, p.privilege) END", "ELSE true END", _NEEDS),
    swap("rights", "has_sequence_privilege(c.oid, p.privilege)", "true", _NEEDS),
    swap("rights", "has_function_privilege(f.oid, 'EXECUTE')", "true", _NEEDS),
    swap("role", "pg_has_role(n.nspowner, 'USAGE')", "pg_has_role(n.nspowner, 'MEMBER') AND false", _WHO),
    swap("role", "WHERE n.nspname = 'pulse' AND", "WHERE", _WHO),
    swap("role", "WHERE m.rolname = current_user", "WHERE m.rolsuper", _WHO),
    cut("schema_found", " DESC", _SCHEMA),
    swap("indexes", "x.indisvalid AND x.indisready", "true", _INDEXES),
    cut("indexes", "WHERE t.relnamespace = to_regnamespace('pulse')\n", _PULSES),
    swap("xmin", "coalesce(a.backend_xmin, a.backend_xid) IS NOT NULL", "false", _XMIN),
    cut("xmin", " AND a.pid <> pg_backend_pid()", _SNAPSHOTS),
    swap("xmin", f"({_HERE} OR a.backend_type = 'walsender')", "true", _SNAPSHOTS),
    cut("xmin", " WHERE p.database = current_database()", _SNAPSHOTS),
    swap("xmin", "pg_prepared_xacts p WHERE", "pg_prepared_xacts p WHERE false AND", _XMIN),
    swap("xmin", "coalesce(s.xmin, s.catalog_xmin) IS NOT NULL", "s.xmin IS NOT NULL", _XMIN),
    swap("xmin", "coalesce(s.xmin, s.catalog_xmin) IS NOT NULL", "true", _SNAPSHOTS),
    swap("xmin", "CASE WHEN s.active", "CASE WHEN NOT s.active", _XMIN),
    swap("xmin", "ORDER BY h.xids DESC", "ORDER BY h.xids", _SNAPSHOTS),
    cut("transactions", f"{_HERE} AND ", _TRANSACTIONS),
    cut("transactions", " AND a.xact_start IS NOT NULL", _TRANSACTIONS),
    cut("transactions", "\n  AND coalesce(a.backend_xmin, a.backend_xid) IS NULL", _TRANSACTIONS),
    swap("transactions", "ORDER BY a.xact_start", "ORDER BY a.xact_start DESC", _TRANSACTIONS),
    cut("locks", f"{_HERE} AND ", _HOLDERS),
    swap("locks", "THEN c.oid IS NOT NULL AND l.locktype", "THEN l.locktype", _HOLDERS),
    cut("locks", ", 'AccessExclusiveLock'", _LOCKS),
    cut("locks", " AND l.locktype = 'relation'", _HOLDERS),
    swap("locks", "IN ('transactionid', 'tuple')", "= 'transactionid'", _HOLDERS),
    swap("locks", "'ShareRowExclusiveLock'", "'RowExclusiveLock'", _HOLDERS),
    swap(
        "locks", "ELSE c.oid IS NOT NULL OR l.locktype = 'transactionid'", "ELSE l.locktype = 'transactionid'", _LOCKS
    ),
    cut("locks", " OR l.locktype = 'transactionid'", _HOLDERS),
    swap("locks", "ELSE c.oid IS NOT NULL OR", "ELSE true OR", _HOLDERS),
    swap("locks", "CASE WHEN l.granted THEN ARRAY[]::int[]", "CASE WHEN true THEN ARRAY[]::int[]", _HOLDERS),
    swap("tables", "o.option_value::boolean", "true", _TABLES),
    swap("notifications", "pg_notification_queue_usage()", "0.7", _QUEUE_FULL),
    cut("notifications", "a.xact_start IS NOT NULL AND ", _QUEUE_FULL),
    cut("notifications", " AND a.pid <> pg_backend_pid()", _QUEUE_FULL),
    swap("notifications", "ORDER BY a.xact_start LIMIT", "ORDER BY a.xact_start DESC LIMIT", _QUEUE_FULL),
    cut("tables", "WHERE c.relnamespace = to_regnamespace('pulse')\n", _PULSES),
]
_ADDITIONS: Final = [
    cut("additions", " AND NOT t.tgisinternal", _ADDED),
    swap("additions", "(c.relnamespace, coalesce", "(0, coalesce", _ADDED),
    swap("additions", "f.confrelid = c.oid", "false", _ADDED),
    cut("additions", " WHERE c.relrowsecurity", _ADDED),
    cut("additions", " WHERE c.relpersistence = 'u'", _ADDED),
    cut("additions", "c.relnamespace = to_regnamespace('pulse') AND ", _ADDED),
    swap("additions", "r.ev_class = c.oid", "false", _ADDED),
]
_QUEUE: Final = [
    swap("queue_watchdog", "WHEN m.wait_until > clock_timestamp()", "WHEN false", _REAP),
    swap("queue_watchdog", "WHEN m.wait_until > clock_timestamp()", "WHEN m.wait_until IS NOT NULL", _REAP),
    swap("queue_leases", "(WHERE j.lease_until < clock_timestamp())", "(WHERE true)", _WORKERS),
    cut("queue_leases", " WHERE j.status = 'RUNNING'", _WORKERS),
    swap("queue_leases", "GROUP BY j.locked_by", "GROUP BY j.locked_by, j.id", _WORKERS),
    swap("queue_leases", "max(h.seen_at)", "min(h.seen_at)", _WORKERS),
    cut("queue_leases", " WHERE h.host = split_part(r.worker, '/', 1)", _WORKERS),
    swap("queue_leases", "min(j.lease_until)", "max(j.lease_until)", _WORKERS),
    swap("queue_leases", "ORDER BY r.lapsed_s DESC", "ORDER BY r.lapsed_s", _WORKERS),
    swap("queue_topics", "j.topic = l.topic AND j.priority < l.priority", "false", _DUE),
    swap("queue_topics", "j.topic > l.topic", "false", _DUE),
    swap("queue_topics", "j.next_run_at <= clock_timestamp()", "true", _DUE),
    swap("queue_topics", "ORDER BY j.next_run_at LIMIT 1) AS due_s", "ORDER BY j.next_run_at DESC LIMIT 1) AS due_s", _DUE),
    swap("queue_topics", "max(d.due_s)", "min(d.due_s)", _DUE),
    swap("queue_topics", "g.topic IN ('', d.topic)", "g.topic = ''", _DUE),
    swap("queue_topics", "g.topic IN ('', d.topic)", "g.topic = d.topic", _DUE),
    swap("queue_topics", "g.topic IN ('', d.topic)", "true", _DUE),
    swap("queue_topics", " AND g.paused AND", " AND", _DUE),
    swap("queue_topics", "g.paused_until > clock_timestamp()", "true", _DUE),
    swap("queue_topics", "(g.paused_until IS NULL OR g.paused_until > clock_timestamp())", "g.paused_until IS NULL", _DUE),
    swap("queue_topics", "h.seen_at > clock_timestamp() - interval '1 minute'", "true", _DUE),
    cut("queue_topics", "GROUP BY h.host", _DUE),
    swap("queue_topics", "WHERE d.due_s IS NOT NULL\n", "", _DUE),
    swap("queue_topics", "ORDER BY 2 DESC", "ORDER BY 2", _DUE),
    swap("queue_gate", "WHERE g.paused AND", "WHERE", _DUE),
    swap("queue_gate", "g.paused_until > clock_timestamp()", "true", _DUE),
    swap("queue_schedules", "s.error IS NOT NULL OR", "false OR", _LATE),
    swap("queue_schedules", " AND NOT s.paused", "", _LATE),
    swap("queue_schedules", "s.due_at < clock_timestamp()", "true", _LATE),
    swap("queue_schedules", "ORDER BY s.error IS NULL,", "ORDER BY s.error IS NOT NULL,", _LATE),
    cut("queue_attempts", "t.outcome IN ('crashed', 'timeout', 'stalled', 'lease_expired') AND ", _HOUR),
    *(
        swap("queue_attempts", f"'{outcome}'", "'nothing'", _HOUR)
        for outcome in ("crashed", "timeout", "stalled", "lease_expired")
    ),
    cut("queue_attempts", " AND t.ended_at > (SELECT clock_timestamp()) - interval '1 hour'", _HOUR),
    swap("queue_attempts", "j.id = l.job_id", "true", _HOUR),
    swap("queue_attempts", "b.ended_at DESC", "b.ended_at", _HOUR),
    swap("queue_attempts", "PARTITION BY b.name, b.topic, b.outcome", "PARTITION BY b.name, b.topic", _HOUR),
    swap("queue_attempts", "ORDER BY l.attempts DESC", "ORDER BY l.attempts", _HOUR),
    cut("queue_attempts", " AND a.attempt = l.attempt", _HOUR),
    swap("queue_attempts", "count(b.exit_code)", "count(*)", _DIED),
    cut("queue_attempts", " WHERE b.status = 'DEAD_LETTERED'", _DIED),
    swap("queue_running", "r.timeout_s IS NULL", "true", _ENDLESS),
    swap("queue_running", "h.stall_s IS NOT NULL", "false", _ENDLESS),
    swap("queue_running", "t.stall_s IS NOT NULL", "false", _ENDLESS),
    cut("queue_dead_letters", "n.status = 'DEAD_LETTERED' AND ", _DEAD),
    cut("queue_dead_letters", " AND n.completed_at > clock_timestamp() - interval '1 hour'", _DEAD),
    swap("queue_dead_letters", "n.completed_at DESC", "n.completed_at", _DEAD),
    swap("queue_dead_letters", "PARTITION BY n.name, n.topic", "PARTITION BY n.topic", _DEAD),
    swap("queue_dead_letters", "ORDER BY l.jobs DESC", "ORDER BY l.jobs", _DEAD),
    swap("queue_dead_letters", "000000000000' ORDER BY j.id DESC", "000000000000' ORDER BY j.id", _NEWEST),
    cut("queue_dead_letters", " AND j.id < '04000000-0000-0000-0000-000000000000'", _NEWEST),
    swap("queue_dead_letters", "get_byte(uuid_send(j.id), 6) >> 4 <> 7 OR", "false AND", _NEWEST),
    swap("queue_hosts", "max(o.seen_at)", "min(o.seen_at)", _HOSTS),
    swap("queue_hosts", "h.age_s < 86400 OR", "true OR", _HOSTS),
    cut("queue_hosts", "h.age_s < 86400 OR ", _HOSTS),
    cut("queue_hosts", " OR r.jobs > 0", _HOSTS),
    cut("queue_hosts", "\n                   AND t.ended_at > (SELECT clock_timestamp()) - interval '1 hour'", _DIED),
    swap("queue_hosts", "ORDER BY h.age_s DESC", "ORDER BY h.age_s", _HOSTS),
]  # fmt: skip

MUTANTS: Final = [Mutant(DOCTOR + one.where, one.edits, one.killer) for one in (*_SERVER, *_ADDITIONS, *_QUEUE)]
