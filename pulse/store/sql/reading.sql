-- Reading jobs: one, lists of them, and how many there are.


-- fragment: wanted_at
-- What:    when a job is due; of one that waits for others when it is to be, if they have ended by then; of one of a sequence that waits
--          for a signal until when.
CASE WHEN j.run_after IS NOT NULL AND (j.waiting_on > 0 OR j.awaited_signal IS NOT NULL) THEN j.run_after ELSE j.next_run_at END AS next_run_at,


-- fragment: awaited_signal
-- What:    the signal that a job waits for, until its time is over.
CASE WHEN j.locked_by IS NULL AND j.completed_at IS NULL AND (j.next_run_at > clock_timestamp() OR j.run_after > clock_timestamp())
    THEN j.awaited_signal END AS awaited_signal,


-- name: get_job :one
-- What:    one job, all its columns, and its attempts that have a row of their own, oldest first, in one snapshot.
-- Args:    $1 id uuid.   Guard: none: reads.
-- Returns: the row, its history as an array of rows without names (those are in reading/jobs.py), or nothing.
SELECT uuid_send(j.id) AS id, j.topic, j.name, j.args::text AS args, j.status::text AS status, j.priority, j.attempts, j.uncharged,
    j.max_attempts, j.crashes, j.submitted_at,
    -- :include wanted_at
    j.started_at, j.completed_at, j.occurrence, j.expires_at, j.timeout_s, j.locked_by,
    j.ran_by, j.lease_until, j.progress::text AS progress, j.result::text AS result, j.last_error, uuid_send(j.schedule_id) AS schedule_id,
    j.group_key, j.unique_key, j.unique_until, j.waiting_on, j.is_parent, j.signals,
    -- :include awaited_signal
    ARRAY(
        SELECT ROW(uuid_send(a.job_id), a.attempt, a.worker, a.started_at, a.ended_at, a.outcome, a.error, a.exit_code,
            a.progress::text, a.cpu_s, a.peak_rss_bytes, a.stack)
        FROM pulse.attempts a WHERE a.job_id = j.id ORDER BY a.ended_at, a.attempt
    ) AS history
FROM pulse.jobs j WHERE j.id = $1;


-- name: job_text :one
-- What:    one of the long columns of a job: the others are not read, as they may be corrupt.
-- Args:    $1 id uuid, $2 which.   Guard: none: reads.   Returns: the text.
SELECT CASE $2::text WHEN 'args' THEN j.args::text WHEN 'progress' THEN j.progress::text WHEN 'result' THEN j.result::text
                     WHEN 'last_error' THEN j.last_error END AS text
FROM pulse.jobs j WHERE j.id = $1;


-- name: job_history :many
-- What:    the history of get_job by itself.   Args: $1 id uuid.   Guard: none: reads.   Returns: its rows, oldest first.
SELECT uuid_send(a.job_id) AS job_id, a.attempt, a.worker, a.started_at, a.ended_at, a.outcome, a.error, a.exit_code,
    a.progress::text AS progress, a.cpu_s, a.peak_rss_bytes, a.stack
FROM pulse.attempts a WHERE a.job_id = $1 ORDER BY a.ended_at, a.attempt;


-- name: list_limits :one
-- What:    planner settings for lists: use the indexes that have the wanted order, whatever the statistics say.
-- Args:    none.   Guard: none: this transaction only.   Returns: now.
SELECT clock_timestamp() AS now, set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
    set_config('enable_sort', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true);


-- fragment: is_unhandled
-- What:    whether a job waits that no worker has a handler for: it was given back twice or more. NULL: it has no error.
j.status IN ('PENDING', 'RETRYING') AND j.uncharged > 1 AND j.last_error LIKE 'no handler named %'


