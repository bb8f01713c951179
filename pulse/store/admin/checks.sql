-- The invariants that the database can test, for `pulse check` and for tests. The rules of statements.py apply here too.
--
--   * What begins with the invariant's number, where it has one, and is the sentence that people read.
--   * Each check_ and audit_ statement returns id, detail and, in every row, the total of violations; no row means that the
--     invariant holds. $1 is how many examples to return.
--   * Only the audit_ statements, in audit_checks.sql, read the records of audit.sql; they cover the time since it was installed.
--   * Each is a transaction of its own: together they would pin a snapshot for minutes, and a queue suffers from that.


-- name: check_guards :many
-- What:    the constraints, indexes, triggers and functions of the schema are there, and valid
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
--          Rows cannot break a CHECK, so it is enough that the CHECK exists.
SELECT g.name AS id, format(CASE g.kind WHEN 'function' THEN '%s %I.%s is %s' ELSE '%s of %I.%s is %s' END, g.kind, 'pulse', g.home,
           CASE WHEN t.tgenabled IN ('D', 'R') THEN 'disabled' WHEN c.oid IS NULL AND i.indexrelid IS NULL THEN 'missing' ELSE 'not valid' END) AS detail,
       count(*) OVER () AS violations
FROM (VALUES
    ('constraint', 'attempts', 'attempts_attempt_check'), ('constraint', 'attempts', 'attempts_cpu_s_check'),
    ('constraint', 'attempts', 'attempts_outcome_check'), ('constraint', 'attempts', 'attempts_peak_rss_bytes_check'),
    ('constraint', 'attempts', 'attempts_pkey'),
    ('constraint', 'audit', 'audit_action_check'), ('constraint', 'audit', 'audit_detail_check'), ('constraint', 'audit', 'audit_jobs_check'),
    ('constraint', 'audit', 'audit_pkey'), ('constraint', 'audit', 'audit_uid_check'),
    ('constraint', 'dependencies', 'dependencies_on_failure_check'), ('constraint', 'dependencies', 'dependencies_pkey'),
    ('constraint', 'dependencies', 'joined'), ('constraint', 'signals', 'signals_pkey'), ('constraint', 'signals', 'sent'),
    ('constraint', 'dispatch_control', 'dispatch_control_open'), ('constraint', 'dispatch_control', 'dispatch_control_paused'),
    ('constraint', 'dispatch_control', 'dispatch_control_pkey'), ('constraint', 'dispatch_control', 'dispatch_control_topic_check'),
    ('constraint', 'dispatch_control', 'dispatch_control_until'), ('constraint', 'epochs', 'epochs_attempts_floor_check'), ('constraint', 'epochs', 'epochs_detail_check'),
    ('constraint', 'epochs', 'epochs_epoch_check'), ('constraint', 'epochs', 'epochs_lineage'),
    ('constraint', 'epochs', 'epochs_pkey'), ('constraint', 'epochs', 'epochs_reopened_check'),
    ('constraint', 'handlers', 'handlers_backoff'),
    ('constraint', 'handlers', 'handlers_max_attempts_check'), ('constraint', 'handlers', 'handlers_max_crashes_check'),
    ('constraint', 'handlers', 'handlers_name_check'), ('constraint', 'handlers', 'handlers_pkey'),
    ('constraint', 'handlers', 'handlers_on_crash_check'), ('constraint', 'handlers', 'handlers_on_dead_letter_check'),
    ('constraint', 'handlers', 'handlers_stall_s_check'), ('constraint', 'handlers', 'handlers_timeout_s_check'),
    ('constraint', 'handlers', 'handlers_topic_check'),
    ('constraint', 'hosts', 'hosts_pkey'),
    ('constraint', 'jobs', 'jobs_args'), ('constraint', 'jobs', 'jobs_attempts'), ('constraint', 'jobs', 'jobs_claimed'),
    ('constraint', 'jobs', 'jobs_crashes'), ('constraint', 'jobs', 'jobs_dead_letter_reason'),
    ('constraint', 'jobs', 'jobs_finished'), ('constraint', 'jobs', 'jobs_lease'), ('constraint', 'jobs', 'jobs_max_attempts'),
    ('constraint', 'jobs', 'jobs_name'), ('constraint', 'jobs', 'jobs_pkey'),
    ('constraint', 'jobs', 'jobs_priority'), ('constraint', 'jobs', 'jobs_ran_by'), ('constraint', 'jobs', 'jobs_time'), ('constraint', 'jobs', 'jobs_timeout'), ('constraint', 'jobs', 'jobs_topic'),
    ('constraint', 'limits', 'limits_burst'), ('constraint', 'limits', 'limits_burst_check'), ('constraint', 'limits', 'limits_concurrency_check'),
    ('constraint', 'limits', 'limits_group_key_check'), ('constraint', 'limits', 'limits_name_check'), ('constraint', 'limits', 'limits_pkey'),
    ('constraint', 'limits', 'limits_rate_check'), ('constraint', 'limits', 'limits_sequence'), ('constraint', 'limits', 'limits_sequence_check'),
    ('constraint', 'limits', 'limits_tokens'),
    ('constraint', 'outbox', 'outbox_pkey'), ('constraint', 'retention_mark', 'retention_mark_one_check'), ('constraint', 'retention_mark', 'retention_mark_pkey'),
    ('constraint', 'schedules', 'schedules_args'), ('constraint', 'schedules', 'schedules_catch_up'),
    ('constraint', 'schedules', 'schedules_cron'), ('constraint', 'schedules', 'schedules_ends_at'),
    ('constraint', 'schedules', 'schedules_every'), ('constraint', 'schedules', 'schedules_jitter'),
    ('constraint', 'schedules', 'schedules_key'), ('constraint', 'schedules', 'schedules_kind'),
    ('constraint', 'schedules', 'schedules_max_attempts'), ('constraint', 'schedules', 'schedules_name'),
    ('constraint', 'schedules', 'schedules_next_run_at'), ('constraint', 'schedules', 'schedules_overlap'),
    ('constraint', 'schedules', 'schedules_pkey'), ('constraint', 'schedules', 'schedules_priority'),
    ('constraint', 'schedules', 'schedules_run_at'), ('constraint', 'schedules', 'schedules_span'),
    ('constraint', 'schedules', 'schedules_starts_at'), ('constraint', 'schedules', 'schedules_timeout'),
    ('constraint', 'schedules', 'schedules_topic'), ('constraint', 'schedules', 'schedules_group_key'), ('constraint', 'schedules', 'schedules_unique'),
    ('constraint', 'schedules', 'schedules_waiting'), ('constraint', 'set_aside', 'set_aside_pkey'),
    ('constraint', 'schema_version', 'schema_version_pkey'), ('constraint', 'schema_version', 'schema_version_version_check'),
    ('constraint', 'sweep_mark', 'sweep_mark_one_check'), ('constraint', 'sweep_mark', 'sweep_mark_pkey'),
    ('constraint', 'topics', 'topics_ageing_s_check'), ('constraint', 'topics', 'topics_backoff'),
    ('constraint', 'topics', 'topics_lease_s_check'), ('constraint', 'topics', 'topics_limit_name_check'), ('constraint', 'topics', 'topics_retention_dead_s_check'),
    ('constraint', 'topics', 'topics_retention_s_check'), ('constraint', 'topics', 'topics_stall_s_check'),
    ('constraint', 'topics', 'topics_max_attempts_check'), ('constraint', 'topics', 'topics_max_crashes_check'),
    ('constraint', 'topics', 'topics_pkey'), ('constraint', 'topics', 'topics_server'),
    ('constraint', 'topics', 'topics_timeout_s_check'), ('constraint', 'topics', 'topics_topic_check'),
    ('constraint', 'witnesses', 'witnesses_counter_check'), ('constraint', 'witnesses', 'witnesses_pkey'),
    ('index', 'attempts', 'idx_attempts_lost'), ('index', 'audit', 'idx_audit_at'), ('index', 'jobs', 'idx_jobs_ended_badly'), ('index', 'jobs', 'idx_jobs_other_ids'),
    ('index', 'handlers', 'idx_handlers_backoff'), ('index', 'handlers', 'idx_handlers_events'), ('index', 'topics', 'idx_topics_backoff'), ('index', 'topics', 'idx_topics_lease'),
    ('index', 'topics', 'idx_topics_live'), ('index', 'topics', 'idx_topics_publish'), ('index', 'outbox', 'idx_outbox_ended'),
    ('index', 'jobs', 'idx_jobs_claim'), ('index', 'jobs', 'idx_jobs_counted'), ('index', 'jobs', 'idx_jobs_groups'), ('index', 'jobs', 'idx_jobs_expiry'), ('index', 'jobs', 'idx_jobs_held'), ('index', 'jobs', 'idx_jobs_running'), ('index', 'jobs', 'idx_jobs_schedule'), ('index', 'jobs', 'idx_jobs_unhandled'),
    ('index', 'jobs', 'idx_jobs_unique'),
    ('index', 'schedules', 'idx_schedules_due'), ('index', 'schedules', 'idx_schedules_key'),
    ('index', 'schedules', 'idx_schedules_reckon'), ('index', 'schedules', 'idx_schedules_waiting'),
    ('trigger', 'dispatch_control', 'gate_opened'), ('trigger', 'topics', 'topics_changed'),
    ('function', 'await_claims', 'await_claims'), ('function', 'backoff_s', 'backoff_s'), ('function', 'count_slots', 'count_slots'),
    ('function', 'set_limit', 'set_limit'), ('function', 'unset_limit', 'unset_limit'),
    ('function', 'add_dependencies', 'add_dependencies'), ('function', 'after_problem', 'after_problem'),
    ('function', 'join_parent', 'join_parent'), ('function', 'forget_linked', 'forget_linked'), ('function', 'settle', 'settle'),
    ('function', 'wait_again', 'wait_again'), ('function', 'signal_problem', 'signal_problem'), ('function', 'signal', 'signal'),
    ('function', 'deliver_signal', 'deliver_signal'),
    ('trigger', 'jobs', 'deleted'),
    ('trigger', 'dependencies', 'joined'), ('trigger', 'signals', 'sent'), ('index', 'dependencies', 'idx_dependencies_child'),
    ('function', 'check_schedule', 'check_schedule'),
    ('function', 'check_attempt', 'check_attempt'), ('function', 'complete_attempt', 'complete_attempt'),
    ('function', 'checked_priority', 'checked_priority'), ('function', 'create_schedule', 'create_schedule'),
    ('function', 'delete_schedule', 'delete_schedule'), ('function', 'time_problem', 'time_problem'),
    ('function', 'event_args', 'event_args'), ('function', 'group_problem', 'group_problem'), ('function', 'insert_unique', 'insert_unique'),
    ('function', 'unique_holder', 'unique_holder'), ('function', 'unique_problem', 'unique_problem'),
    ('function', 'is_stored', 'is_stored'), ('function', 'is_stored_unseen', 'is_stored_unseen'), ('function', 'jittered', 'jittered'),
    ('function', 'note', 'note'), ('function', 'notify_work', 'notify_work'), ('function', 'open_gate', 'open_gate'),
    ('function', 'pause_schedule', 'pause_schedule'), ('function', 'resolved_options', 'resolved_options'),
    ('function', 'resume_schedule', 'resume_schedule'),
    ('function', 'set_schedule', 'set_schedule'), ('function', 'set_topic', 'set_topic'), ('function', 'submit', 'submit'),
    ('function', 'submit_many', 'submit_many'), ('function', 'tell', 'tell'), ('function', 'tell_topics', 'tell_topics'),
    ('function', 'trigger_schedule', 'trigger_schedule'), ('function', 'update_schedule', 'update_schedule'),
    ('function', 'uuid7', 'uuid7')) AS g(kind, home, name)
