-- The invariants that can be told from the database, for `pulse check` and for tests. The rules of queries.sql hold here too.
--
--   * What begins with the invariant's number, where it has one, and is the sentence that people read.
--   * Each check_ and audit_ statement returns id, detail and, in every row, how many violations there are in all; no row:
--     it holds. $1 is how many examples are wanted.
--   * Only the audit_ statements read what audit.sql writes down; they are about the time since it was installed.
--   * Each is one statement of its own: together in one transaction they would pin a snapshot for minutes, and a queue
--     suffers from that.


-- name: check_guards :many
-- What:    the constraints, indexes, triggers and functions of the schema are there, and valid
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
--          What a CHECK forbids cannot be in a table, so it is enough that the CHECK is there.
SELECT g.name AS id, format(CASE g.kind WHEN 'function' THEN '%s pulse.%s is %s' ELSE '%s of pulse.%s is %s' END, g.kind, g.home,
           CASE WHEN t.tgenabled IN ('D', 'R') THEN 'disabled' WHEN c.oid IS NULL AND i.indexrelid IS NULL THEN 'missing' ELSE 'not valid' END) AS detail,
       count(*) OVER () AS violations
FROM (VALUES
    ('constraint', 'attempts', 'attempts_attempt_check'), ('constraint', 'attempts', 'attempts_cpu_s_check'),
    ('constraint', 'attempts', 'attempts_outcome_check'), ('constraint', 'attempts', 'attempts_peak_rss_bytes_check'),
    ('constraint', 'attempts', 'attempts_pkey'),
    ('constraint', 'audit', 'audit_action_check'), ('constraint', 'audit', 'audit_detail_check'), ('constraint', 'audit', 'audit_jobs_check'),
    ('constraint', 'audit', 'audit_pkey'), ('constraint', 'audit', 'audit_uid_check'),
    ('constraint', 'dispatch_control', 'dispatch_control_open'), ('constraint', 'dispatch_control', 'dispatch_control_paused'),
    ('constraint', 'dispatch_control', 'dispatch_control_pkey'), ('constraint', 'dispatch_control', 'dispatch_control_topic_check'),
    ('constraint', 'dispatch_control', 'dispatch_control_until'), ('constraint', 'epochs', 'epochs_attempts_floor_check'), ('constraint', 'epochs', 'epochs_detail_check'),
    ('constraint', 'epochs', 'epochs_epoch_check'), ('constraint', 'epochs', 'epochs_lineage'),
    ('constraint', 'epochs', 'epochs_pkey'), ('constraint', 'epochs', 'epochs_reopened_check'),
    ('constraint', 'handlers', 'handlers_backoff'),
    ('constraint', 'handlers', 'handlers_max_attempts_check'), ('constraint', 'handlers', 'handlers_max_crashes_check'),
    ('constraint', 'handlers', 'handlers_name_check'), ('constraint', 'handlers', 'handlers_pkey'),
    ('constraint', 'handlers', 'handlers_stall_s_check'), ('constraint', 'handlers', 'handlers_timeout_s_check'),
    ('constraint', 'handlers', 'handlers_topic_check'),
    ('constraint', 'hosts', 'hosts_pkey'),
    ('constraint', 'jobs', 'jobs_args'), ('constraint', 'jobs', 'jobs_attempts'), ('constraint', 'jobs', 'jobs_claimed'),
    ('constraint', 'jobs', 'jobs_crashes'), ('constraint', 'jobs', 'jobs_dead_letter_reason'), ('constraint', 'jobs', 'jobs_expires_at'),
    ('constraint', 'jobs', 'jobs_finished'), ('constraint', 'jobs', 'jobs_lease'), ('constraint', 'jobs', 'jobs_max_attempts'),
    ('constraint', 'jobs', 'jobs_name'), ('constraint', 'jobs', 'jobs_next_run_at'), ('constraint', 'jobs', 'jobs_pkey'),
    ('constraint', 'jobs', 'jobs_priority'), ('constraint', 'jobs', 'jobs_timeout'), ('constraint', 'jobs', 'jobs_topic'),
    ('constraint', 'retention_mark', 'retention_mark_one_check'), ('constraint', 'retention_mark', 'retention_mark_pkey'),
    ('constraint', 'schedules', 'schedules_args'), ('constraint', 'schedules', 'schedules_catch_up'),
    ('constraint', 'schedules', 'schedules_cron'), ('constraint', 'schedules', 'schedules_ends_at'),
    ('constraint', 'schedules', 'schedules_every'), ('constraint', 'schedules', 'schedules_jitter'),
    ('constraint', 'schedules', 'schedules_key'), ('constraint', 'schedules', 'schedules_kind'),
    ('constraint', 'schedules', 'schedules_max_attempts'), ('constraint', 'schedules', 'schedules_name'),
    ('constraint', 'schedules', 'schedules_next_run_at'), ('constraint', 'schedules', 'schedules_overlap'),
    ('constraint', 'schedules', 'schedules_pkey'), ('constraint', 'schedules', 'schedules_priority'),
    ('constraint', 'schedules', 'schedules_run_at'), ('constraint', 'schedules', 'schedules_span'),
    ('constraint', 'schedules', 'schedules_starts_at'), ('constraint', 'schedules', 'schedules_timeout'),
    ('constraint', 'schedules', 'schedules_topic'), ('constraint', 'schedules', 'schedules_waiting'), ('constraint', 'set_aside', 'set_aside_pkey'),
    ('constraint', 'schema_version', 'schema_version_pkey'), ('constraint', 'schema_version', 'schema_version_version_check'),
    ('constraint', 'sweep_mark', 'sweep_mark_one_check'), ('constraint', 'sweep_mark', 'sweep_mark_pkey'),
    ('constraint', 'topics', 'topics_ageing_s_check'), ('constraint', 'topics', 'topics_backoff'),
    ('constraint', 'topics', 'topics_lease_s_check'), ('constraint', 'topics', 'topics_retention_dead_s_check'),
    ('constraint', 'topics', 'topics_retention_s_check'), ('constraint', 'topics', 'topics_stall_s_check'),
    ('constraint', 'topics', 'topics_max_attempts_check'), ('constraint', 'topics', 'topics_max_crashes_check'),
    ('constraint', 'topics', 'topics_pkey'), ('constraint', 'topics', 'topics_server'),
    ('constraint', 'topics', 'topics_timeout_s_check'), ('constraint', 'topics', 'topics_topic_check'),
    ('constraint', 'witnesses', 'witnesses_counter_check'), ('constraint', 'witnesses', 'witnesses_pkey'),
    ('index', 'attempts', 'idx_attempts_lost'), ('index', 'audit', 'idx_audit_at'), ('index', 'jobs', 'idx_jobs_ended_badly'), ('index', 'jobs', 'idx_jobs_other_ids'),
    ('index', 'handlers', 'idx_handlers_backoff'), ('index', 'topics', 'idx_topics_backoff'), ('index', 'topics', 'idx_topics_lease'),
    ('index', 'topics', 'idx_topics_live'),
    ('index', 'jobs', 'idx_jobs_claim'), ('index', 'jobs', 'idx_jobs_expiry'), ('index', 'jobs', 'idx_jobs_held'), ('index', 'jobs', 'idx_jobs_running'), ('index', 'jobs', 'idx_jobs_schedule'),
    ('index', 'schedules', 'idx_schedules_due'), ('index', 'schedules', 'idx_schedules_key'),
    ('index', 'schedules', 'idx_schedules_reckon'), ('index', 'schedules', 'idx_schedules_waiting'),
    ('trigger', 'dispatch_control', 'gate_opened'), ('trigger', 'topics', 'topics_changed'),
    ('function', 'backoff_s', 'backoff_s'), ('function', 'check_schedule', 'check_schedule'),
    ('function', 'checked_priority', 'checked_priority'), ('function', 'create_schedule', 'create_schedule'),
    ('function', 'delete_schedule', 'delete_schedule'), ('function', 'expiry_problem', 'expiry_problem'),
    ('function', 'is_stored', 'is_stored'), ('function', 'is_stored_unseen', 'is_stored_unseen'), ('function', 'jittered', 'jittered'),
    ('function', 'note', 'note'), ('function', 'notify_work', 'notify_work'), ('function', 'open_gate', 'open_gate'),
    ('function', 'pause_schedule', 'pause_schedule'), ('function', 'resume_schedule', 'resume_schedule'),
    ('function', 'set_schedule', 'set_schedule'), ('function', 'set_topic', 'set_topic'), ('function', 'submit', 'submit'),
    ('function', 'submit_many', 'submit_many'), ('function', 'tell', 'tell'), ('function', 'tell_topics', 'tell_topics'),
    ('function', 'trigger_schedule', 'trigger_schedule'), ('function', 'update_schedule', 'update_schedule'),
    ('function', 'uuid7', 'uuid7')) AS g(kind, home, name)
