-- Claiming due jobs, and finding where they are.


-- name: claim_jobs :many
-- What:    hand out due jobs, highest priority first, then by due time; opens their leases.   From/to: PENDING, RETRYING -> RUNNING
-- Args:    $1 topics text[] of a full claim (in the order in which equal priorities are served), $2 limit int, $3 workers text[],
--          $4 seats int[] (for the n-th job: index into workers; beyond its end: 1), $5 lease_s float8,
--          $6 level topics text[], $7 level priorities smallint[], $8 from when float8[] (Unix; NULL: what became due
--          in the last 5 s; same length, in the order in which levels are served) where it is none; $9 ageing_s float8[] (of
--          the topics of $1 or $6: seconds of waiting that are worth one priority, NULL: strict; $9 NULL: none of them
--          ages), $10 witness uuid, $11 its counter bigint, $12 epoch int, $13 start of the server timestamptz, $14 table oid (of
--          fence; $10 NULL: no dispatcher asks), $15 ids uuid[]: these alone, also where they are set aside (NULL: any that is not), $16 now
-- Guard:   the fence: it is the same database, it has all that this dispatcher has seen of it, and no newer epoch has begun.
--          Else nothing is claimed. The gate, until the time at which a pause ends; status IN ('PENDING', 'RETRYING'), due, not expired
--          and not set aside, under SKIP LOCKED, and status again in the outer UPDATE (a row that changed between the two is not claimed twice).
-- Returns: the claimed jobs. Each level (topic, priority) is a range scan that ends at now: what is not due is never read.
--          It begins where the caller says that it claimed last, so it does not meet the dead entries before; a full claim
--          begins at the start, and finds the levels by a loose index scan.
--          LIMIT outside the LATERAL stops it before the next level is touched.
--          Where topics age, a job ranks by its priority plus what its waiting is worth. Within a level that is the order of
--          due times, so the levels are merged: at most as many jobs from each as there are seats, and from the other levels
--          none that ranks below the last job with which the best level alone would fill the seats. No row is rewritten for it.
--          A job that may be older than the newest epoch gets an attempt number above all earlier ones; the skipped numbers are uncharged.
--          Expiry is compared with a clock that is read with the first rows, not when the statement was sent: it may have
--          waited for a lock on the table since. That moment is started_at, so no job starts after it has expired.
--          A claim ends after 8 MiB of args, checkpoints, and the errors and progress of the attempts before: the result must fit
--          into memory and a socket. Short args are not measured: uncompressed, their text is not much longer than 2000 bytes.
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT coalesce($16, clock_timestamp()) AS at
), fence AS MATERIALIZED (
    SELECT e.attempts_floor, e.first_id FROM (SELECT n.* FROM pulse.epochs n ORDER BY n.epoch DESC LIMIT 1) AS e
    WHERE ($10::uuid IS NULL OR (e.epoch = $12 AND pg_postmaster_start_time() = $13 AND EXISTS (
          SELECT FROM pulse.witnesses w WHERE w.instance = $10 AND w.counter >= $11 AND w.tableoid = $14)))
), open AS (
    SELECT t.topic, t.age_s, t.place FROM unnest($1::text[], $9::float8[]) WITH ORDINALITY AS t(topic, age_s, place)
    WHERE NOT EXISTS (SELECT FROM pulse.dispatch_control g WHERE g.paused AND g.topic IN ('', t.topic)
                        AND coalesce(g.paused_until > coalesce($16, now()), true))
), found AS (
    SELECT o.topic, o.age_s, o.place, (
        SELECT j.priority FROM pulse.jobs j WHERE j.topic = o.topic AND j.status IN ('PENDING', 'RETRYING')
        ORDER BY j.priority DESC LIMIT 1) AS priority
    FROM open o
    UNION ALL
    SELECT l.topic, l.age_s, l.place, (
        SELECT j.priority FROM pulse.jobs j WHERE j.topic = l.topic AND j.status IN ('PENDING', 'RETRYING')
        AND j.priority < l.priority ORDER BY j.priority DESC LIMIT 1)
    FROM found l WHERE l.priority IS NOT NULL
), levels AS (
    SELECT f.topic, f.priority, '-infinity'::timestamptz AS from_at, f.age_s, f.place FROM found f WHERE f.priority IS NOT NULL
    UNION ALL
    SELECT k.topic, k.priority, coalesce(to_timestamp(k.from_s), coalesce($16, now()) - interval '5 seconds'), k.age_s, k.place
    FROM unnest($6::text[], $7::smallint[], $8::float8[], $9::float8[]) WITH ORDINALITY AS k(topic, priority, from_s, age_s, place)
    WHERE NOT EXISTS (SELECT FROM pulse.dispatch_control g WHERE g.paused AND g.topic IN ('', k.topic)
                        AND coalesce(g.paused_until > coalesce($16, now()), true))
), ranked AS MATERIALIZED (
    SELECT w.*, w.priority + coalesce(extract(epoch FROM coalesce($16, now()) - h.next_run_at)::float8 / w.age_s, 0) AS rank
    FROM levels w
    CROSS JOIN LATERAL (
        SELECT q.next_run_at FROM pulse.jobs q
        WHERE q.topic = w.topic AND q.priority = w.priority AND q.status IN ('PENDING', 'RETRYING')
          AND q.next_run_at >= w.from_at AND q.next_run_at <= coalesce($16, now())
        ORDER BY q.next_run_at LIMIT 1) AS h
    WHERE $9::float8[] IS NOT NULL
), bar AS MATERIALIZED (
    SELECT b.priority + coalesce(extract(epoch FROM coalesce($16, now()) - n.next_run_at)::float8 / b.age_s, 0) AS rank
    FROM (SELECT * FROM ranked ORDER BY rank DESC, place LIMIT 1) AS b
    CROSS JOIN LATERAL (
        SELECT q.next_run_at FROM pulse.jobs q
        WHERE q.topic = b.topic AND q.priority = b.priority AND q.status IN ('PENDING', 'RETRYING')
          AND q.next_run_at >= b.from_at AND q.next_run_at <= coalesce($16, now())
        ORDER BY q.next_run_at OFFSET $2 - 1 LIMIT 1) AS n
), cut AS (
    SELECT r.*, CASE
        WHEN r.priority >= coalesce((SELECT rank FROM bar), r.priority) OR r.rank >= (SELECT max(rank) FROM ranked) THEN coalesce($16, now())
        WHEN r.age_s IS NULL THEN '-infinity'
        ELSE coalesce($16, now()) - least(((SELECT rank FROM bar) - r.priority) * r.age_s, 6.4e10) * interval '1 second' END AS until_at
    FROM ranked r
), picked AS (
    (SELECT p.id, p.next_run_at, p.size, l.priority::float8 AS rank
    FROM (SELECT * FROM levels WHERE $9::float8[] IS NULL ORDER BY priority DESC, place) AS l
    CROSS JOIN LATERAL (
        SELECT j.id, j.next_run_at,
               CASE WHEN pg_column_size(j.args) > 2000 OR pg_column_compression(j.args) IS NOT NULL
                    THEN octet_length(j.args::text) ELSE 2000 END + coalesce(octet_length(j.checkpoint::text), 0)
               + coalesce(octet_length(to_json(j.last_error)::text), 0) + coalesce(octet_length(j.progress::text), 0) AS size
        FROM pulse.jobs j
        WHERE j.topic = l.topic AND j.priority = l.priority AND j.status IN ('PENDING', 'RETRYING')
          AND j.next_run_at >= l.from_at AND j.next_run_at <= coalesce($16, now())
          AND (j.expires_at IS NULL OR j.expires_at > (SELECT c.at FROM clock c))
          AND CASE WHEN $15::uuid[] IS NULL THEN j.id <> ALL (ARRAY(SELECT s.job_id FROM pulse.set_aside s)) ELSE j.id = ANY ($15) END
        ORDER BY j.next_run_at LIMIT $2 FOR UPDATE SKIP LOCKED) AS p
    LIMIT $2)
    UNION ALL
    (SELECT p.id, p.next_run_at, p.size, c.priority + coalesce(extract(epoch FROM coalesce($16, now()) - p.next_run_at)::float8 / c.age_s, 0)
    FROM cut c
    CROSS JOIN LATERAL (
        SELECT q.id, q.next_run_at,
               CASE WHEN pg_column_size(q.args) > 2000 OR pg_column_compression(q.args) IS NOT NULL
                    THEN octet_length(q.args::text) ELSE 2000 END + coalesce(octet_length(q.checkpoint::text), 0)
               + coalesce(octet_length(to_json(q.last_error)::text), 0) + coalesce(octet_length(q.progress::text), 0) AS size
        FROM pulse.jobs q
        WHERE q.topic = c.topic AND q.priority = c.priority AND q.status IN ('PENDING', 'RETRYING')
          AND q.next_run_at >= c.from_at AND q.next_run_at <= c.until_at
          AND (q.expires_at IS NULL OR q.expires_at > (SELECT c.at FROM clock c))
          AND CASE WHEN $15::uuid[] IS NULL THEN q.id <> ALL (ARRAY(SELECT s.job_id FROM pulse.set_aside s)) ELSE q.id = ANY ($15) END
        ORDER BY q.next_run_at LIMIT $2 FOR UPDATE SKIP LOCKED) AS p
    ORDER BY 4 DESC, c.place, p.next_run_at LIMIT $2)
), seated AS (
    SELECT id, row_number() OVER place AS seat, sum(size) OVER place - size AS before_bytes,
           CASE WHEN f.attempts_floor > 0 AND (id < f.first_id OR get_byte(uuid_send(id), 6) >> 4 <> 7
                                               OR id >= '04000000-0000-0000-0000-000000000000')
                THEN f.attempts_floor ELSE 0 END AS floor
    FROM fence f CROSS JOIN picked
    WINDOW place AS (ORDER BY rank DESC, next_run_at, id)
)
UPDATE pulse.jobs j
SET status = 'RUNNING', attempts = greatest(j.attempts, s.floor) + 1, uncharged = j.uncharged + greatest(s.floor - j.attempts, 0),
    locked_by = ($3::text[])[coalesce(($4::int[])[s.seat], 1)],
    started_at = (SELECT c.at FROM clock c), lease_until = coalesce($16, clock_timestamp()) + $5 * interval '1 second',
    progress = NULL
