-- Ending attempts, with success or without.


-- fragment: completing
-- What:    complete attempts that their workers still hold; what follows says of which jobs.
-- Guard:   id, status, locked_by, attempts.
UPDATE pulse.jobs j
SET status = 'COMPLETED', completed_at = coalesce($6, clock_timestamp()), locked_by = NULL, lease_until = NULL, ran_by = d.worker,
    result = d.result::jsonb, progress = coalesce(d.progress::jsonb, j.progress)
FROM unnest($1::text::uuid[], $2::text::int[], $3::text::text[], $4::text[], $5::text[]) AS d(id, attempt, worker, result, progress)
WHERE j.id BETWEEN d.id AND d.id AND j.status::text = 'RUNNING' AND j.locked_by = d.worker AND j.attempts = d.attempt


-- name: complete_jobs :exec
-- What:    complete the attempts that their workers still hold.   From/to: RUNNING -> COMPLETED
-- Args:    $1 ids text, $2 attempts text, $3 workers text[], $4 results text[], $5 progress text[] (JSON or NULL; same length,
--          sorted by id; the last two may be shorter: NULL), $6 now
-- Guard:   id, status, locked_by, attempts; and no job waits for it, see complete_parents.
-- Returns: how many were completed; a missing one was stale: never repeat it.
--          Only if some are missing, completed_at_attempt finds out which: returning each id would cost a tenth of the
--          statement, in the server and in the client.
-- :include completing
AND j.is_parent IS NULL;


-- name: complete_parents :one
-- What:    the same for those of these jobs that others wait for; and what follows for the others.   From/to: RUNNING -> COMPLETED
-- Args:    as complete_jobs.   Guard: id, status, locked_by, attempts; pulse.settle for the others.   Returns: how many were completed.
WITH done AS (
    -- :include completing
    AND j.is_parent
    RETURNING j.id
)
SELECT p.done, pulse.settle(p.ids) FROM (SELECT count(*) AS done, array_agg(d.id) AS ids FROM done d) AS p;


-- name: complete_and_forget :one
-- What:    the same for a retention of 0: the job is deleted, with its history.
-- Args:    $1 ids text, $2 attempts text, $3 workers text[] (same length, sorted by id)
-- Guard:   id, status, locked_by, attempts; and no job waits for it, which may read its result: then complete_jobs completes it.
-- Returns: how many were deleted; a missing one was stale: never repeat it.
--          A first attempt without last_error has no history to delete: a job that expired and was retried has a last_error.
WITH gone AS (
    DELETE FROM pulse.jobs j
    USING unnest($1::text::uuid[], $2::text::int[], $3::text::text[]) AS d(id, attempt, worker)
    WHERE j.id BETWEEN d.id AND d.id AND j.status::text = 'RUNNING' AND j.locked_by = d.worker AND j.attempts = d.attempt
      AND j.is_parent IS NULL
    RETURNING j.id, j.attempts, j.last_error
), history AS (
    DELETE FROM pulse.attempts a USING gone g WHERE (g.attempts > 1 OR g.last_error IS NOT NULL) AND a.job_id BETWEEN g.id AND g.id
)
SELECT count(*) AS gone FROM gone;


-- name: forget_completed :one
-- What:    delete those of these jobs, too, that their handlers have completed by pulse.complete_attempt.
-- Args:    $1 ids text, $2 attempts text, $3 workers text[] (same length, sorted by id)
-- Guard:   id, status, ran_by, attempts, and no job waits for it.   Returns: how many were deleted.
WITH gone AS (
    DELETE FROM pulse.jobs j
    USING unnest($1::text::uuid[], $2::text::int[], $3::text::text[]) AS d(id, attempt, worker)
    WHERE j.id BETWEEN d.id AND d.id AND j.status::text = 'COMPLETED' AND j.ran_by = d.worker AND j.attempts = d.attempt
      AND j.is_parent IS NULL
    RETURNING j.id
), history AS (
    DELETE FROM pulse.attempts a USING gone g WHERE a.job_id BETWEEN g.id AND g.id
)
SELECT count(*) AS gone FROM gone;


-- name: completed_at_attempt :many
-- What:    which of these attempts completed their jobs: then the report was a repeated one.
-- Args:    $1 ids text, $2 attempts text
-- Guard:   none: reads.   Returns: id, attempt, whether others wait for the job or did.
SELECT uuid_send(j.id) AS id, j.attempts, coalesce(j.is_parent, false) AS is_parent FROM unnest($1::text::uuid[], $2::text::int[]) AS d(id, attempt)
JOIN pulse.jobs j ON j.id BETWEEN d.id AND d.id AND j.status::text = 'COMPLETED' AND j.attempts = d.attempt;


-- fragment: delay_unless_signaled
-- What:    how long an attempt that has ended puts its job off: not at all, if it waits for a signal and one has come meanwhile.
CASE WHEN coalesce(j.signals, 0) > e.signals THEN 0 ELSE e.delay_s END