-- name: walk_jobs :many
-- What:    the matching jobs of a window of the table, in the order of lists.
-- Args:    $1 what to walk through: ids (timed ones), others (all other ids), dead, canceled (timed ones of that status), $2 oldest boolean,
--          $3 from id, $4 to id (of all but others), $5 from submitted_at, $6 from id, $7 to submitted_at, $8 to id (of others; each
--          range is without its end), $9 window int: most rows to look at, $10 limit int: most to find,
--          $11 statuses text[], $12 topic, $13 name, $14 schedule uuid, $15 error (a pattern of ILIKE), $16 worker (likewise),
--          $17 first id, $18 last id (each NULL: any), $19 whether they are due, boolean (NULL: both, and those
--          that no worker has a handler for, which are neither)
-- Guard:   none: reads.
-- Returns: id and submitted_at of those found, in order, and of the last of a whole window, found or not. One-time filters
--          leave one branch: each walks one index, to the end of the window or until enough is found.
SELECT uuid_send(w.id) AS id, w.submitted_at, w.is_wanted, w.place FROM (
    SELECT j.id, j.submitted_at, row_number() OVER () AS place,
       (j.status = ANY ($11::text[]::pulse.job_status[]) OR $11::text[] IS NULL)
       AND ($12::text IS NULL OR j.topic = $12) AND ($13::text IS NULL OR j.name = $13) AND ($14::uuid IS NULL OR j.schedule_id = $14)
       AND ($15::text IS NULL OR j.last_error ILIKE $15) AND ($16::text IS NULL OR j.locked_by ILIKE $16)
       AND ($17::uuid IS NULL OR j.id BETWEEN $17 AND $18)
       AND ($19::boolean IS NULL OR (j.next_run_at <= clock_timestamp()) = $19 AND (
           -- :include is_unhandled
       ) IS NOT TRUE)
       AND ($1 = 'others' OR get_byte(uuid_send(j.id), 6) >> 4 = 7) AS is_wanted
    FROM (
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by, j.uncharged, greatest(j.next_run_at, j.run_after) AS next_run_at
         FROM pulse.jobs j WHERE $1 = 'ids' AND NOT $2 AND j.id >= $3 AND j.id < $4
         ORDER BY j.id DESC LIMIT $9)
        UNION ALL
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by, j.uncharged, greatest(j.next_run_at, j.run_after) AS next_run_at
         FROM pulse.jobs j WHERE $1 = 'ids' AND $2 AND j.id >= $3 AND j.id < $4
         ORDER BY j.id LIMIT $9)
        UNION ALL
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by, j.uncharged, greatest(j.next_run_at, j.run_after) AS next_run_at
         FROM pulse.jobs j WHERE $1 = 'dead' AND NOT $2 AND j.status = 'DEAD_LETTERED' AND j.id >= $3 AND j.id < $4
         ORDER BY j.id DESC LIMIT $9)
        UNION ALL
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by, j.uncharged, greatest(j.next_run_at, j.run_after) AS next_run_at
         FROM pulse.jobs j WHERE $1 = 'dead' AND $2 AND j.status = 'DEAD_LETTERED' AND j.id >= $3 AND j.id < $4
         ORDER BY j.id LIMIT $9)
        UNION ALL
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by, j.uncharged, greatest(j.next_run_at, j.run_after) AS next_run_at
         FROM pulse.jobs j WHERE $1 = 'canceled' AND NOT $2 AND j.status = 'CANCELED' AND j.id >= $3 AND j.id < $4
         ORDER BY j.id DESC LIMIT $9)
        UNION ALL
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by, j.uncharged, greatest(j.next_run_at, j.run_after) AS next_run_at
         FROM pulse.jobs j WHERE $1 = 'canceled' AND $2 AND j.status = 'CANCELED' AND j.id >= $3 AND j.id < $4
         ORDER BY j.id LIMIT $9)
        UNION ALL
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by, j.uncharged, greatest(j.next_run_at, j.run_after) AS next_run_at
         FROM pulse.jobs j WHERE $1 = 'others' AND NOT $2 AND (get_byte(uuid_send(j.id), 6) >> 4 <> 7 OR j.id >= '04000000-0000-0000-0000-000000000000')
           AND (j.submitted_at, j.id) >= ($5, $6) AND (j.submitted_at, j.id) < ($7, $8)
         ORDER BY j.submitted_at DESC, j.id DESC LIMIT $9)
        UNION ALL
        (SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by, j.uncharged, greatest(j.next_run_at, j.run_after) AS next_run_at
         FROM pulse.jobs j WHERE $1 = 'others' AND $2 AND (get_byte(uuid_send(j.id), 6) >> 4 <> 7 OR j.id >= '04000000-0000-0000-0000-000000000000')
           AND (j.submitted_at, j.id) >= ($5, $6) AND (j.submitted_at, j.id) < ($7, $8)
         ORDER BY j.submitted_at, j.id LIMIT $9)
    ) AS j
) AS w
WHERE coalesce(w.is_wanted, false) OR w.place = $9 LIMIT $10;