LEFT JOIN pg_catalog.pg_constraint c
    ON g.kind = 'constraint' AND c.conname = g.name AND c.conrelid = to_regclass('pulse.' || g.home)
LEFT JOIN pg_catalog.pg_index i
    ON i.indexrelid = CASE WHEN g.kind = 'index' THEN to_regclass('pulse.' || g.name)::oid ELSE c.conindid END
LEFT JOIN pg_catalog.pg_trigger t ON g.kind = 'trigger' AND t.tgname = g.name AND t.tgrelid = to_regclass('pulse.' || g.home)
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
--          PENDING: no charged try behind it; RETRYING: a charged try or a crash; ended: when; claimed: when.
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
--          Claims that no worker ever saw leave no history, so there may be fewer rows than uncharged attempts; an
--          operator's retry makes all attempts before it uncharged, so there may be more charged ones. Of attempts that the
--          database does not know any more the row knows nothing, until the job is claimed again.
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
--          The cursor of one that occurs once may have been set back, to an earlier time, when it had fired; and a schedule
--          may have the id of one that was deleted, whose jobs are still there. The last occurrence's job may have been
--          deleted: by an operator, or by age, but then not while older completed jobs of the same schedule are still there.
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


-- name: audit_exists :one
-- What:    is there an audit?   Args: none.   Guard: none: reads.   Returns: is_there.
SELECT to_regclass('pulse_audit.changes') IS NOT NULL AS is_there;


