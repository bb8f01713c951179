-- What `pulse doctor` reads from a database; pulse/ops/doctor decides what it means. The rules of statements.py apply here too.
--
--   * The dispatcher runs some of the statements, too (FindingStore of doctor.py), every few seconds while a dashboard is open:
--     their cost is bounded whatever the tables hold.
--   * Each statement runs in a read-only transaction of its own, for two seconds at most. Those whose names do not begin with
--     queue_ run on a database without pulse's schema, too.
--   * Ages are seconds (age_s), by the database's clock.


-- name: limits :one
-- What:    time limits of this transaction, and plans by the indexes that have the wanted order, whatever the statistics say.
-- Args:    $1 milliseconds text, $2 of waiting for a lock text.   Guard: none: reads.   Returns: the limits.
SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true), set_config('enable_seqscan', 'off', true),
    set_config('enable_bitmapscan', 'off', true);

-- name: identity :one
-- What:    the server and the process that answer.
-- Args:    none.   Guard: none: reads.   Returns: pid, version, version_num, in_recovery, encoding, clock_s, system_id, timeline (NULL: a standby).
SELECT pg_backend_pid() AS pid, current_setting('server_version') AS version, current_setting('server_version_num')::int AS version_num,
       pg_is_in_recovery() AS in_recovery, current_setting('server_encoding') AS encoding, extract(epoch FROM clock_timestamp())::float8 AS clock_s,
       (SELECT c.system_identifier::text FROM pg_control_system() AS c) AS system_id,
       CASE WHEN NOT pg_is_in_recovery()
            THEN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int END AS timeline;

-- name: session :one
-- What:    the values of settings that this session asked for when it connected.
-- Args:    $1 names text[], in lower case.   Guard: none: reads.   Returns: pid, their values as one JSON object.
SELECT pg_backend_pid() AS pid, json_object_agg(lower(name), setting)::text AS settings FROM pg_settings WHERE lower(name) = ANY ($1);

-- name: begin_probe :one
-- What:    leave a mark in the session, to see whether the next transaction finds it.
-- Args:    $1 mark text.   Guard: none: a setting of the session.   Returns: the process.
SELECT pg_backend_pid() AS pid, set_config('pulse.probe', $1, false) AS mark;

-- name: end_probe :one
-- What:    is the mark still there?
-- Args:    none.   Guard: none: reads.   Returns: pid, mark.
SELECT pg_backend_pid() AS pid, current_setting('pulse.probe', true) AS mark;

-- name: settings :many
-- What:    settings that can hurt, as they are for this role and database; not those that this connection brought itself.
-- Args:    none.   Guard: none: reads.   Returns: name, value.
SELECT s.name, s.reset_val AS value FROM pg_settings s
WHERE s.source <> 'client' AND s.name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts', 'default_transaction_isolation',
                 'default_transaction_read_only', 'idle_session_timeout', 'statement_timeout', 'lock_timeout',
                 'idle_in_transaction_session_timeout', 'transaction_timeout')
ORDER BY s.name;

-- name: replication :one
-- What:    whether commits wait for standbys, and which standbys there are; consumers of logical decoding are none.
-- Args:    none.   Guard: none: reads.
-- Returns: in_recovery, awaited (synchronous_standby_names), waits (synchronous_commit, not what this connection brought), standbys: how
--          many stream, synchronous: how many of them are waited for, hidden: how many the role may not see; waiting: how many commits
--          wait, waited_s: the longest of them.
SELECT pg_is_in_recovery() AS in_recovery, current_setting('synchronous_standby_names') AS awaited,
       (SELECT s.reset_val FROM pg_settings s WHERE s.name = 'synchronous_commit') AS waits,
       count(*) FILTER (WHERE r.state = 'streaming')::int AS standbys,
       count(*) FILTER (WHERE r.state = 'streaming' AND r.sync_state IN ('sync', 'quorum'))::int AS synchronous,
       count(*) FILTER (WHERE r.pid IS NOT NULL AND r.state IS NULL)::int AS hidden,
       (SELECT count(*)::int FROM pg_stat_activity a WHERE a.wait_event = 'SyncRep') AS waiting,
       (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - a.query_start)), 0)::float8
        FROM pg_stat_activity a WHERE a.wait_event = 'SyncRep') AS waited_s