-- fragment: small_part
-- What:    at most $2 rows of one part of the table that an index covers.
(SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by, j.uncharged, greatest(j.next_run_at, j.run_after) AS next_run_at
 FROM pulse.jobs j WHERE $1 = 'running' AND j.status = 'RUNNING' LIMIT $2)
UNION ALL
(SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by, j.uncharged, greatest(j.next_run_at, j.run_after) AS next_run_at
 FROM pulse.jobs j WHERE $1 = 'waiting' AND $4::text IS NULL AND j.group_key IS NULL AND j.status IN ('PENDING', 'RETRYING') LIMIT $2)
UNION ALL
(SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by, j.uncharged, greatest(j.next_run_at, j.run_after) AS next_run_at
 FROM pulse.jobs j WHERE $1 = 'waiting' AND $4::text IS NULL AND
 -- :include waits_in_group
 LIMIT $2)
UNION ALL
(SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by, j.uncharged, greatest(j.next_run_at, j.run_after) AS next_run_at
 FROM pulse.jobs j WHERE $1 = 'waiting' AND j.topic = $4 AND j.group_key IS NULL AND j.status IN ('PENDING', 'RETRYING') LIMIT $2)
UNION ALL
(SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by, j.uncharged, greatest(j.next_run_at, j.run_after) AS next_run_at
 FROM pulse.jobs j WHERE $1 = 'waiting' AND j.topic = $4 AND
 -- :include waits_in_group
 LIMIT $2)
UNION ALL
(SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by, j.uncharged, greatest(j.next_run_at, j.run_after) AS next_run_at
 FROM pulse.jobs j WHERE $1 = 'dead' AND j.status = 'DEAD_LETTERED' LIMIT $2)
UNION ALL
(SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by, j.uncharged, greatest(j.next_run_at, j.run_after) AS next_run_at
 FROM pulse.jobs j WHERE $1 = 'canceled' AND j.status = 'CANCELED' LIMIT $2)
UNION ALL
(SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by, j.uncharged, greatest(j.next_run_at, j.run_after) AS next_run_at
 FROM pulse.jobs j WHERE $1 = 'schedule' AND j.schedule_id = $6 LIMIT $2)
UNION ALL
(SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by, j.uncharged, greatest(j.next_run_at, j.run_after) AS next_run_at
 FROM pulse.jobs j WHERE $1 = 'prefix' AND j.id BETWEEN $9 AND $10 LIMIT $2)
UNION ALL
(SELECT j.id, j.submitted_at, j.status, j.topic, j.name, j.schedule_id, j.last_error, j.locked_by, j.uncharged, greatest(j.next_run_at, j.run_after) AS next_run_at
 FROM pulse.jobs j WHERE $1 = 'newest' ORDER BY j.id DESC LIMIT $2)