-- name: audit_drop :exec
-- What:    remove the audit with all that it has written down.
-- Args:    none.   Guard: lock_timeout: it needs a moment in which nobody writes to pulse.jobs.   Returns: nothing.
DROP SCHEMA pulse_audit CASCADE;


-- name: audit_record :many
-- What:    the record has no gap: each change begins where the one before it ended, and the last ended at the row as it is
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
--          A change and its record are in one transaction, so one snapshot shows both or neither.
--          A job may be deleted, and another one submitted under its id: where what became of attempts is compared with rows,
--          in the checks below, only changes count that no delete came after.
WITH linked AS (
    SELECT c.*, lead(c.seq) OVER w IS NULL AS is_last,
           lag(c.seq) OVER w IS NOT NULL AND (lag(c.new_status) OVER w, lag(c.new_attempts) OVER w, lag(c.new_uncharged) OVER w,
               lag(c.new_crashes) OVER w, lag(c.new_locked_by) OVER w, lag(c.new_next_run_at) OVER w)
               IS DISTINCT FROM (c.old_status, c.old_attempts, c.old_uncharged, c.old_crashes, c.old_locked_by, c.old_next_run_at)
               AS is_torn
    FROM pulse_audit.changes c WINDOW w AS (PARTITION BY c.id ORDER BY c.seq)
)
SELECT l.id::text AS id, CASE WHEN l.is_torn THEN format('change %s begins at %s, attempts %s', l.seq, l.old_status, l.old_attempts)
           ELSE format('the row is not as change %s left it: %s, attempts %s', l.seq, l.new_status, l.new_attempts) END AS detail,
       count(*) OVER () AS violations
FROM linked l LEFT JOIN pulse.jobs j ON j.id = l.id AND l.is_last
WHERE l.is_torn OR (l.is_last AND
    (l.new_status, l.new_attempts, l.new_uncharged, l.new_crashes, l.new_locked_by, l.new_next_run_at)
    IS DISTINCT FROM (j.status::text, j.attempts, j.uncharged, j.crashes, j.locked_by, j.next_run_at))
LIMIT $1;


-- name: audit_kept :many
-- What:    I1: no job vanishes before it has ended
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
SELECT c.id::text AS id, format('deleted at %s while %s', c.at, c.old_status) AS detail, count(*) OVER () AS violations
FROM pulse_audit.changes c
WHERE c.new_status IS NULL AND c.old_status NOT IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELED')
ORDER BY c.seq LIMIT $1;


-- name: audit_unchanged :many
-- What:    nothing changes what a job is: its name, topic, args, and where it came from
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
SELECT c.id::text AS id, format('change %s at %s', c.seq, c.at) AS detail, count(*) OVER () AS violations
FROM pulse_audit.changes c WHERE c.rewritten ORDER BY c.seq LIMIT $1;


