-- Schedules: changing them, and firing their occurrences.


-- name: create_schedule :one
-- What:    a new schedule.
-- Args:    $1 id uuid, $2 name, $3 topic, $4 args text, $5 kind, $6 cron, $7 timezone, $8 every_s, $9 run_at, $10 next_run_at,
--          $11 priority, $12 max_attempts, $13 timeout_s, $14 following_run_at, $15 starts_at, $16 ends_at, $17 jitter_s,
--          $18 catch_up, $19 overlap, $20 key, $21 declared_by, $22 unique_key, $23 unique_until, $24 on_conflict,
--          $25 group_key
-- Guard:   the primary key and the key: nothing is returned when one of them exists.   Returns: id.
INSERT INTO pulse.schedules AS s (id, name, topic, args, kind, cron, timezone, every_s, run_at, next_run_at, priority, max_attempts,
    timeout_s, following_run_at, starts_at, ends_at, jitter_s, catch_up, overlap, key, declared_by, unique_key, unique_until, on_conflict,
    group_key, reckon)
VALUES ($1, $2, $3, $4::text::jsonb, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25,
    $5 = 'cron' AND $10::timestamptz IS NOT NULL AND $14::timestamptz IS NULL)
ON CONFLICT DO NOTHING
RETURNING uuid_send(s.id) AS id;


-- name: update_schedule :one
-- What:    change a schedule; its cursor stays unless its times change.
-- Args:    as create_schedule, and $26 revision int that was read, $27 moved boolean: whether next and following are set
-- Guard:   the revision: of two changes at once the second gets no row, and reads again.   Returns: id.
UPDATE pulse.schedules s
SET name = $2, topic = $3, args = $4::text::jsonb, kind = $5, cron = $6, timezone = $7, every_s = $8, run_at = $9, priority = $11,
    max_attempts = $12, timeout_s = $13, starts_at = $15, ends_at = $16, jitter_s = $17, catch_up = $18, overlap = $19, key = $20,
    declared_by = $21, unique_key = $22, unique_until = $23, on_conflict = $24, group_key = $25, undeclared_at = NULL,
    revision = s.revision + 1, error = NULL,
    next_run_at = CASE WHEN $27 THEN $10 ELSE s.next_run_at END,
    following_run_at = CASE WHEN $27 THEN $14 ELSE s.following_run_at END,
    reckon = CASE WHEN $27 THEN $10::timestamptz IS NOT NULL AND $14::timestamptz IS NULL ELSE s.reckon OR s.error IS NOT NULL END
WHERE s.id = $1 AND s.revision = $26
RETURNING uuid_send(s.id) AS id;


-- name: get_schedule :one
-- What:    one schedule.   Args: $1 id uuid.   Guard: none: reads.   Returns: the row, or nothing.
SELECT uuid_send(s.id) AS id, s.name, s.topic, s.args::text AS args, s.kind, s.cron, s.timezone, s.every_s, s.run_at, s.next_run_at,
    s.last_run_at, s.paused, s.priority, s.max_attempts, s.timeout_s, s.created_at, s.due_at, s.following_run_at, s.starts_at,
    s.ends_at, s.jitter_s, s.catch_up, s.overlap, s.key, s.declared_by, s.undeclared_at, s.waiting, s.error, s.revision,
    s.group_key, s.unique_key, s.unique_until, s.on_conflict, s.skipped_at, uuid_send(s.skipped_for) AS skipped_for
FROM pulse.schedules s WHERE s.id = $1;


-- name: list_schedules :many
-- What:    a page of schedules, newest first, keyset by (created_at, id).
-- Args:    $1 after created_at or NULL, $2 after id or NULL, $3 limit int.   Guard: none: reads.   Returns: the rows, in order.
SELECT uuid_send(s.id) AS id, s.name, s.topic, s.args::text AS args, s.kind, s.cron, s.timezone, s.every_s, s.run_at, s.next_run_at,
    s.last_run_at, s.paused, s.priority, s.max_attempts, s.timeout_s, s.created_at, s.due_at, s.following_run_at, s.starts_at,
    s.ends_at, s.jitter_s, s.catch_up, s.overlap, s.key, s.declared_by, s.undeclared_at, s.waiting, s.error, s.revision,
    s.group_key, s.unique_key, s.unique_until, s.on_conflict, s.skipped_at, uuid_send(s.skipped_for) AS skipped_for