-- fragment: is_wanted
-- What:    whether a row of that part matches the filter.
(j.status = ANY ($3::text[]::pulse.job_status[]) OR $3::text[] IS NULL)
AND ($4::text IS NULL OR j.topic = $4) AND ($5::text IS NULL OR j.name = $5) AND ($6::uuid IS NULL OR j.schedule_id = $6)
AND ($7::text IS NULL OR j.last_error ILIKE $7) AND ($8::text IS NULL OR j.locked_by ILIKE $8)
AND ($9::uuid IS NULL OR j.id BETWEEN $9 AND $10)
AND ($11::boolean IS NULL OR (j.next_run_at <= clock_timestamp()) = $11 AND (
    -- :include is_unhandled
) IS NOT TRUE) AS is_wanted


-- name: collect_jobs :one
-- What:    the matching jobs of a small part of the table that an index covers.
-- Args:    $1 which part: running, waiting (of $4, if that is given), dead, canceled, schedule, prefix, $2 window int: most rows to look at,
--          $3 statuses text[], $4 topic, $5 name, $6 schedule uuid, $7 error, $8 worker, $9 first id, $10 last id, $11 whether they
--          are due (as in walk_jobs)
-- Guard:   none: reads.
-- Returns: how many rows were looked at; the ids found, in no order, concatenated as bytes: first the timed ids, then the
--          others, each with submitted_at in microseconds. A row for each would take longer than all the rest.
SELECT count(*) AS walked, string_agg(w.id, ''::bytea) FILTER (WHERE w.is_wanted AND w.is_timed) AS timed,
    string_agg(w.id || int8send((extract(epoch FROM w.submitted_at) * 1000000)::bigint), ''::bytea)
        FILTER (WHERE w.is_wanted AND NOT w.is_timed) AS others
FROM (
    SELECT uuid_send(j.id) AS id, j.submitted_at,
       get_byte(uuid_send(j.id), 6) >> 4 = 7 AND j.id < '04000000-0000-0000-0000-000000000000' AS is_timed,
       -- :include is_wanted
    FROM (
        -- :include small_part
    ) AS j
) AS w;


-- name: count_found :many
-- What:    how many jobs of a part of the table match a filter, by state.
-- Args:    $1 which part: as in collect_jobs, or newest (those with the highest ids), $2 to $11 as there, $12 older_s float8,
--          $13 newer_s float8: submitted longer ago than that, or no longer (NULL: whenever).
-- Guard:   none: reads.
-- Returns: status, whether they are due, whether no worker has their handler, how many were looked at, and how many of these match.
SELECT w.status, w.is_due, w.is_unhandled, count(*) AS walked, count(*) FILTER (WHERE w.is_wanted) AS found FROM (
    SELECT j.status::text AS status, j.next_run_at <= clock_timestamp() AS is_due, (
           -- :include is_unhandled
       ) IS TRUE AS is_unhandled,
       ($12::float8 IS NULL OR j.submitted_at < clock_timestamp() - make_interval(secs => $12))
       AND ($13::float8 IS NULL OR j.submitted_at >= clock_timestamp() - make_interval(secs => $13)) AND
       -- :include is_wanted
    FROM (
        -- :include small_part
    ) AS j
) AS w GROUP BY w.status, w.is_due, w.is_unhandled;