-- name: audit_tokens :many
-- What:    I4: a claim adds 1 to attempts, or to the floor of an epoch; nothing else does; a new job has none, unless its INSERT claims it
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
SELECT c.id::text AS id, format('change %s: %s to %s, attempts %s to %s', c.seq, coalesce(c.old_status, 'new'), c.new_status,
           coalesce(c.old_attempts, 0), c.new_attempts) AS detail, count(*) OVER () AS violations
FROM pulse_audit.changes c
WHERE c.new_attempts <> coalesce(c.old_attempts, 0) + coalesce(c.new_status = 'RUNNING' AND c.old_status IS DISTINCT FROM 'RUNNING', false)::int
  AND NOT (coalesce(c.new_status = 'RUNNING' AND c.old_status IS DISTINCT FROM 'RUNNING', false) AND c.new_attempts > coalesce(c.old_attempts, 0)
           AND c.new_attempts - 1 IN (SELECT e.attempts_floor FROM pulse.epochs e WHERE e.attempts_floor > 0))
ORDER BY c.seq LIMIT $1;


-- name: audit_claims :many
-- What:    I5: each attempt of a job is claimed once
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
SELECT d.id::text AS id, format('attempt %s was claimed %s times', d.new_attempts, d.claims) AS detail, count(*) OVER () AS violations
FROM (SELECT c.id, c.new_attempts, count(*) AS claims FROM pulse_audit.changes c
      WHERE c.new_status = 'RUNNING' AND c.old_status IS DISTINCT FROM 'RUNNING'
        AND NOT EXISTS (SELECT FROM pulse_audit.changes d WHERE d.id = c.id AND d.seq > c.seq AND d.new_status IS NULL)
      GROUP BY c.id, c.new_attempts HAVING count(*) > 1) AS d
LIMIT $1;


-- name: audit_moves :many
-- What:    I6: a job's status makes legal moves only, and begins as PENDING, or RUNNING where a worker waited for it
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.   The list is held against pulse.job.TRANSITIONS by a test.
SELECT c.id::text AS id, format('change %s at %s: %s to %s', c.seq, c.at, coalesce(c.old_status, 'new'), c.new_status) AS detail,
       count(*) OVER () AS violations
FROM pulse_audit.changes c
WHERE c.new_status IS NOT NULL AND c.new_status IS DISTINCT FROM c.old_status
  AND (coalesce(c.old_status, ''), c.new_status) NOT IN (VALUES
    ('', 'PENDING'), ('', 'RUNNING'),
    ('PENDING', 'RUNNING'), ('PENDING', 'CANCELED'), ('PENDING', 'DEAD_LETTERED'),
    ('RETRYING', 'RUNNING'), ('RETRYING', 'CANCELED'), ('RETRYING', 'DEAD_LETTERED'),
    ('RUNNING', 'COMPLETED'), ('RUNNING', 'RETRYING'), ('RUNNING', 'DEAD_LETTERED'), ('RUNNING', 'CANCELED'),
    ('RUNNING', 'PENDING'),
    ('COMPLETED', 'PENDING'), ('DEAD_LETTERED', 'PENDING'), ('CANCELED', 'PENDING'))
ORDER BY c.seq LIMIT $1;


-- name: audit_final :many
-- What:    I7: what has ended stays as it is, but for an operator's retry with fresh budgets
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
SELECT c.id::text AS id, format('change %s at %s: %s to %s, attempts %s, uncharged %s, crashes %s', c.seq, c.at, c.old_status,
           c.new_status, c.new_attempts, c.new_uncharged, c.new_crashes) AS detail, count(*) OVER () AS violations
FROM pulse_audit.changes c
WHERE c.old_status IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELED') AND c.new_status IS NOT NULL
  AND NOT (c.new_status = 'PENDING' AND c.new_attempts = c.old_attempts AND c.new_uncharged = c.new_attempts AND c.new_crashes = 0)
ORDER BY c.seq LIMIT $1;


-- name: audit_charges :many
-- What:    an attempt is charged, or not, exactly once, when it ends: to nobody, to the budget, or to the crash budget
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
WITH moved AS (
    SELECT c.*, c.new_uncharged - coalesce(c.old_uncharged, 0) AS more, c.new_crashes - coalesce(c.old_crashes, 0) AS more_crashes
    FROM pulse_audit.changes c WHERE c.new_status IS NOT NULL
)
SELECT m.id::text AS id, format('change %s: %s to %s, attempts %s, uncharged %s to %s, crashes %s to %s', m.seq,
           coalesce(m.old_status, 'new'), m.new_status, m.new_attempts, m.old_uncharged, m.new_uncharged, m.old_crashes, m.new_crashes)
           AS detail, count(*) OVER () AS violations