-- name: end_attempts :many
-- What:    end attempts in any way but success, through the one retry path, and write their history.
--          From/to: RUNNING -> RETRYING, DEAD_LETTERED, PENDING
-- Args:    $1 ids text, $2 attempts text, $3 workers text[], $4 outcomes text[], $5 errors text[] (NULL: keep last_error),
--          $6 delay_s float8[] (NULL: the back-off), $7 exit codes int[], $8 progress text[] (JSON or NULL), $9 stacks text[],
--          $10 cpu_s float8[], $11 peak_rss_bytes bigint[] (same length, sorted by id), $12 awaited signals text[], $13 how many
--          signals their handlers had seen int[] (these two may be shorter: NULL), $14 now
-- Guard:   id, status, locked_by, attempts; and for outcome lease_expired a lease that has lapsed by the database's clock.
--          A job that waits for a signal is due at once if more signals were sent to it than its handler had seen.
--          For each dead letter and crash of a handler that asks for it a job is submitted here: if and only if it is one. Jobs that
--          wait for a dead letter are canceled or released by pulse.settle.
-- Returns: id, attempt, new status, topic, priority, seconds until due, when that is (Unix), name and group (bytes: they may be corrupt);
--          a missing one was stale.
--          `silent` is written as lease_expired without a look at the lease: the worker was killed since, for its silence.
--          Charged tries are attempts - uncharged. Uncharged: released, snoozed; unassigned, which no worker received and
--          which leaves no history; crashed, which has a budget of its own, and
--          whose first retry is immediate. A job that was given back without a charged try is PENDING again.
--          The back-off is the handler's, else the topic's, else the server's, else quadratic. Whether any is set is looked
--          up once for all rows, in two partial indexes; if none is, the strict function is not called.
--          A job of a sequence, which its claim has marked by run_after, keeps its position: that is put off instead.
WITH ended AS (
    SELECT d.id, d.attempt, d.worker, d.outcome, d.error, d.exit_code, d.progress, d.stack, d.cpu_s, d.peak_rss_bytes,
           d.awaited_signal, d.signals, coalesce($14, clock_timestamp()) AS at,
           d.outcome IN ('released', 'unassigned', 'snoozed', 'crashed') AS uncharged, d.outcome = 'crashed' AS crashed,
           coalesce(d.delay_s, CASE d.outcome WHEN 'released' THEN 0 WHEN 'unassigned' THEN 0 WHEN 'crashed' THEN j.crashes ^ 2
               ELSE coalesce(pulse.backoff_s(coalesce(
                        CASE WHEN EXISTS (SELECT FROM pulse.handlers h WHERE h.backoff IS NOT NULL)
                             THEN (SELECT h.backoff FROM pulse.handlers h WHERE h.name = j.name AND h.backoff IS NOT NULL) END,
                        CASE WHEN EXISTS (SELECT FROM pulse.topics t WHERE t.backoff IS NOT NULL)
                             THEN (SELECT t.backoff FROM pulse.topics t WHERE t.topic = j.topic AND t.backoff IS NOT NULL) END,
                        (SELECT t.backoff FROM pulse.topics t WHERE t.topic = '' AND t.backoff IS NOT NULL)), d.attempt - j.uncharged),
                    (d.attempt - j.uncharged) ^ 2) END) AS delay_s,
           CASE d.outcome
               WHEN 'discarded' THEN true
               WHEN 'released' THEN false
               WHEN 'unassigned' THEN false
               WHEN 'snoozed' THEN false
               WHEN 'crashed' THEN j.crashes + 1 >= coalesce(
                   (SELECT h.max_crashes FROM pulse.handlers h WHERE h.name = j.name),
                   (SELECT t.max_crashes FROM pulse.topics t WHERE t.topic = j.topic),
                   (SELECT t.max_crashes FROM pulse.topics t WHERE t.topic = ''))
               ELSE d.attempt - j.uncharged >= j.max_attempts
           END AS dead
    FROM unnest($1::text::uuid[], $2::text::int[], $3::text::text[], $4::text[], $5::text[], $6::float8[], $7::int[],
                $8::text[], $9::text[], $10::float8[], $11::bigint[], $12::text[], $13::int[])
        AS d(id, attempt, worker, outcome, error, delay_s, exit_code, progress, stack, cpu_s, peak_rss_bytes, awaited_signal, signals)
    JOIN pulse.jobs j ON j.id BETWEEN d.id AND d.id
), changed AS (
    UPDATE pulse.jobs j
    SET status = (CASE WHEN e.dead THEN 'DEAD_LETTERED'
                       WHEN e.uncharged AND NOT e.crashed AND e.attempt = j.uncharged + 1 THEN 'PENDING'
                       ELSE 'RETRYING' END)::pulse.job_status,
        next_run_at = CASE WHEN e.dead OR j.run_after IS NOT NULL THEN j.next_run_at ELSE e.at + interval '1 second' *
            -- :include delay_unless_signaled
            END,
        run_after = CASE WHEN e.dead OR j.run_after IS NULL THEN j.run_after ELSE e.at + interval '1 second' *
            -- :include delay_unless_signaled
            END,
        awaited_signal = CASE WHEN coalesce(j.signals, 0) > e.signals THEN NULL ELSE e.awaited_signal END, completed_at = CASE WHEN e.dead THEN e.at END,
        uncharged = j.uncharged + e.uncharged::int, crashes = j.crashes + e.crashed::int,
        last_error = coalesce(e.error, j.last_error), progress = coalesce(e.progress::jsonb, j.progress),
        locked_by = NULL, lease_until = NULL
    FROM ended e
    WHERE j.id BETWEEN e.id AND e.id AND j.status::text = 'RUNNING' AND j.locked_by = e.worker AND j.attempts = e.attempt
      AND (e.outcome <> 'lease_expired' OR j.lease_until < e.at)
    RETURNING j.id, j.attempts, j.status, j.name, j.topic, j.priority, greatest(j.next_run_at, j.run_after) AS due_at, j.started_at, j.progress, j.group_key, e.worker, e.outcome, e.error,
              e.exit_code, e.at, e.stack, e.cpu_s, e.peak_rss_bytes, j.is_parent,
              -- :include delay_unless_signaled
              AS delay_s
), history AS (
    INSERT INTO pulse.attempts (job_id, attempt, worker, started_at, ended_at, outcome, error, exit_code, progress, stack,
                                cpu_s, peak_rss_bytes)
    SELECT id, attempts, worker, started_at, at, CASE outcome WHEN 'silent' THEN 'lease_expired' ELSE outcome END, error,
           exit_code, progress, stack, cpu_s, peak_rss_bytes
    FROM changed
    WHERE outcome <> 'unassigned'
    ON CONFLICT (job_id, attempt) DO NOTHING
), events AS (
    SELECT count(pulse.submit(event.name, pulse.event_args(c.id, c.name, c.topic, c.attempts, c.outcome, c.error),
                              topic => c.topic, priority => c.priority))
    FROM changed c
    JOIN pulse.handlers h ON h.name = c.name AND (h.on_dead_letter IS NOT NULL OR h.on_crash IS NOT NULL)
    CROSS JOIN LATERAL (VALUES (CASE WHEN c.status = 'DEAD_LETTERED' THEN h.on_dead_letter END),
                               (CASE WHEN c.outcome = 'crashed' THEN h.on_crash END)) AS event(name)
    WHERE event.name IS NOT NULL
      AND EXISTS (SELECT FROM pulse.handlers WHERE on_dead_letter IS NOT NULL OR on_crash IS NOT NULL)
), settled AS (
    SELECT CASE WHEN p.ids IS NOT NULL THEN pulse.settle(p.ids) END
    FROM (SELECT array_agg(c.id) AS ids FROM changed c WHERE c.is_parent AND c.status = 'DEAD_LETTERED') AS p
)
SELECT uuid_send(id) AS id, attempts, status::text AS status, topic, priority, delay_s, date_part('epoch', due_at) AS due_s,
       textsend(name) AS name, textsend(group_key) AS group_key