-- name: group_errors :many
-- What:    the newest dead letters by topic, handler and error.
-- Args:    $1 topic (NULL: any), $2 rows int: how many dead letters to look at, $3 what differs in an error from job to job (a
--          regular expression), $4 groups int: most to return, $5 characters int: most of an error
-- Guard:   none: reads.
-- Returns: walked: how many dead letters were looked at, of any topic; topic, name, number of jobs, newest and oldest, when
--          these ended, id of the newest job and its error, the largest group first. One row at least, without group if there is none.
WITH dead AS MATERIALIZED (
    SELECT j.id, j.topic, j.name, j.completed_at, btrim(j.last_error, E' \n\t') AS error
    FROM pulse.jobs j WHERE j.status = 'DEAD_LETTERED' ORDER BY j.id DESC LIMIT $2
), grouped AS (
    SELECT d.topic, d.name, count(*) AS number, max(d.completed_at) AS newest, min(d.completed_at) AS oldest,
           (array_agg(d.id ORDER BY d.completed_at DESC, d.id DESC))[1] AS id
    FROM dead d WHERE $1::text IS NULL OR d.topic = $1
    GROUP BY d.topic, d.name, regexp_replace(left(
        CASE WHEN d.error LIKE 'Traceback %' THEN substring(d.error FROM '[^\n]*$') ELSE split_part(d.error, E'\n', 1) END, 200
    ), $3, '#', 'gi')
    ORDER BY number DESC, newest DESC LIMIT $4
)
SELECT w.walked, g.topic, g.name, coalesce(g.number, 0) AS number, g.newest, g.oldest, uuid_send(g.id) AS id,
    left(d.error, $5) AS error
FROM (SELECT count(*) AS walked FROM dead) AS w LEFT JOIN grouped g ON true LEFT JOIN dead d ON d.id = g.id
ORDER BY g.number DESC, g.newest DESC;


-- name: jobs_by_ids :many
-- What:    all columns of these jobs.   Args: $1 ids uuid[].   Guard: none: reads.   Returns: the rows, in no order.
SELECT uuid_send(j.id) AS id, j.topic, j.name, j.args::text AS args, j.status::text AS status, j.priority, j.attempts, j.uncharged,
    j.max_attempts, j.crashes, j.submitted_at,
    -- :include wanted_at
    j.started_at, j.completed_at, j.occurrence, j.expires_at, j.timeout_s, j.locked_by,
    j.ran_by, j.lease_until, j.progress::text AS progress, j.result::text AS result, j.last_error, uuid_send(j.schedule_id) AS schedule_id,
    j.group_key, j.unique_key, j.unique_until,
    -- :include awaited_signal
    j.waiting_on
FROM pulse.jobs j WHERE j.id = ANY ($1::uuid[]);


-- name: jobs_in_brief :many
-- What:    the same without the long columns.   Args: $1 ids uuid[].   Guard: none: reads.   Returns: the rows, in no order.
SELECT uuid_send(j.id) AS id, j.topic, j.name, j.status::text AS status, j.priority, j.attempts, j.uncharged,
    j.max_attempts, j.crashes, j.submitted_at,
    -- :include wanted_at
    j.started_at, j.completed_at, j.occurrence, j.expires_at, j.timeout_s, j.locked_by,
    j.ran_by, j.lease_until, uuid_send(j.schedule_id) AS schedule_id,
    j.group_key, j.unique_key, j.unique_until,
    -- :include awaited_signal
    j.waiting_on
FROM pulse.jobs j WHERE j.id = ANY ($1::uuid[]);


-- name: find_jobs :many
-- What:    ids of jobs between each two ids: those that begin with the digits that a person typed.
-- Args:    $1 first ids uuid[], $2 last ids uuid[], $3 limit int: most for each.
-- Guard:   none: reads.   Returns: id, in the order of the ranges and of the ids; each range is read in the index alone.
SELECT f.id FROM unnest($1::uuid[], $2::uuid[]) WITH ORDINALITY AS r(first_id, last_id, place)
CROSS JOIN LATERAL (SELECT j.id FROM pulse.jobs j WHERE j.id BETWEEN r.first_id AND r.last_id ORDER BY j.id LIMIT $3) AS f
ORDER BY r.place, f.id;


-- name: count_jobs :many
-- What:    jobs per status among at most $1 rows: exact if the table has no more.
-- Args:    $1 limit bigint.   Guard: none: reads.   Returns: status, count.
SELECT j.status::text AS status, count(*) AS count FROM (SELECT status FROM pulse.jobs LIMIT $1) AS j GROUP BY j.status;