FROM moved m
WHERE CASE
    WHEN m.old_status = 'RUNNING' AND m.new_status = 'PENDING' THEN
        NOT (m.more = 1 AND m.more_crashes = 0 AND m.new_uncharged = m.new_attempts)
    WHEN m.old_status = 'RUNNING' AND m.new_status IN ('RETRYING', 'DEAD_LETTERED') THEN
        NOT (m.more IN (0, 1) AND m.more_crashes IN (0, m.more))
    WHEN m.old_status IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELED') THEN false
    WHEN m.new_status = 'RUNNING' AND m.old_status IS DISTINCT FROM 'RUNNING' THEN
        m.more <> m.new_attempts - coalesce(m.old_attempts, 0) - 1 OR m.more_crashes <> 0
    ELSE m.more <> 0 OR m.more_crashes <> 0 END
ORDER BY m.seq LIMIT $1;


-- name: audit_endings :many
-- What:    I8: each attempt that ended without success is in the history as its holder's, with an outcome that fits the move
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
--          A claim that no worker ever saw is given back without history. Jobs that were deleted have none either.
SELECT c.id::text AS id, format('change %s: attempt %s of %s, %s to %s, in the history %s of %s', c.seq, c.old_attempts, c.old_locked_by,
           c.old_status, c.new_status, coalesce(a.outcome, 'nothing'), coalesce(a.worker, 'nobody')) AS detail,
       count(*) OVER () AS violations
FROM pulse_audit.changes c
JOIN pulse.jobs j ON j.id = c.id
LEFT JOIN pulse.attempts a ON a.job_id = c.id AND a.attempt = c.old_attempts
WHERE c.old_status = 'RUNNING' AND c.new_status IN ('PENDING', 'RETRYING', 'DEAD_LETTERED', 'CANCELED')
  AND NOT EXISTS (SELECT FROM pulse_audit.changes d WHERE d.id = c.id AND d.seq > c.seq AND d.new_status IS NULL)
  AND NOT CASE
    WHEN a.job_id IS NULL THEN c.new_uncharged = c.old_uncharged + 1 AND c.new_crashes = c.old_crashes
    WHEN a.worker IS DISTINCT FROM c.old_locked_by THEN false
    WHEN c.new_status = 'CANCELED' THEN a.outcome = 'canceled'
    WHEN c.new_crashes > c.old_crashes THEN a.outcome = 'crashed'
    WHEN c.new_uncharged > c.old_uncharged THEN a.outcome IN ('released', 'snoozed') AND c.new_status <> 'DEAD_LETTERED'
    WHEN a.outcome = 'discarded' THEN c.new_status = 'DEAD_LETTERED'
    WHEN a.outcome IN ('error', 'retry', 'timeout', 'stalled', 'lease_expired') THEN
        (c.new_status = 'DEAD_LETTERED') = (c.new_attempts - c.new_uncharged >= j.max_attempts)
    ELSE false END
ORDER BY c.seq LIMIT $1;


-- name: audit_history_ends :many
-- What:    the history tells of no attempt that did not end so
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
--          Of attempts that were claimed before the audit began, nothing is known.
SELECT a.job_id::text AS id, format('attempt %s is %s in the history, and did not end without success', a.attempt, a.outcome) AS detail,
       count(*) OVER () AS violations
FROM pulse.attempts a
WHERE EXISTS (SELECT FROM pulse_audit.changes c WHERE c.id = a.job_id AND c.new_attempts = a.attempt AND c.new_status = 'RUNNING'
                AND c.old_status IS DISTINCT FROM 'RUNNING')
  AND NOT EXISTS (SELECT FROM pulse_audit.changes c WHERE c.id = a.job_id AND c.old_attempts = a.attempt AND c.old_status = 'RUNNING'
                    AND c.new_status IN ('PENDING', 'RETRYING', 'DEAD_LETTERED', 'CANCELED'))
LIMIT $1;


-- name: audit_due :many
-- What:    I11: no job starts before it is due
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
SELECT c.id::text AS id, format('attempt %s started at %s, due at %s', c.new_attempts, c.new_started_at, coalesce(c.old_next_run_at, c.new_next_run_at)) AS detail,
       count(*) OVER () AS violations
FROM pulse_audit.changes c
WHERE c.new_status = 'RUNNING' AND c.old_status IS DISTINCT FROM 'RUNNING' AND c.new_started_at < coalesce(c.old_next_run_at, c.new_next_run_at)
ORDER BY c.seq LIMIT $1;