FROM pg_stat_replication r
WHERE NOT EXISTS (SELECT FROM pg_replication_slots l WHERE l.active_pid = r.pid AND l.slot_type = 'logical');

-- name: connections :one
-- What:    how many connections there are, and how many there may be.
-- Args:    none.   Guard: none: reads.
-- Returns: greatest, reserved, used, role_limit, role_used, database_limit, database_used; a limit of -1 is none.
SELECT current_setting('max_connections')::int AS greatest,
       CASE WHEN r.rolsuper THEN 0 ELSE current_setting('superuser_reserved_connections')::int
           + coalesce(current_setting('reserved_connections', true), '0')::int END AS reserved,
       (SELECT count(*)::int FROM pg_stat_activity a WHERE a.backend_type = 'client backend') AS used,
       r.rolconnlimit AS role_limit,
       (SELECT count(*)::int FROM pg_stat_activity a WHERE a.usename = current_user AND a.backend_type = 'client backend') AS role_used,
       d.datconnlimit AS database_limit,
       (SELECT count(*)::int FROM pg_stat_activity a WHERE a.datname = d.datname AND a.backend_type = 'client backend') AS database_used
FROM pg_database d, pg_roles r WHERE d.datname = current_database() AND r.rolname = current_user;

-- name: rights :many
-- What:    rights that pulse needs and the role lacks; and whether it sees other sessions. The list repeats the grants of the role
--          server in roles.sql; a test compares them.
-- Args:    none.   Guard: none: reads.   Returns: what, is_granted, how: the statement that grants it (NULL: none that is ours).
SELECT 'see the sessions of others (pg_read_all_stats)' AS what, pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS is_granted,
       NULL AS how
UNION ALL
SELECT 'create a schema in this database', has_database_privilege(current_database(), 'CREATE'), NULL
WHERE to_regnamespace('pulse') IS NULL
UNION ALL
SELECT format('use the schema %I', n.nspname), has_schema_privilege(n.oid, 'USAGE'), format('GRANT USAGE ON SCHEMA %I TO %I', n.nspname, current_user)
FROM pg_namespace n WHERE n.nspname = 'pulse'
UNION ALL
SELECT format('%s %I.%s', lower(p.privilege), 'pulse', c.relname),
       CASE p.privilege WHEN 'UPDATE' THEN has_any_column_privilege(c.oid, 'UPDATE')  -- of one is enough to lock rows of the audit
                        ELSE has_table_privilege(c.oid, p.privilege) END,
       format('GRANT %s ON %I.%I TO %I', p.privilege, 'pulse', c.relname, current_user)
FROM (VALUES ('jobs', '{SELECT,INSERT,UPDATE,DELETE}'), ('attempts', '{SELECT,INSERT,UPDATE,DELETE}'),
             ('schedules', '{SELECT,INSERT,UPDATE,DELETE}'), ('topics', '{SELECT,INSERT,UPDATE,DELETE}'),
             ('set_aside', '{SELECT,INSERT,UPDATE,DELETE}'), ('outbox', '{SELECT,INSERT,UPDATE,DELETE}'), ('limits', '{SELECT,INSERT,UPDATE,DELETE}'),
             ('dispatch_control', '{SELECT,INSERT,UPDATE}'), ('handlers', '{SELECT,INSERT,UPDATE}'), ('hosts', '{SELECT,INSERT,UPDATE}'),
             ('witnesses', '{SELECT,INSERT,UPDATE}'), ('epochs', '{SELECT,INSERT,UPDATE}'),
             ('sweep_mark', '{SELECT,UPDATE}'), ('retention_mark', '{SELECT,UPDATE}'), ('schema_version', '{SELECT}'), ('dependencies', '{SELECT,UPDATE}'), ('signals', '{SELECT}'),
             ('audit', '{SELECT,INSERT,UPDATE,DELETE}')) AS n(name, privileges)
JOIN pg_class c ON c.relnamespace = to_regnamespace('pulse') AND c.relname = n.name
CROSS JOIN unnest(n.privileges::text[]) AS p(privilege)
UNION ALL
SELECT format('%s the sequence %I.%s', lower(p.privilege), 'pulse', c.relname), has_sequence_privilege(c.oid, p.privilege),
       format('GRANT %s ON SEQUENCE %I.%I TO %I', p.privilege, 'pulse', c.relname, current_user)