-- name: estimate_jobs :many
-- What:    jobs per status in a large table: exact for those that may still run (by their partial indexes), estimated from
--          the statistics for the terminal ones.
-- Args: none.   Guard: none: reads.   Returns: status, count.
SELECT w.status::text AS status, count(*) AS count FROM (
    SELECT j.status FROM pulse.jobs j WHERE j.group_key IS NULL AND j.status IN ('PENDING', 'RETRYING')
    UNION ALL
    SELECT j.status FROM pulse.jobs j WHERE
        -- :include waits_in_group
) AS w GROUP BY w.status
UNION ALL
SELECT 'RUNNING', count(*) FROM pulse.jobs j WHERE j.status = 'RUNNING'
UNION ALL
SELECT v.status, (v.share * c.reltuples)::bigint
FROM pg_class c, pg_stats p, unnest(p.most_common_vals::text::text[], p.most_common_freqs) AS v(status, share)
WHERE c.oid = 'pulse.jobs'::regclass AND p.schemaname = 'pulse' AND p.tablename = 'jobs' AND p.attname = 'status'
  AND v.status IN ('COMPLETED', 'DEAD_LETTERED', 'CANCELED');


-- name: guess_jobs :many
-- What:    jobs per status, all of them estimated from the statistics.   Args: none.   Guard: none: reads.   Returns: status, count.
SELECT v.status, (v.share * greatest(c.reltuples, 0))::bigint AS count
FROM pg_class c, pg_stats p, unnest(p.most_common_vals::text::text[], p.most_common_freqs) AS v(status, share)
WHERE c.oid = 'pulse.jobs'::regclass AND p.schemaname = 'pulse' AND p.tablename = 'jobs' AND p.attname = 'status';


-- fragment: waiting_kind
-- What:    what a waiting job waits for: a worker, its time, its next try, or a worker that has its handler (given back twice or more).
CASE WHEN
     -- :include is_unhandled
     THEN 'unhandled'
     WHEN greatest(j.next_run_at, j.run_after) <= c.at THEN 'ready'
     WHEN j.status = 'RETRYING' THEN 'retrying'
     ELSE 'scheduled' END AS kind