FROM changed
WHERE (SELECT true FROM events) AND (SELECT true FROM settled);


-- name: ended_at_attempt :many
-- What:    which of these attempts have ended just so: then the report was a repeated one, or the answer of end_attempts was lost.
-- Args:    $1 ids text, $2 attempts text, $3 workers text[], $4 outcomes text[] (same length)
-- Guard:   none: reads. The worker and the outcome: another end of the attempt makes this one stale.
-- Returns: as end_attempts, unless the job has started again since.
SELECT uuid_send(j.id) AS id, j.attempts, j.status::text AS status, j.topic, j.priority,
       greatest(0, date_part('epoch', greatest(j.next_run_at, j.run_after) - clock_timestamp())) AS delay_s,
       date_part('epoch', greatest(j.next_run_at, j.run_after)) AS due_s, textsend(j.name) AS name, textsend(j.group_key) AS group_key
FROM unnest($1::text::uuid[], $2::text::int[], $3::text::text[], $4::text[]) AS d(id, attempt, worker, outcome)
JOIN pulse.attempts a ON a.job_id BETWEEN d.id AND d.id AND a.attempt = d.attempt AND a.worker = d.worker
                     AND a.outcome = CASE d.outcome WHEN 'silent' THEN 'lease_expired' ELSE d.outcome END
JOIN pulse.jobs j ON j.id BETWEEN d.id AND d.id AND j.attempts = d.attempt AND j.status::text IN ('RETRYING', 'PENDING', 'DEAD_LETTERED');


-- name: lockable_jobs :many
-- What:    which of these rows no other transaction has locked; for a merged statement that waited too long.
-- Args:    $1 ids uuid[] (sorted)
-- Guard:   none: SKIP LOCKED, and the locks are let go at once.   Returns: ids; a row that is gone counts as lockable.
SELECT uuid_send(d.id) AS id FROM unnest($1::uuid[]) AS d(id)
WHERE NOT EXISTS (SELECT FROM pulse.jobs j WHERE j.id = d.id)
   OR EXISTS (SELECT FROM pulse.jobs j WHERE j.id = d.id FOR UPDATE SKIP LOCKED);