FROM pg_class c, unnest(ARRAY['SELECT', 'UPDATE']) AS p(privilege)
WHERE c.relnamespace = to_regnamespace('pulse') AND c.relname = 'work_notified'
UNION ALL
SELECT format('call %I.%s', 'pulse', f.proname), has_function_privilege(f.oid, 'EXECUTE'),
       format('GRANT EXECUTE ON FUNCTION %I.%I TO %I', 'pulse', f.proname, current_user)
FROM pg_proc f
WHERE f.pronamespace = to_regnamespace('pulse')
  AND f.proname IN ('add_dependencies', 'await_claims', 'backoff_s', 'count_slots', 'delete_schedule', 'event_args', 'insert_unique', 'jittered', 'note',
                    'notify_work', 'resolved_options', 'set_limit', 'set_topic', 'settle', 'signal', 'submit', 'tell', 'trigger_schedule', 'unique_holder',
                    'unset_limit', 'uuid7', 'wait_again');

-- name: role :one
-- What:    the role that pulse has in the database, and whether it has more rights than pulse needs.
-- Args:    none.   Guard: none: reads.   Returns: name, is_super, is_owner (of the schema, by itself or as a member).
SELECT m.rolname::text AS name, m.rolsuper AS is_super,
       EXISTS (SELECT FROM pg_namespace n WHERE n.nspname = 'pulse' AND pg_has_role(n.nspowner, 'USAGE')) AS is_owner
FROM pg_roles m WHERE m.rolname = current_user;

-- name: schema_there :one
-- What:    is the schema there?
-- Args:    none.   Guard: none: reads.   Returns: is_there.
SELECT to_regclass('pulse.schema_version') IS NOT NULL AS is_there;

-- name: schema_found :one
-- What:    its version.
-- Args:    none.   Guard: none: reads.   Returns: version, release (NULL: the table has no such column); nothing: it has no version.
SELECT v.version, to_jsonb(v) ->> 'release' AS release FROM pulse.schema_version v ORDER BY v.version DESC LIMIT 1;

-- name: indexes :many
-- What:    pulse's indexes: whether they are valid, their size, and how many entries they have.
-- Args:    none.   Guard: none: reads.   Returns: name, home, is_valid, bytes, entries (-1: not analysed yet).
SELECT i.relname::text AS name, t.relname::text AS home, x.indisvalid AND x.indisready AS is_valid,
       pg_relation_size(i.oid) AS bytes, i.reltuples::float8 AS entries
FROM pg_index x
JOIN pg_class i ON i.oid = x.indexrelid
JOIN pg_class t ON t.oid = x.indrelid
WHERE t.relnamespace = to_regnamespace('pulse')
ORDER BY i.relname;

-- name: additions :many
-- What:    foreign triggers, rules and settings of pulse's tables that can drop rows, refuse them, hide them or lose them.
-- Args:    none.   Guard: none: reads.   Returns: what (trigger, rule, reference, row security, unlogged), name, home: the table.
SELECT a.what, a.name, c.relname::text AS home
FROM pg_class c CROSS JOIN LATERAL (
    SELECT 'trigger' AS what, t.tgname::text AS name FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND p.pronamespace NOT IN (c.relnamespace, coalesce(to_regnamespace('pulse_audit'), 0))
    UNION ALL
    SELECT 'rule', r.rulename::text FROM pg_rewrite r WHERE r.ev_class = c.oid
    UNION ALL
    SELECT 'reference', f.conrelid::regclass::text FROM pg_constraint f WHERE f.confrelid = c.oid  -- pulse has none
    UNION ALL
    SELECT 'row security', '' WHERE c.relrowsecurity
    UNION ALL
    SELECT 'unlogged', '' WHERE c.relpersistence = 'u'
) AS a
WHERE c.relnamespace = to_regnamespace('pulse') AND c.relkind = 'r'
ORDER BY c.relname, a.what, a.name LIMIT 100;