-- name: count_waiting :many
-- What:    waiting and running jobs by topic: exact if there are no more of them than are looked at.
-- Args:    $1 rows bigint: how many of each to look at, $2 topics int: how many to list by name, $3 now
-- Guard:   none: reads.   Returns: topic (NULL: all others together), topics: how many the row covers, ready (due), scheduled and
--          retrying (due later, for the first time and again), unhandled (given back twice or more: no worker has their handler),
--          running, oldest_s: since when the first ready job is due, NULL: there is none; waiting_for_jobs: how many of scheduled
--          wait for other jobs; now_s, Unix. One row at least.
WITH clock AS MATERIALIZED (SELECT coalesce($3, clock_timestamp()) AS at), waiting AS MATERIALIZED (
    SELECT j.topic, greatest(j.next_run_at, j.run_after) AS next_run_at, j.waiting_on,
        -- :include waiting_kind
    FROM clock c, (
        (SELECT j.* FROM pulse.jobs j WHERE j.group_key IS NULL AND j.status IN ('PENDING', 'RETRYING') LIMIT $1)
        UNION ALL
        (SELECT j.* FROM pulse.jobs j WHERE
             -- :include waits_in_group
         LIMIT $1)
        LIMIT $1) AS j
), running AS MATERIALIZED (
    SELECT j.topic FROM pulse.jobs j WHERE j.status = 'RUNNING' LIMIT $1
), counted AS (
    SELECT w.topic, count(*) FILTER (WHERE w.kind = 'ready') AS ready, count(*) FILTER (WHERE w.kind = 'scheduled') AS scheduled,
           count(*) FILTER (WHERE w.kind = 'retrying') AS retrying, count(*) FILTER (WHERE w.kind = 'unhandled') AS unhandled,
           0 AS running, min(w.next_run_at) FILTER (WHERE w.kind = 'ready') AS oldest, count(*) FILTER (WHERE w.waiting_on > 0) AS for_jobs
    FROM waiting w GROUP BY w.topic
    UNION ALL
    SELECT r.topic, 0, 0, 0, 0, count(*), NULL, 0 FROM running r GROUP BY r.topic
), ranked AS (
    SELECT p.topic, sum(p.ready) AS ready, sum(p.scheduled) AS scheduled, sum(p.retrying) AS retrying, sum(p.unhandled) AS unhandled,
           sum(p.running) AS running, min(p.oldest) AS oldest, sum(p.for_jobs) AS for_jobs,
           row_number() OVER (ORDER BY sum(p.ready) + sum(p.running) DESC,
                              sum(p.scheduled) + sum(p.retrying) + sum(p.unhandled) DESC, p.topic) <= $2 AS is_large
    FROM counted p GROUP BY p.topic
)
SELECT CASE WHEN r.is_large THEN r.topic END AS topic, count(r.topic)::int AS topics, coalesce(sum(r.ready), 0)::bigint AS ready,
    coalesce(sum(r.scheduled), 0)::bigint AS scheduled, coalesce(sum(r.retrying), 0)::bigint AS retrying,
    coalesce(sum(r.unhandled), 0)::bigint AS unhandled, coalesce(sum(r.running), 0)::bigint AS running,
    extract(epoch FROM c.at - min(r.oldest))::float8 AS oldest_s, coalesce(sum(r.for_jobs), 0)::bigint AS waiting_for_jobs,
    extract(epoch FROM c.at)::float8 AS now_s
FROM clock c LEFT JOIN ranked r ON true GROUP BY 1, c.at;