-- name: audit_expiry :many
-- What:    no job starts after it has expired
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
SELECT c.id::text AS id, format('attempt %s, started at %s, expired at %s', c.new_attempts, c.new_started_at, j.expires_at) AS detail,
       count(*) OVER () AS violations
FROM pulse_audit.changes c JOIN pulse.jobs j ON j.id = c.id
WHERE c.new_status = 'RUNNING' AND c.old_status IS DISTINCT FROM 'RUNNING' AND c.new_started_at >= j.expires_at
  AND NOT EXISTS (SELECT FROM pulse_audit.changes d WHERE d.id = c.id AND d.seq > c.seq AND d.new_status IS NULL)
ORDER BY c.seq LIMIT $1;


-- name: audit_back_off :many
-- What:    I11: a failed try waits n² seconds after the n-th charged one, (c - 1)² after the c-th crash
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.   An outcome retry has a delay of its own; so has, crashes
--          apart, what ever had a back-off of its own since the audit began: what was in force then, nobody knows.
SELECT b.id::text AS id, format('attempt %s (%s) waits %s s instead of %s s', b.attempt, b.outcome, b.waits_s, b.due_s) AS detail,
       count(*) OVER () AS violations
FROM (
    SELECT c.seq, c.id, a.attempt, a.outcome, extract(epoch FROM c.new_next_run_at - a.ended_at)::float8 AS waits_s,
           CASE WHEN a.outcome = 'crashed' THEN c.new_crashes - 1 ELSE c.new_attempts - c.new_uncharged END ^ 2 AS due_s
    FROM pulse_audit.changes c JOIN pulse.attempts a ON a.job_id = c.id AND a.attempt = c.old_attempts
    WHERE c.old_status = 'RUNNING' AND c.new_status = 'RETRYING'
      AND NOT EXISTS (SELECT FROM pulse_audit.changes d WHERE d.id = c.id AND d.seq > c.seq AND d.new_status IS NULL)
      AND (a.outcome = 'crashed' OR (a.outcome IN ('error', 'timeout', 'stalled', 'lease_expired')
           AND NOT EXISTS (SELECT FROM pulse_audit.backoffs b WHERE b.kind = 'topics' AND b.name IN ('', c.topic))
           AND NOT EXISTS (SELECT FROM pulse.jobs j JOIN pulse_audit.backoffs b ON b.kind = 'handlers' AND b.name = j.name
                           WHERE j.id = c.id)))
     ) AS b
WHERE abs(b.waits_s - b.due_s) > 0.001
ORDER BY b.seq LIMIT $1;


-- name: audit_reaps :many
-- What:    I12: no lease that lives is reaped as lapsed
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
--          A proven death has an outcome of its own; a silent worker that was killed before the reap left its exit code.
SELECT c.id::text AS id, format('attempt %s of %s: lease until %s, reaped at %s', a.attempt, a.worker, c.old_lease_until, a.ended_at)
           AS detail, count(*) OVER () AS violations
FROM pulse_audit.changes c JOIN pulse.attempts a ON a.job_id = c.id AND a.attempt = c.old_attempts
WHERE c.old_status = 'RUNNING' AND c.new_status <> 'RUNNING' AND a.outcome = 'lease_expired' AND a.exit_code IS NULL
  AND c.old_lease_until >= a.ended_at
  AND NOT EXISTS (SELECT FROM pulse_audit.changes d WHERE d.id = c.id AND d.seq > c.seq AND d.new_status IS NULL)
ORDER BY c.seq LIMIT $1;


-- name: audit_gate :many
-- What:    I15: nothing is claimed while dispatch is paused
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
--          By the time at which the claim's statement began; a second is left for a pause to be committed.
SELECT c.id::text AS id, format('claimed at %s on topic %s, which was paused at %s', c.began, c.topic, g.at) AS detail,
       count(*) OVER () AS violations
FROM (SELECT p.topic, p.at, p.paused, least(lead(p.at, 1, 'infinity') OVER (PARTITION BY p.topic ORDER BY p.seq), p.lapses) AS until
      FROM pulse_audit.gates p) AS g
JOIN pulse_audit.changes c ON c.new_status = 'RUNNING' AND c.old_status IS DISTINCT FROM 'RUNNING' AND g.topic IN ('', c.topic)
    AND c.began > g.at + interval '1 second' AND c.began < g.until
WHERE g.paused
ORDER BY c.seq LIMIT $1;