-- name: xmin :many
-- What:    who keeps dead rows from being removed: sessions, standbys, prepared transactions, replication slots.
-- Args:    none.   Guard: none: reads.
-- Returns: kind, name, user_name, application, state, age_s (NULL: not known), xids, query; the oldest first.
SELECT h.* FROM (
    SELECT CASE WHEN a.backend_type = 'walsender' THEN 'standby' ELSE 'session' END AS kind, a.pid::text AS name,
           a.usename::text AS user_name, a.application_name AS application, coalesce(a.state, '') AS state,
           extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS age_s,
           greatest(age(a.backend_xmin), age(a.backend_xid)) AS xids, left(a.query, 200) AS query
    FROM pg_stat_activity a
    WHERE coalesce(a.backend_xmin, a.backend_xid) IS NOT NULL AND a.pid <> pg_backend_pid() AND a.backend_type <> 'autovacuum worker'
      AND (a.datname = current_database() OR a.backend_type = 'walsender')
    UNION ALL
    SELECT 'prepared transaction', p.gid, p.owner::text, '', 'prepared',
           extract(epoch FROM clock_timestamp() - p.prepared)::float8, age(p.transaction), ''
    FROM pg_prepared_xacts p WHERE p.database = current_database()
    UNION ALL
    SELECT 'replication slot', s.slot_name::text, '', coalesce(s.plugin::text, s.slot_type), CASE WHEN s.active THEN 'active' ELSE 'inactive' END,
           NULL, greatest(age(s.xmin), age(s.catalog_xmin)), ''
    FROM pg_replication_slots s WHERE coalesce(s.xmin, s.catalog_xmin) IS NOT NULL
) AS h
ORDER BY h.xids DESC, h.name LIMIT 100;

-- name: transactions :many
-- What:    transactions that are open for long and keep no snapshot: what they have locked stays locked.
-- Args:    none.   Guard: none: reads.   Returns: pid, user_name, application, state, age_s, query.
SELECT a.pid, a.usename::text AS user_name, a.application_name AS application, coalesce(a.state, '') AS state,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS age_s, left(a.query, 200) AS query
FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.xact_start IS NOT NULL
  AND coalesce(a.backend_xmin, a.backend_xid) IS NULL
ORDER BY a.xact_start LIMIT 100;

-- name: locks :many
-- What:    sessions that block writes to a whole table of pulse, and sessions that wait for a table or a row. The first one that
--          waits for a row holds a lock on that row; pg_locks names the table there, but the table is not locked.
-- Args:    none.   Guard: none: reads.   Returns: pid, user_name, application, age_s, what, blockers int[], query.
SELECT a.pid, a.usename::text AS user_name, a.application_name AS application,
       extract(epoch FROM clock_timestamp() - coalesce(l.waitstart, a.state_change, a.xact_start))::float8 AS age_s,
       CASE WHEN l.granted THEN format('holds %s on %I.%s', l.mode, 'pulse', c.relname)
            WHEN l.locktype IN ('transactionid', 'tuple') THEN 'waits for a row that another session has locked'
            ELSE format('waits for %s on %I.%s', l.mode, 'pulse', c.relname) END AS what,
       CASE WHEN l.granted THEN ARRAY[]::int[] ELSE pg_blocking_pids(a.pid) END AS blockers, left(a.query, 200) AS query
FROM pg_locks l
JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_class c ON c.oid = l.relation AND c.relnamespace = to_regnamespace('pulse')
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
  AND CASE WHEN l.granted THEN c.oid IS NOT NULL AND l.locktype = 'relation'
                AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
           ELSE c.oid IS NOT NULL OR l.locktype = 'transactionid' END
ORDER BY 4 DESC NULLS LAST LIMIT 100;

-- name: tables :many
-- What:    dead rows of pulse's tables, and when they were vacuumed.
-- Args:    none.   Guard: none: reads.   Returns: name, live, dead, bytes, vacuumed_s (NULL: never), is_vacuumed (by autovacuum).
SELECT c.relname::text AS name, s.n_live_tup AS live, s.n_dead_tup AS dead, pg_relation_size(c.oid) AS bytes,
       extract(epoch FROM clock_timestamp() - greatest(s.last_autovacuum, s.last_vacuum))::float8 AS vacuumed_s,
       coalesce((SELECT o.option_value::boolean FROM pg_options_to_table(c.reloptions) o WHERE o.option_name = 'autovacuum_enabled'), true)
           AS is_vacuumed
FROM pg_class c JOIN pg_stat_user_tables s ON s.relid = c.oid
WHERE c.relnamespace = to_regnamespace('pulse')
ORDER BY s.n_dead_tup DESC, c.relname;