FROM seated s
WHERE j.id BETWEEN s.id AND s.id AND j.status::text IN ('PENDING', 'RETRYING') AND s.before_bytes < 8388608
RETURNING uuid_send(j.id) AS id, j.attempts, j.name, j.topic, j.args::text AS args, j.timeout_s, j.priority,
    date_part('epoch', j.next_run_at) AS due_at, coalesce(($4::int[])[s.seat], 1) - 1 AS worker, j.uncharged, j.crashes,
    date_part('epoch', j.occurrence) AS occurrence_at, j.checkpoint::text AS checkpoint,
    CASE WHEN j.attempts > 1 THEN (
        SELECT jsonb_build_array(a.outcome, a.error, a.worker, a.progress::text)::text
        FROM pulse.attempts a WHERE a.job_id = j.id AND a.attempt < j.attempts ORDER BY a.attempt DESC LIMIT 1) END AS previous,
    CASE WHEN octet_length(j.traceparent) <= 55 THEN j.traceparent END AS traceparent;


-- name: claimable_jobs :many
-- What:    the jobs that a claim would look at, to find the one for which it fails: no column is read that may be corrupt.
-- Args:    $1 topics text[] of a full claim, $2 limit int, $3 level topics text[], $4 level priorities smallint[], $5 from when
--          float8[] (all as for claim_jobs), $6 now
-- Guard:   none: reads.   Returns: id, topic, priority, due time (Unix), in the order in which they are served.
WITH RECURSIVE found AS (
    SELECT t.topic, (
        SELECT j.priority FROM pulse.jobs j WHERE j.topic = t.topic AND j.status IN ('PENDING', 'RETRYING')
        ORDER BY j.priority DESC LIMIT 1) AS priority
    FROM unnest($1::text[]) AS t(topic)
    UNION ALL
    SELECT l.topic, (
        SELECT j.priority FROM pulse.jobs j WHERE j.topic = l.topic AND j.status IN ('PENDING', 'RETRYING')
        AND j.priority < l.priority ORDER BY j.priority DESC LIMIT 1)
    FROM found l WHERE l.priority IS NOT NULL
), levels AS (
    SELECT f.topic, f.priority, '-infinity'::timestamptz AS from_at FROM found f WHERE f.priority IS NOT NULL
    UNION ALL
    SELECT k.topic, k.priority, coalesce(to_timestamp(k.from_s), coalesce($6, now()) - interval '5 seconds')
    FROM unnest($3::text[], $4::smallint[], $5::float8[]) AS k(topic, priority, from_s)
)
SELECT uuid_send(p.id) AS id, l.topic, l.priority, date_part('epoch', p.next_run_at) AS due_s
FROM levels l
CROSS JOIN LATERAL (
    SELECT j.id, j.next_run_at FROM pulse.jobs j
    WHERE j.topic = l.topic AND j.priority = l.priority AND j.status IN ('PENDING', 'RETRYING')
      AND j.next_run_at >= l.from_at AND j.next_run_at <= coalesce($6, now())
      AND j.id <> ALL (ARRAY(SELECT s.job_id FROM pulse.set_aside s))
    ORDER BY j.next_run_at LIMIT $2) AS p
