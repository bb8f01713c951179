-- Changes of jobs by operators, and the audit of them.


-- name: cancel_jobs :many
-- What:    cancel, whatever the job is doing.   From/to: PENDING, RETRYING, RUNNING -> CANCELED
-- Args:    $1 ids uuid[], $2 now
-- Guard:   status, locked in id order first and tested again in the UPDATE; pulse.settle for those that wait for them.
-- Returns: id, and attempt and worker where it was RUNNING.
WITH target AS (
    SELECT j.id, j.status, j.attempts, j.locked_by, j.started_at, j.progress FROM pulse.jobs j
    WHERE j.id = ANY ($1::uuid[]) AND j.status::text IN ('PENDING', 'RETRYING', 'RUNNING')
    ORDER BY j.id FOR UPDATE
), changed AS (
    UPDATE pulse.jobs j
    SET status = 'CANCELED', completed_at = coalesce($2, clock_timestamp()), locked_by = NULL, lease_until = NULL
    FROM target t WHERE j.id = t.id AND j.status::text IN ('PENDING', 'RETRYING', 'RUNNING')
    RETURNING j.id, j.completed_at, j.is_parent
), history AS (
    INSERT INTO pulse.attempts (job_id, attempt, worker, started_at, ended_at, outcome, progress)
    SELECT t.id, t.attempts, t.locked_by, t.started_at, c.completed_at, 'canceled', t.progress
    FROM target t JOIN changed c ON c.id = t.id WHERE t.status = 'RUNNING'
    ON CONFLICT (job_id, attempt) DO NOTHING
), settled AS (
    SELECT CASE WHEN p.ids IS NOT NULL THEN pulse.settle(p.ids) END
    FROM (SELECT array_agg(c.id) AS ids FROM changed c WHERE c.is_parent) AS p
)
SELECT uuid_send(t.id) AS id, t.attempts, t.locked_by FROM target t JOIN changed c ON c.id = t.id WHERE (SELECT true FROM settled);


-- name: retry_jobs :many
-- What:    an operator's retry, with fresh budgets; attempts is not reset, so no two claims share a number. An expiry that is over
--          is dropped: the operator wants the job started. In a sequence it has its place again. While jobs that it waits for have
--          not ended, it waits for them again. The run of a completed job goes into the history; one that had not completed keeps its finished steps. It takes no unique key, since another job may have it: the key stays to be seen, and keeps nothing away.
--          From/to: COMPLETED, DEAD_LETTERED, CANCELED -> PENDING
-- Args:    $1 ids uuid[], $2 now
-- Guard:   status, locked in id order first and tested again in the UPDATE.   Returns: id, topic, priority, due time (Unix), group, whether it had completed, whether it waited for others or others for it.
WITH target AS (
    SELECT j.id, j.status, j.attempts, j.ran_by, j.started_at, j.completed_at, j.progress FROM pulse.jobs j
    WHERE j.id = ANY ($1::uuid[]) AND j.status::text IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELED')
    ORDER BY j.id FOR UPDATE
), run AS (
    INSERT INTO pulse.attempts (job_id, attempt, worker, started_at, ended_at, outcome, progress)
    SELECT t.id, t.attempts, t.ran_by, t.started_at, t.completed_at, 'completed', t.progress FROM target t WHERE t.status = 'COMPLETED'
    ON CONFLICT (job_id, attempt) DO NOTHING
)
UPDATE pulse.jobs j
SET status = 'PENDING', uncharged = j.attempts, crashes = 0, completed_at = NULL,
    next_run_at = CASE WHEN j.waiting_on > 0 THEN '9999-12-30 00:00+00'
                       WHEN j.run_after IS NULL OR j.next_run_at = '9999-12-30 00:00+00' THEN coalesce($2, clock_timestamp()) ELSE j.next_run_at END,
    run_after = CASE WHEN j.waiting_on > 0 THEN coalesce($2, clock_timestamp()) END,
    result = NULL, progress = NULL, ran_by = NULL, unique_until = NULL, awaited_signal = NULL,
    checkpoint = CASE WHEN t.status <> 'COMPLETED' AND j.checkpoint -> '$steps' IS NOT NULL THEN j.checkpoint - 'checkpoint' END,
    expires_at = CASE WHEN j.expires_at > coalesce($2, clock_timestamp()) THEN j.expires_at END