-- name: sample_waiting :many
-- What:    waiting jobs by topic, if there are too many to count: estimated from some pages of the table, always the same ones.
--          The largest topics, and the named ones, are counted up to $4 jobs; these and their levels show how long the first job
--          has waited: of jobs of groups, that of those that were counted.
-- Args:    $1 pages float8, $2 topics int: how many to list by name, $3 names text[], $4 rows bigint: how many to count of each,
--          $5 now
-- Guard:   none: reads.   Returns: as above, without running.
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT coalesce($5, clock_timestamp()) AS at,
           greatest(1, pg_relation_size('pulse.jobs') / (current_setting('block_size')::float8 * $1)) AS each
), seen AS MATERIALIZED (
    SELECT j.topic, j.waiting_on,
        -- :include waiting_kind
    FROM pulse.jobs j TABLESAMPLE SYSTEM (least(100, 100 * current_setting('block_size')::float8 * $1
                                                     / greatest(pg_relation_size('pulse.jobs'), 1))) REPEATABLE (1), clock c
    WHERE j.status IN ('PENDING', 'RETRYING')
), guessed AS (
    SELECT s.topic, count(*) FILTER (WHERE s.kind = 'ready') * c.each AS ready,
           count(*) FILTER (WHERE s.kind = 'scheduled') * c.each AS scheduled,
           count(*) FILTER (WHERE s.kind = 'retrying') * c.each AS retrying,
           count(*) FILTER (WHERE s.kind = 'unhandled') * c.each AS unhandled,
           count(*) FILTER (WHERE s.waiting_on > 0) * c.each AS for_jobs
    FROM seen s, clock c GROUP BY s.topic, c.each
), large AS (
    (SELECT g.topic FROM guessed g ORDER BY g.ready DESC, g.scheduled + g.retrying + g.unhandled DESC, g.topic LIMIT $2)
    UNION
    SELECT n.topic FROM unnest($3::text[]) AS n(topic)
), looked AS (
    SELECT l.topic, p.ready, p.scheduled, p.retrying, p.unhandled, p.for_jobs, p.number < $4 AS is_exact, p.oldest
    FROM large l CROSS JOIN clock c CROSS JOIN LATERAL (
        SELECT count(*) AS number, count(*) FILTER (WHERE q.kind = 'ready') AS ready, count(*) FILTER (WHERE q.kind = 'scheduled') AS scheduled,
               count(*) FILTER (WHERE q.kind = 'retrying') AS retrying, count(*) FILTER (WHERE q.kind = 'unhandled') AS unhandled,
               min(q.due_at) FILTER (WHERE q.kind = 'ready') AS oldest, count(*) FILTER (WHERE q.waiting_on > 0) AS for_jobs
        FROM (SELECT greatest(j.next_run_at, j.run_after) AS due_at, j.waiting_on,
                  -- :include waiting_kind
              FROM (
                  (SELECT j.* FROM pulse.jobs j WHERE j.topic = l.topic AND j.group_key IS NULL AND j.status IN ('PENDING', 'RETRYING') LIMIT $4)
                  UNION ALL
                  (SELECT j.* FROM pulse.jobs j WHERE j.topic = l.topic AND
                       -- :include waits_in_group
                   LIMIT $4)
                  LIMIT $4) AS j) AS q) AS p
), levels AS (
    SELECT l.topic, 101::smallint AS priority, NULL::timestamptz AS next_run_at FROM large l
    UNION ALL
    SELECT v.topic, f.priority, f.next_run_at
    FROM levels v CROSS JOIN LATERAL (
        SELECT j.priority, j.next_run_at FROM pulse.jobs j
        WHERE j.topic = v.topic AND j.priority < v.priority AND j.group_key IS NULL AND j.status IN ('PENDING', 'RETRYING')
        ORDER BY j.priority DESC, j.next_run_at LIMIT 1) AS f
), told AS (
    SELECT k.topic, true AS is_large, CASE WHEN k.is_exact THEN k.ready ELSE greatest(k.ready, g.ready) END AS ready,
           CASE WHEN k.is_exact THEN k.scheduled ELSE greatest(k.scheduled, g.scheduled) END AS scheduled,
           CASE WHEN k.is_exact THEN k.retrying ELSE greatest(k.retrying, g.retrying) END AS retrying,
           CASE WHEN k.is_exact THEN k.unhandled ELSE greatest(k.unhandled, g.unhandled) END AS unhandled,
           CASE WHEN k.is_exact THEN k.for_jobs ELSE greatest(k.for_jobs, g.for_jobs) END AS for_jobs,
           least(k.oldest, (SELECT min(v.next_run_at) FROM levels v WHERE v.topic = k.topic AND v.next_run_at <= c.at)) AS oldest
    FROM clock c, looked k LEFT JOIN guessed g ON g.topic = k.topic
    UNION ALL
    SELECT g.topic, false, g.ready, g.scheduled, g.retrying, g.unhandled, g.for_jobs, NULL
    FROM guessed g WHERE NOT EXISTS (SELECT FROM large l WHERE l.topic = g.topic)
)
SELECT CASE WHEN t.is_large THEN t.topic END AS topic, count(t.topic)::int AS topics, coalesce(sum(t.ready), 0)::bigint AS ready,
    coalesce(sum(t.scheduled), 0)::bigint AS scheduled, coalesce(sum(t.retrying), 0)::bigint AS retrying,
    coalesce(sum(t.unhandled), 0)::bigint AS unhandled, 0::bigint AS running,
    extract(epoch FROM c.at - min(t.oldest))::float8 AS oldest_s, coalesce(sum(t.for_jobs), 0)::bigint AS waiting_for_jobs,
    extract(epoch FROM c.at)::float8 AS now_s
FROM clock c LEFT JOIN told t ON true GROUP BY 1, c.at;