ORDER BY l.priority DESC, p.next_run_at LIMIT $2;


-- name: find_levels :many
-- What:    the next levels (topic, priority) that have waiting jobs, by a loose index scan: two descents for each.
-- Args:    $1 topic, $2 priority smallint: the level to begin after, $3 limit int, $4 now.   Guard: none: reads.
-- Returns: topic, priority, when its first job is due (Unix seconds), and whether it is due now.
WITH RECURSIVE levels AS (
    SELECT $1::text AS topic, $2::smallint AS priority, NULL::timestamptz AS next_run_at, 0 AS place
    UNION ALL
    SELECT f.topic, f.priority, f.next_run_at, l.place + 1
    FROM levels l
    CROSS JOIN LATERAL (
        SELECT n.* FROM (
            (SELECT j.topic, j.priority, j.next_run_at FROM pulse.jobs j
             WHERE j.topic = l.topic AND j.priority < l.priority AND j.status IN ('PENDING', 'RETRYING')
             ORDER BY j.priority DESC, j.next_run_at LIMIT 1)
            UNION ALL
            (SELECT j.topic, j.priority, j.next_run_at FROM pulse.jobs j
             WHERE j.topic > l.topic AND j.status IN ('PENDING', 'RETRYING')
             ORDER BY j.topic, j.priority DESC, j.next_run_at LIMIT 1)
        ) AS n LIMIT 1
    ) AS f
    WHERE l.place < $3
)
SELECT topic, priority, date_part('epoch', next_run_at) AS due_at, next_run_at <= coalesce($4, now()) AS is_due
FROM levels WHERE place > 0 ORDER BY place;


-- name: move_claims :many
-- What:    move claims that no handler has started to another worker of this dispatcher.   From/to: RUNNING -> RUNNING
-- Args:    $1 ids text, $2 attempts text, $3 workers text[], $4 new workers text[] (same length, sorted by id)
-- Guard:   id, status, locked_by, attempts.   Returns: ids moved; a missing one was stale.
UPDATE pulse.jobs j SET locked_by = d.heir
FROM unnest($1::text::uuid[], $2::text::int[], $3::text[], $4::text[]) AS d(id, attempt, worker, heir)
WHERE j.id BETWEEN d.id AND d.id AND j.status::text = 'RUNNING' AND j.locked_by = d.worker AND j.attempts = d.attempt
RETURNING uuid_send(j.id) AS id;