FROM target t WHERE j.id = t.id AND j.status::text IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELED')
RETURNING uuid_send(j.id) AS id, j.topic, j.priority, date_part('epoch', j.next_run_at) AS due_s, j.group_key, t.status = 'COMPLETED' AS had_completed,
    j.is_parent IS NOT NULL OR j.waiting_on IS NOT NULL AS has_relatives;


-- name: delete_jobs :many
-- What:    remove jobs that have ended, with their history, for an operator.
-- Args:    $1 ids uuid[]
-- Guard:   status, locked in id order first and tested again in the DELETE: a retry that comes first keeps the job.   Returns: ids that are gone.
WITH target AS (
    SELECT j.id FROM pulse.jobs j
    WHERE j.id = ANY ($1::uuid[]) AND j.status::text IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELED')
    ORDER BY j.id FOR UPDATE
), gone AS (
    DELETE FROM pulse.jobs j USING target t WHERE j.id = t.id AND j.status::text IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELED')
    RETURNING j.id
), history AS (
    DELETE FROM pulse.attempts a USING gone g WHERE a.job_id = g.id
)
SELECT uuid_send(g.id) AS id FROM gone g;


-- name: change_jobs :many
-- What:    move waiting jobs to another topic or priority. Due jobs become due now, which is ahead of the cursors with which
--          dispatchers claim there. Jobs that are due later or held back stay so; jobs with these values already are left alone.
-- Args:    $1 ids uuid[], $2 topic or NULL, $3 priority smallint or NULL (each NULL: it stays), $4 now
-- Guard:   status, locked in id order first and tested again in the UPDATE: a claim or cancel that comes first wins.
-- Returns: id, topic and priority before; and for moved jobs the new ones, when they are due (Unix seconds), and the group.
WITH target AS (
    SELECT j.id, j.topic, j.priority FROM pulse.jobs j
    WHERE j.id = ANY ($1::uuid[]) AND j.status::text IN ('PENDING', 'RETRYING')
    ORDER BY j.id FOR UPDATE
), changed AS (
    UPDATE pulse.jobs j
    SET topic = coalesce($2, j.topic), priority = coalesce($3, j.priority),
        is_parent = CASE WHEN EXISTS (SELECT FROM pulse.topics t WHERE t.topic = $2 AND t.publish) THEN true ELSE j.is_parent END,
        next_run_at = CASE WHEN j.next_run_at <= coalesce($4, clock_timestamp()) THEN coalesce($4, clock_timestamp()) ELSE j.next_run_at END
    FROM target t
    WHERE j.id = t.id AND j.status::text IN ('PENDING', 'RETRYING')
      AND (j.topic, j.priority) IS DISTINCT FROM (coalesce($2, j.topic), coalesce($3, j.priority))
    RETURNING j.id, j.topic, j.priority, j.next_run_at, j.group_key
)
SELECT uuid_send(t.id) AS id, t.topic AS old_topic, t.priority AS old_priority, c.topic, c.priority, date_part('epoch', c.next_run_at) AS due_s, c.group_key
FROM target t LEFT JOIN changed c ON c.id = t.id ORDER BY t.id;


-- name: job_statuses :many
-- What:    status of each of these jobs, to say why one was refused.   Args: $1 ids uuid[].   Guard: none: reads.   Returns: id, status, attempts.
SELECT uuid_send(j.id) AS id, j.status::text AS status, j.attempts FROM pulse.jobs j WHERE j.id = ANY ($1::uuid[]);