-- name: wraparound :one
-- What:    how far the transaction ids of this database have run.
-- Args:    none.   Guard: none: reads.   Returns: xids, multixacts, freeze_xids.
SELECT age(d.datfrozenxid) AS xids, mxid_age(d.datminmxid) AS multixacts, current_setting('autovacuum_freeze_max_age')::int AS freeze_xids
FROM pg_database d WHERE d.datname = current_database();

-- name: notifications :many
-- What:    how full the queue of NOTIFY is, and the oldest transaction: a listener reads nothing until its transaction ends.
-- Args:    none.   Guard: none: reads.
-- Returns: usage (0 to 1), pid, user_name, application, state, age_s, query (all NULL: nobody); the oldest first.
SELECT u.usage, a.pid, a.usename::text AS user_name, a.application_name AS application, a.state,
       extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS age_s, left(a.query, 200) AS query
FROM (SELECT pg_notification_queue_usage() AS usage) AS u
LEFT JOIN pg_stat_activity a ON a.xact_start IS NOT NULL AND a.pid <> pg_backend_pid()
ORDER BY a.xact_start LIMIT 5;

-- name: queue_watchdog :one
-- What:    when a watchdog swept last.
-- Args:    none.   Guard: none: reads.   Returns: age_s, wait_s.
SELECT extract(epoch FROM clock_timestamp() - m.swept_at)::float8 AS age_s,
       CASE WHEN m.wait_until > clock_timestamp() THEN extract(epoch FROM m.wait_until - clock_timestamp())::float8 ELSE 0.0 END AS wait_s
FROM pulse.sweep_mark m;

-- name: queue_leases :many
-- What:    running jobs by their worker, and when its host was last seen.
-- Args:    none.   Guard: none: reads.   Returns: worker, jobs, lapsed, lapsed_s, host, host_s (NULL: never seen); the worst first.
SELECT r.worker, r.jobs, r.lapsed, r.lapsed_s, split_part(r.worker, '/', 1) AS host,
       (SELECT extract(epoch FROM clock_timestamp() - max(h.seen_at))::float8 FROM pulse.hosts h WHERE h.host = split_part(r.worker, '/', 1)) AS host_s
FROM (SELECT j.locked_by AS worker, count(*) AS jobs, count(*) FILTER (WHERE j.lease_until < clock_timestamp()) AS lapsed,
             greatest(extract(epoch FROM clock_timestamp() - min(j.lease_until)), 0)::float8 AS lapsed_s
      FROM pulse.jobs j WHERE j.status = 'RUNNING' GROUP BY j.locked_by) AS r
ORDER BY r.lapsed_s DESC, r.worker LIMIT 1000;

-- fragment: levels
-- What:    topic and priority of all jobs that wait and have no group, by a loose index scan.
level AS (
    (SELECT j.topic, j.priority FROM pulse.jobs j WHERE j.group_key IS NULL AND j.status IN ('PENDING', 'RETRYING') ORDER BY j.topic, j.priority DESC LIMIT 1)
    UNION ALL
    SELECT n.topic, n.priority FROM level l, LATERAL (
        (SELECT j.topic, j.priority FROM pulse.jobs j
         WHERE j.group_key IS NULL AND j.status IN ('PENDING', 'RETRYING') AND j.topic = l.topic AND j.priority < l.priority ORDER BY j.priority DESC LIMIT 1)
        UNION ALL
        (SELECT j.topic, j.priority FROM pulse.jobs j
         WHERE j.group_key IS NULL AND j.status IN ('PENDING', 'RETRYING') AND j.topic > l.topic ORDER BY j.topic, j.priority DESC LIMIT 1)
        LIMIT 1) AS n
)

-- name: queue_topics :many
-- What:    topics in which a job is due, found level by level and group by group, and how long the first job of each waits.
-- Args:    none.   Guard: none: reads.
-- Returns: topic, due_s, is_paused, hosts (that are alive), limit (NULL: none), concurrency, running (counted up to that); the longest wait first.
WITH RECURSIVE
-- :include levels
,
-- :include group_heads
SELECT d.topic, max(d.due_s) AS due_s,
       EXISTS (SELECT FROM pulse.dispatch_control g
               WHERE g.topic IN ('', d.topic) AND g.paused AND (g.paused_until IS NULL OR g.paused_until > clock_timestamp())) AS is_paused,
       (SELECT count(*) FROM (SELECT h.host FROM pulse.hosts h WHERE h.seen_at > clock_timestamp() - interval '1 minute'
                              GROUP BY h.host) AS seen)::int AS hosts,
       x.name AS limit, x.concurrency, CASE WHEN x.concurrency IS NOT NULL THEN (
           SELECT count(*) FROM (
               SELECT FROM pulse.jobs j WHERE j.counted_by = x.name AND j.status = 'RUNNING'
               AND j.started_at >= coalesce(x.oldest_at, '-infinity') LIMIT x.concurrency) AS n) END AS running