LEFT JOIN pg_catalog.pg_constraint c
    ON g.kind = 'constraint' AND c.conname = g.name AND (c.conrelid = to_regclass(format('%I.%I', 'pulse', g.home)) OR EXISTS (  -- or of a column's domain
        SELECT FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = to_regclass(format('%I.%I', 'pulse', g.home)) AND a.atttypid = c.contypid AND NOT a.attisdropped))
LEFT JOIN pg_catalog.pg_index i
    ON i.indexrelid = CASE WHEN g.kind = 'index' THEN to_regclass(format('%I.%I', 'pulse', g.name))::oid ELSE c.conindid END
LEFT JOIN pg_catalog.pg_trigger t ON g.kind = 'trigger' AND t.tgname = g.name AND t.tgrelid = to_regclass(format('%I.%I', 'pulse', g.home))
WHERE (g.kind = 'trigger' AND coalesce(t.tgenabled, 'D') IN ('D', 'R'))
   OR (g.kind = 'function' AND NOT EXISTS (
           SELECT FROM pg_catalog.pg_proc p WHERE p.pronamespace = to_regnamespace('pulse') AND p.proname = g.name))
   OR (g.kind = 'constraint' AND c.oid IS NULL) OR (g.kind = 'index' AND i.indexrelid IS NULL)
   OR NOT coalesce(c.convalidated, true) OR NOT coalesce(i.indisvalid AND i.indisready, true)