-- name: last_workers :many
-- What:    the worker of the last attempt of each of these jobs, if it was canceled or still runs: the handler may still run.
-- Args:    $1 ids uuid[].   Guard: none: reads.   Returns: id, worker.
SELECT uuid_send(j.id) AS id, coalesce(j.locked_by, a.worker) AS worker
FROM pulse.jobs j
LEFT JOIN pulse.attempts a ON a.job_id = j.id AND a.attempt = j.attempts AND a.outcome = 'canceled'
WHERE j.id = ANY ($1::uuid[]) AND coalesce(j.locked_by, a.worker) IS NOT NULL;


-- name: set_operator :exec
-- What:    the operator of this transaction; pulse.note stores it.   Args: $1 JSON text.   Guard: this transaction only.   Returns: nothing.
SELECT set_config('pulse.operator', $1, true);


-- name: note_action :exec
-- What:    an audit entry.
-- Args:    $1 action, $2 topic, $3 schedule uuid, $4 job uuid, $5 jobs int, $6 detail as JSON text (each but the action may be NULL)
-- Guard:   none: in the transaction of the change.   Returns: nothing.
SELECT pulse.note($1, $2, $3, $4, $5, $6::text::jsonb);


-- name: list_actions :many
-- What:    a page of the audit, newest first, keyset by (at, id).
-- Args:    $1 action or NULL (if it ends with a dot: all with this prefix), $2 topic or NULL, $3 since_s float8 or NULL, $4 after at
--          or NULL, $5 after id bigint or NULL, $6 limit int, $7 now
-- Guard:   none: reads.   Returns: the rows, in order.
SELECT a.id, a.at, a.action, a.uid, a.user_name, a.behalf, a.host, a.pid, a.topic, uuid_send(a.schedule_id) AS schedule_id,
    uuid_send(a.job_id) AS job_id, a.jobs, a.detail::text AS detail
FROM pulse.audit a
WHERE ($1::text IS NULL OR a.action = $1 OR ($1 LIKE '%.' AND starts_with(a.action, $1))) AND ($2::text IS NULL OR a.topic = $2)
  AND ($3::float8 IS NULL OR a.at >= coalesce($7, clock_timestamp()) - $3 * interval '1 second')
  AND ($4::timestamptz IS NULL OR (a.at, a.id) < ($4, $5::bigint))
ORDER BY a.at DESC, a.id DESC LIMIT $6;


-- For pulse.testing: on a database in which nobody but one test works.


-- name: forget_test :exec
-- What:    remove what a test has left: jobs that do not run, their history, schedules, the audit. Schedules that an application
--          declares begin anew, and wait until the test lets the time pass.
-- Args:    none.   Guard: status: what runs is canceled first; no other session writes.   Returns: nothing.
WITH jobs AS (
    DELETE FROM pulse.jobs j WHERE j.status <> 'RUNNING'
), history AS (
    DELETE FROM pulse.attempts a
), aside AS (
    DELETE FROM pulse.set_aside s
), outbox AS (
    DELETE FROM pulse.outbox o
), audit AS (
    DELETE FROM pulse.audit a
), declared AS (
    UPDATE pulse.schedules s
    SET next_run_at = NULL, following_run_at = NULL, last_run_at = NULL, last_job_id = NULL, waiting = 0, error = NULL, reckon = true,
        paused = true
    WHERE s.declared_by IS NOT NULL
), own AS (
    DELETE FROM pulse.schedules s WHERE s.declared_by IS NULL
)
SELECT pg_notify('pulse_schedules', '');


-- name: advance_jobs :exec
-- What:    let the time pass for jobs that wait: their due times and expiries come nearer. What becomes due does so now, in the order
--          of its times, which is ahead of the cursors with which dispatchers claim. Jobs that are held back stay so.
-- Args:    $1 seconds float8
-- Guard:   status; claims skip what is locked, and nobody else writes to jobs that wait.   Returns: nothing.
WITH passed AS (
    SELECT j.id, row_number() OVER (ORDER BY j.next_run_at, j.id) * interval '1 microsecond' AS place FROM pulse.jobs j
)
UPDATE pulse.jobs j
SET next_run_at = CASE WHEN j.next_run_at > now() AND j.next_run_at < '9999-12-30 00:00+00'
                       THEN GREATEST(j.next_run_at - $1 * interval '1 second', now() + p.place) ELSE j.next_run_at END,
    expires_at = j.expires_at - $1 * interval '1 second', run_after = j.run_after - $1 * interval '1 second'