FROM (SELECT l.topic, (SELECT extract(epoch FROM clock_timestamp() - j.next_run_at)::float8 FROM pulse.jobs j
                       WHERE j.group_key IS NULL AND j.status IN ('PENDING', 'RETRYING') AND j.topic = l.topic AND j.priority = l.priority
                         AND j.next_run_at <= clock_timestamp() ORDER BY j.next_run_at LIMIT 1) AS due_s
      FROM (SELECT level.topic, level.priority FROM level LIMIT 5000) AS l
      UNION ALL
      SELECT h.topic, extract(epoch FROM clock_timestamp() - h.due_at)::float8
      FROM (SELECT head.topic, head.due_at FROM head LIMIT 5000) AS h WHERE h.due_at <= clock_timestamp()) AS d
LEFT JOIN pulse.topics t ON t.topic = d.topic
LEFT JOIN pulse.limits x ON x.name = coalesce(t.limit_name, d.topic) AND x.group_key = ''
WHERE d.due_s IS NOT NULL
GROUP BY d.topic, x.name, x.concurrency, x.oldest_at ORDER BY 2 DESC, d.topic LIMIT 1000;

-- name: queue_unhandled :many
-- What:    waiting jobs that were claimed twice or more and given back each time, since no worker had their handler (once: a
--          worker of another host may have it, and claims it next).
-- Args:    none.   Guard: none: reads; 20,000 jobs at most.
-- Returns: topic, name, jobs, age_s (since the submit of the oldest), job (that one), handlers (of the topic); the most first.
SELECT u.topic, u.name, count(*) AS jobs, extract(epoch FROM clock_timestamp() - min(u.submitted_at))::float8 AS age_s,
       (array_agg(u.id::text ORDER BY u.submitted_at))[1] AS job,
       ARRAY(SELECT h.name FROM pulse.handlers h WHERE coalesce(h.topic, u.topic) = u.topic ORDER BY h.seen_at DESC LIMIT 200) AS handlers
FROM (SELECT j.id, j.topic, j.name, j.submitted_at FROM pulse.jobs j
      WHERE j.status IN ('PENDING', 'RETRYING') AND j.last_error LIKE 'no handler named %' AND j.uncharged > 1 LIMIT 20000) AS u
GROUP BY u.topic, u.name ORDER BY 3 DESC, u.topic, u.name LIMIT 100;

-- name: queue_gate :many
-- What:    the topics that are paused.
-- Args:    none.   Guard: none: reads.
-- Returns: topic, reason, paused_by, age_s, left_s (NULL: until somebody resumes it), total: how many are paused, also unlisted.
SELECT g.topic, g.reason, g.paused_by, extract(epoch FROM clock_timestamp() - g.paused_at)::float8 AS age_s,
       extract(epoch FROM g.paused_until - clock_timestamp())::float8 AS left_s, count(*) OVER () AS total
FROM pulse.dispatch_control g
WHERE g.paused AND (g.paused_until IS NULL OR g.paused_until > clock_timestamp())
ORDER BY g.topic LIMIT 1000;

-- name: queue_schedules :many
-- What:    schedules that cannot be followed, and those that are late.
-- Args:    none.   Guard: none: reads.   Returns: id, name, error, late_s.
SELECT s.id::text AS id, s.name, s.error, coalesce(extract(epoch FROM clock_timestamp() - s.due_at), 0)::float8 AS late_s
FROM pulse.schedules s
WHERE s.error IS NOT NULL OR (s.next_run_at IS NOT NULL AND NOT s.paused AND s.due_at < clock_timestamp())
ORDER BY s.error IS NULL, s.due_at, s.id LIMIT 1000;