ORDER BY g.home, g.name LIMIT $1;


-- name: check_anchors :many
-- What:    the rows that everything relies on are there: the server's defaults, the gate, the marks of the sweeps and of the deleting
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
SELECT a.home AS id, 'its row is missing' AS detail, count(*) OVER () AS violations
FROM (VALUES ('pulse.topics', EXISTS (SELECT FROM pulse.topics WHERE topic = '')),
             ('pulse.dispatch_control', EXISTS (SELECT FROM pulse.dispatch_control WHERE topic = '')),
             ('pulse.sweep_mark', EXISTS (SELECT FROM pulse.sweep_mark)),
             ('pulse.retention_mark', EXISTS (SELECT FROM pulse.retention_mark))) AS a(home, is_there)
WHERE NOT a.is_there LIMIT $1;


-- name: check_leases :many
-- What:    I3: a RUNNING job has a holder and a lease, and no other job has either
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
SELECT j.id::text AS id, format('%s, locked_by %s, lease_until %s', j.status, coalesce(j.locked_by, 'NULL'),
           coalesce(j.lease_until::text, 'NULL')) AS detail, count(*) OVER () AS violations
FROM pulse.jobs j
WHERE (j.status = 'RUNNING') <> (j.locked_by IS NOT NULL) OR (j.status = 'RUNNING') <> (j.lease_until IS NOT NULL)
LIMIT $1;