FROM passed p WHERE j.id = p.id AND j.status IN ('PENDING', 'RETRYING');


-- name: count_unfinished :one
-- What:    how many jobs run, or are due, have a handler and are not paused.
-- Args:    $1 names text[].   Guard: none: reads.   Returns: jobs.
SELECT count(*) AS jobs FROM pulse.jobs j
WHERE j.status = 'RUNNING'
   OR (j.status IN ('PENDING', 'RETRYING') AND j.next_run_at <= clock_timestamp() AND j.name = ANY ($1::text[])
       AND NOT EXISTS (SELECT FROM pulse.dispatch_control c WHERE c.paused AND c.topic IN ('', j.topic)));


-- name: next_occurrence :one
-- What:    when a schedule occurs next, declared ones also while they wait.   Args: none.   Guard: none: reads.
-- Returns: due_at, whether times must be computed first.
SELECT min(s.due_at) FILTER (WHERE s.declared_by IS NOT NULL OR NOT s.paused) AS due_at, coalesce(bool_or(s.reckon), false) AS reckon
FROM pulse.schedules s WHERE s.error IS NULL;


-- name: hold_declared :exec
-- What:    let the schedules that an application declares wait, or not.   Args: $1 paused boolean.
-- Guard:   none: no other session writes.   Returns: nothing.
UPDATE pulse.schedules s SET paused = $1 WHERE s.declared_by IS NOT NULL;


-- name: see_jobs :one
-- What:    the jobs that a test sees in its own transaction. One text goes in and one comes out: the connection is the test's.
-- Args:    $1 any text.   Guard: none: reads.   Returns: an array of rows as JSON text, the oldest first; times in Unix seconds.
SELECT CAST(coalesce(jsonb_agg(to_jsonb(j) || jsonb_build_object(
    'args', CAST(j.args AS text), 'result', CAST(j.result AS text), 'progress', CAST(j.progress AS text),
    'submitted_at', extract(epoch FROM j.submitted_at), 'next_run_at', extract(epoch FROM j.next_run_at),
    'started_at', extract(epoch FROM j.started_at), 'completed_at', extract(epoch FROM j.completed_at),
    'expires_at', extract(epoch FROM j.expires_at), 'occurrence', extract(epoch FROM j.occurrence),
    'lease_until', extract(epoch FROM j.lease_until), 'signals_total', coalesce(j.signals, 0), 'signals', (
        SELECT jsonb_agg(jsonb_build_object('signal', s.name, 'key', s.key, 'payload', CAST(s.payload AS text),
                                            'sent_at', extract(epoch FROM s.sent_at)) ORDER BY s.id)
        FROM pulse.signals s WHERE s.job_id = j.id),
    'is_due', j.status IN ('PENDING', 'RETRYING') AND j.next_run_at <= clock_timestamp()
) ORDER BY j.submitted_at, j.id), '[]') AS text) AS jobs
FROM pulse.jobs j WHERE $1 <> '';


-- name: end_in_test :one
-- What:    write how jobs have ended that a test has run in its own transaction, which it will roll back.
-- Args:    $1 JSON text: an array of rows.
-- Guard:   status; the transaction is the test's, so nobody else has seen the jobs.   Returns: an id.
UPDATE pulse.jobs j
SET status = CAST(d.status AS pulse.job_status), attempts = d.attempts, uncharged = d.uncharged, result = d.result,
    progress = d.progress, last_error = d.last_error, ran_by = d.ran_by, started_at = clock_timestamp(),
    completed_at = clock_timestamp()
FROM jsonb_to_recordset(CAST(CAST($1 AS text) AS jsonb)) AS d(
    id uuid, status text, attempts int, uncharged int, result jsonb, progress jsonb, last_error text, ran_by text)
WHERE j.id = d.id AND j.status IN ('PENDING', 'RETRYING')
RETURNING CAST(j.id AS text) AS id;