FROM pulse.schedules s
WHERE $1::timestamptz IS NULL OR (s.created_at, s.id) < ($1, $2::uuid)
ORDER BY s.created_at DESC, s.id DESC LIMIT $3;


-- name: find_schedules :many
-- What:    the schedules that each word may mean: the one with that key, else those with ids between two ids.
-- Args:    $1 words text[], $2 first ids uuid[], $3 last ids uuid[] (both NULL: the word is no begin of an id), $4 limit int: most for each.
-- Guard:   none: reads.   Returns: id, key, name, in the order of the words and of the ids.
SELECT uuid_send(f.id) AS id, f.key, f.name
FROM unnest($1::text[], $2::uuid[], $3::uuid[]) WITH ORDINALITY AS w(word, first_id, last_id, place)
LEFT JOIN pulse.schedules k ON k.key = w.word
CROSS JOIN LATERAL (
    SELECT k.id, k.key, k.name WHERE k.id IS NOT NULL
    UNION ALL
    (SELECT s.id, s.key, s.name FROM pulse.schedules s
     WHERE k.id IS NULL AND s.id BETWEEN w.first_id AND w.last_id ORDER BY s.id LIMIT $4)
) AS f
ORDER BY w.place, f.id;


-- name: pause_schedule :one
-- What:    pause it, or resume it; catch_up decides about the occurrences that were missed.
-- Args:    $1 id uuid, $2 paused boolean.   Guard: the primary key.   Returns: id, or nothing.
UPDATE pulse.schedules s SET paused = $2 WHERE s.id = $1 RETURNING uuid_send(s.id) AS id;


-- name: trigger_schedule :one
-- What:    submit a job of this schedule now, beside its occurrences.
-- Args:    $1 schedule uuid, $2 job uuid.   Guard: the job's primary key: a repeated call is the same job.   Returns: id of the job, or NULL.
SELECT uuid_send(pulse.trigger_schedule($1, $2)) AS id;


-- name: delete_schedule :one
-- What:    delete a schedule; its jobs stay, except that held jobs are canceled.
-- Args:    $1 id uuid.   Guard: the primary key; status and the mark of held jobs, in the function.   Returns: whether there was one.
SELECT pulse.delete_schedule($1) AS done;


-- name: due_schedules :many
-- What:    schedules that are due.
-- Args:    $1 limit int, $2 now, $3 boolean: those with a unique key, which fire_unique fires; else those without; $4 ids uuid[] to
--          leave out
-- Guard:   none: reads; what fires them compares the cursor.
-- Returns: id, the cursor, what the next occurrences are computed from, and the database's time.
SELECT s.id, s.kind, s.cron, s.timezone, s.every_s, s.run_at, s.starts_at, s.ends_at, s.jitter_s, s.catch_up, s.next_run_at,
    s.following_run_at, s.reckon, s.revision, coalesce($2, clock_timestamp()) AS now
FROM pulse.schedules s
WHERE s.due_at <= coalesce($2, now()) AND s.next_run_at IS NOT NULL AND NOT s.paused AND s.error IS NULL
  AND (s.unique_key IS NOT NULL) = $3 AND NOT s.id = ANY ($4::uuid[])
ORDER BY s.due_at LIMIT $1;


-- name: next_schedule :one
-- What:    when the scheduler has something to do.
-- Args:    $1 now, $2 ids uuid[] of schedules with a unique key to leave out.   Guard: none: reads.
-- Returns: due_s: seconds until the next occurrence, NULL: there is none; whether something must be computed; whether jobs are held
--          back; unique_s: as due_s, of schedules with a unique key, which do not count there.
SELECT (SELECT extract(epoch FROM min(s.due_at) - coalesce($1, clock_timestamp()))::float8 FROM pulse.schedules s
        WHERE s.next_run_at IS NOT NULL AND NOT s.paused AND s.error IS NULL AND s.unique_key IS NULL) AS due_s,
    EXISTS (SELECT FROM pulse.schedules s WHERE s.reckon) AS reckon,
    EXISTS (SELECT FROM pulse.schedules s WHERE s.waiting > 0) AS waiting,
    (SELECT extract(epoch FROM min(s.due_at) - coalesce($1, clock_timestamp()))::float8 FROM pulse.schedules s
     WHERE s.next_run_at IS NOT NULL AND NOT s.paused AND s.error IS NULL AND s.unique_key IS NOT NULL
       AND NOT s.id = ANY ($2::uuid[])) AS unique_s;