-- name: check_counters :many
-- What:    attempts, uncharged and crashes of a job fit each other, its status and its times
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
--          A PENDING job has no charged try, a RETRYING one has a charged try or a crash; an ended or claimed job has the time of that.
SELECT j.id::text AS id, format('%s, attempts %s, uncharged %s, crashes %s, started_at %s, completed_at %s', j.status, j.attempts,
           j.uncharged, j.crashes, coalesce(j.started_at::text, 'NULL'), coalesce(j.completed_at::text, 'NULL')) AS detail,
       count(*) OVER () AS violations
FROM pulse.jobs j
WHERE j.uncharged < 0 OR j.uncharged > j.attempts OR j.crashes < 0 OR j.crashes > j.uncharged
   OR (j.attempts > 0) <> (j.started_at IS NOT NULL)
   OR (j.status IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELED')) <> (j.completed_at IS NOT NULL)
   OR (j.status IN ('RUNNING', 'COMPLETED') AND j.attempts <= j.uncharged)
   OR (j.status = 'PENDING' AND j.attempts <> j.uncharged)
   OR (j.status = 'RETRYING' AND j.attempts = j.uncharged AND j.crashes = 0)
LIMIT $1;


-- name: check_budgets :many
-- What:    I9: no job is tried more often than its budget allows
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
SELECT j.id::text AS id, format('%s, attempts %s, uncharged %s, max_attempts %s', j.status, j.attempts, j.uncharged, j.max_attempts)
           AS detail, count(*) OVER () AS violations
FROM pulse.jobs j
WHERE j.attempts - j.uncharged >= j.max_attempts + (j.status NOT IN ('PENDING', 'RETRYING'))::int
LIMIT $1;


-- name: check_dead_letters :many
-- What:    I10: a dead letter says why, and has spent its budget, or was discarded, or crashed too often, or expired
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
SELECT j.id::text AS id, format('attempts %s, uncharged %s, max_attempts %s, last outcome %s, last_error %s', j.attempts, j.uncharged,
           j.max_attempts, coalesce(a.outcome, 'unknown'), coalesce(quote_literal(left(j.last_error, 60)), 'NULL')) AS detail,
       count(*) OVER () AS violations
FROM pulse.jobs j LEFT JOIN pulse.attempts a ON a.job_id = j.id AND a.attempt = j.attempts
WHERE j.status = 'DEAD_LETTERED'
  AND (coalesce(j.last_error, '') = ''
       OR NOT (j.attempts - j.uncharged >= j.max_attempts OR coalesce(a.outcome IN ('discarded', 'crashed'), false)
               OR EXISTS (SELECT FROM pulse.attempts e WHERE e.job_id = j.id AND e.attempt = 0 AND e.outcome = 'expired')))
LIMIT $1;


-- name: check_history :many
-- What:    the history of each job fits its row: every charged try that failed is in it, and none that runs or succeeded
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
--          Claims that no worker received leave no history, so there may be fewer rows than uncharged attempts; an
--          operator's retry makes all attempts before it uncharged, so there may be more charged ones. The row does not count
--          attempts that the database lost when it went back, until the job is claimed again.
SELECT j.id::text AS id, format('%s, attempts %s, uncharged %s, crashes %s, in the history %s charged, %s uncharged, %s crashed, '
           'newest %s', j.status, j.attempts, j.uncharged, j.crashes, coalesce(h.charged, 0), coalesce(h.uncharged, 0),
           coalesce(h.crashed, 0), coalesce(h.newest, 0)) AS detail, count(*) OVER () AS violations
FROM pulse.jobs j
LEFT JOIN (
    SELECT a.job_id, max(a.attempt) AS newest,
           count(*) FILTER (WHERE a.outcome IN ('error', 'retry', 'timeout', 'stalled', 'lease_expired', 'discarded', 'canceled'))
               AS charged,
           count(*) FILTER (WHERE a.outcome IN ('released', 'snoozed', 'crashed')) AS uncharged,
           count(*) FILTER (WHERE a.outcome = 'crashed') AS crashed
    FROM pulse.attempts a WHERE a.outcome <> 'released' OR a.error IS DISTINCT FROM 'the database went back: what it does not know any more is over'
    GROUP BY a.job_id) AS h ON h.job_id = j.id
WHERE j.attempts - j.uncharged - (j.status IN ('RUNNING', 'COMPLETED'))::int > coalesce(h.charged, 0)
   OR j.crashes > coalesce(h.crashed, 0) OR h.uncharged > j.uncharged
   OR h.newest > j.attempts - (j.status IN ('RUNNING', 'COMPLETED'))::int
LIMIT $1;


-- name: check_slots :many
-- What:    a RUNNING job counts against the limit of its topic, each limit has the row that its claims lock, and counts from its oldest slot on
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
--          A plain UPDATE of pulse.topics.limit_name leaves what runs where it was counted.
WITH wrong AS (
    SELECT j.id::text AS id, format('counted by %s, its topic %s goes by %s', coalesce(j.counted_by, 'none'), j.topic, coalesce(x.name, 'none')) AS detail
    FROM pulse.jobs j
    LEFT JOIN pulse.topics t ON t.topic = j.topic
    LEFT JOIN pulse.limits x ON x.name = coalesce(t.limit_name, j.topic) AND x.group_key = ''
    WHERE j.status = 'RUNNING' AND j.counted_by IS DISTINCT FROM x.name
    UNION ALL
    SELECT x.name, format('only for the group %s', x.group_key) FROM pulse.limits x
    WHERE NOT EXISTS (SELECT FROM pulse.limits w WHERE w.name = x.name AND w.group_key = '')
    UNION ALL
    SELECT j.id::text, format('started at %s, limit %s counts from %s on', j.started_at, x.name, x.oldest_at)
    FROM pulse.limits x JOIN pulse.jobs j ON j.counted_by = x.name AND j.status = 'RUNNING' AND j.started_at < x.oldest_at
    WHERE x.group_key = ''
    UNION ALL
    SELECT x.name, format('group %s, tokens %s', coalesce(nullif(x.group_key, ''), 'none'), x.tokens) FROM pulse.limits x WHERE x.tokens < 0
)
SELECT w.id, w.detail, count(*) OVER () AS violations FROM wrong w LIMIT $1;


-- name: check_groups :many
-- What:    a group_key has 1 to 200 characters and is not *; only jobs of groups, and those that wait for others or did, have a run_after
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
SELECT j.id::text AS id, format('%s, group_key %s, run_after %s', j.status, coalesce(quote_literal(left(j.group_key, 60)), 'NULL'),
           coalesce(j.run_after::text, 'NULL')) AS detail, count(*) OVER () AS violations
FROM pulse.jobs j
WHERE length(j.group_key) NOT BETWEEN 1 AND 200 OR j.group_key = '*' OR (j.group_key IS NULL AND j.run_after IS NOT NULL AND j.waiting_on IS NULL)
LIMIT $1;


-- name: check_dependencies :many
-- What:    a job waits for just those jobs that have not ended, it is held while there are some, and an ended one has told its children
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
WITH wrong AS (
    SELECT j.id, format('waits for %s jobs, %s dependencies are not over', j.waiting_on, d.count) AS detail
    FROM pulse.jobs j
    CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE NOT d.is_over) FROM pulse.dependencies d WHERE d.child_id = j.id) AS d
    WHERE j.waiting_on IS NOT NULL AND j.waiting_on <> d.count
    UNION ALL
    SELECT j.id, format('waits for %s jobs, and is %s, due at %s', j.waiting_on, j.status, j.next_run_at)
    FROM pulse.jobs j
    WHERE j.completed_at IS NULL AND j.waiting_on > 0 AND (j.status <> 'PENDING' OR j.next_run_at < '9999-12-30 00:00+00')
    UNION ALL
    SELECT j.id, 'is held, and neither a schedule nor a job holds it'
    FROM pulse.jobs j
    WHERE j.status = 'PENDING' AND j.next_run_at = '9999-12-30 00:00+00' AND j.schedule_id IS NULL AND coalesce(j.waiting_on, 0) = 0
    UNION ALL
    SELECT d.child_id, format('was not told that job %s is %s', d.parent_id, coalesce(p.status::text, 'gone'))
    FROM pulse.dependencies d LEFT JOIN pulse.jobs p ON p.id = d.parent_id
    WHERE NOT d.is_over AND (p.id IS NULL OR p.completed_at IS NOT NULL)
    UNION ALL
    SELECT d.child_id, format('waits for job %s, which does not know it', d.parent_id)
    FROM pulse.dependencies d JOIN pulse.jobs p ON p.id = d.parent_id
    WHERE NOT d.is_over AND p.is_parent IS NULL
)
SELECT w.id::text AS id, w.detail, count(*) OVER () AS violations FROM wrong w LIMIT $1;


