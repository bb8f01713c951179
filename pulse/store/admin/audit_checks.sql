-- The checks of `pulse check` that need the audit, the record of every change that audit.sql installs. Rules: see checks.sql.


-- name: audit_exists :one
-- What:    is there an audit?   Args: none.   Guard: none: reads.   Returns: is_there.
SELECT to_regclass('pulse_audit.changes') IS NOT NULL AS is_there;


-- name: audit_drop :exec
-- What:    remove the audit and its records.
-- Args:    none.   Guard: lock_timeout: it needs a moment in which nobody writes to pulse.jobs.   Returns: nothing.
DROP SCHEMA pulse_audit CASCADE;


-- name: audit_record :many
-- What:    the record has no gap: each change begins where the one before it ended, and the last ended at the row as it is
-- Args:    $1 examples int
-- Guard:   none: reads.   Returns: id, detail, violations.
--          A change and its record are in one transaction, so one snapshot shows both or neither.
--          A job may be deleted, and another one submitted under its id: the checks below that compare attempts with rows
--          ignore changes from before the last delete.
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
-- What:    nothing changes what a job is: its name, topic, args (unless one with the same key replaces them), and where it came from
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
-- Guard:   none: reads.   Returns: id, detail, violations.   A test compares the list with pulse.job.TRANSITIONS.
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
-- What:    an attempt is charged, or not, exactly once, when it ends: not at all, to the budget, or to the crash budget
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
--          A claim that no worker received is given back without history. Deleted jobs have no history either.
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
--          Attempts that were claimed before the audit began are left out.
SELECT a.job_id::text AS id, format('attempt %s is %s in the history, and did not end so', a.attempt, a.outcome) AS detail,
       count(*) OVER () AS violations
FROM pulse.attempts a
WHERE EXISTS (SELECT FROM pulse_audit.changes c WHERE c.id = a.job_id AND c.new_attempts = a.attempt AND c.new_status = 'RUNNING'
                AND c.old_status IS DISTINCT FROM 'RUNNING')
  AND NOT EXISTS (SELECT FROM pulse_audit.changes c WHERE c.id = a.job_id AND c.old_attempts = a.attempt AND c.old_status = 'RUNNING'
                    AND (c.new_status = 'COMPLETED') = (a.outcome = 'completed')
                    AND c.new_status IN ('COMPLETED', 'PENDING', 'RETRYING', 'DEAD_LETTERED', 'CANCELED'))
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
-- Guard:   none: reads.   Returns: id, detail, violations.   Left out: outcome retry, which has its own delay; and, except
--          for crashes, topics and handlers that had their own back-off since the audit began: it may have changed.
SELECT b.id::text AS id, format('attempt %s (%s) waits %s s instead of %s s', b.attempt, b.outcome, b.waits_s, b.due_s) AS detail,
       count(*) OVER () AS violations
FROM (
    SELECT c.seq, c.id, a.attempt, a.outcome, extract(epoch FROM greatest(c.new_next_run_at, c.new_run_after) - a.ended_at)::float8 AS waits_s,
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
--          Compares with the time at which the claim's statement began, and allows a second for a pause to commit.
SELECT c.id::text AS id, format('claimed at %s on topic %s, which was paused at %s', c.began, c.topic, g.at) AS detail,
       count(*) OVER () AS violations
FROM (SELECT p.topic, p.at, p.paused, least(lead(p.at, 1, 'infinity') OVER (PARTITION BY p.topic ORDER BY p.seq), p.lapses) AS until
      FROM pulse_audit.gates p) AS g
JOIN pulse_audit.changes c ON c.new_status = 'RUNNING' AND c.old_status IS DISTINCT FROM 'RUNNING' AND g.topic IN ('', c.topic)
    AND c.began > g.at + interval '1 second' AND c.began < g.until
WHERE g.paused
ORDER BY c.seq LIMIT $1;