-- name: fire_schedules :many
-- What:    fire occurrences: move each cursor and insert its job, in one statement; if an earlier job of the schedule is not
--          finished, apply its overlap option.
--          From/to: none -> PENDING
--          From/to: PENDING, RETRYING, RUNNING -> CANCELED
-- Args:    $1 schedule ids uuid[], $2 expected cursors timestamptz[], $3 expected revisions int[], $4 occurrences timestamptz[] (NULL: none,
--          skip the missed ones), $5 next cursors timestamptz[] (NULL: no more), $6 the ones after those timestamptz[] (NULL: not
--          computed, or none; all of the same length, sorted by schedule id), $7 most jobs that one schedule holds back int, $8 the same
--          for catch_up `all`, $9 now
-- Guard:   compare-and-set on the cursor, locked in id order first: of two that fire the same occurrence one finds it moved; the
--          revision: the times were computed from the current rule; and no job of that occurrence exists: a cursor that was set back
--          does not fire twice. The job's id is random: a predictable id could be submitted beforehand by any client, which would
--          block the occurrence, and while its transaction is open all others that are due.
-- Returns: id and verdict (fired, held, skipped, full, passed) of each that was moved. In rows of their own, since the planner has no
--          statistics for a join and would nest loops: id, topic and priority of each job inserted; id and the job canceled.
WITH due AS (
    SELECT s.id, s.next_run_at, s.revision, d.occurrence, d.next_at, d.following_at, s.overlap, s.last_job_id, s.waiting,
           CASE s.catch_up WHEN 'all' THEN $8::int ELSE $7::int END AS most_held,
           (SELECT x.id FROM pulse.jobs x WHERE x.schedule_id = s.id AND x.occurrence = d.occurrence LIMIT 1) AS there_id
    FROM unnest($1::uuid[], $2::timestamptz[], $3::int[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[])
        AS d(id, cursor, revision, occurrence, next_at, following_at)
    JOIN pulse.schedules s ON s.id = d.id
    WHERE s.next_run_at = d.cursor AND s.revision = d.revision AND NOT s.paused
    ORDER BY s.id FOR UPDATE OF s
), judged AS (
    SELECT d.*, coalesce(d.there_id, pulse.uuid7()) AS job_id, CASE
        WHEN d.occurrence IS NULL THEN 'passed'
        WHEN d.overlap IN ('allow', 'cancel') THEN 'fired'
        WHEN NOT (d.waiting > 0 OR EXISTS (SELECT FROM pulse.jobs j WHERE j.id BETWEEN d.last_job_id AND d.last_job_id
                                           AND j.status::text IN ('PENDING', 'RETRYING', 'RUNNING'))) THEN 'fired'
        WHEN d.overlap = 'skip' THEN 'skipped'
        WHEN d.waiting < d.most_held OR (  -- of those that were counted some may have been canceled
            SELECT count(*) FROM pulse.jobs q
            WHERE q.schedule_id = d.id AND q.status = 'PENDING' AND q.next_run_at = '9999-12-30 00:00+00') < d.most_held THEN 'held'
        ELSE 'full' END AS verdict
    FROM due d
), moved AS (
    UPDATE pulse.schedules s
    SET next_run_at = d.next_at, following_run_at = d.following_at,
        reckon = s.kind = 'cron' AND d.next_at IS NOT NULL AND d.following_at IS NULL,
        last_run_at = CASE WHEN d.verdict IN ('fired', 'held') THEN GREATEST(s.last_run_at, d.occurrence) ELSE s.last_run_at END,
        last_job_id = CASE WHEN d.verdict = 'fired' THEN d.job_id ELSE s.last_job_id END,
        skipped_at = CASE WHEN d.verdict IN ('skipped', 'full') THEN d.occurrence ELSE s.skipped_at END,
        skipped_for = CASE WHEN d.verdict IN ('skipped', 'full') THEN s.last_job_id ELSE s.skipped_for END,
        waiting = s.waiting + (d.verdict = 'held')::int
    FROM judged d WHERE s.id = d.id AND s.next_run_at = d.next_run_at AND s.revision = d.revision AND NOT s.paused
    RETURNING s.id, s.name, s.args, s.topic, s.priority, s.max_attempts, s.timeout_s, s.group_key, d.occurrence, d.job_id, d.there_id, d.verdict,
        CASE WHEN d.overlap = 'cancel' AND d.verdict = 'fired' THEN d.last_job_id END AS old_job_id
), put AS (
    INSERT INTO pulse.jobs AS j (id, name, args, priority, submitted_at, next_run_at, schedule_id, occurrence, group_key, topic, max_attempts,
        timeout_s, is_parent)
    SELECT d.job_id, d.name, d.args, d.priority, coalesce($9, clock_timestamp()),
           CASE WHEN d.verdict = 'held' THEN '9999-12-30 00:00+00' ELSE coalesce($9, clock_timestamp()) END, d.id, d.occurrence,
           d.group_key,
           -- :include resolved_options
    FROM moved d
    -- :include option_sources
    WHERE d.verdict IN ('fired', 'held') AND d.there_id IS NULL
    RETURNING j.schedule_id, j.topic, j.priority
), old AS (
    SELECT j.id, m.id AS schedule_id, j.status, j.attempts, j.locked_by, j.started_at, j.progress
    FROM moved m JOIN pulse.jobs j ON j.id BETWEEN m.old_job_id AND m.old_job_id AND j.status::text IN ('PENDING', 'RETRYING', 'RUNNING')
    WHERE m.old_job_id <> m.job_id ORDER BY j.id FOR UPDATE OF j
), canceled AS (
    UPDATE pulse.jobs j
    SET status = 'CANCELED', completed_at = coalesce($9, clock_timestamp()), locked_by = NULL, lease_until = NULL
    FROM old o WHERE j.id = o.id AND j.status::text IN ('PENDING', 'RETRYING', 'RUNNING')
    RETURNING j.id, o.schedule_id, j.completed_at, j.is_parent
), settled AS (
    SELECT CASE WHEN p.ids IS NOT NULL THEN pulse.settle(p.ids) END
    FROM (SELECT array_agg(c.id) AS ids FROM canceled c WHERE c.is_parent) AS p
), history AS (
    INSERT INTO pulse.attempts (job_id, attempt, worker, started_at, ended_at, outcome, progress)
    SELECT o.id, o.attempts, o.locked_by, o.started_at, c.completed_at, 'canceled', o.progress
    FROM old o JOIN canceled c ON c.id = o.id WHERE o.status = 'RUNNING'
    ON CONFLICT (job_id, attempt) DO NOTHING
)
SELECT uuid_send(m.id) AS id, m.verdict, NULL::text AS topic, NULL::smallint AS priority, NULL::bytea AS canceled FROM moved m
UNION ALL SELECT uuid_send(p.schedule_id), NULL, p.topic, p.priority, NULL FROM put p
UNION ALL SELECT uuid_send(c.schedule_id), NULL, NULL, NULL, uuid_send(c.id) FROM canceled c WHERE (SELECT true FROM settled);


-- name: limit_key_wait :exec
-- What:    wait for locks no longer than this in the transaction.   Args: $1 a time text.   Guard: none.   Returns: nothing.
SELECT set_config('lock_timeout', $1, true);


-- name: fire_unique :one
-- What:    fire the occurrence of one schedule with a unique key: move the cursor, and insert the job, or else do what on_conflict
--          says of the job that has the key. For one schedule alone, since it may wait for a transaction that has submitted the key.
--          From/to: none -> PENDING
-- Args:    $1 schedule id uuid, $2 expected cursor timestamptz, $3 expected revision int, $4 occurrence timestamptz (NULL: none, skip
--          the missed ones), $5 next cursor timestamptz, $6 the one after it timestamptz, $7 now
-- Guard:   as fire_schedules; idx_jobs_unique. If the key is free again after all, nothing is moved: the next call inserts.
-- Returns: verdict (fired, replaced, skipped, passed), and the topic and priority of the job that was inserted or changed. No row:
--          nothing was moved.
WITH due AS (
    SELECT s.id, s.next_run_at, s.revision, s.name, s.args, s.topic, s.priority, s.max_attempts, s.timeout_s, s.group_key, s.unique_key,
           s.unique_until, s.on_conflict, $4::timestamptz AS occurrence, pulse.uuid7() AS job_id,
           (SELECT x.id FROM pulse.jobs x WHERE x.schedule_id = s.id AND x.occurrence = $4 LIMIT 1) AS there_id
    FROM pulse.schedules s
    WHERE s.id = $1 AND s.next_run_at = $2 AND s.revision = $3 AND NOT s.paused
    FOR UPDATE OF s
), put AS (
    INSERT INTO pulse.jobs AS j (id, name, args, priority, submitted_at, next_run_at, schedule_id, occurrence, group_key, unique_key,
        unique_until, topic, max_attempts, timeout_s, is_parent)
    SELECT d.job_id, d.name, d.args, d.priority, coalesce($7, clock_timestamp()), coalesce($7, clock_timestamp()), d.id, d.occurrence,
           d.group_key, d.unique_key, coalesce(d.unique_until, 'end'),
           -- :include resolved_options
    FROM due d
    -- :include option_sources
    WHERE d.occurrence IS NOT NULL AND d.there_id IS NULL
    ON CONFLICT DO NOTHING
    RETURNING j.id, j.topic, j.priority
), other AS (
    SELECT h.job_id, h.level_topic, h.level_priority
    FROM due d CROSS JOIN LATERAL pulse.unique_holder(d.job_id, d.name, d.topic, d.args, coalesce($7, clock_timestamp()), NULL,
        d.unique_key, d.on_conflict) AS h
    WHERE d.occurrence IS NOT NULL AND d.there_id IS NULL AND NOT EXISTS (SELECT FROM put)
), judged AS (
    SELECT d.*, o.job_id AS other_id, coalesce(p.topic, o.level_topic) AS level_topic, coalesce(p.priority, o.level_priority) AS level_priority,
           CASE WHEN d.occurrence IS NULL THEN 'passed' WHEN p.id IS NOT NULL OR d.there_id IS NOT NULL THEN 'fired'
                WHEN o.level_topic IS NOT NULL THEN 'replaced' WHEN o.job_id IS NOT NULL THEN 'skipped' END AS verdict
    FROM due d LEFT JOIN put p ON true LEFT JOIN other o ON true
)
UPDATE pulse.schedules s
SET next_run_at = $5, following_run_at = $6, reckon = s.kind = 'cron' AND $5::timestamptz IS NOT NULL AND $6::timestamptz IS NULL,
    last_run_at = CASE WHEN d.verdict IN ('fired', 'replaced') THEN GREATEST(s.last_run_at, d.occurrence) ELSE s.last_run_at END,
    last_job_id = CASE d.verdict WHEN 'fired' THEN coalesce(d.there_id, d.job_id) ELSE s.last_job_id END,
    skipped_at = CASE d.verdict WHEN 'skipped' THEN d.occurrence ELSE s.skipped_at END,
    skipped_for = CASE d.verdict WHEN 'skipped' THEN d.other_id ELSE s.skipped_for END
FROM judged d
WHERE s.id = d.id AND d.verdict IS NOT NULL
RETURNING d.verdict, d.level_topic AS topic, d.level_priority AS priority;


-- name: release_held :many
-- What:    release the oldest held job of each schedule whose last job is finished.
-- Args:    $1 limit int, $2 now
-- Guard:   the schedule's row, locked in id order: of two that release, one sees the other's job as the last. It has the last job
--          and the count that it had when this statement began: else a job may have been held back that is not counted. Status and the mark of held
--          jobs, tested again in the UPDATE.   Returns: topic, priority of the jobs that may run now.
WITH ready AS (
    SELECT s.id, s.last_job_id FROM pulse.schedules s JOIN pulse.schedules seen ON seen.id = s.id
    WHERE s.waiting > 0 AND s.waiting = seen.waiting AND s.last_job_id IS NOT DISTINCT FROM seen.last_job_id
      AND NOT EXISTS (SELECT FROM pulse.jobs j WHERE j.id BETWEEN s.last_job_id AND s.last_job_id
                      AND j.status::text IN ('PENDING', 'RETRYING', 'RUNNING'))
    ORDER BY s.id LIMIT $1 FOR UPDATE OF s
), held AS (
    SELECT r.id AS schedule_id, h.job_id, h.jobs
    FROM ready r CROSS JOIN LATERAL (
        SELECT (array_agg(j.id ORDER BY j.occurrence))[1] AS job_id, count(*)::int AS jobs FROM pulse.jobs j
        WHERE j.schedule_id = r.id AND j.status = 'PENDING' AND j.next_run_at = '9999-12-30 00:00+00') AS h
), moved AS (
    UPDATE pulse.schedules s SET last_job_id = coalesce(h.job_id, s.last_job_id), waiting = GREATEST(h.jobs - 1, 0)
    FROM held h WHERE s.id = h.schedule_id
)
UPDATE pulse.jobs j SET next_run_at = coalesce($2, clock_timestamp())
FROM held h WHERE j.id BETWEEN h.job_id AND h.job_id AND j.status = 'PENDING' AND j.next_run_at = '9999-12-30 00:00+00'
RETURNING j.topic, j.priority;


-- name: unreckoned_schedules :many
-- What:    schedules whose times must be computed.   Args: $1 limit int, $2 now.   Guard: none: reads.
-- Returns: the columns to compute from, and the database's time.
SELECT s.id, s.kind, s.cron, s.timezone, s.every_s, s.run_at, s.starts_at, s.ends_at, s.jitter_s, s.catch_up, s.next_run_at,
    s.following_run_at, s.reckon, s.revision, coalesce($2, clock_timestamp()) AS now
FROM pulse.schedules s WHERE s.reckon ORDER BY s.id LIMIT $1;


-- name: reckon_schedules :many
-- What:    store what was computed: the next occurrence where there was none, and the one after it.
-- Args:    $1 ids uuid[] (sorted), $2 cursors that were read timestamptz[], $3 revisions int[], $4 next timestamptz[],
--          $5 following timestamptz[], $6 errors text[] (same length; NULL: none)
-- Guard:   the cursor and the revision that it was computed from; locked in id order. Schedules with an error are written, too:
--          they would be computed again without an end.   Returns: id.
WITH mine AS (
    SELECT s.id, d.next_at, d.following_at, d.error
    FROM unnest($1::uuid[], $2::timestamptz[], $3::int[], $4::timestamptz[], $5::timestamptz[], $6::text[])
        AS d(id, cursor, revision, next_at, following_at, error)
    JOIN pulse.schedules s ON s.id = d.id
    WHERE s.next_run_at IS NOT DISTINCT FROM d.cursor AND s.revision = d.revision
    ORDER BY s.id FOR UPDATE OF s
)
UPDATE pulse.schedules s SET next_run_at = m.next_at, following_run_at = m.following_at, error = m.error, reckon = false
FROM mine m WHERE s.id = m.id
RETURNING uuid_send(s.id) AS id;


-- name: retry_stuck_schedules :exec
-- What:    compute schedules with an error again: a new pulse may know more time zones.   Args: none.
-- Guard:   none: idempotent; locks rows in no order, but runs only at start.   Returns: nothing.
UPDATE pulse.schedules s SET error = NULL, reckon = true WHERE s.error IS NOT NULL;


-- name: undeclare_schedules :many
-- What:    mark schedules that an application no longer declares; they go on until an operator deletes them.
-- Args:    $1 declared_by text, $2 keys text[] that it declares
-- Guard:   those of this application alone, each once; locked in id order.   Returns: id, key.
WITH gone AS (
    SELECT s.id FROM pulse.schedules s
    WHERE s.declared_by = $1 AND s.undeclared_at IS NULL AND NOT s.key = ANY ($2::text[])
    ORDER BY s.id FOR UPDATE
)
UPDATE pulse.schedules s SET undeclared_at = clock_timestamp() FROM gone g WHERE s.id = g.id RETURNING uuid_send(s.id) AS id, s.key;