-- name: check_signals :many
-- What:    a job knows how many signals were sent to it, and none is there without its job
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
SELECT coalesce(j.id, s.job_id)::text AS id, format('has had %s signals, %s are there', coalesce(j.signals, 0), coalesce(s.count, 0)) AS detail,
       count(*) OVER () AS violations
FROM (SELECT s.job_id, count(*) FROM pulse.signals s GROUP BY s.job_id) AS s
FULL JOIN (SELECT j.id, j.signals FROM pulse.jobs j WHERE j.signals IS NOT NULL) AS j ON j.id = s.job_id
WHERE j.signals IS DISTINCT FROM s.count
LIMIT $1;


-- name: check_lapsed :many
-- What:    I13: a lapsed lease is reaped
-- Args:    $1 examples int, $2 grace_s float8
-- Guard:   none: reads.   Returns: id, detail, violations.
SELECT j.id::text AS id, format('attempt %s, lease_until %s, held by %s', j.attempts, j.lease_until, j.locked_by) AS detail,
       count(*) OVER () AS violations
FROM pulse.jobs j
WHERE j.status = 'RUNNING' AND j.lease_until < clock_timestamp() - $2 * interval '1 second'
ORDER BY j.lease_until LIMIT $1;


-- name: check_occurrences :many
-- What:    I14: each occurrence of a schedule became one job, the last one too, and none did beyond its cursor
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
--          The cursor of a schedule that occurs once may have been set back after it fired; and a schedule may have the id of
--          a deleted one whose jobs still exist. The last occurrence's job may have been deleted by an operator, or by age, but
--          not by age while older completed jobs of the schedule still exist.
WITH fired AS (
    SELECT j.schedule_id, j.occurrence, count(*) AS jobs, max(j.submitted_at) AS submitted_at FROM pulse.jobs j
    WHERE j.schedule_id IS NOT NULL AND j.occurrence IS NOT NULL GROUP BY j.schedule_id, j.occurrence
), wrong AS (
    SELECT f.schedule_id, CASE WHEN f.jobs > 1 THEN format('%s jobs for the occurrence %s', f.jobs, f.occurrence)
        ELSE format('a job for the occurrence %s, the cursor stands at %s', f.occurrence, coalesce(s.next_run_at::text, 'NULL')) END AS why
    FROM fired f LEFT JOIN pulse.schedules s ON s.id = f.schedule_id
    WHERE f.jobs > 1
       OR (f.submitted_at > s.created_at AND ((f.occurrence >= s.next_run_at AND s.kind <> 'at') OR f.occurrence > s.last_run_at))
    UNION ALL
    SELECT s.id, format('no job for the occurrence %s', s.last_run_at)
    FROM pulse.schedules s
    WHERE EXISTS (SELECT FROM pulse.jobs j WHERE j.schedule_id = s.id AND j.status = 'COMPLETED' AND j.completed_at < s.last_run_at)
      AND NOT EXISTS (SELECT FROM fired f WHERE f.schedule_id = s.id AND f.occurrence = s.last_run_at)
      AND NOT EXISTS (SELECT FROM pulse.audit a WHERE a.action = 'jobs.delete' AND a.at >= s.last_run_at)
)
SELECT w.schedule_id::text AS id, w.why AS detail, count(*) OVER () AS violations FROM wrong w LIMIT $1;


