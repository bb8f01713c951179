-- The outbox: ends of jobs that a publisher hands to a broker. pulse.settle writes it.


-- name: take_ends :many
-- What:    take ends in hand, the oldest first: nobody else gets them for that time.
-- Args:    $1 most of them int, $2 for how long float8 (seconds), $3 most bytes of a result int, $4 now
--          Less than $1, where the results have more than 4 MiB together: the answer has to fit a frame.
-- Guard:   taken_until; SKIP LOCKED: of two that take at once each gets others.
-- Returns: job, ended_at (microseconds since 1970), attempt, status, topic, name, traceparent, result (JSON; NULL: none, or too large),
--          result_omitted (it is too large), last_error; in no order.
WITH due AS MATERIALIZED (
    SELECT o.job_id, o.ended_at, octet_length(o.result::text) AS bytes
    FROM pulse.outbox o WHERE o.taken_until <= coalesce($4, clock_timestamp())
    ORDER BY o.ended_at, o.job_id LIMIT $1 FOR UPDATE SKIP LOCKED
), fitting AS (
    SELECT d.*, coalesce(sum(d.bytes) FILTER (WHERE d.bytes <= $3) OVER (
        ORDER BY d.ended_at, d.job_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS bytes_before
    FROM due d
)
UPDATE pulse.outbox o SET taken_until = coalesce($4, clock_timestamp()) + $2 * interval '1 second'
FROM fitting d WHERE o.job_id = d.job_id AND o.ended_at = d.ended_at AND d.bytes_before < 4194304
RETURNING uuid_send(o.job_id) AS job, (extract(epoch FROM o.ended_at) * 1000000)::bigint AS ended_at, o.attempt, o.status::text AS status, o.topic,
    o.name, o.traceparent, CASE WHEN d.bytes <= $3 THEN o.result::text END AS result,
    coalesce(d.bytes > $3, false) AS result_omitted, o.last_error;


-- name: forget_ends :one
-- What:    forget ends that a broker has.
-- Args:    $1 jobs uuid[], $2 when they ended bigint[] (as above)
-- Guard:   the primary key: another end of the same job is another row.   Returns: how many were there.
WITH gone AS (
    DELETE FROM pulse.outbox o USING unnest($1::uuid[], $2::bigint[]) AS d(job, ended_at)
    WHERE o.job_id = d.job AND o.ended_at = '1970-01-01 00:00+00'::timestamptz + d.ended_at * interval '1 microsecond'
    RETURNING o.job_id
)
SELECT count(*) AS gone FROM gone;


-- name: count_ends :one
-- What:    how many ends wait in the outbox, and since when: counted up to a number, estimated beyond.
-- Args:    $1 most int, $2 now.   Guard: none: reads.   Returns: ends, ends_oldest_s (NULL: there is none).
SELECT CASE WHEN n.ends < $1 THEN n.ends ELSE greatest(n.ends, pg_stat_get_live_tuples('pulse.outbox'::regclass)) END AS ends,
    extract(epoch FROM coalesce($2, clock_timestamp()) - n.oldest)::float8 AS ends_oldest_s
FROM (SELECT count(*) AS ends, min(o.ended_at) AS oldest
      FROM (SELECT o.ended_at FROM pulse.outbox o ORDER BY o.ended_at LIMIT $1) AS o) AS n;