-- name: queue_attempts :many
-- What:    attempts of the last hour that the server ended: the worker died, the handler hung, the lease lapsed.
-- Args:    none.   Guard: none: reads; the newest 10000 by their index.
-- Returns: name, topic, outcome, attempts, killed (how many of them with their process), and of the newest: age_s, error (its
--          beginning), job, worker; jobs_dead: how many of the jobs are dead letters. The most first.
WITH lost AS (
    SELECT t.job_id, t.attempt, t.outcome, t.ended_at, t.worker, t.exit_code FROM pulse.attempts t
    WHERE t.outcome IN ('crashed', 'timeout', 'stalled', 'lease_expired') AND t.ended_at > (SELECT clock_timestamp()) - interval '1 hour'
    ORDER BY t.ended_at DESC LIMIT 10000
), bad AS MATERIALIZED (
    SELECT j.name, j.topic, j.status, l.* FROM lost l JOIN pulse.jobs j ON j.id = l.job_id
), last AS (
    SELECT DISTINCT ON (b.name, b.topic, b.outcome) b.*, count(*) OVER same AS attempts, count(b.exit_code) OVER same AS killed
    FROM bad b WINDOW same AS (PARTITION BY b.name, b.topic, b.outcome) ORDER BY b.name, b.topic, b.outcome, b.ended_at DESC
), dead AS (
    SELECT b.name, b.topic, b.outcome, count(DISTINCT b.job_id) AS jobs FROM bad b WHERE b.status = 'DEAD_LETTERED' GROUP BY 1, 2, 3
)
SELECT l.name, l.topic, l.outcome, l.attempts, l.killed, extract(epoch FROM clock_timestamp() - l.ended_at)::float8 AS age_s,
       (SELECT left(a.error, 200) FROM pulse.attempts a WHERE a.job_id = l.job_id AND a.attempt = l.attempt) AS error,
       l.job_id::text AS job, l.worker, coalesce(d.jobs, 0) AS jobs_dead
FROM last l LEFT JOIN dead d ON (d.name, d.topic, d.outcome) = (l.name, l.topic, l.outcome)
ORDER BY l.attempts DESC, l.name, l.topic, l.outcome LIMIT 100;

-- name: queue_running :many
-- What:    handlers that have run for longest without a limit of their own: neither timeout_s nor stall_s.
-- Args:    none.   Guard: none: reads; the 1000 jobs that were claimed first.
-- Returns: name, topic, jobs, age_s (since the claim of the first), job (that one), worker; the oldest first.
SELECT r.name, r.topic, count(*) AS jobs, extract(epoch FROM clock_timestamp() - min(r.started_at))::float8 AS age_s,
       (array_agg(r.id::text ORDER BY r.started_at))[1] AS job, (array_agg(r.locked_by ORDER BY r.started_at))[1] AS worker
FROM (SELECT j.id, j.name, j.topic, j.started_at, j.locked_by, j.timeout_s FROM pulse.jobs j
      WHERE j.status = 'RUNNING' ORDER BY j.started_at LIMIT 1000) AS r
WHERE r.timeout_s IS NULL
  AND NOT EXISTS (SELECT FROM pulse.handlers h WHERE h.name = r.name AND h.stall_s IS NOT NULL)
  AND NOT EXISTS (SELECT FROM pulse.topics t WHERE t.topic = r.topic AND t.stall_s IS NOT NULL)
GROUP BY r.name, r.topic ORDER BY 4 DESC, r.name, r.topic LIMIT 100;

-- name: queue_set_aside :many
-- What:    jobs that the database refuses one by one, the oldest first.
-- Args:    none.   Guard: none: reads.   Returns: id, name and topic (NULL: it is gone), statement, sqlstate, error (its beginning), age_s,
--          by_operator.
SELECT uuid_send(s.job_id) AS id, j.name, j.topic, s.statement, s.sqlstate, left(s.error, 500) AS error,
    extract(epoch FROM clock_timestamp() - s.since)::float8 AS age_s, s.next_try_at = 'infinity' AS by_operator
FROM pulse.set_aside s LEFT JOIN pulse.jobs j ON j.id = s.job_id
ORDER BY s.since LIMIT 100;