-- name: check_late_schedules :many
-- What:    a schedule that is due fires
-- Args:    $1 examples int, $2 grace_s float8
-- Guard:   none: reads.   Returns: id, detail, violations.
SELECT s.id::text AS id, format('due since %s', s.due_at) AS detail, count(*) OVER () AS violations
FROM pulse.schedules s
WHERE NOT s.paused AND s.error IS NULL AND s.due_at < clock_timestamp() - $2 * interval '1 second'
ORDER BY s.due_at LIMIT $1;


-- name: check_sessions :many
-- What:    I23: no session of pulse sits idle in a transaction
-- Args:    $1 examples int, $2 longer_than_s float8
-- Guard:   none: reads.   Returns: id, detail, violations.
SELECT a.pid::text AS id, format('%s, %s since %s', a.application_name, a.state, a.state_change) AS detail,
       count(*) OVER () AS violations
FROM pg_catalog.pg_stat_activity a
WHERE a.datname = current_database() AND a.application_name LIKE 'pulse %' AND a.state LIKE 'idle in transaction%'
  AND a.state_change < clock_timestamp() - $2 * interval '1 second'
LIMIT $1;


-- name: sweep_age :one
-- What:    seconds since a watchdog swept.   Args: none.   Guard: none: reads.   Returns: age_s; nothing when the mark is missing.
SELECT extract(epoch FROM clock_timestamp() - m.swept_at)::float8 AS age_s FROM pulse.sweep_mark m;


-- name: holders :many
-- What:    who holds a lease.   Args: none.   Guard: none: reads.   Returns: worker.
SELECT DISTINCT j.locked_by AS worker FROM pulse.jobs j WHERE j.status = 'RUNNING' AND j.locked_by IS NOT NULL;


-- name: held_by :many
-- What:    what these workers hold.   Args: $1 workers text[].   Guard: none: reads.   Returns: id, attempts, worker.
SELECT j.id::text AS id, j.attempts, j.locked_by AS worker FROM pulse.jobs j
WHERE j.status = 'RUNNING' AND j.locked_by = ANY ($1::text[]) ORDER BY j.started_at;