-- name: queue_dead_letters :many
-- What:    dead letters of the last hour, by handler; only among the newest ids, since no index holds when they ended.
-- Args:    none.   Guard: none: reads.   Returns: name, topic, jobs, age_s (of the newest), error (its beginning).
WITH newest AS (
    (SELECT j.id, j.status, j.name, j.topic, j.completed_at FROM pulse.jobs j
     WHERE j.status = 'DEAD_LETTERED' AND j.id < '04000000-0000-0000-0000-000000000000' ORDER BY j.id DESC LIMIT 10000)
    UNION
    (SELECT j.id, j.status, j.name, j.topic, j.completed_at FROM pulse.jobs j
     WHERE get_byte(uuid_send(j.id), 6) >> 4 <> 7 OR j.id >= '04000000-0000-0000-0000-000000000000'
     ORDER BY j.submitted_at DESC, j.id DESC LIMIT 10000)
), last AS (
    SELECT DISTINCT ON (n.name, n.topic) n.*, count(*) OVER (PARTITION BY n.name, n.topic) AS jobs
    FROM newest n WHERE n.status = 'DEAD_LETTERED' AND n.completed_at > clock_timestamp() - interval '1 hour'
    ORDER BY n.name, n.topic, n.completed_at DESC
)
SELECT l.name, l.topic, l.jobs, extract(epoch FROM clock_timestamp() - l.completed_at)::float8 AS age_s,
       (SELECT left(j.last_error, 200) FROM pulse.jobs j WHERE j.id = l.id) AS error
FROM last l ORDER BY l.jobs DESC, l.name, l.topic LIMIT 100;

-- name: queue_hosts :many
-- What:    hosts that were here today, and when each was last seen.
-- Args:    none.   Guard: none: reads; of what runs 20,000 jobs, of what lapsed the newest 10,000.
-- Returns: host, age_s, running (its jobs), workers (names of three that hold them), lapsed (its attempts that were taken back
--          within the last hour).
SELECT h.host, h.age_s, coalesce(r.jobs, 0) AS running, coalesce(r.workers, '{}') AS workers, coalesce(l.attempts, 0) AS lapsed
FROM (SELECT o.host, extract(epoch FROM clock_timestamp() - max(o.seen_at))::float8 AS age_s FROM pulse.hosts o GROUP BY o.host) AS h
LEFT JOIN (SELECT split_part(j.locked_by, '/', 1) AS host, count(*) AS jobs,
                  (array_agg(DISTINCT split_part(j.locked_by, '/', 5)))[1:3] AS workers
           FROM (SELECT n.locked_by FROM pulse.jobs n WHERE n.status = 'RUNNING' LIMIT 20000) AS j GROUP BY 1) AS r ON r.host = h.host
LEFT JOIN (SELECT split_part(a.worker, '/', 1) AS host, count(*) FILTER (WHERE a.outcome = 'lease_expired') AS attempts
           FROM (SELECT t.worker, t.outcome FROM pulse.attempts t
                 WHERE t.outcome IN ('crashed', 'timeout', 'stalled', 'lease_expired')
                   AND t.ended_at > (SELECT clock_timestamp()) - interval '1 hour'
                 ORDER BY t.ended_at DESC LIMIT 10000) AS a GROUP BY 1) AS l ON l.host = h.host
WHERE h.age_s < 86400 OR r.jobs > 0
ORDER BY h.age_s DESC, h.host LIMIT 1000;

-- name: queue_epochs :many
-- What:    when the database has gone back, in the last week.
-- Args:    none.   Guard: none: reads; the newest 5.
-- Returns: epoch, age_s, back_to, lost_s (the span that the database lost; NULL: no host knew), host, reopened, jobs; running and
--          finished: how many jobs hosts know that the database does not.
SELECT e.epoch, extract(epoch FROM clock_timestamp() - e.began_at)::float8 AS age_s,
       to_char(e.went_back_to AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS back_to,
       extract(epoch FROM e.known_until - e.went_back_to)::float8 AS lost_s, e.host, e.reopened,
       ARRAY(SELECT r.id FROM jsonb_array_elements_text(e.detail->'reopened') AS r(id) LIMIT 5) AS jobs,
       coalesce(jsonb_array_length(e.detail->'unknown_running'), 0) AS running,
       coalesce(jsonb_array_length(e.detail->'unknown_finished'), 0) AS finished
FROM pulse.epochs e WHERE e.epoch > 1 AND e.began_at > clock_timestamp() - interval '7 days' ORDER BY e.epoch DESC LIMIT 5;
